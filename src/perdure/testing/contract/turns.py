"""What a worker repeats: the turn, the glance before it, and what a node holds. Protocol `TurnOperations`."""

from __future__ import annotations

from collections.abc import Sequence

from perdure.errors import KeyConflict
from perdure.job.model import Claim, RunStats
from perdure.job.reports import Cancelled, Completed, Failed, Finish
from perdure.job.states import RunState, State
from perdure.store.rows import Finished, FinishStatus, Glance, Kinds, Lane, LogLine, Notes, Turn, Turned
from perdure.testing.contract.case import each, raises
from perdure.testing.contract.rig import ANY, BROKEN, LEASE_US, NONE, Rig

EVERYTHING = "*"
NOTHING = Glance((), None, ())


def _turn(rig: Rig, wanted: Turn) -> Turned:
    return rig.store.turn(wanted, rig.now)


def _wanted(
    rig: Rig, room: int, *, finishes: Sequence[Finish] = (), notes: Notes | None = None, promote: int = 0
) -> Turn:
    """A turn that claims from the rig's queue."""
    return Turn(finishes, notes, promote, [Lane(rig.queue, room)], rig.claimer(room))


def _glance(rig: Rig, kinds: Kinds | None = ANY) -> Glance:
    return rig.store.glance(rig.node, kinds)


def _lines(claim: Claim, *numbers: int) -> list[LogLine]:
    return [LogLine(claim.run_id, number, claim.job_id, claim.created_at, "INFO", f"{number}") for number in numbers]


# -- the turn --------------------------------------------------------------------------------------------------------


def test_a_turn_that_wants_nothing_changes_nothing(rig: Rig) -> None:
    rig.enqueue()
    rig.enqueue(delay_s=1)
    rig.clock.advance(seconds=2)
    before = rig.everything()

    assert _turn(rig, Turn()) == Turned([], 0, [])
    assert rig.everything() == before


def test_a_bell_may_be_rung_after_it_was_closed(rig: Rig) -> None:
    bell = rig.store.bell()
    bell.ring()
    bell.close()
    bell.ring()


def test_a_turn_finishes_promotes_and_claims(rig: Rig) -> None:
    done, next_one = rig.enqueue_many(2)
    due = rig.enqueue(delay_s=1)
    [claim] = rig.claim()
    rig.clock.advance(seconds=1)

    turned = _turn(rig, _wanted(rig, 5, finishes=[rig.report(claim, Completed())], promote=10))

    assert turned.finished == [Finished(FinishStatus.APPLIED, State.COMPLETED)]
    assert turned.promoted == 1
    assert [taken.job_id for taken in turned.claims] == [next_one, due]
    assert [taken.live for taken in turned.claims] == [rig.live(next_one), rig.live(due)]
    assert rig.job(done).state == State.COMPLETED


def test_what_a_turn_puts_back_it_may_claim_again(rig: Rig) -> None:
    claim = rig.start()

    turned = _turn(rig, _wanted(rig, 1, finishes=[rig.report(claim, Failed(BROKEN))]))

    assert [taken.job_id for taken in turned.claims] == [claim.job_id]
    assert [run.state for run in rig.runs(claim.job_id)] == [RunState.RUNNING, RunState.FAILED]


def test_a_turn_promotes_no_more_than_it_wants(rig: Rig) -> None:
    rig.enqueue_many(3, delay_s=1)
    rig.clock.advance(seconds=1)

    assert _turn(rig, Turn(promote=2)).promoted == 2
    assert _turn(rig, Turn()).promoted == 0
    assert len(rig.in_order()) == 2


def test_a_turn_without_a_claimer_claims_nothing(rig: Rig) -> None:
    rig.enqueue()

    assert _turn(rig, Turn(lanes=[Lane(rig.queue, 1)])).claims == []
    assert len(rig.in_order()) == 1


def test_a_report_that_came_too_late_does_not_hold_up_the_turn(rig: Rig) -> None:
    rig.enqueue_many(3)
    lost, kept = rig.claim(2)
    rig.cancel(kept.job_id)
    rig.finish(lost, Cancelled())
    reports = [rig.report(lost, Completed()), rig.report(kept, Completed())]

    turned = _turn(rig, _wanted(rig, 1, finishes=reports))

    assert turned.finished == [Finished(FinishStatus.LOST), Finished(FinishStatus.APPLIED, State.COMPLETED)]
    assert len(turned.claims) == 1


