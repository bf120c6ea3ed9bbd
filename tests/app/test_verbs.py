"""The verbs on one job and on many: what each answers, what a repeat does, what is impossible."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from perdure import (
    InvalidInput,
    InvalidOption,
    JobNotFound,
    KeyConflict,
    LockNotHeld,
    Perdure,
    State,
    TransitionRefused,
)
from perdure.clock import ManualClock
from tests.app import by_hand
from tests.app.contents import contents

# -- cancel, pause, resume -------------------------------------------------------------------------------------------


def test_cancelling_a_waiting_job_ends_it(app: Perdure, send: Any) -> None:
    job = app.cancel(send.enqueue("a"))
    assert (job.state, job.is_final, job.finished_at is not None) == (State.CANCELLED, True, True)
    assert app.cancel(job) == job


def test_cancelling_a_running_job_asks_it_to_stop(app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    by_hand.claim(app)
    asked = app.cancel(job)
    assert (asked.state, asked.cancel_requested) == (State.RUNNING, True)
    assert app.cancel(job) == asked


@pytest.mark.parametrize(
    "options",
    [{}, {"idempotency_key": "k"}, {"business_key": "b"}, {"tags": ["t"]}, {"params": {"p": 1}}, {"delay": 60}],
    ids=str,
)
def test_readings_of_a_job_are_equal_while_nothing_has_changed(
    app: Perdure, send: Any, options: dict[str, Any]
) -> None:
    job = send.options(**options).enqueue("a")
    assert app.get(job.id) == job
    assert app.pause(job) != job


def test_pausing_sets_aside_until_resumed(app: Perdure, send: Any) -> None:
    job = app.pause(send.enqueue("a"))
    assert job.state == State.PAUSED
    assert by_hand.claim(app) == []
    assert app.pause(job) == job
    assert app.resume(job).state == State.QUEUED
    assert len(by_hand.claim(app)) == 1


NEED_A_LIVE_JOB: dict[str, dict[str, Any]] = {
    "pause": {},
    "resume": {},
    "edit": {"queue": "x"},
    "move": {"to": "front"},
    "set_priority": {"priority": 1},
}


@pytest.mark.parametrize("verb", NEED_A_LIVE_JOB)
def test_what_needs_a_live_job_is_refused_on_an_ended_one(verb: str, app: Perdure, send: Any, path: Path) -> None:
    job = app.cancel(send.enqueue("a"))
    before = contents(path)
    with pytest.raises(TransitionRefused) as raised:
        getattr(app, verb)(job, **NEED_A_LIVE_JOB[verb])
    assert raised.value.code == f"{verb}_refused"
    assert contents(path) == before


def test_an_expected_version_guards_a_verb(app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    paused = app.pause(job, expect_version=job.version)
    with pytest.raises(TransitionRefused) as raised:
        app.cancel(job, expect_version=job.version)
    assert raised.value.code == "version_changed"
    assert app.get(job) == paused


# -- retry -----------------------------------------------------------------------------------------------------------


def test_a_retry_opens_a_new_life(app: Perdure, send: Any) -> None:
    job = send.options(business_key="b", tags=["x"], retry=1).enqueue("a")
    by_hand.fail(app)
    again = app.retry(job)
    assert (again.id, again.state, again.life, again.attempts) == (job.id, State.QUEUED, 2, 0)
    assert (again.business_key, again.tags, again.error) == ("b", ("x",), None)
    assert len(list(app.runs(job))) == 1
    assert app.retry(job) == again


def test_a_retry_as_new_is_another_job(app: Perdure, send: Any) -> None:
    job = send.options(business_key="b", tags=["x"], params={"p": 1}, priority=3).enqueue("a")
    by_hand.complete(app)
    new = app.retry(job, as_new=True)
    assert (new.id != job.id, new.retry_of, new.state) == (True, job.id, State.QUEUED)
    assert (new.payload, new.tags, new.params, new.priority) == ({"to": "a"}, ("x",), {"p": 1}, 3)
    assert app.existing(job).state == State.COMPLETED


def test_a_completed_job_is_not_retried_in_place(app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    by_hand.complete(app)
    with pytest.raises(TransitionRefused, match="as_new=True"):
        app.retry(job)


def test_a_retry_whose_business_key_is_taken_is_refused(app: Perdure, send: Any) -> None:
    keyed = send.options(business_key="b")
    job = app.cancel(keyed.enqueue("a"))
    keyed.enqueue("b")
    for as_new in (False, True):
        with pytest.raises(TransitionRefused, match="business key"):
            app.retry(job, as_new=as_new)


# -- order -----------------------------------------------------------------------------------------------------------


def order(app: Perdure) -> str:
    return "".join(str((job.payload or {})["to"]) for job in app.jobs(state="queued", queue="default"))


def test_jobs_are_moved_within_their_priority(app: Perdure, send: Any) -> None:
    a, b, c = send.enqueue_many([{"to": name} for name in "abc"])
    app.move(c, to="front")
    assert order(app) == "cab"
    app.move(c, after=a)
    assert order(app) == "acb"
    app.move(b, before=a)
    assert order(app) == "bac"
    app.move(b, to="back")
    assert order(app) == "acb"


def test_a_higher_priority_comes_first(app: Perdure, send: Any) -> None:
    _, b, c = send.enqueue_many([{"to": name} for name in "abc"])
    assert app.set_priority(c, 5).priority == 5
    app.set_priority(b, -5)
    assert order(app) == "cab"


# -- supersede, edit, delete -----------------------------------------------------------------------------------------


def test_a_waiting_job_is_superseded_at_once(app: Perdure, send: Any) -> None:
    job = send.options(business_key="b").enqueue("a")
    old = app.supersede(job, send.new("b"))
    assert old.superseded_by is not None
    new = app.existing(old.superseded_by)
    assert (old.state, new.state, new.payload) == (State.CANCELLED, State.QUEUED, {"to": "b"})
    assert new.business_key == "b"
    assert app.supersede(job, send.new("c")) == old


def test_a_running_job_is_superseded_when_it_ends(app: Perdure, send: Any) -> None:
    job = send.options(business_key="b").enqueue("a")
    claims = by_hand.claim(app)
    old = app.supersede(job, send.new("b"))
    assert old.superseded_by is not None
    assert (old.state, old.cancel_requested, app.existing(old.superseded_by).state) == ("running", True, "blocked")
    by_hand.finish(app, claims, by_hand.Completed())
    assert app.existing(old.superseded_by).state == State.QUEUED


def test_a_job_that_nobody_claimed_can_be_edited(app: Perdure, send: Any) -> None:
    job = send.options(tags=["x"], params={"a": 1}).enqueue("a")
    edited = app.edit(job, payload={"to": "b"}, tags=["y"], params={"b": 2}, queue="mail", principal="ada", delay=60)
    assert (edited.payload, edited.tags, edited.params) == ({"to": "b"}, ("y",), {"b": 2})
    assert (edited.queue, edited.principal, edited.state) == ("mail", "ada", State.SCHEDULED)
    assert app.edit(job) == edited == app.get(job)


def test_an_edit_keeps_what_it_does_not_name(app: Perdure, send: Any) -> None:
    job = send.options(tags=["x"], params={"a": 1}, principal="ada", delay=60, timeout=5).enqueue("a")
    edited = app.edit(job, queue="mail")
    assert (edited.payload, edited.tags, edited.params, edited.principal) == (
        {"to": "a"},
        ("x",),
        {"a": 1},
        "ada",
    )
    assert edited.run_at == job.run_at


def test_an_edited_time_out_outlives_a_retry(app: Perdure, send: Any) -> None:
    job = app.edit(send.options(timeout=5, retry=7).enqueue("a"), timeout=9)
    app.retry(app.cancel(job))
    live = app.store.live(job.row.id)
    assert live is not None
    assert (live.timeout_ms, live.max_attempts) == (9_000, 7)


def test_a_job_that_was_claimed_cannot_be_edited(app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    by_hand.finish(app, by_hand.claim(app), by_hand.Released())
    with pytest.raises(TransitionRefused) as raised:
        app.edit(job, payload={"to": "b"})
    assert raised.value.code == "edit_refused"


def test_an_ended_job_is_deleted_with_all_that_hangs_on_it(app: Perdure, send: Any, path: Path) -> None:
    job = send.options(tags=["x"]).enqueue("a")
    by_hand.complete(app)
    gone = app.delete(job)
    assert (gone.id, gone.state, app.get(job)) == (job.id, State.COMPLETED, None)
    left = contents(path)
    for table in ("job", "ready", "run", "outcome", "tag", "job_log"):
        assert left[f"perdure_{table}"] == []
    with pytest.raises(JobNotFound):
        app.delete(job)


def test_the_idempotency_key_of_a_deleted_job_stays_taken(app: Perdure, send: Any) -> None:
    keyed = send.options(idempotency_key="k")
    job = keyed.enqueue("a")
    by_hand.complete(app)
    app.delete(job)
    again = keyed.enqueue("a")
    assert (again.id, again.deduplicated, again.state, again.payload) == (job.id, True, State.COMPLETED, None)
    with pytest.raises(KeyConflict):
        keyed.enqueue("b")


# -- many at once ----------------------------------------------------------------------------------------------------


def test_bulk_verbs_take_filters_and_a_limit(app: Perdure, send: Any) -> None:
    send.enqueue_many([{"to": str(n)} for n in range(10)])
    send.options(queue="mail", tags=["x"]).enqueue_many([{"to": str(n)} for n in range(10)])
    assert app.pause_all(queue="mail", limit=4) == 4
    assert app.pause_all(tag="x") == 6
    assert app.pause_all(queue="mail") == 0
    assert app.resume_all(limit=3) == 3
    assert app.cancel_all(queue="mail") == 10
    assert app.retry_all() == 0
    assert app.retry_all(state="cancelled", limit=2) == 2
    assert len(list(app.jobs(state="cancelled"))) == 8
    assert len(list(app.jobs(state="queued"))) == 12


@pytest.mark.parametrize("verb", ["cancel_all", "pause_all", "resume_all", "retry_all"])
def test_a_filter_that_was_forgotten_is_named_and_nothing_is_touched(app: Perdure, send: Any, verb: str) -> None:
    waiting, paused = send.enqueue(to="a"), app.pause(send.enqueue(to="b"))

    with pytest.raises(
        InvalidOption, match=rf"{verb} was given kind=None and since=None, .* leave kind= and"
    ) as caught:
        getattr(app, verb)(kind=None, queue="default", since=None)

    assert caught.value.code == "filter_none"
    assert [app.existing(job).version for job in (waiting, paused)] == [waiting.version, paused.version]


def test_in_a_listing_none_means_any(app: Perdure, send: Any) -> None:
    job = send.enqueue(to="a")

    assert [found.id for found in app.jobs(kind=None, queue=None, state=None, since=None)] == [job.id]


def test_failed_jobs_are_retried_together(app: Perdure, send: Any) -> None:
    send.options(retry=1).enqueue_many([{"to": str(n)} for n in range(7)])
    by_hand.fail(app)
    assert app.retry_all(kind="send", limit=5) == 5
    assert app.retry_all() == 2
    assert app.retry_all() == 0


def test_cancel_all_asks_running_jobs_once(app: Perdure, send: Any) -> None:
    send.enqueue_many([{"to": str(n)} for n in range(3)])
    by_hand.claim(app, room=2)
    assert app.cancel_all() == 3
    assert app.cancel_all() == 0


def test_a_bulk_verb_goes_on_beyond_one_page(app: Perdure, send: Any) -> None:
    send.enqueue_many([{"to": str(n)} for n in range(1_100)])
    assert app.cancel_all(limit=700) == 700
    assert app.cancel_all() == 400


# -- queues and locks ------------------------------------------------------------------------------------------------


def test_a_paused_queue_gives_out_nothing(app: Perdure, send: Any) -> None:
    send.enqueue("a")
    app.queues.pause("default")
    (queue,) = app.queues.list()
    assert (queue.name, queue.paused, queue.queued, queue.running, queue.live) == ("default", True, 1, 0, 1)
    app.queues.pause("default")
    assert app.queues.list() == [queue]
    assert by_hand.claim(app) == []
    app.queues.resume("default")
    assert len(by_hand.claim(app)) == 1
    assert not app.queues.list()[0].paused


def test_pausing_everything_pauses_every_queue(app: Perdure, send: Any) -> None:
    send.enqueue("a")
    app.queues.pause("*")
    assert by_hand.claim(app) == []
    app.queues.resume("*")
    assert len(by_hand.claim(app)) == 1


def test_a_lock_has_one_holder(app: Perdure) -> None:
    mine, theirs = app.lock("report", ttl=60), app.lock("report", ttl=60)
    with mine:
        assert (mine.held, theirs.held, theirs.acquire()) == (True, False, False)
        assert (mine.renew(), theirs.renew(), theirs.release()) == (True, False, False)
        with pytest.raises(LockNotHeld), theirs:
            pass
    assert (mine.held, mine.release(), theirs.acquire()) == (False, False, True)


def test_a_lock_that_ran_out_can_be_taken(path: Path) -> None:
    clock = ManualClock(datetime(2030, 1, 1, tzinfo=UTC))
    app = Perdure(path, clock=clock)
    mine, theirs = app.lock("report", ttl=60), app.lock("report", ttl=60)
    assert mine.acquire()
    clock.advance(seconds=60)
    assert (mine.held, mine.renew(), theirs.acquire(), mine.release()) == (False, False, True, False)
    app.close()


# -- which job is meant ----------------------------------------------------------------------------------------------

VERBS: dict[str, Callable[[Any, Any, Any], object]] = {
    "cancel": lambda app, _, job: app.cancel(job),
    "pause": lambda app, _, job: app.pause(job),
    "resume": lambda app, _, job: app.resume(job),
    "retry": lambda app, _, job: app.retry(job),
    "retry as new": lambda app, _, job: app.retry(job, as_new=True),
    "move": lambda app, _, job: app.move(job, to="front"),
    "move before": lambda app, send, job: app.move(send.enqueue("a"), before=job),
    "set_priority": lambda app, _, job: app.set_priority(job, 1),
    "supersede": lambda app, send, job: app.supersede(job, send.new("a")),
    "edit": lambda app, _, job: app.edit(job, queue="q"),
    "delete": lambda app, _, job: app.delete(job),
    "explain": lambda app, _, job: app.explain(job),
    "wait": lambda app, _, job: app.wait(job, 0),
    "wait of a kind": lambda _, send, job: send.wait(job, 0),
    "templates.of": lambda app, _, job: app.templates.of(job),
}
LOOKS: dict[str, tuple[Callable[[Any, Any], object], object]] = {
    "get": (lambda app, job: app.get(job), None),
    "archived": (lambda app, job: app.archived(job), None),
    "runs": (lambda app, job: list(app.runs(job)), []),
    "logs": (lambda app, job: list(app.logs(job)), []),
}


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_refuses_an_id_that_no_job_has(app: Perdure, send: Any, verb: str) -> None:
    with pytest.raises(JobNotFound, match="there is no job 00000000-0000-0000-0000-000000000000"):
        VERBS[verb](app, send, "0" * 32)


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_at_an_id_that_no_job_has_finds_nothing(app: Perdure, look: str) -> None:
    call, nothing = LOOKS[look]
    assert call(app, "0" * 32) == nothing


@pytest.mark.parametrize("wrong", ["abc", "", "0" * 31, "0" * 33, 5, b"abc"])
@pytest.mark.parametrize("verb", [*VERBS, *LOOKS])
def test_what_is_no_id_is_refused_by_all(app: Perdure, send: Any, verb: str, wrong: Any) -> None:
    with pytest.raises(InvalidInput, match="is not an id") as raised:
        LOOKS[verb][0](app, wrong) if verb in LOOKS else VERBS[verb](app, send, wrong)
    assert (type(raised.value), raised.value.code) == (InvalidInput, "id_invalid")
