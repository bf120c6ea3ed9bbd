"""The line between the threads of one process: in turn, and never left stuck by a waiter that goes away."""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from perdure.store.line import Line, Ticket, new_ticket


class Interrupted(BaseException):
    """Raised by a signal handler, as KeyboardInterrupt is."""


@pytest.fixture
def threads_switch_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(0.000001)
    yield
    sys.setswitchinterval(before)


def test_a_free_place_is_taken_at_once() -> None:
    line = Line()

    assert line.join(new_ticket(), timeout=0)


def test_a_taken_place_is_not_taken_twice() -> None:
    line = Line()
    line.join(new_ticket())

    assert not line.join(new_ticket(), timeout=0)


def test_a_time_out_below_zero_does_not_wait() -> None:
    line = Line()
    line.join(new_ticket())

    assert not line.join(new_ticket(), timeout=-5)


def test_a_place_that_was_left_can_be_taken_again() -> None:
    line, mine = Line(), new_ticket()
    line.join(mine)
    line.leave(mine)

    assert line.join(new_ticket(), timeout=0)


def test_there_is_a_place_for_as_many_as_were_asked_for() -> None:
    line = Line(places=3)
    tickets = [new_ticket() for _ in range(4)]

    assert [line.join(ticket, timeout=0) for ticket in tickets] == [True, True, True, False]
    assert [line.has_place(ticket) for ticket in tickets] == [True, True, True, False]


def test_leaving_twice_takes_nobody_elses_place() -> None:
    line, mine, others = Line(), new_ticket(), new_ticket()
    line.join(mine)
    line.leave(mine)
    line.join(others)

    line.leave(mine)

    assert line.has_place(others)
    assert not line.join(new_ticket(), timeout=0)


def test_whoever_was_not_told_because_of_an_interrupt_is_told_when_the_leaving_is_repeated() -> None:
    line, mine = Line(), new_ticket()
    line.join(mine)
    order: list[str] = []
    waiter = _in_line(line, lambda: order.append("the one who waited"))
    line._line.remove(mine)  # the first half of leaving

    line.leave(mine)
    _join([waiter])

    assert order == ["the one who waited"]


def test_a_place_that_is_left_is_told_to_who_waits_though_others_keep_theirs() -> None:
    line, mine, stays = Line(places=3), new_ticket(), [new_ticket(), new_ticket()]
    for ticket in (mine, *stays):
        line.join(ticket)
    line.leave(new_ticket())  # the others have been told before that they have a place
    order: list[str] = []
    waiter = _in_line(line, lambda: order.append("the one who waited"))

    line.leave(mine)
    _join([waiter])

    assert order == ["the one who waited"]
    assert all(map(line.has_place, stays))


def test_waiters_get_their_turn_in_the_order_they_came() -> None:
    line, mine = Line(), new_ticket()
    order: list[int] = []

    line.join(mine)
    threads = [_in_line(line, partial(order.append, number)) for number in range(8)]
    line.leave(mine)
    _join(threads)

    assert order == list(range(8))


def test_a_thread_that_comes_straight_back_does_not_overtake_those_who_wait() -> None:
    line, mine = Line(), new_ticket()
    order: list[str] = []
    line.join(mine)
    waiter = _in_line(line, lambda: order.append("the one who waited"))

    line.leave(mine)
    with _place_in(line):
        order.append("the one who came back")
    _join([waiter])

    assert order == ["the one who waited", "the one who came back"]


def test_a_waiter_that_gave_up_is_passed_over() -> None:
    line, mine, gone = Line(), new_ticket(), new_ticket()
    order: list[str] = []
    line.join(mine)
    assert not line.join(gone, timeout=0.001)
    waiter = _in_line(line, lambda: order.append("the next"))

    line.leave(gone)
    line.leave(mine)
    _join([waiter])

    assert order == ["the next"]
    assert line.join(new_ticket(), timeout=0)


def test_another_thread_may_leave_in_the_name_of_one() -> None:
    line, mine = Line(), new_ticket()
    line.join(mine)

    _join([_started(partial(line.leave, mine))])

    assert line.join(new_ticket(), timeout=0)


def test_an_interrupted_waiter_has_no_place_once_it_has_left() -> None:
    line, mine, interrupted = Line(), new_ticket(), new_ticket()
    line.join(mine)
    main = threading.get_ident()
    raised = threading.Event()

    def interrupt(*_: object) -> None:
        if not raised.is_set():
            raised.set()
            raise Interrupted

    def keep_signalling() -> None:  # one that arrives just before the wait begins does not end it
        _until(lambda: len(line) == 2)
        while not raised.is_set():
            signal.pthread_kill(main, signal.SIGUSR1)

    with _handling(signal.SIGUSR1, interrupt):
        interrupter = _started(keep_signalling)
        with pytest.raises(Interrupted):
            line.join(interrupted)
        _join([interrupter])
    line.leave(interrupted)
    line.leave(mine)

    assert line.join(new_ticket(), timeout=0)


@pytest.mark.usefixtures("threads_switch_often")
@pytest.mark.parametrize("places", [1, 3])
def test_threads_that_give_up_at_any_moment_never_crowd_it_nor_leave_it_stuck(places: int) -> None:
    line = Line(places)
    inside: list[int] = []
    crowded: list[int] = []

    def come_and_go(number: int) -> None:
        for turn in range(1_000):
            ticket = new_ticket()
            if line.join(ticket, timeout=0.00001 * (turn % 7)):
                inside.append(number)
                if len(inside) > places:
                    crowded.append(number)
                inside.remove(number)
            line.leave(ticket)

    _join([_started(partial(come_and_go, number)) for number in range(6)])

    assert not crowded
    assert not len(line)


@pytest.mark.usefixtures("threads_switch_often")
@pytest.mark.parametrize("places", [1, 2])
def test_a_waiter_interrupted_at_any_moment_leaves_the_line_usable(places: int) -> None:
    line = Line(places)
    enough = threading.Event()

    def keep_it_busy() -> None:
        while not enough.is_set():
            with _place_in(line):
                pass

    def interrupt(*_: object) -> None:
        raise Interrupted

    busy = [_started(keep_it_busy) for _ in range(places + 1)]
    interrupts = 0
    with _handling(signal.SIGALRM, interrupt):
        for turn in range(3_000):
            ticket = new_ticket()
            try:
                signal.setitimer(signal.ITIMER_REAL, 0.000001 + 0.000003 * (turn % 50))
                line.join(ticket, timeout=0.00005 * (turn % 3))
                signal.setitimer(signal.ITIMER_REAL, 0)
            except Interrupted:
                interrupts += 1
            line.leave(ticket)
    enough.set()
    _join(busy)

    assert interrupts > 100
    assert not len(line)


@contextmanager
def _place_in(line: Line) -> Iterator[Ticket]:
    ticket = new_ticket()
    try:
        line.join(ticket)
        yield ticket
    finally:
        line.leave(ticket)


def _in_line(line: Line, act: Callable[[], object]) -> threading.Thread:
    """A thread that does `act` when it has a place; it is in the line when this returns."""
    ahead = len(line)

    def take_turn() -> None:
        with _place_in(line):
            act()

    thread = _started(take_turn)
    _until(lambda: len(line) > ahead)
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
