"""`perdure worker`: finds the app, says what it is about to do, and runs its jobs. (Signals: tests/worker.)"""

from __future__ import annotations

import io
import json
import logging
import pty
import re
from pathlib import Path

import pytest

from perdure import Perdure as App
from perdure import State
from perdure.cli.log_lines import HumanFormatter, is_colourful
from perdure.ops.doctor import examine
from tests.cli.terminal import Perdure, Ran, process, refusal

SHOP = """
import logging
from perdure import Perdure, current

app = Perdure({url}durability="normal", imports=["more_jobs"])

@app.job
def send(to: str) -> str:
    logging.getLogger("shop").info("sending to %s", to)
    current().log.info("sent")
    return f"hi {{to}}"
"""

MORE = """
from shop import app

@app.job(queue="other")
async def more() -> None: ...
"""

STUCK = """
import threading
from perdure import Perdure
from perdure.clock import SystemClock

class Stuck(SystemClock):
    calls = 0

    def boottime(self):
        if threading.current_thread().name == "perdure-store":
            self.calls += 1
            if self.calls > 9:
                threading.Event().wait()
        return super().boottime()

app = Perdure("jobs.db", clock=Stuck(), lease_s=0.6, busy_timeout_s=0.2)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(SHOP.format(url='"jobs.db", '))
    (tmp_path / "more_jobs.py").write_text(MORE)
    return tmp_path


@pytest.fixture
def here(folder: Path) -> App:
    """The same kinds in the test's process."""
    app = App(folder / "jobs.db", durability="normal")

    @app.job
    def send(to: str) -> str:
        return to

    @app.job(queue="other")
    async def more() -> None: ...

    return app


def header(ran: Ran) -> dict[str, str]:
    assert ran.status == 0, ran
    return dict(line.split(maxsplit=1) for line in ran.out.splitlines())


def test_it_runs_the_jobs_and_says_where_they_are(folder: Path, here: App) -> None:
    job, other = here.enqueue("send", {"to": "you"}), here.enqueue("more")

    ran = process("worker", "shop:app", "--until-idle", cwd=folder)

    told = header(ran)
    (node,) = here.store.nodes(10)
    assert told["app"] == "shop:app"
    assert told["database"] == f"{folder / 'jobs.db'} (found)"
    assert told["node"].replace("-", "") == node.id.hex()
    assert told["queues"] == "all"
    assert told["kinds"] == "more, send"
    assert told["others"] == "none: this is the only node"
    assert node.stop_reason == "clean_shutdown"
    assert here.existing(job).result == "hi you"
    assert here.existing(other).state is State.COMPLETED
    short = job.id.hex[-8:]
    assert f"INFO    [send {short}] shop: sending to you" in ran.err
    assert f"INFO    [send {short}] sent" in ran.err
    assert "worker started as node" in ran.err
    assert f"INFO    completed send {short} after " in ran.err
    assert examine(here.store) == []


def test_a_database_that_is_not_there_is_made_and_that_is_said(folder: Path) -> None:
    told = header(process("worker", "shop", "--until-idle", cwd=folder))

    assert told["app"] == "shop:app", "the one that was found in the module"
    assert told["database"] == f"{folder / 'jobs.db'} (created)"
    assert (folder / "jobs.db").exists()


def test_only_the_named_queues_are_served(folder: Path, here: App) -> None:
    job, other = here.enqueue("send", {"to": "you"}), here.enqueue("more")

    arguments = ("--queue", "other", "-q", "third", "--concurrency", "2", "--round-robin", "--exclusive", "one")
    told = header(process("worker", "shop", *arguments, "--until-idle", cwd=folder))

    assert told["queues"] == "other, third"
    assert here.existing(job).state is State.QUEUED
    assert here.existing(other).state is State.COMPLETED
    assert examine(here.store) == []


@pytest.mark.parametrize("way", ["option", "environment", "project"])
def test_the_app_may_be_named_elsewhere(folder: Path, way: str) -> None:
    if way == "project":
        (folder / "pyproject.toml").write_text('[tool.perdure]\napp = "shop:app"\n')
    arguments = ("--app", "shop:app") if way == "option" else ()
    environment = {"PERDURE_APP": "shop:app"} if way == "environment" else {}

    assert header(process("worker", *arguments, "--until-idle", cwd=folder, **environment))["app"] == "shop:app"


def test_another_database_can_be_named(folder: Path) -> None:
    told = header(process("worker", "shop", "--url", "sqlite:///other.db", "--until-idle", cwd=folder))

    assert told["database"] == f"{folder / 'other.db'} (created)"
    assert not (folder / "jobs.db").exists()


def test_an_app_without_a_database_takes_the_one_of_the_environment(folder: Path) -> None:
    (folder / "shop.py").write_text(SHOP.format(url=""))

    told = header(process("worker", "shop", "--until-idle", cwd=folder, PERDURE_URL="of_env.db"))
    assert told["database"] == f"{folder / 'of_env.db'} (created)"


