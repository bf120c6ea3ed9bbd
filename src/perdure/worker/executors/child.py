"""The child's side of the process executor: a new interpreter that runs one job after the other. Made by `children`.

Two threads: the main one runs handlers, another listens to the worker. What a handler says goes to the worker at once,
so that the last line before a crash is kept too. `ctx.state` is empty here: what `lifespan=` gave lives in the worker.
"""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import logging
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from types import TracebackType
from typing import Any, Protocol, cast

from perdure.clock import Micros
from perdure.errors import ConfigError, KindError, PerdureError
from perdure.job.model import Claim
from perdure.worker.capture import capturing
from perdure.worker.context import Backstage, JobContext
from perdure.worker.executors.lifeline import end_group, hang_on
from perdure.worker.executors.whereabouts import Place, found, found_kind
from perdure.worker.executors.wire import Ending, Unframer, claim_of, ending_frame, framed
from perdure.worker.run import AnyKind, Assignment, Ended, run_async, run_plain
from perdure.worker.signals import Stop


class Staged(Protocol):
    """What the child needs of the app a kind belongs to."""

    url: str

    def stage(self) -> Backstage: ...


def main(conversation: int, lifeline: int, parent: int) -> None:
    """All there is to a child's life."""
    hang_on(lifeline, parent)
    with capturing():
        Child(socket.socket(fileno=conversation)).serve()


