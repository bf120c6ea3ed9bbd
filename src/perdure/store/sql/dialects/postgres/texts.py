"""Every statement as PostgreSQL gets it. Used by `session` and `tx`; the differences are in `statements.sql`."""

from __future__ import annotations

from pathlib import Path

from perdure.store.sql import statements
from perdure.store.sql.dialects.postgres import naming

_OWN = (Path(__file__).parent / "statements.sql").read_text("utf-8")
_WITHOUT_LOCKS = "\n-- fragment: for_update\n"

WRITING = statements.load(_OWN, naming.table, naming.marker)

READING = statements.load(_OWN + _WITHOUT_LOCKS, naming.table, naming.marker)
"""The same for those who only look: a read-only transaction may not lock rows, and need not."""
