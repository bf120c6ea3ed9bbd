"""Rescuers decide on what they have seen, which may be true no longer: every write of theirs checks it again."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from threading import Barrier
from typing import Any, cast

import pytest

from perdure.clock import Micros
from perdure.errors import DatabaseBusy
from perdure.ids import NodeId
from perdure.job.model import Claim
from perdure.job.reports import Completed
from perdure.job.states import RunState, State
from perdure.kind import Registry
from perdure.ops.doctor import examine, is_healthy
from perdure.store.open import open_store
from perdure.store.protocols import Store, StoreSettings
from perdure.store.rows import FinishStatus, Lane, NewNode, NodeRow, Process, Turn
from perdure.testing.contract.rig import Rig
from perdure.upkeep.rescue import BATCH, Rescuer
from perdure.worker.liveness import ProcLiveness
from perdure.worker.options import Parts, WorkerOptions

LEASE_S = 60.0
TIMEOUT_S = 300
DAY_US = 86_400_000_000
NO_PID = 2**22 - 1


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(f"sqlite:///{tmp_path}/jobs.db")
    yield rig
    findings = examine(rig.opener(rig.url), rig.now)
    rig.close()
    assert is_healthy(findings), findings


class Meddled:
    """A store with someone who acts between what a rescuer reads and what it writes."""

    def __init__(self, store: Store, reads: str, act: Callable[[], object]) -> None:
        self._store = store
        self._reads = reads
        self._act = act

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._store, name)
        if name != self._reads:
            return method

        def read_and_act(*args: Any) -> Any:
            found = method(*args)
            self._act()
            return found

        return read_and_act


def rescuer(rig: Rig, store: Store | Meddled | None = None, *, max_crashes: int = 3) -> Rescuer:
    found = cast("Store", store or rig.store)
    parts = Parts(found, Registry(), rig.clock, rig.ids, new_job=lambda _: pytest.fail("a rescuer makes no jobs"))
    return Rescuer(parts, WorkerOptions(lease_s=LEASE_S, max_crashes=max_crashes))


def watch(rig: Rig, observer: Rescuer, own: NodeId, seconds: float, meanwhile: Callable[[], object] = bool) -> int:
    """Beat and look every ten seconds for so long; answers how many jobs were saved."""
    saved = 0
    for _ in range(round(seconds / 10)):
        rig.clock.advance(seconds=10)
        rig.store.beat(own, rig.now)
        meanwhile()
        saved += observer.look(own)
    return saved


def dead_process(rig: Rig) -> NodeId:
    """A node of this machine whose process has ended."""
    node = NodeId(rig.ids.new())
    rig.store.register(NewNode(node, rig.now, ProcLiveness().own()._replace(pid=NO_PID)))
    return node


def living(rig: Rig) -> set[NodeId]:
    return {node.id for node in rig.store.live_nodes()}


def silent_with_jobs(rig: Rig, count: int) -> tuple[NodeId, list[Claim]]:
    node = NodeId(rig.ids.new())
    rig.store.register(NewNode(node, rig.now, Process("elsewhere")))
    rig.enqueue_many(count)
    return node, rig.claim(count, node=node)


# -- nodes -----------------------------------------------------------------------------------------------------------


def test_the_jobs_of_a_process_that_ended_go_on_at_the_first_look(rig: Rig) -> None:
    own, dead = rig.register(), dead_process(rig)
    rig.enqueue_many(2)
    rig.claim(2, node=dead)

    assert rescuer(rig).look(own) == 2
    assert len(rig.in_order()) == 2
    assert dead not in living(rig)
    assert rescuer(rig).look(own) == 0


def test_all_jobs_of_a_dead_node_go_on_at_one_look_however_many(rig: Rig) -> None:
    own, dead = rig.register(), dead_process(rig)
    rig.enqueue_many(2 * BATCH + 1)
    rig.claim(2 * BATCH + 1, node=dead)

    assert rescuer(rig).look(own) == 2 * BATCH + 1


def test_a_flow_that_nobody_looks_at_again_is_found_once_in_a_lease(rig: Rig) -> None:
    own, observer = rig.register(), rescuer(rig)
    observer.look(own)
    flow_id, _ = rig.start_flow(1, open=True)
    rig.store.turn(Turn([rig.report(rig.claim_one(node=own), Completed())]), rig.now)
    rig.execute("UPDATE {flow} SET sealed_at = created_at")

    watch(rig, observer, own, LEASE_S - 10)
    assert not rig.store.glance(own, None).todo
    watch(rig, observer, own, 20)

    assert rig.store.glance(own, None).todo
    rig.settle()
    assert rig.flow(flow_id).state == "completed"


@pytest.mark.parametrize(("most", "state"), [(1, State.FAILED), (2, State.QUEUED)])
def test_a_job_is_rescued_as_often_as_the_worker_was_told(rig: Rig, most: int, state: State) -> None:
    own, dead = rig.register(), dead_process(rig)
    job_id = rig.enqueue(max_attempts=9)
    rig.claim(1, node=dead)

    rescuer(rig, max_crashes=most).look(own)

    assert rig.job(job_id).state == state


def test_a_silent_node_is_given_a_whole_lease(rig: Rig) -> None:
    own, observer = rig.register(), rescuer(rig)
    node, _ = silent_with_jobs(rig, 3)
    observer.look(own)

    assert watch(rig, observer, own, LEASE_S - 10) == 0
    assert watch(rig, observer, own, 10) == 3
    assert living(rig) == {own}
    assert [row.stop_reason for row in rig.store.nodes(9) if row.id == node] == ["unknown"]


def test_a_node_that_beats_is_left_alone(rig: Rig) -> None:
    own, observer = rig.register(), rescuer(rig)
    node, claims = silent_with_jobs(rig, 1)

    assert watch(rig, observer, own, 10 * LEASE_S, lambda: rig.store.beat(node, rig.now)) == 0
    assert rig.finish(claims[0], Completed()).status == FinishStatus.APPLIED


def test_a_node_does_not_declare_itself_dead(rig: Rig) -> None:
    own, claims = silent_with_jobs(rig, 1)

    assert watch(rig, rescuer(rig), own, 10 * LEASE_S) == 0
    assert rig.finish(claims[0], Completed()).status == FinishStatus.APPLIED


def test_a_node_that_beats_after_the_rescuer_looked_survives(rig: Rig) -> None:
    own = rig.register()
    node, claims = silent_with_jobs(rig, 1)
    beating: list[bool] = []
    observer = rescuer(rig, Meddled(rig.store, "live_nodes", lambda: beating and rig.store.beat(node, rig.now)))
    observer.look(own)
    watch(rig, observer, own, LEASE_S - 10)

    beating.append(True)
    assert watch(rig, observer, own, 10) == 0
    assert living(rig) == {own, node}
    assert rig.finish(claims[0], Completed()).status == FinishStatus.APPLIED


def test_a_stale_snapshot_takes_nothing_from_a_node_that_came_back(rig: Rig) -> None:
    """What a rescuer knows may be hours old, if it was stopped between reading and writing."""
    own = rig.register()
    node, claims = silent_with_jobs(rig, 1)
    old: list[NodeRow] = []

    class Stale(Meddled):
        def live_nodes(self) -> list[NodeRow]:
            return old

    observer = rescuer(rig, Stale(rig.store, "", bool))
    old += rig.store.live_nodes()
    rig.store.beat(node, rig.now)

    assert watch(rig, observer, own, 3 * LEASE_S) == 0
    assert rig.finish(claims[0], Completed()).status == FinishStatus.APPLIED


def test_a_node_that_ends_properly_meanwhile_keeps_its_reason(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    own = rig.register()
    node = dead_process(rig)
    store = Meddled(rig.store, "live_nodes", lambda: rig.store.stop(node, "clean_shutdown", rig.now))
    rescuer(rig, store).look(own)

    assert [row.stop_reason for row in rig.store.nodes(9) if row.id == node] == ["clean_shutdown"]
    assert not caplog.records, "nobody died"


def test_a_rescuer_that_beats_too_rarely_proves_by_beats_of_its_own_that_it_can_write(rig: Rig) -> None:
    own, observer = rig.register(), rescuer(rig)
    silent_with_jobs(rig, 3)
    saved = 0
    for _ in range(round(2 * LEASE_S / 10)):
        rig.clock.advance(seconds=10)
        saved += observer.look(own)

    assert saved == 3


def test_two_rescuers_at_once_take_each_job_back_once(rig: Rig) -> None:
    owns = [rig.register(), rig.register()]
    dead = dead_process(rig)
    ids = rig.enqueue_many(BATCH + 20)
    rig.claim(len(ids), node=dead)
    there = Barrier(2)
    stores = [rig.opener(rig.url) for _ in owns]

    def look(number: int) -> int:
        there.wait()
        return rescuer(rig, stores[number]).look(owns[number])

    with ThreadPoolExecutor(2) as pool:
        saved = sum(pool.map(look, range(2)))

    assert saved == len(ids)
    assert rig.in_order() == ids
    assert {(job.attempts, job.crashes) for job in map(rig.job, ids)} == {(1, 1)}
    assert {run.state for job_id in ids for run in rig.runs(job_id)} == {RunState.LOST}


def test_a_rescuer_that_comes_second_finds_nothing_left(rig: Rig) -> None:
    own, other = rig.register(), rig.register()
    dead = dead_process(rig)
    rig.enqueue_many(3)
    rig.claim(3, node=dead)
    first: list[int] = []
    late = rescuer(rig, Meddled(rig.store, "nodes_left_behind", lambda: first.append(rescuer(rig).look(other))))

    assert late.look(own) == 0
    assert first == [3]


def test_a_job_whose_owner_finishes_between_death_and_rescue_is_finished(rig: Rig) -> None:
    own = rig.register()
    dead = dead_process(rig)
    rig.enqueue()
    [claim] = rig.claim(1, node=dead)
    done: list[FinishStatus] = []
    store = Meddled(
        rig.store, "nodes_left_behind", lambda: done.append(rig.finish(claim, Completed()).status) if not done else None
    )

    assert rescuer(rig, store).look(own) == 0
    assert done == [FinishStatus.APPLIED]
    assert rig.job(claim.job_id).state == State.COMPLETED


# -- runs past their deadline ----------------------------------------------------------------------------------------


def hung(rig: Rig, node: NodeId, ahead_us: int = 0) -> Claim:
    """A run with a time-out, claimed by a node whose clock is so far ahead."""
    rig.enqueue(timeout_ms=TIMEOUT_S * 1000)
    at = Micros(rig.now + ahead_us)
    claimer = rig.claimer(1, node)
    [claim] = rig.store.claim([Lane(rig.queue, 1)], claimer, at)
    return claim


@pytest.mark.parametrize("ahead_us", [0, DAY_US, -DAY_US])
def test_a_run_that_its_node_does_not_close_is_closed_whatever_time_that_node_thinks_it_is(
    rig: Rig, ahead_us: int
) -> None:
    own, observer = rig.register(), rescuer(rig)
    node = rig.register()
    claim = hung(rig, node, ahead_us)
    observer.look(own)

    def alive() -> None:
        rig.store.beat(node, rig.now)

    assert watch(rig, observer, own, TIMEOUT_S + LEASE_S - 10, alive) == 0
    assert watch(rig, observer, own, 10, alive) == 1
    assert [run.state for run in rig.runs(claim.job_id)] == [RunState.TIMED_OUT]
    assert rig.job(claim.job_id).state == State.QUEUED
    assert rig.finish(claim, Completed()).status == FinishStatus.LOST


@pytest.mark.parametrize("days", [1, -1])
def test_a_wall_clock_that_jumps_closes_no_run_early_and_none_late(rig: Rig, days: int) -> None:
    own, observer = rig.register(), rescuer(rig)
    node = rig.register()
    hung(rig, node)
    observer.look(own)

    def alive() -> None:
        rig.store.beat(node, rig.now)

    watch(rig, observer, own, 100, alive)
    rig.clock.step(seconds=days * 86_400)
    assert watch(rig, observer, own, TIMEOUT_S + LEASE_S - 110, alive) == 0
    assert watch(rig, observer, own, 10, alive) == 1


def test_a_run_that_ends_in_the_last_moment_keeps_its_end(rig: Rig) -> None:
    own, node = rig.register(), rig.register()
    claim = hung(rig, node)
    late: list[FinishStatus] = []

    def finish() -> None:
        if rig.clock.boottime() >= TIMEOUT_S + LEASE_S and not late:
            late.append(rig.finish(claim, Completed()).status)

    observer = rescuer(rig, Meddled(rig.store, "overdue", finish))
    observer.look(own)

    assert watch(rig, observer, own, TIMEOUT_S + 3 * LEASE_S, lambda: rig.store.beat(node, rig.now)) == 0
    assert late == [FinishStatus.APPLIED]
    assert rig.job(claim.job_id).state == State.COMPLETED


def test_a_hung_run_that_was_cancelled_ends_as_cancelled(rig: Rig) -> None:
    own, node = rig.register(), rig.register()
    claim = hung(rig, node)
    observer = rescuer(rig)
    observer.look(own)
    rig.cancel(claim.job_id)

    assert watch(rig, observer, own, TIMEOUT_S + LEASE_S, lambda: rig.store.beat(node, rig.now)) == 1
    assert rig.job(claim.job_id).state == State.CANCELLED


def test_a_run_without_a_time_out_may_take_for_ever(rig: Rig) -> None:
    own, node = rig.register(), rig.register()
    rig.enqueue()
    rig.claim(1, node=node)

    assert watch(rig, rescuer(rig), own, 2_000, lambda: rig.store.beat(node, rig.now)) == 0


# -- refusals --------------------------------------------------------------------------------------------------------


def refuse(rig: Rig, claim: Claim) -> None:
    """From now on the database changes nothing in this job's row."""
    rig.execute(
        f"CREATE TRIGGER refused BEFORE UPDATE ON perdure_ready WHEN OLD.job_id = X'{claim.job_id.hex()}'"
        " BEGIN SELECT RAISE(ABORT, 'no'); END"
    )


