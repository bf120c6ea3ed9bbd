"""Wakes a sleeping worker by LISTEN and NOTIFY. Made by `store/server` for each worker; connects through `session`.

NOTIFY takes a lock of the whole server at commit, so it is sent only if somebody sleeps. A worker that has found
nothing marks itself in the sequence `asleep`, looks once more, and then waits. Whoever queues work looks at the marks
(`rung` in statements.sql), and if there is one takes it down and notifies: one NOTIFY for each sleep.

A transaction that has looked before the mark was set, and commits after the worker has looked, notifies nobody. So the
worker notes which transactions are under way when it marks itself, and looks again when one of them has ended.

All of it only makes a worker start sooner. It polls underneath: rarely while it listens, and as on servers that cannot
ring (`Rest`) while it does not. Nothing here waits for the server: its answers are awaited together with the bell of
the process itself.
"""

from __future__ import annotations

import logging
import os
import random
import select
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg
from psycopg.pq import ExecStatus

from perdure.store.postgres.statements import READING, table
from perdure.store.server import HOW_OFTEN, Rest, heard

KEEP_ALIVE_S = 10.0
"""After so long without a word from the server it is asked for one; the mark is set again if it is gone."""
ANSWER_S = 10.0
"""A server that takes longer is lost: together with the above, within half a minute."""
BRIEF_S = 0.02
"""For less than this nobody marks himself."""
SLEEPS_AT_ONCE, SLEEPS_PER_S = 20, 10.0
"""How often a worker marks itself, and so the most that it is notified. Under load it naps instead."""
FIRST_NAP_S, SHORT_NAP_S, LONG_NAP_S = 0.001, 0.004, 0.2
BUSY_S, ACTIVE_S = 0.03, 0.25
"""A worker that had something to do within the first of these takes the shortest naps only, within the second short
ones: the next job seldom comes alone."""
FIRST_LOOK_S, LAST_LOOK_S = 0.002, 1.0
"""The pauses between two looks at transactions that are under way; each is twice the one before."""
FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 30.0

ASLEEP = table("asleep")
REMEDY = "give listen_url= the URL of a direct connection to the same database"

logger = logging.getLogger("perdure.worker")

Connection = psycopg.Connection[tuple[Any, ...]]


class Refused(Exception):
    """Listening is not possible where the URL leads, however often it is tried. Only logged: polling goes on."""


class Snapshot(NamedTuple):
    """Which transactions that write are under way: all that are `listed`, and all from `ended_below` on."""

    ended_below: int
    listed: frozenset[int]

    @classmethod
    def of(cls, text: str) -> Snapshot:
        """As PostgreSQL writes it: 10:20:10,14,15."""
        _, ended_below, listed = text.split(":")
        return cls(int(ended_below), frozenset(int(number) for number in listed.split(",") if number))

    def has_ended(self, number: int) -> bool:
        return number < self.ended_below and number not in self.listed

    def under_way(self, below: int) -> frozenset[int]:
        """Those with a number below this one."""
        return self.listed | frozenset(range(self.ended_below, below))


class Answer(NamedTuple):
    """What the server says."""

    is_marked: bool
    snapshot: Snapshot
    number: int = 0
    """If the mark was just set: every transaction that may have looked before has a lower one."""


# -- when to do what -------------------------------------------------------------------------------------------------


