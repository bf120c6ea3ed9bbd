"""How PostgreSQL writes tables, and ids and times for people."""

from __future__ import annotations

from perdure.store.sql.migrate import Naming

SCHEMA = "perdure"


def table(name: str) -> str:
    return f"{SCHEMA}.{name}"


def marker(number: int) -> str:
    return f"${number}"


def _id(value: str) -> str:
    """The uuid itself: PostgreSQL shows it as people write it."""
    return value


def _time(value: str) -> str:
    moment = f"TIMESTAMP 'epoch' + ({value}) * INTERVAL '1 microsecond'"
    return f"""to_char({moment}, 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')"""


NAMING = Naming(table, _id, _time)
