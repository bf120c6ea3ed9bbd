"""Handlers with isolation="process": real children, real signals, real deaths. The handlers are in `isolated`."""

from __future__ import annotations

import importlib
import json
import logging
import os
import resource
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from perdure import Job, JobContext, Perdure, Run, State
from perdure.job.model import Failure
from perdure.job.reports import (
    Cancelled,
    Completed,
    Failed,
    Released,
    Report,
    Skipped,
    Snoozed,
    TimedOut,
    Unreadable,
)
from perdure.ops.doctor import examine, is_healthy
from perdure.worker.executors import processes
from perdure.worker.executors.wire import CUT_OFF, Ending, Unframer, ending_frame, ending_of
from perdure.worker.worker import EXIT_CLEAN
from tests.worker.patience import eventually

ROOT = Path(__file__).parents[2]
WORKER = "from tests.worker.isolated import app; app.worker().run()"
BEGIN = 'from perdure import Perdure\n\napp = Perdure("jobs.db", durability="normal")\n'


@pytest.fixture
def jobs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module `isolated`, freshly imported, on a fresh database; with a doctor's visit at the end."""
    monkeypatch.setenv("PERDURE_URL", str(tmp_path / "jobs.db"))
    sys.modules.pop("tests.worker.isolated", None)
    module = importlib.import_module("tests.worker.isolated")
    yield module
    findings = examine(module.app.store)
    module.app.close()
    assert is_healthy(findings), findings


@pytest.fixture
def fifo(tmp_path: Path) -> str:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return str(path)


def drained(jobs: Any, concurrency: int = 2) -> None:
    assert jobs.app.worker(concurrency=concurrency).run(until_idle=True) == EXIT_CLEAN


def ended(jobs: Any, job: Job) -> Job:
    app: Perdure = jobs.app
    return app.existing(job)


def last_run(jobs: Any, job: Job) -> Run:
    app: Perdure = jobs.app
    *_, run = app.runs(job)
    return run


def is_gone(pid: int) -> bool:
    """Dead and reaped, if it was a child of ours."""
    return not Path(f"/proc/{pid}").exists()


# -- what comes back -------------------------------------------------------------------------------------------------


def test_a_handler_runs_in_a_process_of_its_own_with_the_workers_path_and_folder(jobs: Any) -> None:
    plain, coroutine, inside = jobs.add.enqueue(1, 2), jobs.add_later.enqueue(3, 4), jobs.in_the_worker.enqueue()

    drained(jobs)

    result = ended(jobs, plain).result
    assert result["sum"] == 3
    assert (result["cwd"], result["path"]) == (str(Path.cwd()), sys.path)
    assert ended(jobs, coroutine).result[0] == 7
    assert ended(jobs, inside).result == os.getpid()
    assert os.getpid() not in {result["pid"], ended(jobs, coroutine).result[1]}


def test_a_child_is_used_again_and_none_is_left_in_the_end(jobs: Any) -> None:
    many = jobs.add.enqueue_many([{"first": n, "second": n} for n in range(20)])

    drained(jobs, concurrency=1)

    (pid,) = {ended(jobs, job).result["pid"] for job in many}
    assert is_gone(pid)


def test_a_child_uses_the_database_that_the_worker_was_given(jobs: Any, tmp_path: Path) -> None:
    jobs.app.url = tmp_path / "another.db"  # as `perdure worker --url` does

    job = jobs.reads_its_job.enqueue()
    drained(jobs)

    assert ended(jobs, job).result == str(job.id)


