"""What handlers log is kept with their runs."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import threading
from collections.abc import Generator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from perdure import Job, JobContext, Perdure, Retry
from perdure.ids import RunId
from perdure.store.rows import LogLine, Notes, Turn
from perdure.worker import capture, context, node
from tests.worker.bodies import SORTS, declared, messages, ran

log = logging.getLogger("shop.mail")
LONG = "start" + 100_000 * "x" + "end"


class Listener(logging.Handler):
    """The user's own console."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())


@pytest.fixture
def console() -> Generator[Listener, None, None]:
    root, listener = logging.getLogger(), Listener()
    level = root.level
    root.addHandler(listener)
    yield listener
    root.removeHandler(listener)
    root.setLevel(level)


@contextmanager
def bare_logging() -> Generator[None, None, None]:
    """`logging` as it is in a program that has not configured it. No fixture: pytest adds its handlers after those."""
    root = logging.getLogger()
    before, root.handlers = root.handlers, []
    try:
        yield
    finally:
        root.handlers = before


@pytest.mark.parametrize("sort", SORTS)
def test_lines_of_every_logger_are_kept_in_order(app: Perdure, sort: str) -> None:
    def body(ctx: JobContext) -> None:
        log.warning("sending %d mails", 3)
        ctx.log.info("half of it")
        log.error("one came back")

    job = ran(app, sort, body)
    lines = list(app.logs(job))
    assert [(line.level, line.message) for line in lines] == [
        ("WARNING", "sending 3 mails"),
        ("INFO", "half of it"),
        ("ERROR", "one came back"),
    ]
    (run,) = app.runs(job)
    assert run.finished_at is not None
    assert {line.run_id for line in lines} == {run.row.id}
    assert all(run.row.started_at <= line.at <= (run.row.finished_at or 0) for line in lines)


@pytest.mark.parametrize("sort", SORTS)
def test_runs_side_by_side_keep_their_lines_apart(app: Perdure, sort: str) -> None:
    def body(ctx: JobContext) -> None:
        log.warning("I am %s", ctx.job_id)

    handler = declared(app, sort, body)
    jobs = [handler.enqueue() for _ in range(20)]
    app.worker().run(until_idle=True)
    assert [messages(app, job) for job in jobs] == [[f"I am {job.id}"] for job in jobs]


def test_ctx_log_is_kept_where_the_console_is_not_told(app: Perdure, console: Listener) -> None:
    logging.getLogger().setLevel(logging.WARNING)

    def body(ctx: JobContext) -> None:
        ctx.log.debug("too fine")
        ctx.log.info("for the run only")
        log.info("for nobody")
        ctx.log.warning("for both")

    job = ran(app, "plain", body)
    assert messages(app, job) == ["for the run only", "for both"]
    assert console.heard == ["for both"]


def test_ctx_log_goes_where_the_logger_perdure_job_goes(app: Perdure, console: Listener) -> None:
    logging.getLogger().setLevel(logging.DEBUG)
    seen: list[logging.LogRecord] = []

    def watch(record: logging.LogRecord) -> bool:
        seen.append(record)
        return True

    context.job_logger.addFilter(watch)

    def body(ctx: JobContext) -> None:
        ctx.log.debug("fine", extra={"size": 7})

    try:
        job = ran(app, "plain", body)
    finally:
        context.job_logger.removeFilter(watch)
    assert messages(app, job) == ["fine"]
    assert "fine" in console.heard
    (record,) = seen
    assert (record.name, record.funcName, vars(record)["size"]) == ("perdure.job", "body", 7)
    assert (vars(record)["job_id"], vars(record)["attempt"]) == (str(job.id), 1)


