"""A user's Alembic on the database that Perdure uses too: autogenerate leaves our tables alone."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from perdure.contrib.alembic import include_name
from perdure.store.tables import tables
from tests.databases.conftest import Makers

SORTS = [
    "sqlite",
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]
DOCS = Path(__file__).parents[2] / "docs"
MODELS = sa.MetaData()
sa.Table("customer", MODELS, sa.Column("id", sa.Integer, primary_key=True))


def engine_of(url: str) -> sa.Engine:
    if url.startswith("postgresql"):
        return sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    if url.startswith("mysql"):
        return sa.create_engine(url.replace("mysql://", "mysql+pymysql://"))
    return sa.create_engine(f"sqlite:///{url}")


def proposed(url: str, **options: Any) -> list[Any]:
    """What `alembic revision --autogenerate` would write down."""
    engine = engine_of(url)
    options["include_schemas"] = url.startswith("postgresql")  # on MariaDB these would be the server's other databases
    try:
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts=options)
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


def shown_in_the_docs() -> tuple[str, str]:
    """What docs/databases.md tells to add to `env.py`: an import, and an argument of `context.configure`."""
    page = (DOCS / "databases.md").read_text("utf-8")
    found = re.search(r"```python\n(from perdure\.contrib.*)\n\n# context\.configure\(\.\.\., (.*)\)\n", page)
    assert found is not None
    return found[1], found[2]


def alembic(folder: Path, *words: str) -> None:
    """A process of its own: `env.py` sets up the logging of its process."""
    program = [sys.executable, "-m", "alembic"]
    ran = subprocess.run([*program, *words], cwd=folder, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout + ran.stderr


def project(folder: Path, url: str) -> Path:
    """What `alembic init` makes, with models, the database, and what the docs tell. Returns its `env.py`."""
    folder.mkdir()
    alembic(folder, "init", "migrations")
    settings = folder / "alembic.ini"
    settings.write_text(
        re.sub(r"(?m)^sqlalchemy\.url = .*$", f"sqlalchemy.url = sqlite:///{url}", settings.read_text())
    )
    line, argument = shown_in_the_docs()
    models = "import sqlalchemy\ntarget_metadata = sqlalchemy.MetaData()\n"
    models += 'sqlalchemy.Table("customer", target_metadata, sqlalchemy.Column("id", sqlalchemy.Integer))'
    env = folder / "migrations" / "env.py"
    text = env.read_text("utf-8").replace("target_metadata = None", models)
    assert text.count("context.configure(") == 2
    env.write_text(f"{line}\n" + text.replace("context.configure(", f"context.configure({argument}, "), "utf-8")
    return env


@pytest.mark.parametrize("with_our_filter", [True, False])
def test_a_revision_of_a_project_that_follows_the_docs_leaves_our_tables_alone(
    with_our_filter: bool, new: Makers, tmp_path: Path
) -> None:
    """Without the filter it proposes to drop them: else the test would pass by seeing nothing."""
    shop = tmp_path / "shop"
    env = project(shop, new("sqlite"))
    if not with_our_filter:
        env.write_text(env.read_text("utf-8").replace(f"{shown_in_the_docs()[1]}, ", ""), "utf-8")

    alembic(shop, "revision", "--autogenerate", "-m", "first")

    [written] = (shop / "migrations" / "versions").glob("*_first.py")
    text = written.read_text("utf-8")
    assert "op.create_table('customer'" in text
    assert ("perdure" in text) is not with_our_filter


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
