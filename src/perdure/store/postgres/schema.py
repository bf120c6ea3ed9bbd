"""Makes and upgrades the schema in a PostgreSQL database. Used by `session`; the steps are in `migrate`."""

from __future__ import annotations

from typing import Any

import psycopg

from perdure.errors import SchemaError
from perdure.store import migrate
from perdure.store.migrate import Applied
from perdure.store.postgres.driver import translate
from perdure.store.postgres.statements import NAMING, SCHEMA, table

VERSIONS = table("schema_version")
LOCK_KEY = 0x70657264757265
"""The advisory lock that upgrades take: "perdure" in ASCII."""

_PATIENCE_MS = 60_000

Connection = psycopg.Connection[tuple[Any, ...]]


def prepare(connection: Connection, where: str, *, allowed: bool) -> int:
    """See `Session.prepare`."""
    known = migrate.migrations_of("postgres")
    try:
        if not migrate.pending(known, applied(connection)):
            return 0
        if not allowed:
            raise _missing(where) if not applied(connection) else _older(where)
        # the others wait here, and find nothing left to do
        connection.execute(f"SET LOCAL lock_timeout = {_PATIENCE_MS}".encode())
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (LOCK_KEY,))
        steps = migrate.pending(known, applied(connection))
        for statement in (statement for step in steps for statement in migrate.statements_of(step, NAMING)):
            connection.execute(statement.encode())
    except psycopg.Error as error:
        raise translate(error) from error
    return len(steps)


def applied(connection: Connection) -> list[Applied]:
    """The steps the database says it has. Empty: it is not ours yet."""
    # not to_regclass: it may answer from what this session knew before it waited for another's upgrade
    known = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = %s AND tablename = 'schema_version'"
    if connection.execute(known, (SCHEMA,)).fetchone() is None:
        return []
    return migrate.applied(connection.execute(migrate.recorded_in(NAMING).encode()))


def _missing(where: str) -> SchemaError:
    return SchemaError(
        f"{where} has no Perdure tables yet; run perdure db upgrade once, or open it with auto_migrate=True",
        code="schema_missing",
    )


def _older(where: str) -> SchemaError:
    return SchemaError(f"{where} has an older schema; run perdure db upgrade first", code="schema_older")
