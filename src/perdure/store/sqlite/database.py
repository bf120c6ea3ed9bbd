"""One SQLite file in one process: who writes when, who reads, and when the WAL is checkpointed. Kept by `runner`."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Generator
from contextlib import ExitStack, suppress
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeVar

from perdure.errors import DatabaseBusy, DatabaseUnavailable, PerdureError, StoreError, TransactionError
from perdure.store.copy import Closure
from perdure.store.engine import BEGIN_OPERATION, END_OPERATION, UNDO_OPERATION, Make, drive
from perdure.store.group import GroupCommit, Member
from perdure.store.line import Line, Ticket, new_ticket
from perdure.store.protocols import StoreSettings
from perdure.store.sqlite.bell import SLEEPERS, SqliteBell, ring_sleepers
from perdure.store.sqlite.beside import refuse_to_wait_for_this_thread, refuse_writes_beside
from perdure.store.sqlite.driver import SqliteDriver, guarded, open_reader, open_writer, set_patience, translate
from perdure.store.sqlite.files import identity_of
from perdure.store.sqlite.gate import gate_for
from perdure.store.sqlite.statements import STATEMENTS
from perdure.store.sqlite.transaction import SqliteTransaction
from perdure.store.sqlite.wal import CHECKPOINT_FRAMES, WalMeter, checkpoint_guarded
from perdure.store.transaction import joined, open_block, open_here

T = TypeVar("T")

_SPARE_READERS = 8

GATE_PATIENCE_S = 2.0
SHORT_GATE_PATIENCE_S = 0.01
HOLDER_PATIENCE_S = 0.05
LOOK_AGAIN_S = 0.02
MEASURE_EVERY = 24
"""Rows written between two measurements of the WAL: eight single enqueues, some sixty frames."""


_of_parent: list[SqliteTransaction] = []
"""Transactions that were open when a child was forked: kept open in the child, because the parent must end them."""


class Retired(StoreError):
    """The database object was closed meanwhile; nothing was written. The runner continues with a new one."""


class Database:
    """The writer, the readers and the queue in front of them for one file. Get it from `database_at`."""

    def __init__(self, path: Path, settings: StoreSettings) -> None:
        self.path = path
        self.usable = True
        self.retired = False
        self.closure: Closure | None = None
        """Why nobody may write to the file; None: it is open, or was when this process opened it."""
        self._reading: set[object] = set()
        self._identity = identity_of(path)
        self._settings = settings
        self._gate_patience_s = GATE_PATIENCE_S
        self._looked_until = 0.0
        self._robbed = False
        self._line = Line()
        self._gate = gate_for(path)
        self._group = GroupCommit(self._run_group)
        self._meter = WalMeter(path)
        self._readers: list[tuple[sqlite3.Connection, SqliteDriver]] = []
        self._open_writer()

    # -- writing -----------------------------------------------------------------------------------------------------

    def write(self, make: Make[T]) -> T:
        """Run an operation in a transaction shared with other writers of this moment; returns when it is durable."""
        if open_here.get() is None or (inside := self.joined()) is None:
            return self._group.submit(make)
        return inside.run(make)

    async def awrite(self, make: Make[T]) -> T:
        inside = self.joined()
        return await self._group.asubmit(make) if inside is None else inside.run(make)

    def joined(self) -> SqliteTransaction | None:
        """The transaction of ours that is open in this thread or task."""
        found: SqliteTransaction | None = joined(self)
        return found

    def transaction(self, *, join: bool = False) -> Generator[SqliteTransaction, None, None]:
        """Yields once a separate write transaction, which holds the turn at the file as long as it is open."""
        return open_block(self, _Turn(self), join=join)

    def new_transaction(self, ticket: Ticket) -> SqliteTransaction:
        """A transaction on its own connection, not begun yet. Its end is the end of the ticket's turn."""
        opened = SqliteTransaction(open_writer(self.path, self._settings))
        opened.let_go = lambda: self.end_turn(ticket)
        return opened

    def after_commit(self) -> None:
        """To call after the commit of a separate transaction, before its turn ends."""
        ring_sleepers(self._gate.board, self._identity)
        self._checkpoint_if_due()

    def _run_group(self, group: list[Member[Any]]) -> None:
        ticket = new_ticket()
        try:
            try:
                self.take_turn(ticket)
                self._group.fill(group)
                if group:
                    self._transact(group)
                    if self._gate.board[SLEEPERS]:
                        ring_sleepers(self._gate.board, self._identity)
                    if self._writer.total_changes >= self._measure_at:
                        self._checkpoint_if_due()
            finally:
                try:
                    self.end_turn(ticket)
                except BaseException:  # an interrupt just now: finish the clean-up in any case
                    self.end_turn(ticket)
                    raise
        except StoreError as error:
            self._looked_until = 0.0
            self._group.fill(group)
            for member in group:
                if not member.answered:
                    member.fail(error)

    def take_turn(self, ticket: Ticket) -> None:
        """Wait for this thread's turn in the process, then for this process's turn at the file. The gate is only for
        fairness. The caller must end the turn, even if this fails.
        """
        if not self._line.join(ticket, self._settings.busy_timeout_s):
            raise DatabaseBusy(
                f"{self.path}: another thread of this process held the write transaction for longer than"
                f" {self._settings.busy_timeout_s:g} s; nothing was written. Keep app.transaction() blocks short"
            )
        if not self.usable or monotonic() > self._looked_until:
            self._check_file()
        if not self._at_rest:
            self._reopen_writer()
        if self._gate.board[0]:
            self._enter_gate()

    def _enter_gate(self) -> None:
        # A frozen process may hold the gate: after one long wait the next ones are short until one succeeds.
        passed = self._gate.enter(self._gate_patience_s)
        self._gate_patience_s = GATE_PATIENCE_S if passed else SHORT_GATE_PATIENCE_S

    def end_turn(self, ticket: Ticket) -> None:
        """May be repeated after an interrupt. Does nothing for a ticket without a turn.

        An interrupted writer is closed: a statement that was not read to its end would keep its snapshot, and after
        someone else's commit the writer could not write any more.
        """
        if self._line.has_place(ticket):
            if not (self._at_rest or self.retired):
                self._close_writer()
            self._gate.leave()
        self._line.leave(ticket)

    def _reopen_writer(self) -> None:
        self._close_writer()
        self._open_writer()

    def _open_writer(self) -> None:
        self._writer = open_writer(self.path, self._settings)
        set_patience(self._writer, 0)
        self._holder = open_writer(self.path, self._settings) if guarded() else None
        if self._holder is not None:
            set_patience(self._holder, HOLDER_PATIENCE_S)
        self._write_driver = SqliteDriver(self._writer, STATEMENTS)
        self._measure_at = 0
        self._at_rest = True
        """The writer is in no transaction, and every statement was read to its end."""

    def _close_writer(self) -> None:
        """Ends its transaction too. May be repeated."""
        self._at_rest = False
        if self._holder is not None:
            self._holder.close()
        with suppress(sqlite3.Error):  # closed already
            self._write_driver.close()
        self._writer.close()

    def is_at_its_path(self) -> bool:
        """Whether it can be used, and its file is still the one at its path."""
        return self.usable and identity_of(self.path) == self._identity

    def _check_file(self) -> None:
        """Notice a deleted or replaced file before writing to it: what is written there would be lost.

        The check costs as much as three of the syscalls of a small write, so a writer repeats it only after a moment.
        """
        if self._robbed or self._gate.is_robbed():
            self._robbed = True  # for good: files opened now may get descriptors that old connections write to
            raise _robbed(self.path)
        if self.is_at_its_path():
            self._looked_until = monotonic() + LOOK_AGAIN_S
            return
        if not self.usable:
            raise Retired(
                "the connections of this process were closed; nothing was written, and the file is opened again"
            )
        self.usable = False
        raise DatabaseUnavailable(
            f"{self.path} was moved or deleted while it was in use; nothing was written. Call again to use the file"
            " that is there now",
            code="database_replaced",
        )

    def _transact(self, members: list[Member[Any]]) -> None:
        """All members in one transaction; if one of them fails, again with a savepoint for each."""
        self._begin_writing()
        try:
            self._attempt(members)
        except Exception as error:  # noqa: BLE001 - any error goes to the member's caller
            if len(members) == 1:
                members[0].fail(error)
            else:
                self._begin_writing()
                self._attempt(members, separately=True)

    def _begin_writing(self) -> None:
        if not self._at_rest:
            self._reopen_writer()
        self._at_rest = False
        try:
            self.begin(self._writer)
        except StoreError:
            self._at_rest = True
            raise

    def _attempt(self, members: list[Member[Any]], *, separately: bool = False) -> None:
        """Run the members in the open transaction, and commit it.

        After an error that is neither the database's nor ours it is unknown what was interrupted: the writer is closed.
        """
        driver, ran = self._write_driver, False
        before = sys.exception()
        try:
            for member in members:
                member.answer = _in_a_savepoint(member, driver) if separately else drive(member.make(), driver)
            ran = True
            self._writer.execute("COMMIT")
            self._at_rest = True
            for member in members:
                member.answered = True
        except BaseException as error:
            self._looked_until = 0.0
            if ran and _came_after_commit(error, before, self._writer):
                for member in members:
                    member.answered = True
            else:
                _roll_back(self._writer)
                self._at_rest = isinstance(error, (sqlite3.Error, PerdureError))
            if isinstance(error, sqlite3.Error):
                raise translate(error, str(self.path)) from error
            raise

    def begin(self, connection: sqlite3.Connection) -> None:
        """Get the write lock: at once if it is free, else in turn with the other processes."""
        try:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                self._begin_in_turn(connection)
        except sqlite3.Error as error:
            raise translate(error, str(self.path)) from error

    def _begin_in_turn(self, connection: sqlite3.Connection) -> None:
        """Someone is writing now, perhaps without having passed the gate."""
        if not self._gate.inside:
            self._enter_gate()
        self._gate.board[0] = 1
        set_patience(connection, self._settings.busy_timeout_s)
        try:
            connection.execute("BEGIN IMMEDIATE")
        finally:
            set_patience(connection, 0)

    # -- the WAL -----------------------------------------------------------------------------------------------------

    def _checkpoint_if_due(self) -> None:
        """Only on an affected SQLite, where auto-checkpoints are off. The caller has the turn."""
        self._measure_at = self._writer.total_changes + MEASURE_EVERY
        if self._holder is not None and self._meter.frames() >= CHECKPOINT_FRAMES:
            self._at_rest = False
            with suppress(sqlite3.Error):
                checkpoint_guarded(self._writer, self._holder)
            self._at_rest = True

    def bell(self) -> SqliteBell:
        """A bell for a worker, to sleep until someone writes to this file."""
        return SqliteBell(self._meter, self._gate, self._identity)

    def wal_frames(self) -> int:
        """Frames in the -wal that are not in the database file yet."""
        return self._meter.frames()

    # -- reading -----------------------------------------------------------------------------------------------------

    def read(self, make: Make[T]) -> T:
        """Run a reading operation on one snapshot, on a connection that cannot write."""
        if open_here.get() is not None and (inside := self.joined()) is not None:
            return inside.run(make)
        mark = object()
        try:
            self._reading.add(mark)  # before the check that we are still open: `retire` closes first, then counts
            if not self.usable or monotonic() > self._looked_until:
                self._check_file()
            return self._read(make)
        finally:
            self._reading.discard(mark)

    def _read(self, make: Make[T]) -> T:
        connection, driver = self._take_reader()
        try:
            connection.execute("BEGIN")
            result = drive(make(), driver)
            connection.execute("COMMIT")
        except BaseException as error:
            self._looked_until = 0.0
            connection.close()
            if isinstance(error, sqlite3.Error):
                raise translate(error, str(self.path)) from error
            raise
        self._give_back(connection, driver)
        return result

    def _take_reader(self) -> tuple[sqlite3.Connection, SqliteDriver]:
        with suppress(IndexError):
            return self._readers.pop()
        connection = open_reader(self.path, self._settings)
        return connection, SqliteDriver(connection, STATEMENTS)

    def _give_back(self, connection: sqlite3.Connection, driver: SqliteDriver) -> None:
        if len(self._readers) < _SPARE_READERS:
            self._readers.append((connection, driver))
        else:
            connection.close()

    def strengthen(self, settings: StoreSettings) -> None:
        """Another app of this process uses the file too: if it wants more durable jobs, all are."""
        if settings.durability == "full" and self._settings.durability != "full":
            ticket = new_ticket()
            try:
                self._line.join(ticket)
                self._settings = self._settings._replace(durability="full")
                self._close_writer()  # the next write opens it with these settings
            finally:
                try:
                    self._line.leave(ticket)
                except BaseException:  # as in _run_group
                    self._line.leave(ticket)
                    raise

    def retire(self, patience_s: float) -> bool:
        """Close every connection when no one writes or reads any more; later callers open the file again.

        False: not in time, or this very thread is in a transaction; then nothing has changed. When the last process
        closes a file, SQLite cleans up its -wal.
        """
        if self.joined() is not None:
            return False
        ticket = new_ticket()
        try:
            if not self._line.join(ticket, patience_s):
                return False
            if self.retired:
                return True
            self.usable = False
            if not self._readers_are_back(patience_s):
                self.usable = True
                return False
            self.retired = True
            self._close_connections()
            return True
        finally:
            try:
                self._line.leave(ticket)
            except BaseException:  # as in _run_group
                self._line.leave(ticket)
                raise

    def _readers_are_back(self, patience_s: float) -> bool:
        deadline = monotonic() + patience_s
        while self._reading and monotonic() < deadline:
            sleep(0.001)
        return not self._reading

    def _close_connections(self) -> None:
        while self._readers:
            self._readers.pop()[0].close()
        self._close_writer()


