"""`app.templates`: jobs to be enqueued under a name, checked against their kinds, and seen later as they were."""

from __future__ import annotations

import asyncio
import getpass
import logging
import socket
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import pytest

from perdure import (
    InvalidInput,
    InvalidOption,
    InvalidPayload,
    Job,
    KeyConflict,
    KindError,
    Perdure,
    PerdureError,
    Retry,
    Secret,
    TemplateError,
    Unique,
)
from perdure.templates import Template
from tests.app import by_hand
from tests.app.doors import Sqlite3

TOKEN = "hunter2"


@pytest.fixture
def report(app: Perdure) -> Any:
    @app.job(queue="reports", retry=Retry(5, base=3, on=(OSError,)), timeout=30, aliases=["summary"])
    def report(day: date, depth: int = 1, token: Annotated[str, Secret] = "", notes: Any = None) -> str:
        return f"{day} {depth} {token}"

    return report


def news(app: Perdure, **changes: Any) -> Template:
    said: dict[str, Any] = {"payload": {"subject": "news"}, "queue": "bulk", "priority": 3, "tags": ["x"]}
    return app.templates.put("news", "send", **(said | changes))


def refusal(call: Any) -> PerdureError:
    with pytest.raises(PerdureError) as raised:
        call()
    return raised.value


# -- putting ---------------------------------------------------------------------------------------------------------


def test_a_template_holds_arguments_and_options(app: Perdure, send: Any) -> None:
    before = datetime.now(UTC)
    made = app.templates.put(
        "news",
        "send",
        {"subject": "news"},
        description="to all",
        queue="bulk",
        priority=3,
        tags=["x"],
        params={"a": [1]},
        principal="ann",
        retry=7,
        timeout=2.5,
    )

    assert (made.name, made.kind, made.kind_version, made.version, made.latest) == ("news", "send", 1, 1, 1)
    assert (made.payload, made.secrets, made.description) == ({"subject": "news"}, (), "to all")
    assert (made.queue, made.priority, made.tags, made.params) == ("bulk", 3, ("x",), {"a": [1]})
    assert (made.principal, made.max_attempts, made.timeout) == ("ann", 7, timedelta(seconds=2.5))
    assert before <= made.created_at == made.written_at <= datetime.now(UTC)
    assert not made.archived
    assert made.problem is None
    assert app.templates.get("news") == made
    assert app.templates.list() == [made]


def test_options_that_are_not_given_are_those_of_the_kind(app: Perdure, report: Any) -> None:
    made = app.templates.put("daily", "report")

    assert (made.queue, made.max_attempts, made.timeout) == ("reports", 5, timedelta(seconds=30))
    assert (made.payload, made.priority, made.tags, made.params) == ({}, 0, (), {})


def test_the_same_again_changes_nothing_and_anything_else_is_a_version(app: Perdure, send: Any) -> None:
    first = news(app)
    assert news(app) == first
    second = news(app, description="to all")
    third = news(app, payload={"subject": "olds"})

    assert [second.version, third.version] == [2, 3]
    assert app.templates.get("news") == third
    assert [seen.version for seen in app.templates.versions("news")] == [3, 2, 1]
    assert app.templates.get("news", 1).payload == first.payload
    assert app.templates.get("news", 1).latest == 3


@pytest.mark.parametrize(
    ("payload", "problem"),
    [
        ({"sujbect": "x"}, "'sujbect' is not a parameter"),
        ({"to": 1}, "'to': Input should be a valid string"),
        ({"to": float("nan")}, "'to'"),
        (["to"], "is no dict of arguments by name"),
        ("", "is no dict of arguments by name"),
        ([], "is no dict of arguments by name"),
    ],
)
def test_arguments_are_checked_as_far_as_they_are_given(app: Perdure, send: Any, payload: Any, problem: str) -> None:
    with pytest.raises(InvalidPayload, match=problem):
        app.templates.put("news", "send", payload)
    assert app.templates.list() == []


