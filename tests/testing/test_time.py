"""The manual clock: jobs that wait for a time, and what moves it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from perdure import InvalidInput, InvalidOption, Perdure, State
from perdure.testing import Kit


def test_a_delayed_job_runs_when_its_time_has_come(app: Perdure, t: Kit) -> None:
    @app.job
    def remind() -> None: ...

    job = remind.options(delay=300).enqueue()
    assert t.drain() == []
    t.advance(minutes=4, seconds=59)
    assert t.drain() == []
    t.advance(seconds=1)
    assert [each.id for each in t.drain()] == [job.id]


def test_time_stands_still_by_itself(app: Perdure, t: Kit) -> None:
    @app.job
    def works() -> None: ...

    before = t.now
    job = works.enqueue()
    (ran,) = t.drain()
    assert t.now == before == job.created_at == ran.finished_at


def test_all_ways_to_say_how_long(t: Kit) -> None:
    start = t.now
    assert t.advance(timedelta(hours=1)) == start + timedelta(hours=1)
    assert t.advance(days=1, hours=1, minutes=1, seconds=1.5) == start + timedelta(
        days=1, hours=2, minutes=1, seconds=1.5
    )
    assert t.advance(to=start + timedelta(days=7)) == t.now == start + timedelta(days=7)
    assert t.advance(timedelta(microseconds=1)) == start + timedelta(days=7, microseconds=1)


def test_time_does_not_go_back(t: Kit) -> None:
    start = t.now
    for backwards in ({"seconds": -1}, {"to": start - timedelta(seconds=1)}):
        with pytest.raises(InvalidInput) as refused:
            t.advance(**backwards)
        assert refused.value.code == "clock_backwards"
    assert t.now == start


def test_a_number_without_a_unit_is_refused(t: Kit) -> None:
    with pytest.raises(InvalidInput, match="minutes="):
        t.advance(5)  # type: ignore[arg-type]


def test_a_naive_instant_is_refused(t: Kit) -> None:
    with pytest.raises(InvalidOption):
        t.advance(to=datetime(2999, 1, 1))


def test_jobs_are_found_by_the_manual_time_of_their_creation(app: Perdure, t: Kit) -> None:
    @app.job
    def works() -> None: ...

    works.enqueue()
    tomorrow = t.advance(days=1)
    later = works.enqueue()
    assert [job.id for job in app.jobs(since=tomorrow)] == [later.id]


def test_a_job_for_a_fixed_time_waits_for_it(app: Perdure) -> None:
    @app.job
    def greet() -> None: ...

    with app.testing(start=datetime(2030, 12, 31, 23, tzinfo=UTC)) as t:
        midnight = datetime(2031, 1, 1, tzinfo=UTC)
        job = greet.options(run_at=midnight).enqueue()
        assert job.state is State.SCHEDULED
        t.advance(hours=1)
        (ran,) = t.drain()
        assert ran.started_at == midnight
