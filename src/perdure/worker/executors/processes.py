"""Handlers of kinds with isolation="process", in processes that can be killed. Made by `Pools`, fed by `node`.

See `child` for the other side and for how children end with the worker.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from queue import SimpleQueue
from typing import Any, cast

from perdure.errors import KindError
from perdure.ids import RunId
from perdure.job.model import Failure, RunStats
from perdure.job.reports import Cancelled, Failed, Released, Report
from perdure.worker.capture import has_one_form, log_forwarded
from perdure.worker.context import JobContext
from perdure.worker.executors.wire import (
    CUT_OFF,
    ImportPath,
    Unframer,
    ending_of,
    framed,
    path_of_kind,
    path_of_middleware,
)
from perdure.worker.lifecycle import say
from perdure.worker.run import (
    COMPLETED,
    WARN_AT,
    Assignment,
    Ended,
    Inbox,
    failed,
    failure_of,
    timed_out,
    warn_of_timeout,
)
from perdure.worker.signals import Stop

_BOOT = (
    "import sys; sys.path[:] = sys.argv[4:];"  # as in the worker, before anything is imported
    "from perdure.worker.executors.child import main; main(*map(int, sys.argv[1:4]))"
)
_AT_ONCE = 1 << 18
_LAST_BREATH_S = 1.0
"""How long a child that has hung up may take to end by itself, so that its own exit code is kept."""

GRACE_S = 5.0
"""How long a run that was asked to stop may continue before its process is killed."""
HURRY_S = 1.0
"""The same at the end of a shutdown, whose own grace is over by then; less than a worker waits for its last runs."""
START_S = 30.0
"""How long a new process may take to import a handler with a shorter time-out; not part of the time-out."""
LOOK_S = 0.1
"""How often the thread of a busy child looks whether its run is to stop."""
KILLED_S = 5.0

_SAYINGS = ("progress", "metric", "artifact", "captured")
logger = logging.getLogger("perdure.worker")


class ChildProcess:
    """A fresh interpreter, in a session and process group of its own, that runs one job after the other.

    It has its own socket to the worker: standard input and output belong to the handlers, and nothing that a job holds
    is ever on a command line. The thread that makes it must live as long as the child: the system sends the death
    signal when that thread ends.
    """

    def __init__(self) -> None:
        self.runs = 0
        """How many runs it was given."""
        self.has_hung_up = False
        """It ended, or closed its side of the conversation: nothing more will come from it."""
        self._unsent = bytearray()
        self._unframer = Unframer()
        self._socket, theirs = socket.socketpair()
        self._socket.setblocking(False)
        with theirs:
            self._lifeline: int | None
            hung_on, self._lifeline = os.pipe()
            try:
                self._process = _started(theirs.fileno(), hung_on)
            except BaseException:
                os.close(self._lifeline)
                self._socket.close()
                raise
            finally:
                os.close(hung_on)
        self._poll = select.poll()
        self._pidfd: int | None = _watched(self._process.pid)
        if self._pidfd is not None:
            self._poll.register(self._pidfd, select.POLLIN)
        _children.add(self)
        self.send("hello", sys.argv, logging.getLogger().level, has_one_form())

    @property
    def pid(self) -> int:
        return self._process.pid

    # -- talking -----------------------------------------------------------------------------------------------------

    def send(self, *frame: Any) -> None:
        """Never waits: what does not go out now goes out while listening."""
        self._unsent += framed(*frame)
        self._push()

    def heard(self, wait_s: float) -> list[list[Any]]:
        """The frames that arrive within that time. ValueError: it sent something else."""
        wanted = select.POLLIN | (select.POLLOUT if self._unsent else 0)
        self._poll.register(self._socket, wanted)
        ready = {fd for fd, _ in self._poll.poll(max(0.0, wait_s) * 1000)}
        if self._socket.fileno() not in ready and self._pidfd not in ready:
            return []
        self._push()
        frames = self._pull()
        if self._pidfd in ready:
            while not self.has_hung_up and (more := self._pull()):  # what it said last
                frames += more
            self.has_hung_up = True
        return frames

    def _push(self) -> None:
        try:
            while self._unsent:
                del self._unsent[: self._socket.send(self._unsent)]
        except BlockingIOError:
            pass
        except OSError:  # it is gone, as the next look shows
            self._unsent.clear()

    def _pull(self) -> list[list[Any]]:
        try:
            data = self._socket.recv(_AT_ONCE)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.has_hung_up = True
        return list(self._unframer.feed(data))

    # -- the end -----------------------------------------------------------------------------------------------------

    def kill(self) -> None:
        """End it and everything it started, now."""
        with suppress(ProcessLookupError, PermissionError):  # the leader's number is its own until `reap`
            os.killpg(self._process.pid, signal.SIGKILL)

    def reap(self, patience_s: float = _LAST_BREATH_S) -> int:
        """Hang up, let it end by itself for a while, then kill what is left of its group.

        Returns its exit code; a negative one is the signal that ended it.
        """
        self._socket.close()
        self._wait_for_exit(patience_s)
        self.kill()
        code = self._process.wait()
        self.release()
        return code

    def _wait_for_exit(self, patience_s: float) -> None:
        """Without taking its exit code: until that is taken, its number is not given to another process."""
        if self._pidfd is not None:
            death = select.poll()  # not select(), which refuses numbers from 1024 on
            death.register(self._pidfd, select.POLLIN)
            death.poll(max(0.0, patience_s) * 1000)
            return
        deadline = time.monotonic() + patience_s
        while time.monotonic() < deadline and os.waitid(os.P_PID, self.pid, _LOOK_ONLY) is None:
            time.sleep(0.01)

    def release(self) -> None:
        """Close what is held open for it. Called in forks of the worker too: the child is not theirs."""
        self._socket.close()
        for fd in (self._lifeline, self._pidfd):
            if fd is not None:
                os.close(fd)
        self._lifeline = self._pidfd = None


class PrintsTo:
    """Where children print; None: where this process does. Somebody who draws on the terminal reads it instead."""

    out: int | None = None
    err: int | None = None


prints_to = PrintsTo()


def _started(conversation: int, lifeline: int) -> subprocess.Popen[bytes]:
    args = getattr(subprocess, "_args_from_interpreter_flags")  # noqa: B009 - -W, -X, -O: as multiprocessing does
    flags = cast("list[str]", args())
    numbers = (str(conversation), str(lifeline), str(os.getpid()))
    return subprocess.Popen(  # noqa: S603 - our own interpreter
        [sys.executable, *flags, "-c", _BOOT, *numbers, *sys.path],
        stdin=subprocess.DEVNULL,
        stdout=prints_to.out,
        stderr=prints_to.err,
        pass_fds=(conversation, lifeline),
        start_new_session=True,
    )


def _watched(pid: int) -> int | None:
    """A descriptor that becomes readable when the process ends. None: the system has none."""
    if not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(pid)
    except OSError:  # forbidden; the closed socket must do
        return None


def _forked() -> None:
    """A fork of the worker closes its copies: otherwise the children would live as long as the fork."""
    for child in list(_children):
        child.release()
    _children.clear()


_LOOK_ONLY = os.WEXITED | os.WNOHANG | os.WNOWAIT
_children: weakref.WeakSet[ChildProcess] = weakref.WeakSet()
os.register_at_fork(after_in_child=_forked)


class ProcessExecutor:
    """As many children as runs have ever been open at once; the node limits how many."""

    def __init__(self, inbox: Inbox) -> None:
        self.grace_s = GRACE_S
        self._inbox = inbox
        self._todo: SimpleQueue[_ProcessRun | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._slots: list[_ProcessSlot] = []
        self._open: dict[RunId, _ProcessRun] = {}
        self._deadline = 0.0
        self.refused: dict[ImportPath, Failure] = {}
        """Kinds that no child can import, and why: each try would run their module again."""

    def start(self, tasks: Sequence[Assignment]) -> None:
        runs = [_ProcessRun(task, self.grace_s) for task in tasks]
        with self._lock:
            self._open.update((run.task.claim.run_id, run) for run in runs)
            missing = len(self._open) - len(self._slots)
        for _ in range(missing):
            slot = _ProcessSlot(self)
            slot.thread.start()
            self._slots.append(slot)
        for run in runs:
            self._todo.put(run)

    def stop(self, ctx: JobContext, why: Stop) -> None:
        with self._lock:
            run = self._open.get(ctx.claim.run_id)
        if run is not None:
            run.ask(why, time.monotonic())

    def close(self, patience_s: float) -> bool:
        self._deadline = time.monotonic() + patience_s
        for _ in self._slots:
            self._todo.put(None)
        for slot in self._slots:
            slot.thread.join(max(0.0, self._deadline - time.monotonic()))
        with self._lock:
            late = list(self._open.values())
        for run in late:
            run.end_now()
        reaped_by = time.monotonic() + KILLED_S
        for slot in self._slots:
            slot.thread.join(max(0.0, reaped_by - time.monotonic()))
        return not late

    @property
    def pids(self) -> list[int]:
        return [child.pid for slot in self._slots if (child := slot.child) is not None]

    # -- in the threads ----------------------------------------------------------------------------------------------

    def serve(self, slot: _ProcessSlot) -> None:
        while (run := self._todo.get()) is not None:
            ended = slot.run(run)
            with self._lock:
                del self._open[run.task.claim.run_id]
            self._inbox.put(ended)
        slot.dismiss(self._deadline - time.monotonic())


class _ProcessSlot:
    """A thread and, from its first run on, its child, which the thread starts, listens to, times and reaps.

    The child is kept for further runs; when it dies, only the run it had fails.
    """

    def __init__(self, pool: ProcessExecutor) -> None:
        self._pool = pool
        self.child: ChildProcess | None = None
        self.thread = threading.Thread(target=pool.serve, args=(self,), name="perdure-process", daemon=True)

    def run(self, run: _ProcessRun) -> Ended:
        task, refused = run.task, self._pool.refused
        try:
            order = _job_order(task)
            path = order["kind"]
            ended = Ended(task.ctx, Failed(refused[path]), RunStats()) if path in refused else self._run(run, order)
        except KindError as error:
            return Ended(task.ctx, Failed(failure_of(task, error, permanent=True)), RunStats())
        except Exception as error:  # whatever goes wrong, with the child or before: the run is handed back
            logger.exception("the process of %s could not be run", task.ctx.name)
            if self.child is not None:
                self.child.kill()
                self.dismiss()
            report = COMPLETED if task.ctx.closed else failed(task, failure_of(task, error))
            return Ended(task.ctx, report, task.ctx.stats(), task.ctx.closed)
        if run.unfit is not None and run.unfit.permanent:
            refused[path] = run.unfit
        return ended

    def _run(self, run: _ProcessRun, order: dict[str, Any]) -> Ended:
        while True:
            child = self.child = self.child or ChildProcess()
            was_warm = child.runs > 0
            ended = self._attended(run, child, order)
            if ended is not None and not run.has_spoilt_child:
                return ended
            code = self.dismiss()
            if ended is None and was_warm and run.is_untouched:
                continue  # it had died while it was idle: the run never reached it
            return ended or run.reaped(code)

    def _attended(self, run: _ProcessRun, child: ChildProcess, order: dict[str, Any]) -> Ended | None:
        """Give the run to the child and wait for its end. None: the child ended first."""
        child.runs += 1
        child.send("job", order)
        run.handed_over(time.monotonic())
        while True:
            for frame in child.heard(run.next_look_s(time.monotonic())):
                ended = run.heard(frame, time.monotonic())
                if ended is not None:
                    return ended
            if child.has_hung_up:
                return None
            run.attend(child, time.monotonic())

    def dismiss(self, patience_s: float = 1.0) -> int:
        """End the child, if there is one, and return its exit code."""
        child, self.child = self.child, None
        return 0 if child is None else child.reap(patience_s)


class _ProcessRun:
    """The state of one run: what the node wants of it, what the clock says, and what its child has said."""

    def __init__(self, task: Assignment, grace_s: float) -> None:
        self.task = task
        self._grace_s = grace_s
        self._handed_at = 0.0
        self._begun_at: float | None = None
        self._asked_at: float | None = None
        self._is_interrupted = False
        self._kill_at = inf
        self._killed_for: Stop | None = None
        self._is_warned = False
        self.unfit: Failure | None = None
        """Why its child could not import its kind."""
        self._has_changed_child = False

    # -- what the node wants (in its thread) -------------------------------------------------------------------------

    def ask(self, why: Stop, now: float) -> None:
        """The run is to end soon: at once if it is past its time or not ours any more, else after the grace."""
        self.task.ctx.stop = self.task.ctx.stop or why
        graceful = (now if self._asked_at is None else self._asked_at) + self._grace_s
        patience = {Stop.CANCEL: graceful, Stop.SHUTDOWN: min(graceful, now + HURRY_S)}
        self._kill_at = min(self._kill_at, patience.get(why, now))

    def end_now(self) -> None:
        self.task.ctx.stop = self.task.ctx.stop or Stop.SHUTDOWN
        self._kill_at = -inf

    # -- what its child says -----------------------------------------------------------------------------------------

    def handed_over(self, now: float) -> None:
        self._handed_at = now
        self._asked_at = None
        self._is_interrupted = False
        self.task.ctx.started_ns = time.perf_counter_ns()

    def heard(self, frame: list[Any], now: float) -> Ended | None:
        """Take in what the child says. Not None: the run has ended."""
        ctx = self.task.ctx
        match frame:
            case ["begun"]:
                self._begun_at = now
                ctx.begun = True
                ctx.started_ns = time.perf_counter_ns()
            case ["said", str() as what, args, numbers] if what in _SAYINGS:
                getattr(ctx, what)(*args, **numbers)
            case ["closed"]:
                ctx.closed = True
            case ["changed", what]:
                self._has_changed_child = True
                text = f"{ctx.name} has changed {', '.join(what)} for its process, which is not used again"
                say(logger, logging.INFO, text, ctx.facts)
            case ["logged", line]:
                log_forwarded(line)
            case ["ended", *rest]:
                return self._ended(rest)
            case ["unfit", message, trace, permanent]:
                self.unfit = Failure("KindError", ctx.fit(message), ctx.fit(trace), permanent)
                return Ended(ctx, failed(self.task, self.unfit), RunStats())
            case _:
                raise ValueError(f"the process of {self.task.kind.name} sent an unknown {frame[:1]}")
        return None

    def _ended(self, frame: list[Any]) -> Ended:
        ctx, ending = self.task.ctx, ending_of(frame)
        ctx.closed = ending.closed
        ctx.children = ending.children
        return Ended(ctx, ending.report, RunStats(ending.duration_ms, metrics=ctx.metrics), ending.closed)

    @property
    def has_spoilt_child(self) -> bool:
        """Its child cannot be used for another run."""
        return self.unfit is not None or self._killed_for is not None or self._has_changed_child

    @property
    def is_untouched(self) -> bool:
        """No handler was called for it, and nobody has ended its child."""
        return self._begun_at is None and self._killed_for is None

    def reaped(self, code: int) -> Ended:
        ctx = self.task.ctx
        return Ended(ctx, self._report_of_exit(code), ctx.stats()._replace(exit_code=code), ctx.closed)

    def _report_of_exit(self, code: int) -> Report:
        """How the run ended, from the exit code of its process."""
        ctx, why = self.task.ctx, self._killed_for
        if ctx.closed:
            return COMPLETED
        if why is None:
            return failed(self.task, Failure("ProcessCrashed", _describe_exit(code)))
        if ctx.stop is Stop.CANCEL:
            return Cancelled()
        if why is Stop.TIMEOUT:
            return timed_out(self.task)
        return Released(counts=ctx.begun)

    # -- what the clock does -----------------------------------------------------------------------------------------

    def next_look_s(self, now: float) -> float:
        return min(LOOK_S, max(0.0, self._limit_at - now), max(0.0, self._kill_at - now))

    def attend(self, child: ChildProcess, now: float) -> None:
        """Pass on that it should stop; kill a child whose time is over."""
        if self._killed_for is not None:
            return
        self._pass_on(child, now)
        if now >= self._kill_at:
            self._kill(child, self.task.ctx.stop or Stop.SHUTDOWN)
        elif now >= self._limit_at:
            self._kill(child, Stop.TIMEOUT)
        elif self._begun_at is not None and not self._is_warned and now >= self._warn_at:
            self._is_warned = True
            warn_of_timeout(self.task)

    def _pass_on(self, child: ChildProcess, now: float) -> None:
        """That it should stop, which the node may only have noted in the context; later, that it must."""
        why, is_now = self.task.ctx.stop, self._kill_at < inf
        if why is None or (self._asked_at is not None and self._is_interrupted == is_now):
            return
        child.send("stop", self.task.claim.run_id, why, is_now)
        self._asked_at = self._asked_at or now
        self._is_interrupted = is_now

    def _kill(self, child: ChildProcess, why: Stop) -> None:
        self._killed_for = why
        self.task.ctx.stop = self.task.ctx.stop or why
        child.kill()

    @property
    def _limit_at(self) -> float:
        """When its time is over. A new process may take a while before the handler begins."""
        limit_s = self.task.timeout_s
        if limit_s is None:
            return inf
        return self._handed_at + max(limit_s, START_S) if self._begun_at is None else self._begun_at + limit_s

    @property
    def _warn_at(self) -> float:
        return inf if self._begun_at is None else self._begun_at + WARN_AT * (self.task.timeout_s or inf)


def _job_order(task: Assignment) -> dict[str, Any]:
    """A run as it is sent to its child. KindError: no child could import its handler."""
    return {
        "claim": task.claim,
        "url": task.kind.app.url,
        "ahead_us": getattr(task.kind.app.clock, "ahead_us", None),
        "kind": path_of_kind(task.kind),
        "middleware": [path_of_middleware(middleware) for middleware in task.middleware],
        "jitter": task.jitter,
    }


def _describe_exit(code: int) -> str:
    if code == CUT_OFF:
        return (
            f"the process that ran the handler left with exit code {code}, as it does when the handler has closed"
            " descriptors that it did not open (os.closerange): the worker cannot learn how the handler ended"
        )
    if code >= 0:
        return f"the process that ran the handler left with exit code {code} before the handler had ended"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    hint = "; the system kills processes in this way when memory runs out" if -code == signal.SIGKILL else ""
    return f"the process that ran the handler was killed by {name}{hint}"
