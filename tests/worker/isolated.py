"""Handlers for `test_processes`: a module that its children import. The database is the one named by PERDURE_URL."""

from __future__ import annotations

import asyncio
import ctypes
import functools
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

from perdure import Cancel, Done, Fail, JobContext, Perdure, Retry, RetryAfter, Secret, Skip, Snooze, current

app = Perdure(durability="normal", busy_timeout_s=2)


@app.middleware
@contextmanager
def marked(ctx: JobContext) -> Generator[None, None, None]:
    ctx.metric(inside=1)
    yield


@app.job(isolation="process", retry=1)
def add(first: int, second: int) -> dict[str, Any]:
    return {"sum": first + second, "pid": os.getpid(), "cwd": str(Path.cwd()), "path": sys.path}


@app.job(isolation="process", retry=1)
async def add_later(first: int, second: int) -> list[int]:
    await asyncio.sleep(0)
    return [first + second, os.getpid()]


@app.job(retry=1)
def in_the_worker() -> int:
    return os.getpid()


@app.job(retry=1)
def forks_the_worker() -> int:
    """The fork stays until it is killed."""
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(0)
    return pid


@app.job(isolation="process", retry=Retry(max_attempts=2, base=3600, on=(KeyError,)))
def raises() -> None:
    raise ValueError("no such luck")


@app.job(isolation="process", retry=3)
def signals(which: str) -> Any:
    match which:
        case "return fail":
            return Fail("never again")
        case "return retry":
            return RetryAfter(3600)
        case "return snooze":
            return Snooze(3600)
        case "return cancel":
            return Cancel
        case "return skip":
            return Skip("nothing to do")
        case "fail":
            raise Fail("never again")
        case "retry":
            raise RetryAfter(3600)
        case "snooze":
            raise Snooze(3600)
        case "cancel":
            raise Cancel("no longer wanted")
        case _:
            raise Skip("nothing to do")


@app.job(isolation="process", retry=1)
def tells(ctx: JobContext) -> int:
    ctx.log.info("by the context")
    logging.getLogger("shop").warning("by a logger")
    nested = current()
    assert nested is ctx
    nested.progress(3, 4, "nearly")
    ctx.metric(rows=12)
    ctx.artifact(Path("out.csv"))
    sys.stdout.write('["ended", "not a frame"]\n')
    assert ctx.job.state == "running"
    assert ctx.run.id == ctx.run_id
    return ctx.attempt


@app.job(isolation="process", retry=1)
def asks_for_more(ctx: JobContext) -> str:
    more = ctx.enqueue(in_the_worker.options(tags=["more"], params={"n": 1}))
    return str(more.id)


@app.job(isolation="process", retry=1)
def writes(ctx: JobContext, how: str) -> Any:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE IF NOT EXISTS own (text TEXT)")
    if how == "done":
        return Done({"how": how}, write=lambda tx: tx.execute("INSERT INTO own VALUES ('done')"))
    with ctx.transaction() as tx:
        tx.execute("INSERT INTO own VALUES ('tx')")
        tx.result({"how": how})
    if how == "crash":
        os._exit(7)
    return None


@app.job(isolation="process", retry=1)
def crashes(ctx: JobContext, how: str) -> None:
    ctx.log.info("the last words")
    match how:
        case "segv":
            ctypes.string_at(0)
        case "exit":
            os._exit(7)
        case _:
            os.kill(os.getpid(), signal.SIGKILL)


@app.job(isolation="process", retry=Retry(max_attempts=2, base=3600, on=(KeyError,)))
def crashes_and_may_again() -> None:
    os._exit(7)


@app.job(isolation="process", retry=1)
def waits(ctx: JobContext, fifo: str, holding: bool = False, grandchild: bool = False) -> None:
    """Says hello on the fifo, which stays open as long as somebody lives who has it, and stays."""
    with open(fifo, "w") as line:  # noqa: PTH123
        if grandchild:
            subprocess.Popen(["/bin/sleep", "1000"], stdout=line)
        line.write(f"{os.getpid()}\n")
        line.flush()
        if holding:
            sum(range(10**15))  # not one look at signals or other threads
        threading.Event().wait()