@pytest.mark.parametrize("sort", SORTS)
def test_an_exception_is_kept_with_its_traceback(app: Perdure, sort: str) -> None:
    def body(ctx: JobContext) -> None:
        try:
            raise OSError("no route")
        except OSError:
            log.exception("could not send")
            ctx.log.exception("as I said")

    job = ran(app, sort, body)
    first, second = messages(app, job)
    assert first.startswith("could not send\nTraceback (most recent call last):")
    assert first.endswith("OSError: no route")
    assert second.startswith("as I said\nTraceback")


def test_other_handlers_get_the_record_untouched(app: Perdure) -> None:
    kept: list[str | None] = []

    class Last(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            kept.append(record.exc_text)

    def body(_: JobContext) -> None:
        try:
            raise OSError
        except OSError:
            log.exception("x")

    with bare_logging(), capture.capturing():  # so that ours comes first
        logging.getLogger().addHandler(Last())
        job = ran(app, "plain", body)
    assert messages(app, job)[0].startswith("x\nTraceback")
    assert kept == [None]


def test_what_is_logged_outside_of_runs_is_not_kept(app: Perdure, console: Listener) -> None:
    inside, logged = threading.Event(), threading.Event()

    def body(_: JobContext) -> None:
        inside.set()
        assert logged.wait(30)

    job = declared(app, "plain", body).enqueue()
    with app.worker().running():
        assert inside.wait(30)
        log.warning("from outside")
        logged.set()
        app.wait(job, timeout=30)
    assert messages(app, job) == []
    assert "from outside" in console.heard


@pytest.mark.parametrize("sort", SORTS)
def test_what_the_worker_says_is_not_the_handlers(app: Perdure, sort: str) -> None:
    def body(_: JobContext) -> None:
        logging.getLogger("perdure.worker").warning("mine")
        logging.getLogger("perdure.job").warning("the handler's")

    assert messages(app, ran(app, sort, body)) == ["the handler's"]


def test_tasks_and_to_thread_inherit_the_run_and_new_threads_have_ctx_log(app: Perdure) -> None:
    @app.job
    async def spread(ctx: JobContext) -> None:
        async def part() -> None:
            log.warning("from a task")

        await asyncio.create_task(part())
        await asyncio.to_thread(log.warning, "from to_thread")

        def apart() -> None:
            log.warning("from a thread of its own")
            ctx.log.warning("with ctx.log")

        thread = threading.Thread(target=apart)
        thread.start()
        await asyncio.to_thread(thread.join)

    job = spread.enqueue()
    app.worker().run(until_idle=True)
    assert messages(app, job) == ["from a task", "from to_thread", "with ctx.log"]


def test_each_attempt_keeps_its_own(app: Perdure) -> None:
    def body(ctx: JobContext) -> None:
        ctx.log.info("attempt %d", ctx.attempt)
        if ctx.attempt == 1:
            raise OSError

    job = ran(app, "plain", body, retry=Retry(2, backoff="none"))
    assert job.state == "completed"
    assert messages(app, job) == ["attempt 1", "attempt 2"]
    assert len({line.run_id for line in app.logs(job)}) == 2


# -- the cap ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def small_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "LOG_LINES", 10)
    monkeypatch.setattr(node, "NOTES_EVERY_S", 0.01)


CAPPED = [("…", "16 earlier lines were dropped"), *(("INFO", f"line {number}") for number in range(16, 26))]


def shown(app: Perdure, job: Job) -> list[tuple[str, str]]:
    return [(line.level, line.message) for line in app.logs(job)]


@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.usefixtures("small_cap")
def test_of_too_many_lines_the_oldest_are_dropped_and_that_is_marked(app: Perdure, sort: str) -> None:
    def body(ctx: JobContext) -> None:
        for number in range(26):
            ctx.log.info("line %d", number)

    assert shown(app, ran(app, sort, body)) == CAPPED


@pytest.mark.usefixtures("small_cap")
def test_lines_that_were_written_before_are_dropped_too(app: Perdure) -> None:
    def body(ctx: JobContext) -> None:
        for start, stop in ((0, 6), (6, 18), (18, 26)):
            for number in range(start, stop):
                ctx.log.info("line %d", number)
            while not any(message == f"line {stop - 1}" for _, message in shown(app, ctx.job)):
                ctx.checkpoint()

    assert shown(app, ran(app, "plain", body)) == CAPPED


@pytest.mark.usefixtures("small_cap")
def test_during_an_outage_the_newest_lines_are_kept_and_marked_once(
    app: Perdure, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node, "NOTES_EVERY_S", 0.2)
    inside, locked, trouble, ended = (threading.Event() for _ in range(4))

    def body(ctx: JobContext) -> None:
        inside.set()
        assert locked.wait(30)
        for number in range(18):
            ctx.log.info("line %d", number)
        assert trouble.wait(30)
        for number in range(18, 26):
            ctx.log.info("line %d", number)
        ended.set()

    def watch(record: logging.LogRecord) -> bool:
        if record.getMessage().startswith("the database could not be reached"):
            trouble.set()
        return True

    job = declared(app, "plain", body).enqueue()
    worker_log = logging.getLogger("perdure.worker")
    worker_log.addFilter(watch)
    try:
        with app.worker().running():
            assert inside.wait(30)
            with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as other:
                other.execute("BEGIN IMMEDIATE")
                locked.set()
                assert ended.wait(30)
            app.wait(job, timeout=30)
    finally:
        worker_log.removeFilter(watch)
    assert shown(app, job) == CAPPED


def test_notes_written_twice_are_there_once(app: Perdure) -> None:
    job = ran(app, "plain", lambda ctx: ctx.log.info("first"))
    (first,) = app.logs(job)
    more = [LogLine(RunId(first.run_id), number, first.job_id, first.at, "INFO", str(number)) for number in range(1, 9)]
    mark = first._replace(line=4, level="…", message="5 earlier lines were dropped")
    notes = Notes(more, [(first.run_id, ("a.pdf",))], [], [mark])
    for _ in range(2):
        app.store.turn(Turn(notes=notes), app.clock.now())
        assert messages(app, job) == ["5 earlier lines were dropped", "5", "6", "7", "8"]
        assert next(app.runs(job)).artifacts == ["a.pdf"]


# -- what must not happen --------------------------------------------------------------------------------------------


def test_secrets_of_the_job_are_hidden(app: Perdure) -> None:
    secret = "pass'word\n\"ü"

    @app.job(retry=1)
    def login(ctx: JobContext, password: SecretStr, pin: SecretStr) -> None:
        value = password.get_secret_value()
        log.warning("with %s", value)
        log.warning("with %r", [value])
        ctx.log.info("pin %s", pin.get_secret_value())
        ctx.progress(1, note=f"as {value}")
        ctx.artifact(f"/tmp/{value}.txt")
        try:
            raise OSError(value)
        except OSError:
            log.exception("refused")

    job = login.enqueue(password=SecretStr(secret), pin=SecretStr("4711"))
    app.worker().run(until_idle=True)
    lines = messages(app, job)
    assert lines[:3] == ["with •••", "with ['•••']", "pin •••"]
    assert lines[3].endswith("OSError: •••")
    run = next(app.runs(job))
    assert run.metrics["progress"]["note"] == "as •••"
    assert run.artifacts == ["/tmp/•••.txt"]


@pytest.mark.parametrize("sort", SORTS)
def test_a_broken_log_call_does_not_fail_the_job(app: Perdure, sort: str, capsys: pytest.CaptureFixture[str]) -> None:
    class Mute:
        def __str__(self) -> str:
            raise OSError

        __repr__ = __str__

    def body(ctx: JobContext) -> str:
        log.warning("%d mails", "three")
        ctx.log.warning("%s", Mute())
        log.warning(Mute())
        return "done"

    with bare_logging():
        job = ran(app, sort, body)
    assert job.result == "done"
    assert messages(app, job) == [
        "%d mails (this line could not be formatted: TypeError)",
        "%s (this line could not be formatted: OSError)",
        "a line of shop.mail could not be kept",
    ]
    assert "--- Logging error ---" in capsys.readouterr().err


@pytest.mark.parametrize("sort", SORTS)
def test_lines_that_the_database_refuses_are_dropped_and_nothing_else(app: Perdure, path: Path, sort: str) -> None:
    @app.job
    def wordy() -> str:
        log.warning("unlucky")
        return "done"

    def body(ctx: JobContext) -> str:
        ctx.log.info("fine")
        return "done"

    jobs = [wordy.enqueue(), declared(app, sort, body).enqueue()]
    with closing(sqlite3.connect(path, isolation_level=None, timeout=30)) as other:
        other.execute(
            "CREATE TRIGGER refuse BEFORE INSERT ON perdure_job_log WHEN new.message = 'unlucky'"
            " BEGIN SELECT RAISE(ABORT, 'not today'); END"
        )
        app.worker(concurrency=1).run(until_idle=True)
        other.execute("DROP TRIGGER refuse")
    assert [app.existing(job).result for job in jobs] == ["done", "done"]
    assert [messages(app, job) for job in jobs] == [[], ["fine"]]


def test_what_no_database_holds_is_replaced_and_long_lines_are_shortened(app: Perdure) -> None:
    def body(ctx: JobContext) -> None:
        ctx.log.info("a\0b\ud800c")
        ctx.log.info(LONG)

    first, second = messages(app, ran(app, "plain", body))
    assert first == "a�b?c"
    assert len(second) <= context.LINE_LIMIT
    assert second.startswith("startxxx")
    assert second.endswith("xxxend")
    assert "characters or more were left out" in second


def test_without_any_configuration_warnings_still_reach_stderr(
    app: Perdure, capsys: pytest.CaptureFixture[str]
) -> None:
    def body(ctx: JobContext) -> None:
        log.warning("look out")
        ctx.log.warning("me too")
        ctx.log.info("not I")
        log.info("nor I")

    with bare_logging():
        job = ran(app, "plain", body)
    assert capsys.readouterr().err == "look out\nme too\n"
    assert messages(app, job) == ["look out", "me too", "not I"]


def test_the_handler_is_there_while_any_worker_runs(app: Perdure) -> None:
    def installed() -> int:
        return sum(isinstance(handler, capture.CaptureHandler) for handler in logging.getLogger().handlers)

    assert installed() == 0
    with app.worker().running():
        with app.worker().running():
            assert installed() == 1
        assert installed() == 1
    assert installed() == 0


def test_a_worker_that_cannot_start_leaves_no_handler_behind(app: Perdure) -> None:
    def lifespan() -> Any:
        raise OSError("no")

    before = list(logging.getLogger().handlers)
    with pytest.raises(OSError, match="no"):
        app.worker(lifespan=lifespan).run(until_idle=True)
    assert logging.getLogger().handlers == before


def test_a_line_of_a_child_below_the_level_of_its_logger_is_not_shown(console: Listener) -> None:
    logger = logging.getLogger("shop.quiet")
    logger.setLevel(logging.WARNING)
    for level in (logging.INFO, logging.WARNING):
        record = logging.makeLogRecord({"name": logger.name, "levelno": level, "msg": logging.getLevelName(level)})
        capture.log_forwarded(capture.forwarded(record))
    assert console.heard == ["WARNING"]


def test_records_of_every_logger_know_their_job(app: Perdure) -> None:
    known: list[Any] = []

    class Reader(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            known.append(getattr(record, "perdure", None))

    reader = Reader()

    @app.job
    def send() -> None:
        log.warning("inside")

    log.addHandler(reader)
    try:
        log.warning("before")
        job = send.enqueue()
        app.worker().run(until_idle=True)
    finally:
        log.removeHandler(reader)
    assert known[0] is None
    assert (known[1]["job_id"], known[1]["kind"], known[1]["attempt"]) == (str(job.id), "send", 1)
