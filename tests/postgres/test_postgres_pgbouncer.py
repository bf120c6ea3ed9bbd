"""Behind PgBouncer in transaction mode, where each transaction may be on another server connection."""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import asyncpg
import psycopg
import pytest

from perdure import JobContext, Perdure
from perdure.ops.doctor import examine, is_healthy
from perdure.store.postgres.bell import PostgresBell
from tests.needs import Need, need, program
from tests.postgres.conftest import declare
from tests.postgres.processes import at_once, enqueue_many_times, threads_at_once
from tests.worker.patience import eventually

pytestmark = pytest.mark.postgres

SERVER_CONNECTIONS = 3

SETTINGS = """
[databases]
* = host={server} user=postgres
[pgbouncer]
listen_addr =
unix_socket_dir = {folder}
auth_type = any
pool_mode = transaction
default_pool_size = {size}
max_client_conn = 500
"""


@pytest.fixture
def bounced(postgres_url: str) -> Iterator[str]:
    """The URL of the test's database through a PgBouncer with few server connections."""
    need(Need.PGBOUNCER)
    pgbouncer = str(program("pgbouncer"))
    server = Path(parse_qs(urlsplit(postgres_url).query)["host"][0])
    with tempfile.TemporaryDirectory(prefix="pgb-") as name:  # not tmp_path: a socket's path must be short
        folder = Path(name)
        folder.chmod(0o777)
        file = folder / "pgbouncer.ini"
        file.write_text(SETTINGS.format(server=server, folder=folder, size=SERVER_CONNECTIONS))
        as_owner = ["-u", server.owner()] if os.getuid() == 0 else []  # it refuses to run as root
        url = f"postgresql://postgres@/{urlsplit(postgres_url).path[1:]}?host={folder}&port=6432"
        with subprocess.Popen([pgbouncer, "-q", *as_owner, str(file)], stderr=subprocess.DEVNULL) as bouncer:
            try:
                eventually(lambda: bouncer.poll() is not None or _answers(url))
                assert bouncer.poll() is None, "pgbouncer did not start"
                yield url
            finally:
                bouncer.kill()


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.fixture
def app(bounced: str) -> Iterator[Perdure]:
    app = Perdure(bounced, auto_migrate=True)
    app.store.upgrade()
    yield app
    app.close()


def test_threads_and_processes_enqueue_and_a_worker_drains_them(app: Perdure, bounced: str) -> None:
    ids = {job for share in at_once(enqueue_many_times, bounced, 40, processes=3) for job in share}
    send = declare(app)
    with app.worker(concurrency=10).running():
        shares = threads_at_once(lambda: [str(send.enqueue(str(n)).id) for n in range(40)], 6)
        ids |= {job for share in shares for job in share}
        assert len(ids) == 3 * 40 + 6 * 40
        eventually(lambda: sum(1 for _ in app.jobs(state="completed")) == len(ids))
    assert {str(job.id) for job in app.jobs(state="completed")} == ids
    assert is_healthy(examine(app.store))


def test_verbs_and_transactions_work_again_and_again(app: Perdure, bounced: str) -> None:
    """Often enough for anything to be prepared that ever is, on connections that change under it."""
    send = declare(app)

    def live_through() -> None:
        for n in range(10):
            job = send.options(tags=["x"], business_key=f"b{os.urandom(8).hex()}").enqueue(str(n))
            app.pause(job)
            app.resume(job)
            app.set_priority(job, 3)
            with app.transaction() as tx:
                tx.execute("SELECT %s::int", (n,))
                app.cancel(job)
            assert app.retry(job).state == "queued"
            with psycopg.connect(bounced, prepare_threshold=0) as own:
                app.cancel(job, tx=own)

    threads_at_once(live_through, 6)
    assert sum(1 for _ in app.jobs(state="cancelled")) == 60
    assert is_healthy(examine(app.store))


def test_asynchronous_connections_share_server_connections(app: Perdure, bounced: str) -> None:
    """As the documentation of asyncpg says, without its cache of statements. The app has opened its own connection
    before the others take all that there are: it is needed once, to see that theirs lead to the same database."""
    send = declare(app)
    assert list(app.jobs()) == []

    async def on_asyncpg(number: int) -> None:
        connection = await asyncpg.connect(bounced, statement_cache_size=0)
        for n in range(5):
            async with connection.transaction():
                await send.options(tx=connection, tags=["x"]).aenqueue(f"{number} {n}")
        await connection.close()

    async def on_psycopg(number: int) -> None:
        async with await psycopg.AsyncConnection.connect(bounced) as connection:
            for n in range(5):
                await send.options(tx=connection, tags=["x"]).aenqueue(f"{number} {n}")
                await connection.commit()

    async def main() -> None:
        await asyncio.gather(*(way(number) for number in range(10) for way in (on_asyncpg, on_psycopg)))

    asyncio.run(main())
    assert len(list(app.jobs(tag="x"))) == 100
    assert is_healthy(examine(app.store))


def test_a_handlers_own_transaction_ends_its_job(app: Perdure) -> None:
    with app.transaction() as tx:
        tx.execute("CREATE TABLE orders (n INT)")

    @app.job
    def order(ctx: JobContext, n: int) -> None:
        ctx.log.info("order %d", n)
        with ctx.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES (%s)", (n,))

    order.enqueue_many([{"n": n} for n in range(30)])
    assert app.worker(concurrency=5).run(until_idle=True) == 0
    with app.transaction() as tx:
        assert tx.execute("SELECT COUNT(*) FROM orders").fetchone() == (30,)


def test_without_a_pooler_statements_are_prepared(postgres_url: str) -> None:
    """They are a good part of the speed, so only who needs it does without."""
    app = Perdure(postgres_url, auto_migrate=True)
    send = declare(app)
    for n in range(10):
        send.enqueue(str(n))
    with app.transaction() as tx:
        assert tx.execute("SELECT COUNT(*) > 0 FROM pg_prepared_statements").fetchone() == (True,)
    app.close()


def test_a_worker_is_told_how_to_listen_and_polls(app: Perdure, caplog: pytest.LogCaptureFixture) -> None:
    send = declare(app)
    with caplog.at_level(logging.WARNING, "perdure.worker"), app.worker().running():
        job = send.enqueue("a")
        eventually(lambda: app.existing(job).state == "completed")
        eventually(lambda: "pooler" in caplog.text)
    (said,) = [record.getMessage() for record in caplog.records if "pooler" in record.getMessage()]
    assert "listen_url=" in said


def test_with_a_direct_url_to_listen_on_a_worker_is_woken(bounced: str, app: Perdure, postgres_url: str) -> None:
    both = Perdure(bounced, listen_url=postgres_url)
    bell = both.store.bell()
    assert isinstance(bell, PostgresBell)
    eventually(lambda: bell.listens)
    while bell.wait(0.1):  # marked, and all that was under way has ended
        pass
    declare(both).enqueue("a")
    assert bell.wait(60)
    bell.close()
    both.close()