@app.job(isolation="process", retry=1)
def leaves_when_told(ctx: JobContext, fifo: str) -> None:
    with open(fifo, "w") as line:  # noqa: PTH123
        line.write("here\n")
        line.flush()
        while not ctx.should_stop:
            threading.Event().wait(0.01)
        line.write("leaving\n")
    ctx.checkpoint()


@app.job(isolation="process", retry=1)
async def sleeps(fifo: str) -> None:
    with open(fifo, "w") as line:  # noqa: ASYNC230, PTH123
        line.write("here\n")
        line.flush()
        try:
            await asyncio.Event().wait()
        finally:
            line.write("tidied up\n")


def logged(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return wrapper


sleeps_inside = app.job(name="sleeps_inside", isolation="process", retry=1)(logged(sleeps.function))
add_inside = app.job(name="add_inside", isolation="process", retry=1)(logged(add_later.function))
add_in_part = app.job(name="add_in_part", isolation="process", retry=1)(functools.partial(add_later.function, 3))


class Shelf:
    def __init__(self, number: int) -> None:
        self.number = number

    def add(self, second: int) -> list[int]:
        return [self.number + second, os.getpid()]

    async def __call__(self, second: int) -> list[int]:
        return self.add(second)


shelf = Shelf(3)
add_by_method = app.job(name="add_by_method", isolation="process", retry=1)(shelf.add)
add_by_object = app.job(name="add_by_object", isolation="process", retry=1)(shelf)


@app.job(isolation="process", retry=1)
def ends_what_it_forked() -> int | None:
    forked = multiprocessing.get_context("fork").Process(target=signal.pause)
    forked.start()
    forked.terminate()
    forked.join()
    return forked.exitcode


@app.job(isolation="process", retry=1)
def closes_descriptors(own: str) -> None:
    """And opens a file, which is given the number of one that was closed."""
    os.closerange(3, 1000)
    files = [os.open(own, os.O_WRONLY | os.O_CREAT | os.O_APPEND) for _ in range(20)]
    logging.getLogger("shop").warning("said to nobody")
    os.write(files[0], b"mine")


@app.job(isolation="process", retry=1)
async def closes_descriptors_later() -> None:
    await asyncio.sleep(0)
    os.closerange(3, 1000)
    await asyncio.sleep(0)


@app.job(isolation="process", retry=1)
def forks_and_returns(fifo: str) -> int:
    line = os.open(fifo, os.O_WRONLY)
    if os.fork():
        os.close(line)
    return os.getpid()


@app.job(isolation="process", retry=1)
async def forks_and_returns_later(fifo: str) -> int:
    line = os.open(fifo, os.O_WRONLY)
    if os.fork():
        os.close(line)
    await asyncio.sleep(0)
    return os.getpid()


@app.job(isolation="process", retry=1)
def changes_folder() -> int:
    os.chdir("/")
    return os.getpid()


@app.job(isolation="process", retry=1)
def adds() -> int:
    os.environ["ADDED"] = "1"
    sys.path.append("/added")
    import colorsys  # noqa: F401 - as handlers do that need much

    return os.getpid()


@app.job(isolation="process", retry=1)
def keeps(word: Annotated[str, Secret]) -> str:
    return " ".join((Path("/proc/self/cmdline").read_text(), Path("/proc/self/environ").read_text()))


@app.job(isolation="process", retry=1)
def uneasy(ctx: JobContext, word: Annotated[str, Secret]) -> None:
    ctx.log.info("the word is %s", word)
    raise ValueError(word)


def borrowed() -> str:
    return "from elsewhere"


lent = app.job(name="lent", isolation="process", retry=1)(borrowed)


@app.job(isolation="process", retry=1)
def reads_its_job(ctx: JobContext) -> str:
    return str(ctx.job.id)
