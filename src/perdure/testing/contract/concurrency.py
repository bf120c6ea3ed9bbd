"""Many at once: what holds when real processes and threads meet at one database. Across the protocols."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from functools import partial
from typing import TypeVar

from perdure.clock import Micros
from perdure.errors import KeyConflict, TemplateError, TransitionRefused
from perdure.ids import IdFactory, JobId, NodeId, RunId
from perdure.job.reports import Completed, Failed, Finish
from perdure.job.states import RunState, State
from perdure.store.rows import (
    EVERY_QUEUE,
    Claimer,
    Finished,
    FinishStatus,
    JobFilter,
    Lane,
    NewNode,
    Process,
    RunFilter,
)
from perdure.testing.contract.rig import BROKEN, FULL, LEASE_US, Opener, Rig, reserve

T = TypeVar("T")

PROCESSES = 8
THREADS = 16
CLAIMS = 10_000 if FULL else 250
"""Per process."""


def _at_once(calls: list[Callable[[], T]]) -> list[T]:
    """The results of these calls, each made on its own thread once all threads are there."""
    start = threading.Barrier(len(calls))

    def begin(call: Callable[[], T]) -> T:
        start.wait()
        return call()

    with ThreadPoolExecutor(len(calls)) as pool:
        return list(pool.map(begin, calls))


# -- processes -------------------------------------------------------------------------------------------------------


def test_processes_claim_every_job_once_and_lose_none(rig: Rig) -> None:
    ids = [job_id for _ in range(PROCESSES * CLAIMS // 1_000) for job_id in rig.enqueue_many(1_000)]

    taken = _claimed_by_processes(rig)

    assert [len(job_ids) for job_ids in taken] == [CLAIMS] * PROCESSES
    assert Counter(job_id for job_ids in taken for job_id in job_ids) == Counter(ids)
    assert rig.in_order() == []
    assert len(rig.jobs(JobFilter(state="completed", queue=rig.queue), len(ids) + 1)) == len(ids)
    runs = rig.all_runs(RunFilter(kind=rig.kind), len(ids) + 1)
    assert Counter(run.row.job_id for run in runs) == Counter(ids)


def _claimed_by_processes(rig: Rig) -> list[list[JobId]]:
    """What each process claimed. Spawned, not forked: each opens the store itself, as workers do."""
    spawn = multiprocessing.get_context("spawn")
    all_there = spawn.Barrier(PROCESSES, timeout=120)
    with ProcessPoolExecutor(PROCESSES, spawn, initializer=all_there.wait) as pool:
        calls = [
            pool.submit(_claim_in_process, rig.opener, rig.url, rig.queue, number, rig.now)
            for number in range(PROCESSES)
        ]
        return [call.result() for call in calls]


def _claim_in_process(opener: Opener, url: str, queue: str, number: int, now: Micros) -> list[JobId]:
    """Claim and finish CLAIMS jobs, a few at a time, and return their ids."""
    store, ids = opener(url), IdFactory()
    node = NodeId(ids.new())
    store.register(NewNode(node, now, Process(pid=os.getpid())))
    taken: list[JobId] = []
    while len(taken) < CLAIMS:
        room = min(1 + (len(taken) + number) % 20, CLAIMS - len(taken))
        claimer = Claimer(node, None, [RunId(run_id) for run_id in ids.new_many(room)], LEASE_US)
        claims = store.claim([Lane(queue, room)], claimer, now)
        if not claims:
            break
        taken += [claim.job_id for claim in claims]
        ends = [Finish(claim.live, Completed(), JobId(ids.new())) for claim in claims]
        while ends:  # as a worker does: what somebody else had locked for longer than a moment is reported again
            answers = store.finish(ends, now)
            assert {answer.status for answer in answers} <= {FinishStatus.APPLIED, FinishStatus.WAITS}, answers
            ends = [end for end, answer in zip(ends, answers, strict=True) if answer.status is FinishStatus.WAITS]
    store.close()
    return taken


# -- threads ---------------------------------------------------------------------------------------------------------


def test_one_business_key_at_once_makes_one_job(rig: Rig) -> None:
    def enqueue() -> JobId | str:
        try:
            return rig.enqueue(business_key=rig.key("b"))
        except KeyConflict as conflict:
            return conflict.code

    answers = Counter(_at_once([enqueue] * THREADS))

    assert answers.pop("business_key_taken") == THREADS - 1
    assert rig.in_order() == list(answers)


def test_one_business_key_at_once_returns_the_same_job_to_those_who_ask_for_it(rig: Rig) -> None:
    jobs = _at_once([lambda: rig.store.enqueue([rig.new(business_key=rig.key("b"), conflict="return")])[0]] * THREADS)

    assert len({job.row.id for job in jobs}) == 1
    assert sum(job.deduplicated for job in jobs) == THREADS - 1
    assert rig.in_order() == [jobs[0].row.id]


def test_one_template_at_once_is_made_once_and_each_change_is_a_version(rig: Rig) -> None:
    name = rig.key("template")
    wanted = [rig.new_template(name, f'{{"n":{number}}}') for number in range(THREADS)]

    rows = _at_once([partial(rig.store.put_template, new, rig.now) for new in wanted])

    assert {row.id for row in rows if row is not None} == {rig.store.template_versions(name)[0].id}
    assert sorted(row.version for row in rows if row is not None) == list(range(1, THREADS + 1))
    assert {row.payload for row in rig.store.template_versions(name)} == {new.payload for new in wanted}


def test_of_editors_that_expect_the_same_version_of_a_template_one_writes_the_next(rig: Rig) -> None:
    name = rig.key("template")
    rig.store.put_template(rig.new_template(name), rig.now)

    def edit(number: int) -> str:
        try:
            rig.store.put_template(rig.new_template(name, f'{{"n":{number + 2}}}'), rig.now, expect_version=1)
        except TemplateError as error:
            return error.code
        return "written"

    answers = Counter(_at_once([partial(edit, number) for number in range(THREADS)]))

    assert answers == {"written": 1, "version_changed": THREADS - 1}
    assert len(rig.store.template_versions(name)) == 2


def test_one_idempotency_key_at_once_makes_one_job_and_the_others_get_it(rig: Rig) -> None:
    jobs = _at_once([lambda: rig.store.enqueue([rig.new(idempotency_key=rig.key("k"))])[0]] * THREADS)

    assert len({job.row.id for job in jobs}) == 1
    assert sum(job.deduplicated for job in jobs) == THREADS - 1
    assert rig.in_order() == [jobs[0].row.id]


def test_one_idempotency_key_at_once_under_an_old_and_a_new_name_makes_one_job(rig: Rig) -> None:
    old, new = rig.key("old_name"), rig.key("new_name")

    def enqueue(turn: int) -> list[bytes]:
        keys = [rig.key(f"k{turn}"), rig.key(f"k{turn + 1}")]
        knows_both, knows_one = (new, (new, old)), (old, (old,))
        kind, names = knows_both if turn % 2 else knows_one
        jobs = rig.store.enqueue([rig.new(idempotency_key=key, kind=kind, names=names) for key in keys])
        return [job.row.id for job in jobs]

    answers = _at_once([partial(enqueue, turn) for turn in range(THREADS)])

    assert [answer[1] for answer in answers[:-1]] == [answer[0] for answer in answers[1:]]
    assert len(rig.in_order()) == THREADS + 1


def test_coroutines_with_one_idempotency_key_make_one_job(rig: Rig) -> None:
    async def all_at_once() -> list[tuple[bytes, bool]]:
        new = [rig.new(idempotency_key=rig.key("k")) for _ in range(THREADS)]
        answers = await asyncio.gather(*(rig.store.aenqueue([job]) for job in new))
        return [(answer[0].row.id, answer[0].deduplicated) for answer in answers]

    answers = asyncio.run(all_at_once())

    assert len({job_id for job_id, _ in answers}) == 1
    assert sum(deduplicated for _, deduplicated in answers) == THREADS - 1


def test_batches_that_share_keys_in_any_order_all_succeed(rig: Rig) -> None:
    keys = [rig.key(f"k{number}") for number in range(8)]

    def enqueue(turn: int) -> list[bytes]:
        ordered = keys[turn % 8 :] + keys[: turn % 8]
        jobs = rig.store.enqueue([rig.new(idempotency_key=key) for key in ordered])
        return sorted(job.row.id for job in jobs)

    answers = _at_once([partial(enqueue, turn) for turn in range(THREADS)])

    assert all(answer == answers[0] for answer in answers)
    assert len(rig.in_order()) == len(keys)


def test_a_job_is_given_to_one_of_many_threads(rig: Rig) -> None:
    job_id = rig.enqueue()
    nodes = [rig.register() for _ in range(THREADS)]
    claims = _at_once([partial(rig.claim, node=node) for node in nodes])

    [claim] = [claim for found in claims for claim in found]
    assert claim.job_id == job_id
    assert rig.live(job_id) == claim.live
    assert len(rig.runs(job_id)) == 1


def test_one_of_two_finishers_of_a_run_decides(rig: Rig) -> None:
    for _ in range(10):
        claim = rig.start()
        answers = _at_once([partial(rig.finish, claim, Completed()), partial(rig.finish, claim, Failed(BROKEN))])

        assert sorted(answer.status for answer in answers) == [FinishStatus.APPLIED, FinishStatus.LOST]
        [winner] = [answer for answer in answers if answer.status == FinishStatus.APPLIED]
        assert rig.job(claim.job_id).state == winner.state
        assert len(rig.runs(claim.job_id)) == 1
        if winner.state == State.QUEUED:
            rig.cancel(claim.job_id)


def test_many_finishers_with_the_same_report_apply_it_once(rig: Rig) -> None:
    claim = rig.start()
    answers = _at_once([lambda: rig.finish(claim, Completed())] * THREADS)

    assert Counter(answer.status for answer in answers) == {FinishStatus.APPLIED: 1, FinishStatus.ALREADY: THREADS - 1}


def test_a_finisher_and_a_rescuer_do_not_both_have_the_job(rig: Rig) -> None:
    for _ in range(10):
        node = rig.register()
        rig.enqueue()
        claim = rig.claim_one(node=node)
        rig.store.stop(node, "crash", rig.now)
        calls: list[Callable[[], object]] = [partial(rig.rescue, node), partial(rig.finish, claim, Completed())]
        rescued, finished = _at_once(calls)

        assert (rescued, finished) in [
            (1, Finished(FinishStatus.LOST)),
            (0, Finished(FinishStatus.APPLIED, State.COMPLETED)),
        ]
        state = RunState.LOST if rescued else RunState.COMPLETED
        assert rig.runs(claim.job_id)[0].state == state
        if rescued:
            rig.cancel(claim.job_id)


def test_many_rescuers_take_a_job_back_once(rig: Rig) -> None:
    node = rig.register()
    job_ids = rig.enqueue_many(20)
    rig.claim(20, node=node)
    rig.store.stop(node, "crash", rig.now)

    assert sum(_at_once([lambda: rig.rescue(node, room=7)] * THREADS)) == 20
    assert [rig.job(job_id).crashes for job_id in job_ids] == [1] * 20


def test_a_due_job_is_promoted_once(rig: Rig) -> None:
    rig.enqueue_many(20, delay_s=1)
    rig.clock.advance(seconds=1)

    assert sum(_at_once([lambda: rig.store.promote(rig.now, 7)] * THREADS)) == 20


def test_one_of_many_who_declare_a_node_dead_is_believed(rig: Rig) -> None:
    node = rig.register()

    assert sum(_at_once([lambda: rig.store.stop(node, "crash", rig.now, 0)] * THREADS)) == 1


def test_a_lock_has_one_holder_however_many_reach_for_it(rig: Rig) -> None:
    owners = [f"owner {number}" for number in range(THREADS)]
    took = _at_once([partial(rig.store.take_lock, rig.key("lock"), owner, rig.now, 10**7) for owner in owners])

    assert sum(took) == 1
    assert rig.store.lock_holder(rig.key("lock"), rig.now) == owners[took.index(True)]


def test_a_queue_has_one_holder_however_many_reserve_it_or_every_queue(rig: Rig) -> None:
    wanted = [rig.reservation(rig.queue if number % 2 else EVERY_QUEUE) for number in range(THREADS)]
    had = [other is None for other in _at_once([partial(reserve, rig.store, new) for new in wanted])]

    assert sum(had) == 1
    assert rig.store.active_reservations() == [wanted[had.index(True)]]


def test_of_many_retries_by_hand_one_opens_the_new_life(rig: Rig) -> None:
    job_id = rig.cancel(rig.enqueue(business_key=rig.key("b"))).row.id
    lives = _at_once([lambda: rig.store.retry(job_id, rig.now).life] * THREADS)

    assert lives == [2] * THREADS
    assert rig.in_order() == [job_id]


def test_of_many_replacements_one_takes_the_place(rig: Rig) -> None:
    job_id = rig.enqueue(business_key=rig.key("b"))
    _at_once([lambda: rig.store.supersede(job_id, rig.new(), rig.now)] * THREADS)

    [replacement] = rig.in_order()
    assert rig.job(job_id).row.superseded_by == replacement


def test_of_many_decisions_about_one_version_one_is_taken(rig: Rig) -> None:
    job_id = rig.enqueue()
    seen = rig.job(job_id).version

    def prioritise(rank: int) -> str:
        try:
            rig.store.set_priority(job_id, rank, rig.now, seen)
        except TransitionRefused as refused:
            return refused.code
        return "done"

    answers = Counter(_at_once([partial(prioritise, rank) for rank in range(-THREADS, 0)]))
    assert answers == {"done": 1, "version_changed": THREADS - 1}


def test_artifacts_of_many_are_all_kept(rig: Rig) -> None:
    claim = rig.start()
    names = [f"file {number}" for number in range(THREADS)]
    _at_once([partial(rig.store.append_artifacts, claim.run_id, [name]) for name in names])

    assert sorted(rig.runs(claim.job_id)[0].artifacts) == sorted(names)


def test_jobs_of_many_threads_get_places_of_their_own(rig: Rig) -> None:
    _at_once([lambda: rig.enqueue_many(10)] * THREADS)
    positions = [rig.job(job_id).position for job_id in rig.in_order()]

    assert len(set(positions)) == THREADS * 10


def test_claiming_finishing_and_enqueueing_side_by_side_loses_nothing(rig: Rig) -> None:
    done: list[JobId] = []

    def produce() -> list[JobId]:
        return [rig.enqueue() for _ in range(15)]

    def consume() -> list[JobId]:
        node = rig.register()
        while len(done) < 4 * 15:
            for claim in rig.claim(3, node=node):
                assert rig.finish(claim, Completed()).status == FinishStatus.APPLIED
                done.append(claim.job_id)
        return []

    enqueued = [job_id for made in _at_once([produce, consume] * 4) for job_id in made]

    assert Counter(done) == Counter(enqueued)
    assert {rig.job(job_id).state for job_id in enqueued} == {State.COMPLETED}


def test_a_stale_run_changes_nothing_also_after_a_retry_by_hand(rig: Rig) -> None:
    node = rig.register()
    rig.enqueue(max_attempts=1)
    stale = rig.claim_one(node=node)
    rig.crash(node)
    rig.store.retry(stale.job_id, rig.now)
    for begin in (None, rig.claim_one):
        if begin is not None:
            begin()
        before = rig.everything()
        assert _at_once([lambda: rig.finish(stale, Completed()).status] * 4) == [FinishStatus.LOST] * 4
        assert rig.everything() == before
