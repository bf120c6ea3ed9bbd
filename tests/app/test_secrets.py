"""Secret arguments: in a column of their own and nowhere else that anybody looks."""

from __future__ import annotations

import io
import json
import logging
import sqlite3
import traceback
from collections.abc import Callable, Iterator
from contextlib import closing, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Annotated, Any

import pytest
from pydantic import SecretBytes, SecretStr

from perdure import InvalidPayload, KeyConflict, Perdure, PerdureError, Secret, Unique
from perdure.cli import main as cli
from perdure.ops.doctor import examine
from tests.app import by_hand
from tests.app.contents import contents, views

TOKEN = "hunter2-åß∂-'quoted'"
TRACES = [TOKEN, json.dumps(TOKEN)[1:-1], TOKEN.encode().hex(), "hunter2"]


@pytest.fixture
def login(app: Perdure) -> Any:
    @app.job
    def login(user: str, password: SecretStr, pin: Annotated[str, Secret] = "", note: str = "") -> None: ...

    return login


@pytest.fixture(autouse=True)
def logged() -> Iterator[io.StringIO]:
    """Everything any logger says, at the finest level."""
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    root = logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.NOTSET)
    yield stream
    root.removeHandler(handler)
    root.setLevel(level)
    assert_clean(stream.getvalue())


def assert_clean(*shown: object) -> None:
    for text in map(str, shown):
        for trace in TRACES:
            assert trace not in text


def enqueue(login: Any, **options: Any) -> Any:
    return login.options(**options).enqueue("ada", SecretStr(TOKEN), pin=TOKEN)


def test_a_job_shows_no_secret(app: Perdure, login: Any) -> None:
    job = enqueue(login)
    for seen in (job, app.get(job), *app.jobs()):
        assert_clean(repr(seen), seen.payload, seen.row, *[getattr(seen, name, None) for name in dir(type(seen))])
        assert seen.payload == {"user": "ada"}


def test_a_draft_shows_no_secret(login: Any) -> None:
    draft = login.new("ada", SecretStr(TOKEN), pin=TOKEN)
    assert_clean(repr(draft), str(draft), f"{draft!s}", repr([draft]), repr(login), repr(login.options(priority=1)))


def test_the_rows_on_their_way_show_no_secret(app: Perdure, login: Any) -> None:
    new = app.new_jobs([login.new("ada", SecretStr(TOKEN), pin=TOKEN)])
    row = app.store.row(enqueue(login).row.id)
    (claim, *_) = by_hand.claim(app)
    assert_clean(repr(new), repr(row), repr(claim))


def test_the_function_gets_the_secret(app: Perdure, login: Any) -> None:
    row = app.store.row(enqueue(login).row.id)
    assert row is not None
    _, arguments = login.load(row.payload, row.secrets, row.kind_version)
    assert (arguments["password"].get_secret_value(), arguments["pin"]) == (TOKEN, TOKEN)


def test_only_the_secrets_column_holds_it(app: Perdure, login: Any, path: Path) -> None:
    job = enqueue(login, business_key="b", idempotency_key="k", tags=["x"], params={"y": 1}, unique=Unique())
    by_hand.fail(app)
    app.retry(job)
    by_hand.complete(app, '"done"')
    app.retry(job, as_new=True)
    with closing(sqlite3.connect(path)) as connection:
        columns = [name for _, name, *_ in connection.execute("PRAGMA table_info(perdure_job)")]
        secrets = columns.index("secrets")
    dumped = contents(path)
    kept = [row[secrets] for row in dumped["perdure_job"]]
    dumped["perdure_job"] = [row[:secrets] + row[secrets + 1 :] for row in dumped["perdure_job"]]
    assert len(kept) == 2
    assert all("hunter2" in str(text) for text in kept)
    assert_clean(dumped)


def test_no_view_shows_it(app: Perdure, login: Any, path: Path) -> None:
    enqueue(login)
    by_hand.complete(app)
    shown = views(path)
    assert {"perdure_jobs", "perdure_runs"} <= shown.keys()
    assert all(shown["perdure_jobs"])
    assert_clean(shown)


def test_neither_doctor_nor_explanation_shows_it(app: Perdure, login: Any) -> None:
    job = enqueue(login)
    by_hand.claim(app)
    assert_clean(examine(app.store), app.explain(job), app.queues.list(), *app.runs())


