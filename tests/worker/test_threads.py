"""The thread executor by itself: whatever an interrupt hits, a run comes back once and harms no other."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from perdure import Perdure
from perdure.ids import JobId, NodeId, RunId
from perdure.job.reports import Cancelled, Completed, Finish, Released, TimedOut
from perdure.store.rows import Claimer, FinishStatus, Lane, NewNode
from perdure.uninterrupted import _here
from perdure.worker.context import JobContext
from perdure.worker.executors.loop import LoopExecutor
from perdure.worker.executors.threads import ThreadExecutor, _ThreadSlot, _Timekeeper
from perdure.worker.run import Assignment, Ended, Inbox
from perdure.worker.services import StoreServices
from perdure.worker.signals import Interrupted, Stop
from tests.worker.patience import DEADLINE_S, eventually, seen_by_the_doctor


class Pool:
    """An executor, and runs for it of jobs that were really claimed and are really finished."""

    def __init__(self, app: Perdure) -> None:
        self.app = app
        self.node = NodeId(app.ids.new())
        self._numbers = count()
        app.store.register(NewNode(self.node, app.clock.now()))
        self.renew()

    def renew(self) -> None:
        self._rung = threading.Semaphore(0)
        self._taken: list[Ended] = []
        self._inbox = Inbox(self._rung.release)
        self.executor = ThreadExecutor(self._inbox, lambda: LoopExecutor(self._inbox))

    def claimed(self, body: Callable[[], Any], **options: Any) -> Assignment:
        name = f"kind{next(self._numbers)}"

        def handler() -> Any:
            return body()

        kind: Any = self.app.job(name=name, queue=name, **options)(handler)
        kind.enqueue()
        claimer = Claimer(self.node, None, [RunId(self.app.ids.new())], 60_000_000)
        (claim,) = self.app.store.claim([Lane(name, 1)], claimer, self.app.clock.now())
        return Assignment(claim, kind, JobContext(claim, kind, StoreServices(self.app.parts())))

    def came_back(self) -> Ended:
        """The next run that does."""
        while not self._taken:
            assert self._rung.acquire(timeout=DEADLINE_S), "the run does not come back"
            self._taken += self._inbox.take()
        ended = self._taken.pop(0)
        finish = Finish(ended.ctx.claim.live, ended.report, JobId(self.app.ids.new()), ended.stats)
        (finished,) = self.app.store.finish([finish], self.app.clock.now())
        assert finished.status is FinishStatus.APPLIED
        return ended

    def ran(self, task: Assignment) -> Ended:
        self.executor.start([task])
        return self.came_back()


@pytest.fixture
def pool(path: Path) -> Iterator[Pool]:
    pool = Pool(Perdure(path, durability="normal"))
    yield pool
    assert pool.executor.close(DEADLINE_S)
    pool.app.store.stop(pool.node, "clean_shutdown", pool.app.clock.now())
    seen_by_the_doctor(pool.app)


# -- interrupts ------------------------------------------------------------------------------------------------------


class Interrupts:
    """Two of them, at moments at which Python might raise one: the first where a function begins or a built-in one has
    returned, the second where a function begins after that. Only where the thread's mark lets one through."""

    def __init__(self, executor: ThreadExecutor, task: Assignment, first: int, second: int) -> None:
        self._executor = executor
        self._task = task
        self._first = first
        self._second = second
        self._could_be_hit = False
        self.seen = 0

    def profile(self, frame: FrameType, event: str, _arg: object) -> None:
        if self._can_be_hit(frame) and event in ("call", "c_return"):
            self.seen += 1
            if self.seen == self._first:
                raise Interrupted

    def trace(self, frame: FrameType, _event: str, _arg: object) -> None:
        if self.seen == self._first and self._can_be_hit(frame):
            self._second -= 1
            if self._second == 0:
                raise Interrupted

    def _can_be_hit(self, frame: FrameType) -> bool:
        """One that was due when the mark was set again still hits. In code of ours: elsewhere it may be swallowed."""
        mark = _here.mark
        could_be_hit = self._could_be_hit
        self._could_be_hit = mark is not None and not mark.depth and self._task.ctx in self._executor._open
        return could_be_hit and str(frame.f_globals.get("__name__")).startswith("perdure.")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # a finaliser may be hit as well
@pytest.mark.parametrize("second", [1, 2, 3, 5, 8])
def test_after_two_interrupts_at_any_moments_a_run_comes_back_once_and_the_next_one_is_well(
    pool: Pool, second: int
) -> None:
    first, is_hit = 0, True
    while is_hit:
        first += 1
        pool.renew()
        task = pool.claimed(lambda: "done", timeout=3600)
        interrupts = Interrupts(pool.executor, task, first, second)
        serve_here(pool.executor, task, interrupts)
        pool.came_back()
        is_hit = interrupts.seen >= first

        following = pool.ran(pool.claimed(lambda: "done", timeout=3600))
        assert following.report == Completed('"done"'), first
        assert pool.executor.running == 0, first
        assert pool.executor.close(DEADLINE_S)
    assert first > 8


