"""`perdure status` names what keeps PostgreSQL from removing dead rows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from perdure import Perdure
from perdure.ops.forms import status_json
from perdure.ops.status import remedy, status
from perdure.store.rows import Hindrance

pytestmark = pytest.mark.postgres


@pytest.fixture
def other(app: Perdure, postgres_url: str) -> Iterator[psycopg.Connection[Any]]:
    app.store.upgrade()
    with psycopg.connect(postgres_url, application_name="report") as connection:
        yield connection
        connection.rollback()


def named(app: Perdure) -> dict[str, Hindrance]:
    return {found.who: found for found in app.store.hindrances(0, 10**9)}


def test_a_transaction_with_a_snapshot_is_named_by_its_process(app: Perdure, other: psycopg.Connection[Any]) -> None:
    pid = str(other.info.backend_pid)
    assert pid not in named(app)
    other.execute("CREATE TABLE mine (n integer)")
    found = named(app)[pid]
    assert (found.sort, found.detail) == ("transaction", "idle in transaction, report")
    assert f"pg_terminate_backend({pid})" in remedy(found)
    shown = status_json(status(app.store, app.clock.now())._replace(hindrances=[found]))["hindrances"]
    assert isinstance(shown, list)
    assert list(shown[0]) == ["sort", "who", "open_s", "detail", "remedy"]
    other.rollback()
    assert pid not in named(app)


def test_a_short_transaction_is_not_told(app: Perdure, other: psycopg.Connection[Any]) -> None:
    other.execute("CREATE TABLE mine (n integer)")
    assert status(app.store, app.clock.now()).hindrances == []


def test_a_table_with_more_dead_than_live_rows_is_named(
    app: Perdure, send: Any, other: psycopg.Connection[Any]
) -> None:
    other.autocommit = True
    other.execute("ALTER TABLE perdure.ready SET (autovacuum_enabled = off)")
    jobs = send.enqueue_many([{"to": str(n)} for n in range(30)])
    for job in jobs:
        app.cancel(job)
    app.close()  # a server process tells its counts at its end
    while not (found := [row for row in app.store.hindrances(300, 10) if row.sort == "dead_rows"]):
        pass
    assert found[0].who == "ready"
    assert "VACUUM" in remedy(found[0])