class _Turn:
    """The turn at the file during the caller's block, and the transaction on its own connection."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ticket = new_ticket()
        self._opened: SqliteTransaction | None = None
        self._beside = ExitStack()

    def begin(self) -> SqliteTransaction:
        refuse_to_wait_for_this_thread(self._database.path)
        self._database.take_turn(self._ticket)
        self._opened = self._database.new_transaction(self._ticket)
        set_patience(self._opened.connection, 0)
        self._database.begin(self._opened.connection)
        refuse_writes_beside(self._beside)
        return self._opened

    def commit(self) -> None:
        if self._opened is not None:
            if self._opened.inherited:
                raise _forked()
            self._opened.commit(str(self._database.path))
        self._database.after_commit()

    def end(self, *, at_rest: bool) -> None:  # noqa: ARG002 - its connection is closed in any case
        """Rolls back unless it belongs to a parent process."""
        self._beside.close()
        opened = self._opened
        if opened is None:
            self._database.end_turn(self._ticket)
            return
        if opened.inherited:
            opened.over = True
            _of_parent.append(opened)
        else:
            opened.close()
        if opened.let_go is not None:  # else it was given up, and the turn belongs to another by now
            opened.let_go()


def _in_a_savepoint(member: Member[Any], driver: SqliteDriver) -> object:
    driver.execute(BEGIN_OPERATION)
    try:
        result = drive(member.make(), driver)
    except Exception as error:  # noqa: BLE001 - any error goes to the member's caller
        driver.execute(UNDO_OPERATION)
        driver.execute(END_OPERATION)
        member.fail(error)
        return None
    driver.execute(END_OPERATION)
    return result


def _robbed(path: Path) -> DatabaseUnavailable:
    return DatabaseUnavailable(
        f"{path}: other code of this process closed file descriptors of Perdure (as os.closerange or a daemon library"
        " does); nothing was written. Start the process again, and become a daemon before the first use",
        code="descriptors_closed",
    )


def _forked() -> TransactionError:
    return TransactionError(
        "this process was forked inside app.transaction(); only the parent can commit the block, so nothing was"
        " written here. Fork before the block, or leave the child with os._exit()",
        code="tx_forked",
    )


def _came_after_commit(
    error: BaseException | None, before: BaseException | None, connection: sqlite3.Connection
) -> bool:
    """Whether an interrupt came after the COMMIT: then running the group again would write it twice.

    A failed COMMIT may have ended the transaction too (disk full), but then the database's error is in the chain above
    `before`, which was already being handled at the start (the error of the first attempt, or the caller's own).
    """
    if connection.in_transaction:
        return False
    while error is not None and error is not before:
        if isinstance(error, (sqlite3.Error, StoreError)):
            return False
        error = error.__context__
    return True


def _roll_back(connection: sqlite3.Connection) -> None:
    """A full disk or an I/O error ends the transaction by itself; a ROLLBACK would then be an error."""
    if connection.in_transaction:
        with suppress(sqlite3.Error):
            connection.execute("ROLLBACK")
