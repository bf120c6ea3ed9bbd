"""A proxy in front of a database server that loses the reply to one exchange: of whatever protocol.

An exchange is what a client sends until the server answers. The one that is asked for reaches the server, which does
all of it; its reply is thrown away, and both connections end. Or it does not even reach the server.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from contextlib import suppress

CHUNK = 1 << 16
LOCAL = "127.0.0.1"


class Proxy:
    """Listens on a port of its own. Counts exchanges from `arm` on, over all connections; loses one, then no more."""

    def __init__(self, connect: Callable[[], socket.socket], address: str = LOCAL) -> None:
        self._connect = connect
        self._listener = socket.create_server((address, 0))
        self.port: int = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._left = 0
        self._is_lost_on_the_way = False
        self.exchanges = 0
        self.cut = False
        threading.Thread(target=self._accept, daemon=True).start()

    def arm(self, nth: int, *, on_the_way: bool = False) -> None:
        """Lose the nth exchange from now on: its reply, or `on_the_way` the request."""
        with self._lock:
            self._left, self._is_lost_on_the_way = nth, on_the_way
            self.exchanges, self.cut = 0, False

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                    server = self._connect()
                except OSError:  # one of both is gone already
                    client.close()
                    continue
                _Connection(self, client, server)

    def begin(self) -> str:
        """An exchange begins. What becomes of it: `pass`, `reply` or `request` (which of them is lost)."""
        with self._lock:
            self.exchanges += 1
            self._left -= 1
            if self._left != 0:
                return "pass"
            self.cut = True
            return "request" if self._is_lost_on_the_way else "reply"


class _Connection:
    """One client and its own connection to the server."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._answered = True
        self._deaf = threading.Event()
        threading.Thread(target=self._forward, daemon=True).start()
        threading.Thread(target=self._return, daemon=True).start()

    def _forward(self) -> None:
        with suppress(OSError):
            while data := self._client.recv(CHUNK):
                if self._answered:
                    self._answered = False
                    fate = self._proxy.begin()
                    if fate == "request":
                        break
                    if fate == "reply":
                        self._deaf.set()
                self._server.sendall(data)
                if self._deaf.is_set():
                    break
        with suppress(OSError):  # the server does what has reached it, and then sees the end
            self._server.shutdown(socket.SHUT_WR)

    def _return(self) -> None:
        with suppress(OSError):
            while data := self._server.recv(CHUNK):
                self._answered = True
                if not self._deaf.is_set():
                    self._client.sendall(data)
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
