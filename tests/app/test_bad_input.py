"""Bad input: each case has its own error with a stable code and a sentence that says what to do; nothing is written."""

from __future__ import annotations

import math
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args, get_origin, get_type_hints
from uuid import UUID

import pytest

from perdure import (
    InvalidInput,
    InvalidOption,
    InvalidPayload,
    Job,
    JobNotFound,
    KeyConflict,
    KindError,
    LockNotHeld,
    Perdure,
    PerdureError,
    Retry,
    TransactionError,
    TransitionRefused,
    Unique,
    WaitTimeout,
)
from perdure.errors import shown
from perdure.kind import Declaration
from perdure.options import OptionFields
from perdure.worker.options import WorkerFields
from tests.app.contents import contents


class World(NamedTuple):
    """What a case finds: an app with two kinds and two live jobs, the second with keys. Untyped: to be misused."""

    app: Any
    send: Any
    put: Any
    job: Job
    keyed: Job
    unique: Any = Unique


@pytest.fixture
def world(app: Perdure, send: Any) -> World:
    @app.job
    def put(value: Any) -> None: ...

    job = send.enqueue("a")
    keyed = send.options(business_key="b", idempotency_key="k").enqueue("b")
    return World(app, send, put, job, keyed)


Case = tuple[Callable[[World], object], type[PerdureError], str]

ARGUMENTS: dict[str, Case] = {
    "unknown kind": (lambda w: w.app.enqueue("sned"), KindError, "kind_unknown"),
    "kind that is no text": (lambda w: w.app.enqueue(["send"]), KindError, "kind_unknown"),
    "unknown argument": (lambda w: w.send.enqueue("a", colour="red"), InvalidPayload, "payload_invalid"),
    "misspelt argument": (lambda w: w.send.enqueue(too="a"), InvalidPayload, "payload_invalid"),
    "missing argument": (lambda w: w.send.enqueue(), InvalidPayload, "payload_invalid"),
    "too many arguments": (lambda w: w.send.enqueue("a", "b", "c"), InvalidPayload, "payload_invalid"),
    "argument given twice": (lambda w: w.send.enqueue("a", to="b"), InvalidPayload, "payload_invalid"),
    "argument of another type": (lambda w: w.send.enqueue(to=5), InvalidPayload, "payload_invalid"),
    "arguments as a list": (lambda w: w.app.enqueue("send", ["a"]), InvalidPayload, "payload_invalid"),
    "argument without a name": (lambda w: w.app.enqueue("send", {1: "a"}), InvalidPayload, "payload_invalid"),
    "not a number": (lambda w: w.put.enqueue(math.nan), InvalidPayload, "payload_not_json"),
    "infinity inside": (lambda w: w.put.enqueue({"x": [1, math.inf]}), InvalidPayload, "payload_not_json"),
    "bytes": (lambda w: w.put.enqueue(b"\xff"), InvalidPayload, "payload_not_json"),
    "bytes inside": (lambda w: w.put.enqueue([{"x": b"\xff"}]), InvalidPayload, "payload_not_json"),
    "object": (lambda w: w.put.enqueue(object()), InvalidPayload, "payload_not_json"),
    "half a surrogate pair": (lambda w: w.put.enqueue("\ud800"), InvalidPayload, "payload_not_json"),
    "two MiB": (lambda w: w.send.enqueue("x" * 2 * 1024**2), InvalidPayload, "payload_too_large"),
    "no mapping among many": (lambda w: w.send.enqueue_many(["a"]), InvalidPayload, "payload_invalid"),
    "one bad of many": (lambda w: w.send.enqueue_many([{"to": "a"}, {"to": 5}]), InvalidPayload, "payload_invalid"),
    "no list of many": (lambda w: w.send.enqueue_many(5), InvalidInput, "input_invalid"),
    "no draft": (lambda w: w.app.enqueue_many([{"to": "a"}]), InvalidInput, "draft_invalid"),
    "no list of drafts": (lambda w: w.app.enqueue_many(5), InvalidInput, "input_invalid"),
    "bad draft after a good one": (
        lambda w: w.app.enqueue_many([w.send.new("a"), w.put.new(math.nan)]),
        InvalidPayload,
        "payload_not_json",
    ),
}


def option(code: str, **given: Any) -> Case:
    return lambda w: w.send.options(**given).enqueue("a"), InvalidOption, code


