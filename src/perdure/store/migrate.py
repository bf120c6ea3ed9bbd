"""Migrations: ordered SQL files with checksums. Used by the dialects, which take the lock and open the transaction.

`<dialect>/migrations/NNNN_name.sql` are frozen once released. A new database gets all of them, one after the other.
Revision numbers are shared: a number means the same on every database, and one that needs no such step has no file of
that number. A step only adds (tables, indexes, columns that may be empty), so processes that are running go on after
it; a program that is started later and does not know it refuses the database.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from perdure.errors import SchemaError
from perdure.store.rows import Fact, Verdict
from perdure.version import __version__

_HERE = Path(__file__).parent
_MACRO = re.compile(r"\{(id|time):([^{}]*)\}")
_TABLE = re.compile(r"\{(\w+)\}")
_FILE = re.compile(r"(\d{4})_(\w+)\.sql")


class Migration(NamedTuple):
    """One step. The checksum is of its text as written, before table names are filled in."""

    revision: int
    name: str
    text: str

    @property
    def checksum(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


class Applied(NamedTuple):
    """A step that the database has recorded."""

    revision: int
    name: str
    checksum: str


class Naming(NamedTuple):
    """How a dialect writes table names, and ids and times for people."""

    table: Callable[[str], str]
    id: Callable[[str], str]
    time: Callable[[str], str]


def migrations_of(dialect: str) -> list[Migration]:
    """All steps of a dialect, in order."""
    folder = _HERE / dialect / "migrations"
    found = [(match, entry) for entry in folder.iterdir() if (match := _FILE.fullmatch(entry.name))]
    steps = [Migration(int(match[1]), match[2], entry.read_text("utf-8")) for match, entry in found]
    return sorted(steps)


def applied(rows: Iterable[tuple[Any, ...]]) -> list[Applied]:
    """The steps that a database has recorded, from the rows of `recorded_in`."""
    return [Applied._make(row) for row in rows]


def recorded_in(naming: Naming) -> str:
    """The query for the steps that a database has recorded."""
    return f"SELECT revision, name, checksum FROM {naming.table('schema_version')} ORDER BY revision"  # noqa: S608


def statements_of(step: Migration, naming: Naming) -> list[str]:
    """The statements of a step, and the one that records it."""
    row = (step.revision, step.name, step.checksum, time.time_ns() // 1000, __version__)
    values = ", ".join(str(value) if isinstance(value, int) else f"'{value}'" for value in row)
    columns = "revision, name, checksum, applied_at, perdure_version"
    done = f"INSERT INTO {naming.table('schema_version')} ({columns})\nVALUES ({values})"
    return [*script(step.text, naming), done]


def script(text: str, naming: Naming) -> list[str]:
    """The statements of a migration, in this dialect's names."""
    macros: Mapping[str, Callable[[str], str]] = {"id": naming.id, "time": naming.time}
    plain = re.sub(r"^\s*--.*\n", "", text, flags=re.MULTILINE)
    written = _MACRO.sub(lambda match: macros[match[1]](match[2]), plain)
    named = _TABLE.sub(lambda match: naming.table(match[1]), written)
    return [statement.strip() for statement in named.split(";\n") if statement.strip()]


def pending(known: Sequence[Migration], applied: Sequence[Applied]) -> list[Migration]:
    """The steps still to do. Refuses a database that newer code made, or whose history is not ours."""
    ours = {step.revision: step for step in known}
    for row in applied:
        step = ours.get(row.revision)
        if step is None:
            raise _newer(row, known)
        if step.checksum != row.checksum:
            raise _changed(
                f"schema revision {row.revision} ({row.name}) was applied with other text than this version has"
            )
    done = {row.revision for row in applied}
    todo = [step for step in known if step.revision not in done]
    if done and todo and todo[0].revision < max(done):
        raise _changed(f"schema revision {todo[0].revision} ({todo[0].name}) is missing, but later ones are there")
    return todo


