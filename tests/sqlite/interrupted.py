"""A program whose main thread is interrupted again and again while it enqueues beside other threads.

Prints as JSON what each thread was told. Run by test_interrupts with the path of the database and the number of rounds.
"""

from __future__ import annotations

import json
import random
import signal
import sys
import threading

from perdure import Perdure

armed = False


def interrupt(*_: object) -> None:
    if armed:
        raise KeyboardInterrupt


def main(path: str, rounds: int) -> dict[str, object]:
    global armed  # noqa: PLW0603 - read by the signal handler
    app = Perdure(path)

    @app.job
    def note(who: str, number: int) -> None: ...

    note.enqueue("main", -1)
    acknowledged: list[tuple[str, int]] = [("main", -1)]
    errors: list[str] = []
    over = threading.Event()

    def beside(who: str) -> None:
        number = 0
        while not over.is_set():
            try:
                note.enqueue(who, number)
                acknowledged.append((who, number))
            except BaseException as error:  # noqa: BLE001 - whatever it is, it was not meant for this thread
                errors.append(repr(error))
            number += 1

    threads = [threading.Thread(target=beside, args=(f"thread {n}",)) for n in range(2)]
    for thread in threads:
        thread.start()
    signal.signal(signal.SIGALRM, interrupt)
    interrupts = 0
    for number in range(rounds):
        try:
            armed = True
            signal.setitimer(signal.ITIMER_REAL, random.uniform(0.00001, 0.004))
            note.enqueue("main", number)
            armed = False
            acknowledged.append(("main", number))
        except KeyboardInterrupt:
            armed = False
            interrupts += 1
        except Exception as error:  # noqa: BLE001 - reported
            armed = False
            errors.append(repr(error))
    signal.setitimer(signal.ITIMER_REAL, 0)
    over.set()
    for thread in threads:
        thread.join()
    note.enqueue("main", rounds)
    acknowledged.append(("main", rounds))
    return {"acknowledged": acknowledged, "errors": errors, "interrupts": interrupts}


if __name__ == "__main__":
    json.dump(main(sys.argv[1], int(sys.argv[2])), sys.stdout)