OPTIONS: dict[str, Case] = {
    "unknown option": option("option_unknown", prio=1),
    "empty queue": option("name_empty", queue=""),
    "blank queue": option("name_empty", queue=" \t"),
    "overlong queue": option("name_too_long", queue="q" * 129),
    "queue with NUL": option("name_invalid", queue="q\0"),
    "queue that is no text": option("name_invalid", queue=5),
    "no queue": option("name_invalid", queue=None),
    "every queue": option("name_invalid", queue="*"),
    "queue that would be an option": option("name_invalid", queue="-q"),
    "empty idempotency key": option("name_empty", idempotency_key=""),
    "overlong idempotency key": option("name_too_long", idempotency_key="k" * 256),
    "empty business key": option("name_empty", business_key=""),
    "overlong business key": option("name_too_long", business_key="k" * 256),
    "half a surrogate in a key": option("name_invalid", business_key="\ud800"),
    "empty tag": option("name_empty", tags=[""]),
    "overlong tag": option("name_too_long", tags=["ok", "t" * 129]),
    "tag that is no text": option("name_invalid", tags=[5]),
    "one tag without a list": option("tags_invalid", tags="urgent"),
    "tags that are no list": option("tags_invalid", tags=5),
    "tag with a unit separator": option("tags_invalid", tags=["a\x1fb"]),
    "empty principal": option("name_empty", principal=""),
    "overlong principal": option("name_too_long", principal="p" * 256),
    "negative delay": option("delay_invalid", delay=-1),
    "delay that is no number": option("delay_invalid", delay=math.nan),
    "delay as text": option("delay_invalid", delay="5"),
    "endless delay": option("delay_invalid", delay=timedelta.max),
    "naive datetime": option("naive_datetime", run_at=datetime(2030, 1, 1)),
    "date": option("run_at_invalid", run_at=date(2030, 1, 1)),
    "time as text": option("run_at_invalid", run_at="2030-01-01T00:00:00Z"),
    "delay and time": option("option_invalid", delay=1, run_at=datetime(2030, 1, 1, tzinfo=UTC)),
    "priority as text": option("priority_invalid", priority="high"),
    "priority as a truth": option("priority_invalid", priority=True),
    "priority beyond the column": option("priority_invalid", priority=2**31),
    "unknown conflict": option("conflict_invalid", conflict="ignore"),
    "params that are no mapping": option("params_not_json", params=5),
    "params with NaN": option("params_not_json", params={"x": math.nan}),
    "params with bytes": option("params_not_json", params={"x": b""}),
    "params of 2 MiB": option("params_too_large", params={"x": "x" * 2 * 1024**2}),
    "no attempt": option("retry_invalid", retry=0),
    "retry as text": option("retry_invalid", retry="always"),
    "negative time-out": option("timeout_invalid", timeout=-1),
    "unique as text": option("unique_invalid", unique="payload"),
    "unique by nothing known": option("unique_invalid", unique=Unique(by="colour")),
    "transaction of no kind": (lambda w: w.send.options(tx=5).enqueue("a"), TransactionError, "tx_unknown_type"),
    "two transactions for one call": (
        lambda w: w.app.enqueue_many([w.send.options(tx=5).new("a"), w.send.options(tx=6).new("b")]),
        InvalidOption,
        "tx_mixed",
    ),
    "unique for how long": (lambda w: w.unique(until="monday"), InvalidOption, "unique_invalid"),
    "unique by a number": (lambda w: w.unique(by=5), InvalidOption, "unique_invalid"),
    "unique by numbers": (lambda w: w.unique(by=[5]), InvalidOption, "unique_invalid"),
    "other arguments under a key": (
        lambda w: w.send.options(idempotency_key="k").enqueue("other"),
        KeyConflict,
        "idempotency_mismatch",
    ),
    "business key of a live job": (
        lambda w: w.send.options(business_key="b").enqueue("b"),
        KeyConflict,
        "business_key_taken",
    ),
}

NOBODY = UUID(int=7)

