"""Roles of PostgreSQL with the rights that `perdure db grants` prints: each can do its part, and nothing else."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from perdure import Perdure, PerdureError
from perdure.ops.doctor import examine
from perdure.ops.explain import explain
from perdure.ops.status import status
from perdure.store.grants import on_postgres
from perdure.store.open import open_store
from tests.app import by_hand
from tests.postgres_server import PostgresServer

pytestmark = pytest.mark.postgres

Login = Callable[[str], Perdure]


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:
    url = postgres_server.new_database()
    store = open_store(url)
    store.upgrade()
    store.close()
    return url


@pytest.fixture
def owner(url: str) -> Iterator[Perdure]:
    app = declared(url)
    yield app
    app.close()


@pytest.fixture
def login(url: str) -> Iterator[Login]:
    """An app of a new role with the rights for a purpose."""
    apps: list[Perdure] = []

    def as_role(purpose: str) -> Perdure:
        role = f"{purpose}_{uuid.uuid4().hex}"
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"CREATE ROLE {role} LOGIN".encode())
            for statement in on_postgres(role, purpose):
                connection.execute(statement.encode())
        apps.append(declared(url.replace("//postgres:", f"//{role}:")))
        return apps[-1]

    yield as_role
    for app in apps:
        app.close()


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


def test_an_enqueuer_enqueues_in_its_own_transaction(url: str, owner: Perdure, login: Login) -> None:
    web = login("enqueue")
    with psycopg.connect(web.url) as connection:
        job = web.enqueue("send", business_key="b", tx=connection)
        connection.commit()

    assert owner.get(job.id) is not None


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


@pytest.mark.parametrize("what", ["claim", "cancel", "pause", "delete", "upgrade", "queue", "worker"])
def test_an_enqueuer_does_nothing_else(what: str, owner: Perdure, login: Login) -> None:
    web = login("enqueue")
    job = web.enqueue("send")
    verbs: dict[str, Callable[[], Any]] = {
        "claim": lambda: by_hand.claim(web, "mail"),
        "cancel": lambda: web.cancel(job),
        "pause": lambda: web.pause(job),
        "delete": lambda: web.delete(job),
        "upgrade": lambda: _newer_step(web),
        "queue": lambda: web.queues.pause("mail"),
        "worker": lambda: web.worker().run(until_idle=True),
    }
    if what == "delete":
        owner.cancel(job)

    refused(verbs[what])

    assert owner.store.nodes(1) == []


def _newer_step(app: Perdure) -> None:
    """What an upgrade does first."""
    with app.transaction() as tx:
        tx.execute("ALTER TABLE perdure.job ADD COLUMN mine integer")


# -- who may only read -----------------------------------------------------------------------------------------------


def test_a_reader_looks_at_everything(owner: Perdure, login: Login) -> None:
    job = owner.enqueue("send")
    by_hand.fail(owner, queue="mail")
    reader = login("read")

    assert status(reader.store, reader.clock.now()) is not None
    assert [one.id for one in reader.jobs()] == [job.id]
    assert explain(reader.store, next(iter(reader.jobs())), reader.clock.now()) is not None
    assert len(list(reader.runs())) == 1
    assert reader.queues.list()[0].name == "mail"
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


def test_who_has_no_rights_is_told_what_to_grant(url: str, owner: Perdure) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE ROLE stranger LOGIN")
    stranger = declared(url.replace("//postgres:", "//stranger:"))

    error = refused(stranger.queues.list)

    assert "schema perdure" in error.message
    stranger.close()


# -- who works -------------------------------------------------------------------------------------------------------


def test_a_worker_runs_jobs_and_repairs_but_does_not_upgrade(owner: Perdure, login: Login) -> None:
    job = owner.enqueue("send")
    worker = login("work")

    worker.worker(poll_s=0.02).run(until_idle=True)
    with worker.reserve("mail", wait=5):
        pass
    worker.store.repair("raise_queue_counters", worker.clock.now(), worker.ids, 10)

    assert worker.wait(job, timeout=1).result == "ann"
    refused(lambda: _newer_step(worker))
