"""The schema on MariaDB: made once, restartable at every statement, refused when it is not the right one."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from perdure import DatabaseUnavailable, Limit, Perdure, Rate, SchemaError
from perdure.store import migrate
from perdure.store.mysql.statements import naming
from perdure.store.open import open_store
from perdure.store.store import SqlStore
from tests.mariadb_server import MariaDBServer

pytestmark = pytest.mark.mariadb


@pytest.fixture
def url(mariadb_server: MariaDBServer) -> Iterator[str]:
    """A database without any table."""
    url = mariadb_server.new_database()
    yield url
    mariadb_server.drop(url)


@pytest.fixture
def rows(mariadb_server: MariaDBServer, url: str) -> Iterator[Any]:
    """Asks the database."""
    with closing(mariadb_server.connect(url, autocommit=True)) as connection:

        def ask(sql: str) -> list[Any]:
            with connection.cursor() as cursor:
                cursor.execute(sql)
                return list(cursor.fetchall())

        yield ask


TO_LOCK = {
    *(f"{sort} {number}" for sort in ("queue", "order") for number in range(64)),
    *("claims", "reservations", "rooms of queues"),
}
"""The rows that are there to be locked."""


def shape(rows: Any) -> list[Any]:
    """Every column, index and view."""
    columns = "SELECT table_name, column_name, column_type, collation_name, is_nullable FROM information_schema.columns"
    indexes = "SELECT table_name, index_name, seq_in_index, column_name, non_unique FROM information_schema.statistics"
    here = "WHERE table_schema = DATABASE() ORDER BY 1, 2, 3, 4"
    return [*rows(f"{columns} {here}"), *rows(f"{indexes} {here}")]


def test_no_table_is_made_unless_asked(url: str, rows: Any) -> None:
    with closing(Perdure(url)) as app, pytest.raises(SchemaError) as refused:
        list(app.jobs())
    assert (refused.value.code, rows("SHOW TABLES")) == ("schema_missing", [])
    assert "perdure db upgrade" in refused.value.message


def test_many_who_begin_at_once_make_it_once(url: str, rows: Any) -> None:
    stores = [open_store(url) for _ in range(6)]
    with ThreadPoolExecutor(6) as pool:
        said = list(pool.map(lambda store: store.upgrade(), stores))
    for store in stores:
        store.close()
    revisions = [step.revision for step in migrate.migrations_of("mysql")]
    assert sum(f"{len(revisions)} steps done" in text for text in said) == 1
    assert rows("SELECT revision FROM perdure_schema_version ORDER BY revision") == [(number,) for number in revisions]


def test_an_upgrade_killed_after_any_statement_is_finished_by_the_next(
    mariadb_server: MariaDBServer, url: str, rows: Any, full_size: bool
) -> None:
    steps = [migrate.statements_of(step, naming(mariadb_server.flavour)) for step in migrate.migrations_of("mysql")]
    statements = [statement for step in steps for statement in step]
    ends = [sum(map(len, steps[: number + 1])) for number in range(len(steps))]
    store = open_store(url)
    store.upgrade()
    whole = shape(rows)
    rows(f"SET NAMES utf8mb4 COLLATE {mariadb_server.flavour.collation}")  # as the store's own connection has it
    name = url.split("/")[3].split("?", maxsplit=1)[0]
    for done in range(0, len(statements), 1 if full_size else 5):
        rows(f"DROP DATABASE {name}")
        rows(f"CREATE DATABASE {name}")
        rows(f"USE {name}")
        for statement in statements[:done]:  # as far as the one that was killed has come
            rows(statement)
        left = sum(done < end for end in ends)
        assert f"{left} step{'s' * (left > 1)} done" in open_store(url).upgrade()
        assert shape(rows) == whole
        assert {name for (name,) in rows("SELECT name FROM perdure_mutex")} == TO_LOCK
    store.close()


def test_an_upgrade_that_is_refused_says_where_it_stopped_and_how_to_go_on(url: str, rows: Any) -> None:
    rows("CREATE TABLE perdure_jobs (id INTEGER)")  # where a view is to be
    with closing(Perdure(url)) as app, pytest.raises(Exception, match=r"statement .* of schema step 3") as refused:
        app.store.upgrade()
    assert "perdure db upgrade again" in str(refused.value)
    rows("DROP TABLE perdure_jobs")
    with closing(Perdure(url)) as app:
        assert f"{len(migrate.migrations_of('mysql'))} steps done" in app.store.upgrade()


def test_a_newer_schema_is_refused(url: str, rows: Any) -> None:
    open_store(url).upgrade()
    rows("INSERT INTO perdure_schema_version VALUES (9999, 'later', '', 0, '')")
    with closing(Perdure(url)) as app, pytest.raises(SchemaError) as refused:
        list(app.jobs())
    assert refused.value.code == "schema_newer"


def test_names_are_told_apart_by_every_letter_and_space(url: str) -> None:
    with closing(Perdure(url, auto_migrate=True)) as app:

        @app.job
        def send() -> None: ...

        queues = ["a", "A", "a ", "ä", "ａ", "a😀", "a😁"]
        for queue in queues:
            send.options(queue=queue, idempotency_key=queue, business_key=queue, tags=[queue]).enqueue()

        assert [row.name for row in app.queues.list()] == sorted(queues)
        assert [len(list(app.jobs(tag=queue))) for queue in queues] == [1] * len(queues)


def test_names_as_long_as_the_library_takes_them_find_room(url: str) -> None:
    with closing(Perdure(url, auto_migrate=True)) as app:

        @app.job(name="ä" * 128, queue="q" * 128, limit=Limit(1, by="tenant"), rate=Rate(1, per=3600, by="tenant"))
        def crunch(tenant: str) -> None: ...

        for _ in range(2):
            crunch.enqueue("t" * 100)
        app.worker().run(until_idle=True)

        [waiting] = app.jobs(state="held")
        assert waiting.queue == "q" * 128
        assert sorted(limit.name for limit in app.limits.list()) == ["ä" * 128, "ä" * 128 + ":rate"]


def test_an_index_that_was_taken_away_is_missed(url: str, rows: Any) -> None:
    open_store(url).upgrade()
    rows("DROP INDEX ready_line ON perdure_ready")
    with closing(open_store(url)) as store:
        assert isinstance(store, SqlStore)
        [found] = [fact for fact in store.facts() if fact.name == "objects"]
    assert (found.value, found.verdict) == ("missing: index ready_line", "problem")


def test_people_see_ids_and_times_in_the_views(url: str, rows: Any) -> None:
    with closing(Perdure(url, auto_migrate=True)) as app:

        @app.job
        def send() -> None: ...

        job = send.enqueue()
        created = job.created_at.isoformat(timespec="microseconds").replace("+00:00", "Z")

        assert rows("SELECT id, state, created_at, finished_at, node_id FROM perdure_jobs") == [
            (str(job.id), "queued", created, None, None)
        ]


def test_a_user_without_rights_learns_what_is_missing(mariadb_server: MariaDBServer, url: str) -> None:
    name = url.split("/")[3].split("?", maxsplit=1)[0]
    open_store(url).upgrade()
    mariadb_server.execute("CREATE USER reader@localhost IDENTIFIED BY 'it''s'")
    try:
        mariadb_server.execute(f"GRANT SELECT ON {name}.* TO reader@localhost")
        with closing(Perdure(url.replace("root@", "reader:it%27s@"))) as app:

            @app.job
            def send() -> None: ...

            assert list(app.jobs()) == []
            with pytest.raises(Exception, match="perdure db grants --dialect mysql") as refused:
                send.enqueue()
            assert getattr(refused.value, "code", None) == "permission_denied"
    finally:
        mariadb_server.execute("DROP USER reader@localhost")


def test_a_replica_is_refused_for_writing(mariadb_server: MariaDBServer, url: str) -> None:
    """Whoever may write on one all the same is not stopped by the server: so not as root."""
    name = url.split("/")[3].split("?", maxsplit=1)[0]
    open_store(url).upgrade()
    mariadb_server.execute("CREATE USER shop@localhost")
    try:
        mariadb_server.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {name}.* TO shop@localhost")
        mariadb_server.execute("SET GLOBAL read_only = ON")
        with closing(Perdure(url.replace("root@", "shop@"))) as app:

            @app.job
            def send() -> None: ...

            assert list(app.jobs()) == []
            with pytest.raises(DatabaseUnavailable, match="primary") as refused:
                send.enqueue()
            assert refused.value.code == "database_readonly"
    finally:
        mariadb_server.execute("SET GLOBAL read_only = OFF")
        mariadb_server.execute("DROP USER shop@localhost")
