"""Every statement as PostgreSQL gets it, and its names. Used by `session`; by `perdure db sql` without the driver."""

from __future__ import annotations

from pathlib import Path

from perdure.store import statements
from perdure.store.migrate import Naming

SCHEMA = "perdure"
MARKER = "${}"


def table(name: str) -> str:
    return f"{SCHEMA}.{name}"


def _id(value: str) -> str:
    """The uuid itself: PostgreSQL shows it as people write it."""
    return value


def _time(value: str) -> str:
    moment = f"TIMESTAMP 'epoch' + ({value}) * INTERVAL '1 microsecond'"
    return f"""to_char({moment}, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""


NAMING = Naming(table, _id, _time)

LOCK_KEY = 0x70657264757265
"""The key of the advisory lock for upgrades: "perdure" in ASCII."""
AROUND = (f"BEGIN;\n\nSELECT pg_advisory_xact_lock({LOCK_KEY})", "COMMIT")
"""Around the statements that people apply themselves: all or nothing, one after the other."""


OWN = statements.of_sqlite_and_postgres() + (Path(__file__).parent / "statements.sql").read_text("utf-8")
_WITHOUT_LOCKS = "\n-- fragment: for_update\n"

WRITING = statements.load(OWN, table, MARKER)

READING = statements.load(OWN + _WITHOUT_LOCKS, table, MARKER)
"""The same for reads: a read-only transaction may not lock rows, and need not."""