class Sleep:
    """Decides what a sleeping worker does next; it touches no connection. Times are in seconds by any clock."""

    def __init__(self, at: float) -> None:
        self.is_marked = False
        self._under_way: frozenset[int] = frozenset()
        self._look_s = FIRST_LOOK_S
        self._nap_s = FIRST_NAP_S
        self._next_at = at
        self._sleeps_left, self._counted_at = float(SLEEPS_AT_ONCE), at
        self._active_at = at

    def wakes(self, at: float) -> None:
        """Somebody has rung, from this process."""
        self._active_at = at
        self._nap_s = FIRST_NAP_S

    def is_notified(self) -> None:
        """Somebody has taken the mark down."""
        self.is_marked = False

    def may_begin(self, at: float) -> bool:
        """Whether it may mark itself now; if so, it counts."""
        self._sleeps_left = min(SLEEPS_AT_ONCE, self._sleeps_left + (at - self._counted_at) * SLEEPS_PER_S)
        self._counted_at = at
        if self._sleeps_left < 1:
            return False
        self._sleeps_left -= 1
        return True

    def nap(self, at: float) -> float:
        """For how long to sleep without a mark, and then look."""
        nap_s, idle_s = self._nap_s, at - self._active_at
        longest_s = FIRST_NAP_S if idle_s < BUSY_S else SHORT_NAP_S if idle_s < ACTIVE_S else LONG_NAP_S
        self._nap_s = min(longest_s, 2 * nap_s)
        return nap_s

    def hears(self, answer: Answer, at: float) -> bool:
        """Take in an answer. True: look at the queues again."""
        self.is_marked = answer.is_marked
        if answer.number:
            self._under_way = answer.snapshot.under_way(answer.number)
            self._look_s, self._nap_s = FIRST_LOOK_S, FIRST_NAP_S
            has_news = True
        else:
            left = frozenset(number for number in self._under_way if not answer.snapshot.has_ended(number))
            has_news, self._under_way = left != self._under_way, left
            self._look_s = min(LAST_LOOK_S, 2 * self._look_s)
        self._next_at = at + (self._look_s if self._under_way else KEEP_ALIVE_S)
        return has_news

    def asks_in(self, at: float) -> float:
        """In how many seconds to ask the server, while it is marked."""
        return self._next_at - at


# -- the connection --------------------------------------------------------------------------------------------------


class Line:
    """A connection that listens. Nothing waits here: what has not come yet is taken in later."""

    def __init__(self, connection: Connection, bits: Sequence[int]) -> None:
        self._connection = connection
        self._bits = frozenset(bits)
        mask = sum(1 << bit for bit in self._bits)
        listens = "EXISTS (SELECT 1 FROM pg_listening_channels())"
        self._looking = (
            f"SELECT {listens}, pg_current_snapshot()::text, last_value & {mask} = {mask}, 0 FROM {ASLEEP}"  # noqa: S608
        ).encode()
        # the number is taken in a transaction of its own, when the mark is set
        self._marking = (
            f"BEGIN; SELECT setval('{ASLEEP}', last_value | {mask}) FROM {ASLEEP}; COMMIT;"  # noqa: S608
            f" SELECT {listens}, pg_current_snapshot()::text, TRUE, pg_current_xact_id()::text"
        ).encode()
        self._last_row: tuple[str, ...] = ()
        self.asked_at: float | None = None
        """Since when an answer is awaited."""
        self.has_answered = False
        self.sleep = Sleep(time.monotonic())

    def fileno(self) -> int:
        return self._connection.pgconn.socket

    def ask(self, at: float) -> None:
        """Set the mark if there is none, and ask which transactions are under way."""
        self.asked_at = at
        self._connection.pgconn.send_query(self._looking if self.sleep.is_marked else self._marking)

    def take_in(self) -> tuple[bool, Answer | None]:
        """Whether this worker was notified, and what the server has answered. psycopg.Error: the line is lost."""
        pgconn = self._connection.pgconn
        pgconn.consume_input()
        answer = None
        if self.asked_at is not None and not pgconn.is_busy():
            answer = self._take_answer()
        is_notified = False
        while (notice := pgconn.notifies()) is not None:
            is_notified |= self._is_ours(notice.extra)
        return is_notified, answer

    def _take_answer(self) -> Answer | None:
        """The last of several results: None comes after them."""
        pgconn = self._connection.pgconn
        while not pgconn.is_busy():
            result = pgconn.get_result()
            if result is None:
                self.asked_at, self.has_answered = None, True
                listens, snapshot, is_marked, number = self._last_row
                if listens != "t":
                    raise Refused(f"the server does not know that this worker listens; {REMEDY}")
                return Answer(is_marked == "t", Snapshot.of(snapshot), int(number))
            if result.status not in (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK):
                raise psycopg.OperationalError((result.error_message or b"no answer").decode(errors="replace"))
            self._last_row = tuple((result.get_value(0, column) or b"").decode() for column in range(result.nfields))
        return None

    def _is_ours(self, bit: bytes) -> bool:
        return bit == b"*" or 0 in self._bits or int(bit) in self._bits

    def close(self) -> None:
        self._connection.close()


