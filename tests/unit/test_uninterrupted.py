"""An exception that is raised into a thread from outside comes at no moment at which the thread is marked."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import pytest

from perdure import uninterrupted as module
from perdure.uninterrupted import Mark, interruptible, uninterrupted

DEADLINE_S = 20


class Stop(BaseException):
    """Raised from outside."""


class Marked:
    """A thread with a mark, which does something and keeps what came of it."""

    def __init__(self, act: Callable[[Marked], None]) -> None:
        self.told: list[str] = []
        self.here, self.go = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._serve, args=(act,), daemon=True)
        self._thread.start()
        assert self.here.wait(DEADLINE_S)

    def _serve(self, act: Callable[[Marked], None]) -> None:
        self.mark = Mark()
        try:
            act(self)
        except Stop:
            self.told.append("stopped")

    def wait_here(self) -> None:
        """Let the test go on, and wait until it lets us."""
        self.here.set()
        while not self.go.is_set():  # Python code, in which an exception is raised at once
            pass

    def stop(self) -> bool:
        raised = self.mark.raise_in_thread(Stop)
        self.go.set()
        return raised

    def ended(self) -> list[str]:
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        return self.told


def test_outside_of_marked_code_it_is_raised_at_once() -> None:
    def act(me: Marked) -> None:
        with interruptible:
            me.wait_here()
            me.told.append("went on")

    thread = Marked(act)
    thread.mark.raise_in_thread(Stop)

    assert thread.ended() == ["stopped"]


def test_inside_of_marked_code_it_is_raised_on_the_way_out() -> None:
    def act(me: Marked) -> None:
        with interruptible:
            with uninterrupted:
                with uninterrupted:
                    me.wait_here()
                me.told.append("the call has ended")
            me.told.append("went on")

    thread = Marked(act)
    thread.stop()

    assert thread.ended() == ["the call has ended", "stopped"]


def test_in_the_users_code_inside_of_marked_code_it_is_raised_at_once() -> None:
    def act(me: Marked) -> None:
        with interruptible, uninterrupted:
            try:
                with interruptible:
                    me.wait_here()
                    me.told.append("went on")
            finally:
                me.told.append(f"ends the block at depth {me.mark.depth}")

    thread = Marked(act)
    thread.mark.raise_in_thread(Stop)

    assert thread.ended() == ["ends the block at depth 1", "stopped"]


def test_one_that_is_due_is_raised_before_the_users_code_begins() -> None:
    def act(me: Marked) -> None:
        me.wait_here()
        with interruptible:
            me.told.append("began")

    thread = Marked(act)
    thread.stop()

    assert thread.ended() == ["stopped"]
    assert thread.mark.depth == 1


def test_a_thread_that_is_done_with_a_run_is_not_hit_by_what_was_meant_for_it() -> None:
    def act(me: Marked) -> None:
        me.wait_here()
        me.mark.clear()
        with interruptible:
            me.told.append("the next one")

    thread = Marked(act)
    thread.stop()

    assert thread.ended() == ["the next one"]


def test_in_a_thread_without_a_mark_marked_code_is_as_any_other() -> None:
    with uninterrupted, interruptible:
        pass


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="there a new thread has its own number from the start")
def test_while_a_thread_is_being_started_nothing_is_raised_in_its_starter() -> None:
    def act(me: Marked) -> None:
        with interruptible:
            me.wait_here()

    thread = Marked(act)
    module._starting_threads["another"] = "thread"
    try:
        assert not thread.stop()
        assert thread.ended() == []
    finally:
        del module._starting_threads["another"]
