"""Copies of a database file that open by themselves. Used by `schema` before an upgrade and by `perdure db backup`."""

from __future__ import annotations

import os
import sqlite3
import sys
from contextlib import suppress
from pathlib import Path

from perdure.errors import DatabaseUnavailable, InvalidInput


def back_up(connection: sqlite3.Connection, target: Path) -> None:
    """Write all that is committed now to a new file that only its owner may read, and return when it is on the disk.

    Jobs go on meanwhile. An existing file is never overwritten, and after an error none is left behind.
    """
    _create(target)
    try:
        # A plain copy would miss what is in the -wal.
        connection.execute("VACUUM INTO ?", (str(target.absolute()),))
        _sync(target)
        _sync(target.absolute().parent)
    except BaseException:
        with suppress(OSError):
            target.unlink()
        raise


def _create(target: Path) -> None:
    try:
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InvalidInput(
            f"{target} exists, and a backup overwrites nothing; give another name, or move it away",
            code="backup_exists",
        ) from None
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DatabaseUnavailable(
            f"the backup {target} cannot be created ({reason}); check that its folder exists and is writable",
            code="backup_unwritable",
        ) from error
    os.close(fd)


def _sync(path: Path) -> None:
    """SQLite itself does not wait until the copy has reached the disk."""
    if sys.platform == "win32":
        return
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
