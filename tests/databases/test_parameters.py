"""Parameters of the user's own statements: `:name` means the same on every database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import JobContext, Perdure
from perdure.store.transaction import MYSQL, POSTGRES, by_name
from tests.worker.bodies import ran


@pytest.fixture(
    params=[
        pytest.param("sqlite"),
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=pytest.mark.mariadb),
    ]
)
def app(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Perdure]:
    sort = request.param
    url = str(tmp_path / "jobs.db") if sort == "sqlite" else request.getfixturevalue(f"{sort}_server").new_database()
    app = Perdure(url, auto_migrate=True)
    yield app
    app.close()


def test_names_are_written_one_way_on_every_database(app: Perdure) -> None:
    def body(ctx: JobContext) -> None:
        with ctx.transaction() as tx:
            rows = [{"id": 1, "item": "50 % of :item"}, {"id": 2, "item": None}]
            tx.executemany("INSERT INTO orders (id, item) VALUES (:id, :item) /* :id % */", rows)
            tx.execute("UPDATE orders SET item = 'a:id 7%' WHERE id = :id AND :id = :id -- :id %\n", {"id": 2})

    with app.transaction() as tx:  # nothing is written yet, so that MariaDB can commit it by itself
        tx.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, item VARCHAR(20))")
    assert ran(app, "plain", body).state == "completed"
    with app.transaction() as tx:
        found: Any = [tx.execute("SELECT item FROM orders WHERE id = :n", {"n": n}).fetchone() for n in (1, 2)]
        assert found == [("50 % of :item",), ("a:id 7%",)]
        assert tx.execute("SELECT count(*) FROM orders WHERE item LIKE '%7%'").fetchone() == (1,)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("SELECT :a::int, a[1:2], ':a', \":a\" /* :a /* :a */ :a */ -- :a", "SELECT %(a)s::int, a[1:2], "),
        ("SELECT $$ :a $$, :a", "SELECT $$ :a $$, %(a)s"),
        ("SELECT E'\\':a', :a%2", "SELECT E'\\':a', %(a)s%%2"),
        ("SELECT %(a)s, 'x:b'", "SELECT %(a)s, 'x:b'"),
        ("SELECT :ab, :é", "SELECT :ab, :é"),
        ("SELECT x::a", "SELECT x::a"),
    ],
)
def test_only_parameters_are_written_anew_for_postgres(written: str, meant: str) -> None:
    assert by_name(written, {"a": 1}, POSTGRES).startswith(meant)
    assert by_name(written, (1,), POSTGRES) == written


def test_only_parameters_are_written_anew_for_mysql() -> None:
    sql = "SELECT @x := :a, ':a\\':a', `:a`, \":a\" # :a\n, :a /* :a */, 1 % 2"
    meant = "SELECT @x := %(a)s, ':a\\':a', `:a`, \":a\" # :a\n, %(a)s /* :a */, 1 %% 2"
    assert by_name(sql, {"a": 1}, MYSQL) == meant