@pytest.mark.parametrize(
    "option", [{"delay": 1}, {"run_at": datetime.now(UTC)}, {"idempotency_key": "k"}, {"business_key": "b"},
               {"unique": Unique()}, {"tx": object()}],
    ids=lambda option: next(iter(option)),
)  # fmt: skip
def test_what_belongs_to_a_single_job_is_refused(app: Perdure, send: Any, option: Any) -> None:
    with pytest.raises(InvalidOption, match="belongs to a single job, not to a template"):
        news(app, **option)


@pytest.mark.parametrize(
    ("call", "code"),
    [
        (lambda app: news(app, colour="red"), "option_unknown"),
        (lambda app: news(app, priority="high"), "priority_invalid"),
        (lambda app: news(app, retry=Retry(on=(OSError,))), "retry_invalid"),
        (lambda app: news(app, description=5), "name_invalid"),
        (lambda app: news(app, description="x" * 1001), "name_too_long"),
        (lambda app: news(app, expect_version=0), "version_invalid"),
        (lambda app: news(app, expect_version="1"), "version_invalid"),
        (lambda app: app.templates.put("", "send"), "name_empty"),
        (lambda app: app.templates.put(None, "send"), "name_invalid"),
        (lambda app: app.templates.put("x" * 129, "send"), "name_too_long"),
        (lambda app: app.templates.put("news", "sned"), "kind_unknown"),
        (lambda app: app.templates.get(5), "name_invalid"),
        (lambda app: app.templates.get("news", True), "version_invalid"),
        (lambda app: app.templates.versions(None), "name_invalid"),
        (lambda app: app.templates.archive(b"news"), "name_invalid"),
        (lambda app: app.templates.restore(""), "name_empty"),
        (lambda app: app.templates.rename("news", ""), "name_empty"),
        (lambda app: app.templates.enqueue(None), "name_invalid"),
    ],
)
def test_impossible_values_are_refused_by_name(app: Perdure, send: Any, call: Any, code: str) -> None:
    error = refusal(lambda: call(app))

    assert isinstance(error, (InvalidInput, KindError))
    assert error.code == code
    assert app.templates.list(archived=True) == []


def test_an_empty_description_is_none(app: Perdure, send: Any) -> None:
    assert news(app, description="") == news(app)
    assert news(app).description is None


def test_of_two_editors_one_is_told(app: Perdure, send: Any) -> None:
    seen = news(app)
    assert news(app, priority=4, expect_version=seen.version).version == 2

    error = refusal(lambda: news(app, priority=5, expect_version=seen.version))

    assert (error.code, type(error)) == ("version_changed", TemplateError)
    assert "is at version 2, not 1" in error.message
    assert app.templates.get("news").priority == 4


# -- enqueueing ------------------------------------------------------------------------------------------------------


def test_a_job_has_what_the_template_gives_and_what_is_given_anew(app: Perdure, send: Any) -> None:
    made = news(app, params={"a": 1}, principal="ann", timeout=9, retry=Retry(4, base=1), conflict="return")

    job = app.templates.enqueue("news", {"to": "bob"})
    other = app.templates.enqueue("news", {"to": "eve", "subject": "hello"}, priority=0, queue="mail", tags=["y"])

    assert job.payload == {"to": "bob", "subject": "news"}
    assert (job.queue, job.priority, job.tags, job.params, job.principal) == ("bulk", 3, ("x",), {"a": 1}, "ann")
    assert (job.max_attempts, job.owner) == (4, app.owner)
    like = send.options(retry=Retry(4, base=1), timeout=9).enqueue("bob")
    assert job.row.options == like.row.options
    assert other.payload == {"to": "eve", "subject": "hello"}
    assert (other.queue, other.priority, other.tags, other.params) == ("mail", 0, ("y",), {"a": 1})
    for seen in (job, other):
        assert (seen.template_id, seen.template_version) == (made.id, 1)
        assert app.get(seen) == seen
    assert (like.template_id, like.template_version) == (None, None)


