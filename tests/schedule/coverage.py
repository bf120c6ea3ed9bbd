"""Whether every planned instant of a schedule was taken once, or is recorded as missed."""

from __future__ import annotations

from collections import Counter
from datetime import datetime
from itertools import takewhile

from perdure import Perdure
from perdure.clock import to_micros
from perdure.schedules import LAST


def check_coverage(app: Perdure, name: str, since: datetime, until: datetime | None = None) -> Counter[str]:
    """Nothing planned later than `since` and up to `until` (now) was dropped, and nothing was taken twice.

    Returns how many instants were taken, and how many were missed for each reason.
    """
    schedule = app.schedules.get(name)
    assert schedule is not None
    assert schedule.trigger is not None
    end = app.clock.now() if until is None else to_micros(until)
    planned = list(takewhile(lambda at: at <= end, schedule.trigger.instants(to_micros(since))))
    slots = app.store.slots(schedule.id.bytes, LAST, 100_000)
    stretches = app.store.missed(schedule.id.bytes, LAST, 100_000)
    counts: Counter[str] = Counter()
    taken = {slot.scheduled_for for slot in slots}
    jobs = [slot.job_id for slot in slots]
    assert len(jobs) == len(set(jobs))
    for at in planned:
        reasons = [one.reason for one in stretches if one.first_at <= at <= one.last_at]
        assert at in taken or reasons, f"{name}: {at} was neither taken nor recorded"
        assert not (at in taken and reasons), f"{name}: {at} was taken, and recorded as missed ({reasons})"
        counts["taken" if at in taken else reasons[0]] += 1
    return counts
