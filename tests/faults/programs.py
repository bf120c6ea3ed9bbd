"""What other processes do in these tests: `python -m tests.faults.programs <name> <arguments>`.

Each is a function; its arguments are texts. They say in lines what they have done, and go on when told so in a line.
"""

from __future__ import annotations

import errno
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

from perdure import DatabaseUnavailable, JobContext, Perdure, PerdureError, Retry
from perdure.store.sqlite.gate import gate_for
from tests.faults.scene import Listener, Scene, count, until
from tests.history import ended, note, started

MEGABYTE = 1024 * 1024


def say(*words: object) -> None:
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def hear() -> str:
    return sys.stdin.readline().strip()


# -- the lock --------------------------------------------------------------------------------------------------------


def hold_the_lock(path: str, *, at_once: bool = True) -> None:
    """Keep every writer out until told to go on."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as connection:
        if not at_once:
            hear()
        connection.execute("BEGIN IMMEDIATE")
        say("locked")
        hear()
        connection.execute("ROLLBACK")
    say("released")


def hold_the_lock_when_told(path: str) -> None:
    hold_the_lock(path, at_once=False)


# -- a full disk -----------------------------------------------------------------------------------------------------


class SmallDisk:
    """A file system of a few megabytes, seen by this process alone: it has a mount namespace of its own."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        command = ["mount", "-t", "tmpfs", "-o", f"size={4 * MEGABYTE}", "none", str(folder)]
        subprocess.run(command, check=True)
        self._ballast = folder / "ballast"

    def fill(self) -> None:
        with self._ballast.open("ab", buffering=0) as ballast:
            for size in (65_536, 1):  # the last page too
                try:
                    while True:
                        ballast.write(bytes(size))
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise

    def empty(self) -> None:
        self._ballast.unlink()


class _OnDisk(Scene):
    """A scene whose notes are elsewhere."""

    def __init__(self, folder: Path, notes: Path) -> None:
        super().__init__(folder)
        self.notes = notes


def work_on_a_full_disk(folder: str) -> None:
    """Jobs end while nothing can be written; then there is space again."""
    import logging

    disk = SmallDisk(Path(folder, "disk"))
    scene = _OnDisk(Path(folder, "disk"), Path(folder, "notes"))
    listener, gate = Listener(), threading.Event()
    logging.getLogger("perdure.worker").addHandler(listener)
    app = scene.app(durability="full")

    @app.job
    def work(ctx: JobContext, text: str) -> str:
        started(scene.notes, ctx)
        gate.wait()
        ended(scene.notes, ctx)
        return text

    scene.sent(*work.enqueue_many([{"text": "x" * 1000} for _ in range(40)]))
    refused = 0
    with app.worker(concurrency=8).running():
        until(lambda: count(app, "running") == 8)
        disk.fill()
        while refused < 3:
            try:
                scene.sent(work.enqueue(text="y" * 5000))
            except DatabaseUnavailable as error:
                if error.code != "disk_full":
                    raise
                refused += 1
        gate.set()
        until(lambda: listener.heard("could not be reached") >= 2)
        assert count(app, "completed") == 0
        disk.empty()
        until(lambda: count(app, "running") + count(app, "queued") == 0)
    assert {(run.state, run.attempt) for run in app.runs()} == {("completed", 1)}, "nothing was run again"
    say("completed", count(app, "completed"))
    scene.close()
    say("whole")


def open_on_a_full_disk(folder: str) -> None:
    """The file beside the database whose bytes all processes share does not exist yet, and there is no room."""
    disk = SmallDisk(Path(folder, "disk"))
    scene = _OnDisk(Path(folder, "disk"), Path(folder, "notes"))
    scene.path.touch()
    disk.fill()
    gate = gate_for(scene.path)
    gate.board[0] = 1
    say("gate", gate.enter(1.0))
    gate.leave()
    app = scene.app()
    app.job(name="work")(lambda: None)
    try:
        app.enqueue("work")
    except DatabaseUnavailable as error:
        say("refused", error.code)
    disk.empty()
    app.enqueue("work")
    say("exit code", app.worker().run(until_idle=True))
    scene.close()