def test_a_job_from_a_template_is_like_one_enqueued_by_hand(app: Perdure, report: Any) -> None:
    app.templates.put("daily", "report", {"depth": 2, "token": TOKEN, "notes": [1, {"a": None}]})

    made = app.templates.enqueue("daily", {"day": date(2030, 1, 1)})
    plain = report.enqueue(date(2030, 1, 1), depth=2, token=TOKEN, notes=[1, {"a": None}])

    assert made.payload == plain.payload
    here, there = (app.store.row(job.row.id) for job in (made, plain))
    assert here is not None
    assert there is not None
    assert here == there._replace(
        id=here.id, payload=here.payload, created_at=here.created_at, template_id=here.template_id, template_version=1
    )
    assert here.secrets == there.secrets
    by_hand.complete(app, queue="reports")


def test_the_whole_is_checked_when_it_is_enqueued(app: Perdure, send: Any) -> None:
    news(app)

    with pytest.raises(InvalidPayload, match="'to' is missing"):
        app.templates.enqueue("news")
    with pytest.raises(InvalidPayload, match="'colour' is not a parameter"):
        app.templates.enqueue("news", {"to": "bob", "colour": 1})
    with pytest.raises(InvalidPayload, match="valid string"):
        app.templates.enqueue("news", {"to": 1})
    with pytest.raises(InvalidInput, match="overrides must be a dict"):
        app.templates.enqueue("news", ["to"])  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match="there is no option 'colour'"):
        app.templates.enqueue("news", {"to": "bob"}, colour=1)  # type: ignore[call-arg]
    assert list(app.jobs()) == []


def test_the_options_of_a_single_job_are_taken(app: Perdure, send: Any) -> None:
    news(app)
    key = app.templates.enqueue("news", {"to": "bob"}, idempotency_key="k")
    late = app.templates.enqueue("news", {"to": "bob"}, delay=60, business_key="b")

    assert app.templates.enqueue("news", {"to": "bob"}, idempotency_key="k").deduplicated
    assert app.enqueue("send", {"to": "bob", "subject": "news"}, idempotency_key="k").id == key.id
    assert late.state == "scheduled"
    with pytest.raises(KeyConflict):
        app.templates.enqueue("news", {"to": "eve"}, business_key="b")


def test_a_job_from_a_template_shares_the_caller_s_transaction(app: Perdure, send: Any, path: Path) -> None:
    news(app)
    door = Sqlite3(path, begin="BEGIN IMMEDIATE")
    job = app.templates.enqueue("news", {"to": "bob"}, tx=door.tx)
    assert app.get(job) is None
    door.rollback()
    assert app.get(job) is None
    door.close()

    with app.transaction():
        app.templates.put("other", "send")
        inside = app.templates.enqueue("other", {"to": "bob"})
    assert app.templates.of(inside) == app.templates.get("other")


def test_defaults_of_the_kind_that_a_template_cannot_have_hold(app: Perdure) -> None:
    @app.job(unique=Unique(by="user"), delay=60)
    def rebuild(user: int, why: str = "") -> None: ...

    app.templates.put("one", "rebuild", {"user": 1})
    job = app.templates.enqueue("one")

    assert job.state == "scheduled"
    assert app.templates.enqueue("one", {"why": "again"}).id == job.id


def test_later_changes_do_not_touch_a_job_and_its_template_is_seen_as_it_was(app: Perdure, send: Any) -> None:
    first = news(app)
    job = app.templates.enqueue("news", {"to": "bob"})
    news(app, payload={"subject": "olds"}, queue="other")
    app.templates.rename("news", "olds")
    app.templates.archive("olds")
    by_hand.fail(app, queue="bulk")
    app.worker().run(until_idle=True)

    now = app.get(job)
    assert now is not None
    assert (now.payload, now.queue, now.template_version) == ({"to": "bob", "subject": "news"}, "bulk", 1)
    seen = app.templates.of(job)
    assert seen is not None
    assert (seen.name, seen.version, seen.latest, seen.payload) == ("olds", 1, 2, first.payload)
    [run, *_] = app.runs(job)
    assert app.templates.of(run.job_id) == seen
    assert app.templates.of(send.enqueue("bob")) is None


