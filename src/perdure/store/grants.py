"""What a database user needs for what it does: read, enqueue, or work. Printed by `perdure db grants`; on a server the
checks of `perdure db check` ask which of them the user has.

Upgrading needs the owner of the tables, and nobody else can.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from perdure.store.tables import tables

Needs = Mapping[str, str]
"""Privileges by table."""

NEW_JOB = ("job", "ready", "tag", "queue", "edge", "idempotency_key", "business_key")
"""What an enqueue inserts into."""


def needs(purpose: str) -> Needs:
    """The privileges on each table for `read`, `enqueue` (which reads too) or `work` (which does both)."""
    match purpose:
        case "read":
            found = dict.fromkeys(tables(), "SELECT")
        case "enqueue":
            # an enqueue frees a key whose job is gone; whose it is now, it reads as last committed
            found = {**needs("read"), **dict.fromkeys(NEW_JOB, "SELECT, INSERT")}
            found["business_key"] = "SELECT, INSERT, DELETE"
        case _:
            found = dict.fromkeys(tables(), "SELECT, INSERT, UPDATE, DELETE")
    return {"schema_version": "SELECT", **found}


SEQUENCES = {
    "read": {"position": "SELECT", "asleep": "SELECT"},
    "enqueue": {"position": "SELECT, USAGE", "asleep": "SELECT, UPDATE"},
    "work": {"position": "SELECT, USAGE, UPDATE", "asleep": "SELECT, UPDATE"},
}
"""The same for the sequences of PostgreSQL: places, and which workers sleep."""
PURPOSES = tuple(SEQUENCES)


def on_postgres(role: str, purpose: str) -> Iterator[str]:
    """The statements that give the role what it needs. The owner of the tables, or a superuser, runs them."""
    from perdure.store.postgres.statements import SCHEMA, table

    named = '"' + role.replace('"', '""') + '"'
    yield f"GRANT USAGE ON SCHEMA {SCHEMA} TO {named}"
    for name, privileges in needs(purpose).items():
        yield f"GRANT {privileges} ON {table(name)} TO {named}"
    for name, privileges in SEQUENCES[purpose].items():
        yield f"GRANT {privileges} ON SEQUENCE {table(name)} TO {named}"
