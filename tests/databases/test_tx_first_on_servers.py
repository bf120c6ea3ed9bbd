"""`tx=` on a server without Perdure's tables: nothing is made unasked, and it says what to do. A missing table of the
user's is his own."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import psycopg
import pytest

from perdure import Perdure, PerdureError
from tests.mariadb_server import MariaDBServer
from tests.postgres_server import PostgresServer

SORTS = [
    pytest.param("postgres", marks=pytest.mark.postgres),
    pytest.param("mariadb", marks=pytest.mark.mariadb),
]


@pytest.fixture(params=SORTS)
def place(request: pytest.FixtureRequest) -> tuple[str, Any]:
    """A new database with the user's table in it, and how to connect."""
    server: PostgresServer | MariaDBServer = request.getfixturevalue(f"{request.param}_server")
    url = server.new_database()
    connect = psycopg.connect if isinstance(server, PostgresServer) else server.connect
    with closing(connect(url)) as connection:
        connection.cursor().execute("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
        connection.commit()
    return url, connect


def app_at(url: str, **knobs: Any) -> tuple[Perdure, Any]:
    app = Perdure(url, **knobs)

    @app.job
    def send(to: str) -> None: ...

    return app, send


def test_a_server_is_never_upgraded_unasked_and_the_error_says_what_to_do(place: tuple[str, Any]) -> None:
    url, connect = place
    app, send = app_at(url)
    with closing(connect(url)) as connection:
        connection.cursor().execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(PerdureError, match="run perdure db upgrade once") as raised:
            send.options(tx=connection).enqueue("a")
        assert raised.value.code == "schema_missing"
        connection.cursor().execute("INSERT INTO orders VALUES (2)")
        connection.commit()
    app.store.upgrade()
    with app.transaction() as tx:
        assert tx.execute("SELECT COUNT(*) FROM orders").fetchone() == (2,)
    app.close()


def test_one_that_may_be_upgraded_gets_the_tables_beside_the_open_transaction(place: tuple[str, Any]) -> None:
    url, connect = place
    app, send = app_at(url, auto_migrate=True)
    with closing(connect(url)) as connection:
        connection.cursor().execute("INSERT INTO orders VALUES (1)")
        send.options(tx=connection).enqueue("lost")
        connection.rollback()
        connection.cursor().execute("INSERT INTO orders VALUES (1)")
        send.options(tx=connection).enqueue("a")
        connection.commit()
    assert [job.payload for job in app.jobs()] == [{"to": "a"}]
    app.close()


def test_a_missing_table_of_the_users_is_not_ours(place: tuple[str, Any]) -> None:
    app, _ = app_at(place[0], auto_migrate=True)
    for table in ("nothing_here", "perdure_orders", "shop.nothing_here"):
        with pytest.raises(PerdureError, match=r"nothing_here|perdure_orders|shop") as raised, app.transaction() as tx:
            tx.execute(f"SELECT * FROM {table}")
        assert "no Perdure tables" not in str(raised.value)
        assert raised.value.code in ("store_error", "permission_denied", "database_unreachable")
    app.close()