def test_a_retry_as_a_new_job_keeps_the_template(app: Perdure, send: Any) -> None:
    made = news(app)
    job = app.templates.enqueue("news", {"to": "bob"})
    app.cancel(job)

    assert app.templates.of(app.retry(job, as_new=True)) == made


# -- archived, unknown, changed --------------------------------------------------------------------------------------


def test_an_archived_template_is_set_aside_until_it_is_restored(app: Perdure, send: Any) -> None:
    news(app)
    since = app.templates.archive("news").archived_at
    assert since is not None
    assert app.templates.archive("news").archived_at == since
    assert app.templates.list() == []
    assert [seen.name for seen in app.templates.list(archived=True)] == ["news"]

    for call in (lambda: app.templates.enqueue("news", {"to": "bob"}), lambda: news(app, priority=9)):
        error = refusal(call)
        assert (error.code, type(error)) == ("template_archived", TemplateError)
        assert error.message == "template 'news' is archived; restore it first, or use another"

    assert not app.templates.restore("news").archived
    assert not app.templates.restore("news").archived
    assert app.templates.enqueue("news", {"to": "bob"}).state == "queued"


@pytest.mark.parametrize("call", ["get", "versions", "archive", "restore", "enqueue"])
def test_a_mistyped_name_is_refused_with_what_was_meant(app: Perdure, send: Any, call: str) -> None:
    assert "; app.templates.put makes one" in refusal(lambda: getattr(app.templates, call)("nwes")).message
    news(app)

    error = refusal(lambda: getattr(app.templates, call)("nwes"))

    assert (error.code, type(error)) == ("template_unknown", TemplateError)
    assert error.message == "there is no template 'nwes'; did you mean 'news'?"


def test_a_version_that_never_was_is_refused(app: Perdure, send: Any) -> None:
    news(app)

    assert refusal(lambda: app.templates.get("news", 2)).message == "template 'news' has no version 2; its newest is 1"
    assert refusal(lambda: app.templates.put("olds", "send", expect_version=1)).code == "template_unknown"
    assert refusal(lambda: app.templates.rename("olds", "x")).code == "template_unknown"


def test_a_name_that_is_taken_is_not_given_twice(app: Perdure, send: Any) -> None:
    news(app)
    app.templates.put("olds", "send")

    assert refusal(lambda: app.templates.rename("olds", "news")).code == "template_taken"
    assert app.templates.rename("olds", "olds").name == "olds"
    assert app.templates.rename("olds", "oldies").name == "oldies"
    assert [seen.name for seen in app.templates.list()] == ["news", "oldies"]


def test_a_kind_that_this_process_does_not_know_is_named(app: Perdure, send: Any, path: Path) -> None:
    news(app)
    other = Perdure(path)

    assert other.templates.get("news").payload == {"subject": "news"}
    error = refusal(lambda: other.templates.enqueue("news", {"to": "bob"}))
    assert (error.code, type(error)) == ("kind_unknown", KindError)
    assert "makes jobs of kind 'send', which this process does not declare" in error.message
    other.close()


def test_a_renamed_kind_finds_its_templates(app: Perdure, send: Any, path: Path) -> None:
    news(app)
    other = Perdure(path)

    @other.job(aliases=["send"])
    def mail(to: str, subject: str = "hi") -> None: ...

    assert other.templates.enqueue("news", {"to": "bob"}).kind == "mail"
    other.close()


def _of_version_2(path: Path, upgrades: Any) -> Perdure:
    app = Perdure(path)

    @app.job(version=2, upgrades=upgrades)
    def send(to: str, title: str = "hi") -> None: ...

    return app


def test_arguments_of_an_older_version_are_upgraded(app: Perdure, send: Any, path: Path) -> None:
    news(app)
    newer = _of_version_2(path, {1: lambda old: {"title" if name == "subject" else name: old[name] for name in old}})

    job = newer.templates.enqueue("news", {"to": "bob"})

    assert (job.payload, job.kind_version) == ({"to": "bob", "title": "news"}, 2)
    newer.close()


