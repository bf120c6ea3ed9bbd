"""A user's Alembic on the database that Perdure uses too: autogenerate leaves our tables alone."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from perdure.contrib.alembic import include_name
from perdure.store.tables import tables
from tests.databases.conftest import Makers

SORTS = ["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)]
MODELS = sa.MetaData()
sa.Table("customer", MODELS, sa.Column("id", sa.Integer, primary_key=True))


def engine_of(url: str) -> sa.Engine:
    if url.startswith("postgresql"):
        return sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    return sa.create_engine(f"sqlite:///{url}")


def proposed(url: str, **options: Any) -> list[Any]:
    """What `alembic revision --autogenerate` would write down."""
    engine = engine_of(url)
    try:
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"include_schemas": True, **options})
            return [one for one in compare_metadata(context, MODELS) if isinstance(one, tuple)]
    finally:
        engine.dispose()


@pytest.mark.parametrize("sort", SORTS)
def test_without_the_filter_our_tables_would_be_dropped(sort: str, new: Makers) -> None:
    """Else the next test would pass by seeing nothing."""
    dropped = [one[1].name for one in proposed(new(sort)) if one[0] == "remove_table"]

    assert len(dropped) >= len(tables())


@pytest.mark.parametrize("sort", SORTS)
def test_with_the_filter_only_the_users_own_tables_are_looked_at(sort: str, new: Makers) -> None:
    url = new(sort)
    engine = engine_of(url)
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE old (id INTEGER PRIMARY KEY, perdure_job INTEGER)"))
    engine.dispose()

    found = sorted((one[0], one[1].name) for one in proposed(url, include_name=include_name))

    assert found == [("add_table", "customer"), ("remove_table", "old")]


@pytest.mark.parametrize(
    ("name", "sort", "parents", "ours"),
    [
        ("perdure", "schema", {}, True),
        ("shop", "schema", {}, False),
        (None, "schema", {}, False),
        ("job", "table", {"schema_name": "perdure"}, True),
        ("job", "table", {"schema_name": None}, False),
        ("perdure_job", "table", {"schema_name": None}, True),
        ("perdure_job_by_kind", "index", {"schema_name": None, "table_name": "perdure_job"}, True),
        ("perdure_job", "column", {"schema_name": None, "table_name": "customer"}, False),
    ],
)
def test_what_is_ours(name: str | None, sort: str, parents: dict[str, str | None], ours: bool) -> None:
    assert include_name(name, sort, parents) is not ours
