"""One job in the place of another. Part of the protocol `ControlOperations`."""

from __future__ import annotations

from perdure.errors import KeyConflict
from perdure.ids import to_uuid
from perdure.job.flow import Edge
from perdure.job.reports import Cancelled, Completed, Failed, Released, Report, Skipped, Snoozed, Unreadable
from perdure.job.states import WAITING, State
from perdure.testing.contract.case import each, raises
from perdure.testing.contract.rig import BROKEN, HOPELESS, Rig
from perdure.testing.contract.states import in_state


@each(*sorted(WAITING - {State.BLOCKED}))
def test_a_waiting_job_is_cancelled_by_its_replacement(rig: Rig, state: State) -> None:
    old = in_state(rig, state)
    replacement = rig.new()

    answer = rig.store.supersede(old, replacement, rig.now)

    assert (answer.state, answer.superseded_by) == (State.CANCELLED, to_uuid(replacement.id))
    assert rig.job(replacement.id).state == State.QUEUED


def test_a_running_job_is_asked_to_stop_and_its_replacement_waits_for_it(rig: Rig) -> None:
    running = rig.start()
    replacement = rig.new()

    answer = rig.store.supersede(running.job_id, replacement, rig.now)

    assert (answer.state, answer.cancel_requested) == (State.RUNNING, True)
    waiting = rig.job(replacement.id)
    assert (waiting.state, waiting.waits_for) == (State.BLOCKED, 1)
    assert rig.claim() == []


@each(Completed(), Failed(BROKEN), Failed(HOPELESS), Snoozed(5), Released(), Cancelled(), Skipped(), Unreadable("?"))
def test_the_replacement_starts_when_the_superseded_job_lets_go(rig: Rig, report: Report) -> None:
    running = rig.start()
    replacement = rig.new()
    rig.store.supersede(running.job_id, replacement, rig.now)
    rig.finish(running, report)

    assert rig.job(running.job_id).is_final
    assert rig.job(running.job_id).superseded_by == to_uuid(replacement.id)
    assert rig.claim_one().job_id == replacement.id


def test_the_replacement_starts_when_the_node_of_the_superseded_job_dies(rig: Rig) -> None:
    node = rig.register()
    rig.enqueue()
    running = rig.claim_one(node=node)
    replacement = rig.new()
    rig.store.supersede(running.job_id, replacement, rig.now)
    rig.crash(node)

    assert rig.job(running.job_id).state == State.CANCELLED
    assert rig.claim_one().job_id == replacement.id


def test_a_paused_replacement_stays_paused_when_its_turn_comes(rig: Rig) -> None:
    running = rig.start()
    replacement = rig.new()
    rig.store.supersede(running.job_id, replacement, rig.now)
    rig.pause(replacement.id)
    rig.finish(running, Cancelled())

    assert (rig.job(replacement.id).state, rig.job(replacement.id).waits_for) == (State.PAUSED, 0)
    assert rig.resume(replacement.id).state == State.QUEUED


def test_a_replacement_can_be_superseded_in_turn(rig: Rig) -> None:
    running = rig.start()
    second, third = rig.new(), rig.new()
    rig.store.supersede(running.job_id, second, rig.now)
    rig.store.supersede(second.id, third, rig.now)
    rig.finish(running, Cancelled())

    assert rig.job(second.id).state == State.CANCELLED
    assert rig.job(third.id).state == State.QUEUED


def test_the_replacement_of_a_replacement_waits_for_the_job_that_still_runs(rig: Rig) -> None:
    """Found by review: it ran beside it."""
    running = rig.start()
    second, third = rig.new(), rig.new()
    rig.store.supersede(running.job_id, second, rig.now)
    rig.store.supersede(second.id, third, rig.now)

    assert (rig.job(third.id).state, rig.claim(5)) == (State.BLOCKED, [])
    rig.finish(running, Cancelled())
    assert rig.claim_one().job_id == third.id


@each(Completed(), Failed(HOPELESS))
def test_the_replacement_waits_for_what_the_superseded_job_waited_for(rig: Rig, report: Report) -> None:
    parent, other = rig.start(), rig.start()
    old = rig.enqueue(after=(Edge(parent.job_id), Edge(other.job_id, "end")))
    behind = rig.enqueue(after=(Edge(old),))
    replacement = rig.new(after=(Edge(other.job_id, "end"),))
    rig.store.supersede(old, replacement, rig.now)
    assert (rig.job(replacement.id).state, rig.job(replacement.id).waits_for) == (State.BLOCKED, 2)

    rig.finish(other, Completed())
    assert rig.claim(5) == []
    rig.finish(parent, report)

    if report == Completed():
        rig.finish(rig.claim_one(), Completed())
        assert rig.claim_one().job_id == behind
    else:
        assert [rig.job(job).state for job in (replacement.id, behind)] == [State.SKIPPED] * 2


def test_a_superseded_job_is_not_superseded_again(rig: Rig) -> None:
    running = rig.start()
    first, second = rig.new(), rig.new()
    rig.store.supersede(running.job_id, first, rig.now)

    answer = rig.store.supersede(running.job_id, second, rig.now)

    assert answer.superseded_by == to_uuid(first.id)
    assert rig.store.get(second.id) is None


def test_a_replacement_with_a_used_idempotency_key_changes_nothing(rig: Rig) -> None:
    rig.enqueue(idempotency_key=rig.key("k"))
    old = rig.enqueue()
    before = rig.everything()

    with raises(KeyConflict, "supersede_conflict"):
        rig.store.supersede(old, rig.new(idempotency_key=rig.key("k")), rig.now)

    assert rig.everything() == before
