"""What is sent to PostgreSQL together, and its answers: exchanges on a connection, ours or the user's, which may be an
asynchronous one. Used by `driver` and `session`.

Not psycopg's own pipeline: that believes a statement prepared even if the server skipped it after an error.
"""

from __future__ import annotations

from itertools import count
from types import TracebackType
from typing import Any, NamedTuple, Self, cast

import psycopg
from psycopg.abc import PQGen
from psycopg.adapt import Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ConnStatus, ExecStatus, Format, PipelineStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.types.numeric import Int2BinaryLoader, Int4BinaryLoader, Int8BinaryLoader
from psycopg.types.string import ByteaBinaryLoader, TextBinaryLoader
from psycopg.waiting import Ready, Wait

_NO_ROWS: list[tuple[Any, ...]] = []
_DONE, _ROWS, _SYNC = ExecStatus.COMMAND_OK, ExecStatus.TUPLES_OK, ExecStatus.PIPELINE_SYNC


class Answer:
    """What became of a message, once the exchange that carried it has ended. A `Result` that comes later."""

    __slots__ = ("changed", "rows", "said")

    changed: int
    rows: list[tuple[Any, ...]]
    said: bytes
    """What the server says it did."""

    def fill(self, result: PGresult, rows: list[tuple[Any, ...]]) -> None:
        """More than once for a call that is several messages: what they changed is added up."""
        self.changed = getattr(self, "changed", 0) + (result.command_tuples or 0)
        self.said = result.command_status or b""
        self.rows = rows


class Message(NamedTuple):
    """One statement with its parameters in binary form; `oids` are their types, 0 where PostgreSQL has to find out.

    `steady`: it is prepared, and keeps its plan. `guarded`: it fails if it does not change as many rows as it must.
    """

    sql: bytes
    params: tuple[bytes | None, ...] = ()
    oids: tuple[int, ...] = ()
    steady: bool = True
    guarded: bool = False


class Failure(NamedTuple):
    """The first message that failed, of which nothing was done, and nothing of those behind it.

    With an error that has no SQLSTATE the connection is lost, and nobody knows how far the server came.
    """

    message: Message
    error: psycopg.Error


class _Step(NamedTuple):
    """One result to expect: of a message, or of preparing it."""

    message: Message
    answer: Answer | None
    name: bytes = b""


Connection = psycopg.Connection[Any] | psycopg.AsyncConnection[Any]


class Pipeline:
    """Gathers messages for one connection, and exchanges them for answers. Used by one thread at a time."""

    def __init__(self, connection: Connection, *, prepares: bool) -> None:
        self.connection = connection
        self.prepares = prepares
        self.encoding = connection.info.encoding
        self._waiting: list[tuple[Message, Answer]] = []
        self.prepared: dict[tuple[bytes, tuple[int, ...]], bytes] = {}
        """The names of statements that the server has prepared, by their text and types."""
        self._numbers = count()
        # its adapters are its own: nothing is registered on the connection
        self._cursor = psycopg.RawCursor(cast("psycopg.Connection[Any]", connection))
        for name, loader in _LOADERS.items():
            self._cursor.adapters.register_loader(name, loader)
        self._loader = Transformer(self._cursor)

    def add(self, message: Message, answer: Answer) -> Answer:
        """To be sent with the next exchange."""
        self._waiting.append((message, answer))
        return answer

    def drop(self) -> None:
        """What waits is not sent."""
        self._waiting = []

    def exchange(self) -> Failure | None:
        """Send all that waits, and fill in the answers. Returns the first failure."""
        if not self._waiting:
            return None
        connection = cast("psycopg.Connection[Any]", self.connection)
        with connection.lock, _Exchange(self) as exchange:
            connection.wait(exchange.talk())
        return exchange.failure()

    async def exchange_async(self) -> Failure | None:
        """The same on an asynchronous connection."""
        if not self._waiting:
            return None
        connection = cast("psycopg.AsyncConnection[Any]", self.connection)
        async with connection.lock:
            with _Exchange(self) as exchange:
                await connection.wait(exchange.talk())
        return exchange.failure()

    def take(self) -> list[tuple[Message, Answer]]:
        """What waits, which is now to be sent."""
        waiting, self._waiting = self._waiting, []
        return waiting

    def send(self, pgconn: PGconn, waiting: list[tuple[Message, Answer]], steps: list[_Step]) -> None:
        """Send these, and note in `steps` which results are to come."""
        new: dict[tuple[bytes, tuple[int, ...]], bytes] = {}
        for message, answer in waiting:
            sql, params, oids, steady, _ = message
            formats = [Format.BINARY] * len(params)
            if not (steady and self.prepares):
                pgconn.send_query_params(sql, params, oids, formats, Format.BINARY)
            else:
                name = self.prepared.get((sql, oids)) or new.get((sql, oids))
                if name is None:
                    name = new[sql, oids] = b"perdure_%d" % next(self._numbers)
                    pgconn.send_prepare(name, sql, oids)
                    steps.append(_Step(message, None, name))
                pgconn.send_query_prepared(name, params, formats, Format.BINARY)
            steps.append(_Step(message, answer))
        pgconn.pipeline_sync()

    def read(self, steps: list[_Step], results: list[PGresult]) -> Failure | None:
        """Fill in the answers from the results that have come."""
        for step, result in zip(steps, results, strict=False):
            message, answer, name = step
            if result.status not in (_DONE, _ROWS):
                if result.error_field(_STATE) == b"26000":  # somebody has run DEALLOCATE
                    self.prepared.clear()
                return Failure(message, error_from_result(result, self.encoding))
            if answer is None:
                self.prepared[message.sql, message.oids] = name
                continue
            answer.fill(result, self._rows(result))
        return None

    def _rows(self, result: PGresult) -> list[tuple[Any, ...]]:
        if result.status != _ROWS:
            return _NO_ROWS
        self._loader.set_pgresult(result)
        return self._loader.load_rows(0, result.ntuples, tuple)