def test_an_app_with_its_own_logging_keeps_it(folder: Path, here: App) -> None:
    (folder / "shop.py").write_text(
        "import logging\nlogging.basicConfig(format='own %(message)s')\n" + SHOP.format(url='"jobs.db", ')
    )
    here.enqueue("send", {"to": "you"})

    ran = process("worker", "shop", "--until-idle", cwd=folder)

    assert ran.status == 0
    assert "sending" not in ran.err  # the app's own level
    assert "INFO" not in ran.err


def test_log_lines_can_be_had_as_json_whatever_the_app_has_set_up(folder: Path, here: App) -> None:
    (folder / "shop.py").write_text(
        "import logging\nlogging.basicConfig(format='own %(message)s')\n" + SHOP.format(url='"jobs.db", ')
    )
    job = here.enqueue("send", {"to": "you"})

    ran = process("worker", "shop", "--until-idle", "--log-format", "json", "--log-level", "debug", cwd=folder)

    assert ran.out == "", "everything is in the log lines"
    lines = [json.loads(line) for line in ran.err.splitlines()]
    assert next(line["kinds"] for line in lines if line.get("event") == "started") == ["more", "send"]
    (completed,) = (line for line in lines if line.get("event") == "completed")
    assert completed["job_id"] == str(job.id)
    assert (completed["level"], completed["kind"], completed["attempt"]) == ("info", "send", 1)
    assert [line["message"] for line in lines if line["logger"] == "shop"] == ["sending to you"]
    assert [line["job_id"] for line in lines if line["message"] == "sent"] == [str(job.id)]
    assert [line["event"] for line in lines if line["level"] == "debug" and "event" in line] == ["claimed"]


def test_a_kind_that_cannot_run_is_told_of_at_the_start(folder: Path, here: App) -> None:
    with (folder / "more_jobs.py").open("a") as module:
        module.write("\n@app.job\ndef broken(*args: int) -> None: ...\n")
    job = here.enqueue("send", {"to": "you"})

    ran = process("worker", "shop", "--until-idle", cwd=folder)
    assert "ERROR   jobs of kind broken cannot run: " in ran.err
    assert here.existing(job).state is State.COMPLETED


def test_a_level_counts_where_the_app_keeps_its_own_logging(folder: Path, here: App) -> None:
    (folder / "shop.py").write_text(
        "import logging\nlogging.basicConfig(format='own %(message)s')\n" + SHOP.format(url='"jobs.db", ')
    )
    here.enqueue("send", {"to": "you"})

    ran = process("worker", "shop", "--until-idle", "--log-level", "info", cwd=folder)
    assert "own completed send" in ran.err
    assert "sending" not in ran.err


def test_a_queue_that_nobody_has_used_is_told_of_at_the_start(folder: Path, here: App) -> None:
    """One that a kind has is known before its first job: `other`."""
    here.enqueue("send", {"to": "you"}, queue="mail")

    queues = ("-q", "mial", "-q", "mail", "-q", "nosuch", "-q", "other")
    ran = process("worker", "shop", "--until-idle", *queues, cwd=folder)

    assert ran.status == 0
    [near, strange] = [line.partition("WARNING ")[2] for line in ran.err.splitlines() if "no queue" in line]
    assert near == "no queue is called 'mial' yet; did you mean 'mail'?"
    assert strange == "no queue is called 'nosuch' yet; there are default, mail, other"


def test_the_first_screen_counts_the_other_nodes(folder: Path, here: App) -> None:
    with here.worker(["elsewhere"]).running():
        assert header(process("worker", "shop", "--until-idle", cwd=folder))["others"] == "1 node on this database"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ((), "[app_not_found]"),
        (("shop:missing",), "[app_not_found]"),
        (("nowhere:app",), "[app_import_failed]"),
        (("shop", "--concurrency", "0"), "perdure: --concurrency must be a whole number"),
        (("shop", "--grace", "-1"), "perdure: --grace must be a number, at least 0, not '-1'"),
        (("shop", "--queue", ""), "perdure: --queue is empty"),
        (("shop", "--exclusive", ""), "perdure: --exclusive is empty"),
        (("shop", "--url", "nowhere/at/all.db"), "[database_path]"),
        (("shop", "--url", "gopher://x"), "[url_unsupported]"),
    ],
)
def test_what_cannot_work_is_one_line(perdure: Perdure, folder: Path, arguments: tuple[str, ...], told: str) -> None:
    assert told in refusal(perdure("worker", *arguments, cwd=folder))


def test_an_app_named_twice_is_a_wrong_option(perdure: Perdure, folder: Path) -> None:
    ran = perdure("worker", "shop", "--app", "shop:app", cwd=folder)

    assert ran.status == 2
    assert "name the app once" in ran.err