# -- many processes --------------------------------------------------------------------------------------------------


def declare_count(app: Perdure, notes: str) -> Any:
    @app.job
    async def step(ctx: JobContext, n: int) -> int:
        started(notes, ctx)
        ended(notes, ctx)
        return n

    return step


def enqueue_many(path: str, notes: str, jobs: str) -> None:
    """By ones and by sevens."""
    app = Perdure(path, durability="normal")
    step = declare_count(app, notes)
    hear()
    left = int(jobs)
    while left > 0:
        size = min(left, 7 if left % 2 else 1)
        for job in step.enqueue_many([{"n": n} for n in range(size)]):
            note(notes, "enqueued", job=job.id)
        left -= size
    say("enqueued", jobs)


def drain(path: str, notes: str) -> None:
    """Run jobs until told to stop."""
    app = Perdure(path, durability="normal")
    declare_count(app, notes)
    worker = app.worker(concurrency=5)
    with worker.running():
        hear()
    own = sum(1 for run in app.runs() if run.node_id == worker.health().node_id)
    say("ran", own)


# -- a fork ----------------------------------------------------------------------------------------------------------


def fork_after_use(path: str, notes: str) -> None:
    """The program makes an app, enqueues, forks; the child works, the parent enqueues on."""
    app = Perdure(path, durability="normal")
    step = declare_count(app, notes)
    for n in range(5):
        note(notes, "enqueued", job=step.enqueue(n=n).id)
    told, telling = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(telling)
        with app.worker(concurrency=2).running():
            os.read(told, 1)
            until(lambda: count(app, "queued") + count(app, "running") == 0)
        os._exit(0)
    os.close(told)
    for n in range(20):
        note(notes, "enqueued", job=step.enqueue(n=n).id)
    os.close(telling)
    _, status = os.waitpid(child, 0)
    say("child", os.waitstatus_to_exitcode(status), "completed", count(app, "completed"))


def fork_beside_a_worker(path: str, notes: str) -> None:
    """The worker was started before the fork: its threads are the parent's, and the copy in the child says so."""
    app = Perdure(path, durability="normal")
    step = declare_count(app, notes)
    worker = app.worker(concurrency=2)
    with worker.running():
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            code = "started"
            try:
                worker.start()
            except PerdureError as error:
                code = error.code
            note(notes, "enqueued", job=step.enqueue(n=1).id)
            os.write(writing, f"{worker.health().status} {code}".encode())
            os._exit(0)
        os.close(writing)
        note(notes, "enqueued", job=step.enqueue(n=2).id)
        with os.fdopen(reading) as pipe:
            say("child", pipe.read())
        os.waitpid(child, 0)
        until(lambda: count(app, "completed") == 2)
    say("completed", count(app, "completed"))


# -- a rolling deploy ------------------------------------------------------------------------------------------------


def release(path: str, notes: str, version: str) -> None:
    """A worker of the old or the new release, until told to stop; "<kind> <n>" lets it enqueue so many."""
    app = Perdure(path, durability="normal")

    def ran(ctx: JobContext, *facts: object) -> str:
        started(notes, ctx)
        ended(notes, ctx)
        return " ".join(map(str, (version, *facts)))

    @app.job
    def kept(ctx: JobContext) -> str:
        return ran(ctx)

    (declare_old if version == "old" else declare_new)(app, ran)
    with app.worker(concurrency=3).running():
        say("ready")
        while (order := hear()) not in ("", "stop"):
            kind, _, wanted = order.partition(" ")
            arguments: dict[str, Any] = {"names": ["c", "d"]} if (kind, version) == ("mail", "new") else {}
            for _ in range(int(wanted)):
                note(notes, "enqueued", job=app.enqueue(kind, arguments).id)
            say("enqueued")
    say("stopped")