def test_a_module_that_names_no_database_is_given_the_workers(
    jobs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PERDURE_URL")
    jobs.app.url = tmp_path / "another.db"

    job = jobs.reads_its_job.enqueue()
    drained(jobs)

    assert ended(jobs, job).result == str(job.id)


def test_an_error_comes_back_with_its_traceback(jobs: Any) -> None:
    job = jobs.raises.enqueue()

    drained(jobs)

    run = last_run(jobs, job)
    assert ended(jobs, job).state is State.FAILED  # its policy retries a KeyError only
    assert (run.error_type, run.error_message) == ("ValueError", "no such luck")
    assert run.row.traceback is not None
    assert 'isolated.py", line' in run.row.traceback
    assert "perdure/worker" not in run.row.traceback


def test_a_handlers_signals_mean_what_they_mean_elsewhere(jobs: Any) -> None:
    expected = {
        "fail": (State.FAILED, 1),
        "retry": (State.SCHEDULED, 1),
        "snooze": (State.SCHEDULED, 0),
        "cancel": (State.CANCELLED, 1),
        "skip": (State.SKIPPED, 1),
    }
    expected |= {f"return {which}": became for which, became in expected.items()}
    enqueued = {which: jobs.signals.enqueue(which) for which in expected}

    drained(jobs)

    after = {which: ended(jobs, job) for which, job in enqueued.items()}
    assert {which: (job.state, job.attempts) for which, job in after.items()} == expected


def test_what_a_handler_tells_is_kept_with_its_run(jobs: Any) -> None:
    job = jobs.tells.enqueue()

    drained(jobs)

    assert ended(jobs, job).result == 1
    lines = [(line.level, line.message) for line in jobs.app.logs(job)]
    assert lines == [("INFO", "by the context"), ("WARNING", "by a logger")]
    row = last_run(jobs, job).row
    assert json.loads(row.metrics or "") == {
        "inside": 1,  # by the middleware
        "progress": {"done": 3, "total": 4, "note": "nearly"},
        "rows": 12,
    }
    assert json.loads(row.artifacts or "") == ["out.csv"]


def test_progress_is_seen_while_the_handler_runs(jobs: Any, fifo: str) -> None:
    job = jobs.leaves_when_told.enqueue(fifo)
    with jobs.app.worker().running(), open(fifo) as line:  # noqa: PTH123
        assert line.readline() == "here\n"
        eventually(lambda: last_run(jobs, job).row.metrics is not None)  # the middleware's, at its next turn
        jobs.app.cancel(job)
        assert line.readline() == "leaving\n"
        eventually(lambda: ended(jobs, job).state is State.CANCELLED)


def test_a_job_asked_for_by_a_handler_is_enqueued_when_that_completes(jobs: Any) -> None:
    job = jobs.asks_for_more.enqueue()

    drained(jobs)

    more = jobs.app.get(ended(jobs, job).result)
    assert more.state is State.COMPLETED
    assert (more.tags, more.row.parent_id, more.params) == (("more",), job.id.bytes, {"n": 1})


@pytest.mark.parametrize("how", ["done", "tx", "crash"])
def test_a_handler_ends_its_job_together_with_rows_of_its_own(
    jobs: Any, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    job = jobs.writes.enqueue(how)

    drained(jobs)

    assert ended(jobs, job).state is State.COMPLETED  # also if the process dies after that
    assert ended(jobs, job).result == {"how": how}
    with jobs.app.transaction() as tx:
        assert len(tx.execute("SELECT text FROM own").fetchall()) == 1
    assert not [record for record in caplog.records if record.levelno > logging.INFO]  # the worker knows that it ended


def test_an_unreadable_payload_parks_the_job(jobs: Any) -> None:
    job = jobs.add.enqueue(1, 2)
    damage = "UPDATE perdure_job SET payload = ? WHERE id = ?"
    with jobs.app.transaction() as tx:
        tx.execute(damage, ("no JSON", job.id.bytes))

    drained(jobs)

    assert ended(jobs, job).state is State.PARKED
    with jobs.app.transaction() as tx:
        tx.execute(damage, ("{}", job.id.bytes))  # the doctor would rightly complain


def test_secrets_are_on_no_command_line_and_in_no_line(jobs: Any) -> None:
    kept, uneasy = jobs.keeps.enqueue("xyzzy"), jobs.uneasy.enqueue("xyzzy")

    drained(jobs)

    assert "xyzzy" not in ended(jobs, kept).result
    row = last_run(jobs, uneasy).row
    (line,) = jobs.app.logs(uneasy)
    assert "xyzzy" not in f"{line.message} {row.error_message} {row.traceback}"
    assert row.error_type == "ValueError"


def test_what_a_handler_forks_can_be_ended_as_usual(jobs: Any) -> None:
    many = jobs.ends_what_it_forked.enqueue_many([{}] * 20)

    drained(jobs)

    assert {ended(jobs, job).result for job in many} == {-signal.SIGTERM}


# -- the wire --------------------------------------------------------------------------------------------------------

FAILURE = Failure("ValueError", "no \ud83d luck\n", None, permanent=True)
REPORTS: list[Report] = [
    Completed('{"a": 1}'),
    Failed(FAILURE, 5),
    TimedOut(FAILURE, 6),
    Snoozed(7),
    Released(counts=True),
    Cancelled(),
    Cancelled("why"),
    Skipped("why"),
    Unreadable("what"),
]


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_every_report_arrives_as_it_was_sent_in_whatever_pieces(jobs: Any, size: int) -> None:
    child = jobs.app.parts().new_job(jobs.in_the_worker.options(tags=["a", "b"]).new())
    endings = [Ending(report, 3, closed=False, children=(child,)) for report in REPORTS]
    sent = b"".join(map(ending_frame, endings))

    unframer = Unframer()
    arrived = [frame for at in range(0, len(sent), size) for frame in unframer.feed(sent[at : at + size])]

    assert [ending_of(rest) for _, *rest in arrived] == endings
    assert [type(ending_of(rest).report) for _, *rest in arrived] == [type(report) for report in REPORTS]


# -- crashes ---------------------------------------------------------------------------------------------------------


def test_a_crash_fails_its_own_run_only(jobs: Any, fifo: str) -> None:
    expected = {"segv": (-11, "SIGSEGV"), "exit": (7, "exit code 7"), "kill": (-9, "SIGKILL")}
    other = jobs.leaves_when_told.enqueue(fifo)
    with jobs.app.worker(concurrency=3).running(), open(fifo) as line:  # noqa: PTH123
        assert line.readline() == "here\n"
        crashes = {how: jobs.crashes.enqueue(how) for how in expected}
        after = [jobs.in_the_worker.enqueue(), jobs.add.enqueue(1, 2)]
        eventually(lambda: {ended(jobs, job).state for job in crashes.values()} == {State.FAILED})
        eventually(lambda: {ended(jobs, job).state for job in after} == {State.COMPLETED})
        assert ended(jobs, other).state is State.RUNNING
        jobs.app.cancel(other)
        assert line.readline() == "leaving\n"

    for how, (code, told) in expected.items():
        run = last_run(jobs, crashes[how])
        assert (run.row.exit_code, run.error_type) == (code, "ProcessCrashed")
        assert told in (run.error_message or "")
        assert [line.message for line in jobs.app.logs(crashes[how])] == ["the last words"]
    assert {ended(jobs, job).attempts for job in (other, *after)} == {1}


def test_a_crashed_run_is_tried_again_after_the_backoff(jobs: Any) -> None:
    job = jobs.crashes_and_may_again.enqueue()

    drained(jobs)

    assert (ended(jobs, job).state, ended(jobs, job).attempts) == (State.SCHEDULED, 1)
    assert last_run(jobs, job).row.exit_code == 7


def test_a_child_that_dies_while_idle_costs_nobody_an_attempt(jobs: Any) -> None:
    with jobs.app.worker(concurrency=1).running():
        first = jobs.add.enqueue(1, 2)
        eventually(lambda: ended(jobs, first).state is State.COMPLETED)
        os.kill(ended(jobs, first).result["pid"], signal.SIGKILL)
        second = jobs.add.enqueue(1, 2)
        eventually(lambda: ended(jobs, second).finished_at is not None)

    assert (ended(jobs, second).state, ended(jobs, second).attempts) == (State.COMPLETED, 1)
    assert ended(jobs, second).result["pid"] != ended(jobs, first).result["pid"]


# -- what a handler does to its process ------------------------------------------------------------------------------


def test_a_handler_that_closes_our_descriptors_fails_and_the_next_run_has_a_new_process(
    jobs: Any, tmp_path: Path
) -> None:
    own = tmp_path / "own"
    first, second = jobs.closes_descriptors.enqueue(str(own)), jobs.closes_descriptors_later.enqueue()
    after = jobs.add.enqueue(1, 2)

    drained(jobs, concurrency=1)

    for job in (first, second):
        run = last_run(jobs, job)
        assert (run.row.exit_code, run.error_type) == (CUT_OFF, "ProcessCrashed")
        assert "os.closerange" in str(run.error_message)
    assert own.read_bytes() == b"mine"
    assert ended(jobs, after).state is State.COMPLETED


@pytest.mark.parametrize("kind", ["forks_and_returns", "forks_and_returns_later"])
def test_of_a_handler_that_forks_and_returns_twice_the_copy_ends_and_the_original_reports(
    jobs: Any, fifo: str, kind: str
) -> None:
    with jobs.app.worker(concurrency=1).running():
        job = getattr(jobs, kind).enqueue(fifo)
        with open(fifo) as line:  # noqa: PTH123
            assert line.read() == ""  # the end: the copy is gone, while the worker and its child live
        after = jobs.add.enqueue(1, 2)
        eventually(lambda: ended(jobs, after).state is State.COMPLETED)

    assert ended(jobs, job).result == ended(jobs, after).result["pid"]


def test_a_process_that_a_handler_has_changed_is_not_used_again(jobs: Any, caplog: pytest.LogCaptureFixture) -> None:
    first, changing, after = jobs.add.enqueue(1, 2), jobs.changes_folder.enqueue(), jobs.add.enqueue(1, 2)

    with caplog.at_level(logging.INFO, "perdure.worker"):
        drained(jobs, concurrency=1)

    assert ended(jobs, changing).result == ended(jobs, first).result["pid"]
    assert ended(jobs, after).result["pid"] != ended(jobs, first).result["pid"]
    assert ended(jobs, after).result["cwd"] == str(Path.cwd())
    assert "changes_folder" in caplog.text
    assert "has changed the working directory for its process, which is not used again" in caplog.text


def test_every_change_of_what_belongs_to_the_whole_process_is_noticed_by_itself() -> None:
    """In one process, one change after the other."""
    program = [sys.executable, "-m", "tests.worker.changing"]
    done = subprocess.run(program, cwd=ROOT, capture_output=True, text=True, check=True)

    noticed = json.loads(done.stdout)
    assert len(noticed) == 14
    assert noticed == {name: [] if name == "nothing" or name.startswith("only") else [name] for name in noticed}


def test_what_a_handler_only_adds_to_its_process_stays_there(jobs: Any) -> None:
    many = [jobs.adds.enqueue() for _ in range(3)]

    drained(jobs, concurrency=1)

    assert len({ended(jobs, job).result for job in many}) == 1


# -- stopping --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("holding", [False, True])
def test_a_run_past_its_timeout_is_killed_with_all_it_started(
    jobs: Any, fifo: str, holding: bool, caplog: pytest.LogCaptureFixture
) -> None:
    job = jobs.waits.options(timeout=3).enqueue(fifo, holding=holding, grandchild=True)
    with caplog.at_level(logging.WARNING), jobs.app.worker().running(), open(fifo) as line:  # noqa: PTH123
        pid, rest = int(line.readline()), line.read()  # the end: nobody has it open any more
        eventually(lambda: ended(jobs, job).state is State.FAILED)

    run = last_run(jobs, job)
    assert (rest, is_gone(pid)) == ("", True)
    assert (run.row.state, run.error_type, run.row.exit_code) == ("timed_out", "JobTimeout", -9)
    assert any("80 % of its time-out" in record.getMessage() for record in caplog.records)


def test_a_cancelled_handler_may_leave_by_itself(jobs: Any, fifo: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "GRACE_S", 3600)
    job = jobs.leaves_when_told.enqueue(fifo)
    with jobs.app.worker().running(), open(fifo) as line:  # noqa: PTH123
        assert line.readline() == "here\n"
        jobs.app.cancel(job)
        assert line.read() == "leaving\n"
        eventually(lambda: ended(jobs, job).state is State.CANCELLED)

    assert last_run(jobs, job).row.exit_code is None


@pytest.mark.parametrize("kind", ["sleeps", "sleeps_inside"])
def test_a_cancelled_coroutine_is_cancelled_at_once(
    jobs: Any, fifo: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "GRACE_S", 3600)
    job = getattr(jobs, kind).enqueue(fifo)
    with jobs.app.worker().running(), open(fifo) as line:  # noqa: PTH123
        assert line.readline() == "here\n"
        jobs.app.cancel(job)
        assert line.read() == "tidied up\n"
        eventually(lambda: ended(jobs, job).state is State.CANCELLED)


def test_a_cancelled_handler_that_does_not_leave_is_killed(
    jobs: Any, fifo: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "GRACE_S", 0.1)
    job = jobs.waits.enqueue(fifo, holding=True, grandchild=True)
    with jobs.app.worker().running(), open(fifo) as line:  # noqa: PTH123
        pid = int(line.readline())
        jobs.app.cancel(job)
        assert line.read() == ""
        eventually(lambda: ended(jobs, job).state is State.CANCELLED)

    assert is_gone(pid)
    assert last_run(jobs, job).row.exit_code == -9


def test_a_shutdown_lets_a_handler_leave_and_gives_its_attempt_back(jobs: Any, fifo: str) -> None:
    job = jobs.leaves_when_told.enqueue(fifo)
    with jobs.app.worker(grace_s=3600).running() as worker, open(fifo) as line:  # noqa: PTH123
        assert line.readline() == "here\n"
        worker.stop()
        assert line.read() == "leaving\n"

    assert (ended(jobs, job).state, ended(jobs, job).attempts) == (State.QUEUED, 0)
    assert worker.exit_code == EXIT_CLEAN


def test_at_the_end_of_the_grace_a_handler_is_killed_and_its_job_released(jobs: Any, fifo: str) -> None:
    job = jobs.waits.options(retry=2).enqueue(fifo, holding=True, grandchild=True)
    with jobs.app.worker(grace_s=0).running() as worker, open(fifo) as line:  # noqa: PTH123
        pid = int(line.readline())
        worker.stop()
        assert line.read() == ""

    assert is_gone(pid)
    assert (ended(jobs, job).state, ended(jobs, job).attempts) == (State.QUEUED, 1)
    assert worker.exit_code == EXIT_CLEAN  # nothing was left behind


# -- the worker's own death ------------------------------------------------------------------------------------------


def worker_process() -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WORKER], cwd=ROOT, env={**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT}/src"}
    )