@pytest.mark.parametrize("command", [["doctor"], ["doctor", "--json"], ["db", "check"], ["db", "sql"]])
def test_no_command_shows_it(command: list[str], app: Perdure, login: Any, path: Path) -> None:
    enqueue(login)
    said = io.StringIO()
    with redirect_stdout(said), redirect_stderr(said), suppress(SystemExit):
        cli.main([*command, "--url", str(path)])
    assert said.getvalue()
    assert_clean(said.getvalue())


WRONG: dict[str, Callable[[Any], object]] = {
    "a secret of the wrong type": lambda login: login.enqueue("ada", [TOKEN]),
    "a secret inside the wrong type": lambda login: login.enqueue("ada", {"x": {"y": TOKEN}}),
    "a marked secret of the wrong type": lambda login: login.enqueue("ada", SecretStr("x"), pin=[TOKEN]),
    "a secret that is too large": lambda login: login.enqueue("ada", SecretStr(TOKEN * 100_000)),
    "half a surrogate in a secret": lambda login: login.enqueue("ada", SecretStr(TOKEN + "\ud800")),
    "another argument that is wrong": lambda login: login.enqueue(5, SecretStr(TOKEN)),
    "an argument too many": lambda login: login.enqueue("ada", SecretStr(TOKEN), TOKEN, "note", TOKEN),
    "an argument that is missing": lambda login: login.enqueue(password=SecretStr(TOKEN)),
    "a secret among many": lambda login: login.enqueue_many([{"user": "ada", "password": [TOKEN]}]),
    "a transaction that is none": lambda login: login.options(tx=5).enqueue("ada", SecretStr(TOKEN)),
    "unique by a secret": lambda login: login.options(unique=Unique(by="pin")).enqueue("ada", SecretStr("x"), TOKEN),
}


@pytest.mark.parametrize("name", WRONG)
def test_an_error_shows_no_secret(name: str, login: Any) -> None:
    with pytest.raises(PerdureError) as raised:
        WRONG[name](login)
    error = raised.value
    assert_clean(error, repr(error), *traceback.format_exception_only(error), error.__cause__, error.__context__)


def test_a_conflict_over_other_secrets_shows_neither(login: Any) -> None:
    enqueue(login, idempotency_key="k")
    with pytest.raises(KeyConflict) as raised:
        login.options(idempotency_key="k").enqueue("ada", SecretStr("another"), pin=TOKEN)
    assert_clean(raised.value, repr(raised.value))
    assert "another" not in str(raised.value)


def test_the_same_key_with_the_same_secret_is_a_repeat(login: Any) -> None:
    first = enqueue(login, idempotency_key="k")
    assert enqueue(login, idempotency_key="k").id == first.id


def test_different_secrets_are_different_work(login: Any) -> None:
    once = login.options(unique=Unique())
    first = once.enqueue("ada", SecretStr("one"))
    second = once.enqueue("ada", SecretStr("two"))
    again = once.enqueue("ada", SecretStr("one"))
    assert (second.id != first.id, again.id == first.id) == (True, True)


def test_an_edit_shows_no_secret(app: Perdure, login: Any) -> None:
    job = app.edit(enqueue(login), payload={"user": "bob", "password": TOKEN})
    assert_clean(repr(job), job.payload, job.row)
    with pytest.raises(InvalidPayload) as raised:
        app.edit(job, payload={"user": "bob", "password": [TOKEN]})
    assert_clean(raised.value)


def test_a_superseding_job_keeps_its_secret_to_itself(app: Perdure, login: Any) -> None:
    old = app.supersede(enqueue(login), login.new("bob", SecretStr(TOKEN)))
    assert_clean(repr(old), old.row, *[job.row for job in app.jobs()])


def test_other_secret_types_are_recognised(app: Perdure, path: Path) -> None:
    @app.job
    def store(key: SecretBytes, maybe: SecretStr | None = None, many: list[SecretStr] | None = None) -> None: ...

    job = store.enqueue(SecretBytes(b"hunter2"), SecretStr("hunter2"), [SecretStr("hunter2")])
    assert job.payload == {}
    assert_clean(views(path))