def serve_here(executor: ThreadExecutor, task: Assignment, interrupts: Interrupts) -> None:
    """Be a thread of the pool's for the time of one run."""
    executor._timekeeper = _Timekeeper(executor)
    executor._todo.append(task)
    executor._is_closing = True
    try:
        sys.settrace(interrupts.trace)
        sys.setprofile(interrupts.profile)
        executor.serve(_ThreadSlot(executor))
    finally:
        sys.setprofile(None)
        sys.settrace(None)
        _here.mark = None
    executor._is_closing = False


def test_a_run_that_is_stopped_before_a_thread_has_it_does_not_begin(
    pool: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where threads are short, or have not woken yet."""
    entered, go, begun = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        entered.set()
        go.wait(DEADLINE_S)

    first = pool.claimed(hold)
    cancelled, released = pool.claimed(begun.set), pool.claimed(begun.set)
    pool.executor.start([first])
    assert entered.wait(DEADLINE_S)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refused)
        pool.executor.start([cancelled, released])
    pool.executor.stop(cancelled.ctx, Stop.CANCEL)
    pool.executor.stop(released.ctx, Stop.SHUTDOWN)
    go.set()

    assert [pool.came_back().report for _ in range(3)] == [Completed(), Cancelled(), Released(counts=False)]
    assert not begun.is_set()


def refused(_: threading.Thread) -> None:
    raise RuntimeError("can't start new thread")


def test_where_the_system_gives_no_more_threads_runs_share_those_there_are(
    pool: Pool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pool.ran(pool.claimed(lambda: None))
    monkeypatch.setattr(threading.Thread, "start", refused)
    pool.executor.start([pool.claimed(lambda: 1), pool.claimed(lambda: 2)])

    assert {pool.came_back().report for _ in range(2)} == {Completed("1"), Completed("2")}
    assert "jobs share the 1 threads there are" in caplog.text


def test_a_run_that_has_ended_is_told_of_while_those_started_with_it_go_on(pool: Pool) -> None:
    go = threading.Event()
    tasks = [pool.claimed(lambda: "short"), *(pool.claimed(lambda: go.wait(DEADLINE_S)) for _ in range(3))]
    pool.executor.start(tasks)

    assert pool.came_back().report == Completed('"short"')
    go.set()
    assert [pool.came_back().report for _ in range(3)] == [Completed("true")] * 3


def test_handlers_that_wait_for_each_other_all_run_at_once(pool: Pool) -> None:
    """Each thread is woken by the one before, which may be waiting in its handler by then."""
    together = threading.Barrier(20)
    for _ in range(3):
        pool.executor.start([pool.claimed(lambda: together.wait(DEADLINE_S) >= 0) for _ in range(20)])
        assert [pool.came_back().report for _ in range(20)] == [Completed("true")] * 20


def test_a_thread_that_waits_to_log_leaves_no_lock_behind_when_it_is_interrupted(pool: Pool) -> None:
    """Before Python 3.13 the interrupt hits between a log handler's taking its lock and its `try`."""
    log = logging.getLogger("shop")
    handler = logging.StreamHandler(open(os.devnull, "w"))  # noqa: PTH123, SIM115 - closed below
    log.addHandler(handler)
    about_to_log = threading.Event()

    def body() -> None:
        about_to_log.set()
        log.warning("never said")

    assert handler.lock is not None
    try:
        with handler.lock:
            task = pool.claimed(body)
            pool.executor.start([task])
            assert about_to_log.wait(DEADLINE_S)
            eventually(lambda: waits_in(pool, "acquire") or waits_in(pool, "handle"))  # the second from 3.13 on
            pool.executor.stop(task.ctx, Stop.SHUTDOWN)
        assert pool.came_back().report == Released(counts=True)
        assert handler.lock.acquire(timeout=DEADLINE_S)
        handler.lock.release()
    finally:
        log.removeHandler(handler)
        handler.stream.close()
        handler.close()


def waits_in(pool: Pool, function: str) -> bool:
    """Whether the pool's first thread is in that function now."""
    frame = sys._current_frames().get(pool.executor._slots[0].thread.ident or 0)
    return frame is not None and frame.f_code.co_name == function


# -- time-outs -------------------------------------------------------------------------------------------------------


def test_time_outs_are_kept_however_many_runs_begin(pool: Pool) -> None:
    def spin() -> None:
        while True:
            threading.Event().wait(0.001)

    late = pool.claimed(spin, timeout=0.2, retry=1)
    pool.executor.start([late])
    back: list[Ended] = []
    while not any(ended.ctx is late.ctx for ended in back):
        pool.executor.start([pool.claimed(lambda: None, timeout=3600)])
        back.append(pool.came_back())
    pool.came_back()
    assert isinstance(next(ended.report for ended in back if ended.ctx is late.ctx), TimedOut)


# -- forks -----------------------------------------------------------------------------------------------------------


def test_a_copy_of_the_worker_that_a_handler_leaves_behind_ends_and_runs_no_other_job(
    pool: Pool, tmp_path: Path
) -> None:
    marks = tmp_path / "marks"
    pids: list[int] = []

    def fork() -> None:
        with open(marks, "a") as file:  # noqa: PTH123
            file.write("x")
        pids.append(os.fork())

    pool.ran(pool.claimed(fork))
    (pid,) = pids
    eventually(lambda: os.waitpid(pid, os.WNOHANG) == (pid, 0))
    assert marks.read_text() == "x"
