"""Stands between a worker and its server, and does what networks do: forwards, freezes, cuts, loses what was sent."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

NOTIFICATION = b"A"
QUERY, EXECUTE = b"Q", b"E"
_START = struct.Struct("!I")


class Proxy:
    """Forwards to the server's socket, message by message."""

    def __init__(self, server_url: str) -> None:
        folder = parse_qs(urlsplit(server_url).query)["host"][0]
        (self._target,) = map(str, Path(folder).glob(".s.PGSQL.*[0-9]"))
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        self.url = f"postgresql://postgres@127.0.0.1:{port}{urlsplit(server_url).path}"
        self.loses_notifications = False
        self.statements = 0
        """Sent by clients, of all connections."""
        self._open: list[Pair] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def freeze(self) -> None:
        """Connections that exist now stay open, and nothing passes any more. New ones work."""
        for pair in self._open:
            pair.frozen = True

    def close(self) -> None:
        self._listener.close()
        for pair in self._open:
            pair.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                try:
                    server.connect(self._target)
                except OSError:  # the server is gone already
                    client.close()
                    server.close()
                    continue
                self._open.append(Pair(self, client, server))


class Pair:
    """One connection."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self.frozen = False
        threading.Thread(target=self._forward_requests, daemon=True).start()
        threading.Thread(target=self._forward_answers, daemon=True).start()

    def close(self) -> None:
        for end in (self._client, self._server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()

    def _forward_requests(self) -> None:
        with suppress(OSError, EOFError):
            for _ in iter(self._is_request_for_more, False):  # SSL and GSS: the server refuses both
                pass
            while True:
                sort, message = _message(self._client)
                if sort in (QUERY, EXECUTE) and not self.frozen:
                    self._proxy.statements += 1
                self._pass(self._server, message)
        if not self.frozen:
            self.close()

    def _is_request_for_more(self) -> bool:
        """The first message has no sort; one that asks for encryption is followed by another first one."""
        head = _exactly(self._client, 4)
        rest = _exactly(self._client, _START.unpack(head)[0] - 4)
        if len(rest) == 4:
            self._client.sendall(b"N")
            return True
        self._pass(self._server, head + rest)
        return False

    def _forward_answers(self) -> None:
        with suppress(OSError, EOFError):
            while True:
                sort, message = _message(self._server)
                if sort != NOTIFICATION or not self._proxy.loses_notifications:
                    self._pass(self._client, message)
        if not self.frozen:
            self.close()

    def _pass(self, to: socket.socket, message: bytes) -> None:
        if not self.frozen:
            to.sendall(message)


def _message(end: socket.socket) -> tuple[bytes, bytes]:
    head = _exactly(end, 5)
    return head[:1], head + _exactly(end, _START.unpack(head[1:])[0] - 4)


def _exactly(end: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        if not (more := end.recv(size - len(data))):
            raise EOFError
        data += more
    return data


@contextmanager
def proxy_to(server_url: str) -> Iterator[Proxy]:
    proxy = Proxy(server_url)
    try:
        yield proxy
    finally:
        proxy.close()
