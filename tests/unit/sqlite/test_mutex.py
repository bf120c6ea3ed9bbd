"""The lock between the threads of one process: in turn, and never left stuck by a waiter that goes away."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from perdure.store.sql.dialects.sqlite.mutex import FifoMutex


class Interrupted(BaseException):
    """Raised by a signal handler, as KeyboardInterrupt is."""


@pytest.fixture
def threads_switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.000001)
    yield
    sys.setswitchinterval(before)


def test_a_free_mutex_is_taken_at_once() -> None:
    mutex = FifoMutex()

    assert mutex.acquire(timeout=0)


def test_a_held_mutex_is_not_taken() -> None:
    mutex = FifoMutex()
    mutex.acquire()

    assert not mutex.acquire(timeout=0)


def test_a_time_out_below_zero_does_not_wait() -> None:
    mutex = FifoMutex()
    mutex.acquire()

    assert not mutex.acquire(timeout=-5)


def test_a_released_mutex_can_be_taken_again() -> None:
    mutex = FifoMutex()
    mutex.acquire()
    mutex.release()

    assert mutex.acquire(timeout=0)


def test_a_with_block_holds_the_mutex_and_gives_it_back_after_an_error() -> None:
    mutex = FifoMutex()

    with pytest.raises(LookupError), mutex:
        assert not mutex.acquire(timeout=0)
        raise LookupError

    assert mutex.acquire(timeout=0)


def test_releasing_what_nobody_holds_is_an_error() -> None:
    with pytest.raises(IndexError):
        FifoMutex().release()


def test_waiters_get_their_turn_in_the_order_they_came() -> None:
    mutex = FifoMutex()
    order: list[int] = []

    with mutex:
        threads = [_in_line(mutex, partial(order.append, number)) for number in range(8)]
    _join(threads)

    assert order == list(range(8))


def test_a_thread_that_comes_straight_back_does_not_overtake_those_who_wait() -> None:
    mutex = FifoMutex()
    order: list[str] = []
    mutex.acquire()
    waiter = _in_line(mutex, lambda: order.append("the one who waited"))

    mutex.release()
    with mutex:
        order.append("the one who came back")
    _join([waiter])

    assert order == ["the one who waited", "the one who came back"]


def test_a_waiter_that_gave_up_is_passed_over() -> None:
    mutex = FifoMutex()
    order: list[str] = []
    mutex.acquire()
    assert not mutex.acquire(timeout=0.001)
    waiter = _in_line(mutex, lambda: order.append("the next"))

    mutex.release()
    _join([waiter])

    assert order == ["the next"]
    assert mutex.acquire(timeout=0)


def test_another_thread_may_release() -> None:
    mutex = FifoMutex()
    mutex.acquire()

    _join([_started(mutex.release)])

    assert mutex.acquire(timeout=0)


def test_an_interrupted_waiter_does_not_hold_the_mutex_nor_its_place() -> None:
    mutex = FifoMutex()
    mutex.acquire()
    main = threading.get_ident()
    raised = threading.Event()

    def interrupt(*_: object) -> None:
        if not raised.is_set():
            raised.set()
            raise Interrupted

    def keep_signalling() -> None:  # one that arrives just before the wait begins does not end it
        _until(lambda: len(mutex._line) == 2)
        while not raised.is_set():
            signal.pthread_kill(main, signal.SIGUSR1)

    with _handling(signal.SIGUSR1, interrupt):
        interrupter = _started(keep_signalling)
        with pytest.raises(Interrupted):
            mutex.acquire()
        _join([interrupter])
    mutex.release()

    assert mutex.acquire(timeout=0)


@pytest.mark.usefixtures("threads_switch_often")
def test_threads_that_give_up_at_any_moment_never_break_exclusion_nor_leave_it_stuck() -> None:
    mutex = FifoMutex()
    inside: list[int] = []
    crowded: list[int] = []

    def come_and_go(number: int) -> None:
        for turn in range(1_000):
            if mutex.acquire(timeout=0.00001 * (turn % 7)):
                inside.append(number)
                if len(inside) > 1:
                    crowded.append(number)
                inside.remove(number)
                mutex.release()

    _join([_started(partial(come_and_go, number)) for number in range(6)])

    assert not crowded
    assert mutex.acquire(timeout=0)


@pytest.mark.usefixtures("threads_switch_often")
def test_a_waiter_interrupted_at_any_moment_leaves_the_mutex_usable() -> None:
    mutex = FifoMutex()
    enough = threading.Event()

    def keep_it_busy() -> None:
        while not enough.is_set():
            with mutex:
                pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    busy = [_started(keep_it_busy) for _ in range(2)]
    interrupts = 0
    with _handling(signal.SIGALRM, interrupt):
        for turn in range(3_000):
            mine = False
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.000001 + 0.000003 * (turn % 50))
                mine = mutex.acquire(timeout=0.00005 * (turn % 3))
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                interrupts += 1
            if mine:
                mutex.release()
    enough.set()
    _join(busy)

    assert interrupts > 100
    assert mutex.acquire(timeout=0)


def _in_line(mutex: FifoMutex, act: Callable[[], object]) -> threading.Thread:
    """A thread that does `act` inside the mutex; it is in the line when this returns."""
    ahead = len(mutex._line)

    def take_turn() -> None:
        with mutex:
            act()

    thread = _started(take_turn)
    _until(lambda: len(mutex._line) > ahead)
    return thread


def _started(act: Callable[[], object]) -> threading.Thread:
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    return thread


def _join(threads: list[threading.Thread]) -> None:
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive(), "a thread is stuck"


def _until(true: Callable[[], bool]) -> None:
    while not true():
        time.sleep(0)  # only lets the other thread run


@contextmanager
def _handling(number: signal.Signals, handler: Callable[..., None]) -> Iterator[None]:
    alarm, _ = signal.setitimer(signal.ITIMER_REAL, 0)  # the hang guard of the test run, lent to us
    before = signal.signal(number, handler)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(number, before)
        signal.setitimer(signal.ITIMER_REAL, alarm)