@pytest.mark.parametrize(
    ("upgrades", "why"),
    [
        ({1: lambda old: {"to": old["to"]}}, "cannot be upgraded to version 2 (KeyError: 'to'); put it again"),
        ({}, "its arguments no longer fit: Job 'send' cannot take its arguments: 'subject' is not a parameter"),
    ],
)
def test_arguments_that_no_longer_fit_are_refused(app: Perdure, send: Any, path: Path, upgrades: Any, why: str) -> None:
    news(app)
    newer = _of_version_2(path, upgrades)

    error = refusal(lambda: newer.templates.enqueue("news", {"to": "bob"}))

    assert (error.code, type(error)) == ("template_invalid", TemplateError)
    assert "template 'news' was put for version 1 of kind 'send'" in error.message
    assert why in error.message
    newer.templates.put("new", "send", {"title": "x"})
    assert "enqueue it where the newer code is" in refusal(lambda: app.templates.enqueue("new", {"to": "bob"})).message
    newer.close()


# -- secrets, damage, logs, coroutines -------------------------------------------------------------------------------


def test_secrets_are_kept_and_never_shown(app: Perdure, report: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    made = app.templates.put("daily", "report", {"token": TOKEN, "depth": 2})
    job = app.templates.enqueue("daily", {"day": date(2030, 1, 1)})
    assert (made.payload, made.secrets) == ({"depth": 2}, ("token",))
    assert app.templates.put("daily", "report", {"depth": 2, "token": TOKEN}) == made
    assert app.templates.put("daily", "report", {"depth": 2, "token": "other"}).version == 2

    error = refusal(lambda: app.templates.put("daily", "report", {"token": [TOKEN]}))
    row = app.store.template("daily", 1)
    shown = [made, job, error, row, *app.templates.versions("daily"), caplog.text, repr(job.row)]
    assert [text for text in map(repr, shown) if TOKEN in text] == []
    app.worker().run(until_idle=True)
    done = app.get(job)
    assert done is not None
    assert done.result == f"2030-01-01 2 {TOKEN}"  # the handler had it


@pytest.mark.parametrize(
    ("column", "text"),
    [(column, text) for column in ("payload", "secrets", "plan") for text in ("{", "[1]")] + [("plan", '{"rank":"x"}')],
)
def test_a_row_that_another_program_has_damaged_stops_nothing_but_itself(
    app: Perdure, send: Any, path: Path, column: str, text: str
) -> None:
    news(app)
    app.templates.put("other", "send")
    door = Sqlite3(path)
    door.execute(f"UPDATE perdure_template_version SET {column} = '{text}' WHERE payload <> '{{}}'")
    door.commit()
    door.close()

    damaged, whole = app.templates.list()

    assert damaged.problem is not None
    assert damaged.problem.startswith("template 'news' cannot be read at version 1 (")
    assert whole.problem is None
    assert refusal(lambda: app.templates.enqueue("news", {"to": "bob"})).code == "template_invalid"
    assert news(app).version == 2
    assert app.templates.enqueue("news", {"to": "bob"}).payload == {"to": "bob", "subject": "news"}


def test_changes_are_logged_and_repeats_are_not(app: Perdure, send: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "perdure")
    for _ in range(2):
        news(app)
        app.templates.archive("news")
        app.templates.restore("news")

    user = f"{getpass.getuser()}@{socket.gethostname()}"
    once = [f"{verb} of template news by hand, by {user}, version 1" for verb in ("put", "archive", "restore")]
    assert caplog.messages == [*once, *once[1:]]


def test_every_verb_can_be_awaited(app: Perdure, send: Any) -> None:
    async def main() -> Job:
        templates = app.aio.templates
        await templates.put("news", "send", {"subject": "news"})
        await templates.rename("news", "olds")
        await templates.archive("olds")
        await templates.restore("olds")
        job = await templates.enqueue("olds", {"to": "bob"}, priority=2)
        assert await templates.of(job) == await templates.get("olds") == (await templates.list())[0]
        assert len(await templates.versions("olds")) == 1
        return job

    job = asyncio.run(main())
    assert (job.payload, job.priority) == ({"to": "bob", "subject": "news"}, 2)