class _Exchange:
    """One exchange: in its block the connection is used for nothing else, and is left as it was."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._pgconn = pipeline.connection.pgconn
        self._sent: list[tuple[Message, Answer]] = []
        self._steps: list[_Step] = []
        self._results: list[PGresult] = []
        self._lost: psycopg.Error | None = None

    def talk(self) -> PQGen[None]:
        """For psycopg to wait on: what waited is sent, and the answers are read."""
        self._pgconn.enter_pipeline_mode()
        self._pipeline.send(self._pgconn, self._sent, self._steps)
        yield from _conversation(self._pgconn, self._results)

    def failure(self) -> Failure | None:
        """Fills in the answers. Returns the first message that failed."""
        failed = self._pipeline.read(self._steps, self._results)
        return failed or (None if self._lost is None else Failure(self._sent[-1][0], self._lost))

    def __enter__(self) -> Self:
        self._sent = self._pipeline.take()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> bool:
        _leave(self._pgconn)
        if isinstance(error, psycopg.Error):
            self._lost = error
        return self._lost is not None


def _conversation(pgconn: PGconn, results: list[PGresult]) -> PQGen[None]:
    """Read while sending: else both sides could wait for each other with full buffers."""
    unsent = pgconn.flush()
    while True:
        # None when psycopg starts to wait anew: after Ctrl-C it cancels what runs, and reads the rest
        ready = (yield Wait.RW if unsent else Wait.R) or 0
        if ready & Ready.R:
            pgconn.consume_input()
        if ready & Ready.W:
            unsent = pgconn.flush()
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is not None and result.status == _SYNC:
                return
            if result is not None:
                results.append(result)
            elif pgconn.status != ConnStatus.OK:
                raise psycopg.OperationalError("the connection is closed")


def _leave(pgconn: PGconn) -> None:
    """After an interrupt there may be answers that nobody has read, and so nobody can use the connection any more."""
    if pgconn.status == ConnStatus.OK and pgconn.pipeline_status != PipelineStatus.OFF:
        try:
            pgconn.exit_pipeline_mode()
        except psycopg.Error:
            pgconn.finish()


_STATE = psycopg.pq.DiagnosticField.SQLSTATE
_LOADERS: dict[str, Any] = {
    "uuid": ByteaBinaryLoader,  # an id is its 16 bytes
    "text": TextBinaryLoader,
    "int2": Int2BinaryLoader,
    "int4": Int4BinaryLoader,
    "int8": Int8BinaryLoader,
}
