"""The child of the process executor: a new interpreter that runs one job after the other. Made by `processes`."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import fcntl
import logging
import os
import resource
import signal
import socket
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

from perdure.clock import Micros, ServerClock
from perdure.errors import ConfigError, KindError, PerdureError
from perdure.job.model import Claim
from perdure.worker.capture import capturing, remove_other_handlers
from perdure.worker.context import JobContext, Services
from perdure.worker.executors.wire import (
    CUT_OFF,
    Ending,
    ImportPath,
    Unframer,
    claim_of,
    ending_frame,
    framed,
    load_kind,
    load_object,
)
from perdure.worker.run import AnyKind, Assignment, Ended, awaited, from_users_code, run_async, run_plain
from perdure.worker.services import JobTransactionBlock, StoreServices
from perdure.worker.signals import Stop

if TYPE_CHECKING:
    from perdure.app import Perdure

_PR_SET_PDEATHSIG = 1
_OURS = (signal.SIGTERM, signal.SIGINT)
_masks = threading.local()

T = TypeVar("T")


def tie_to_parent(fd: int, parent: int) -> None:
    """From here on this process and its group do not outlive the parent. Called once, by a leader of its own group.

    `fd` is a pipe into which nobody ever writes. The worker has the only writing end. When that is closed, which the
    kernel does however the worker ends, the kernel itself kills the whole process group (O_ASYNC with F_SETSIG): no
    Python code has to run for it, so a handler that holds the interpreter dies as well. Where the system cannot do
    that, the closed socket and the death signal remain.
    """

    def on_signal(_number: int, _frame: FrameType | None) -> None:
        """SIGTERM may go to the control group of a worker: the worker decides about its runs, not its children."""
        if os.getppid() != parent:
            end_group()

    for number in _OURS:
        signal.signal(number, on_signal)
    os.register_at_fork(before=_hold_signals, after_in_parent=_let_signals_in, after_in_child=_restore_default_signals)
    os.set_inheritable(fd, False)
    if sys.platform == "linux":
        fcntl.fcntl(fd, fcntl.F_SETOWN, -os.getpgrp())
        fcntl.fcntl(fd, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(fd, fcntl.F_SETFL, fcntl.fcntl(fd, fcntl.F_GETFL) | os.O_ASYNC)
        # SIGKILL here would come before the pipe is closed, kill this process alone and spare its children.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it died before the lines above
        end_group()


def end_group() -> None:
    with suppress(PermissionError):
        os.killpg(0, signal.SIGKILL)
    os._exit(1)  # some of the group are not ours to kill


def _restore_default_signals() -> None:
    """What a handler forks can be ended as usual: `multiprocessing.Pool.terminate` waits for that."""
    for number in _OURS:
        signal.signal(number, signal.SIG_DFL)
    _let_signals_in()


def _hold_signals() -> None:
    """A signal to a process just forked waits until it has its ordinary meaning; it would be lost otherwise."""
    _masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _OURS)


def _let_signals_in() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, _masks.before)


def main(conversation: int, lifeline: int, parent: int) -> None:
    """The whole life of a child."""
    tie_to_parent(lifeline, parent)
    child = Child(socket.socket(fileno=conversation), lifeline)
    with capturing(lambda line: child.say("logged", line)):
        child.serve()


class Child:
    """Takes jobs from the worker and runs them, until the worker hangs up.

    Two threads: the main one runs handlers, another listens to the worker. What a handler says goes to the worker at
    once, so that the last line before a crash is kept too. `ctx.state` is empty here: what `lifespan=` yielded lives in
    the worker.
    """

    def __init__(self, conversation: socket.socket, lifeline: int) -> None:
        conversation.set_inheritable(False)
        self._process = os.getpid()
        self._conversation = conversation
        self._line = _identity(conversation.fileno())
        self._lifeline = lifeline
        self._sending = threading.RLock()  # reentrant: a __del__ that logs may come at any allocation
        self._todo: SimpleQueue[list[Any] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._open = 0
        self._stops: dict[bytes, tuple[Stop, bool]] = {}
        self._running: CurrentRun | None = None
        self._imported: list[list[Any]] = []
        self._in_one_form = False
        """The worker shows all log lines in one form; so those of this process go there, whatever the app sets up."""
        self._as_found: ProcessState | None = None
        """How the last run has left the process, or an import."""
        os.register_at_fork(after_in_child=self._close_in_fork)

    def serve(self) -> None:
        threading.Thread(target=self._listen, name="perdure-listen", daemon=True).start()
        while (frame := self._todo.get()) is not None:
            match frame:
                case ["hello", argv, level, in_one_form]:
                    sys.argv[:] = argv
                    logging.getLogger().setLevel(level)
                    self._in_one_form = in_one_form
                case ["job", order]:
                    if not self._run(order):
                        return
                case _:
                    raise ValueError(f"the worker sent an unknown {frame[0]}")

    def say(self, *frame: Any) -> None:
        self._send(framed(*frame))

    # -- in the main thread ------------------------------------------------------------------------------------------

    def _run(self, order: Mapping[str, Any]) -> bool:
        """Run one job. False: its kind could not be imported, and the modules that were cannot be trusted."""
        try:
            task = self._task(order)
        except BaseException as error:  # noqa: BLE001 - the user's modules may raise anything, even SystemExit
            self._report_unloadable(order, error)
            return False
        running = CurrentRun(task)
        with self._lock:
            self._running = running
            for stop, is_now in filter(None, [self._stops.get(task.claim.run_id)]):
                running.stop(stop, is_now=is_now)
        if self._as_found is None or order["kind"] not in self._imported:  # an import may change anything
            self._imported.append(order["kind"])
            self._as_found = ProcessState(self._lifeline)
        self.say("begun")
        try:
            ended = contextvars.Context().run(running.run)
        finally:
            running.exit_if_forked()
            _flush()
            self._leave_if_cut_off()
        with self._lock:
            self._running = None
            self._stops.clear()
            self._open -= 1
        before, self._as_found = self._as_found, ProcessState(self._lifeline)
        if changed := self._as_found.changes_since(before):
            self.say("changed", changed)
        children = () if ended.written else task.ctx.children
        self._send(ending_frame(Ending(ended.report, ended.stats.duration_ms, ended.written, children)))
        return True

    def _task(self, order: Mapping[str, Any]) -> Assignment:
        claim = claim_of(order["claim"])
        kind = load_kind(ImportPath(*order["kind"]))
        middleware = [load_object(ImportPath(*path)) for path in order["middleware"]]
        app = kind.app
        if self._in_one_form:
            remove_other_handlers()
        _use_database(app, order["url"])
        if isinstance(app.clock, ServerClock):
            app.clock.ahead_us = order["ahead_us"]  # so that a log line needs no connection
        ctx = ChildContext(claim, kind, StoreServices(app.parts()), self.say)
        return Assignment(claim, kind, ctx, middleware, order["jitter"])

    def _leave_if_cut_off(self) -> None:
        """The handler has closed the socket to the worker. Our exit is all that the worker can still notice."""
        if not self._can_speak():
            os._exit(CUT_OFF)

    def _report_unloadable(self, order: Mapping[str, Any], error: BaseException) -> None:
        code = error.code if isinstance(error, PerdureError) else None
        trace = "".join(traceback.format_exception(type(error), error, from_users_code(error, "importlib")))
        if code != "kind_not_importable":
            path = ImportPath(*order["kind"])
            text = f"{path} cannot be imported in a new process: {type(error).__name__}: {error}"
            error = KindError(text, code="kind_not_importable")
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
        if is_busy:  # nobody would hear how it ends
            end_group()
        self._todo.put(None)

    def _received(self) -> bytes:
        if not self._can_speak():
            return b""
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
        with self._sending, suppress(OSError):  # the worker is gone: the listening thread ends this process
            if self._can_speak():
                self._conversation.sendall(frame)

    def _can_speak(self) -> bool:
        """False: a handler has closed the socket, and its number may be a file of the handler now."""
        return _identity(self._conversation.fileno()) == self._line

    def _close_in_fork(self) -> None:
        """In a process that a handler has forked: it does not talk to the worker."""
        self._sending = threading.RLock()
        self._conversation.close()


class CurrentRun:
    """The run in progress."""

    def __init__(self, task: Assignment) -> None:
        self.task = task
        self._process = os.getpid()
        self._cancel: Callable[[], object] | None = None
        self._is_cancelled = False

    def exit_if_forked(self) -> None:
        """A handler that has forked may return in both processes: the copy has no run to end, and no worker."""
        if os.getpid() != self._process:
            os._exit(0)

    def run(self) -> Ended:
        if self.task.kind.is_async:
            return asyncio.run(self._cancellable(run_async(self.task)))
        return run_plain(self.task, self._run_to_end)

    def _run_to_end(self, awaitable: Awaitable[Any]) -> Any:
        return asyncio.run(self._cancellable(awaited(awaitable)))

    async def _cancellable(self, coroutine: Coroutine[Any, Any, T]) -> T:
        loop = asyncio.get_running_loop()
        handler = loop.create_task(coroutine)
        self._cancel = lambda: loop.call_soon_threadsafe(handler.cancel)
        await asyncio.sleep(0)  # its first step: a task cancelled before that would not report
        if self._is_cancelled:
            handler.cancel()
        ended = await handler
        self.exit_if_forked()  # before its loop is closed, which shares its descriptors with ours
        return ended

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
    """Forwards to the worker's context what is said to this one."""

    __slots__ = ("_say",)

    def __init__(self, claim: Claim, kind: AnyKind, services: Services, say: Callable[..., None]) -> None:
        super().__init__(claim, kind, services)
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

    def transaction(self, *, session: Any = None) -> JobTransactionBlock:
        block = super().transaction(session=session)
        block.when_committed = lambda: self._say("closed")
        return block

    def complete(self, result: str | None, write: Callable[[Any], object]) -> None:
        super().complete(result, write)
        self._say("closed")


