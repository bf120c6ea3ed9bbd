"""Real processes that fire the same schedules at the same moments, on SQLite and on PostgreSQL."""

from __future__ import annotations

from perdure import Perdure
from perdure.clock import ManualClock
from perdure.ops.doctor import examine
from tests.postgres.processes import at_once
from tests.schedule.conftest import START
from tests.schedule.coverage import check_coverage
from tests.schedule.processes import MINUTES, an_hour


def test_eight_processes_over_an_hour_take_every_slot_once(url: str) -> None:
    made = at_once(an_hour, url, processes=8)

    clock = ManualClock(START)
    clock.advance(minutes=MINUTES)
    app = Perdure(url, clock=clock)
    for minutes in (1, 2, 10):
        assert check_coverage(app, f"every {minutes}", START) == {"taken": MINUTES // minutes}
    assert check_coverage(app, "cron", START) == {"taken": 60 // 7 + 1}  # at minute 0 too, which is the next hour
    assert check_coverage(app, "in line", START) == {"taken": MINUTES}
    assert check_coverage(app, "one at a time", START) == {"taken": 1, "overlap": MINUTES - 1}
    assert sum(made) == sum(1 for _ in app.jobs()) == 60 + 30 + 6 + 9 + 60 + 1
    assert examine(app.store) == []
    app.close()
