"""Idempotency keys, for ever, and business keys, while a job is live. Part of the protocol `JobOperations`."""

from __future__ import annotations

from perdure.errors import KeyConflict, TransitionRefused
from perdure.job.model import NewJob
from perdure.job.reports import Cancelled, Completed, Failed, Report, Skipped, Snoozed, Unreadable
from perdure.job.states import FINAL, LIVE, State
from perdure.testing.contract.case import each, raises
from perdure.testing.contract.rig import BROKEN, HOPELESS, Rig
from perdure.testing.contract.states import in_state

# -- idempotency keys ------------------------------------------------------------------------------------------------


def test_the_same_idempotency_key_returns_the_first_job(rig: Rig) -> None:
    first = rig.enqueue(idempotency_key=rig.key("k"))
    [again] = rig.store.enqueue([rig.new(idempotency_key=rig.key("k"))])

    assert again.row.id == first
    assert again.deduplicated
    assert rig.in_order() == [first]


def test_a_job_with_either_key_shows_it(rig: Rig) -> None:
    first = rig.job(rig.enqueue(idempotency_key=rig.key("k")))
    second = rig.job(rig.enqueue(business_key=rig.key("b")))

    assert (first.idempotency_key, first.business_key) == (rig.key("k"), None)
    assert (second.idempotency_key, second.business_key) == (None, rig.key("b"))


def test_a_duplicate_writes_nothing(rig: Rig) -> None:
    rig.enqueue(idempotency_key=rig.key("k"))
    before = rig.everything()

    rig.store.enqueue([rig.new(idempotency_key=rig.key("k"), tags=("t",))])

    assert rig.everything() == before


@each(*sorted(FINAL))
def test_an_idempotency_key_stays_taken_after_the_end(rig: Rig, state: State) -> None:
    claim = rig.start(idempotency_key=rig.key("k"))
    ends: dict[State, Report] = {
        State.COMPLETED: Completed(),
        State.FAILED: Failed(HOPELESS),
        State.CANCELLED: Cancelled(),
        State.SKIPPED: Skipped(),
    }
    rig.finish(claim, ends[state])

    [again] = rig.store.enqueue([rig.new(idempotency_key=rig.key("k"))])

    assert (again.row.id, again.state, again.deduplicated) == (claim.job_id, state, True)


def test_an_idempotency_key_outlives_its_deleted_job(rig: Rig) -> None:
    claim = rig.start(idempotency_key=rig.key("k"))
    rig.finish(claim, Failed(HOPELESS))
    rig.store.delete(claim.job_id)

    [again] = rig.store.enqueue([rig.new(idempotency_key=rig.key("k"))])

    assert (again.row.id, again.state, again.payload) == (claim.job_id, State.FAILED, None)
    assert again.deduplicated
    assert rig.in_order() == []


def test_other_arguments_under_the_same_idempotency_key_are_a_conflict(rig: Rig) -> None:
    rig.enqueue(idempotency_key=rig.key("k"), fingerprint="these")
    before = rig.everything()

    with raises(KeyConflict, "idempotency_mismatch"):
        rig.store.enqueue([rig.new(idempotency_key=rig.key("k"), fingerprint="others")])

    assert rig.everything() == before


def test_arguments_of_another_version_are_not_compared(rig: Rig) -> None:
    first = rig.enqueue(idempotency_key=rig.key("k"), fingerprint="these", kind_version=1)
    newer = rig.new(idempotency_key=rig.key("k"), fingerprint="others", kind_version=2)

    assert rig.store.enqueue([newer])[0].row.id == first


def test_each_kind_has_idempotency_keys_of_its_own(rig: Rig) -> None:
    one = rig.enqueue(idempotency_key=rig.key("k"), kind=rig.key("one"))
    two = rig.enqueue(idempotency_key=rig.key("k"), kind=rig.key("two"))

    assert one != two


