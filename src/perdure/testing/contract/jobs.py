"""Jobs are created, edited before their first claim, and deleted. Protocol `JobOperations`."""

from __future__ import annotations

import asyncio
import json
from typing import cast

from perdure.errors import JobNotFound, KeyConflict, TransitionRefused
from perdure.ids import JobId
from perdure.job.model import NewJob
from perdure.job.reports import Completed, Failed
from perdure.job.states import FINAL, LIVE, TRANSITIONS, State, Verb
from perdure.store.rows import Edit, JobFilter, LogLine
from perdure.testing.contract.case import each, raises
from perdure.testing.contract.rig import BROKEN, Rig, Wish
from perdure.testing.contract.states import in_state

NASTY = ("", "\0", "\u202eright to left", "'; DROP TABLE x; --\"", "line\nbreak\ttab", "\U0001f680", "x" * 100_000)


# -- enqueue ---------------------------------------------------------------------------------------------------------


def test_an_enqueued_job_is_there_as_it_was_given(rig: Rig) -> None:
    new = rig.new(params='{"p":1}', principal="ann", owner="shop", priority=4, timeout_ms=500, secrets='{"s":"x"}')
    rig.store.enqueue([new])

    live = rig.live(new.id)
    assert rig.row(new.id) == rig.cold(new)
    assert live._replace(position=0) == rig.hot(new)


@each(
    {},
    {"params": '{"p":1}'},
    {"principal": "ann"},
    {"timeout_ms": 500},
    {"secrets": '{"s":"x"}'},
    {"business_key": "b"},
    {"idempotency_key": "i"},
    {"delay_s": 60.0},
    {"priority": 4, "max_attempts": 7, "as_new_job": True},
)
def test_a_job_with_a_limit_and_little_else_is_there_as_it_was_given(rig: Rig, wish: Wish) -> None:
    """A store may write such jobs in fewer columns, but none of them may be lost."""
    for numbers in ([0], [1, 2]):
        new = [_without_options(rig, wish, number) for number in numbers]
        rig.store.enqueue(new)

        assert [rig.row(job.id) for job in new] == [rig.cold(job) for job in new]
        assert [rig.live(job.id)._replace(position=0) for job in new] == [rig.hot(job) for job in new]


def _without_options(rig: Rig, wish: Wish, number: int) -> NewJob:
    own = cast(
        "Wish", {name: rig.key(f"{name}{number}") for name in ("business_key", "idempotency_key") if name in wish}
    )
    wish = {**wish, **own, "limit_key": f"{rig.key('api')}*1"}
    new = rig.new(**wish)
    return new._replace(plan=new.plan._replace(options=None))


def test_enqueue_returns_the_job_as_the_database_has_it(rig: Rig) -> None:
    [answer] = rig.store.enqueue([rig.new(tags=("b", "a"), priority=2, delay_s=9, params='{"p":1}')])

    assert answer == rig.store.get(answer.row.id)
    assert not answer.deduplicated


def test_a_view_of_a_job_holds_no_secrets(rig: Rig) -> None:
    job_id = rig.enqueue(secrets='{"password":"hunter2"}')

    assert "hunter2" not in repr(tuple(rig.job(job_id).row))


@each(*NASTY)
def test_legal_but_nasty_text_comes_back_as_it_was(rig: Rig, text: str) -> None:
    payload = json.dumps({"text": text}, ensure_ascii=False)
    job_id = rig.enqueue(payload=payload, secrets=payload, params=payload)

    row, [claim] = rig.row(job_id), rig.claim()
    assert (row.payload, row.secrets, row.params) == (payload, payload, payload)
    assert (claim.payload, claim.secrets, claim.params) == (payload, payload, payload)


@each("'", '"', "%s", "?1", ":queue", "{job}", "Ünï🚀", " spaced ", "q" * 128)
def test_any_legal_name_can_be_a_queue_a_kind_a_key_or_a_tag(rig: Rig, name: str) -> None:
    named = rig.key(name)
    job_id = rig.enqueue(queue=named, kind=named, business_key=named, idempotency_key=named, tags=(named,))

    [claim] = rig.claim(queue=named, kinds={named: 1})
    job = rig.job(job_id)
    assert claim.job_id == job_id
    assert (job.queue, job.kind, job.business_key, job.idempotency_key, job.tags) == (*[named] * 4, (named,))


def test_jobs_enqueued_together_have_a_place_each(rig: Rig) -> None:
    positions = [rig.job(job_id).position for job_id in rig.enqueue_many(5)]

    assert positions == sorted(set(positions))