def test_a_module_of_imports_that_is_missing_is_one_line(perdure: Perdure, folder: Path) -> None:
    (folder / "more_jobs.py").unlink()

    assert "[imports_failed]" in refusal(perdure("worker", "shop", cwd=folder))


def test_a_hung_connection_ends_the_process_with_its_own_status(folder: Path) -> None:
    (folder / "stuck.py").write_text(STUCK)

    ran = process("worker", "stuck", cwd=folder)

    assert ran.status == 75
    assert "the store thread has not moved for" in ran.err


# -- log lines ---------------------------------------------------------------------------------------------------------

LOUD = """
import asyncio, logging, sys
from perdure import JobContext, Perdure

app = Perdure("jobs.db", durability="normal")
logging.basicConfig(format="the app's own: %(message)s", level="INFO")
shop = logging.getLogger("shop")

def said(ctx: JobContext) -> None:
    shop.info("by its logger")
    ctx.log.info("by the context")
    raise ValueError("a\\nbad one")

plain = app.job(name="plain", retry=1)(said)
isolated = app.job(name="isolated", retry=1, isolation="process")(said)

@app.job(retry=1)
async def coroutine(ctx: JobContext) -> None:
    said(ctx)
"""


def test_lines_of_threads_processes_and_coroutines_name_their_job_and_failures_have_a_traceback(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(LOUD)
    kinds = ("plain", "coroutine", "isolated")
    here = App(tmp_path / "jobs.db", durability="normal")
    for kind in kinds:
        here.job(name=kind, retry=1)(lambda: None)
    jobs = {kind: here.enqueue(kind, {}) for kind in kinds}

    ran = process("worker", "shop", "--until-idle", "--log-format", "json", cwd=tmp_path)

    lines = [json.loads(line) for line in ran.err.splitlines()]  # all of them, those of the child too
    for kind, job in jobs.items():
        (run,) = here.runs(job)
        of_it = [line for line in lines if line.get("run_id") == str(run.id)]
        facts = {"job_id": str(job.id), "kind": kind, "queue": "default", "attempt": 1}
        assert all(line.items() >= facts.items() for line in of_it)
        assert [(line["logger"], line["message"]) for line in of_it[:2]] == [
            ("shop", "by its logger"),
            ("perdure.job", "by the context"),
        ]
        (failed,) = of_it[2:]
        assert failed["message"] == f"{kind} {job.id.hex[-8:]}: attempt 1 of 1 failed for good: ValueError: a bad one"
        assert "in said" in failed["traceback"]
        assert failed["traceback"].endswith("ValueError: a\nbad one")
        assert [line.message for line in here.logs(job)] == ["by its logger", "by the context"], "kept once"
    assert all(line["time"].endswith("Z") for line in lines)


def record(name: str = "shop", **attributes: object) -> logging.LogRecord:
    made = logging.LogRecord(name, logging.WARNING, "", 0, "it is %s", ("late",), None)
    made.created = 1_768_478_400.5
    vars(made).update(attributes)
    return made


FACTS = {"job_id": "01a1ecf8-4125-7000-b6a2-c25dc2bd7700", "kind": "send", "attempt": 2}


@pytest.mark.parametrize(
    ("name", "facts", "shown"),
    [
        ("shop", None, "shop: it is late"),
        ("shop", FACTS, "[send c2bd7700 #2] shop: it is late"),
        ("perdure.job", FACTS | {"attempt": 1}, "[send c2bd7700] it is late"),
        ("perdure.lifecycle", FACTS | {"event": "failed"}, "it is late"),
        ("shop", "something of the app's own", "shop: it is late"),
    ],
)
def test_people_see_utc_the_level_the_job_and_the_logger(name: str, facts: object, shown: str) -> None:
    made = record(name, perdure=facts)

    assert HumanFormatter().format(made) == f"2026-01-15 12:00:00.500Z WARNING {shown}"
    assert re.sub(r"\x1b\[[0-9;]*m", "", HumanFormatter(colour=True).format(made)) == HumanFormatter().format(made)


def test_colours_mark_the_level_and_the_job_and_no_text_brings_its_own() -> None:
    made = record(perdure=FACTS | {"kind": "\x1b[31msend"})

    text = HumanFormatter(colour=True).format(made)
    assert "\x1b[35mWARNING \x1b[0m" in text
    assert "\x1b[36m[\\x1b[31msend c2bd7700 #2] \x1b[0mshop: it is late" in text


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "dumb"}, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb", "FORCE_COLOR": "1"}, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
    ],
)
def test_colour_is_for_terminals_and_no_color_is_respected(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: bool
) -> None:
    for name in ("TERM", "NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    terminal, other_end = pty.openpty()
    with open(other_end, "w") as out, open(terminal):  # noqa: PTH123
        assert is_colourful(out) is expected
    assert is_colourful(io.StringIO()) is ("FORCE_COLOR" in environment and "NO_COLOR" not in environment)