class ProcessState:
    """The state of the whole process, which the next run would see: a child that a run has changed is replaced.

    What is only added (modules, environment variables, entries of `sys.path`, threads) is no change: importing
    a library does that, and handlers may import when they run.
    """

    def __init__(self, lifeline: int) -> None:
        self._environment = dict(os.environ)
        self._path = Counter(map(str, sys.path))
        self._rest: dict[str, object] = {
            "the working directory": _folder(),
            "the umask": _umask(),
            "a signal handler": [signal.getsignal(number) for number in _SIGNALS],
            "the signal mask": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
            "a timer": [any(signal.getitimer(which)) for which in _TIMERS],
            "standard input, output or error": (*map(_identity, range(3)), sys.stdin, sys.stdout, sys.stderr),
            "a limit": [resource.getrlimit(which) for which in _LIMITS],
            "the user, the group or the priority": _user_and_priority(),
            "the descriptors that are Perdure's": _identity(lifeline),
        }

    def changes_since(self, before: ProcessState) -> list[str]:
        changed = [words for words, value in self._rest.items() if value != before._rest[words]]
        if not before._environment.items() <= self._environment.items():
            changed.append("an environment variable")
        if before._path - self._path:
            changed.append("sys.path")
        return changed


_SIGNALS = sorted(map(int, set(signal.Signals) & signal.valid_signals()))
_TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
_LIMITS = tuple(getattr(resource, name) for name in sorted(dir(resource)) if name.startswith("RLIMIT_"))