def test_jobs_enqueued_together_stand_in_the_order_given(rig: Rig) -> None:
    together = rig.enqueue_many(5)

    assert rig.in_order() == together


def test_a_new_job_stands_behind_those_already_there(rig: Rig) -> None:
    first = rig.enqueue_many(3)
    second = rig.enqueue_many(2)
    third = rig.enqueue()

    assert rig.in_order() == [*first, *second, third]


def test_jobs_of_several_queues_in_one_call_go_to_the_back_of_their_own(rig: Rig) -> None:
    left, right = rig.key("left"), rig.key("right")
    new = [rig.new(queue=queue) for queue in (left, right, left, right)]
    ids = [job.row.id for job in rig.store.enqueue(new)]

    assert rig.in_order(left) == ids[0::2]
    assert rig.in_order(right) == ids[1::2]


def test_enqueueing_nothing_returns_nothing(rig: Rig) -> None:
    assert rig.store.enqueue([]) == []


def test_a_delayed_job_waits_as_scheduled(rig: Rig) -> None:
    assert rig.job(rig.enqueue(delay_s=0.000001)).state == State.SCHEDULED


def test_a_job_that_needs_a_permit_waits_as_held(rig: Rig) -> None:
    assert rig.job(rig.enqueue(limit_key="printer")).state == State.HELD


def test_a_conflict_among_several_jobs_writes_none_of_them(rig: Rig) -> None:
    rig.enqueue(business_key=rig.key("taken"))
    others = [rig.new(), rig.new(business_key=rig.key("free")), rig.new(business_key=rig.key("taken")), rig.new()]

    with raises(KeyConflict, "business_key_taken"):
        rig.store.enqueue(others)

    assert [rig.store.get(new.id) for new in others] == [None] * 4
    assert rig.enqueue(business_key=rig.key("free"))


def test_coroutines_enqueue_side_by_side(rig: Rig) -> None:
    new = [rig.new() for _ in range(20)]

    async def all_at_once() -> list[JobId]:
        answers = await asyncio.gather(*(rig.store.aenqueue([job]) for job in new))
        return [answer[0].row.id for answer in answers]

    assert asyncio.run(all_at_once()) == [job.id for job in new]
    assert set(rig.in_order()) == {job.id for job in new}


def test_a_coroutine_gets_the_conflict_it_caused(rig: Rig) -> None:
    rig.enqueue(business_key=rig.key("taken"))

    async def conflicting() -> None:
        await rig.store.aenqueue([rig.new(business_key=rig.key("taken"))])

    with raises(KeyConflict, "business_key_taken"):
        asyncio.run(conflicting())


# -- edit ------------------------------------------------------------------------------------------------------------


def _edited(rig: Rig, job_id: JobId, *, queue: str | None = None) -> Edit:
    """An edit with another payload, params, principal and tag, and another queue if one is given."""
    row = rig.row(job_id)
    live = rig.store.live(job_id) or rig.hot(rig.new())._replace(job_id=job_id)
    row = row._replace(payload='{"n":2}', params='{"p":2}', principal="bob", queue=queue or row.queue)
    live = live._replace(queue=queue or live.queue, version=live.version + 1, updated_at=rig.now)
    return Edit(row, live, ("edited",))


def test_an_edit_changes_a_job_that_was_never_claimed(rig: Rig) -> None:
    job_id = rig.enqueue(tags=("old",))
    before = rig.job(job_id)

    answer = rig.store.edit(_edited(rig, job_id), before.version)

    assert answer == rig.job(job_id)
    assert (answer.payload, answer.params, answer.principal, answer.tags) == ({"n": 2}, {"p": 2}, "bob", ("edited",))
    assert answer.version > before.version


def test_an_edit_keeps_the_place(rig: Rig) -> None:
    first, second, third = rig.enqueue_many(3)
    rig.store.edit(_edited(rig, second), rig.job(second).version)

    assert rig.in_order() == [first, second, third]


def test_a_job_edited_into_another_queue_goes_to_its_back(rig: Rig) -> None:
    job_id = rig.enqueue()
    other = rig.key("other")
    there = rig.enqueue_many(3, queue=other)

    rig.store.edit(_edited(rig, job_id, queue=other), rig.job(job_id).version)
    last = rig.enqueue(queue=other)

    assert rig.in_order(other) == [*there, job_id, last]
    assert rig.in_order() == []