def test_a_job_that_the_database_will_not_let_go_keeps_no_other_of_its_node_and_no_other_node(
    rig: Rig, caplog: pytest.LogCaptureFixture
) -> None:
    own, observer = rig.register(), rescuer(rig)
    rig.enqueue_many(6)
    (_, stuck, _), _ = (rig.claim(3, node=dead_process(rig)) for _ in range(2))
    refuse(rig, stuck)

    assert observer.look(own) == 5
    assert observer.look(own) == 0
    assert len(rig.in_order()) == 5
    assert sum("could not be taken back" in record.getMessage() for record in caplog.records) == 1, "said once"

    rig.execute("DROP TRIGGER refused")
    assert observer.look(own) == 1
    assert len(rig.in_order()) == 6


def test_a_database_that_takes_no_writes_is_no_refusal_of_a_job(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rig = Rig(f"sqlite:///{tmp_path}/busy.db", lambda url: open_store(url, StoreSettings(busy_timeout_s=0.01)))
    own, dead = rig.register(), dead_process(rig)
    rig.enqueue()
    rig.claim(1, node=dead)
    with closing(sqlite3.connect(tmp_path / "busy.db", isolation_level=None)) as other:
        store = Meddled(rig.store, "nodes_left_behind", lambda: other.execute("BEGIN IMMEDIATE"))
        with pytest.raises(DatabaseBusy):
            rescuer(rig, store).look(own)

    assert not [record for record in caplog.records if "could not be taken back" in record.getMessage()]
    assert rescuer(rig).look(own) == 1
    rig.close()


@pytest.mark.damaged
def test_a_run_whose_row_cannot_be_handled_is_closed_with_its_node(tmp_path: Path) -> None:
    rig = Rig(f"sqlite:///{tmp_path}/damaged.db")
    own, dead = rig.register(), dead_process(rig)
    job_id = rig.enqueue()
    rig.claim(1, node=dead)
    rig.execute("UPDATE perdure_ready SET crashes = 'many'")

    assert rescuer(rig).look(own) == 0
    assert rig.job(job_id).state == State.PARKED
    assert RunState.RUNNING not in [run.row.state for run in rig.runs(job_id)]
    rig.close()
