"""One DATABASE_URL for SQLAlchemy and for Perdure."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from sqlalchemy import create_engine, text

from perdure import Perdure
from perdure.store.open import dialect_of, open_store, sqlite_path
from perdure.store.postgres.session import options_of
from tests.mariadb_server import mariadb_server, mariadb_url
from tests.postgres_server import postgres_server, postgres_url

__all__ = ["mariadb_server", "mariadb_url", "postgres_server", "postgres_url"]


@pytest.mark.parametrize(
    ("url", "dialect"),
    [
        ("sqlite+aiosqlite:///jobs.db", "sqlite"),
        ("sqlite+pysqlite:///jobs.db", "sqlite"),
        ("postgresql+psycopg://host/db", "postgres"),
        ("postgresql+psycopg2://host/db", "postgres"),
        ("postgresql+asyncpg://host/db", "postgres"),
        ("postgres://host/db", "postgres"),
        ("mysql+pymysql://host/db", "mysql"),
        ("mysql+aiomysql://host/db?charset=utf8mb4", "mysql"),
        ("mariadb+asyncmy://host/db", "mysql"),
        ("oracle+oracledb://host/db", None),
    ],
)
def test_a_url_of_sqlalchemy_means_the_same_database(url: str, dialect: str | None) -> None:
    assert dialect_of(url) == dialect
    if dialect is not None:
        open_store(url).close()


def test_a_file_is_the_same_whatever_the_driver(tmp_path: Path) -> None:
    assert sqlite_path(f"sqlite+aiosqlite:///{tmp_path}/jobs.db") == tmp_path / "jobs.db"


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("ssl=require", {"sslmode": "require"}),
        ("prepared_statement_cache_size=0&sslmode=prefer", {"sslmode": "prefer"}),
    ],
)
def test_options_of_asyncpg_are_understood_or_left_out(query: str, expected: dict[str, str]) -> None:
    given = options_of(f"postgresql+asyncpg://ann:a%40b@host:5433/shop?{query}")
    assert given == {"user": "ann", "password": "a@b", "host": "host", "port": "5433", "dbname": "shop", **expected}


@pytest.mark.postgres
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_jobs_and_rows_are_in_one_postgresql(postgres_url: str, driver: str) -> None:
    url = with_driver(postgres_url, driver)
    app = Perdure(url, auto_migrate=True)
    app.queues.pause("mail")
    engine = create_engine(with_driver(postgres_url, "psycopg"))
    with engine.begin() as connection:
        assert connection.execute(text("SELECT count(*) FROM perdure.queue WHERE name = 'mail'")).scalar() == 1
    engine.dispose()
    app.close()


@pytest.mark.mariadb
def test_jobs_and_rows_are_in_one_mariadb(mariadb_url: str) -> None:
    app = Perdure(with_driver(mariadb_url, "aiomysql"), auto_migrate=True)
    app.queues.pause("mail")
    assert [row.name for row in app.queues.list()] == ["mail"]
    app.close()


def with_driver(url: str, driver: str) -> str:
    scheme = urlsplit(url).scheme
    return url.replace(scheme, f"{scheme}+{driver}", 1)