def test_a_queue_first_used_by_an_edit_is_listed(rig: Rig) -> None:
    job_id = rig.enqueue()
    rig.store.edit(_edited(rig, job_id, queue=rig.key("unused")), rig.job(job_id).version)

    assert rig.key("unused") in [queue.name for queue in rig.store.queues()]


@each(*sorted(TRANSITIONS[Verb.EDIT].sources))
def test_a_job_can_be_edited_while_it_waits(rig: Rig, state: State) -> None:
    job_id = in_state(rig, state)

    rig.store.edit(_edited(rig, job_id), rig.job(job_id).version)

    assert (rig.job(job_id).state, rig.job(job_id).payload) == (state, {"n": 2})


@each(*sorted(set(State) - TRANSITIONS[Verb.EDIT].sources))
def test_a_job_that_does_not_wait_cannot_be_edited(rig: Rig, state: State) -> None:
    job_id = in_state(rig, state)
    before = rig.everything()

    with raises(TransitionRefused, "edit_refused"):
        rig.store.edit(_edited(rig, job_id), rig.job(job_id).version)

    assert rig.everything() == before


def test_a_job_that_was_claimed_before_cannot_be_edited(rig: Rig) -> None:
    claim = rig.start()
    rig.finish(claim, Failed(BROKEN))
    before = rig.everything()

    with raises(TransitionRefused, "edit_refused"):
        rig.store.edit(_edited(rig, claim.job_id), rig.job(claim.job_id).version)

    assert rig.everything() == before


def test_a_job_in_a_later_life_cannot_be_edited(rig: Rig) -> None:
    job_id = rig.enqueue()
    rig.cancel(job_id)
    rig.store.retry(job_id, rig.now)
    before = rig.everything()

    with raises(TransitionRefused, "edit_refused"):
        rig.store.edit(_edited(rig, job_id), rig.job(job_id).version)

    assert rig.everything() == before


def test_an_edit_of_an_outdated_version_is_refused(rig: Rig) -> None:
    job_id = rig.enqueue()
    seen = rig.job(job_id).version
    rig.resume(rig.pause(job_id).row.id)
    before = rig.everything()

    with raises(TransitionRefused, "version_changed"):
        rig.store.edit(_edited(rig, job_id), seen)

    assert rig.everything() == before


# -- delete ----------------------------------------------------------------------------------------------------------


def test_a_deleted_job_is_returned_as_it_was_and_gone_with_all_that_belonged_to_it(rig: Rig) -> None:
    claim = rig.start(tags=("t",))
    rig.store.append_log([LogLine(claim.run_id, 1, claim.job_id, rig.now, "INFO", "hello")])
    rig.finish(claim, Completed("1"))
    before = rig.job(claim.job_id)

    assert rig.store.delete(claim.job_id) == before

    assert rig.store.get(claim.job_id) is None
    assert rig.store.row(claim.job_id) is None
    assert rig.runs(claim.job_id) == []
    assert rig.store.log(claim.job_id, None, 10) == []
    assert claim.job_id not in rig.jobs(JobFilter(tag="t"))


def test_nothing_of_a_deleted_job_is_left_in_any_table(rig: Rig) -> None:
    before = rig.tables()
    claim = rig.start(tags=("t",), business_key=rig.key("b"), params="{}")
    rig.finish(claim, Failed(BROKEN))
    rig.finish(rig.claim_one(), Completed("1"))

    rig.store.delete(claim.job_id)

    after = rig.tables()
    assert {name for name in after if after[name] != before[name]} == {"queue", "node"}


@each(*sorted(FINAL))
def test_an_ended_job_can_be_deleted(rig: Rig, state: State) -> None:
    job_id = in_state(rig, state)

    assert rig.store.delete(job_id).state == state
    assert rig.store.get(job_id) is None


@each(*sorted(LIVE))
def test_a_live_job_cannot_be_deleted(rig: Rig, state: State) -> None:
    job_id = in_state(rig, state)
    before = rig.everything()

    with raises(TransitionRefused, "delete_refused"):
        rig.store.delete(job_id)

    assert rig.everything() == before


def test_deleting_a_job_that_is_not_there_says_so(rig: Rig) -> None:
    with raises(JobNotFound):
        rig.store.delete(JobId(rig.ids.new()))


def test_editing_a_job_that_is_not_there_says_so(rig: Rig) -> None:
    new = rig.new()

    with raises(JobNotFound):
        rig.store.edit(Edit(rig.cold(new), rig.hot(new), ()), 1)
