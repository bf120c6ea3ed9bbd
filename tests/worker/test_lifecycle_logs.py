"""What is logged of jobs: one line for each event, with the facts beside it, and nothing unless somebody listens."""

from __future__ import annotations

import asyncio
import getpass
import logging
import re
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from perdure import Cancel, Fail, JobContext, Perdure, Retry, Skip, Snooze, TransitionRefused, principal
from perdure.ids import JobId, NodeId, RunId
from perdure.job.model import Failure
from perdure.job.reports import Finish, TimedOut
from perdure.store.rows import Claimer, Lane, NewNode
from perdure.worker.lifecycle import logged_at_the_end
from tests.worker.bodies import take_over

ONCE = Retry(2, backoff="none")


class Lines:
    """What was said of jobs: (level, facts) for each line."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog

    def of(self, event: str) -> list[tuple[str, dict[str, Any]]]:
        return [
            (record.levelname, facts)
            for record in self._caplog.records
            if (facts := getattr(record, "perdure", None)) and facts.get("event") == event
        ]

    def one(self, event: str) -> tuple[str, dict[str, Any]]:
        (line,) = self.of(event)
        return line


def told(caplog: pytest.LogCaptureFixture) -> list[tuple[str, dict[str, Any]]]:
    """The events that were told of, with their facts."""
    found = [getattr(record, "perdure", None) for record in caplog.records]
    return [(facts["event"], facts) for facts in found if facts and "event" in facts]


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    caplog.set_level(logging.DEBUG, "perdure")
    return Lines(caplog)


def test_a_job_that_completes_is_told_of_three_times(app: Perdure, lines: Lines) -> None:
    @app.job(queue="mail")
    def send(ctx: JobContext, to: str) -> None:
        ctx.metric(bytes=12)

    job = send.enqueue(to="a")
    app.worker().run(until_idle=True)

    about = {"job_id": str(job.id), "kind": "send", "queue": "mail"}
    assert lines.one("enqueued") == ("DEBUG", {"event": "enqueued", **about})
    level, facts = lines.one("claimed")
    assert (level, facts["attempt"], facts["job_id"]) == ("DEBUG", 1, str(job.id))
    level, facts = lines.one("completed")
    assert level == "INFO"
    assert facts.items() >= {**about, "attempt": 1, "metrics": {"bytes": 12}}.items()
    assert [facts["run_id"]] == [str(run.id) for run in app.runs(job)]
    assert isinstance(facts["duration_ms"], int)


def test_every_way_to_enqueue_is_told_of(app: Perdure, lines: Lines) -> None:
    @app.job
    def send(to: str) -> None: ...

    async def in_a_loop() -> None:
        await send.aenqueue(to="c")
        await app.aio.enqueue("send", {"to": "d"})
        await app.aio.enqueue_many([send.new(to="e"), send.new(to="f")])

    send.enqueue(to="a")
    app.enqueue_many([send.new(to="b")])
    asyncio.run(in_a_loop())
    assert len(lines.of("enqueued")) == 6


def test_a_failure_is_a_warning_while_there_is_another_attempt_and_an_error_at_the_last(
    app: Perdure, lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job(retry=ONCE)
    def fetch() -> None:
        raise ConnectionError("no route")

    fetch.enqueue()
    app.worker().run(until_idle=True)

    level, facts = lines.one("retried")
    assert (level, facts["attempt"], facts["error_type"], facts["error"]) == (
        "WARNING",
        1,
        "ConnectionError",
        "no route",
    )
    level, facts = lines.one("failed")
    assert (level, facts["attempt"]) == ("ERROR", 2)
    assert "attempt 2 of 2 failed for good: ConnectionError: no route" in caplog.text


def test_an_attempt_that_is_followed_by_a_job_of_its_own_is_no_error(app: Perdure, lines: Lines) -> None:
    @app.job(retry=Retry(2, backoff="none", as_new_job=True))
    def fetch() -> None:
        raise ConnectionError("no route")

    fetch.enqueue()
    app.worker().run(until_idle=True)
    assert [level for level, _ in lines.of("retried")] == ["WARNING"]
    assert [level for level, _ in lines.of("failed")] == ["ERROR"]


@pytest.mark.parametrize(("leaves", "event"), [(Skip("nothing new"), "skipped"), (Cancel(), "cancelled")])
def test_other_ends_are_told_of_too(app: Perdure, lines: Lines, leaves: Exception, event: str) -> None:
    @app.job
    async def leave() -> None:
        raise leaves

    leave.enqueue()
    app.worker().run(until_idle=True)
    assert lines.one(event)[0] == "INFO"


def test_a_snooze_is_told_of(app: Perdure, lines: Lines) -> None:
    @app.job
    def later(ctx: JobContext) -> None:
        raise Snooze(3600)

    later.enqueue()
    app.worker().run(until_idle=True)
    assert lines.one("snoozed")[0] == "INFO"


def test_the_end_of_a_run_whose_job_was_taken_is_told_of_as_lost(app: Perdure, lines: Lines) -> None:
    @app.job(retry=ONCE)
    def work(ctx: JobContext) -> None:
        if ctx.attempt == 1:  # somebody else closes the run
            closed = TimedOut(Failure("JobTimeout", "it was overdue"))
            app.store.finish([Finish(ctx.claim.live, closed, JobId(app.ids.new()))], app.clock.now())

    work.enqueue()
    app.worker().run(until_idle=True)
    assert lines.one("lost")[0] == "WARNING"
    assert len(lines.of("completed")) == 1


def test_a_job_that_ends_itself_is_told_of_once(app: Perdure, lines: Lines) -> None:
    @app.job
    def write(ctx: JobContext) -> None:
        with ctx.transaction():
            pass

    write.enqueue()
    app.worker().run(until_idle=True)
    assert lines.one("completed")[0] == "INFO"


def test_a_job_that_this_worker_does_not_know_is_told_of_when_it_is_parked(
    app: Perdure, path: Path, lines: Lines
) -> None:
    @app.job
    def strange() -> None: ...

    job = strange.enqueue()
    Perdure(path, durability="normal").worker().run(until_idle=True)
    level, facts = lines.one("parked")
    assert (level, facts["job_id"], facts["reason"]) == ("WARNING", str(job.id), "unknown_kind")


def test_secrets_are_not_told(app: Perdure, lines: Lines, caplog: pytest.LogCaptureFixture) -> None:
    @app.job
    def login(password: SecretStr) -> None:
        raise Fail(f"{password.get_secret_value()} is wrong")

    login.enqueue(password=SecretStr("hunter2!"))
    app.worker().run(until_idle=True)
    assert lines.one("failed")[0] == "ERROR"
    assert "hunter2!" not in caplog.text


def test_a_secret_that_a_handler_logs_is_not_passed_on(
    app: Perdure, lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job
    def login(ctx: JobContext, password: SecretStr) -> None:
        ctx.log.info("using %s", password.get_secret_value())
        try:
            raise ValueError(password.get_secret_value())
        except ValueError:
            ctx.log.exception("odd")

    login.enqueue(password=SecretStr("hunter2!"))
    app.worker().run(until_idle=True)
    assert "using •••" in caplog.text
    assert "ValueError: •••" in caplog.text
    assert "hunter2!" not in caplog.text


# -- what was written counts, not what the run reported ---------------------------------------------------------------


@pytest.mark.parametrize("leaves", [ValueError("no"), Snooze(60)])
@pytest.mark.parametrize("as_new_job", [False, True])
def test_a_job_that_was_cancelled_meanwhile_is_neither_failed_nor_tried_again(
    app: Perdure, lines: Lines, leaves: Exception, as_new_job: bool
) -> None:
    @app.job(retry=Retry(3, as_new_job=as_new_job))
    def leave(ctx: JobContext) -> None:
        app.cancel(ctx.job_id)
        raise leaves

    job = leave.enqueue()
    app.worker().run(until_idle=True)
    assert app.existing(job).state == "cancelled"
    assert lines.one("cancelled")[0] == "INFO"
    assert lines.of("failed") + lines.of("retried") + lines.of("snoozed") == []


def test_a_job_that_fails_with_its_dead_node_is_an_error_and_the_others_are_rescued(app: Perdure, lines: Lines) -> None:
    @app.job(retry=1)
    def last() -> None: ...

    @app.job
    def other() -> None: ...

    jobs = [last.enqueue(), other.enqueue()]
    node = NodeId(app.ids.new())
    app.store.register(NewNode(node, app.clock.now()))
    run_ids = [RunId(run_id) for run_id in app.ids.new_many(2)]
    app.store.claim([Lane("default", 2)], Claimer(node, None, run_ids, 60_000_000), app.clock.now())
    app.store.stop(node, "crash", app.clock.now())

    app.worker().run(until_idle=True)
    assert [app.existing(job).state for job in jobs] == ["failed", "completed"]
    level, facts = lines.one("failed")
    assert (level, facts["job_id"], facts["error_type"]) == ("ERROR", str(jobs[0].id), "NodeLost")
    level, facts = lines.one("rescued")
    assert (level, facts["jobs"]) == ("WARNING", 1)


def test_an_end_that_came_too_late_is_not_said_to_be_the_end_of_the_job(app: Perdure, lines: Lines) -> None:
    @app.job
    def late(ctx: JobContext) -> str:
        take_over(app, ctx)
        return "mine"

    job = late.enqueue()
    app.worker().run(until_idle=True)
    assert app.existing(job).result == "theirs"
    assert lines.one("lost")[0] == "WARNING"
    assert lines.of("completed") == []


def test_such_an_end_is_told_of_to_whoever_hears_only_of_trouble(
    app: Perdure, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "perdure")

    @app.job
    def late(ctx: JobContext) -> None:
        take_over(app, ctx)

    @app.job
    def quiet() -> None: ...

    late.enqueue()
    quiet.enqueue()
    app.worker().run(until_idle=True)
    assert [event for event, _ in told(caplog)] == ["lost"]


def test_a_job_that_goes_on_as_another_one_after_its_node_died_has_not_failed(app: Perdure, lines: Lines) -> None:
    @app.job(retry=Retry(3, backoff="none", as_new_job=True))
    def work() -> None: ...

    job = work.enqueue()
    node = NodeId(app.ids.new())
    app.store.register(NewNode(node, app.clock.now()))
    run_ids = [RunId(app.ids.new())]
    app.store.claim([Lane("default", 1)], Claimer(node, None, run_ids, 60_000_000), app.clock.now())
    app.store.stop(node, "crash", app.clock.now())

    app.worker().run(until_idle=True)
    assert app.existing(job).successor is not None
    assert lines.of("failed") == []
    assert lines.one("rescued")[1]["jobs"] == 1


def test_a_last_attempt_that_was_interrupted_is_said_to_have_failed(app: Perdure, lines: Lines) -> None:
    entered = threading.Event()

    @app.job(retry=1)
    async def wait() -> None:
        entered.set()
        await asyncio.Event().wait()

    job = wait.enqueue()
    with app.worker().running() as worker:
        assert entered.wait(60)
        worker.hurry()
    assert app.existing(job).state == "failed"
    level, facts = lines.one("failed")
    assert (level, facts["error_type"]) == ("ERROR", "Interrupted")
    assert lines.of("released") == []


def test_a_job_that_needs_newer_code_is_told_apart_from_one_of_an_unknown_kind(
    app: Perdure, path: Path, lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    app.job(name="work", version=2)(lambda: None)
    app.enqueue("work")
    older = Perdure(path, durability="normal")
    older.job(name="work")(lambda: None)
    older.worker().run(until_idle=True)

    assert lines.one("parked")[1]["reason"] == "newer_version"
    assert "this worker's code is older than the one that enqueued it" in caplog.text


def test_a_job_that_was_there_already_is_told_apart_from_a_new_one(
    app: Perdure, lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job
    def send() -> None: ...

    for _ in range(2):
        send.options(idempotency_key="k").enqueue()
    new, again = [record.getMessage() for record in caplog.records if record.getMessage().startswith("enqueued")]
    assert again == f"{new}, which was there already"


def test_an_end_is_told_of_once_it_is_written(app: Perdure, path: Path, lines: Lines) -> None:
    """Until then the job runs, whatever its handler has said."""
    states: list[str] = []

    class Look(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            facts = getattr(record, "perdure", None)
            if facts and facts["event"] == "completed":
                with closing(sqlite3.connect(path)) as reader:
                    states.extend(state for (state,) in reader.execute("SELECT state FROM perdure_outcome"))

    @app.job
    def work() -> None: ...

    look = Look()
    logging.getLogger("perdure").addHandler(look)
    try:
        work.enqueue()
        app.worker().run(until_idle=True)
    finally:
        logging.getLogger("perdure").removeHandler(look)
    assert states == ["completed"]


PROGRAM = """
import sys
from perdure import Fail, Perdure

