"""Listings read a bounded part of an index at a time. Here with small bounds, so that few jobs meet all of them."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure.job.reports import Completed, Failed
from perdure.job.states import RunState, State
from perdure.store.answers import JobFilter, Page, RunFilter, Spot
from perdure.store.open import open_store
from perdure.store.sql import queues, reads
from perdure.store.sql.dialects.sqlite.sql import STATEMENTS
from perdure.store.sql.drivers.sqlite import SqliteDriver
from perdure.store.sql.engine import Op, drive
from perdure.testing.contract import Case, Rig, cases, run_case
from perdure.testing.contract.rig import HOPELESS
from tests.postgres_server import PostgresServer

LISTING = [case for case in cases(("reads", "runs", "queues", "tags", "order")) if "closed" not in case.name]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def rig(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Rig]:
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path}/jobs.db"
    else:
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.new_database()
        store = open_store(url)
        store.upgrade()
        store.close()
    rig = Rig(url)
    yield rig
    rig.close()


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "SCANNED", 4)
    monkeypatch.setattr(reads, "GROUPS", 3)


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("case", [case for case in LISTING if case.group == "reads" or "list" in case.name], ids=str)
def test_the_contract_holds_when_every_listing_has_to_go_on_often(case: Case, rig: Rig) -> None:
    run_case(case, rig)


@pytest.mark.usefixtures("small")
def test_a_page_may_be_short_or_empty_and_says_where_to_go_on(rig: Rig) -> None:
    oldest = rig.enqueue(owner="rare")
    rig.enqueue_many(20)
    wanted, spot, sizes = JobFilter(owner="rare"), None, list[int]()
    while not sizes or spot is not None:
        page = rig.store.jobs(wanted, spot, 10)
        sizes.append(len(page.items))
        spot = page.next

    assert sizes == [0, 0, 0, 0, 1]
    assert rig.jobs(wanted) == [oldest]


# -- counts ----------------------------------------------------------------------------------------------------------


def test_queued_jobs_are_counted_up_to_a_cap_and_it_is_said_that_there_are_more(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "COUNTED", 4)
    rig.enqueue_many(4, queue="exact")
    rig.enqueue_many(5, queue="more")
    rig.enqueue_many(2, delay_s=9, queue="exact")

    told = {queue.name: (queue.queued, queue.live, queue.more_queued, queue.more_live) for queue in rig.store.queues()}
    assert told == {"exact": (4, 6, False, False), "more": (4, 4, True, True)}


@pytest.mark.parametrize("set_aside", [False, True])
def test_other_waiting_jobs_are_counted_up_to_a_cap_of_all_queues(
    set_aside: bool, rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(queues, "COUNTED", 4)
    for queue, number in (("one", 4), ("two", 1)):
        assert not any(queue.more_live for queue in rig.store.queues())
        for job_id in rig.enqueue_many(number, queue=queue, delay_s=0 if set_aside else 9):
            if set_aside:
                rig.pause(job_id)

    assert [(queue.more_queued, queue.more_live) for queue in rig.store.queues()] == [(False, True)] * 2


def test_with_many_queues_each_is_counted_less_far(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "COUNTED_TOGETHER", 6)
    monkeypatch.setattr(queues, "LEAST_COUNTED", 1)
    for name in ("a", "b", "c"):
        rig.enqueue_many(3, queue=name)

    assert [(queue.queued, queue.more_queued) for queue in rig.store.queues()] == [(2, True)] * 3


# -- what a page costs -----------------------------------------------------------------------------------------------

FILTERS = [
    JobFilter(**{name: value for name, value in given if value is not None})  # type: ignore[arg-type]
    for state in (None, *State)
    for given in (
        [("state", state)],
        [("state", state), ("queue", "rare")],
        [("state", state), ("kind", "rare")],
        [("state", state), ("owner", "nobody")],
        [("state", state), ("tag", "t"), ("owner", "nobody")],
        [("state", state), ("queue", "common"), ("kind", "common"), ("owner", "nobody")],
        [("state", state), ("queue", "common"), ("owner", "nobody")],
        [("state", state), ("kind", "common"), ("owner", "nobody")],
    )
]
RUN_FILTERS = [
    RunFilter(state=state, kind=kind, owner=owner)
    for state in (None, *RunState)
    for kind in (None, "common", "rare")
    for owner in (None, "nobody")
]


class Steps:
    """Counts what SQLite does, in steps of its virtual machine: the same on every machine."""

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(path)
        self._driver = SqliteDriver(self._connection, STATEMENTS)
        self._count = 0

    def _step(self) -> int:
        self._count += 1
        return 0

    def worst_page(self, wanted: JobFilter | RunFilter) -> int:
        """The most that any page of this listing took, in tens of steps."""
        worst, spot = 0, None
        self._connection.set_progress_handler(self._step, 10)
        while True:
            self._count = 0
            page = drive(self._page(wanted, spot), self._driver)
            worst, spot = max(worst, self._count), page.next
            if spot is None:
                return worst

    def worst(self, op: Op[object]) -> int:
        self._connection.set_progress_handler(self._step, 10)
        self._count = 0
        drive(op, self._driver)
        return self._count

    def _page(self, wanted: JobFilter | RunFilter, spot: Spot | None) -> Op[Page[object]]:
        page: Op[Page[object]] = (
            reads.page_of_jobs(wanted, spot, 20)  # type: ignore[assignment]
            if isinstance(wanted, JobFilter)
            else reads.page_of_runs(wanted, spot, 20)
        )
        return page

    def close(self) -> None:
        self._connection.close()


def _filled(path: Path, number: int) -> Steps:
    """Ended jobs and newer ones that wait, of each sort so many."""
    rig = Rig(f"sqlite:///{path}")
    rig.enqueue(queue="rare", kind="rare")
    common = {"queue": "common", "kind": "common"}
    rig.store.enqueue([rig.new(tags=("t",), **common) for _ in range(number)])  # type: ignore[arg-type]
    claims = rig.claim(number, queue="common")
    reports = [rig.report(claim, Completed() if n % 2 else Failed(HOPELESS)) for n, claim in enumerate(claims)]
    rig.store.finish(reports, rig.now)
    rig.store.enqueue([rig.new(delay_s=60 * (n % 2), **common) for n in range(2 * number)])  # type: ignore[arg-type]
    rig.close()
    return Steps(path)


def test_no_page_takes_longer_with_eight_times_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reads, "SCANNED", 50)
    few, many = _filled(tmp_path / "few.db", 250), _filled(tmp_path / "many.db", 2_000)

    most = max(few.worst_page(wanted) for wanted in FILTERS)
    too_long = {wanted: steps for wanted in FILTERS if (steps := many.worst_page(wanted)) > 1.3 * most}
    most_runs = max(few.worst_page(wanted) for wanted in RUN_FILTERS)
    too_long_runs = {wanted: steps for wanted in RUN_FILTERS if (steps := many.worst_page(wanted)) > 1.3 * most_runs}
    few.close()
    many.close()

    assert most > 50
    assert (too_long, too_long_runs) == ({}, {})


def test_counting_takes_no_longer_with_eight_times_the_jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queues, "COUNTED", 50)
    few, many = _filled(tmp_path / "few.db", 250), _filled(tmp_path / "many.db", 2_000)

    steps = [side.worst(queues.listing()) for side in (few, many)]
    few.close()
    many.close()
    assert 10 < steps[1] < 1.3 * steps[0]
