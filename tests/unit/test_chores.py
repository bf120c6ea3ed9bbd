"""What a worker does between turns: each chore in its time, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from perdure import PerdureError
from perdure.clock import ManualClock
from perdure.errors import DatabaseUnavailable, SchemaError
from perdure.upkeep.chore import Chore, Chores


def raising(error: Exception) -> Callable[[], int]:
    def run() -> int:
        raise error

    return run


def test_each_chore_runs_in_its_own_time_and_the_pause_is_that_of_the_next_one() -> None:
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    ran: list[str] = []
    chores = Chores(
        [Chore("often", 1, lambda: ran.append("often") or 0), Chore("rarely", 2.5, lambda: ran.append("rarely") or 0)],
        clock,
        found_work=lambda: pytest.fail("none was found"),
    )
    assert chores.run_due() == 1
    clock.advance(milliseconds=400)
    assert chores.run_due() == pytest.approx(0.6)
    assert ran == ["often", "rarely"]

    clock.advance(milliseconds=600)
    assert chores.run_due() == 1
    clock.advance(seconds=1)
    assert chores.run_due() == pytest.approx(0.5)
    clock.advance(milliseconds=500)
    assert chores.run_due() == pytest.approx(0.5)
    assert ran == ["often", "rarely", "often", "often", "rarely"]


@pytest.mark.parametrize("error", [PerdureError("no"), DatabaseUnavailable("away"), ZeroDivisionError("a bug")])
def test_a_chore_that_fails_is_logged_and_delays_no_other(error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    found: list[str] = []
    chores = Chores(
        [Chore("broken", 1, raising(error)), Chore("fine", 1, lambda: 2)], clock, lambda: found.append("work")
    )
    assert chores.run_due() == 1
    assert found == ["work"]
    assert [record.getMessage().split(";")[0] for record in caplog.records] == ["the chore broken failed"]

    clock.advance(seconds=1)
    chores.run_due()
    assert (len(found), len(caplog.records)) == (2, 2)


def test_a_worker_does_not_start_on_a_database_that_is_away_or_of_another_schema() -> None:
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    for error in (DatabaseUnavailable("away"), SchemaError("newer"), ZeroDivisionError("a bug")):
        with pytest.raises(type(error)):
            Chores([Chore("rescue", 1, raising(error), is_needed=True)], clock, bool).start()

    ran: list[str] = []
    chores = [
        Chore("rescue", 1, raising(PerdureError("no")), is_needed=True),
        Chore("schedules", 1, raising(DatabaseUnavailable("for a moment"))),
        Chore("next", 1, lambda: ran.append("next") or 0),
    ]
    Chores(chores, clock, bool).start()
    assert ran == ["next"]
