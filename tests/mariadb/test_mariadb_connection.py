"""How MariaDB is reached, what a worker does on it, and what happens when the server takes a connection away."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import pytest

from perdure import ConfigError, DatabaseUnavailable, Perdure
from perdure.clock import ServerClock
from perdure.store.engine import Serialization
from perdure.store.mysql.session import MySQLServer, _flavour
from perdure.store.mysql.statements import Flavour
from perdure.store.open import open_store
from perdure.store.protocols import Locked, StoreSettings
from perdure.store.server import ATTEMPTS
from perdure.testing.contract.rig import Rig
from tests.mariadb_server import MariaDBServer

pytestmark = pytest.mark.mariadb


@pytest.mark.parametrize(
    "url",
    [
        "mysql://",
        "mysql://host",
        "mysql://user:secret@host:port/db",
        "mysql://u:secret@h/a/b",
        "mysql://u:secret@h/db?x=1",
    ],
)
def test_a_url_that_cannot_be_read_is_refused_without_its_password(url: str) -> None:
    with pytest.raises(ConfigError) as refused:
        MySQLServer(url, StoreSettings())
    assert (refused.value.code, "secret" in str(refused.value)) == ("url_invalid", False)


def test_a_url_says_where_the_database_is() -> None:
    server = MySQLServer("mysql+pymysql://me:p%40ss@db.example:3307/jobs", StoreSettings())
    assert server.shown == "MariaDB/MySQL database jobs on db.example:3307"


def test_a_local_socket_is_not_encrypted(mariadb_server: MariaDBServer) -> None:
    """PyMySQL 1.2 prepares that for every connection, and reads all certificates of the system each time."""
    server = MySQLServer(mariadb_server.new_database(), StoreSettings())
    with closing(server.connect(ServerClock(lambda: None))) as session:
        assert not session.connection.ssl


def test_a_server_that_is_not_there_is_named_without_the_password() -> None:
    store = open_store("mysql://me:secret@127.0.0.1:1/jobs")
    with pytest.raises(DatabaseUnavailable) as refused:
        store.upgrade()
    assert (refused.value.code, "secret" in str(refused.value)) == ("database_unreachable", False)


@pytest.mark.parametrize("version", ["5.7.44-log", "5.5.5-10.5.27-MariaDB", "10.4.2-MariaDB-1:10.4", "unknown"])
def test_a_server_that_is_too_old_is_refused(version: str) -> None:
    with pytest.raises(DatabaseUnavailable) as refused:
        _flavour(version)
    assert (refused.value.code, version in refused.value.message) == ("server_too_old", True)


def test_a_server_is_told_by_its_version() -> None:
    known = ["8.0.36", "8.4.0", "9.1.0", "5.5.5-10.6.1-MariaDB", "11.4.2-MariaDB-ubu2404"]
    assert [_flavour(version) for version in known] == [Flavour.MYSQL] * 3 + [Flavour.MARIADB] * 2


# -- a connection taken away -----------------------------------------------------------------------------------------


def test_connections_killed_while_idle_are_replaced(app: Perdure, send: Any, mariadb_server: MariaDBServer) -> None:
    send.enqueue("a")
    kill_all(mariadb_server)
    send.enqueue("b")
    assert len(list(app.jobs())) == 2


def test_a_transaction_whose_connection_is_killed_leaves_nothing(
    app: Perdure, send: Any, mariadb_server: MariaDBServer
) -> None:
    send.enqueue("first")
    with pytest.raises(Exception, match="lost"), app.transaction():
        send.enqueue("a")
        kill_all(mariadb_server)
        send.enqueue("b")
    assert [job.payload for job in app.jobs()] == [{"to": "first"}]


def kill_all(server: MariaDBServer) -> None:
    with closing(server.connect()) as connection, connection.cursor() as cursor:
        cursor.execute("SELECT id FROM information_schema.processlist WHERE id <> CONNECTION_ID() AND user = 'root'")
        for (number,) in cursor.fetchall():
            cursor.execute(f"KILL {number}")


# -- whoever has to give way -----------------------------------------------------------------------------------------


@pytest.fixture
def grief(app: Perdure, mariadb_server: MariaDBServer, mariadb_url: str) -> Iterator[Grief]:
    app.store.upgrade()
    with closing(mariadb_server.connect(mariadb_url, autocommit=True)) as connection, connection.cursor() as cursor:
        grief = Grief(cursor)
        yield grief
        grief.end()


class Grief:
    """Lets inserts of a job come to grief; a table without transactions counts them, whatever is rolled back."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def comes_to_the_first(self, times: int, number: int) -> None:
        self._cursor.execute("CREATE TABLE tries (n INTEGER) ENGINE = MyISAM")
        self._cursor.execute(
            f"""CREATE TRIGGER grief AFTER INSERT ON perdure_job FOR EACH ROW BEGIN
                INSERT INTO tries VALUES (1);
                IF (SELECT COUNT(*) FROM tries) <= {times} THEN
                    SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = {number}, MESSAGE_TEXT = 'not now';
                END IF; END"""
        )

    @property
    def tries(self) -> int:
        self._cursor.execute("SELECT COUNT(*) FROM tries")
        return int(self._cursor.fetchone()[0])

    def end(self) -> None:
        self._cursor.execute("DROP TRIGGER IF EXISTS grief")


