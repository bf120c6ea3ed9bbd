"""Keeps Alembic's autogenerate away from Perdure's tables, which it would propose to drop. Imports nothing of Alembic.

In `migrations/env.py`, wherever `context.configure(` is called:

    from perdure.contrib.alembic import include_name

    context.configure(..., include_name=include_name)
"""

from __future__ import annotations

from collections.abc import Mapping

from perdure.store.postgres.statements import SCHEMA
from perdure.store.sqlite.statements import PREFIX


def include_name(name: str | None, type_: str, parent_names: Mapping[str, str | None]) -> bool:
    """Whether Alembic should look at what has this name in the database: not at the schema `perdure`, nor at anything
    in it, nor at tables that begin with `perdure_`.

    If you have a filter of your own, call this one in it: `return include_name(…) and …`.
    """
    if type_ == "schema":
        return name != SCHEMA
    if parent_names.get("schema_name") == SCHEMA:
        return False
    table = name if type_ == "table" else parent_names.get("table_name")
    return not (table or "").startswith(PREFIX)
