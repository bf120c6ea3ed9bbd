"""On a server all machines go by the server's clock, however wrong their own are."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit
from uuid import UUID

import psycopg
import pymysql
import pytest

from perdure import Perdure
from perdure.clock import ServerClock, SystemClock, to_datetime
from perdure.ids import timestamp_of
from perdure.store.open import open_store
from perdure.store.rows import Verdict
from perdure.store.server import ServerRunner
from tests.databases.elsewhere import app as app_there
from tests.databases.elsewhere import log_in_a_child
from tests.mariadb_server import MariaDBServer
from tests.postgres_server import PostgresServer
from tests.worker.patience import eventually, seen_by_the_doctor

ROOT = Path(__file__).parents[2]
SERVERS = [pytest.param("postgres", marks=pytest.mark.postgres), pytest.param("mariadb", marks=pytest.mark.mariadb)]
A_MOMENT = timedelta(seconds=1)
"""The server's clock is known to no more than an exchange takes, which on a busy machine is not nothing."""


@pytest.fixture(params=SERVERS, scope="module")
def url(request: pytest.FixtureRequest) -> str:
    """A database for all these tests: to make one takes longer than most of them."""
    server: PostgresServer | MariaDBServer = request.getfixturevalue(f"{request.param}_server")
    url = server.new_database()
    with closing(open_store(url)) as store:
        store.upgrade()
    return url


@pytest.fixture
def app(url: str) -> Iterator[Perdure]:
    """On a machine whose clock is that of the server."""
    app = Perdure(url)

    @app.job
    def note() -> None: ...

    @app.job
    def planned() -> None: ...

    yield app
    seen_by_the_doctor(app)


@contextmanager
def elsewhere(ahead_s: int, act: str, url: str) -> Iterator[str]:
    """What a machine says whose clock is so wrong; a worker there ends with the block."""
    command = [sys.executable, "-m", "tests.databases.elsewhere", str(ahead_s), act, url]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        said = process.stdout.readline().strip()
        assert said
        yield said
        process.communicate(timeout=60)
    assert process.returncode == 0


def utc_now() -> datetime:
    return datetime.now(UTC)


@pytest.mark.parametrize(("enqueuer_s", "worker_s"), [(300, -300), (-300, 300)])
def test_a_delayed_job_starts_when_the_server_says_so(app: Perdure, url: str, enqueuer_s: int, worker_s: int) -> None:
    with elsewhere(worker_s, "work", url):
        before = utc_now()
        with elsewhere(enqueuer_s, "enqueue", url) as said:
            after = utc_now()
        job = app.existing(said)
        assert before - A_MOMENT <= job.created_at <= after + A_MOMENT
        assert job.run_at == job.created_at + timedelta(seconds=2)
        assert before - A_MOMENT <= timestamp_of(UUID(said)) <= after + A_MOMENT
        eventually(lambda: app.existing(said).is_final)
        ended = utc_now()
    (run,) = app.runs(said)
    assert run.finished_at is not None
    assert job.run_at <= run.started_at <= run.finished_at <= ended + A_MOMENT
    assert job.run_at <= ended + A_MOMENT


def test_a_schedule_fires_once_and_at_its_instant(app: Perdure, url: str) -> None:
    due = utc_now() + timedelta(seconds=8)
    app.schedules.put("once", at=due, kind="planned")
    with ExitStack() as machines:
        for ahead_s in (300, -300):
            machines.enter_context(elsewhere(ahead_s, "work", url))
        jobs = eventually(lambda: list(app.jobs(kind="planned")))
        fired = utc_now()
        eventually(lambda: app.existing(jobs[0]).is_final)
    (slot,) = app.schedules.slots("once")
    assert len(list(app.jobs(kind="planned"))) == 1
    assert slot.scheduled_for == due <= slot.taken_at
    assert due <= fired + A_MOMENT
    assert slot.taken_at <= fired + A_MOMENT


def test_a_lock_lasts_as_long_as_it_should(app: Perdure, url: str) -> None:
    with elsewhere(-300, "lock", url) as said:
        assert said == "True"
    assert not app.lock("report", ttl=60).acquire()


def test_a_worker_far_ahead_is_not_taken_for_silent_nor_one_far_behind(app: Perdure, url: str) -> None:
    with elsewhere(300, "work", url), elsewhere(-300, "work", url):
        seen = app.clock.now()
        nodes = app.store.live_nodes()
    assert len(nodes) == 2
    assert all(abs(node.beat_at - seen) < 60_000_000 for node in nodes)


# -- how it is learnt ------------------------------------------------------------------------------------------------