VERBS: dict[str, Case] = {
    "id that is none": (lambda w: w.app.get("nope"), InvalidInput, "id_invalid"),
    "id that is only the end of one": (lambda w: w.app.get(str(w.job.id)[-8:]), InvalidInput, "id_invalid"),
    "result by id": (lambda w: w.send.result(w.job.id), InvalidInput, "job_invalid"),
    "id as a number": (lambda w: w.app.cancel(5), InvalidInput, "id_invalid"),
    "nobody to cancel": (lambda w: w.app.cancel(NOBODY), JobNotFound, "job_not_found"),
    "nobody to wait for": (lambda w: w.app.wait(NOBODY, 0), JobNotFound, "job_not_found"),
    "nobody to edit": (lambda w: w.app.edit(NOBODY, queue="q"), JobNotFound, "job_not_found"),
    "nobody to delete": (lambda w: w.app.delete(NOBODY), JobNotFound, "job_not_found"),
    "retry of a live job": (lambda w: w.app.retry(w.job), TransitionRefused, "retry_refused"),
    "retry of a live job as new": (lambda w: w.app.retry(w.job, as_new=True), TransitionRefused, "retry_refused"),
    "deleting a live job": (lambda w: w.app.delete(w.job), TransitionRefused, "delete_refused"),
    "another version": (lambda w: w.app.cancel(w.job, expect_version=9), TransitionRefused, "version_changed"),
    "moving nowhere": (lambda w: w.app.move(w.job), InvalidOption, "option_invalid"),
    "moving to two places": (
        lambda w: w.app.move(w.job, before=w.keyed, to="front"),
        InvalidOption,
        "option_invalid",
    ),
    "moving to the middle": (lambda w: w.app.move(w.job, to="middle"), InvalidOption, "option_invalid"),
    "moving before nobody": (lambda w: w.app.move(w.job, before=NOBODY), JobNotFound, "job_not_found"),
    "priority as text": (lambda w: w.app.set_priority(w.job, "high"), InvalidOption, "priority_invalid"),
    "superseding by no draft": (lambda w: w.app.supersede(w.job, {"to": "b"}), InvalidInput, "draft_invalid"),
    "superseding by a bad draft": (
        lambda w: w.app.supersede(w.job, w.put.new(b"")),
        InvalidPayload,
        "payload_not_json",
    ),
    "superseding by another's key": (
        lambda w: w.app.supersede(w.job, w.send.options(idempotency_key="k").new("b")),
        KeyConflict,
        "supersede_conflict",
    ),
    "editing the kind": (lambda w: w.app.edit(w.job, kind="put"), InvalidOption, "option_unknown"),
    "editing to bad arguments": (lambda w: w.app.edit(w.job, payload={"to": 5}), InvalidPayload, "payload_invalid"),
    "editing to no arguments": (lambda w: w.app.edit(w.job, payload=5), InvalidPayload, "payload_invalid"),
    "editing to an empty queue": (lambda w: w.app.edit(w.job, queue=""), InvalidOption, "name_empty"),
    "editing to every queue": (lambda w: w.app.edit(w.job, queue="*"), InvalidOption, "name_invalid"),
    "a worker for the queue of all": (lambda w: w.app.worker(queues=["*"]), InvalidOption, "name_invalid"),
    "unknown filter": (lambda w: list(w.app.jobs(colour="red")), InvalidOption, "option_unknown"),
    "unknown state": (lambda w: list(w.app.jobs(state="lost")), InvalidOption, "filter_invalid"),
    "filter that is no text": (lambda w: list(w.app.jobs(queue=5)), InvalidOption, "filter_invalid"),
    "since a naive datetime": (lambda w: list(w.app.jobs(since=datetime(2030, 1, 1))), InvalidOption, "naive_datetime"),
    "until a text": (lambda w: list(w.app.runs(until="now")), InvalidOption, "filter_invalid"),
    "negative limit": (lambda w: list(w.app.jobs(limit=-1)), InvalidOption, "limit_invalid"),
    "limit as text": (lambda w: w.app.cancel_all(limit="all"), InvalidOption, "limit_invalid"),
    "bulk verb with an unknown filter": (lambda w: w.app.cancel_all(colour="red"), InvalidOption, "option_unknown"),
    "bulk verb with a filter of nothing": (lambda w: w.app.cancel_all(tag=None), InvalidOption, "filter_none"),
    "negative patience": (lambda w: w.app.wait(w.job, -1), InvalidOption, "timeout_invalid"),
    "patience as text": (lambda w: w.app.wait(w.job, "5"), InvalidOption, "timeout_invalid"),
    "no patience": (lambda w: w.app.wait(w.job, 0), WaitTimeout, "wait_timeout"),
    "pausing an empty queue name": (lambda w: w.app.queues.pause(""), InvalidOption, "name_empty"),
    "lock without a name": (lambda w: w.app.lock("", ttl=1), InvalidOption, "name_empty"),
    "lock for no time": (lambda w: w.app.lock("x", ttl=0), InvalidOption, "ttl_invalid"),
}

