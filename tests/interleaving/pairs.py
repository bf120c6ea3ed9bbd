"""The pairs: what is there before, what the two do, and what must be true of their answers, whoever came first.

What must be true of every pair is checked by the test: the doctor finds nothing, the history can be explained, and
whatever is left can be brought to its end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from perdure.clock import Micros
from perdure.errors import KeyConflict, PerdureError, TransitionRefused
from perdure.ids import FlowId, JobId, NodeId
from perdure.job import transitions
from perdure.job.flow import Edge
from perdure.job.model import Claim
from perdure.job.reports import Cancelled, Completed, Failed, Finish, Report
from perdure.job.states import State, Verb
from perdure.store.protocols import Locked
from perdure.store.rows import (
    EVERY_QUEUE,
    Edit,
    Ended,
    Finished,
    FinishStatus,
    Firing,
    JobFilter,
    Lane,
    LimitRule,
    Place,
    Turn,
)
from perdure.testing.contract.limits import declare, needs
from perdure.testing.contract.rig import BROKEN, CRASHED, HOPELESS, NONE, Rig, Wish
from perdure.testing.contract.schedules import MINUTE, new_slot, read, saved
from tests.interleaving.stage import Act, Side

Check = Callable[[Any, Any], None]


class Pair(NamedTuple):
    """Two acts on the same rows."""

    first: Act
    second: Act
    check: Check
    may_wait: bool = True
    """False: neither may wait for a lock of the other."""


def _anything(one: Any, two: Any) -> None:
    """Whatever they were told is right, as long as the database is."""


# -- acts ------------------------------------------------------------------------------------------------------------


def claims(rig: Rig, room: int = 1, *, node: NodeId | None = None, stranger: bool = False) -> Act:
    claimer = rig.claimer(room, node, NONE if stranger else None)
    lanes = [Lane(rig.queue, room)]
    return lambda side: side.store.claim(lanes, claimer, rig.now)


def finishes(rig: Rig, claim: Claim, report: Report) -> Act:
    """As a worker does: what meets a lock is tried again later."""
    finish = rig.report(claim, report)

    def act(side: Side) -> Finished:
        while True:
            [finished] = side.store.finish([finish], rig.now)
            if finished.status is not FinishStatus.WAITS:
                return finished
            side.wait()

    return act


def turns(rig: Rig, claim: Claim) -> Act:
    """Finish one, promote, claim another, in one transaction."""
    wanted = Turn([rig.report(claim, Completed())], promote=5, lanes=[Lane(rig.queue, 2)], claimer=rig.claimer(2))

    def act(side: Side) -> list[JobId]:
        turned = side.store.turn(wanted, rig.now)
        again = turned.finished[0].status
        while again is FinishStatus.WAITS:
            side.wait()
            again = side.store.finish(wanted.finishes, rig.now)[0].status
        return [taken.job_id for taken in turned.claims]

    return act


def stops_and_rescues(rig: Rig, node: NodeId) -> Act:
    next_ids = [JobId(job_id) for job_id in rig.ids.new_many(5)]

    def act(side: Side) -> list[JobId]:
        side.store.stop(node, "crash", rig.now)
        while True:
            try:
                rescued = side.store.rescue(node, CRASHED, 3, next_ids, rig.now)
            except Locked:
                side.wait()
            else:
                return [one.live.job_id for one in rescued]

    return act


def decides(rig: Rig, job_id: JobId, verb: Verb, decide: Any) -> Act:
    return lambda side: side.store.change(job_id, verb, decide, rig.now)


def cancels(rig: Rig, job_id: JobId) -> Act:
    return decides(rig, job_id, Verb.CANCEL, transitions.cancel)


def retries(rig: Rig, job_id: JobId) -> Act:
    return lambda side: side.store.retry(job_id, rig.now)


def enqueues(rig: Rig, *wishes: Wish) -> Act:
    new = [rig.new(**wish) for wish in wishes]
    return lambda side: side.store.enqueue(new)


def moves(rig: Rig, job_id: JobId, to: Place) -> Act:
    return lambda side: side.store.move(job_id, to, rig.now)


def supersedes(rig: Rig, job_id: JobId) -> Act:
    new = rig.new(tags=("new",))
    return lambda side: side.store.supersede(job_id, new, rig.now)


def removes(rig: Rig, job_id: JobId, *, into_archive: bool = False) -> Act:
    old = [Ended(job_id, 1, "failed", rig.now, None, rig.kind)]
    if into_archive:
        return lambda side: side.store.archive(old, rig.now)
    return lambda side: side.store.remove(old)


def edits(rig: Rig, job_id: JobId, queue: str | None = None) -> Act:
    row, live = rig.row(job_id), rig.live(job_id)
    edited = live._replace(queue=queue or live.queue, version=live.version + 1)
    edit = Edit(row._replace(payload='{"n":2}', queue=edited.queue), edited, ("edited",))
    return lambda side: side.store.edit(edit, live.version)


def reserves(rig: Rig, queue: str) -> Act:
    """Close the queue to claims, and enter if nothing runs."""
    new, until = rig.reservation(queue), rig.until(20)

    def act(side: Side) -> bool:
        while True:
            try:
                assert side.store.reserve(new) is None
                return side.store.enter_reservation(new.id, until, rig.now)
            except Locked:
                side.wait()

    return act


def fires(rig: Rig, row: Any, overlap: str = "skip") -> Act:
    at = row.next_trigger_at
    firing = Firing(row, [new_slot(rig, row, at, overlap)], (), Micros(at + MINUTE))
    node = rig.node
    return lambda side: side.store.fire([firing], node, rig.now)[0]


def takes_slot(rig: Rig, row: Any, overlap: str = "allow") -> Act:
    slot = new_slot(rig, row, row.next_trigger_at, overlap)
    return lambda side: side.store.take_slot(row.id, slot, rig.now)


# -- scenes ----------------------------------------------------------------------------------------------------------


def failed(rig: Rig, **wish: Any) -> JobId:
    """A job that has failed for good."""
    claim = rig.start(**wish)
    rig.finish(claim, Failed(HOPELESS))
    return claim.job_id


def replaced(rig: Rig, **wish: Any) -> tuple[Claim, JobId]:
    """A running job, and the one that waits for its end."""
    claim = rig.start(business_key=rig.key("b"), **wish)
    rig.store.supersede(claim.job_id, rig.new(), rig.now)
    new = rig.job(claim.job_id).superseded_by
    assert new is not None
    return claim, JobId(new.bytes)


def crowded(rig: Rig, count: int = 3) -> list[JobId]:
    """Jobs in a row, with no room between them."""
    ids = rig.enqueue_many(count)
    rig.execute("UPDATE {ready} SET position = position / 100 WHERE queue = :queue", queue=rig.queue)
    return ids


def holders(rig: Rig) -> int:
    """How many live jobs have the business key."""
    [(found,)] = rig.execute("SELECT COUNT(*) FROM {ready} WHERE business_key = :key", key=rig.key("b"))
    return int(str(found))


# -- pairs: what a worker and others do ------------------------------------------------------------------------------


def claim_and_claim(rig: Rig) -> Pair:
    ids = rig.enqueue_many(3)

    def check(one: list[Claim], two: list[Claim]) -> None:
        taken = [claim.job_id for claim in (*one, *two)]
        assert len(set(taken)) == len(taken)
        assert set(taken) <= set(ids)
        assert len(taken) == 3, "a job that is free is passed over by nobody"

    return Pair(claims(rig, 2, node=rig.register()), claims(rig, 2, node=rig.register()), check, may_wait=False)


def claim_and_claim_with_parking(rig: Rig) -> Pair:
    rig.enqueue_many(3)
    return Pair(claims(rig, 2), claims(rig, 2, node=rig.register(), stranger=True), _anything)


def claim_and_reserve(rig: Rig, queue: str | None = None) -> Pair:
    rig.enqueue_many(2)

    def check(taken: list[Claim], entered: bool) -> None:
        assert not (taken and entered), "a job runs in a queue that is held for somebody else"

    return Pair(claims(rig), reserves(rig, queue or rig.queue), check)


def claim_and_release(rig: Rig) -> Pair:
    rig.enqueue_many(2)
    held = rig.reserve()
    return Pair(claims(rig), lambda side: side.store.close_reservation(held.id, "released", rig.now), _anything)


def claim_and_pause(rig: Rig) -> Pair:
    """The claim may come first, but never between the pause and what follows it."""
    rig.enqueue_many(2)

    def pauses(side: Side) -> int:
        side.store.pause_queue(rig.queue, rig.now)
        return len(rig.jobs(JobFilter(state="running", queue=rig.queue)))

    def check(taken: list[Claim], running_then: int) -> None:
        assert len(taken) == running_then, "a job was claimed after the pause"

    return Pair(claims(rig), pauses, check)


def claim_and_stop_of_its_node(rig: Rig) -> Pair:
    rig.enqueue_many(2)
    node = rig.register()

    def check(taken: list[Claim], rescued: list[JobId]) -> None:
        assert [claim.job_id for claim in taken] == rescued, "a node claimed after it was declared dead"

    return Pair(claims(rig, node=node), stops_and_rescues(rig, node), check)


def claim_and_move(rig: Rig) -> Pair:
    """Of the job that is moved, and of the neighbours that make room for it."""
    a, b, c = crowded(rig)

    def check(taken: list[Claim], moved: object) -> None:
        assert {claim.job_id for claim in taken} <= {a, b, c}

    return Pair(claims(rig, 2), moves(rig, b, Place(before=a)), check)


def claim_and_edit(rig: Rig, queue: str | None = None) -> Pair:
    """What runs is what the record shows."""
    job_id = rig.enqueue()

    def check(taken: list[Claim], edited: object) -> None:
        assert all(claim.payload == rig.row(job_id).payload for claim in taken), "it runs with another payload"
        assert all(claim.live.queue == rig.row(job_id).queue for claim in taken)

    return Pair(claims(rig), edits(rig, job_id, queue), check)


def claim_and_cancel(rig: Rig) -> Pair:
    job_id = rig.enqueue()

    def check(taken: list[Claim], cancelled: object) -> None:
        job = rig.job(job_id)
        assert (job.state == State.RUNNING) == bool(taken)
        assert job.state == State.CANCELLED or job.cancel_requested

    return Pair(claims(rig), cancels(rig, job_id), check)


def claim_and_priority(rig: Rig) -> Pair:
    ids = rig.enqueue_many(2)
    return Pair(claims(rig), lambda side: side.store.set_priority(ids[1], -5, rig.now), _anything)


def turn_and_turn(rig: Rig) -> Pair:
    rig.enqueue_many(2)
    one, two = rig.claim(2)
    rig.enqueue_many(3)

    def check(mine: list[JobId], yours: list[JobId]) -> None:
        assert not set(mine) & set(yours)
        assert rig.job(one.job_id).state == rig.job(two.job_id).state == State.COMPLETED

    return Pair(turns(rig, one), turns(rig, two), check)


def promote_and_cancel(rig: Rig) -> Pair:
    job_id = rig.enqueue(delay_s=1)
    rig.enqueue(delay_s=1)
    rig.clock.advance(seconds=1)

    def check(promoted: int, cancelled: object) -> None:
        assert rig.job(job_id).state == State.CANCELLED

    return Pair(lambda side: side.store.promote(rig.now, 10), cancels(rig, job_id), check)


def promote_and_promote(rig: Rig) -> Pair:
    rig.enqueue_many(3, delay_s=1)
    rig.clock.advance(seconds=1)

    def check(one: int, two: int) -> None:
        assert one + two == 3

    act: Act = lambda side: side.store.promote(rig.now, 2)  # noqa: E731 - both do the same
    return Pair(act, act, check, may_wait=False)


# -- pairs: ends of runs ---------------------------------------------------------------------------------------------


def finish_and_rescue(rig: Rig, report: Report, **wish: Any) -> Pair:
    claim = rig.start(**wish)
    assert claim.live.node_id is not None

    def check(finished: Finished, rescued: list[JobId]) -> None:
        assert (finished.status is FinishStatus.APPLIED) == (rescued == []), "both or neither decided about the run"
        assert finished.status in (FinishStatus.APPLIED, FinishStatus.LOST)

    return Pair(finishes(rig, claim, report), stops_and_rescues(rig, claim.live.node_id), check)


def rescue_and_rescue(rig: Rig) -> Pair:
    node = rig.register()
    rig.enqueue(as_new_job=True)
    rig.enqueue(max_attempts=1)
    rig.claim(2, node=node)
    rig.store.stop(node, "crash", rig.now)

    def check(one: list[JobId], two: list[JobId]) -> None:
        assert len({*one, *two}) == len(one) + len(two) == 2

    return Pair(stops_and_rescues(rig, node), stops_and_rescues(rig, node), check)


def finish_and_repeat(rig: Rig) -> Pair:
    """The same report twice, as after a reply that was lost: one end."""
    claim = rig.start(business_key=rig.key("b"))
    report = finishes(rig, claim, Completed())

    def check(one: Finished, two: Finished) -> None:
        assert sorted((one.status, two.status)) == sorted((FinishStatus.APPLIED, FinishStatus.ALREADY))

    return Pair(report, report, check)


def finish_and_cancel(rig: Rig, report: Report, **wish: Any) -> Pair:
    claim = rig.start(**wish)

    def check(finished: Finished, cancelled: object) -> None:
        assert finished.status is FinishStatus.APPLIED, "a cancellation takes no run from its node"
        asked = not isinstance(cancelled, PerdureError)
        job = rig.job(claim.job_id)
        if asked and isinstance(report, Failed):
            assert job.state == State.CANCELLED, "a job that was cancelled goes on"

    return Pair(finishes(rig, claim, report), cancels(rig, claim.job_id), check)


def finish_and_supersede(rig: Rig, report: Report) -> Pair:
    claim = rig.start(business_key=rig.key("b"))

    def check(finished: Finished, superseded: object) -> None:
        assert finished.status is FinishStatus.APPLIED
        replacements = rig.jobs(JobFilter(tag="new"))
        assert len(replacements) == (not isinstance(superseded, PerdureError))
        assert all(rig.job(job_id).state == State.QUEUED for job_id in replacements), "it waits for a job that ended"
        assert (rig.job(claim.job_id).superseded_by is not None) == bool(replacements), (
            "it does not know who follows it"
        )

    return Pair(finishes(rig, claim, report), supersedes(rig, claim.job_id), check)


def finish_and_cancel_of_its_dependent(rig: Rig) -> Pair:
    claim, new = replaced(rig)
    return Pair(finishes(rig, claim, Cancelled()), cancels(rig, new), _anything)


def finish_and_retry_of_its_dependent(rig: Rig) -> Pair:
    claim, new = replaced(rig)
    rig.cancel(new)

    def check(finished: object, retried: object) -> None:
        assert rig.job(new).state == State.QUEUED, "it waits for a job that has ended"

    return Pair(finishes(rig, claim, Cancelled()), retries(rig, new), check)


def finish_and_enqueue_with_its_key(rig: Rig, **wish: Any) -> Pair:
    claim = rig.start(business_key=rig.key("b"), **wish)
    report = Failed(BROKEN) if wish else Completed()
    again = enqueues(rig, {"business_key": rig.key("b"), "conflict": "return"})

    def check(finished: object, jobs: Any) -> None:
        assert holders(rig) == (1 if wish or not jobs[0].deduplicated else 0)

    return Pair(finishes(rig, claim, report), again, check)


# -- pairs: keys and new lives ---------------------------------------------------------------------------------------


def enqueue_twice_with_one_key(rig: Rig, wish: Wish) -> Pair:
    def check(one: Any, two: Any) -> None:
        made = [jobs for jobs in (one, two) if not isinstance(jobs, KeyConflict) and not jobs[0].deduplicated]
        assert len(made) == 1
        assert len(rig.jobs(JobFilter(queue=rig.queue))) == 1

    return Pair(enqueues(rig, wish), enqueues(rig, wish), check)


def enqueue_many_with_the_same_keys(rig: Rig) -> Pair:
    """In opposite orders: each would wait for the other if keys were taken in the order of the jobs."""
    wishes: list[Wish] = [
        {"business_key": rig.key(key), "idempotency_key": rig.key(key), "conflict": "return"} for key in "ab"
    ]

    def check(one: Any, two: Any) -> None:
        assert sorted(job.row.id for job in one) == sorted(job.row.id for job in two)
        assert len(rig.jobs(JobFilter(queue=rig.queue))) == 2

    return Pair(enqueues(rig, *wishes), enqueues(rig, *reversed(wishes)), check)


def first_jobs_of_a_queue(rig: Rig) -> Pair:
    def check(one: Any, two: Any) -> None:
        assert len(rig.in_order()) == 3

    return Pair(enqueues(rig, {}), enqueues(rig, {}, {}), check)


def retry_and_enqueue_with_its_key(rig: Rig, conflict: str) -> Pair:
    job_id = failed(rig, business_key=rig.key("b"))
    again = enqueues(rig, {"business_key": rig.key("b"), "conflict": conflict})

    def check(retried: Any, jobs: Any) -> None:
        assert holders(rig) == 1, "two live jobs share a business key, or nobody has it"
        is_new = not isinstance(jobs, KeyConflict) and not jobs[0].deduplicated
        assert isinstance(retried, TransitionRefused) == is_new

    return Pair(retries(rig, job_id), again, check)


def retry_and_retry(rig: Rig) -> Pair:
    job_id = failed(rig, business_key=rig.key("b"))

    def check(one: Any, two: Any) -> None:
        assert (one.life, two.life, rig.job(job_id).life) == (2, 2, 2)

    return Pair(retries(rig, job_id), retries(rig, job_id), check)


def retry_and_retry_as_new(rig: Rig) -> Pair:
    job_id, new_id = failed(rig, business_key=rig.key("b")), JobId(rig.ids.new())

    def check(one: Any, two: Any) -> None:
        assert holders(rig) == 1
        assert isinstance(one, TransitionRefused) != isinstance(two, TransitionRefused)

    return Pair(retries(rig, job_id), lambda side: side.store.retry_as_new(job_id, new_id, rig.now), check)


def retry_and_removal(rig: Rig, *, into_archive: bool = False) -> Pair:
    job_id = failed(rig, idempotency_key=rig.key("k"), tags=("a",))

    def check(retried: Any, gone: list[JobId]) -> None:
        assert isinstance(retried, PerdureError) == (gone == [job_id]), "it was removed and revived, or neither"
        assert (rig.store.get(job_id) is None) == (gone == [job_id])

    return Pair(retries(rig, job_id), removes(rig, job_id, into_archive=into_archive), check)


def retry_and_delete(rig: Rig) -> Pair:
    job_id = failed(rig)

    def check(retried: Any, deleted: Any) -> None:
        assert isinstance(retried, PerdureError) != isinstance(deleted, PerdureError)

    return Pair(retries(rig, job_id), lambda side: side.store.delete(job_id), check)


# -- pairs: order ----------------------------------------------------------------------------------------------------


def move_and_move(rig: Rig, *, is_crowded: bool = False) -> Pair:
    """Both to the same place: the second finds it taken."""
    a, b, c, d = crowded(rig, 4) if is_crowded else rig.enqueue_many(4)

    def check(one: object, two: object) -> None:
        assert rig.in_order() in ([a, c, d, b], [a, d, c, b])
        places = rig.execute("SELECT DISTINCT position FROM {ready} WHERE queue = :queue", queue=rig.queue)
        assert len(places) == 4, "two jobs share a place"

    return Pair(moves(rig, c, Place(before=b)), moves(rig, d, Place(before=b)), check)


def move_and_edit_into_another_queue(rig: Rig) -> Pair:
    ids = crowded(rig)
    return Pair(moves(rig, ids[2], Place(before=ids[1])), edits(rig, ids[2], rig.key("other")), _anything)


# -- pairs: by the clock ---------------------------------------------------------------------------------------------


def fire_and_fire(rig: Rig) -> Pair:
    row = saved(rig)

    def check(one: Any, two: Any) -> None:
        assert one.applied != two.applied
        assert _slots(rig, row) == 1
        assert len(rig.jobs(JobFilter(queue=rig.queue))) == 1

    return Pair(fires(rig, row), fires(rig, row), check)


def fire_and_trigger(rig: Rig) -> Pair:
    row = saved(rig)

    def check(fired: Any, job: Any) -> None:
        assert _slots(rig, row) == 1
        assert len(rig.jobs(JobFilter(queue=rig.queue))) == 1

    return Pair(fires(rig, row, "allow"), takes_slot(rig, row), check)


def trigger_and_trigger(rig: Rig) -> Pair:
    row = saved(rig)

    def check(one: Any, two: Any) -> None:
        assert one.row.id == two.row.id
        assert one.deduplicated != two.deduplicated

    return Pair(takes_slot(rig, row), takes_slot(rig, row), check)


def fire_and_end_of_the_job_before(rig: Rig) -> Pair:
    """The new job waits for the one before it, or that one has ended; never for one that has ended."""
    row = saved(rig)
    fires(rig, row)(_Alone(rig))
    rig.clock.advance(minutes=1)
    row = read(rig, row)
    claim = rig.claim_one()

    def check(fired: Any, finished: object) -> None:
        assert fired.applied
        assert [rig.job(job_id).state for job_id in fired.jobs] == [State.QUEUED]

    return Pair(fires(rig, row, "queue"), finishes(rig, claim, Completed()), check)


def fire_and_change_of_the_schedule(rig: Rig) -> Pair:
    row = saved(rig)
    changed = row._replace(enabled=0, next_trigger_at=None, version=2)

    def check(fired: Any, was_saved: bool) -> None:
        assert fired.applied != was_saved, "both took the schedule as they had read it"

    return Pair(fires(rig, row), lambda side: side.store.save_schedule(changed, 1), check)


def _slots(rig: Rig, row: Any) -> int:
    return len(rig.store.slots(row.id, Micros(rig.now + 10 * MINUTE), 10))


class _Alone(Side):
    """An act before the scene: nobody stops it."""

    def __init__(self, rig: Rig) -> None:
        self.store = rig.store  # type: ignore[assignment]


# -- pairs: reservations and the rest --------------------------------------------------------------------------------


def reserve_and_reserve(rig: Rig) -> Pair:
    mine, all_of_them = rig.reservation(), rig.reservation(EVERY_QUEUE)

    def check(one: Any, two: Any) -> None:
        assert (one is None) != (two is None), "two hold the same queue"

    return Pair(lambda side: side.store.reserve(mine), lambda side: side.store.reserve(all_of_them), check)


def direct_job_and_release(rig: Rig) -> Pair:
    """The holder starts a job while another closes what has expired."""
    held, claimer, new = rig.reserve(), rig.claimer(1), rig.new()
    return Pair(
        lambda side: side.store.start_reserved(new, held.id, claimer, rig.now),
        lambda side: side.store.close_reservation(held.id, "expired", rig.now),
        _anything,
    )


def template_and_template(rig: Rig) -> Pair:
    name = rig.key("template")
    rig.store.put_template(rig.new_template(name), rig.now)
    one, two = rig.new_template(name, '{"n":2}'), rig.new_template(name, '{"n":3}')
    return Pair(
        lambda side: side.store.put_template(one, rig.now),
        lambda side: side.store.put_template(two, rig.now),
        _anything,
    )


def lock_and_lock(rig: Rig) -> Pair:
    name = rig.key("lock")

    def check(one: Any, two: Any) -> None:
        assert bool(one) != bool(two), "two hold the lock, or nobody"

    return Pair(
        lambda side: side.store.take_lock(name, "ann", rig.now, 10**7),
        lambda side: side.store.take_lock(name, "bob", rig.now, 10**7),
        check,
    )


# -- pairs: edges and flows ------------------------------------------------------------------------------------------


def ends(rig: Rig, claim: Claim, report: Report = Completed()) -> Act:  # noqa: B008 - it does not change
    """As a worker does: in a turn, and the flows that it has counted in are looked at in the next one."""
    finish = rig.report(claim, report)

    def act(side: Side) -> FinishStatus:
        wanted = Turn([finish])
        while True:
            turned = side.store.turn(wanted, rig.now)
            [finished] = turned.finished or turned.again
            if turned.flows:
                side.store.turn(Turn(flows=turned.flows), rig.now)
            if finished.status is not FinishStatus.WAITS:
                return finished.status
            side.wait()
            wanted = Turn(again=[finish])

    return act


def two_running(rig: Rig) -> tuple[Claim, Claim]:
    """Each on a node of its own."""
    one, two = (rig.claim_one(node=rig.register()) for _ in range(2))
    return one, two


def flow_of_two(rig: Rig, **wish: Any) -> tuple[FlowId, JobId, tuple[Claim, Claim]]:
    """A flow with two members that run, and a job that waits for its end."""
    flow_id, _ = rig.start_flow(2, **wish)
    return flow_id, rig.enqueue(after=(Edge(flow_id, "end"),)), two_running(rig)


def ended_once(rig: Rig, flow_id: FlowId, callback: JobId) -> None:
    rig.settle()
    assert rig.flow(flow_id).finished_at is not None, "all members have ended, and the flow has not"
    assert rig.job(callback).state == State.QUEUED, "it waits for a flow that has ended"


def the_last_two_of_a_flow_end(rig: Rig) -> Pair:
    flow_id, callback, (first, second) = flow_of_two(rig)
    return Pair(ends(rig, first), ends(rig, second), lambda *_: ended_once(rig, flow_id, callback))


def the_last_of_a_flow_ends_and_one_is_cancelled(rig: Rig) -> Pair:
    flow_id, members = rig.start_flow(2)
    callback = rig.enqueue(after=(Edge(flow_id, "end"),))
    claim = rig.claim_one()
    return Pair(ends(rig, claim), cancels(rig, members[1]), lambda *_: ended_once(rig, flow_id, callback))


def the_last_of_two_inner_flows_end(rig: Rig) -> Pair:
    outer = rig.new_flow()
    inner = [rig.new_flow(parent_id=outer.id) for _ in range(2)]
    rig.store.start_flows([outer, *inner], [job for flow in inner for job in rig.members(flow, 1)])
    callback = rig.enqueue(after=(Edge(outer.id),))
    first, second = two_running(rig)
    return Pair(ends(rig, first), ends(rig, second), lambda *_: ended_once(rig, outer.id, callback))


def the_last_of_a_flow_end_and_one_dies_declared_dead(rig: Rig) -> Pair:
    """It was thought dead, wrote an end all the same, and died before it looked at the flow again."""
    flow_id, callback, (first, second) = flow_of_two(rig)
    assert first.live.node_id is not None
    rig.store.stop(first.live.node_id, "crash", rig.now)
    finish = rig.report(first, Completed())

    def check(one: object, two: object) -> None:
        rig.store.rescue_flows(rig.now)
        ended_once(rig, flow_id, callback)

    return Pair(lambda side: side.store.turn(Turn([finish]), rig.now), ends(rig, second), check)


def two_look_at_an_inner_flow(rig: Rig) -> Pair:
    """All its members have ended, and nobody has looked at it since."""
    outer = rig.new_flow()
    inner = rig.new_flow(parent_id=outer.id, open=True)
    rig.store.start_flows([outer, inner], [*rig.members(inner, 1), *rig.members(outer, 1)])
    callback = rig.enqueue(after=(Edge(outer.id),))
    rig.finish(rig.claim_one(), Completed())
    rig.execute("UPDATE {flow} SET sealed_at = created_at")

    def check(one: object, two: object) -> None:
        assert (rig.flow(inner.id).state, rig.flow(outer.id).completed) == ("completed", 1)
        rig.finish(rig.claim_one(), Completed())
        ended_once(rig, outer.id, callback)

    looks: Act = lambda side: side.store.turn(Turn(flows=[inner.id]), rig.now)  # noqa: E731 - both do the same
    return Pair(looks, looks, check)


def the_last_two_parents_end(rig: Rig, report: Report) -> Pair:
    parents = rig.enqueue_many(2, max_attempts=1)
    job_id = rig.enqueue(after=tuple(map(Edge, parents)))
    first, second = two_running(rig)

    def check(one: object, two: object) -> None:
        assert rig.job(job_id).state == (State.QUEUED if isinstance(report, Completed) else State.SKIPPED)

    return Pair(ends(rig, first), ends(rig, second, report), check)


def finish_and_enqueue_after_it(rig: Rig, report: Report) -> Pair:
    claim = rig.start(max_attempts=1)

    def check(one: object, jobs: Any) -> None:
        state = State.QUEUED if isinstance(report, Completed) else State.SKIPPED
        assert rig.job(jobs[0].row.id).state == state, "it waits for a job that has ended"

    return Pair(ends(rig, claim, report), enqueues(rig, {"after": (Edge(claim.job_id),)}), check)


def end_of_a_flow_and_enqueue_after_it(rig: Rig) -> Pair:
    flow_id, _ = rig.start_flow(1)
    claim = rig.claim_one()

    def check(one: object, jobs: Any) -> None:
        ended_once(rig, flow_id, jobs[0].row.id)

    return Pair(ends(rig, claim), enqueues(rig, {"after": (Edge(flow_id),)}), check)


def finish_and_decision_about_the_flow(rig: Rig, verb: Any) -> Pair:
    flow_id, _ = rig.start_flow(3)
    claim = rig.claim_one()

    def check(one: object, two: object) -> None:
        rig.settle()
        flow = rig.flow(flow_id)
        assert (flow.state, flow.cancelled) == (("cancelled", 2) if verb == "cancel" else ("running", 0))
        assert flow.completed == 1
        if verb == "pause":
            rig.store.change_flow(flow_id, "resume", rig.now)

    return Pair(ends(rig, claim), lambda side: side.store.change_flow(flow_id, verb, rig.now), check)


def last_finish_and_retry_of_a_member(rig: Rig) -> Pair:
    flow_id, [member, _] = rig.start_flow(2)
    rig.finish(rig.claim_one(), Failed(HOPELESS))
    claim = rig.claim_one()

    def check(finished: object, retried: Any) -> None:
        rig.settle()
        assert (rig.flow(flow_id).state == "failed") == isinstance(retried, TransitionRefused)
        assert (rig.job(member).life == 1) == isinstance(retried, TransitionRefused)

    return Pair(ends(rig, claim), retries(rig, member), check)


def last_finish_and_retry_of_the_flow(rig: Rig) -> Pair:
    flow_id, [member, _] = rig.start_flow(2)
    rig.finish(rig.claim_one(), Failed(HOPELESS))
    claim = rig.claim_one()

    def check(finished: object, retried: Any) -> None:
        rig.settle()
        assert (rig.flow(flow_id).state, rig.job(member).state) == ("running", State.QUEUED)

    return Pair(ends(rig, claim), lambda side: side.store.retry_flow(flow_id, rig.now), check)


def last_finish_and_seal(rig: Rig) -> Pair:
    flow_id, _ = rig.start_flow(1, open=True)
    callback = rig.enqueue(after=(Edge(flow_id),))
    claim = rig.claim_one()
    seal: Act = lambda side: side.store.seal_flow(flow_id, rig.now)  # noqa: E731
    return Pair(ends(rig, claim), seal, lambda *_: ended_once(rig, flow_id, callback))


def new_members_and_the_end_of_who_fills(rig: Rig) -> Pair:
    filler = rig.new(max_attempts=1)
    flow = rig.new_flow(open=True, filled_by=filler.id)
    rig.store.start_flows([flow], [filler])
    claim = rig.claim_one()
    members = rig.members(flow, 2)

    def check(finished: object, added: Any) -> None:
        rig.settle()
        assert rig.flow(flow.id).total == (0 if isinstance(added, TransitionRefused) else 2)

    return Pair(ends(rig, claim), lambda side: side.store.add_members(flow.id, members, rig.now), check)


def pause_of_a_flow_and_the_end_of_who_fills_one_inside(rig: Rig) -> Pair:
    outer, filler = rig.new_flow(), rig.new(max_attempts=1)
    inner = rig.new_flow(open=True, parent_id=outer.id, filled_by=filler.id)
    rig.store.start_flows([outer, inner], [filler, *rig.members(outer, 1), *rig.members(inner, 1)])
    claim = rig.claim_one()
    assert claim.job_id == filler.id

    def check(finished: object, paused: object) -> None:
        assert rig.flow(inner.id).sealed_at is not None, "it was sealed, and then again not"
        rig.settle()
        rig.store.change_flow(outer.id, "resume", rig.now)

    return Pair(ends(rig, claim), lambda side: side.store.change_flow(outer.id, "pause", rig.now), check)


def last_finish_of_an_inner_flow_and_retry_of_the_outer(rig: Rig) -> Pair:
    outer = rig.new_flow()
    inner = rig.new_flow(parent_id=outer.id)
    failing, last = rig.members(inner, 2, max_attempts=1)
    rig.store.start_flows([outer, inner], [failing, last, *rig.members(outer, 1, max_attempts=1)])
    rig.finish(rig.claim_one(), Failed(HOPELESS))
    claim, other = two_running(rig)
    rig.finish(other, Failed(HOPELESS))

    def check(finished: object, retried: object) -> None:
        rig.settle()
        assert (rig.flow(outer.id).state, rig.flow(inner.id).state) == ("running", "running")
        assert rig.job(failing.id).state == State.QUEUED

    return Pair(ends(rig, claim), lambda side: side.store.retry_flow(outer.id, rig.now), check)


def work_list_and_retry_of_the_flow(rig: Rig, entries: int) -> Pair:
    """Somebody goes on with the dependents of members that live again meanwhile."""
    flow = rig.new_flow()
    parents = rig.members(flow, entries, max_attempts=1)
    behind = [job for parent in parents for job in rig.members(flow, 1, 5, after=(Edge(parent.id),))]
    rig.store.start_flows([flow], [*parents, *behind])
    for claim in rig.claim(entries):
        rig.finish(claim, Failed(HOPELESS))
    rig.settle()
    for parent in parents:  # as if there had been as many as go into one portion, and no more
        rig.execute(
            "INSERT INTO {todo} (what, subject, cause, reached, created_at)"
            f" VALUES ('unblock', {rig.id_of(parent.id.hex())}, {rig.id_of(parent.id.hex())}, NULL, 0)"
        )

    def check(settled: object, retried: object) -> None:
        rig.settle()
        assert {rig.job(job.id).state for job in behind} == {State.BLOCKED}, "it was skipped for an end of before"

    settles: Act = lambda side: side.store.turn(Turn(settle=True), rig.now)  # noqa: E731
    return Pair(settles, lambda side: side.store.retry_flow(flow.id, rig.now), check)


def growth_and_decision_about_the_flow(rig: Rig, verb: Any) -> Pair:
    flow = rig.new_flow()
    first, grown = rig.members(flow, 2)
    rig.store.start_flows([flow], [first])
    claim = rig.claim_one()
    finish = Finish(claim.live, Completed(), JobId(rig.ids.new()), children=(grown,))

    def check(finished: object, decided: object) -> None:
        rig.settle()
        state = rig.job(grown.id).state
        if isinstance(decided, TransitionRefused):
            assert state == State.QUEUED
        else:
            assert state == (State.PAUSED if verb == "pause" else State.CANCELLED), "it goes on"
            if verb == "pause":
                rig.store.change_flow(flow.id, "resume", rig.now)

    return Pair(
        lambda side: side.store.finish([finish], rig.now),
        lambda side: side.store.change_flow(flow.id, verb, rig.now),
        check,
    )


def retry_of_a_flow_and_a_new_one_with_its_key(rig: Rig) -> Pair:
    flow_id, _ = rig.start_flow(1, key=rig.key("day"))
    rig.finish(rig.claim_one(), Failed(HOPELESS))
    flow = rig.new_flow(key=rig.key("day"))
    jobs = rig.members(flow, 1)

    def check(retried: Any, started: Any) -> None:
        assert isinstance(retried, TransitionRefused) != isinstance(started, KeyConflict), "both have the key, or none"

    return Pair(
        lambda side: side.store.retry_flow(flow_id, rig.now),
        lambda side: side.store.start_flows([flow], jobs),
        check,
    )


# -- pairs: limits and rates -----------------------------------------------------------------------------------------


def limited(rig: Rig, most: int, count: int, weight: int = 1) -> list[JobId]:
    """Jobs that need a place of one key."""
    declare(rig, api=most)
    return rig.enqueue_many(count, limit_key=needs(rig, ("api", weight)))


def in_use(rig: Rig) -> int:
    """What the permits of the key weigh together."""
    [(weight,)] = rig.execute("SELECT COALESCE(SUM(weight), 0) FROM {permit}")
    return int(str(weight))


def uses_all_of(rig: Rig, most: int) -> Check:
    """Never more than the limit, nor less while there are jobs that want it: at once, or after one more turn."""

    def check(one: Any, two: Any) -> None:
        assert in_use(rig) <= most, "more is in use than the limit allows"
        rig.settle()
        rig.claim(10, node=rig.register())
        assert in_use(rig) == most, "there is room, and jobs wait for it"

    return check


def claim_and_claim_of_one_key(rig: Rig, room: int, weight: int = 1, *, known: bool = True) -> Pair:
    """`known`: the key has a row already. A new row keeps the other waiting anyway."""
    limited(rig, 3 * weight, 7, weight)
    if known:
        rig.finish(rig.claim_one(), Completed())
        rig.settle()
    one, two = (claims(rig, room, node=rig.register()) for _ in range(2))
    return Pair(one, two, uses_all_of(rig, 3 * weight))


def claim_and_claim_of_two_keys(rig: Rig) -> Pair:
    """Each job needs both, and names them in another order."""
    declare(rig, api=2, gpu=2)
    for one, two in (("api", "gpu"), ("gpu", "api")) * 2:
        rig.enqueue(limit_key=needs(rig, (one, 1), (two, 1)))
    return Pair(claims(rig, 2), claims(rig, 2, node=rig.register()), uses_all_of(rig, 4))


def claim_and_claim_of_a_limited_queue(rig: Rig) -> Pair:
    rig.enqueue_many(4)
    rig.store.limit_queue(rig.queue, 3)

    def check(one: list[Claim], two: list[Claim]) -> None:
        assert len(one) + len(two) <= 3, "more jobs of the queue run than its limit allows"
        rig.claim(10)
        assert len(rig.jobs(JobFilter(state="running", queue=rig.queue))) == 3

    return Pair(claims(rig, 2), claims(rig, 2, node=rig.register()), check)


def finish_and_claim_of_its_key(rig: Rig, report: Report) -> Pair:
    limited(rig, 1, 3)
    claim = rig.claim_one()
    return Pair(finishes(rig, claim, report), claims(rig, 2, node=rig.register()), uses_all_of(rig, 1))


def turn_and_claim_of_its_key(rig: Rig) -> Pair:
    limited(rig, 1, 4)
    claim = rig.claim_one()
    return Pair(turns(rig, claim), claims(rig, 2, node=rig.register()), uses_all_of(rig, 1))


def turn_and_turn_of_one_key(rig: Rig) -> Pair:
    limited(rig, 2, 6)
    one, two = rig.claim(2)
    return Pair(turns(rig, one), turns(rig, two), uses_all_of(rig, 2))


def rescue_and_turn_of_one_key(rig: Rig) -> Pair:
    limited(rig, 2, 6)
    node = rig.register()
    mine, _ = rig.claim_one(), rig.claim_one(node=node)
    return Pair(turns(rig, mine), stops_and_rescues(rig, node), uses_all_of(rig, 2))


def claim_of_a_key_and_stop_of_its_node(rig: Rig, *, in_line: bool) -> Pair:
    """`in_line`: a turn that frees the key and takes from its line; else a claim."""
    limited(rig, 2, 4)
    node = rig.register()
    if in_line:
        one, two = rig.claim(4, node=node)
        wanted = Turn([rig.report(one, Completed())], lanes=[Lane(rig.queue, 2)], claimer=rig.claimer(2, node))
        act: Act = lambda side: side.store.turn(wanted, rig.now).claims  # noqa: E731
        held = {one.job_id, two.job_id}
    else:
        act, held = claims(rig, 2, node=node), set()

    def check(taken: list[Claim], rescued: list[JobId]) -> None:
        assert {claim.job_id for claim in taken} <= set(rescued), "a node claimed after it was declared dead"
        assert set(rescued) <= {claim.job_id for claim in taken} | held

    return Pair(act, stops_and_rescues(rig, node), check)


def woken(rig: Rig) -> JobId:
    """A job that was the first of a line, and that the next claim looks at; there are two behind it."""
    jobs = limited(rig, 1, 4)
    rig.finish(rig.claim_one(), Completed())
    rig.settle()
    return jobs[1]


def claim_and_cancel_of_who_was_woken(rig: Rig) -> Pair:
    job_id = woken(rig)
    return Pair(claims(rig, 2), cancels(rig, job_id), uses_all_of(rig, 1))


def finish_and_cancel_of_the_next(rig: Rig) -> Pair:
    _, following, *_ = limited(rig, 1, 4)
    claim = rig.claim_one()
    rig.claim(5)
    return Pair(turns(rig, claim), cancels(rig, following), uses_all_of(rig, 1))


def claim_and_new_number(rig: Rig, most: int) -> Pair:
    limited(rig, 2, 6)
    rig.claim_one()
    name = rig.key("api")
    sets: Act = lambda side: side.store.set_limit(name, most, None, rig.now)  # noqa: E731
    return Pair(claims(rig, 4), sets, uses_all_of(rig, most))


def claim_and_pause_of_its_limit(rig: Rig) -> Pair:
    """The claim may come first; after both nothing starts."""
    limited(rig, 4, 4)
    name = rig.key("api")

    def check(taken: list[Claim], paused: object) -> None:
        rig.settle()
        assert rig.claim(10) == [], "a job of a paused limit starts"
        rig.store.pause_limit(name, None, None)

    return Pair(claims(rig, 2), lambda side: side.store.pause_limit(name, None, rig.now), check)


def claim_and_resume_of_its_limit(rig: Rig) -> Pair:
    """Of a key with a value: whoever looks at all lines of the limit locks only those that he finds."""
    declare(rig, api=4)
    name = rig.key("api")
    rig.store.pause_limit(name, None, rig.now)
    rig.enqueue_many(2, limit_key=f"{name}\x1f42*1")

    def resumes(side: Side) -> None:
        side.store.pause_limit(name, None, None)
        side.store.turn(Turn(settle=True), rig.now)

    def check(taken: list[Claim], resumed: object) -> None:
        rig.settle()
        assert len(taken) + len(rig.claim(10)) == 2, "there is room, and jobs wait for it"

    return Pair(claims(rig, 2), resumes, check)


def turn_and_enqueue_after_the_next_in_line(rig: Rig, *, claims_too: bool) -> Pair:
    """Who stands first is locked for a moment, and stays where he is."""
    _, following = limited(rig, 1, 2)
    claim = rig.claim_one()
    rig.claim(5)
    act = turns(rig, claim) if claims_too else finishes(rig, claim, Completed())
    settled: Act = lambda side: (act(side), side.store.turn(Turn(settle=True), rig.now))  # noqa: E731
    return Pair(settled, enqueues(rig, {"after": (Edge(following),)}), uses_all_of(rig, 1))


def claim_and_hold(rig: Rig) -> Pair:
    """A block of code and jobs want the same places."""
    limited(rig, 2, 3)
    key, holder = rig.key("api"), rig.ids.new()

    def check(taken: list[Claim], held: bool) -> None:
        uses_all_of(rig, 2)(taken, held)
        rig.store.drop_hold(key, holder)

    return Pair(claims(rig, 2), lambda side: side.store.take_hold(key, 1, holder, rig.now, 10**7), check)


def two_look_at_the_same_lines(rig: Rig) -> Pair:
    limited(rig, 1, 4)
    rig.finish(rig.claim_one(), Completed())
    settles: Act = lambda side: side.store.turn(Turn(settle=True), rig.now)  # noqa: E731 - both do the same
    return Pair(settles, settles, uses_all_of(rig, 1))


def look_and_turn(rig: Rig) -> Pair:
    limited(rig, 2, 6)
    one, two = rig.claim(2)
    rig.finish(one, Completed())
    return Pair(lambda side: side.store.turn(Turn(settle=True), rig.now), turns(rig, two), uses_all_of(rig, 2))


def look_and_second_end_of_a_job(rig: Rig) -> Pair:
    """Word was left when its first run was lost, and is left again while somebody looks."""
    first, *_ = limited(rig, 1, 4)
    node = rig.register()
    rig.claim(5, node=node)
    rig.crash(node)
    again = rig.claim_one()
    assert again.job_id == first
    return Pair(
        lambda side: side.store.turn(Turn(settle=True), rig.now), finishes(rig, again, Completed()), uses_all_of(rig, 1)
    )


def two_open_a_rate(rig: Rig, sort: str) -> Pair:
    """The line of a rate is woken by one of them, and no more start than it allows."""
    rule = LimitRule(rig.key("api"), sort, 2, 10_000_000)
    rig.store.declare_limits([rule], [rig.kind], rig.now)
    rig.enqueue_many(6, limit_key=needs(rig, ("api", 1)))
    assert len(rig.claim(10)) == 2
    rig.clock.advance(seconds=10)

    def takes_part(side: Side) -> list[Claim]:
        side.store.promote(rig.now, 10)
        return side.store.claim([Lane(rig.queue, 2)], claimers.pop(), rig.now)

    claimers = [rig.claimer(2, rig.register()) for _ in range(2)]

    def check(one: list[Claim], two: list[Claim]) -> None:
        assert len(one) + len(two) <= 2, "more have started than the rate allows"
        rig.store.promote(rig.now, 10)
        assert len(one) + len(two) + len(rig.claim(10)) == 2

    return Pair(takes_part, takes_part, check)


def two_declare_their_limits(rig: Rig) -> Pair:
    """Two workers of different code start together."""
    mine, yours = (LimitRule(rig.key("api"), "at_once", most) for most in (1, 2))

    def check(one: object, two: object) -> None:
        [state] = [state for state in rig.store.limits() if state.name == rig.key("api")]
        assert state.most in (1, 2)
        assert state.declared_by == '["a", "b"]'

    return Pair(
        lambda side: side.store.declare_limits([mine], ["a"], rig.now),
        lambda side: side.store.declare_limits([yours], ["b"], rig.now),
        check,
    )


PAIRS: dict[str, Callable[[Rig], Pair]] = {
    "claim and claim": claim_and_claim,
    "claim and claim with parking": claim_and_claim_with_parking,
    "claim and reserve": claim_and_reserve,
    "claim and reserve all": lambda rig: claim_and_reserve(rig, EVERY_QUEUE),
    "claim and release": claim_and_release,
    "claim and pause": claim_and_pause,
    "claim and stop of its node": claim_and_stop_of_its_node,
    "claim and move": claim_and_move,
    "claim and edit": claim_and_edit,
    "claim and edit into another queue": lambda rig: claim_and_edit(rig, rig.key("other")),
    "claim and cancel": claim_and_cancel,
    "claim and priority": claim_and_priority,
    "turn and turn": turn_and_turn,
    "promote and cancel": promote_and_cancel,
    "promote and promote": promote_and_promote,
    "finish and rescue": lambda rig: finish_and_rescue(rig, Completed()),
    "failed finish and rescue": lambda rig: finish_and_rescue(rig, Failed(BROKEN, 5), as_new_job=True),
    "rescue and rescue": rescue_and_rescue,
    "finish and its repeat": finish_and_repeat,
    "finish and cancel": lambda rig: finish_and_cancel(rig, Completed()),
    "failed finish and cancel": lambda rig: finish_and_cancel(rig, Failed(BROKEN, 5)),
    "chained finish and cancel": lambda rig: finish_and_cancel(rig, Failed(BROKEN), as_new_job=True),
    "finish and supersede": lambda rig: finish_and_supersede(rig, Completed()),
    "failed finish and supersede": lambda rig: finish_and_supersede(rig, Failed(HOPELESS)),
    "finish and cancel of its dependent": finish_and_cancel_of_its_dependent,
    "finish and retry of its dependent": finish_and_retry_of_its_dependent,
    "finish and enqueue with its key": finish_and_enqueue_with_its_key,
    "chained finish and enqueue with its key": lambda rig: finish_and_enqueue_with_its_key(rig, as_new_job=True),
    "two enqueues with one business key": lambda rig: enqueue_twice_with_one_key(rig, {"business_key": rig.key("b")}),
    "two enqueues with one idempotency key": lambda rig: enqueue_twice_with_one_key(
        rig, {"idempotency_key": rig.key("k")}
    ),
    "two enqueues with the same keys": enqueue_many_with_the_same_keys,
    "the first jobs of a queue": first_jobs_of_a_queue,
    "retry and enqueue with its key": lambda rig: retry_and_enqueue_with_its_key(rig, "raise"),
    "retry and enqueue that takes what is there": lambda rig: retry_and_enqueue_with_its_key(rig, "return"),
    "retry and retry": retry_and_retry,
    "retry and retry as new": retry_and_retry_as_new,
    "retry and removal": retry_and_removal,
    "retry and archive": lambda rig: retry_and_removal(rig, into_archive=True),
    "retry and delete": retry_and_delete,
    "move and move": move_and_move,
    "move and move without room": lambda rig: move_and_move(rig, is_crowded=True),
    "move and edit into another queue": move_and_edit_into_another_queue,
    "fire and fire": fire_and_fire,
    "fire and trigger": fire_and_trigger,
    "trigger and trigger": trigger_and_trigger,
    "fire and end of the job before": fire_and_end_of_the_job_before,
    "fire and change of the schedule": fire_and_change_of_the_schedule,
    "reserve and reserve": reserve_and_reserve,
    "direct job and release": direct_job_and_release,
    "template and template": template_and_template,
    "lock and lock": lock_and_lock,
    "the last two of a flow end": the_last_two_of_a_flow_end,
    "the last of a flow ends, and one is cancelled": the_last_of_a_flow_ends_and_one_is_cancelled,
    "the last of two inner flows end": the_last_of_two_inner_flows_end,
    "the last two of a flow end, and one dies": the_last_of_a_flow_end_and_one_dies_declared_dead,
    "two look at an inner flow": two_look_at_an_inner_flow,
    "the last two parents end": lambda rig: the_last_two_parents_end(rig, Completed()),
    "the last two parents end, one fails": lambda rig: the_last_two_parents_end(rig, Failed(HOPELESS)),
    "finish and enqueue after it": lambda rig: finish_and_enqueue_after_it(rig, Completed()),
    "failed finish and enqueue after it": lambda rig: finish_and_enqueue_after_it(rig, Failed(HOPELESS)),
    "end of a flow and enqueue after it": end_of_a_flow_and_enqueue_after_it,
    "finish and cancel of its flow": lambda rig: finish_and_decision_about_the_flow(rig, "cancel"),
    "finish and pause of its flow": lambda rig: finish_and_decision_about_the_flow(rig, "pause"),
    "last finish and retry of a member": last_finish_and_retry_of_a_member,
    "last finish and retry of the flow": last_finish_and_retry_of_the_flow,
    "last finish and seal": last_finish_and_seal,
    "new members and the end of who fills": new_members_and_the_end_of_who_fills,
    "pause of a flow and the end of who fills one inside": pause_of_a_flow_and_the_end_of_who_fills_one_inside,
    "last finish of an inner flow and retry of the outer": last_finish_of_an_inner_flow_and_retry_of_the_outer,
    "an entry of the work list and retry of its flow": lambda rig: work_list_and_retry_of_the_flow(rig, 1),
    "entries of the work list and retry of their flow": lambda rig: work_list_and_retry_of_the_flow(rig, 2),
    "growth and pause of the flow": lambda rig: growth_and_decision_about_the_flow(rig, "pause"),
    "growth and cancel of the flow": lambda rig: growth_and_decision_about_the_flow(rig, "cancel"),
    "retry of a flow and a new one with its key": retry_of_a_flow_and_a_new_one_with_its_key,
    "claim and claim of one key": lambda rig: claim_and_claim_of_one_key(rig, 2),
    "claim and claim of a new key": lambda rig: claim_and_claim_of_one_key(rig, 2, known=False),
    "claim and claim of one key, one takes all": lambda rig: claim_and_claim_of_one_key(rig, 6),
    "claim and claim of heavy jobs": lambda rig: claim_and_claim_of_one_key(rig, 2, weight=3),
    "claim and claim of two keys": claim_and_claim_of_two_keys,
    "claim and claim of a limited queue": claim_and_claim_of_a_limited_queue,
    "finish and claim of its key": lambda rig: finish_and_claim_of_its_key(rig, Completed()),
    "failed finish and claim of its key": lambda rig: finish_and_claim_of_its_key(rig, Failed(BROKEN, 5)),
    "turn and claim of its key": turn_and_claim_of_its_key,
    "turn and turn of one key": turn_and_turn_of_one_key,
    "turn and rescue of one key": rescue_and_turn_of_one_key,
    "claim of a key and stop of its node": lambda rig: claim_of_a_key_and_stop_of_its_node(rig, in_line=False),
    "turn of a key and stop of its node": lambda rig: claim_of_a_key_and_stop_of_its_node(rig, in_line=True),
    "claim and cancel of who was woken": claim_and_cancel_of_who_was_woken,
    "turn and cancel of the next in line": finish_and_cancel_of_the_next,
    "claim and a higher limit": lambda rig: claim_and_new_number(rig, 4),
    "claim and pause of its limit": claim_and_pause_of_its_limit,
    "claim and resume of its limit": claim_and_resume_of_its_limit,
    "turn and enqueue after the next in line": lambda rig: turn_and_enqueue_after_the_next_in_line(
        rig, claims_too=True
    ),
    "finish and enqueue after the next in line": lambda rig: turn_and_enqueue_after_the_next_in_line(
        rig, claims_too=False
    ),
    "claim and a block that holds its key": claim_and_hold,
    "two look at the same lines": two_look_at_the_same_lines,
    "a look at the lines, and a turn": look_and_turn,
    "a look at the lines, and the second end of a job": look_and_second_end_of_a_job,
    "two open a sliding rate": lambda rig: two_open_a_rate(rig, "sliding"),
    "two open a bucket": lambda rig: two_open_a_rate(rig, "bucket"),
    "two declare their limits": two_declare_their_limits,
}
