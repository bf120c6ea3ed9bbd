"""Attributes worked out on first use, by threads that come together and in a child forked meanwhile."""

from __future__ import annotations

import gc
import os
import threading

import pytest

from perdure.lazy import Lazy, lazy


class Costly(Lazy):
    made = 0

    def __init__(self, gate: threading.Event | None = None) -> None:
        self.gate = gate
        self.inside = threading.Event()

    @lazy
    def value(self) -> object:
        """What it is about."""
        type(self).made += 1
        self.inside.set()
        if self.gate is not None:
            self.gate.wait()
        return object()


def test_it_is_worked_out_once() -> None:
    costly = Costly()
    before = Costly.made

    assert costly.value is costly.value
    assert Costly.made == before + 1


def test_threads_that_come_together_see_the_same_value() -> None:
    costly = Costly(threading.Event())
    seen: list[object] = []
    threads = [threading.Thread(target=lambda: seen.append(costly.value)) for _ in range(2)]
    for thread in threads:
        thread.start()
    assert costly.gate is not None
    costly.gate.set()
    for thread in threads:
        thread.join()

    assert seen == [costly.value, costly.value]


def test_a_child_forked_while_another_thread_works_it_out_does_not_wait_for_it() -> None:
    costly = Costly(threading.Event())
    thread = threading.Thread(target=lambda: costly.value)
    thread.start()
    costly.inside.wait()

    child = os.fork()
    if not child:
        costly.gate = None
        os._exit(0 if costly.value else 1)
    _, status = os.waitpid(child, 0)
    assert costly.gate is not None
    costly.gate.set()
    thread.join()

    assert status == 0


def test_asked_of_the_class_it_is_itself() -> None:
    assert isinstance(Costly.value, lazy)
    assert Costly.value.__doc__ == "What it is about."


def test_the_garbage_collector_in_the_middle_of_first_use_gives_no_second_dict() -> None:
    """A finaliser, as any other thread, uses the object when it is first asked. Python 3.11 alone is hurt."""
    seen: list[object] = []

    class Rubbish:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            seen.append(costly.__dict__)

    before = gc.get_threshold()
    gc.collect()
    gc.disable()
    try:
        costly = Costly()
        Rubbish()
        kept = [{} for _ in range(1000)]  # type: ignore[var-annotated]  # no freed dict is left to be used again
        gc.set_threshold(1)
        gc.enable()
        value = costly.value
    finally:
        gc.set_threshold(*before)
        gc.enable()
    del kept
    gc.collect()

    assert len(seen) == 1
    assert seen[0] is costly.__dict__
    assert costly.__dict__["value"] is value


def test_a_class_that_forgets_the_base_is_refused() -> None:
    with pytest.raises((TypeError, RuntimeError)) as raised:  # before Python 3.12 as the cause of a RuntimeError

        class Forgetful:
            @lazy
            def value(self) -> object:
                return object()

    error = raised.value if isinstance(raised.value, TypeError) else raised.value.__cause__
    assert str(error) == "Forgetful.value is lazy, so Forgetful must be a subclass of Lazy."
