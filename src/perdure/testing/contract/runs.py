"""The record of attempts: reading it, and that a closed run never changes. Protocol `RunOperations`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

from perdure.errors import PerdureError
from perdure.ids import JobId, NodeId, RunId
from perdure.job.model import Claim, RunStats
from perdure.job.reports import (
    Cancelled,
    Completed,
    Failed,
    Released,
    Report,
    Skipped,
    Snoozed,
    TimedOut,
    Unreadable,
)
from perdure.job.states import CLOSED, RunState
from perdure.job.views import Run
from perdure.store.rows import Finished, FinishStatus, LogLine, RunFilter
from perdure.testing.contract.case import each
from perdure.testing.contract.rig import BROKEN, HOPELESS, Rig

CLOSING: dict[RunState, Report] = {
    RunState.COMPLETED: Completed(),
    RunState.FAILED: Failed(BROKEN),
    RunState.CANCELLED: Cancelled(),
    RunState.SKIPPED: Skipped(),
    RunState.TIMED_OUT: TimedOut(BROKEN),
    RunState.RELEASED: Released(),
}


# -- reading ---------------------------------------------------------------------------------------------------------


def test_runs_are_listed_newest_first(rig: Rig) -> None:
    rig.enqueue_many(3)
    claims = [rig.claim_one() for _ in range(3)]
    found = rig.all_runs(RunFilter(kind=rig.kind))

    assert [run.row.id for run in found] == [claim.run_id for claim in reversed(claims)]


def test_pages_of_runs_follow_each_other_without_gap_or_overlap(rig: Rig) -> None:
    rig.enqueue_many(7)
    rig.claim(7)
    whole = rig.all_runs(RunFilter(kind=rig.kind))
    found: list[Run] = []
    page = rig.store.runs(RunFilter(kind=rig.kind), None, 3)
    while page.next is not None:
        assert len(page.items) == 3
        found += page.items
        page = rig.store.runs(RunFilter(kind=rig.kind), page.next, 3)

    assert len(whole) == 7
    assert [*found, *page.items] == whole


def test_runs_are_found_by_job_state_kind_and_owner(rig: Rig) -> None:
    rig.enqueue(owner="shop")
    rig.enqueue(kind=rig.key("other"))
    first, second = rig.claim(2)
    rig.finish(first, Failed(HOPELESS))
    mine = RunFilter(kind=rig.kind)

    def found(wanted: RunFilter) -> list[bytes]:
        return [run.row.id for run in rig.all_runs(wanted)]

    assert found(RunFilter(job_id=second.job_id)) == [second.run_id]
    assert found(mine) == [first.run_id]
    assert found(mine._replace(state="failed")) == [first.run_id]
    assert found(mine._replace(state="running")) == []
    assert found(mine._replace(owner="shop")) == [first.run_id]
    assert found(mine._replace(owner="nobody")) == []
    assert found(RunFilter(job_id=second.job_id, state="failed")) == []


def test_runs_are_found_by_the_time_they_began(rig: Rig) -> None:
    rig.enqueue_many(3)
    ids = [rig.claim_one().run_id for _ in range(3)]
    wanted = RunFilter(kind=rig.kind, from_id=ids[1], below=ids[2])

    assert [run.row.id for run in rig.all_runs(wanted)] == [ids[1]]


def test_a_job_that_never_ran_has_no_runs(rig: Rig) -> None:
    assert rig.runs(rig.enqueue()) == []


# -- artifacts -------------------------------------------------------------------------------------------------------


def test_artifacts_are_added_to_those_that_are_there(rig: Rig) -> None:
    claim = rig.start()

    assert rig.store.append_artifacts(claim.run_id, ["a.pdf", "b.pdf"])
    assert rig.store.append_artifacts(claim.run_id, ["ü'\".pdf"])
    assert rig.runs(claim.job_id)[0].artifacts == ["a.pdf", "b.pdf", "ü'\".pdf"]


def test_an_artifact_that_is_there_is_not_added_again(rig: Rig) -> None:
    claim = rig.start()
    for _ in range(2):
        assert rig.store.append_artifacts(claim.run_id, ["a.pdf", "b.pdf", "a.pdf"])
    assert rig.runs(claim.job_id)[0].artifacts == ["a.pdf", "b.pdf"]


def test_a_closed_run_still_takes_artifacts_and_nothing_else_changes(rig: Rig) -> None:
    claim = rig.start()
    rig.store.append_artifacts(claim.run_id, ["a"])
    rig.finish(claim, Completed(), RunStats(5, 0))
    [before] = rig.runs(claim.job_id)

    assert rig.store.append_artifacts(claim.run_id, ["b"])

    [after] = rig.runs(claim.job_id)
    assert after.artifacts == ["a", "b"]
    assert after.row._replace(artifacts=None) == before.row._replace(artifacts=None)


def test_a_run_that_is_not_there_takes_no_artifacts(rig: Rig) -> None:
    assert not rig.store.append_artifacts(RunId(rig.ids.new()), ["a"])


# -- closed is closed ------------------------------------------------------------------------------------------------


def _finish(report: Report) -> Callable[[Rig, Claim], object]:
    return lambda rig, claim: rig.finish(claim, report, RunStats(99, 99, "/elsewhere", '{"x":1}'))


CALLS: dict[str, Callable[[Rig, Claim], object]] = {
    **{type(report).__name__: _finish(report) for report in (*CLOSING.values(), Snoozed(1), Unreadable("?"))},
    "cancel": lambda rig, claim: rig.cancel(claim.job_id),
    "pause": lambda rig, claim: rig.pause(claim.job_id),
    "resume": lambda rig, claim: rig.resume(claim.job_id),
    "retry": lambda rig, claim: rig.store.retry(claim.job_id, rig.now),
    "retry as new": lambda rig, claim: rig.store.retry_as_new(claim.job_id, JobId(rig.ids.new()), rig.now),
    "supersede": lambda rig, claim: rig.store.supersede(claim.job_id, rig.new(), rig.now),
    "set priority": lambda rig, claim: rig.store.set_priority(claim.job_id, -3, rig.now),
    "promote": lambda rig, _: rig.store.promote(rig.now, 10),
    "claim": lambda rig, _: rig.claim(node=rig.register()),
    "log": lambda rig, claim: rig.store.append_log([LogLine(claim.run_id, 1, claim.job_id, rig.now, "INFO", "late")]),
    "stop the node": lambda rig, claim: rig.store.stop(_node_of(claim), "crash", rig.now),
    "rescue": lambda rig, claim: rig.rescue(_node_of(claim)),
}
"""Everything that could change a run, except deleting its job, which removes it."""


def _node_of(claim: Claim) -> NodeId:
    assert claim.live.node_id is not None
    return claim.live.node_id


@each(*sorted(CLOSED))
def test_no_call_changes_a_closed_run(rig: Rig, state: RunState) -> None:
    node = rig.register()
    rig.enqueue(max_attempts=9)
    claim = rig.claim_one(node=node)
    if state == RunState.LOST:
        rig.crash(node)
    else:
        rig.finish(claim, CLOSING[state], RunStats(7, 0, "/log", '{"y":2}'))
    closed = [run for run in rig.runs(claim.job_id) if run.row.id == claim.run_id]
    assert closed[0].state == state

    for call in CALLS.values():
        rig.clock.advance(seconds=1)
        with suppress(PerdureError):
            call(rig, claim)
        assert [run for run in rig.runs(claim.job_id) if run.row.id == claim.run_id] == closed


@each(*CLOSING.values(), Snoozed(1), Unreadable("?"))
def test_a_run_that_was_closed_behind_the_back_of_its_job_stays_as_it_is(rig: Rig, report: Report) -> None:
    claim = rig.start()
    rig.execute("UPDATE {run} SET state = 'lost' WHERE started_at = :now", now=rig.now)
    before = rig.everything()

    assert rig.finish(claim, report) == Finished(FinishStatus.LOST)
    assert rig.everything() == before
    rig.execute("UPDATE {run} SET state = 'running' WHERE started_at = :now", now=rig.now)