app = Perdure(sys.argv[1])

@app.job
def fail() -> None:
    raise Fail("no")

fail.enqueue()
app.worker().run(until_idle=True)
"""


def test_a_program_that_sets_up_no_logging_hears_nothing(path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM, path], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("", "")


# -- decided by hand -------------------------------------------------------------------------------------------------


def by_hand(lines: Lines) -> list[tuple[str, str, str]]:
    """Verb, job or queue, and state of each line; the line is at INFO."""
    told = lines.of("by_hand")
    assert {level for level, _ in told} <= {"INFO"}
    return [(facts["verb"], facts.get("job_id", facts["queue"]), facts.get("state", "-")) for _, facts in told]


@pytest.fixture
def note(app: Perdure) -> Any:
    @app.job
    def note(text: str) -> None: ...

    return note


@pytest.mark.parametrize("door", ["plain", "async"])
def test_every_verb_by_hand_is_told_of_once(app: Perdure, note: Any, lines: Lines, door: str) -> None:
    def call(verb: str, *args: Any, **kwargs: Any) -> Any:
        if door == "plain":
            return getattr(app, verb)(*args, **kwargs)
        return asyncio.run(getattr(app.aio, verb)(*args, **kwargs))

    one, two, three = (note.enqueue(text) for text in "abc")
    call("pause", one)
    call("resume", one)
    call("set_priority", one, 5)
    call("set_priority", one, 0)
    call("move", two, to="back")
    call("edit", one, tags=["x"])
    call("cancel", one)
    call("retry", one)
    old = call("supersede", two, note.new("d"))
    call("cancel", three)
    again = call("retry", three, as_new=True)
    call("delete", three)
    ids = {name: str(job.id) for name, job in (("one", one), ("two", two), ("three", three), ("again", again))}
    assert by_hand(lines) == [
        ("pause", ids["one"], "paused"),
        ("resume", ids["one"], "queued"),
        ("set_priority", ids["one"], "queued"),
        ("set_priority", ids["one"], "queued"),
        ("move", ids["two"], "queued"),
        ("edit", ids["one"], "queued"),
        ("cancel", ids["one"], "cancelled"),
        ("retry", ids["one"], "queued"),
        ("supersede", ids["two"], "cancelled"),
        ("cancel", ids["three"], "cancelled"),
        ("retry", ids["again"], "queued"),
        ("delete", ids["three"], "cancelled"),
    ]
    facts = {facts["verb"]: facts for _, facts in lines.of("by_hand")}
    assert facts["supersede"]["superseded_by"] == str(old.superseded_by)
    assert facts["retry"]["retry_of"] == ids["three"]
    assert not any("in_transaction" in line for line in facts.values())


@pytest.mark.parametrize("door", ["plain", "async"])
def test_queues_that_are_paused_by_hand_are_told_of_once(app: Perdure, lines: Lines, door: str) -> None:
    for _ in range(2):
        for verb in ("pause", "pause", "resume", "resume"):
            if door == "plain":
                getattr(app.queues, verb)("mail")
            else:
                asyncio.run(getattr(app.aio.queues, verb)("mail"))
    assert by_hand(lines) == [("pause_queue", "mail", "-"), ("resume_queue", "mail", "-")] * 2


def test_what_changes_nothing_or_is_refused_is_not_told_of(app: Perdure, note: Any, lines: Lines) -> None:
    job, other = note.enqueue("a"), note.enqueue("b")
    app.cancel(job)
    before = by_hand(lines)
    app.cancel(job)
    app.resume(other)
    app.set_priority(other, 0)
    app.edit(other)
    impossible: list[Callable[[], object]] = [
        lambda: app.pause(job),
        lambda: app.delete(other),
        lambda: app.retry(other, as_new=True),
        lambda: app.cancel(other, expect_version=99),
        lambda: app.move(job, to="front"),
    ]
    for refused in impossible:
        with pytest.raises(TransitionRefused):
            refused()
    assert by_hand(lines) == before


def test_each_job_of_a_bulk_verb_is_told_of_when_it_is_done(app: Perdure, note: Any, lines: Lines) -> None:
    jobs = [note.enqueue(text) for text in "ab"]
    assert app.pause_all(kind="note") == 2
    assert sorted(by_hand(lines)) == sorted(("pause", str(job.id), "paused") for job in jobs)
    assert not any("in_transaction" in facts for _, facts in lines.of("by_hand"))


def test_in_the_callers_transaction_the_line_says_so(app: Perdure, note: Any, lines: Lines, path: Path) -> None:
    job = note.enqueue("a")
    with pytest.raises(OSError, match="no"), app.transaction():
        app.pause(job)
        app.queues.pause("mail")
        app.cancel_all(kind="note")
        raise OSError("no")
    with closing(sqlite3.connect(path)) as connection:
        app.pause(job, tx=connection)
    assert app.existing(job).state == "queued"
    told = lines.of("by_hand")
    assert [facts["verb"] for _, facts in told] == ["pause", "pause_queue", "cancel", "pause"]
    assert all(facts["in_transaction"] for _, facts in told)


def test_nothing_more_is_read_where_nobody_listens(app: Perdure, note: Any, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "perdure")
    job = note.enqueue("a")
    app.cancel(job)
    assert caplog.records == []


# -- the traceback ---------------------------------------------------------------------------------------------------


def about(caplog: pytest.LogCaptureFixture, event: str) -> logging.LogRecord:
    (record,) = [one for one in caplog.records if getattr(one, "perdure", {}).get("event") == event]
    return record


def test_a_failure_carries_its_exception_for_whatever_reads_records(
    app: Perdure, lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job(retry=1)
    def fetch() -> None:
        raise ConnectionError("no route")

    fetch.enqueue()
    app.worker().run(until_idle=True)

    record = about(caplog, "failed")
    assert record.exc_info is not None
    kind, error, trace = record.exc_info
    assert (kind, str(error)) == (ConnectionError, "no route")
    assert trace is not None
    assert trace.tb_frame.f_code.co_name == "fetch", "without the frames of the worker above it"


def test_the_exception_of_a_job_with_secrets_is_one_that_holds_none(
    app: Perdure, lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job(retry=1)
    def login(password: SecretStr) -> None:
        raise ValueError(f"{password.get_secret_value()} is wrong")

    login.enqueue(password=SecretStr("hunter2!"))
    app.worker().run(until_idle=True)

    record = about(caplog, "failed")
    assert record.exc_info is not None
    kind, error, trace = record.exc_info
    assert (kind is not None and kind.__name__, str(error), trace) == ("ValueError", "••• is wrong", None)
    for text in (record.exc_text, logging.Formatter().formatException(record.exc_info)):
        assert text is not None
        assert "in login" in text
        assert "hunter2!" not in text


def test_the_next_attempt_is_announced_with_its_delay(
    app: Perdure, lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    @app.job(retry=Retry(3, backoff="fixed", base=240, jitter=0))
    def fetch() -> None:
        raise ConnectionError("no route")

    job = fetch.enqueue()
    app.worker().run(until_idle=True)

    record = about(caplog, "retried")
    short = job.id.hex[-8:]
    assert record.getMessage() == f"fetch {short}: attempt 1 of 3 failed, retrying in 4 min: ConnectionError: no route"
    assert lines.one("retried")[1]["retry_in_ms"] == 240_000
    assert record.exc_info is not None


# -- which job a line is of ------------------------------------------------------------------------------------------


def test_every_line_of_a_job_says_which_run_it_is_of(app: Perdure, caplog: pytest.LogCaptureFixture) -> None:
    """By whatever logger, also one that passes nothing on to the root, and with `extra=` of any name."""
    seen: list[logging.LogRecord] = []

    class Own(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            seen.append(record)

    apart = logging.getLogger("shop.apart")
    apart.propagate = False
    apart.addHandler(own := Own())

    @app.job(queue="mail")
    def plain() -> None:
        apart.warning("plain", extra={"job_id": "mine", "kind": 3})

    @app.job
    async def coroutine() -> None:
        apart.warning("coroutine")
        await asyncio.to_thread(apart.warning, "from a thread of it")

    jobs = [plain.enqueue(), coroutine.enqueue(), plain.enqueue()]
    try:
        apart.warning("outside")
        app.worker(concurrency=1).run(until_idle=True)
        apart.warning("afterwards")
    finally:
        apart.removeHandler(own)

    facts: dict[str, Any] = {record.getMessage(): getattr(record, "perdure", None) for record in seen}
    assert [facts["outside"], facts["afterwards"]] == [None, None]
    runs = {run.job_id: run for run in app.runs()}
    assert facts["plain"] == {
        "job_id": str(jobs[2].id),
        "kind": "plain",
        "queue": "mail",
        "attempt": 1,
        "run_id": str(runs[jobs[2].id].id),
    }
    assert facts["coroutine"] == facts["from a thread of it"]
    assert facts["coroutine"]["job_id"] == str(jobs[1].id)
    assert [record.job_id for record in seen if record.getMessage() == "plain"] == ["mine", "mine"]  # type: ignore[attr-defined]


def test_a_record_factory_of_the_program_stays_in_use(app: Perdure) -> None:
    before = logging.getLogRecordFactory()
    made: list[logging.LogRecord] = []

    def own(*args: Any, **kwargs: Any) -> logging.LogRecord:
        made.append(before(*args, **kwargs))
        return made[-1]

    @app.job
    def work() -> None:
        logging.getLogger("shop").warning("here")

    work.enqueue()
    logging.setLogRecordFactory(own)
    try:
        app.worker().run(until_idle=True)
        assert logging.getLogRecordFactory() is own
    finally:
        logging.setLogRecordFactory(before)
    (record,) = [record for record in made if record.getMessage() == "here"]
    assert record.perdure["kind"] == "work"  # type: ignore[attr-defined]


# -- who decides -----------------------------------------------------------------------------------------------------


def test_what_is_done_by_hand_is_told_with_the_principal(app: Perdure, lines: Lines) -> None:
    @app.job
    def send() -> None: ...

    @app.job
    def cleaner(job_id: str) -> None:
        app.cancel(job_id)

    jobs = [send.options(queue="later").enqueue() for _ in range(4)]
    app.pause(jobs[0])
    token = principal.set("ann@example.org")
    try:
        app.cancel(jobs[1])
        app.queues.pause("mail")
    finally:
        principal.reset(token)
    by_a_job = cleaner.enqueue(str(jobs[2].id))
    on_behalf = cleaner.options(principal="bob").enqueue(str(jobs[3].id))
    app.worker(["default"]).run(until_idle=True)

    told = [(facts["verb"], facts["principal"]) for _, facts in lines.of("by_hand")]
    user = f"{getpass.getuser()}@{socket.gethostname()}"
    assert told[:3] == [("pause", user), ("cancel", "ann@example.org"), ("pause_queue", "ann@example.org")]
    assert sorted(told[3:]) == sorted([("cancel", f"job {by_a_job.id}"), ("cancel", "bob")])
    assert on_behalf.principal == "bob"


def test_changes_of_schedules_by_hand_are_told_with_the_principal(app: Perdure, lines: Lines) -> None:
    send = app.job(name="send", queue="later")(lambda: None)
    noon = datetime(2026, 3, 1, 12, tzinfo=UTC)

    def told_of(act: Callable[[], object]) -> list[dict[str, Any]]:
        before = len(lines.of("by_hand"))
        act()
        return [facts for _, facts in lines.of("by_hand")[before:]]

    def verbs(act: Callable[[], object]) -> list[str]:
        return [facts["verb"] for facts in told_of(act)]

    token = principal.set("ann@example.org")
    try:
        (facts,) = told_of(lambda: app.schedules.put("tidy", "0 3 * * *", kind=send))
        assert facts == {
            "event": "by_hand",
            "verb": "put_schedule",
            "schedule": "tidy",
            "principal": "ann@example.org",
        }
        assert verbs(lambda: app.schedules.put("tidy", "0 3 * * *", kind=send)) == [], "a repeat changes nothing"
        assert verbs(lambda: app.schedules.put("tidy", "0 4 * * *", kind=send)) == ["put_schedule"]
        (facts,) = told_of(lambda: app.schedules.trigger("tidy", noon))
        (job,) = app.jobs(kind="send")
        assert (facts["verb"], facts["job_id"]) == ("trigger_schedule", str(job.id))
        assert verbs(lambda: app.trigger("tidy", noon)) == [], "the slot was taken already"
        day = timedelta(days=1)
        assert verbs(lambda: list(app.schedules.backfill("tidy", noon - 2 * day, noon))) == ["trigger_schedule"] * 2
        assert verbs(lambda: app.schedules.disable("tidy")) == ["disable_schedule"]
        assert verbs(lambda: app.schedules.disable("tidy")) == []
        assert verbs(lambda: app.schedules.enable("tidy")) == ["enable_schedule"]
        assert verbs(lambda: app.schedules.enable("tidy")) == []
        (facts,) = told_of(lambda: app.schedules.rename("tidy", "sweep"))
        assert (facts["verb"], facts["schedule"], facts["to"]) == ("rename_schedule", "tidy", "sweep")
        assert verbs(lambda: app.schedules.remove("sweep", cancel_pending=True)) == ["remove_schedule", *["cancel"] * 3]
    finally:
        principal.reset(token)
    assert {facts["principal"] for _, facts in lines.of("by_hand")} == {"ann@example.org"}


def test_a_schedule_is_told_to_be_changed_in_the_transaction_of_the_caller(
    app: Perdure, lines: Lines, caplog: pytest.LogCaptureFixture
) -> None:
    send = app.job(name="send")(lambda: None)
    with app.transaction():
        app.schedules.put("tidy", "0 3 * * *", kind=send)
    assert lines.one("by_hand")[1]["in_transaction"] is True
    caplog.clear()
    app.schedules.rename("tidy", "sweep")
    message = about(caplog, "by_hand").getMessage()
    assert re.fullmatch(r"rename of schedule tidy by hand, by \S+, to sweep", message)


def test_what_the_code_declares_is_not_by_hand(app: Perdure, lines: Lines) -> None:
    app.schedule("0 3 * * *")(app.job(name="send")(lambda: None))
    app.worker().run(until_idle=True)
    assert [one.name for one in app.schedules.list()] == ["send"]
    assert lines.of("by_hand") == []


def test_changes_of_many_jobs_that_are_rolled_back_are_not_told(app: Perdure, lines: Lines) -> None:
    send = app.job(name="send")(lambda: None)
    job = send.enqueue()
    with pytest.raises(ZeroDivisionError), logged_at_the_end(lambda: True):
        app.cancel(job)
        raise ZeroDivisionError
    assert lines.of("by_hand") == []
    with logged_at_the_end(lambda: True):
        app.cancel(send.enqueue())
    assert lines.one("by_hand")[1]["verb"] == "cancel"
