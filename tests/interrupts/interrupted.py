"""A program whose main thread is interrupted again and again by real signals while others write beside it.

Prints as JSON what each thread was told. Run by test_signals with a URL, the number of rounds, and what the main thread
does: `enqueue`, `block` or `awaited`.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

from perdure import Perdure
from tests.interrupts.elsewhere import commit_elsewhere

armed = False


def interrupt(*_: object) -> None:
    """As Ctrl-C does: Python raises KeyboardInterrupt, and where asyncio has the loop it cancels the task instead."""
    global armed  # noqa: PLW0603 - once: asyncio raises the second one wherever it hits
    if armed:
        armed = False
        signal.raise_signal(signal.SIGINT)


def acts(app: Perdure, note: Any) -> dict[str, Callable[[int], None]]:
    def block(number: int) -> None:
        with app.transaction():
            note.enqueue("main", number)
            app.get(next(app.jobs(limit=1)))

    async def both(number: int) -> None:
        global armed  # noqa: PLW0603 - asyncio's own code, before and after, does not survive every interrupt
        armed = True
        await note.aenqueue("main", number)
        await app.aio.get(await anext(app.aio.jobs(limit=1)))
        armed = False

    def awaited(number: int) -> None:
        global armed  # noqa: PLW0603 - as above
        armed = False
        asyncio.run(both(number))

    return {"enqueue": lambda number: note.enqueue("main", number), "block": block, "awaited": awaited}


class Beside:
    """Threads that enqueue as fast as they can, and what they were told."""

    def __init__(self, url: str, note: Any) -> None:
        self._note = note
        self.acknowledged: list[tuple[str, int]] = []
        self.errors: list[str] = []
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._enqueue, args=(f"thread {n}",), daemon=True) for n in range(2)]
        self._threads.append(threading.Thread(target=commit_elsewhere, args=(url, self._over), daemon=True))
        for thread in self._threads:
            thread.start()

    def _enqueue(self, who: str) -> None:
        number = 0
        while not self._over.is_set():
            try:
                self._note.enqueue(who, number)
                self.acknowledged.append((who, number))
            except BaseException as error:  # noqa: BLE001 - whatever it is, it was not meant for this thread
                self.errors.append(repr(error))
            number += 1

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(60)
            if thread.is_alive():
                self.errors.append(f"{thread.name} hangs")


def interrupted(act: Callable[[], None], after_s: float) -> bool:
    global armed  # noqa: PLW0603 - read by the signal handler
    try:
        armed = True
        signal.setitimer(signal.ITIMER_REAL, after_s)
        act()
        armed = False
    except (KeyboardInterrupt, asyncio.CancelledError):
        armed = False
        return True
    return False


def main(url: str, rounds: int, what: str) -> dict[str, object]:
    app = Perdure(url, auto_migrate=True)

    @app.job
    def note(who: str, number: int) -> None: ...

    act = acts(app, note)[what]
    act(-1)
    signal.signal(signal.SIGALRM, interrupt)
    beside = Beside(url, note)
    acknowledged, interrupts, took_s = [("main", -1)], 0, 0.005
    for number in range(rounds):
        started = time.monotonic()
        if interrupted(partial(act, number), random.uniform(0.00001, 1.5 * took_s)):
            interrupts += 1
        else:
            acknowledged.append(("main", number))
            took_s = 0.8 * took_s + 0.2 * (time.monotonic() - started)
    signal.setitimer(signal.ITIMER_REAL, 0)
    beside.stop()
    act(rounds)
    acknowledged += [("main", rounds), *beside.acknowledged]
    return {"acknowledged": acknowledged, "errors": beside.errors, "interrupts": interrupts}


if __name__ == "__main__":
    warnings.simplefilter("ignore")  # of what an interrupt left to the garbage collector
    sys.unraisablehook = lambda _: None
    json.dump(main(sys.argv[1], int(sys.argv[2]), sys.argv[3]), sys.stdout)
