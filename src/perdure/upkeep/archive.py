"""Where jobs go that are old enough: nowhere, into the archive table, or to JSON-lines files. Called by `retention` and
the app's `purge` and `archive`.

In a file every job is one line. It is on the disk before the job is removed from the database, so after a crash in
between it is in both, and after the next attempt twice in the files: readers take the newer line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast
from uuid import UUID

from perdure.checks import refused
from perdure.clock import Clock, iso, to_datetime
from perdure.config import Config
from perdure.errors import ConfigError, InvalidInput
from perdure.ids import JobId, to_uuid
from perdure.store.protocols import Store
from perdure.store.rows import LAST_ID, Archived, Ended

REMOVED_AT_ONCE = 200
ARCHIVED_AT_ONCE = 50
"""How many jobs one transaction takes: some milliseconds on SQLite. An archive also reads and writes all they have."""

FILE_BYTES = 64 * 1024 * 1024
"""A file of a folder that is longer is not continued: a reader holds one at a time in memory."""

_PAGE = 200


class Exit(NamedTuple):
    """A way out of the queue's tables."""

    put: Callable[[Sequence[Ended]], list[JobId]]
    """Takes a few ended jobs out, in one short transaction, and returns those that are gone."""
    at_once: int
    """How many a call should get."""


def archive_of(config: Config, given: str | os.PathLike[str] | None) -> str | Path:
    """The archive that is meant: the one given, the one of the settings, or the table."""
    if given is None:
        return config.retention.archive or "table"
    if not isinstance(cast("Any", given), (str, os.PathLike)):
        raise refused("the archive", '"table", a folder or a file that ends in .jsonl', given)
    return "table" if given == "table" else Path(given)


def exit_to(store: Store, clock: Clock, where: str | Path | None) -> Exit:
    """For a setting: None removes for good, "table" is the archive table, a path is a folder, or a file `x.jsonl`."""
    if where is None:
        return Exit(store.remove, REMOVED_AT_ONCE)
    if where == "table":
        return Exit(TableArchive(store, clock).put, ARCHIVED_AT_ONCE)
    path = Path(where)
    archive = FileArchive(store, clock, path) if path.suffix == ".jsonl" else FolderArchive(store, clock, path)
    return Exit(archive.put, ARCHIVED_AT_ONCE)


class TableArchive:
    """Moves jobs into the archive table, in one transaction."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    def put(self, old: Sequence[Ended]) -> list[JobId]:
        return self._store.archive(old, self._clock.now())


class FileArchive:
    """Moves jobs to one file, which is continued if it is there."""

    def __init__(self, store: Store, clock: Clock, path: Path) -> None:
        self._store = store
        self._clock = clock
        self.path = path

    def put(self, old: Sequence[Ended]) -> list[JobId]:
        """Write them, and then remove those that are still as they were written."""
        found = self._store.documents(old, self._clock.now())
        if not found:
            return []
        append(self.path, b"".join(map(_line, found)))
        return self._store.remove(old, {one.job_id: one.document for one in found})


class FolderArchive:
    """Moves jobs to new files of a folder, so that any number of processes may do so at the same time."""

    def __init__(self, store: Store, clock: Clock, folder: Path) -> None:
        self._store = store
        self._clock = clock
        self._folder = folder
        self._file: FileArchive | None = None

    def put(self, old: Sequence[Ended]) -> list[JobId]:
        if self._file is None or (self._file.path.exists() and self._file.path.stat().st_size > FILE_BYTES):
            at = to_datetime(self._clock.now())
            name = f"{at:%Y%m%dT%H%M%SZ}-{os.urandom(4).hex()}.jsonl"
            self._file = FileArchive(self._store, self._clock, self._folder / name)
        return self._file.put(old)


def _line(one: Archived) -> bytes:
    return f'{{"archived_at":"{iso(one.archived_at)}",{one.document[1:]}\n'.encode()


def append(path: Path, lines: bytes) -> None:
    """Returns when they are on the disk. A line that an earlier writer could not finish is closed first."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        is_new = not path.exists()
        with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b", buffering=0) as file:
            if file.seek(0, os.SEEK_END) and os.pread(file.fileno(), 1, file.tell() - 1) != b"\n":
                lines = b"\n" + lines
            while lines:
                lines = lines[file.write(lines) :]
            os.fsync(file.fileno())
        if is_new:
            _sync_folder(path.parent)
    except OSError as error:
        raise ConfigError(
            f"the archive {path} cannot be written ({error.strerror}); the jobs stay in the database. Give a folder"
            " that this user may write to",
            code="archive_unwritable",
        ) from error


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_archive(path: Path) -> Iterator[dict[str, Any]]:
    """The jobs in a file, or in the files of a folder, the last written first, each once.

    A line that was not finished is passed over: its job was not removed then.
    """
    seen: set[str] = set()
    files = sorted(path.glob("*.jsonl"), reverse=True) if path.is_dir() else [path]
    for file in files:
        for line in reversed(_lines(file)):
            document = _document(line)
            if document is not None and document["job"]["id"] not in seen:
                seen.add(document["job"]["id"])
                yield document


def _lines(file: Path) -> list[bytes]:
    try:
        return file.read_bytes().split(b"\n")
    except OSError as error:
        raise InvalidInput(
            f"the archive {file} cannot be read ({error.strerror})", code="archive_unreadable"
        ) from error


def _document(line: bytes) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(line)
        UUID(found["job"]["id"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    return found


def archived_jobs(store: Store, where: str | Path) -> Iterator[dict[str, Any]]:
    """All jobs of an archive, lazily: of the table the newest first, of files the last written first."""
    if where != "table":
        yield from read_archive(Path(where))
        return
    below: bytes = LAST_ID
    while page := store.archived_jobs(below, _PAGE):
        yield from map(_of_table, page)
        below = page[-1].job_id


def find_archived(store: Store, where: str | Path, job_id: JobId) -> dict[str, Any] | None:
    """The job in an archive. None: it is not there."""
    if where == "table":
        found = store.archived(job_id)
        return None if found is None else _of_table(found)
    name = str(to_uuid(job_id))
    return next((found for found in read_archive(Path(where)) if found["job"]["id"] == name), None)


def _of_table(one: Archived) -> dict[str, Any]:
    return {"archived_at": iso(one.archived_at), **json.loads(one.document)}
