"""Customers of the shops in examples/: threads that order over HTTP while web servers and workers are killed."""

from __future__ import annotations

import http.client
import socket
import threading
from collections.abc import Callable
from contextlib import closing

CLIENTS = 4
PATIENCE_S = 90


class Customers:
    """Threads that order, every second time what there is not. Each remembers what it was told."""

    def __init__(self, order: Callable[[str, str], int | None]) -> None:
        """`order` takes the number and the article, and returns the status of the reply; None: there was none."""
        self._place = order
        self._leaving = threading.Event()
        self.replied = threading.Semaphore(0)
        self.told: dict[str, int | None] = {}
        self._threads = [threading.Thread(target=self._order, args=(name,)) for name in range(CLIENTS)]
        for thread in self._threads:
            thread.start()

    def _order(self, name: int) -> None:
        number = 0
        while not self._leaving.is_set():
            number += 1
            article = "chair" if number % 2 else "unicorn"
            order = f"{article} {name}-{number}"
            self.told[order] = self._place(order, article)
            if self.told[order] is None:
                self._leaving.wait(0.05)  # the server is just starting
            else:
                self.replied.release()

    def leave(self) -> None:
        self._leaving.set()
        for thread in self._threads:
            thread.join()

    def check(self, placed: set[str]) -> None:
        """Whether the orders that are in the database fit to what was told: none that was acknowledged is missing, and
        none that was refused is there."""
        assert set(self.told.values()) <= {201, 409, None}  # never an error
        assert {number for number, status in self.told.items() if status == 201} <= placed
        assert not any(number.startswith("unicorn") for number in placed)
        assert {status for number, status in self.told.items() if number.startswith("unicorn")} <= {409, None}


def post(port: int, path: str, body: str = "") -> int | None:
    """The status of the reply. None: there was none."""
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)) as connection:
            connection.request("POST", path, body, {"Content-Type": "application/x-www-form-urlencoded"})
            return connection.getresponse().status
    except (OSError, http.client.HTTPException):
        return None


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
