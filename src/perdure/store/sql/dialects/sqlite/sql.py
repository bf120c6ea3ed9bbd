"""Every statement as SQLite gets it."""

from __future__ import annotations

from pathlib import Path

from perdure.store.sql import statements
from perdure.store.sql.dialects.sqlite import naming

OWN_STATEMENTS = (Path(__file__).parent / "statements.sql").read_text("utf-8")
STATEMENTS = statements.load(OWN_STATEMENTS, naming.table, naming.marker)