def test_a_node_declared_dead_finishes_what_nobody_took_but_claims_nothing(rig: Rig) -> None:
    node = rig.register()
    rig.enqueue_many(2)
    [claim] = rig.claim(1, node=node)
    rig.store.stop(node, "crash", rig.now)
    wanted = Turn([rig.report(claim, Completed())], lanes=[Lane(rig.queue, 1)], claimer=rig.claimer(1, node))

    assert _turn(rig, wanted) == Turned([Finished(FinishStatus.APPLIED, State.COMPLETED)], 0, [])


def test_a_turn_happens_wholly_or_not_at_all(rig: Rig) -> None:
    rig.enqueue(business_key=rig.key("taken"), queue=rig.key("other"))
    rig.enqueue_many(2)
    due = rig.enqueue(delay_s=1)
    [claim] = rig.claim(1)
    rig.clock.advance(seconds=1)
    child = rig.new(business_key=rig.key("taken"))
    finish = rig.report(claim, Completed())._replace(children=(child,))
    notes = Notes(_lines(claim, 1), [(claim.run_id, ("a",))], [(claim.run_id, '{"n":1}')])
    before = rig.everything()

    with raises(KeyConflict):
        _turn(rig, _wanted(rig, 5, finishes=[finish], notes=notes, promote=5))

    assert rig.everything() == before
    assert rig.job(due).state == State.SCHEDULED


# -- notes -----------------------------------------------------------------------------------------------------------


def _note(rig: Rig, notes: Notes) -> None:
    assert _turn(rig, Turn(notes=notes)) == Turned([], 0, [])


def test_a_turn_keeps_what_runs_have_to_say(rig: Rig) -> None:
    rig.enqueue_many(2)
    one, two = rig.claim(2)
    _note(
        rig,
        Notes(
            [*_lines(one, 1, 2), *_lines(two, 1)],
            [(one.run_id, ("a.pdf", "b.pdf")), (two.run_id, ("c.pdf",))],
            [(one.run_id, '{"rows":1}'), (two.run_id, '{"rows":2}')],
        ),
    )

    assert rig.store.log(one.job_id, None, 10) == _lines(one, 1, 2)
    assert rig.store.log(two.job_id, None, 10) == _lines(two, 1)
    [first], [second] = rig.runs(one.job_id), rig.runs(two.job_id)
    assert (first.artifacts, first.metrics) == (["a.pdf", "b.pdf"], {"rows": 1})
    assert (second.artifacts, second.metrics) == (["c.pdf"], {"rows": 2})
    assert (first.state, second.state) == (RunState.RUNNING, RunState.RUNNING)


def test_metrics_stand_for_all_that_was_measured_before(rig: Rig) -> None:
    claim = rig.start()
    _note(rig, Notes(metrics=[(claim.run_id, '{"a":1}')]))
    _note(rig, Notes(metrics=[(claim.run_id, '{"a":2,"b":3}')]))

    assert rig.runs(claim.job_id)[0].metrics == {"a": 2, "b": 3}


def test_a_run_that_ends_in_the_same_turn_keeps_the_metrics_it_ended_with(rig: Rig) -> None:
    claim = rig.start()
    finish = rig.report(claim, Completed(), RunStats(metrics='{"last":1}'))
    notes = Notes(_lines(claim, 1), [(claim.run_id, ("a",))], [(claim.run_id, '{"early":1}')])
    _turn(rig, Turn(finishes=[finish], notes=notes))

    [run] = rig.runs(claim.job_id)
    assert (run.state, run.metrics, run.artifacts) == (RunState.COMPLETED, {"last": 1}, ["a"])
    assert rig.store.log(claim.job_id, None, 10) == _lines(claim, 1)


def test_a_closed_run_takes_no_metrics(rig: Rig) -> None:
    claim = rig.start()
    rig.finish(claim, Completed())
    before = rig.everything()
    _note(rig, Notes(metrics=[(claim.run_id, '{"late":1}')]))

    assert rig.everything() == before