DECLARATIONS: dict[str, Case] = {
    "kind without a name": (lambda w: w.app.job(lambda: None), KindError, "kind_invalid"),
    "empty kind name": (lambda w: w.app.job(name="")(print), InvalidOption, "name_empty"),
    "overlong kind name": (lambda w: w.app.job(name="k" * 129)(print), InvalidOption, "name_too_long"),
    "empty alias": (lambda w: w.app.job(name="k", aliases=[""])(print), InvalidOption, "name_empty"),
    "alias without a list": (lambda w: w.app.job(name="k", aliases="old")(print), InvalidOption, "name_invalid"),
    "taken name": (lambda w: w.app.job(name="send")(print), KindError, "kind_duplicate"),
    "taken alias": (lambda w: w.app.job(name="k", aliases=["send"])(print), KindError, "kind_duplicate"),
    "version zero": (lambda w: w.app.job(name="k", version=0)(print), InvalidInput, "version_invalid"),
    "no function": (lambda w: w.app.job(name="k")(5), KindError, "kind_invalid"),
    "key of a kind": (lambda w: w.app.job(name="k", idempotency_key="x")(print), InvalidOption, "option_invalid"),
    "unknown option of a kind": (lambda w: w.app.job(prio=1)(print), InvalidOption, "option_unknown"),
    "upgrades without versions": (
        lambda w: w.app.job(name="k", upgrades=[print])(print),
        InvalidInput,
        "version_invalid",
    ),
}

ALL = {
    f"{group}: {name}": case
    for group, cases in (
        ("arguments", ARGUMENTS),
        ("options", OPTIONS),
        ("verbs", VERBS),
        ("declarations", DECLARATIONS),
    )
    for name, case in cases.items()
}


@pytest.mark.parametrize("name", ALL)
def test_bad_input_is_refused_by_its_own_error_and_writes_nothing(name: str, world: World, path: Path) -> None:
    act, cls, code = ALL[name]
    before = contents(path)
    with pytest.raises(PerdureError) as raised:
        act(world)
    assert (type(raised.value), raised.value.code) == (cls, code)
    assert str(raised.value).endswith(f"[{code}]")
    assert len(raised.value.message.split()) >= 4, "a sentence, not a word"
    assert contents(path) == before


@pytest.mark.parametrize("name", [name for name in ALL if ALL[name][1] is not LockNotHeld])
def test_the_app_goes_on_after_bad_input(name: str, world: World) -> None:
    with pytest.raises(PerdureError):
        ALL[name][0](world)
    assert world.app.get(world.send.enqueue("next")) is not None


def test_a_lock_that_someone_holds_is_not_entered(app: Perdure) -> None:
    with app.lock("report", ttl=60), pytest.raises(LockNotHeld) as raised, app.lock("report", ttl=60):
        pass
    assert raised.value.code == "lock_taken"


HINTS: dict[str, tuple[str, str]] = {
    "a misspelt kind": ("arguments: unknown kind", "'send'"),
    "a misspelt option": ("options: unknown option", "'priority'"),
    "a wrong argument": ("arguments: argument of another type", "'to'"),
    "a naive datetime": ("options: naive datetime", "tzinfo"),
    "a large payload": ("arguments: two MiB", "1,048,576"),
    "a taken name": ("declarations: taken name", "conftest.py"),
    "a taken business key": ("options: business key of a live job", 'conflict="return"'),
    "a retry of a live job": ("verbs: retry of a live job", "queued"),
}


@pytest.mark.parametrize("name", HINTS)
def test_the_message_helps_with(name: str, world: World) -> None:
    case, hint = HINTS[name]
    with pytest.raises(PerdureError) as raised:
        ALL[case][0](world)
    assert hint in raised.value.message


# -- values that cannot even be shown --------------------------------------------------------------------------------

HUGE = 10**5_000
"""Python refuses to write so many digits: its repr is a ValueError."""


class Shy:
    def __repr__(self) -> str:
        raise RuntimeError("not now")