def test_an_idempotency_key_used_under_an_old_name_of_the_kind_still_counts(rig: Rig) -> None:
    old, new = rig.key("old_name"), rig.key("new_name")
    first = rig.enqueue(idempotency_key=rig.key("k"), kind=old)

    [again] = rig.store.enqueue([rig.new(idempotency_key=rig.key("k"), kind=new, names=(new, old))])

    assert (again.row.id, again.deduplicated) == (first, True)


def test_an_idempotency_key_used_under_a_new_name_of_the_kind_counts_for_those_who_know_the_old_one(rig: Rig) -> None:
    old, new = rig.key("old_name"), rig.key("new_name")
    first = rig.enqueue(idempotency_key=rig.key("k"), kind=new, names=(new, old))

    [again] = rig.store.enqueue([rig.new(idempotency_key=rig.key("k"), kind=old)])
    [later] = rig.store.enqueue([rig.new(idempotency_key=rig.key("k"), kind=new)])  # the alias is left out again

    assert [(job.row.id, job.deduplicated) for job in (again, later)] == [(first, True)] * 2
    assert rig.in_order() == [first]


def test_many_keys_are_found_under_any_name_of_their_kind(rig: Rig) -> None:
    first, second, third = (rig.key(name) for name in ("first", "second", "third"))
    keys = [rig.key(f"k{number}") for number in range(3)]
    old = rig.enqueue(idempotency_key=keys[0], kind=first)
    newer = rig.enqueue(idempotency_key=keys[1], kind=second, names=(second, first))

    made = [rig.new(idempotency_key=key, kind=third, names=(third, second, first)) for key in keys]
    answers = rig.store.enqueue(made)

    assert [job.row.id for job in answers] == [old, newer, made[2].id]
    for kind in (first, second, third):
        [again] = rig.store.enqueue([rig.new(idempotency_key=keys[2], kind=kind)])
        assert again.row.id == made[2].id


@each("old", "new")
def test_other_arguments_under_another_name_of_the_kind_are_a_conflict(rig: Rig, begins: str) -> None:
    old, new = rig.key("old_name"), rig.key("new_name")
    known: dict[str, tuple[str, tuple[str, ...]]] = {"old": (old, (old,)), "new": (new, (new, old))}
    ends = "new" if begins == "old" else "old"
    rig.enqueue(idempotency_key=rig.key("k"), fingerprint="these", kind=known[begins][0], names=known[begins][1])
    before = rig.everything()

    with raises(KeyConflict, "idempotency_mismatch"):
        rig.enqueue(idempotency_key=rig.key("k"), fingerprint="others", kind=known[ends][0], names=known[ends][1])

    assert rig.everything() == before


def test_how_a_deleted_job_ended_is_known_under_every_name_of_its_kind(rig: Rig) -> None:
    old, new = rig.key("old_name"), rig.key("new_name")
    other = rig.enqueue(idempotency_key=rig.key("k"), kind=rig.key("another"))
    job_id = rig.cancel(rig.enqueue(idempotency_key=rig.key("k"), kind=new, names=(new, old))).row.id
    rig.store.delete(job_id)

    for kind in (old, new):
        [again] = rig.store.enqueue([rig.new(idempotency_key=rig.key("k"), kind=kind)])
        assert (again.row.id, again.state, again.deduplicated) == (job_id, State.CANCELLED, True)
    [unlike] = rig.store.enqueue([rig.new(idempotency_key=rig.key("k"), kind=rig.key("another"))])
    assert (unlike.row.id, unlike.state) == (other, State.QUEUED)


def test_one_idempotency_key_twice_in_a_call_makes_one_job(rig: Rig) -> None:
    new = [rig.new(idempotency_key=rig.key("k")) for _ in range(3)]
    answers = rig.store.enqueue(new)

    assert [job.row.id for job in answers] == [new[0].id] * 3
    assert [job.deduplicated for job in answers] == [False, True, True]
    assert rig.in_order() == [new[0].id]


def test_new_jobs_and_duplicates_can_be_mixed_in_a_call(rig: Rig) -> None:
    known = rig.enqueue(idempotency_key=rig.key("known"))
    new = [rig.new(), rig.new(idempotency_key=rig.key("known")), rig.new(idempotency_key=rig.key("unknown"))]

    answers = rig.store.enqueue(new)

    assert [job.row.id for job in answers] == [new[0].id, known, new[2].id]
    assert [job.deduplicated for job in answers] == [False, True, False]
    assert rig.in_order() == [known, new[0].id, new[2].id]


