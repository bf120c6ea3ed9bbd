"""Jobs that wait for others, without any flow: `after=` and `on=`."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest

from perdure import InvalidOption, Job, Perdure, PerdureError
from perdure.testing import Kit
from tests.flow.kinds import Kinds


def state(app: Perdure, job: Job) -> str:
    return app.existing(job).state.value


def test_a_job_starts_when_the_one_before_has_succeeded(t: Kit, k: Kinds) -> None:
    first = k.note.options(delay=60).enqueue("first")
    k.note.options(after=first).enqueue("second")
    t.drain()
    assert k.done == []

    t.advance(seconds=60)
    t.drain()
    assert k.done == ["first", "second"]


@pytest.mark.parametrize(
    ("kind", "on", "ends"),
    [
        ("note", "success", "completed"),
        ("note", "failure", "skipped"),
        ("note", "end", "completed"),
        ("fail", "success", "skipped"),
        ("fail", "failure", "completed"),
        ("fail", "end", "completed"),
    ],
)
@pytest.mark.parametrize("ended", [False, True])
def test_which_end_is_needed_decides(t: Kit, k: Kinds, kind: str, on: Any, ends: str, ended: bool) -> None:
    """Also of a job that had ended before the other was enqueued: after= an ended job is decided at once."""
    first = getattr(k, kind).enqueue("first")
    if ended:
        t.drain()
    waiting = k.note.options(after=first, on=on).enqueue("second")
    if ended:
        assert state(t.app, waiting) == ("skipped" if ends == "skipped" else "queued")
    t.drain()
    assert state(t.app, waiting) == ends


def test_nothing_stays_blocked_whose_condition_cannot_be_met(t: Kit, k: Kinds) -> None:
    first = k.fail.enqueue()
    jobs = [first]
    for name in "abc":
        jobs.append(k.note.options(after=jobs[-1]).enqueue(name))
    t.drain()
    assert [state(t.app, job) for job in jobs] == ["failed", "skipped", "skipped", "skipped"]
    skipped = t.app.existing(jobs[1])
    assert skipped.error_type == "Unmet"
    assert f"it needs the success of job {first.id}, which failed" in str(skipped.error)


def test_a_job_that_said_there_was_nothing_to_do_has_succeeded(t: Kit, k: Kinds) -> None:
    first = k.stop.enqueue("Skip")
    k.note.options(after=first).enqueue("second")
    t.drain()
    assert k.done == ["second"]


def test_a_list_waits_for_all_and_a_pair_says_it_for_one(t: Kit, k: Kinds) -> None:
    good, bad = k.note.enqueue("good"), k.fail.options(delay=60).enqueue()
    both = k.note.options(after=[good, (bad, "end")]).enqueue("both")
    t.drain()
    assert state(t.app, both) == "blocked"
    t.advance(seconds=60)
    t.drain()
    assert state(t.app, both) == "completed"


def test_ids_say_it_too(t: Kit, k: Kinds) -> None:
    first, second = k.number.enqueue(1), k.number.enqueue(2)
    last = k.note.options(after=[first.id, str(second.id)]).enqueue("last")
    assert state(t.app, last) == "blocked"
    t.drain()
    assert state(t.app, last) == "completed"


def test_after_an_unknown_job_is_refused_and_nothing_is_written(t: Kit, k: Kinds) -> None:
    with pytest.raises(PerdureError) as caught:
        k.note.options(after=uuid4()).enqueue("never")
    assert caught.value.code == "parent_unknown"
    assert list(t.app.jobs()) == []


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"after": 5}, "after_invalid"),
        ({"after": [None]}, "after_invalid"),
        ({"after": "no id"}, "id_invalid"),
        ({"on": "success"}, "on_invalid"),
        ({"after": uuid4(), "on": "sucess"}, "on_invalid"),
        ({"after": (uuid4(), "sucess")}, "on_invalid"),
    ],
)
def test_what_cannot_be_waited_for_is_refused(k: Kinds, options: dict[str, Any], code: str) -> None:
    with pytest.raises(PerdureError) as caught:
        k.note.options(**options)
    assert caught.value.code == code


def test_the_same_job_with_two_different_ends_is_refused(k: Kinds) -> None:
    one = uuid4()
    with pytest.raises(InvalidOption, match="twice"):
        k.note.options(after=[(one, "end"), (one, "failure")])


def test_a_kind_cannot_wait(app: Perdure) -> None:
    with pytest.raises(InvalidOption, match="belongs to a single job"):
        app.job(after=uuid4())(print)


def test_many_can_wait_for_one(t: Kit, k: Kinds) -> None:
    first = k.number.enqueue(1)
    t.app.enqueue_many([k.note.options(after=first).new(f"{n}") for n in range(30)])
    t.drain()
    assert len(k.done) == 30


def test_a_cancelled_job_lets_those_go_on_that_wait_for_any_end(t: Kit, k: Kinds) -> None:
    first = k.number.options(delay=60).enqueue(1)
    on_end = k.note.options(after=first, on="end").enqueue("end")
    on_success = k.note.options(after=first).enqueue("success")
    t.app.cancel(first)
    t.drain()
    assert [state(t.app, job) for job in (on_end, on_success)] == ["completed", "skipped"]


def test_explain_says_what_a_job_waits_for_and_of_how_many(t: Kit, k: Kinds) -> None:
    first, second = k.number.enqueue(1), k.number.options(delay=60).enqueue(2)
    waiting = k.note.options(after=[first, second]).enqueue("x")
    t.drain()
    told = t.app.explain(waiting)
    assert told.why == f"it waits for 1 of 2: number {second.id.hex[-8:]}"
    assert told.next == "It is queued when it has ended as it needs, and skipped if not"
    assert ("waits for", f"number {second.id} (scheduled): its success") in told.facts


def test_explain_says_why_a_job_was_skipped(t: Kit, k: Kinds) -> None:
    first = k.fail.enqueue()
    waiting = k.note.options(after=first).enqueue("x")
    t.drain()
    assert t.app.explain(waiting).why == f"it was skipped: it needs the success of job {first.id}, which failed"