def _folder() -> tuple[int, int] | None:
    try:
        there = Path().stat()
    except OSError:  # it was removed, or is not ours to look at any more
        return None
    return there.st_dev, there.st_ino


def _umask() -> int | None:
    """Without setting it, which the handler's other threads would notice. None: the system does not tell."""
    with suppress(OSError, ValueError), Path("/proc/self/status").open("rb") as status:
        for line in status:
            if line.startswith(b"Umask:"):
                return int(line.split()[1], 8)
    return None


def _user_and_priority() -> tuple[int, ...]:
    return (os.getuid(), os.geteuid(), os.getgid(), os.getegid(), os.getpriority(os.PRIO_PROCESS, 0))


def _identity(descriptor: int) -> tuple[int, int] | None:
    """Which file or socket has this number. None: none has."""
    try:
        there = os.fstat(descriptor)
    except OSError:
        return None
    return there.st_dev, there.st_ino


def _use_database(app: Perdure, url: str) -> None:
    """Use the database of the worker: the module may name another one, or none."""
    try:
        is_known = app.url == url
    except ConfigError:
        is_known = False
    if not is_known:
        app.url = url


def _flush() -> None:
    """What a handler prints is seen when its run has ended, not when the child does."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # closed, or replaced by a handler
            stream.flush()