def declare_old(app: Perdure, ran: Callable[..., str]) -> None:
    @app.job
    def mail(ctx: JobContext, to: str = "a b") -> str:
        return ran(ctx, to)

    @app.job
    def before(ctx: JobContext) -> str:
        return ran(ctx)

    @app.job
    def removed(ctx: JobContext) -> str:
        return ran(ctx)


def declare_new(app: Perdure, ran: Callable[..., str]) -> None:
    def split(payload: dict[str, Any]) -> dict[str, Any]:
        return {"names": str(payload.get("to", "a b")).split()}

    @app.job(version=2, upgrades={1: split})
    def mail(ctx: JobContext, names: list[str]) -> str:
        return ran(ctx, *names)

    @app.job(aliases=["before"])
    def after(ctx: JobContext) -> str:
        return ran(ctx)

    @app.job
    def added(ctx: JobContext) -> str:
        return ran(ctx)


# -- bad manners -----------------------------------------------------------------------------------------------------


def misbehave(path: str, notes: str, how: str) -> None:
    """A worker whose first job does what no job should; then ten decent ones."""
    app = Perdure(path, durability="normal", lease_s=3.0)
    os.chdir(Path(path).parent)

    @app.job(retry=Retry(max_attempts=100, backoff="fixed", base=0.1))
    def decent(ctx: JobContext) -> str:
        started(notes, ctx)
        ended(notes, ctx)
        return str(os.getpid())

    @app.job(retry=Retry(max_attempts=100, backoff="fixed", base=0.1))
    def rude(ctx: JobContext) -> int:
        started(notes, ctx)
        if ctx.attempt == 1:
            MANNERS[how]()
        ended(notes, ctx)
        return ctx.attempt

    if how != "none":
        note(notes, "enqueued", job=rude.enqueue().id)
    for _ in range(10):
        note(notes, "enqueued", job=decent.enqueue().id)
    while (code := app.worker(concurrency=1, grace_s=2.0).run(until_idle=True)) == 0 and count(app, "scheduled"):
        pass  # until the last retry
    say("exit code", code)


def leak_threads() -> None:
    for _ in range(50):
        threading.Thread(target=threading.Event().wait, daemon=True).start()


def change_directory() -> None:
    os.chdir("/")


def replace_signal_handlers() -> None:
    with suppress(ValueError):  # not on the main thread
        signal.signal(signal.SIGTERM, signal.SIG_IGN)


def close_strangers_descriptors() -> None:
    """What a daemon does first: it closes all descriptors it does not know."""
    os.closerange(3, 1024)
    time.sleep(0.1)  # a handler takes its time


def exit_the_thread() -> None:
    sys.exit(7)


def raise_keyboard_interrupt() -> None:
    raise KeyboardInterrupt


def deep_recursion() -> None:
    deep_recursion()


def eat_the_descriptors() -> None:
    """As many files as the process may have, kept open for a while after the handler has returned."""
    import resource

    kept: list[int] = []
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    with suppress(OSError):
        while True:
            kept.append(os.open("/dev/null", os.O_RDONLY))

    def give_back() -> None:
        time.sleep(1.5)
        for descriptor in kept:
            os.close(descriptor)

    threading.Thread(target=give_back, daemon=True).start()


MANNERS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        leak_threads,
        change_directory,
        replace_signal_handlers,
        close_strangers_descriptors,
        exit_the_thread,
        raise_keyboard_interrupt,
        deep_recursion,
        eat_the_descriptors,
    )
}

PROGRAMS: dict[str, Callable[..., None]] = {
    each.__name__: each
    for each in (
        hold_the_lock,
        hold_the_lock_when_told,
        work_on_a_full_disk,
        open_on_a_full_disk,
        enqueue_many,
        drain,
        fork_after_use,
        fork_beside_a_worker,
        release,
        misbehave,
    )
}

if __name__ == "__main__":
    PROGRAMS[sys.argv[1]](*sys.argv[2:])