def test_a_line_can_stand_for_all_before_it(rig: Rig) -> None:
    rig.enqueue_many(2)
    claim, other = rig.claim(2)
    _note(rig, Notes([*_lines(claim, *range(6)), *_lines(other, *range(6))]))
    mark = _lines(claim, 6)[0]._replace(message="6 earlier lines were dropped")
    _note(rig, Notes(_lines(claim, 6, 7, 8), kept_from=[mark]))

    assert rig.store.log(claim.job_id, None, 20) == [mark, *_lines(claim, 7, 8)]
    assert rig.store.log(other.job_id, None, 20) == _lines(other, *range(6))


def test_the_same_notes_again_change_nothing(rig: Rig) -> None:
    """The reply to a turn may be lost; then the node repeats all of it."""
    claim = rig.start()
    notes = Notes(
        _lines(claim, 3, 4, 5),
        [(claim.run_id, ("a", "b"))],
        [(claim.run_id, '{"n":1}')],
        [_lines(claim, 3)[0]._replace(message="dropped")],
    )
    _note(rig, notes)
    before = rig.everything()
    _note(rig, notes)

    assert rig.everything() == before


def test_a_repeated_turn_returns_the_results_of_the_first(rig: Rig) -> None:
    rig.enqueue_many(2)
    done, failed = rig.claim(2)
    children = (rig.new(queue=rig.key("other")),)
    wanted = Turn(
        [rig.report(done, Completed())._replace(children=children), rig.report(failed, Failed(BROKEN))],
        Notes(_lines(done, 1)),
    )
    _turn(rig, wanted)
    before = rig.everything()

    assert _turn(rig, wanted).finished == [
        Finished(FinishStatus.ALREADY, State.COMPLETED),
        Finished(FinishStatus.ALREADY, State.QUEUED),
    ]
    assert rig.everything() == before


# -- the glance ------------------------------------------------------------------------------------------------------


def test_in_an_empty_store_there_is_nothing_to_see(rig: Rig) -> None:
    assert _glance(rig) == NOTHING


def test_every_queue_with_a_job_to_claim_is_seen_once_in_the_order_of_names(rig: Rig) -> None:
    queues = [rig.key(name) for name in ("b", "a", "c")]
    for queue in queues:
        rig.enqueue_many(2, queue=queue)

    assert _glance(rig) == Glance(tuple(sorted(queues)), None, ())


def test_a_glance_writes_nothing(rig: Rig) -> None:
    rig.enqueue_many(2)
    rig.claim(5, kinds=NONE)
    rig.enqueue(delay_s=1)
    node, before = rig.node, rig.everything()
    rig.store.glance(node, ANY)
    rig.store.glance(node, NONE)

    assert rig.everything() == before


def test_jobs_that_cannot_be_claimed_are_not_seen(rig: Rig) -> None:
    rig.start()
    rig.pause(rig.enqueue())
    rig.finish(rig.start(queue=rig.queue), Completed())

    assert _glance(rig) == NOTHING


@each("own", EVERYTHING)
def test_a_paused_queue_is_not_seen(rig: Rig, which: str) -> None:
    queue = rig.queue if which == "own" else EVERYTHING
    rig.enqueue()
    rig.store.pause_queue(queue, rig.now)
    assert _glance(rig) == NOTHING

    rig.store.pause_queue(queue, None)
    assert _glance(rig).queues == (rig.queue,)


@each("own", EVERYTHING)
def test_a_reserved_queue_is_seen_when_the_reservation_is_closed(rig: Rig, which: str) -> None:
    rig.enqueue()
    held = rig.reserve(rig.queue if which == "own" else EVERYTHING, lasts_s=10)
    rig.clock.advance(seconds=11)
    assert _glance(rig) == NOTHING

    rig.store.close_reservation(held.id, "expired", rig.now)
    assert _glance(rig).queues == (rig.queue,)


