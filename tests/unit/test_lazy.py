"""Attributes worked out on first use, by threads that come together and in a child forked meanwhile."""

from __future__ import annotations

import os
import threading

from perdure.lazy import lazy


class Costly:
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
