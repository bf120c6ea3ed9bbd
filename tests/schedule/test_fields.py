"""What a schedule says about itself: which of it can be changed, and which stays."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from perdure import Perdure
from perdure.clock import ManualClock
from perdure.errors import InvalidOption
from tests.schedule.conftest import START, Firer

A = {"to": "a"}


def test_the_id_and_the_time_of_creation_stay_whatever_is_changed(app: Perdure, send: Any, clock: ManualClock) -> None:
    first = app.schedules.put("s", "0 * * * *", kind=send, payload=A)
    clock.advance(minutes=10)

    changed = app.schedules.put("s", "30 7 * * *", tz="Europe/Berlin", kind=send, payload={"to": "b"})
    app.schedules.disable("s")
    renamed = app.schedules.rename("s", "t")

    assert first.created_at == START
    assert (changed.id, changed.created_at) == (renamed.id, renamed.created_at) == (first.id, first.created_at)
    assert changed.trigger is not None
    assert (changed.trigger.cron, changed.trigger.tz, changed.payload) == ("30 7 * * *", "Europe/Berlin", {"to": "b"})


def test_the_zone_is_utc_by_default(app: Perdure, send: Any) -> None:
    schedule = app.schedules.put("s", "0 7 * * *", kind=send, payload=A)

    assert schedule.trigger is not None
    assert schedule.trigger.tz == "UTC"
    assert schedule.next_trigger_at == START + timedelta(hours=7)


def test_a_name_has_up_to_128_characters(app: Perdure, send: Any) -> None:
    app.schedules.put("n" * 128, "0 7 * * *", kind=send, payload=A)

    for wrong, code in (("n" * 129, "name_too_long"), ("", "name_empty")):
        with pytest.raises(InvalidOption) as refused:
            app.schedules.put(wrong, "0 7 * * *", kind=send, payload=A)
        assert refused.value.code == code
        with pytest.raises(InvalidOption):
            app.schedules.rename("n" * 128, wrong)
    assert [schedule.name for schedule in app.schedules.list()] == ["n" * 128]


def test_the_last_and_the_next_instant_are_kept(app: Perdure, send: Any, clock: ManualClock) -> None:
    made = app.schedules.put("s", "0 * * * *", kind=send, payload=A, overlap="allow")
    worker = Firer(app)
    clock.advance(hours=1)
    worker.look()
    clock.advance(hours=1, minutes=1)
    worker.look()

    fired = app.schedules.get("s")
    assert fired is not None
    assert (made.last_trigger_at, made.next_trigger_at) == (None, START + timedelta(hours=1))
    assert fired.last_trigger_at == START + timedelta(hours=2)
    assert fired.next_trigger_at == START + timedelta(hours=3)
    off = app.schedules.disable("s")
    assert (off.last_trigger_at, off.next_trigger_at) == (fired.last_trigger_at, None)


def test_each_schedule_gives_its_jobs_its_own_arguments(app: Perdure, send: Any, clock: ManualClock) -> None:
    app.schedules.put("a", "0 * * * *", kind=send, payload={"to": "a"})
    app.schedules.put("b", "0 * * * *", kind=send, payload={"to": "b"}, queue="other")
    clock.advance(hours=1)
    Firer(app).look()

    made = {app.schedules.slots(name)[0].job_id: name for name in ("a", "b")}
    assert {made[job.id]: (job.payload, job.queue) for job in app.jobs()} == {
        "a": ({"to": "a"}, "default"),
        "b": ({"to": "b"}, "other"),
    }