@pytest.mark.parametrize("holding", [False, True])
def test_children_and_what_they_started_die_with_the_worker(jobs: Any, fifo: str, holding: bool) -> None:
    job = jobs.waits.options(retry=2).enqueue(fifo, holding=holding, grandchild=True)
    with worker_process() as worker, open(fifo) as line:  # noqa: PTH123
        assert line.readline()
        worker.kill()
        assert line.read() == ""  # the end comes when the last process that has it open is dead

    assert ended(jobs, job).state is State.RUNNING  # for the next worker to rescue


def test_a_fork_of_the_worker_does_not_keep_its_children_alive(jobs: Any, fifo: str) -> None:
    jobs.waits.enqueue(fifo, holding=True, grandchild=True)
    with worker_process() as worker, open(fifo) as line:  # noqa: PTH123
        assert line.readline()
        forks = jobs.forks_the_worker.enqueue()
        eventually(lambda: ended(jobs, forks).state is State.COMPLETED)
        worker.kill()
        assert line.read() == ""
        fork = ended(jobs, forks).result
        os.kill(fork, signal.SIGKILL)


def test_a_signal_to_all_processes_of_a_worker_ends_it_in_good_order(jobs: Any, fifo: str) -> None:
    """As systemd does it: children leave the decision to the worker."""
    job = jobs.leaves_when_told.enqueue(fifo)
    with worker_process() as worker, open(fifo) as line:  # noqa: PTH123
        assert line.readline() == "here\n"
        (child,) = children_of(worker.pid)
        os.kill(child, signal.SIGTERM)
        worker.terminate()
        assert line.read() == "leaving\n"

    assert worker.returncode == EXIT_CLEAN
    assert (ended(jobs, job).state, ended(jobs, job).attempts) == (State.QUEUED, 0)