def test_parked_jobs_are_seen_by_those_who_know_them(rig: Rig) -> None:
    one, two = rig.key("one"), rig.key("two")
    rig.enqueue(kind=one, kind_version=2)
    rig.enqueue(kind=two, queue=rig.key("elsewhere"))
    rig.claim(5, kinds=NONE)
    rig.claim(5, kinds=NONE, queue=rig.key("elsewhere"))

    def seen(kinds: Kinds | None) -> Sequence[str]:
        return _glance(rig, kinds).queues

    assert seen(NONE) == ()
    assert seen({one: 1}) == ()
    assert seen({one: 2}) == (rig.queue,)
    assert seen({one: 1, two: 9}) == (rig.key("elsewhere"),)
    assert set(seen(ANY)) == {rig.queue, rig.key("elsewhere")}


def test_what_a_glance_sees_of_parked_jobs_can_be_claimed(rig: Rig) -> None:
    kinds = [rig.key(name) for name in "abcde"]
    for kind in kinds:
        rig.enqueue(kind=kind, kind_version=3)
    rig.claim(9, kinds=NONE)

    for known in ({kinds[0]: 2}, {kinds[4]: 3}, {kinds[1]: 2, kinds[3]: 4}, {"unheard of": 9}):
        assert bool(_glance(rig, known).queues) == bool(rig.claim(9, kinds=known))


def test_a_paused_queue_with_parked_jobs_is_not_seen(rig: Rig) -> None:
    rig.enqueue()
    rig.claim(kinds=NONE)
    rig.store.pause_queue(rig.queue, rig.now)

    assert _glance(rig) == NOTHING


def test_the_time_of_the_next_due_job_is_seen(rig: Rig) -> None:
    rig.enqueue(delay_s=30)
    early = rig.enqueue(delay_s=10)
    assert _glance(rig) == Glance((), rig.live(early).run_at, ())

    rig.clock.advance(seconds=60)
    assert _glance(rig).next_due == rig.live(early).run_at
    rig.store.promote(rig.now, 10)
    assert _glance(rig) == Glance((rig.queue,), None, ())


def test_a_node_sees_which_of_its_own_runs_are_to_stop(rig: Rig) -> None:
    rig.enqueue_many(3)
    mine, unharmed = rig.claim(2)
    others = rig.claim(1, node=rig.register())[0]
    for claim in (mine, others):
        rig.cancel(claim.job_id)

    assert _glance(rig).cancelled == (mine.run_id,)
    rig.finish(mine, Completed())
    assert _glance(rig).cancelled == ()
    assert rig.live(unharmed.job_id).cancel_requested == 0


# -- what a node holds -----------------------------------------------------------------------------------------------


def test_the_jobs_a_node_holds_are_listed_as_they_are(rig: Rig) -> None:
    rig.enqueue_many(4)
    early = rig.claim(1)
    rig.clock.advance(seconds=1)
    late = rig.claim(1)
    rig.claim(1, node=rig.register())
    rig.cancel(late[0].job_id)

    assert rig.store.held_by(rig.node) == [early[0].live, rig.live(late[0].job_id)]
    rig.finish(early[0], Failed(BROKEN))
    assert [live.job_id for live in rig.store.held_by(rig.node)] == [late[0].job_id]
    assert rig.store.held_by(rig.register()) == []


def test_a_stopped_node_still_holds_its_jobs(rig: Rig) -> None:
    claim = rig.start()
    rig.store.stop(rig.node, "crash", rig.now)

    assert rig.store.held_by(rig.node) == [claim.live]


def test_runs_past_their_deadline_are_listed_the_earliest_first(rig: Rig) -> None:
    slow = rig.start(timeout_ms=20_000)
    quick = rig.start(timeout_ms=10_000)
    rig.start()
    deadline = rig.now + 10_000_000 + LEASE_US
    rig.enqueue(timeout_ms=1)

    def overdue(late_us: int, limit: int = 10) -> list[bytes]:
        now = type(rig.now)(deadline + late_us)
        return [live.job_id for live in rig.store.overdue(now, limit)]

    assert overdue(-1) == []
    assert rig.store.overdue(type(rig.now)(deadline), 10) == [quick.live]
    assert overdue(10_000_000) == [quick.job_id, slow.job_id]
    assert overdue(10_000_000, limit=1) == [quick.job_id]
    rig.finish(quick, Completed())
    assert overdue(2**40) == [slow.job_id]