def missing(where: str) -> SchemaError:
    """For a database of a server that has none of our tables: it is not made without being asked for."""
    return SchemaError(
        f"{where} has no Perdure tables yet; run perdure db upgrade once (in Django manage.py migrate), or open it"
        " with auto_migrate=True",
        code="schema_missing",
    )


def older(where: str, known: Sequence[Migration], done: Sequence[Applied]) -> SchemaError:
    return SchemaError(
        f"{where} is at schema revision {done[-1].revision}, this version of Perdure needs {known[-1].revision}"
        f" (still to do: {steps_in_words(pending(known, done))}); run perdure db upgrade first (in Django"
        " manage.py migrate)",
        code="schema_older",
    )


def _newer(row: Applied, known: Sequence[Migration]) -> SchemaError:
    return SchemaError(
        f"the database is at schema revision {row.revision} ({row.name}); this version of Perdure knows up to"
        f" {known[-1].revision}: it was upgraded by a newer Perdure. Upgrade this installation, or restore the backup"
        " made before the upgrade",
        code="schema_newer",
    )


def _changed(what: str) -> SchemaError:
    return SchemaError(
        f"{what}: the installation or the database was changed by hand. Reinstall Perdure; if that does not help,"
        " restore a backup",
        code="schema_changed",
    )


# -- what the steps have made ----------------------------------------------------------------------------------------

_OBJECT = re.compile(
    r"^(CREATE|DROP)(?: OR REPLACE)?(?: UNIQUE)? (TABLE|INDEX|VIEW|SEQUENCE)(?: IF NOT EXISTS)? ([\w.]+)"
)
_INLINE = re.compile(r"(?:^ +|ADD )(?:UNIQUE )?INDEX (\w+) ", re.MULTILINE)


def made_by(steps: Iterable[Migration], naming: Naming) -> set[tuple[str, str]]:
    """The tables, indexes, views and sequences that a database has after these steps: what each is, and its name
    without a schema."""
    made: set[tuple[str, str]] = set()
    for statement in (statement for step in steps for statement in script(step.text, naming)):
        if match := _OBJECT.match(statement):
            verb, sort, name = match.groups()
            (made.add if verb == "CREATE" else made.discard)((sort.lower(), name.rsplit(".", 1)[-1]))
        made |= {("index", index) for index in _INLINE.findall(statement)}
    return made


def schema_fact(known: Sequence[Migration], done: Sequence[Applied]) -> Fact:
    """Whether the database is at the newest revision, by steps that have our checksums."""
    if not done:
        return Fact("schema", "no Perdure tables", Verdict.PROBLEM, "run perdure db upgrade to make them")
    value = f"revision {done[-1].revision}, the newest is {known[-1].revision}"
    try:
        todo = pending(known, done)
    except SchemaError as error:
        return Fact("schema", value, Verdict.PROBLEM, error.message)
    if not todo:
        return Fact("schema", value)
    return Fact("schema", value, Verdict.PROBLEM, f"still to do: {steps_in_words(todo)}; run perdure db upgrade")


def steps_in_words(steps: Iterable[Migration]) -> str:
    return ", ".join(f"{step.revision} ({step.name})" for step in steps)


def objects_fact(
    known: Sequence[Migration], done: Sequence[Applied], naming: Naming, found: set[tuple[str, str]]
) -> Fact:
    """Whether everything is there that the steps which the database has recorded have made."""
    recorded = {row.revision for row in done}
    made = made_by([step for step in known if step.revision in recorded], naming)
    missing = sorted(made - found)
    if not missing:
        return Fact("objects", f"{len(made)} tables, indexes and views, all there")
    named = ", ".join(f"{sort} {name}" for sort, name in missing)
    advice = "somebody removed them: restore tables from a backup; perdure db sql prints how indexes and views are made"
    return Fact("objects", f"missing: {named}", Verdict.PROBLEM, advice)
