"""The database file: its identity, its filesystem, who may read it, its backups. Used by `runner` and `schema`."""

from __future__ import annotations

import errno
import os
import re
import sqlite3
import sys
import threading
from contextlib import suppress
from fnmatch import fnmatchcase
from os import PathLike
from pathlib import Path
from typing import NamedTuple

from perdure.errors import DatabaseUnavailable, InvalidInput

Identity = tuple[int, int]

MOUNTS = Path("/proc/self/mountinfo")

# WAL needs shared memory and locks that all processes see; over a network it has neither.
_NETWORK = (
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "9p", "ceph", "coda", "ncpfs", "davfs", "glusterfs", "lustre"),
    *("gpfs", "beegfs", "orangefs", "pvfs2", "gfs2", "ocfs2", "vboxsf", "vmhgfs", "prl_fs"),
    *("fuse.sshfs", "fuse.glusterfs", "fuse.ceph*", "fuse.davfs*", "fuse.smb*", "fuse.curlftpfs", "fuse.vmhgfs*"),
    *("fuse.*s3*", "fuse.rclone", "fuse.gcsfuse", "fuse.goofys", "fuse.blobfuse*", "fuse.juicefs", "fuse.seaweedfs"),
)


def identity(stat: os.stat_result) -> Identity:
    """Device and inode: the same for every path to one file, as long as the file exists or is open."""
    return stat.st_dev, stat.st_ino


def identity_of(path: str | PathLike[str]) -> Identity | None:
    """The identity of the file at a path. None: there is none."""
    try:
        return identity(os.stat(path))  # noqa: PTH116 - twice as fast, and on the way of every write
    except OSError:
        return None


# ------------------------------------------------------------------------------------------------- network filesystems


def refuse_network_filesystem(path: str | PathLike[str], allow: bool, mounts: Path = MOUNTS) -> None:
    """Raise DatabaseUnavailable if the file is, or would be, on a network filesystem; `allow` skips the check.

    On a system that does not list its mounts as Linux does, nothing is refused.
    """
    if allow:
        return
    real = _real(path)
    try:
        mountinfo = mounts.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    kind = filesystem_of(real, mountinfo)
    if kind is not None and _is_network(kind):
        raise DatabaseUnavailable(
            f"The database {real!r} is on a network filesystem ({kind}), where SQLite can lose or corrupt jobs. "
            "Put it on a local disk, use a server database (PostgreSQL, MySQL), or pass "
            "allow_network_filesystem=True to take the risk.",
            code="network_filesystem",
        )


def filesystem_of(path: str, mountinfo: str) -> str | None:
    """The filesystem type of a real, absolute path, from the text of /proc/self/mountinfo. None: not listed.

    Walks down from the root, mount by mount, as the kernel does: neither the longest mount point nor the last line is
    always the visible one.
    """
    over = [mount for mount in map(_parse, mountinfo.splitlines()) if mount and _contains(mount.point, path)]
    listed = {mount.id for mount in over}
    here: _Mount | None = None
    while below := [mount for mount in over if _hangs_on(mount, here, listed)]:
        here = min(below, key=lambda mount: len(mount.point))
        over.remove(here)
    return here.kind if here else None


class _Mount(NamedTuple):
    id: str
    parent: str
    point: str
    kind: str


def _parse(line: str) -> _Mount | None:
    """`id parent major:minor root point options tags… - type source options`; None for a line of another shape."""
    before, dash, after = line.partition(" - ")
    fields = before.split(" ")
    if not dash or len(fields) < 5:
        return None
    point = re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), fields[4])
    return _Mount(fields[0], fields[1], point, after.split(" ")[0])


def _contains(point: str, path: str) -> bool:
    return path == point or path.startswith(point.rstrip("/") + "/")


def _hangs_on(mount: _Mount, here: _Mount | None, listed: set[str]) -> bool:
    if here is None:
        return mount.parent not in listed or mount.parent == mount.id
    return mount.parent == here.id


def _is_network(kind: str) -> bool:
    return any(fnmatchcase(kind, pattern) for pattern in _NETWORK)


# ------------------------------------------------------------------------------------------------------------ creation


def create_private(path: str | PathLike[str]) -> None:
    """Create an empty database file that only its owner may read or write, whatever the umask.

    An existing file is left as it is. Any number of threads and processes may do this at once. SQLite gives its `-wal`
    and `-shm` the mode of the database.
    """
    real = _real(path)
    try:
        with _creation.lock:
            _create(real)
    except FileExistsError:
        if Path(real).is_dir():
            raise DatabaseUnavailable(
                f"The database path {real!r} is a folder. Give the path of a file in it, for example "
                f"{str(Path(real, 'jobs.db'))!r}.",
                code="database_path",
            ) from None
    except OSError as error:
        raise _cannot_create(real, error) from error


def _create(path: str) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        if sys.platform != "win32":
            os.fchmod(fd, 0o600)
    finally:
        os.close(fd)


class _Creation:
    """One creation at a time: a thread that opens the new file with SQLite would lose its locks when we close it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()

    def forget_parent(self) -> None:
        self.lock = threading.Lock()


_creation = _Creation()
if sys.platform != "win32":
    os.register_at_fork(after_in_child=_creation.forget_parent)


def _real(path: str | PathLike[str]) -> str:
    try:
        return os.path.realpath(path)
    except ValueError as error:  # NUL, or a lone surrogate
        raise DatabaseUnavailable(
            f"The database path {os.fspath(path)!r} has a character no path can have ({error}). Give another path.",
            code="database_path",
        ) from error


def _cannot_create(path: str, error: OSError) -> DatabaseUnavailable:
    folder = str(Path(path).parent)
    match error.errno:
        case errno.ENOENT:
            code, advice = "database_path", f"Create the folder {_first_missing(folder)!r}, or give another path."
        case errno.ENAMETOOLONG:
            code, advice = "database_path", "Give a shorter path."
        case errno.ENOTDIR:
            code, advice = "database_path", f"A part of {folder!r} is a file, not a folder. Give another path."
        case errno.EACCES | errno.EPERM | errno.EROFS:
            code, advice = "database_permission", f"Let this user write to the folder {folder!r}, or give another path."
        case _:
            code, advice = "database_unavailable", "Check the path and its disk."
    return DatabaseUnavailable(f"The database {path!r} cannot be created ({error.strerror}). {advice}", code=code)


def _first_missing(folder: str) -> str:
    """The outermost folder that does not exist."""
    missing = Path(folder)
    while not missing.parent.exists():
        missing = missing.parent
    return str(missing)


def back_up(connection: sqlite3.Connection, target: Path) -> None:
    """Write all that is committed now to a new file that only its owner may read, and return when it is on the disk.

    Jobs continue meanwhile. An existing file is never overwritten, and after an error no file is left behind.
    """
    _create_backup(target)
    try:
        # A plain copy would miss what is in the -wal.
        connection.execute("VACUUM INTO ?", (str(target.absolute()),))
        _sync(target)
        _sync(target.absolute().parent)
    except BaseException:
        with suppress(OSError):
            target.unlink()
        raise


def _create_backup(target: Path) -> None:
    try:
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise InvalidInput(
            f"{target} exists, and a backup overwrites nothing; give another name, or move that file",
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