def children_of(pid: int) -> list[int]:
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return [int(child) for task in tasks for child in (task / "children").read_text().split()]


# -- finding the handler ---------------------------------------------------------------------------------------------


def program(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PERDURE_URL"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def written(path: Path, text: str) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.write_text(textwrap.dedent(text))
    return path


SCRIPT = (
    BEGIN
    + """
import os

@app.job(isolation="process", retry=1)
def work() -> list:
    return [__name__, os.getpid()]

if __name__ == "__main__":
    job = work.enqueue()
    app.worker().run(until_idle=True)
    name, pid = work.wait(job, timeout=1)
    print(name, pid != os.getpid())
"""
)


def test_a_handler_may_stand_in_the_main_script(tmp_path: Path) -> None:
    done = program(tmp_path, str(written(tmp_path / "script_without_suffix", SCRIPT)))

    assert (done.stdout, done.stderr) == ("__perdure_main__ True\n", "")


def test_a_handler_may_stand_in_a_module_that_is_run(tmp_path: Path) -> None:
    written(tmp_path / "shop" / "main.py", SCRIPT)

    done = program(tmp_path, "-m", "shop.main")

    assert (done.stdout, done.stderr) == ("shop.main True\n", "")


def test_a_script_that_starts_a_worker_on_import_is_refused_in_the_child(tmp_path: Path) -> None:
    """It also enqueues a job each time: that must not go on for ever."""
    careless = SCRIPT.replace('if __name__ == "__main__":', "if True:").replace(
        "name, pid = work.wait(job, timeout=1)", "name, pid = app.get(job).error, 0"
    )

    done = program(tmp_path, str(written(tmp_path / "script.py", careless)))

    assert 'below if __name__ == "__main__":' in done.stdout
    assert done.stderr == ""


def test_a_borrowed_function_is_found_by_the_name_of_its_kind(jobs: Any) -> None:
    job = jobs.lent.enqueue()

    drained(jobs)

    assert ended(jobs, job).result == "from elsewhere"


def test_whatever_can_be_called_can_be_a_handler_if_its_kind_has_a_name_in_a_module(jobs: Any) -> None:
    sorts = ("add_inside", "add_in_part", "add_by_method", "add_by_object")
    arguments = {"add_inside": (3, 4)}
    added = [getattr(jobs, sort).enqueue(*arguments.get(sort, (4,))) for sort in sorts]

    drained(jobs)

    results = [ended(jobs, job).result for job in added]
    assert [result[0] for result in results] == [7] * len(sorts)
    assert os.getpid() not in {result[1] for result in results}


def test_a_kind_without_a_name_in_a_module_says_how_to_give_it_one(jobs: Any) -> None:
    nowhere: Any = jobs.app.job(name="nowhere", isolation="process")(partial(jobs.borrowed))

    job = nowhere.enqueue()
    drained(jobs)

    assert ended(jobs, job).state is State.FAILED
    assert "name = app.job(…)(…)" in str(ended(jobs, job).error)


def test_a_local_function_fails_for_good_and_says_what_to_do(app: Perdure) -> None:
    @app.job(isolation="process", retry=5)
    def local() -> None: ...

    job = local.enqueue()
    assert app.worker().run(until_idle=True) == EXIT_CLEAN

    (run,) = app.runs(job)
    assert app.existing(job).state is State.FAILED
    assert run.error_type == "KindError"
    assert "put it at the top level of a module" in (run.error_message or "")
    assert "[kind_not_importable]" in (run.error_message or "")


def test_a_local_middleware_is_not_left_out_silently(jobs: Any) -> None:
    def local(ctx: JobContext) -> AbstractContextManager[None]:
        return nullcontext()

    jobs.app.middleware(local)
    job = jobs.add.enqueue(1, 2)
    drained(jobs)

    assert ended(jobs, job).state is State.FAILED
    assert "the middleware" in (ended(jobs, job).error or "")


def test_a_module_that_cannot_be_imported_in_a_child_fails_the_run_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(
        tmp_path / "fragile.py",
        BEGIN.replace('"jobs.db"', repr(str(tmp_path / "jobs.db")))
        + """
import os

if os.environ.get("FRAGILE"):
    raise RuntimeError("not here")

@app.job(isolation="process", retry=2)
def work() -> None: ...
""",
    )
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    fragile = importlib.import_module("fragile")
    monkeypatch.setenv("FRAGILE", "1")
    job = fragile.work.enqueue()

    assert fragile.app.worker().run(until_idle=True) == EXIT_CLEAN

    (run,) = fragile.app.runs(job)
    assert fragile.app.existing(job).state is State.SCHEDULED  # the next attempt may find it mended
    assert "RuntimeError: not here" in (run.error_message or "")
    assert run.row.traceback.rstrip().endswith("RuntimeError: not here")
    assert "importlib" not in run.row.traceback
    assert is_healthy(examine(fragile.app.store))
    fragile.app.close()
    del sys.modules["fragile"]


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="there is nothing to wait on but time")
def test_a_child_is_buried_by_a_worker_that_has_very_many_files_open(jobs: Any) -> None:
    """select() refuses descriptors from 1024 on."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 4096), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
    try:
        crashed, added = jobs.crashes.enqueue("exit"), jobs.add.enqueue(1, 2)
        drained(jobs, concurrency=1)
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert last_run(jobs, crashed).exit_code == 7
    assert ended(jobs, added).state is State.COMPLETED


def test_a_kind_whose_module_cannot_be_asked_for_it_fails_its_runs(
    app: Perdure, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The run must come back whatever the module's own `__getattr__` raises."""

    def refuse(_: str) -> Any:
        raise RuntimeError("ask later")

    module = ModuleType("lazy")
    module.__getattr__ = refuse  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "lazy", module)

    def work() -> None: ...

    work.__module__, work.__qualname__ = "lazy", "work"
    job = app.job(isolation="process", retry=1)(work).enqueue()
    with app.worker(grace_s=0).running():
        assert app.wait(job, timeout=60).state == "failed"
    assert "ask later" in str(next(app.runs(job)).error_message)