def test_a_clock_that_has_drifted_is_put_right_with_what_is_sent_next(app: Perdure) -> None:
    clock = app.clock
    assert isinstance(clock, ServerClock)
    app.enqueue("note")
    for drift_us, send in ((5_000_000, lambda: app.enqueue("note")), (-5_000_000, lambda: list(app.jobs()))):
        assert clock.ahead_us is not None
        clock.ahead_us += drift_us
        send()
        before = clock.complaint
        clock._ask_at_ns = 0  # as after a minute
        send()
        assert before is not None
        assert clock.complaint is None
        assert not clock.is_due


def test_a_process_that_writes_in_its_own_transactions_only_asks_there(app: Perdure) -> None:
    clock = app.clock
    assert isinstance(clock, ServerClock)
    app.enqueue("note")
    assert clock.ahead_us is not None
    clock.ahead_us += 5_000_000
    clock._ask_at_ns = 0  # as after a minute
    with own_connection(app.url) as connection:
        note(app).options(tx=connection).enqueue()
        connection.commit()
    assert clock.complaint is None


def note(app: Perdure) -> Any:
    return app.kinds.get("note")


def own_connection(url: str) -> Any:
    """As a user opens it: a statement begins a transaction."""
    if url.startswith("postgresql"):
        return psycopg.connect(url)
    parts = urlsplit(url)
    return closing(pymysql.connect(**dict(parse_qsl(parts.query)), user="root", database=parts.path[1:]))


def test_every_connection_asks(app: Perdure) -> None:
    """Perhaps it leads to another server, which has taken over."""
    clock = app.clock
    assert isinstance(clock, ServerClock)
    app.enqueue("note")
    assert clock.ahead_us is not None
    clock.ahead_us += 5_000_000
    app.close()
    list(app.jobs())
    assert clock.complaint is None


def test_a_step_of_the_machines_clock_changes_nothing(app: Perdure, monkeypatch: pytest.MonkeyPatch) -> None:
    app.enqueue("note")
    before = app.clock.now()
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    job = app.enqueue("note")
    assert job.created_at >= to_datetime(before)
    assert timestamp_of(job.id) >= to_datetime(before).replace(microsecond=0)


def test_a_clock_that_was_given_is_used(url: str) -> None:
    clock = SystemClock()
    assert Perdure(url, clock=clock).clock is clock


def test_another_url_brings_its_own_clock(url: str, tmp_path: Path) -> None:
    app = Perdure(url)
    first, ids = app.clock, app.ids
    app.url = tmp_path / "own.db"
    assert isinstance(first, ServerClock)
    assert not isinstance(app.clock, ServerClock)
    assert app.ids is not ids


def test_a_coroutine_does_not_ask_in_the_event_loop(app: Perdure, monkeypatch: pytest.MonkeyPatch) -> None:
    threads: list[int] = []
    opened = ServerRunner._opened

    def noting(runner: ServerRunner) -> Any:
        threads.append(threading.get_ident())
        return opened(runner)

    monkeypatch.setattr(ServerRunner, "_opened", noting)

    async def both() -> None:
        await app.aio.enqueue("note")
        app.close()
        app.__dict__.pop("clock")
        app.__dict__.pop("store")
        await app.aio.enqueue_many([note(app).new()])

    asyncio.run(both())
    assert len(threads) == 2
    assert threading.get_ident() not in threads


def test_a_log_line_in_a_child_process_needs_no_connection(url: str) -> None:
    app_there.url = url
    with app_there.worker().running():
        job = app_there.wait(log_in_a_child.enqueue(), timeout=60)
    (line,) = app_there.logs(job)
    assert job.result is False
    assert job.created_at - A_MOMENT <= to_datetime(line.at) <= utc_now() + A_MOMENT
    app_there.close()


# -- who is told -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("ahead_s", "words"), [(300, "300.0 s ahead of"), (-2, "2.0 s behind")])
def test_a_worker_and_the_check_say_that_the_clocks_differ(
    app: Perdure, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, ahead_s: int, words: str
) -> None:
    app.store.queues()
    assert _clock_fact(app).verdict is Verdict.OK
    right_ns = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: right_ns() + ahead_s * 10**9)
    found = _clock_fact(app)
    assert words in found.value
    assert found.verdict is Verdict.WARNING
    with caplog.at_level(logging.WARNING, logger="perdure.worker"), app.worker().running():
        pass
    assert [record.message for record in caplog.records if words in record.message]


def _clock_fact(app: Perdure) -> Any:
    (found,) = [fact for fact in app.store.facts() if fact.name == "clock"]
    return found


def test_a_clock_does_not_keep_the_connections_of_a_store_that_nobody_uses_any_more(url: str) -> None:
    store = open_store(url)
    clock: ServerClock = store.clock  # type: ignore[assignment]
    clock.now()
    runner = weakref.ref(store.runner)  # type: ignore[attr-defined]
    gc.disable()  # at once, not some time
    try:
        del store
        assert runner() is None
    finally:
        gc.enable()
    clock.now()