@pytest.mark.parametrize("number", [1213, 1020], ids=["deadlock", "record has changed"])
def test_what_had_to_give_way_is_run_again(app: Perdure, send: Any, grief: Grief, number: int) -> None:
    grief.comes_to_the_first(2, number)
    job = send.options(idempotency_key="k", tags=["t"]).enqueue("a")
    assert (grief.tries, list(app.jobs())) == (3, [job])


def test_nobody_tries_for_ever(app: Perdure, send: Any, grief: Grief) -> None:
    grief.comes_to_the_first(1_000, 1213)
    with pytest.raises(Serialization):
        send.enqueue("a")
    assert (grief.tries, list(app.jobs())) == (ATTEMPTS, [])


# -- workers ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def strict(mariadb_server: MariaDBServer) -> Iterator[None]:
    """New connections begin with the strictest isolation, and in an sql_mode that reads texts otherwise."""
    mariadb_server.execute("SET GLOBAL TRANSACTION ISOLATION LEVEL SERIALIZABLE")
    mariadb_server.execute("SET GLOBAL sql_mode = 'ANSI,NO_BACKSLASH_ESCAPES,ONLY_FULL_GROUP_BY'")
    yield
    mariadb_server.execute("SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    mariadb_server.execute("SET GLOBAL sql_mode = DEFAULT")


@pytest.mark.usefixtures("strict")
def test_16_claimers_take_every_job_once_whatever_the_server_is_set_to(mariadb_url: str) -> None:
    rig = Rig(mariadb_url)
    rig.store.upgrade()
    jobs = rig.enqueue_many(400)
    assert rig.node

    def claim_all(_number: int) -> list[bytes]:
        mine: list[bytes] = []
        while claims := rig.claim(7, node=rig.node):
            mine += [claim.job_id for claim in claims]
        return mine

    with ThreadPoolExecutor(16) as pool:
        taken = [job_id for mine in pool.map(claim_all, range(16)) for job_id in mine]
    rig.close()
    assert sorted(taken) == sorted(jobs)


@pytest.mark.usefixtures("strict")
def test_a_worker_runs_what_there_is(app: Perdure, send: Any) -> None:
    jobs = send.enqueue_many([{"to": f"it's \\ {n}"} for n in range(50)])
    app.worker(queues=["mail"]).run(until_idle=True)
    assert [app.existing(job).result for job in jobs] == [f"hi it's \\ {n}" for n in range(50)]


def test_a_claim_passes_over_a_queue_that_somebody_is_pausing(mariadb_url: str) -> None:
    rig = Rig(mariadb_url)
    rig.store.upgrade()
    job = rig.enqueue()
    assert rig.node
    with ThreadPoolExecutor(1) as pool:
        with rig.store.transaction():
            rig.store.pause_queue(rig.queue, rig.now)
            meanwhile = pool.submit(rig.claim).result()
            assert (meanwhile, pool.submit(rig.live, job).result().state) == ([], "queued")
        assert pool.submit(rig.claim).result() == []
    rig.store.pause_queue(rig.queue, None)
    assert [claim.job_id for claim in rig.claim()] == [job]
    rig.close()


def test_whoever_waits_too_long_for_a_lock_is_told(mariadb_url: str) -> None:
    rig, other = Rig(mariadb_url), open_store(mariadb_url, StoreSettings(busy_timeout_s=0.5))
    rig.store.upgrade()
    job = rig.enqueue()
    with ThreadPoolExecutor(1) as pool, rig.store.transaction():
        rig.cancel(job)
        with pytest.raises(Locked):
            pool.submit(other.retry, job, rig.now).result()
    other.close()
    rig.close()