UNSHOWABLE: dict[str, Callable[[World], object]] = {
    "priority": lambda w: w.send.options(priority=HUGE),
    "delay": lambda w: w.send.options(delay=HUGE),
    "negative delay": lambda w: w.send.options(delay=-HUGE),
    "timeout": lambda w: w.send.options(timeout=HUGE),
    "run_at": lambda w: w.send.options(run_at=HUGE),
    "tags": lambda w: w.send.options(tags=HUGE),
    "conflict": lambda w: w.send.options(conflict=HUGE),
    "unique": lambda w: w.send.options(unique=HUGE),
    "unique until": lambda w: w.unique(until=HUGE),
    "unique by": lambda w: w.unique(by=HUGE),
    "retry": lambda w: w.send.options(retry=-HUGE),
    "id": lambda w: w.app.get(HUGE),
    "kind": lambda w: w.app.enqueue(HUGE),
    "drafts": lambda w: w.app.enqueue_many(HUGE),
    "draft": lambda w: w.app.enqueue_many([HUGE]),
    "state": lambda w: list(w.app.jobs(state=HUGE)),
    "queue": lambda w: list(w.app.jobs(queue=HUGE)),
    "since": lambda w: list(w.app.jobs(since=HUGE)),
    "limit": lambda w: list(w.app.jobs(limit=-HUGE)),
    "wait": lambda w: w.app.wait(w.job, timeout=-HUGE),
    "lock": lambda w: w.app.lock("a", ttl=-HUGE),
    "function": lambda w: w.app.job(HUGE),
    "version": lambda w: w.app.job(version=-HUGE)(lambda: None),
    "aliases": lambda w: w.app.job(aliases=HUGE)(lambda: None),
    "url": lambda _: Perdure(HUGE).store,  # type: ignore[arg-type]
    "setting": lambda _: Perdure("jobs.db", lease_s=-HUGE),
    "name": lambda _: Perdure("jobs.db", name=HUGE),  # type: ignore[arg-type]
    "shy": lambda w: w.send.options(delay=Shy()),
}


@pytest.mark.parametrize("what", UNSHOWABLE)
def test_a_value_that_cannot_be_shown_is_refused_like_any_other(what: str, world: World) -> None:
    with pytest.raises(PerdureError) as caught:
        UNSHOWABLE[what](world)
    assert caught.value.message


def test_a_value_is_shown_in_short() -> None:
    assert shown("x") == "'x'"
    assert shown(HUGE) == "a value of type int"
    assert shown([HUGE]) == "a value of type list"
    assert len(shown("x" * 1_000)) == 80


# -- values that an option does not have -----------------------------------------------------------------------------

MISSPELT: dict[str, tuple[Callable[[World], object], str]] = {
    "isolation": (lambda w: w.app.job(name="x", isolation="proces")(print), '"process"'),
    "isolation in capitals": (lambda w: w.app.job(name="x", isolation="Process")(print), '"process"'),
    "conflict": (lambda w: w.send.options(conflict="rais"), '"raise"'),
    "conflict of Unique": (lambda w: w.unique(conflict="retrun"), '"return"'),
    "until": (lambda w: w.unique(until="forever"), '"ever"'),
    "backoff": (lambda w: w.app.job(name="x", retry=Retry(backoff="exponental")), '"exponential"'),  # type: ignore[arg-type]
    "durability": (lambda _: Perdure("x.db", durability="ful"), '"full"'),  # type: ignore[arg-type]
    "order": (lambda w: w.app.worker(order="round-robin"), '"round_robin"'),
    "to": (lambda w: w.app.move(w.job, to="frnt"), '"front"'),
    "state": (lambda w: w.app.jobs(state="complete"), '"completed"'),
    "state of runs": (lambda w: w.app.runs(state="timeout"), '"timed_out"'),
    "on": (lambda w: w.send.options(after=w.job, on="sucess"), '"success"'),
    "on of a pair": (lambda w: w.send.options(after=(w.job, "fail")), '"failure"'),
    "mode": (lambda w: w.app.group([w.send.new("a")], mode="sequence"), '"sequential"'),
    "on_failure": (lambda w: w.app.workflow("w", on_failure="cancle"), '"cancel"'),
    "abandon": (lambda w: w.app.batch("b", abandon="kep"), '"keep"'),
    "state of flows": (lambda w: w.app.flows.list(state="complete"), '"completed"'),
    "state for a verb": (lambda w: w.app.cancel_all(state="queue"), '"queued"'),
}


@pytest.mark.parametrize("what", MISSPELT)
def test_a_misspelt_value_is_refused_with_the_one_that_was_meant(world: World, what: str) -> None:
    call, meant = MISSPELT[what]
    with pytest.raises(PerdureError) as raised:
        call(world)
    assert f"did you mean {meant}?" in raised.value.message
    assert what.partition(" ")[0] in raised.value.message


def test_every_option_whose_values_are_listed_is_tried_above() -> None:
    """By the annotations: an option that is added with a Literal has to be added above, too."""
    found = {
        name
        for fields in (OptionFields, Unique, Retry, Declaration, WorkerFields)
        for name, annotation in get_type_hints(fields).items()
        if Literal in {get_origin(part) for part in (annotation, *get_args(annotation))}
    }
    assert {"isolation", "backoff", "until", "conflict", "order"} <= found <= {case.split()[0] for case in MISSPELT}