def test_a_duplicate_is_recognised_before_its_business_key_is_looked_at(rig: Rig) -> None:
    def again() -> NewJob:
        return rig.new(idempotency_key=rig.key("k"), business_key=rig.key("b"))

    [first] = rig.store.enqueue([again()])
    [second] = rig.store.enqueue([again()])

    assert (second.id, second.deduplicated) == (first.id, True)


# -- business keys ---------------------------------------------------------------------------------------------------


@each(*sorted(LIVE))
def test_a_business_key_is_taken_while_its_job_is_live(rig: Rig, state: State) -> None:
    job_id = in_state(rig, state, business_key=rig.key("b"))
    before = rig.everything()

    with raises(KeyConflict, "business_key_taken") as raised:
        rig.store.enqueue([rig.new(business_key=rig.key("b"))])

    assert str(rig.job(job_id).id) in str(raised.error)
    assert rig.everything() == before


def test_who_asks_for_it_gets_the_job_that_holds_the_business_key(rig: Rig) -> None:
    holder = rig.enqueue(business_key=rig.key("b"))
    [again] = rig.store.enqueue([rig.new(business_key=rig.key("b"), conflict="return")])

    assert (again.row.id, again.deduplicated) == (holder, True)
    assert rig.in_order() == [holder]


@each(Completed(), Failed(HOPELESS), Cancelled(), Skipped())
def test_the_end_frees_the_business_key(rig: Rig, report: Report) -> None:
    rig.finish(rig.start(business_key=rig.key("b")), report)

    assert rig.enqueue(business_key=rig.key("b"))


def test_cancelling_a_waiting_job_frees_its_business_key(rig: Rig) -> None:
    rig.cancel(rig.enqueue(business_key=rig.key("b")))

    assert rig.enqueue(business_key=rig.key("b"))


@each(Failed(BROKEN), Snoozed(5), Unreadable("?"))
def test_a_job_that_comes_back_keeps_its_business_key(rig: Rig, report: Report) -> None:
    rig.finish(rig.start(business_key=rig.key("b")), report)

    with raises(KeyConflict, "business_key_taken"):
        rig.enqueue(business_key=rig.key("b"))


def test_a_successor_takes_the_business_key_over(rig: Rig) -> None:
    claim = rig.start(business_key=rig.key("b"), as_new_job=True)
    rig.finish(claim, Failed(BROKEN))
    successor = rig.claim_one()
    [holder] = rig.store.enqueue([rig.new(business_key=rig.key("b"), conflict="return")])

    assert holder.row.id == successor.job_id
    rig.finish(successor, Completed())
    assert rig.enqueue(business_key=rig.key("b"))


def test_a_retry_by_hand_takes_the_business_key_again(rig: Rig) -> None:
    job_id = rig.cancel(rig.enqueue(business_key=rig.key("b"))).row.id
    rig.store.retry(job_id, rig.now)

    with raises(KeyConflict, "business_key_taken"):
        rig.enqueue(business_key=rig.key("b"))


def test_a_retry_by_hand_is_refused_where_another_job_has_the_business_key(rig: Rig) -> None:
    job_id = rig.cancel(rig.enqueue(business_key=rig.key("b"))).row.id
    rig.enqueue(business_key=rig.key("b"))
    before = rig.everything()

    with raises(TransitionRefused, "retry_refused"):
        rig.store.retry(job_id, rig.now)
    with raises(TransitionRefused, "retry_refused"):
        rig.store.retry_as_new(job_id, rig.new().id, rig.now)

    assert rig.everything() == before


def test_a_replacement_takes_the_business_key_over(rig: Rig) -> None:
    old = rig.enqueue(business_key=rig.key("b"))
    replacement = rig.new()
    rig.store.supersede(old, replacement, rig.now)
    [holder] = rig.store.enqueue([rig.new(business_key=rig.key("b"), conflict="return")])

    assert holder.row.id == replacement.id
    assert holder.business_key == rig.key("b")


