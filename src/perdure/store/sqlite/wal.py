"""Keeps the write-ahead log short without meeting SQLite's WAL-reset bug. Called by the SQLite writer after commits.

Affected versions can corrupt a file that several processes write: a checkpoint without the writer's lock may copy from
a log that another process is just starting over. Auto-checkpoints never hold it; FULL, RESTART and TRUNCATE silently
continue without it when it is busy. So on such versions our connections switch auto-checkpoints off, and a writer that
finds the log long copies it back while a second connection blocks all writers.
"""

from __future__ import annotations

import os
import sqlite3
import struct
import sys
import threading
from contextlib import suppress
from os import PathLike
from pathlib import Path

from perdure.store.sqlite.files import Identity, identity

CHECKPOINT_FRAMES = 1_000
NOT_RUN = (-1, -1)

# The wal-index header, in the machine's byte order: format at 0, "is initialised" at 12, last committed frame at 16;
# and after its two copies, at 96, how many frames are in the database file already.
_INDEX = struct.Struct("=I8xB3xI76xI")
_FORMAT = 3_007_000
_HEADER_SIZE = 48
_PAGE_SIZE = struct.Struct(">8xI")
_WAL_HEADER, _FRAME_HEADER = 32, 24


def affected(version: tuple[int, int, int]) -> bool:
    """Whether this SQLite has the WAL-reset bug: 3.7.0 to 3.51.2, except the repaired 3.44.6+ and 3.50.7+."""
    repaired = (3, 44, 6) <= version < (3, 45, 0) or (3, 50, 7) <= version < (3, 51, 0)
    return (3, 7, 0) <= version <= (3, 51, 2) and not repaired


def checkpoint_guarded(writer: sqlite3.Connection, holder: sqlite3.Connection) -> tuple[int, int]:
    """Copy the log back through `writer` while `holder` blocks every other writer; returns (frames in the log, copied).

    Both are idle connections of ours to the same file; the caller holds the gate. The checkpoint runs only while
    `holder` has the writer's lock. If another connection has it for longer than the busy time-out of `holder` (keep it
    short), nothing is done and NOT_RUN is returned. Readers are never waited for: frames that one of them still needs
    are copied another time. In any case, even after an interrupt, `holder` is idle afterwards.
    """
    try:
        if not _begin(holder):
            return NOT_RUN
        _, in_log, copied = writer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
    finally:
        if holder.in_transaction:
            holder.execute("ROLLBACK")
    return in_log, copied


def _begin(holder: sqlite3.Connection) -> bool:
    try:
        holder.execute("BEGIN IMMEDIATE")
    except sqlite3.OperationalError as error:
        if error.sqlite_errorcode & 0xFF == sqlite3.SQLITE_BUSY:
            return False
        raise
    return True


class WalMeter:
    """Measures the log of one database, in about 3 µs. Any thread may use it; nothing has to be closed."""

    __slots__ = ("_kept", "_shm", "_wal")

    def __init__(self, db_path: str | PathLike[str]) -> None:
        real = os.path.realpath(db_path)
        self._shm = real + "-shm"
        self._wal = real + "-wal"
        self._kept: _Kept | None = None

    def state(self) -> bytes:
        """Bytes that differ after every commit of any process. Empty if they cannot be read."""
        if sys.platform == "win32":
            return b""
        try:
            return os.pread(self._file().fd, _HEADER_SIZE, 0)
        except OSError:
            return b""

    def _file(self) -> _Kept:
        kept = self._kept
        # Asking the descriptor whether its file was deleted costs half of asking the path which file it leads to.
        if kept is None or kept.given_up or os.fstat(kept.fd).st_nlink == 0:
            kept = self._kept = _kept_files.at(self._shm)
        return kept

    def frames(self) -> int:
        """Committed frames of all processes that are not yet in the database file. 0 if there is no log.

        Without a usable `-shm` (no one has the file open, exclusive locking mode) it is computed from the size of
        `-wal`: never too few, but frames already copied count too.
        """
        last: int
        copied: int
        if sys.platform == "win32":
            return self._frames_by_size()
        try:
            form, ready, last, copied = _INDEX.unpack(os.pread(self._file().fd, _INDEX.size, 0))
        except (OSError, struct.error):
            return self._frames_by_size()
        if form != _FORMAT or not ready:
            return self._frames_by_size()
        # While the log starts over, `last` is 0 for an instant before `copied` is.
        return last - copied if last > copied else 0

    def _frames_by_size(self) -> int:
        """Opening `-wal` is harmless: SQLite keeps no locks on it."""
        page_size: int
        try:
            with Path(self._wal).open("rb") as wal:
                (page_size,) = _PAGE_SIZE.unpack(wal.read(_PAGE_SIZE.size))
                size = wal.seek(0, os.SEEK_END)
        except (OSError, struct.error):
            return 0
        return max(0, size - _WAL_HEADER) // (_FRAME_HEADER + page_size)


class _Kept:
    """An open file. `given_up`: its descriptor was closed, and its number may belong to another file by now."""

    __slots__ = ("fd", "given_up", "path")

    def __init__(self, fd: int, path: str) -> None:
        self.fd = fd
        self.path = path
        self.given_up = False


class _KeptFiles:
    """The `-shm` files that this process reads: one descriptor each, which stays open.

    Closing one would drop every record lock this process has on the file, also SQLite's own. So they are integers,
    which no garbage collector closes. Only the descriptor of a deleted file is closed: SQLite deletes the file with the
    last connection of all processes, when no lock on it is left.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_file: dict[Identity, _Kept] = {}

    def at(self, path: str) -> _Kept:
        """The file that is now at `path`, opened if this process has not done so yet."""
        with self._lock:
            known = self._by_file.get(identity(os.stat(path)))  # noqa: PTH116 - the path is a string already
            if known:
                return known
            self._give_up_deleted()
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            # If the file is known after all (another file has this path just now), this descriptor stays open unused.
            return self._by_file.setdefault(identity(os.fstat(fd)), _Kept(fd, path))

    def _give_up_deleted(self) -> None:
        for file, kept in list(self._by_file.items()):
            if _links(kept.fd, file) == 0 and _file_at(kept.path) != file:
                del self._by_file[file]
                kept.given_up = True
                os.close(kept.fd)

    def forget_parent(self) -> None:
        """Called in a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.Lock()


_kept_files = _KeptFiles()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_kept_files.forget_parent)


def _links(fd: int, file: Identity) -> int | None:
    """How many names the open file has. None if the descriptor is another file's now (a daemon closed them all)."""
    with suppress(OSError):
        stat = os.fstat(fd)
        return stat.st_nlink if identity(stat) == file else None
    return None


def _file_at(path: str) -> Identity | None:
    with suppress(OSError):
        return identity(os.stat(path))  # noqa: PTH116 - the path is a string already
    return None