def listen(options: dict[str, Any], queues: Sequence[str] | None, identity: tuple[object, ...]) -> Line:
    """Connect and listen, for a worker that serves these queues; None: all. Refused, if that can never work."""
    connection: Connection = psycopg.connect(**options, autocommit=True, prepare_threshold=None)
    try:
        if _row(connection, "SELECT pg_backend_pid()") != (connection.info.backend_pid,):
            raise Refused(f"the connection leads through a pooler, where LISTEN does not work; {REMEDY}")
        if _row(connection, READING["read_identity"].sql) != identity:
            raise Refused(f"listen_url= leads to another database than the app's; {REMEDY}")
        connection.execute("SET synchronous_commit = off")  # a mark need not survive a crash
        bits = [0] if queues is None else [_row(connection, READING["read_bell_bit"].sql, queue)[0] for queue in queues]
        connection.execute("LISTEN perdure")
        return Line(connection, bits)
    except BaseException:
        connection.close()
        raise


def _row(connection: Connection, sql: str, *params: object) -> tuple[Any, ...]:
    row = psycopg.RawCursor(connection).execute(sql.encode(), params).fetchone()
    assert row is not None
    return row


# -- the bell --------------------------------------------------------------------------------------------------------


class PostgresBell:
    """One worker's bell. `wait` is for one thread; `ring` and `close` for any.

    `listen` gives a new connection that listens, or raises; it is called in a thread that ends when it has one.
    """

    def __init__(self, listen: Callable[[], Line]) -> None:
        self._listen = listen
        self._lock = threading.RLock()  # a signal handler may ring while its thread does
        self._closed = threading.Event()
        self._rung = False
        self._rest = Rest(time.monotonic())
        self._line: Line | None = None
        self._connecting: threading.Thread | None = None
        self._backoff_s = FIRST_BACKOFF_S
        self._reading, self._writing = _quiet_pipe()
        _bells.add(self)
        self._connect()

    tells_when = True

    @property
    def listens(self) -> bool:
        """Whether it has a connection that does; else it looks by itself."""
        return self._line is not None

    def ring(self) -> None:
        """Wake the worker from inside its own process. After `close`, nothing happens."""
        if self._rung:
            return
        with self._lock:  # a closed descriptor's number may mean another file by now
            if not self._closed.is_set():
                self._rung = True
                with suppress(OSError):  # full: it has been rung already
                    os.write(self._writing, b"!")

    def wait(self, timeout_s: float, *, rung_only: bool = False) -> bool:
        """Sleep until rung, notified, or until the time-out. True: there may be something to do."""
        line = self._line
        if self._closed.is_set():
            return False
        if line is None:
            return self._wait_for_a_look(timeout_s, rung_only=rung_only)
        deadline = time.monotonic() + timeout_s
        try:
            return self._wait_for_news(line, deadline, rung_only=rung_only)
        except (psycopg.Error, Refused, ValueError) as error:
            self._lose(line, error)
            return True  # what was sent meanwhile is lost

    def _wait_for_a_look(self, timeout_s: float, *, rung_only: bool) -> bool:
        """While this worker does not listen."""
        look_s = max(0.0, self._rest.look_in(time.monotonic()))
        self._sleep(None, timeout_s if rung_only else min(timeout_s, look_s))
        return heard(self._rest, rung=self._take_ring(), or_look=look_s < timeout_s and not rung_only)

    def _wait_for_news(self, line: Line, deadline: float, *, rung_only: bool) -> bool:
        while True:
            is_notified, answer = line.take_in()
            at = time.monotonic()
            wants_a_look = answer is not None and line.sleep.hears(answer, at)
            if is_notified:
                line.sleep.is_notified()  # after the answer: the mark that it speaks of may be gone by now
            if self._take_ring():
                line.sleep.wakes(at)
                return True
            if (is_notified or wants_a_look) and not rung_only:
                return True
            left = deadline - at
            if left <= 0:
                return False
            pause_s, then_look = (left, False) if rung_only else self._next(line, at, left)
            self._sleep(line, min(left, pause_s))
            if then_look:
                return True

    def _next(self, line: Line, at: float, left: float) -> tuple[float, bool]:
        """How long to wait for news, and whether to look at the queues even if there are none."""
        if line.asked_at is not None:
            if at - line.asked_at > ANSWER_S:
                raise psycopg.OperationalError(f"no answer for {ANSWER_S:g} s")
            return ANSWER_S - (at - line.asked_at) + 0.001, False
        if line.sleep.is_marked:
            if (asks_in := line.sleep.asks_in(at)) > 0:
                return asks_in, False
        elif left < BRIEF_S:
            return left, False
        elif not line.sleep.may_begin(at):
            return line.sleep.nap(at), True
        line.ask(at)
        return ANSWER_S, False

    def _sleep(self, line: Line | None, seconds: float) -> None:
        """Until rung, or until there is a word from the server."""
        if not self._rung:
            poll = select.poll()
            poll.register(self._reading, select.POLLIN)
            if line is not None:
                poll.register(line, select.POLLIN)
            poll.poll(max(0.0, seconds) * 1000)

    def _take_ring(self) -> bool:
        with self._lock:
            rung, self._rung = self._rung, False
            if rung and not self._closed.is_set():
                with suppress(OSError):
                    os.read(self._reading, 64)
        return rung

    def close(self) -> None:
        """Give back what is held. A repeat does nothing. A connection that is being made is closed when it is there."""
        with self._lock:
            if self._closed.is_set():
                return
            self._closed.set()
            os.close(self._reading)
            os.close(self._writing)
            line, self._line = self._line, None
        if line is not None:
            line.close()
        if self._connecting is not None:
            self._connecting.join(FIRST_BACKOFF_S)

    # -- connecting --------------------------------------------------------------------------------------------------

    def _lose(self, line: Line, error: Exception) -> None:
        with self._lock:
            if self._line is line:
                self._line = None
        line.close()
        if self._closed.is_set():
            return
        logger.warning("this worker is not woken any more, and %s: %s", HOW_OFTEN, _said(error))
        if not isinstance(error, Refused):
            self._backoff_s = FIRST_BACKOFF_S if line.has_answered else min(LONGEST_BACKOFF_S, 2 * self._backoff_s)
            self._connect(self._backoff_s)

    def _connect(self, pause_s: float = 0.0) -> None:
        self._connecting = threading.Thread(
            target=self._keep_trying, args=(pause_s,), name="perdure-listen", daemon=True
        )
        self._connecting.start()

    def _keep_trying(self, pause_s: float) -> None:
        """Until there is a connection; then this thread ends."""
        told = pause_s > 0
        while not self._closed.wait(pause_s * random.uniform(0.5, 1.0)):
            try:
                line = self._listen()
            except Refused as error:
                logger.warning("this worker %s: %s", HOW_OFTEN, error)
                return
            except Exception as error:  # noqa: BLE001 - whatever it is, polling goes on
                if not told:
                    logger.warning("this worker %s: it cannot listen (%s)", HOW_OFTEN, _said(error))
                told = True
                pause_s = min(LONGEST_BACKOFF_S, max(FIRST_BACKOFF_S, 2 * pause_s))
            else:
                self._take_over(line)
                return

    def _take_over(self, line: Line) -> None:
        with self._lock:
            if not self._closed.is_set():
                self._line = line
                self.ring()
                logger.info("this worker listens for new work")
                return
        line.close()

    def forget_parent(self) -> None:
        """Called in a forked child: the connection and the thread belong to the parent."""
        self._lock = threading.RLock()
        self._connecting = None
        if not self._closed.is_set():
            os.close(self._reading)
            os.close(self._writing)
            self._reading, self._writing = _quiet_pipe()
        if self._line is not None:
            _left_behind.append(self._line)
            self._line = None


def _said(error: Exception) -> str:
    return str(error).split("\n", 1)[0].strip()


def _quiet_pipe() -> tuple[int, int]:
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    return reading, writing


_bells: weakref.WeakSet[PostgresBell] = weakref.WeakSet()
_left_behind: list[Line] = []
"""Not closed in a forked child: that would end the parent's session."""


def _forget_parent() -> None:
    for bell in list(_bells):
        bell.forget_parent()


os.register_at_fork(after_in_child=_forget_parent)
