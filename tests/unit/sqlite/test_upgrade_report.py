"""An upgrade says what it did, keeps the file as it was, and happens only where it is allowed."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from perdure import Perdure
from perdure.errors import SchemaError
from perdure.store.migrate import Migration, migrations_of
from perdure.store.protocols import StoreSettings
from perdure.store.sqlite import schema
from perdure.store.sqlite.driver import open_writer
from tests.app.contents import contents

FIRST = migrations_of("sqlite")[:1]
BOTH = [*FIRST, Migration(2, "colours", "CREATE TABLE {colour} (name TEXT);\n")]
BROKEN = [*FIRST, Migration(2, "colours", "CREATE TABLE {colour} (name TEXT);\nCREATE NONSENSE;\n")]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database at revision 1."""
    path = tmp_path / "jobs.db"
    sqlite3.connect(path).close()
    with closing(open_writer(path, StoreSettings())) as connection:
        schema.prepare(connection, path, FIRST)
    return path


@pytest.fixture
def connection(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(open_writer(path, StoreSettings())) as connection:
        yield connection


def backups(path: Path) -> list[Path]:
    return list(path.parent.glob("jobs.db.backup-*"))


def test_a_new_file_is_created(tmp_path: Path) -> None:
    app = Perdure(tmp_path / "new.db", auto_migrate=False)

    assert app.store.upgrade() == f"created {tmp_path}/new.db at schema revision {migrations_of('sqlite')[-1].revision}"


def test_a_file_at_the_newest_revision_is_left_alone(path: Path, connection: sqlite3.Connection) -> None:
    before = contents(path)

    done = schema.prepare(connection, path, FIRST)

    assert str(done) == f"nothing to do: {path} is at schema revision 1, the newest"
    assert (contents(path), backups(path)) == (before, [])


def test_an_older_file_is_upgraded_and_the_file_as_it_was_is_kept(path: Path, connection: sqlite3.Connection) -> None:
    before = contents(path)

    done = schema.prepare(connection, path, BOTH)

    [backup] = backups(path)
    assert str(done) == (f"upgraded {path} from schema revision 1 to 2; the file as it was is kept at {backup}")
    assert [step.revision for step in schema.applied(connection)] == [1, 2]
    assert contents(backup) == before
    assert backup.stat().st_mode & 0o777 == 0o600


def test_an_older_file_is_refused_where_upgrading_is_not_allowed(path: Path, connection: sqlite3.Connection) -> None:
    before = contents(path)

    with pytest.raises(SchemaError, match="perdure db upgrade first") as refused:
        schema.prepare(connection, path, BOTH, allowed=False)

    assert refused.value.code == "schema_older"
    assert (contents(path), backups(path)) == (before, [])


def test_an_upgrade_that_fails_leaves_the_file_as_it_was(path: Path, connection: sqlite3.Connection) -> None:
    before = contents(path)

    with pytest.raises(sqlite3.OperationalError):
        schema.prepare(connection, path, BROKEN)

    assert contents(path) == before


@pytest.mark.parametrize("known", [FIRST, BOTH])
def test_only_the_newest_revision_is_current(
    known: list[Migration], path: Path, connection: sqlite3.Connection
) -> None:
    if known is FIRST:
        schema.require_newest(connection, path, known)
    else:
        with pytest.raises(SchemaError, match="schema_older"):
            schema.require_newest(connection, path, known)
