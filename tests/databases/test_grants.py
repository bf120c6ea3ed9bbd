"""Users of a database server with the rights that `perdure db grants` prints: each does its part, and nothing else."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any
from urllib.parse import quote

import psycopg
import pytest

from perdure import Job, Limit, Perdure, PerdureError, Rate, previous
from perdure.ops.doctor import examine
from perdure.ops.explain import explain
from perdure.ops.status import status
from perdure.store.grants import on_mysql, on_postgres
from perdure.store.open import open_store
from perdure.store.rows import Fact, Verdict
from perdure.store.store import SqlStore
from tests.app import by_hand
from tests.mariadb_server import MariaDBServer
from tests.postgres_server import PostgresServer


class Postgres:
    """A database of PostgreSQL, and its users."""

    prefix = "perdure."
    told = "permission denied for schema perdure"

    def __init__(self, server: PostgresServer) -> None:
        self.url = server.new_upgraded()

    def run(self, statements: Sequence[str]) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            for statement in statements:
                connection.execute(statement.encode())

    def add(self, user: str) -> str:
        """The URL of a new user without rights."""
        self.run([f"CREATE ROLE {user} LOGIN"])
        return self.url.replace("//postgres:", f"//{user}:")

    def remove(self, user: str) -> None:
        self.run([f"DROP OWNED BY {user}", f"DROP ROLE {user}"])

    def grant(self, user: str, purpose: str) -> None:
        self.run(list(on_postgres(user, purpose)))

    def connect(self, url: str) -> Any:
        return psycopg.connect(url)


class MariaDB:
    """A database of MariaDB, and its users."""

    prefix = "perdure_"
    told = "perdure_schema_version"

    def __init__(self, server: MariaDBServer, url: str) -> None:
        self._server = server
        self.url = url

    def run(self, statements: Sequence[str]) -> None:
        with closing(self._server.connect(self.url, autocommit=True)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def add(self, user: str) -> str:
        """The URL of a new user who may only connect."""
        self.run([f"CREATE USER {user}", "CREATE TABLE IF NOT EXISTS other (id INTEGER)"])
        self.run([f"GRANT SELECT ON other TO {user}"])
        return self.url.replace("//root@", f"//{user}@")

    def remove(self, user: str) -> None:
        self.run([f"DROP USER {user}"])

    def grant(self, user: str, purpose: str) -> None:
        self.run(list(on_mysql(f"{user}@%", purpose)))

    def connect(self, url: str) -> Any:
        return self._server.connect(url)


Place = Postgres | MariaDB
Login = Callable[[str], Perdure]


@pytest.fixture(
    params=[pytest.param("postgres", marks=pytest.mark.postgres), pytest.param("mariadb", marks=pytest.mark.mariadb)]
)
def place(request: pytest.FixtureRequest) -> Place:
    server = request.getfixturevalue(f"{request.param}_server")
    place = Postgres(server) if request.param == "postgres" else MariaDB(server, request.getfixturevalue("mariadb_url"))
    upgrade(place)
    return place


def upgrade(place: Place) -> None:
    store = open_store(place.url)
    store.upgrade()
    store.close()


@pytest.fixture
def owner(place: Place) -> Iterator[Perdure]:
    app = declared(place.url)
    yield app
    app.close()


@pytest.fixture
def login(place: Place) -> Iterator[Login]:
    """An app of a new user with the rights for a purpose; for `nothing`, without any."""
    apps: dict[str, Perdure] = {}

    def as_user(purpose: str) -> Perdure:
        user = f"{purpose}_{uuid.uuid4().hex[:16]}"
        apps[user] = declared(place.add(user))
        if purpose != "nothing":
            place.grant(user, purpose)
        return apps[user]

    yield as_user
    for user, app in apps.items():
        app.close()
        place.remove(user)


def declared(url: str) -> Perdure:
    app = Perdure(url)

    @app.job(queue="mail")
    def send(to: str = "ann") -> str:
        return to

    return app


def refused(call: Callable[[], Any]) -> PerdureError:
    with pytest.raises(PerdureError) as error:
        call()
    assert error.value.code == "permission_denied"
    assert "perdure db grants" in error.value.message
    return error.value


# -- who may only enqueue --------------------------------------------------------------------------------------------


def test_an_enqueuer_enqueues_in_every_way(owner: Perdure, login: Login) -> None:
    web = login("enqueue")

    first = web.enqueue("send", tags=["a", "b"], idempotency_key="once", business_key="order-1", priority=3)
    again = web.enqueue("send", idempotency_key="once", business_key="order-1", tags=["a", "b"], priority=3)
    returned = web.enqueue("send", business_key="order-1", conflict="return")
    many = [web.enqueue("send", queue="new", delay=delay) for delay in (0, 60)]
    with web.transaction():
        many.append(web.enqueue("send"))

    assert (again.id, again.deduplicated, returned.id) == (first.id, True, first.id)
    assert {job.id for job in owner.jobs()} == {first.id, *(job.id for job in many)}


def test_an_enqueuer_enqueues_in_its_own_transaction(place: Place, owner: Perdure, login: Login) -> None:
    web = login("enqueue")
    with closing(place.connect(web.url)) as connection:
        keyed = web.enqueue("send", business_key="b", idempotency_key="i", tags=["a"], tx=connection)
        again = web.enqueue("send", business_key="b", idempotency_key="i", tags=["a"], tx=connection)
        many = web.enqueue_many([web.kinds.get("send").new(to) for to in ("ann", "bob")], tx=connection)
        connection.commit()

    assert again.id == keyed.id
    assert {job.id for job in owner.jobs()} == {keyed.id, *(job.id for job in many)}


def test_an_enqueuer_enqueues_whole_flows(owner: Perdure, login: Login) -> None:
    web = login("enqueue")
    send = web.kinds.get("send").new

    chain = web.chain(send("ann"), send(to=previous))
    group = web.group([send("ann"), send("bob")], key="both")
    with web.workflow("orders") as graph:
        first = graph.add(send("ann"))
        more = graph.batch("more", filled_by=first)
        graph.add(send("bob"), after=[first, more], on="end")

    assert [flow.total for flow in (chain, group)] == [2, 2]
    assert {flow.id for flow in owner.flows.list()} == {chain.id, group.id, graph.id}
    assert len(list(owner.jobs(state="blocked"))) == 2


def test_an_enqueuer_enqueues_jobs_with_limits_and_rates(owner: Perdure, login: Login) -> None:
    web = login("enqueue")
    limits = [Limit("gpu", 4, weight=2), Limit("tenant", 1, by="to")]
    web.limits.declare(*limits, Rate("calls", 10, per=60))
    send = web.kinds.get("send").options(limit=limits, rate=Rate("calls", 10, per=60))

    alone = send.enqueue("ann")
    many = web.enqueue_many([send.new("bob"), send.new("cid")])
    chain = web.chain(send.new("ann"), send.new("bob"))

    assert {job.state for job in (alone, *many)} == {"held"}
    assert chain.total == 2
    assert len(list(owner.jobs(state="held"))) == 4


def test_an_enqueuer_enqueues_jobs_with_limits_in_queues_that_are_new(owner: Perdure, login: Login) -> None:
    for app in (owner, web := login("enqueue")):

        @app.job(limit=Limit("tenant", 1, by="to"), rate=Rate(5, per=3600))
        def scarce(to: str) -> None: ...

    owner.limits.set("tenant", 1, new=True)
    jobs = [web.enqueue("scarce", {"to": "ann"}, queue=f"of {number}") for number in range(3)]

    by_hand.claim(owner, "of 0")
    assert [web.existing(job).state for job in jobs] == ["running", "held", "held"]


MORE_THAN_NEW: dict[str, Callable[[Perdure, Job], Any]] = {
    "after a job": lambda web, job: web.enqueue("send", after=job),
    "batch": lambda web, _: web.batch("all").__enter__(),
    "at once": lambda web, _: web.group([web.kinds.get("send").new()], at_once=1),
}


@pytest.mark.parametrize("what", MORE_THAN_NEW)
def test_an_enqueuer_is_told_what_needs_the_right_to_work(what: str, owner: Perdure, login: Login) -> None:
    job = owner.enqueue("send")
    web = login("enqueue")

    error = refused(lambda: MORE_THAN_NEW[what](web, job))

    assert "batches, at_once=, and after= what is there already need work" in error.message
    assert [one.id for one in owner.jobs()] == [job.id]
    assert list(owner.flows.list()) == []


def test_an_enqueuer_uses_a_key_again_whose_job_has_ended(owner: Perdure, login: Login) -> None:
    web = login("enqueue")
    web.enqueue("send", business_key="b")
    assert by_hand.complete(owner, queue="mail") == 1

    assert web.enqueue("send", business_key="b").state == "queued"


def test_an_enqueuer_waits_for_its_job_and_reads_it(owner: Perdure, login: Login) -> None:
    web = login("enqueue")
    job = web.enqueue("send")
    assert by_hand.complete(owner, '"ann"', queue="mail") == 1

    assert web.wait(job, timeout=10).result == "ann"
    found = web.get(job.id)
    assert found is not None
    assert found.state == "completed"


@pytest.mark.parametrize("what", ["claim", "cancel", "pause", "delete", "queue", "worker"])
def test_an_enqueuer_does_nothing_else(what: str, owner: Perdure, login: Login) -> None:
    web = login("enqueue")
    job = web.enqueue("send")
    verbs: dict[str, Callable[[], Any]] = {
        "claim": lambda: by_hand.claim(web, "mail"),
        "cancel": lambda: web.cancel(job),
        "pause": lambda: web.pause(job),
        "delete": lambda: web.delete(job),
        "queue": lambda: web.queues.pause("mail"),
        "worker": lambda: web.worker().run(until_idle=True),
    }
    if what == "delete":
        owner.cancel(job)

    refused(verbs[what])

    assert owner.store.nodes(1) == []


# -- who may only read -----------------------------------------------------------------------------------------------


def test_a_reader_looks_at_everything(owner: Perdure, login: Login) -> None:
    job = owner.enqueue("send")
    by_hand.fail(owner, queue="mail")
    owner.limits.set("tenant", 1, new=True)
    chain = owner.chain(owner.kinds.get("send").options(queue="other").new("ann"))
    owner.cancel(chain)
    reader = login("read")

    assert status(reader.store, reader.clock.now()) is not None
    assert [one.id for one in reader.jobs(queue="mail")] == [job.id]
    assert explain(reader.store, reader.existing(job), reader.clock.now()) is not None
    assert len(list(reader.runs())) == 1
    assert [queue.name for queue in reader.queues.list()] == ["mail", "other"]
    assert [limit.name for limit in reader.limits.list()] == ["tenant"]
    assert reader.limits.show("tenant") is not None
    assert list(reader.flows.jobs(chain)) != []
    assert examine(reader.store) == []


@pytest.mark.parametrize("what", ["enqueue", "claim", "cancel", "retry"])
def test_a_reader_changes_nothing(what: str, owner: Perdure, login: Login) -> None:
    job = owner.enqueue("send")
    if what == "retry":
        owner.cancel(job)
    reader = login("read")
    verbs: dict[str, Callable[[], Any]] = {
        "enqueue": lambda: reader.enqueue("send"),
        "claim": lambda: by_hand.claim(reader, "mail"),
        "cancel": lambda: reader.cancel(job),
        "retry": lambda: reader.retry(job),
    }

    refused(verbs[what])


def test_who_has_no_rights_is_told_what_to_grant(place: Place, login: Login) -> None:
    error = refused(login("nothing").queues.list)

    assert place.told in error.message


@pytest.mark.mariadb
def test_who_may_not_even_use_the_database_of_mariadb_is_told_too(
    mariadb_server: MariaDBServer, mariadb_url: str
) -> None:
    mariadb_server.execute("CREATE USER outsider")
    outsider = declared(mariadb_url.replace("//root@", "//outsider@"))

    refused(outsider.queues.list)

    outsider.close()
    mariadb_server.execute("DROP USER outsider")


@pytest.mark.mariadb
def test_an_odd_name_of_a_user_is_quoted(mariadb_server: MariaDBServer, mariadb_url: str) -> None:
    place = MariaDB(mariadb_server, mariadb_url)
    upgrade(place)
    name = "o'b`r\\i\"en@home"
    mariadb_server.execute("CREATE USER `o'b``r\\i\"en@home`@localhost")

    place.run(list(on_mysql(f"{name}@localhost", "read")))

    with closing(mariadb_server.connect(mariadb_url.replace("//root@", f"//{quote(name, safe='')}@"))) as connection:
        assert connection.cursor().execute("SELECT COUNT(*) FROM perdure_job") == 1
    mariadb_server.execute("DROP USER `o'b``r\\i\"en@home`@localhost")


# -- who works -------------------------------------------------------------------------------------------------------


def test_a_worker_runs_jobs_and_repairs(owner: Perdure, login: Login) -> None:
    job = owner.enqueue("send")
    worker = login("work")

    worker.worker(poll_s=0.02).run(until_idle=True)
    with worker.reserve("mail", wait=5):
        pass
    worker.store.repair("raise_queue_counters", worker.clock.now(), worker.ids, 10)

    assert worker.wait(job, timeout=1).result == "ann"


@pytest.mark.parametrize("purpose", ["read", "enqueue", "work"])
def test_only_the_owner_upgrades(purpose: str, place: Place, login: Login) -> None:
    recorded = f"{place.prefix}schema_version"
    place.run([f"CREATE TABLE kept AS SELECT * FROM {recorded}", f"DELETE FROM {recorded}"])

    refused(login(purpose).store.upgrade)

    place.run([f"INSERT INTO {recorded} SELECT * FROM kept"])


# -- who asks --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("purpose", "able"), [("read", "read"), ("enqueue", "read, enqueue"), ("work", "read, enqueue, work")]
)
def test_a_check_says_what_its_user_may(purpose: str, able: str, login: Login) -> None:
    found = facts(login(purpose))

    assert found["user"].value.endswith(f"who may {able}")
    assert [fact for fact in found.values() if fact.verdict is Verdict.PROBLEM] == []


def test_the_owner_may_upgrade_too(owner: Perdure) -> None:
    assert facts(owner)["user"].value.endswith("who may read, enqueue, work, upgrade")


@pytest.mark.parametrize("purpose", ["read", "enqueue", "work"])
def test_a_check_notices_a_single_right_that_is_missing(purpose: str, place: Place, login: Login) -> None:
    app = login(purpose)
    user = app.url.split("//")[1].partition("@")[0].partition(":")[0]
    place.run([f"REVOKE SELECT ON {place.prefix}archive FROM {user}"])

    found = facts(app)["user"]

    assert found.verdict is Verdict.PROBLEM
    assert "perdure db grants" in found.note


def facts(app: Perdure) -> dict[str, Fact]:
    assert isinstance(app.store, SqlStore)
    return {fact.name: fact for fact in app.store.facts()}