class Child:
    """Takes jobs from the worker and runs them, until the worker hangs up."""

    def __init__(self, conversation: socket.socket) -> None:
        conversation.set_inheritable(False)
        self._conversation = conversation
        self._sending = threading.RLock()  # reentrant: a __del__ that logs may come at any allocation
        self._todo: SimpleQueue[list[Any] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._open = 0
        self._stops: dict[bytes, tuple[Stop, bool]] = {}
        self._running: Running | None = None
        os.register_at_fork(after_in_child=self._part)

    def serve(self) -> None:
        threading.Thread(target=self._listen, name="perdure-listen", daemon=True).start()
        while (frame := self._todo.get()) is not None:
            match frame:
                case ["hello", argv, level]:
                    sys.argv[:] = argv
                    logging.getLogger().setLevel(level)
                case ["job", order]:
                    if not self._run(order):
                        return
                case _:
                    raise ValueError(f"the worker sent an unknown {frame[0]}")

    def say(self, *frame: Any) -> None:
        self._send(framed(*frame))

    # -- in the main thread ------------------------------------------------------------------------------------------

    def _run(self, order: Mapping[str, Any]) -> bool:
        """Run one job. False: its kind could not be had, and what was imported for it is not to be relied on."""
        try:
            task = self._task(order)
        except BaseException as error:  # noqa: BLE001 - the user's modules may raise anything, even SystemExit
            self._say_unfit(order, error)
            return False
        running = Running(task)
        with self._lock:
            self._running = running
            for stop, is_now in filter(None, [self._stops.get(task.claim.run_id)]):
                running.stop(stop, is_now=is_now)
        self.say("begun")
        ended = contextvars.Context().run(running.run)
        with self._lock:
            self._running = None
            self._stops.clear()
            self._open -= 1
        _flush()
        children = () if ended.written else task.ctx.children
        self._send(ending_frame(Ending(ended.report, ended.telling.duration_ms, ended.written, children)))
        return True

    def _task(self, order: Mapping[str, Any]) -> Assignment:
        claim = claim_of(order["claim"])
        kind = found_kind(Place(*order["kind"]))
        middleware = [found(Place(*place)) for place in order["middleware"]]
        app = cast("Staged", kind.desk)
        _give(app, order["url"])
        ctx = ChildContext(claim, kind, app.stage(), self.say)
        return Assignment(claim, kind, ctx, middleware, order["jitter"])

    def _say_unfit(self, order: Mapping[str, Any], error: BaseException) -> None:
        code = error.code if isinstance(error, PerdureError) else None
        trace = "".join(traceback.format_exception(type(error), error, _from_the_users_code(error)))
        if code != "kind_not_importable":
            place = Place(*order["kind"])
            told = f"{place} cannot be imported in a new process: {type(error).__name__}: {error}"
            error = KindError(told, code="kind_not_importable")
        with self._lock:
            self._open -= 1
        self.say("unfit", str(error), trace, code in ("kind_not_importable", "worker_in_child"))

    # -- in the listening thread -------------------------------------------------------------------------------------

    def _listen(self) -> None:
        unframer = Unframer()
        while data := self._received():
            for frame in unframer.feed(data):
                self._heard(frame)
        with self._lock:
            is_busy = self._open > 0
        if is_busy:  # nobody would ever hear how it ends
            end_group()
        self._todo.put(None)

    def _received(self) -> bytes:
        try:
            return self._conversation.recv(1 << 18)
        except OSError:
            return b""

    def _heard(self, frame: list[Any]) -> None:
        with self._lock:
            match frame:
                case ["stop", run_id, why, is_now]:
                    self._stops[run_id] = (Stop(why), is_now)
                    if self._running is not None and self._running.task.claim.run_id == run_id:
                        self._running.stop(Stop(why), is_now=is_now)
                    return
                case ["job", *_]:
                    self._open += 1
                case _:
                    pass
        self._todo.put(frame)

    # -- in any thread -----------------------------------------------------------------------------------------------

    def _send(self, frame: bytes) -> None:
        with self._sending, suppress(OSError):  # the worker is gone: the listening thread sees to it
            self._conversation.sendall(frame)

    def _part(self) -> None:
        """In a process that a handler has forked: what it says is not said to the worker."""
        self._sending = threading.RLock()
        self._conversation.close()


class Running:
    """The run of the moment."""

    def __init__(self, task: Assignment) -> None:
        self.task = task
        self._cancel: Callable[[], object] | None = None
        self._is_cancelled = False

    def run(self) -> Ended:
        if inspect.iscoroutinefunction(self.task.kind.function):
            return asyncio.run(self._awaited())
        return run_plain(self.task)

    async def _awaited(self) -> Ended:
        loop = asyncio.get_running_loop()
        handler = loop.create_task(run_async(self.task))
        self._cancel = lambda: loop.call_soon_threadsafe(handler.cancel)
        await asyncio.sleep(0)  # its first step: a task cancelled before that would not report
        if self._is_cancelled:
            handler.cancel()
        return await handler

    def stop(self, why: Stop, *, is_now: bool) -> None:
        """The handler sees that it should stop; a coroutine is cancelled once it is to stop now."""
        self.task.ctx.stop = self.task.ctx.stop or why
        if not is_now:
            return
        self._is_cancelled = True
        if self._cancel is not None:
            with suppress(RuntimeError):  # its loop is closed: it has ended
                self._cancel()


class ChildContext(JobContext):
    """Passes on to the worker's context what is said to this one."""

    __slots__ = ("_say",)

    def __init__(self, claim: Claim, kind: AnyKind, backstage: Backstage, say: Callable[..., None]) -> None:
        super().__init__(claim, kind, backstage)
        self._say = say

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        super().progress(done, total, note)
        self._say("said", "progress", [done, total, None if note is None else self.fit(note)], {})

    def metric(self, **numbers: float) -> None:
        super().metric(**numbers)
        self._say("said", "metric", [], numbers)

    def artifact(self, path: str | os.PathLike[str]) -> None:
        self._say("said", "artifact", [os.fsdecode(path)], {})

    def captured(self, level: str, message: str, at: Micros, fields: str | None = None) -> None:
        self._say("said", "captured", [level, message, at, fields], {})

    @contextmanager
    def transaction(self) -> Generator[Any, None, None]:
        with super().transaction() as tx:
            yield tx
        self._say("closed")

    def complete(self, result: str | None, write: Callable[[Any], object]) -> None:
        super().complete(result, write)
        self._say("closed")


def _give(app: Staged, url: str) -> None:
    """The database of the worker, which may be another than the module names; or the module may name none."""
    try:
        is_known = app.url == url
    except ConfigError:
        is_known = False
    if not is_known:
        app.url = url


def _from_the_users_code(error: BaseException) -> TracebackType | None:
    """Its traceback, without the way there: importing is not what went wrong."""
    at = error.__traceback__
    while at is not None and str(at.tb_frame.f_globals.get("__name__")).partition(".")[0] in ("perdure", "importlib"):
        at = at.tb_next
    return at


def _flush() -> None:
    """What a handler prints is seen when its run has ended, not when the child does."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, or replaced by a handler
            stream.flush()