def test_the_end_of_a_superseded_job_leaves_the_key_with_its_replacement(rig: Rig) -> None:
    running = rig.start(business_key=rig.key("b"))
    replacement = rig.new()
    rig.store.supersede(running.job_id, replacement, rig.now)
    rig.finish(running, Cancelled())
    [holder] = rig.store.enqueue([rig.new(business_key=rig.key("b"), conflict="return")])

    assert holder.row.id == replacement.id


def test_a_replacement_may_bring_a_business_key_of_its_own(rig: Rig) -> None:
    old = rig.enqueue(business_key=rig.key("old"))
    rig.store.supersede(old, rig.new(business_key=rig.key("new")), rig.now)

    assert rig.enqueue(business_key=rig.key("old"))
    with raises(KeyConflict, "business_key_taken"):
        rig.enqueue(business_key=rig.key("new"))


def test_a_replacement_whose_key_is_taken_changes_nothing(rig: Rig) -> None:
    rig.enqueue(business_key=rig.key("taken"))
    old = rig.enqueue(business_key=rig.key("old"))
    before = rig.everything()

    with raises(KeyConflict, "business_key_taken"):
        rig.store.supersede(old, rig.new(business_key=rig.key("taken")), rig.now)

    assert rig.everything() == before


def test_one_business_key_twice_in_a_call_is_a_conflict(rig: Rig) -> None:
    before = rig.everything()

    with raises(KeyConflict, "business_key_taken"):
        rig.store.enqueue([rig.new(business_key=rig.key("b")), rig.new(business_key=rig.key("b"))])

    assert rig.everything() == before


def test_the_end_of_a_job_leaves_no_business_key_behind(rig: Rig) -> None:
    rig.enqueue(business_key=rig.key("completed"))
    rig.finish(rig.claim_one(), Completed())
    rig.cancel(rig.enqueue(business_key=rig.key("cancelled")))

    assert rig.key("completed") not in str(rig.tables()["business_key"])
    assert rig.key("cancelled") not in str(rig.tables()["business_key"])


# -- business keys whose job is not live, after a change by hand or a restored backup --------------------------------


def _orphan(rig: Rig, *, gone: bool) -> None:
    """A key held by a job that has ended, or by one that does not exist."""
    holder = f"{rig.kind}-holder"
    job_id = rig.enqueue(business_key=rig.key("b"), kind=holder)
    if gone:
        rig.execute("DELETE FROM {ready} WHERE kind = :kind", kind=holder)
        rig.execute("DELETE FROM {job} WHERE kind = :kind", kind=holder)
        return
    rig.execute("UPDATE {ready} SET business_key = NULL WHERE business_key = :key", key=rig.key("b"))
    rig.cancel(job_id)


@each(False, True)
def test_a_business_key_whose_job_is_not_live_is_taken_over(rig: Rig, gone: bool) -> None:
    _orphan(rig, gone=gone)

    job_id = rig.enqueue(business_key=rig.key("b"))

    [holder] = rig.store.enqueue([rig.new(business_key=rig.key("b"), conflict="return")])
    assert holder.row.id == job_id


@each(False, True)
def test_who_asks_for_the_holder_of_a_business_key_gets_no_job_that_is_not_live(rig: Rig, gone: bool) -> None:
    _orphan(rig, gone=gone)
    new = rig.new(business_key=rig.key("b"), conflict="return")

    [job] = rig.store.enqueue([new])

    assert (job.row.id, job.deduplicated) == (new.id, False)


@each(False, True)
def test_a_retry_by_hand_takes_over_a_business_key_whose_job_is_not_live(rig: Rig, gone: bool) -> None:
    job_id = rig.cancel(rig.enqueue(business_key=rig.key("b"))).row.id
    _orphan(rig, gone=gone)

    rig.store.retry(job_id, rig.now)

    with raises(KeyConflict, "business_key_taken"):
        rig.enqueue(business_key=rig.key("b"))
