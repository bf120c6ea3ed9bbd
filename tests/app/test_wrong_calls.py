"""Wrong calls of the library, in one table: the exact sentence, its code, what to do, and nothing is written.

In the sentences «…» marks what tells the reader what to do, and <…> what is different in every run. A row with `EVERY`
is tried on SQLite, PostgreSQL and MariaDB.
"""

from __future__ import annotations

import asyncio
import math
import re
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit
from uuid import UUID

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

from perdure import Job, Limit, Perdure, PerdureError, Rate, Retention, Retry, Unique, each, previous
from perdure.store.open import without_password
from tests.app.contents import Contents, contents
from tests.mariadb_server import connected, mariadb_server
from tests.postgres_server import postgres_server

__all__ = ["mariadb_server", "postgres_server"]

SQLITE = ("sqlite",)
EVERY = ("sqlite", "postgres", "mariadb")
LATER = datetime(2040, 1, 1, tzinfo=UTC)
NOBODY = UUID(int=7)
ANY_APP: Any = Perdure
ANY_LIMIT: Any = Limit
ANY_RATE: Any = Rate
"""For calls that a type checker refuses."""
NEEDED = {
    "sqlite": "a sqlite3.Connection",
    "postgres": "a connection of psycopg (version 3) or psycopg2",
    "mariadb": "a PyMySQL or mysqlclient Connection",
}
ENGINES = {"postgres": "postgresql+psycopg", "mariadb": "mysql+pymysql"}
AWAITED = {"sqlite": "sqlite+aiosqlite", "postgres": "postgresql+psycopg", "mariadb": "mysql+aiomysql"}


class World(NamedTuple):
    """An app with kinds, jobs, a schedule and a template. Untyped: to be misused."""

    sort: str
    url: str
    other: str
    """The URL of another database of the same sort, with Perdure's tables."""
    empty: str
    """The URL of one without."""
    app: Any
    send: Any
    put: Any
    job: Job
    """Waits for its time."""
    keyed: Job
    """Waits too, and has both keys."""
    done: Job
    failed: Job
    stack: ExitStack

    def contents(self) -> Contents:
        if self.sort == "sqlite":
            return contents(Path(self.url))
        with closing(self._opened()) as connection, closing(connection.cursor()) as cursor:
            schema = "perdure" if self.sort == "postgres" else urlsplit(self.url).path[1:]
            cursor.execute(
                "SELECT table_name FROM information_schema.tables WHERE table_schema = %s"
                " AND table_type = 'BASE TABLE'",
                (schema,),
            )
            return {name: self._rows(cursor, f"{schema}.{name}") for (name,) in cursor.fetchall()}

    def _rows(self, cursor: Any, table: str) -> list[tuple[object, ...]]:
        cursor.execute(f"SELECT * FROM {table}")
        return sorted(cursor.fetchall(), key=repr)

    def connection(self, **options: Any) -> Any:
        """Closed in the end."""
        return self.stack.enter_context(closing(self._opened(**options)))

    def _opened(self, **options: Any) -> Any:
        """As a user would open it."""
        connect: dict[str, Any] = {"sqlite": sqlite3.connect, "postgres": psycopg.connect, "mariadb": connected}
        return connect[self.sort](self.url, **options)

    def in_autocommit(self) -> Any:
        options: dict[str, Any] = {"isolation_level": None} if self.sort == "sqlite" else {"autocommit": True}
        return self.connection(**options)

    def closed(self) -> Any:
        connection = self._opened()
        connection.close()
        return connection

    def of_another_thread(self) -> Any:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(self._opened()))
        thread.start()
        thread.join()
        return found[0]

    def engine(self) -> Any:
        engine = sa.create_engine(_url(self, ENGINES.get(self.sort, "sqlite")))
        self.stack.callback(engine.dispose)
        return engine

    def awaited(self, misuse: Callable[[Any], object]) -> object:
        """With an AsyncSession on this database."""

        async def run() -> object:
            engine = create_async_engine(_url(self, AWAITED[self.sort]))
            try:
                async with AsyncSession(engine) as session:
                    return misuse(session)
            finally:
                await engine.dispose()

        return asyncio.run(run())

    def elsewhere(self) -> Any:
        """A connection to another database."""
        return self._replace(url=self.other).connection()

    def over(self) -> Any:
        with self.app.transaction() as tx:
            pass
        return tx


def _marks(sort: str) -> list[pytest.MarkDecorator]:
    return [] if sort == "sqlite" else [getattr(pytest.mark, sort)]


def _url(world: World, scheme: str) -> str:
    return f"{scheme}:///{world.url}" if world.sort == "sqlite" else scheme + world.url[world.url.index("://") :]


@pytest.fixture(scope="module")
def world(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """One for all rows: they write nothing."""
    sort: str = request.param
    url, other, empty = _databases(sort, request, tmp_path_factory)
    with closing(Perdure(other)) as another:
        another.store.upgrade()
    app = Perdure(url, auto_migrate=True, durability="normal", busy_timeout_s=2)

    @app.job
    def send(to: str, subject: str = "hi") -> None: ...

    @app.job
    def put(value: Any) -> None: ...

    @app.job(retry=1)
    def fail() -> None:
        raise ValueError

    @app.job(limit=[Limit("tenant", 3, by="to"), Limit("disk", 2)])
    def print_out(to: str) -> None: ...

    app.schedules.put("nightly", "0 3 * * *", kind="send", payload={"to": "ann"})
    app.templates.put("welcome", kind="send", payload={"to": "ann"})
    job = send.options(run_at=LATER).enqueue("ann")
    keyed = send.options(run_at=LATER, business_key="order-1", idempotency_key="click-1").enqueue("bob")
    done, failed = app.run_direct("send", {"to": "cid"}), app.run_direct("fail")
    with ExitStack() as stack:
        yield World(sort, url, other, empty, app, send, put, job, keyed, done, failed, stack)
    app.close()


def _databases(sort: str, request: pytest.FixtureRequest, folders: pytest.TempPathFactory) -> tuple[str, str, str]:
    if sort == "sqlite":
        folder = folders.mktemp("wrong")
        return str(folder / "jobs.db"), str(folder / "other.db"), str(folder / "empty.db")
    server = request.getfixturevalue(f"{sort}_server")
    return server.new_database(), server.new_database(), server.new_database()


class Row(NamedTuple):
    what: str
    call: Callable[[World], object]
    code: str
    says: str
    where: tuple[str, ...] = SQLITE


def generator() -> Iterator[int]:
    yield 1


def with_options(**options: Any) -> Callable[[World], object]:
    return lambda w: w.send.options(**options).enqueue("ann")


def with_tx(give: Callable[[World], Any]) -> Callable[[World], object]:
    return lambda w: w.send.options(tx=give(w)).enqueue("ann")


def in_a_test(misuse: Callable[[World, Any], object]) -> Callable[[World], object]:
    def call(w: World) -> object:
        with w.app.testing() as t:
            return misuse(w, t)

    return call


def in_a_transaction(misuse: Callable[[World, Any], object]) -> Callable[[World], object]:
    def call(w: World) -> object:
        with w.app.transaction() as tx:
            return misuse(w, tx)

    return call


def in_a_loop(misuse: Callable[[World, Any], object]) -> Callable[[World], object]:
    async def call(w: World) -> object:
        with w.app.testing() as t:
            return misuse(w, t)

    return lambda w: asyncio.run(call(w))


def after_its_block(w: World) -> object:
    with w.app.testing() as t:
        pass
    return t.drain()


def a_kind_elsewhere(w: World) -> Any:
    """A kind of an app on another file."""

    @Perdure(w.other).job
    def elsewhere() -> None: ...

    return elsewhere


ROWS = [
    # the definition of kinds
    Row(
        "a generator",
        lambda w: w.app.job(generator),
        "kind_invalid",
        "<here>/test_wrong_calls.py<at> is a generator: calling it runs nothing, and nobody would read "
        "what it yields; «do the work in the function, and return a list»",
    ),
    Row(
        "a lambda",
        lambda w: w.app.job(lambda: None),
        "kind_invalid",
        "<function <lambda>.<locals>.<lambda> at <at>> (<here>/test_wrong_calls.py<at>) has no name; «give "
        "it one with app.job(name=…)»",
    ),
    Row(
        "a class",
        lambda w: w.app.job(Retry),
        "kind_invalid",
        "a kind is made of a function, not of <class 'perdure.job.retry.Retry'>; «put @app.job above a def»",
    ),
    Row(
        "a kind that is there",
        lambda w: w.app.job(name="send")(print),
        "kind_duplicate",
        "two functions are declared as kind 'send': <here>/test_wrong_calls.py<at> and <built-in function "
        "print>; «give one of them another name with @app.job(name=…)»",
    ),
    Row(
        "a misspelt isolation",
        lambda w: w.app.job(name="x", isolation="proces")(print),
        "option_invalid",
        "isolation must be \"process\", or left out for a thread or the event loop, not 'proces'; «did you "
        'mean "process"?»',
    ),
    Row(
        "a transaction for a kind",
        lambda w: w.app.job(name="x", tx=5)(print),
        "option_invalid",
        "tx= belongs to a single job, not to a kind; «pass it with .options(tx=…)»",
    ),
    Row(
        "a word of Celery for a kind",
        lambda w: w.app.job(name="x", max_retries=5)(print),
        "option_unknown",
        "there is no option 'max_retries'; «write retry=Retry(…), or the number of attempts»",
    ),
    Row(
        "an alias without a list",
        lambda w: w.app.job(name="x", aliases="old")(print),
        "name_invalid",
        "aliases must be a list of names, not 'old'; «write aliases=['old']»",
    ),
    Row(
        "a version as text",
        lambda w: w.app.job(name="x", version="2")(print),
        "version_invalid",
        "version «must be a whole number from 1 on», not '2'",
    ),
    Row(
        "one exception without a tuple",
        lambda w: Retry(on=ValueError),  # type: ignore[arg-type]
        "retry_invalid",
        "Retry: on «must be a tuple of Exception classes, such as (OSError,)», not <class 'ValueError'>",
    ),
    Row(
        "a middleware that is none",
        lambda w: w.app.middleware(5),
        "option_invalid",
        "a middleware is «a function of the job's context», not 5",
    ),
    # arguments
    Row(
        "a missing argument",
        lambda w: w.send.enqueue(),
        "payload_invalid",
        "Job 'send' cannot take its arguments: 'to' is missing. «Expected send(to: str, subject: str = ...)».",
    ),
    Row(
        "a number for a text",
        lambda w: w.send.enqueue(5),
        "payload_invalid",
        "Job 'send' cannot take its arguments: 'to': Input should be a valid string, got 5. «Expected "
        "send(to: str, subject: str = ...)».",
    ),
    Row(
        "an option among the arguments",
        lambda w: w.send.enqueue("ann", delay=5),
        "payload_invalid",
        "Job 'send' cannot take its arguments: 'delay' is not a parameter. Expected send(to: str, subject: "
        "str = ...). «Options come before: send.options(delay=…).enqueue(…)».",
    ),
    Row(
        "an unknown argument",
        lambda w: w.send.enqueue("ann", colour="red"),
        "payload_invalid",
        "Job 'send' cannot take its arguments: 'colour' is not a parameter. «Expected send(to: str, "
        "subject: str = ...)».",
    ),
    Row(
        "an object",
        lambda w: w.put.enqueue(object()),
        "payload_not_json",
        "Job 'put' cannot take its arguments: 'value' cannot be written as JSON (Unable to serialize "
        "unknown type: <class 'object'>); «annotate the parameter, or pass plain data». Expected "
        "put(value: Any).",
    ),
    Row(
        "bytes inside",
        lambda w: w.put.enqueue({"x": [b"\xff"]}),
        "payload_not_json",
        "Job 'put' cannot take its arguments: 'value.x.0' is bytes, which JSON does not have; "
        "«base64-encode it and pass the text». Expected put(value: Any).",
    ),
    Row(
        "not a number",
        lambda w: w.put.enqueue(math.nan),
        "payload_not_json",
        "Job 'put' cannot take its arguments: 'value' is NaN or infinite, which JSON does not have; «pass "
        "None or text instead». Expected put(value: Any).",
    ),
    Row(
        "numbers as keys",
        lambda w: w.put.enqueue({1: 2}),
        "payload_untyped",
        "Job 'put' cannot take its arguments: 'value' has a key of type int, which JSON gives back as "
        "another type, and no type is declared for it; «annotate the parameter, or pass only text, "
        "numbers, booleans, None, lists, and dicts with text keys». Expected put(value: Any).",
    ),
    Row(
        "two MiB",
        lambda w: w.send.enqueue("x" * 2 * 1024**2),
        "payload_too_large",
        "Job 'send' has arguments of 2,097,161 bytes, the limit is 1,048,576. «Store the data elsewhere "
        "and pass a reference to it (a path, a key, an id)».",
        EVERY,
    ),
    Row(
        "a misspelt kind",
        lambda w: w.app.enqueue("sned", {"to": "ann"}),
        "kind_unknown",
        "no kind is called 'sned' here; «did you mean 'send'?»",
        EVERY,
    ),
    Row(
        "a kind that nobody declared",
        lambda w: w.app.enqueue("reindex"),
        "kind_unknown",
        "no kind is called 'reindex' here; «import the module that declares it first»",
    ),
    Row(
        "the kind in place of its name",
        lambda w: w.app.enqueue(w.send, {"to": "ann"}),
        "kind_unknown",
        "expected the name of a kind, not the kind itself; «write send.enqueue(…), or 'send'»",
    ),
    Row(
        "arguments as a list",
        lambda w: w.app.enqueue("send", ["ann"]),
        "payload_invalid",
        "Job 'send' cannot take its arguments: ['ann'] is no dict of arguments by name. «Expected send(to: "
        "str, subject: str = ...)».",
    ),
    Row(
        "one wrong of many",
        lambda w: w.send.enqueue_many([{"to": "ann"}, {"to": 5}]),
        "payload_invalid",
        "Job 'send' cannot take its arguments: 'to': Input should be a valid string, got 5. «Expected "
        "send(to: str, subject: str = ...)».",
        EVERY,
    ),
    Row(
        "dicts in place of drafts",
        lambda w: w.app.enqueue_many([{"to": "ann"}]),
        "draft_invalid",
        "expected jobs made by kind.new(…), not {'to': 'ann'}; «kind.enqueue_many takes dicts of arguments»",
    ),
    # options
    Row(
        "a misspelt option",
        with_options(prioirty=5),
        "option_unknown",
        "there is no option 'prioirty'; «did you mean 'priority'?»",
    ),
    Row(
        "a word of Celery",
        with_options(countdown=10),
        "option_unknown",
        "there is no option 'countdown'; «write delay=, in seconds»",
    ),
    Row(
        "a delay as text",
        with_options(delay="5m"),
        "delay_invalid",
        "delay «must be seconds (a number, not negative) or a timedelta», not '5m'",
    ),
    Row(
        "a naive datetime",
        with_options(run_at=datetime(2040, 1, 1)),
        "naive_datetime",
        "The datetime 2040-01-01T00:00:00 has no time zone, so it names no instant. «Give it a tzinfo, for "
        "example datetime.now(timezone.utc)».",
    ),
    Row(
        "a time as text",
        with_options(run_at="2040-01-01"),
        "run_at_invalid",
        "run_at must be a datetime with a time zone, not '2040-01-01'; «for seconds from now use delay=»",
    ),
    Row(
        "a delay and a time",
        with_options(delay=1, run_at=LATER),
        "option_invalid",
        "«give delay= or run_at=, not both»: each says when the job may start",
    ),
    Row(
        "an empty queue",
        with_options(queue=" "),
        "name_empty",
        "queue is empty; «give it a name»",
    ),
    Row(
        "the queue of all",
        with_options(queue="*"),
        "name_invalid",
        "queue '*' means all queues, so no single queue can have this name; «a worker without queues= "
        "serves all of them»",
    ),
    Row(
        "a queue of 200 characters",
        with_options(queue="q" * 200),
        "name_too_long",
        "queue has 200 characters, the limit is 128: 'qqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqqq'…; «shorten it»",
    ),
    Row(
        "a key as a number",
        with_options(idempotency_key=42),
        "name_invalid",
        "idempotency_key «must be text», not 42",
    ),
    Row(
        "a key with NUL",
        with_options(business_key="a\0b"),
        "name_invalid",
        "business_key contains a NUL or half a surrogate pair, which not every database can store: "
        "'a\\x00b'; «remove it»",
        EVERY,
    ),
    Row(
        "a tag without a list",
        with_options(tags="urgent"),
        "tags_invalid",
        "tags must be a list of texts, not 'urgent'; «write tags=['urgent']»",
    ),
    Row(
        "a priority in words",
        with_options(priority="high"),
        "priority_invalid",
        "priority «must be a whole number between ±2147483647», not 'high'",
    ),
    Row(
        "an unknown conflict",
        with_options(conflict="ignore"),
        "conflict_invalid",
        'conflict «must be "raise" or "return"», not \'ignore\'',
    ),
    Row(
        "params that are no dict",
        with_options(params=5),
        "params_not_json",
        "params «must be a dict of JSON data», not 5",
    ),
    Row(
        "params of 70,000 bytes",
        with_options(params={"x": "x" * 70_000}),
        "params_too_large",
        "params= has 70008 bytes, the limit is 65536; «put the data into the arguments or a file»",
    ),
    Row(
        "a retry in words",
        with_options(retry="always"),
        "retry_invalid",
        "retry «must be the number of attempts or Retry(…)», not 'always'",
    ),
    Row(
        "exceptions for one job",
        with_options(retry=Retry(on=(OSError,))),
        "retry_invalid",
        "retry= for a single job cannot have on= or never=: they name code; «give them to the kind (@app.job)»",
    ),
    Row(
        "unique by an argument that is not there",
        with_options(unique=Unique(by="colour")),
        "unique_invalid",
        "Unique(by='colour') on 'send': this job was enqueued without that argument (or it is secret); "
        "«pass it, or make the job unique by something else»",
        EVERY,
    ),
    Row(
        "a key of other work",
        with_options(idempotency_key="click-1"),
        "idempotency_mismatch",
        "idempotency key 'click-1' of kind 'send' was used for job <keyed> with other arguments; «use a "
        "new key for new work, or pass the same arguments to get that job back»",
        EVERY,
    ),
    Row(
        "a key of a live job",
        with_options(business_key="order-1"),
        "business_key_taken",
        "business key 'order-1' is held by live job <keyed>; «wait for it, supersede it, or enqueue with "
        'conflict="return" to get that job»',
        EVERY,
    ),
    # transactions
    Row(
        "a number as a transaction",
        with_tx(lambda w: 5),
        "tx_unknown_type",
        "tx= got an int; «this app's database needs <needed>, an SQLAlchemy Connection or Session on it, "
        "or Django's connection»",
        EVERY,
    ),
    Row(
        "a URL as a transaction",
        with_tx(lambda w: w.url),
        "tx_unknown_type",
        "tx= got a str; «this app's database needs <needed>, an SQLAlchemy Connection or Session on it, or "
        "Django's connection»",
        EVERY,
    ),
    Row(
        "an engine",
        with_tx(lambda w: w.engine()),
        "tx_unknown_type",
        "tx= got a sqlalchemy Engine; «open a connection first (with engine.begin() as connection); this "
        "app's database needs <needed>, an SQLAlchemy Connection or Session on it, or Django's connection»",
        EVERY,
    ),
    Row(
        "a sessionmaker",
        with_tx(lambda w: sessionmaker(w.engine())),
        "tx_unknown_type",
        "tx= got a sqlalchemy sessionmaker; «open a session first (with sessions.begin() as session); this "
        "app's database needs <needed>, an SQLAlchemy Connection or Session on it, or Django's connection»",
        EVERY,
    ),
    Row(
        "a block that was not entered",
        with_tx(lambda w: w.app.transaction()),
        "tx_unknown_type",
        "tx= got a contextlib _GeneratorContextManager; «give what its block gives (with app.transaction() "
        "as tx); this app's database needs <needed>, an SQLAlchemy Connection or Session on it, or "
        "Django's connection»",
        EVERY,
    ),
    Row(
        "a cursor",
        with_tx(lambda w: w.connection().cursor()),
        "tx_unknown_type",
        "tx= got <cursor>; «give the connection of this cursor; this app's database needs <needed>, an "
        "SQLAlchemy Connection or Session on it, or Django's connection»",
        EVERY,
    ),
    Row(
        "a connection in autocommit mode",
        with_tx(lambda w: w.in_autocommit()),
        "tx_not_open",
        "the connection given as tx= is in autocommit mode and no transaction is open, so the job would "
        "not commit together with your rows; «begin a transaction first (BEGIN, atomic(), session.begin())»",
        EVERY,
    ),
    Row(
        "a closed connection",
        with_tx(lambda w: w.closed()),
        "tx_closed",
        "the connection given as tx= is closed; «give an open one, inside the transaction of the job»",
        EVERY,
    ),
    Row(
        "a connection to another file",
        with_tx(lambda w: w.elsewhere()),
        "tx_wrong_database",
        "tx= is a connection to <other>, but this app's jobs live in <url>; «give a connection to that "
        "file: a job and your rows share a transaction only in the same one»",
    ),
    Row(
        "a connection to another database",
        with_tx(lambda w: w.elsewhere()),
        "tx_wrong_database",
        "tx= is a connection to another database than this app's; «give one to that database: a job and "
        "your rows share a transaction only in the same one»",
        ("postgres", "mariadb"),
    ),
    Row(
        "a connection of another thread",
        with_tx(lambda w: w.of_another_thread()),
        "tx_thread",
        "the connection given as tx= belongs to another thread; «enqueue there, or open one in this thread»",
    ),
    Row(
        "a transaction that is over",
        with_tx(lambda w: w.over()),
        "tx_closed",
        "this transaction has ended; «use it inside its with block, in the process that opened it»",
        EVERY,
    ),
    Row(
        "a session without a database",
        with_tx(lambda w: Session()),
        "tx_unusable",
        "tx= is a sqlalchemy Session that gives no connection (This session is not bound to a single "
        "Engine or Connection, and no context was provided to locate a binding.); «give one whose "
        "transaction has begun, or can begin»",
        EVERY,
    ),
    Row(
        "an AsyncSession without await",
        lambda w: w.awaited(lambda session: w.send.options(tx=session).enqueue("ann")),
        "tx_async",
        "tx= is a sqlalchemy AsyncSession, whose statements have to be awaited; «write await "
        "kind.options(tx=…).aenqueue(…), or await app.aio.cancel(job, tx=…) and the like. With SQLAlchemy "
        "also await session.run_sync(lambda s: kind.options(tx=s).enqueue(…))»",
        EVERY,
    ),
    Row(
        "two transactions for one call",
        lambda w: w.app.enqueue_many([w.send.options(tx=5).new("a"), w.send.options(tx=6).new("b")]),
        "tx_mixed",
        "these jobs were given different tx=; «give all the same one: jobs that are enqueued together "
        "share a transaction»",
    ),
    Row(
        "a transaction inside another",
        in_a_transaction(lambda w, tx: w.app.transaction().__enter__()),
        "tx_nested",
        "a transaction is already open here; «use the one you have»",
        EVERY,
    ),
    Row(
        "a commit inside the block",
        in_a_transaction(lambda w, tx: tx.execute("COMMIT")),
        "tx_managed",
        "COMMIT inside app.transaction(): the block commits at its end and rolls back on an exception; "
        "«leave BEGIN, COMMIT and ROLLBACK to it, and use a SAVEPOINT to undo a part»",
        EVERY,
    ),
    Row(
        "a statement after the block",
        lambda w: w.over().execute("SELECT 1"),
        "tx_closed",
        "this transaction has ended; «use it inside its with block, in the process that opened it»",
        EVERY,
    ),
    # jobs
    Row(
        "an id that is none",
        lambda w: w.app.cancel("abc"),
        "id_invalid",
        "'abc' is not an id; «pass the job, its UUID, or the UUID as text (32 hexadecimal digits, with or "
        "without the four dashes)». Only the command line also takes the end of an id.",
    ),
    Row(
        "None for a job",
        lambda w: w.app.cancel(None),
        "id_invalid",
        "None is not an id; «pass the job, its UUID, or the UUID as text (32 hexadecimal digits, with or "
        "without the four dashes)». Only the command line also takes the end of an id.",
    ),
    Row(
        "a job that is not there",
        lambda w: w.app.cancel(NOBODY),
        "job_not_found",
        "there is no job 00000000-0000-0000-0000-000000000007; «check the id and the database, and whether "
        "it was deleted or archived»",
        EVERY,
    ),
    Row(
        "cancelling what has completed",
        lambda w: w.app.cancel(w.done),
        "cancel_refused",
        "cannot cancel job <done>: it is completed, which is final; «app.retry(job, as_new=True) runs it again»",
        EVERY,
    ),
    Row(
        "pausing what has failed",
        lambda w: w.app.pause(w.failed),
        "pause_refused",
        "cannot pause job <failed>: it is failed, which is final; «app.retry(job) runs it again»",
        EVERY,
    ),
    Row(
        "moving what has completed",
        lambda w: w.app.move(w.done, to="front"),
        "move_refused",
        "cannot move job <done>: it is completed, which is final; «app.retry(job, as_new=True) runs it again»",
        EVERY,
    ),
    Row(
        "retrying a live job",
        lambda w: w.app.retry(w.job),
        "retry_refused",
        "cannot retry job <job>: it is scheduled and has not ended yet; «cancel it first, or wait for its end»",
        EVERY,
    ),
    Row(
        "retrying what has completed",
        lambda w: w.app.retry(w.done),
        "retry_refused",
        "cannot retry job <done>: it is completed; «app.retry(job, as_new=True) runs it again as a new job»",
        EVERY,
    ),
    Row(
        "deleting a live job",
        lambda w: w.app.delete(w.job),
        "delete_refused",
        "cannot delete job <job>: it is scheduled; «cancel it first»",
        EVERY,
    ),
    Row(
        "editing what has ended",
        lambda w: w.app.edit(w.done, queue="x"),
        "edit_refused",
        "cannot edit job <done>: it has ended; «enqueue another, or retry it as it was»",
        EVERY,
    ),
    Row(
        "editing the kind",
        lambda w: w.app.edit(w.job, kind="put"),
        "option_unknown",
        "there is no option 'kind'; «known are payload, params, tags, principal, queue, run_at, delay, timeout»",
    ),
    Row(
        "moving nowhere",
        lambda w: w.app.move(w.job),
        "option_invalid",
        '«say where to move to with one of before=, after=, to="front" or to="back"»',
    ),
    Row(
        "moving to the top",
        lambda w: w.app.move(w.job, to="top"),
        "option_invalid",
        'to «must be "front" or "back"», not \'top\'',
    ),
    Row(
        "an old version",
        lambda w: w.app.cancel(w.job, expect_version=9),
        "version_changed",
        "job <job> is at version 1, not 9: someone changed it; «read it again and decide again»",
        EVERY,
    ),
    Row(
        "superseding by a dict",
        lambda w: w.app.supersede(w.job, {"to": "bob"}),
        "draft_invalid",
        "expected jobs made by kind.new(…), not {'to': 'bob'}; «kind.enqueue_many takes dicts of arguments»",
    ),
    Row(
        "no patience",
        lambda w: w.app.wait(w.job, 0),
        "wait_timeout",
        "job <job> (send) was scheduled after 0 s; it continues: «wait again, or ask app.explain(job) what it waits"
        " for»",
        EVERY,
    ),
    Row(
        "patience as text",
        lambda w: w.app.wait(w.job, "5"),
        "timeout_invalid",
        "timeout «must be seconds, not negative, a timedelta, or None to wait for ever», not '5'",
    ),
    # filters
    Row(
        "a misspelt filter",
        lambda w: w.app.jobs(status="failed"),
        "option_unknown",
        "there is no option 'status'; «did you mean 'state'?»",
    ),
    Row(
        "cancelling many by their flow",
        lambda w: w.app.cancel_all(flow=w.job.id),
        "option_unknown",
        "there is no option 'flow'; «write app.jobs(flow=…) for the jobs of a flow, or a verb for all of it, as in"
        " app.cancel(flow)»",
    ),
    Row(
        "the jobs of a flow that nobody knows",
        lambda w: w.app.jobs(flow=NOBODY),
        "flow_not_found",
        "there is no flow 00000000-0000-0000-0000-000000000007; «check the id and the database, and whether it was"
        " pruned»",
        EVERY,
    ),
    Row(
        "a misspelt state",
        lambda w: w.app.jobs(state="fail"),
        "filter_invalid",
        'state must be "paused", "blocked", "scheduled", "held", "queued", "running", "parked", '
        '"completed", "failed", "cancelled" or "skipped", not \'fail\'; «did you mean "failed"?»',
    ),
    Row(
        "after= a number",
        with_options(after=5),
        "after_invalid",
        'after must be «jobs, flows or ids of them, or pairs as in (job, "end")», not 5',
    ),
    Row(
        "after= an unknown job",
        with_options(after=NOBODY),
        "parent_unknown",
        "cannot wait for 00000000-0000-0000-0000-000000000007: there is no such job or flow; «check the id and the"
        " database, and whether it was deleted or archived»",
        EVERY,
    ),
    Row(
        "on= without after=",
        with_options(on="end"),
        "on_invalid",
        "on='end' without after=: «say what the job waits for»",
    ),
    Row(
        "if of a condition",
        lambda w: bool(w.app.workflow("w").__enter__().add(w.send.new("a")).result == "x"),
        "condition_invalid",
        "a condition on a result is decided when the job may start, not now; «give it to wf.add(…, when=…) or"
        " wf.choose(…), and join conditions with &, | and ~ instead of and, or and not»",
    ),
    Row(
        "a result in a text",
        lambda w: f"to {w.app.workflow('w').__enter__().add(w.send.new('a')).result}",
        "reference_invalid",
        "the result of send is not known yet, so it cannot be written into a text; «give it as an argument as it is,"
        " take a part of it with [], or compare it in when=»",
    ),
    Row(
        "wf.map over a result",
        lambda w: (wf := w.app.workflow("w").__enter__()).map(w.send.new("a"), over=wf.add(w.send.new("a")).result),
        "reference_invalid",
        "wf.map goes over values that are known now; «let the job that finds them add the jobs itself: more ="
        ' wf.batch("more", filled_by=job), and in its handler ctx.flow["more"].add_many(…)»',
    ),
    Row(
        "a kind instead of a draft",
        lambda w: w.app.workflow("w").__enter__().add({"to": "a"}),
        "draft_invalid",
        "expected jobs made by kind.new(…), not {'to': 'a'}; «kind.enqueue_many takes dicts of arguments»",
    ),
    Row(
        "a workflow without its block",
        lambda w: w.app.workflow("w").add(w.send.new("a")),
        "flow_sealed",
        "workflow 'w' takes jobs inside its block alone, and is written at its end: «with app.workflow(…) as wf:"
        " wf.add(…)»",
    ),
    Row(
        "computing with a result",
        lambda w: w.app.workflow("w").__enter__().add(w.send.new("a")).result + 1,
        "reference_invalid",
        "the result of send is not known yet, so it cannot be computed with; «give it as an argument as it is,"
        " take a part of it with [], or compare it in when=»",
    ),
    Row(
        "wf.choose of nothing",
        lambda w: w.app.workflow("w").__enter__().choose(otherwise=w.send.new("a")),
        "condition_invalid",
        "wf.choose has nothing to choose from: «give it pairs, as in wf.choose((size.result > 10, big.new()),"
        " otherwise=small.new())»",
    ),
    Row(
        "adding to a batch before its block",
        lambda w: w.app.batch("b").add(w.send.new("a")),
        "flow_sealed",
        "batch 'b' is not open: «add to it inside its block, with app.batch(…) as batch»",
    ),
    Row(
        "a job instead of a flow",
        lambda w: w.app.flows.get(w.job),
        "flow_invalid",
        "«expected a flow, or its id,» not the job <job>",
    ),
    # limits
    Row(
        "a limit without a number",
        lambda w: ANY_LIMIT("gpu"),
        "limit_rule_invalid",
        "Limit('gpu') has no number; «write Limit('gpu', 5)»",
    ),
    Row(
        "a limit back to front",
        lambda w: ANY_LIMIT(5, "gpu"),
        "limit_rule_invalid",
        "Limit(5, 'gpu'): the name comes first; «write Limit('gpu', 5)»",
    ),
    Row(
        "a limit of nothing",
        lambda w: ANY_LIMIT("gpu", 0),
        "limit_rule_invalid",
        "Limit: how many «must be a whole number from 1 to 1000000000000», not 0",
    ),
    Row(
        "a limit by a number",
        lambda w: ANY_LIMIT("gpu", 5, by=5),
        "limit_rule_invalid",
        'Limit(by=) must be «the name of an argument, a path such as "order.tenant", or a function», not 5',
    ),
    Row(
        "a rate of no time",
        lambda w: ANY_RATE("api", 5, per=0),
        "limit_rule_invalid",
        "Rate(per=) «must be seconds, more than 0, or a timedelta», not 0",
    ),
    Row(
        "a rate by an unknown algorithm",
        lambda w: ANY_RATE("api", 5, per=60, algorithm="leaky"),
        "limit_rule_invalid",
        'Rate(algorithm=) must be «"sliding", "fixed" or "bucket"», not \'leaky\'',
    ),
    Row(
        "a burst of a rate that has none",
        lambda w: ANY_RATE("api", 5, per=60, burst=3),
        "limit_rule_invalid",
        'burst= belongs to «Rate(…, algorithm="bucket")»',
    ),
    Row(
        "a number for a limit",
        lambda w: w.app.job(name="x", limit=5)(print),
        "limit_rule_invalid",
        "limit= must be a Limit(…), or a list of them, not 5; «write limit=Limit(5)»",
    ),
    Row(
        "a rate as Celery writes it",
        lambda w: w.app.job(name="x", rate="100/m")(print),
        "limit_rule_invalid",
        "rate= must be a Rate(…), or a list of them, not '100/m'; «write rate=Rate(100, per=60) for 100 in a minute»",
    ),
    Row(
        "a limit for a rate",
        lambda w: w.app.job(name="x", rate=Limit("a", 5))(print),
        "limit_rule_invalid",
        "rate= must be a Rate(…), or a list of them, not Limit(name='a', most=5, by=None, weight=1);"
        " «write limit= for it»",
    ),
    Row(
        "rate_limit of Celery",
        lambda w: w.app.job(name="x", rate_limit="100/m")(print),
        "option_unknown",
        "there is no option 'rate_limit'; «write rate=Rate(100, per=60), for 100 in a minute»",
    ),
    Row(
        "two limits of one name on a kind",
        lambda w: w.app.job(name="x", limit=[Limit("a", 1), Limit("a", 2)])(print),
        "limit_rule_invalid",
        "a job cannot have two limits named 'a'; «give each its own name»",
    ),
    Row(
        "five limits on a kind",
        lambda w: w.app.job(name="x", limit=[Limit(one, 1) for one in "abcde"])(print),
        "limit_rule_invalid",
        "«a job has at most 4 limits and rates», not 5",
    ),
    Row(
        "a limit with two numbers",
        lambda w: w.app.limits.declare(Limit("two", 4), Limit("two", 5)),
        "limit_conflict",
        "limit 'two' is declared twice with different numbers: Limit(name='two', most=4, by=None, weight=1) by the app,"
        " and Limit(name='two', most=5, by=None, weight=1) by the app; «declare it once, as in API = Limit('two', 5)»",
    ),
    Row(
        "limits to declare as a list",
        lambda w: w.app.limits.declare([Limit("gpu", 4)]),
        "limit_rule_invalid",
        "app.limits.declare takes limits «one by one, as in declare(Limit('gpu', 4))», not [Limit(name='gpu', most=4,"
        " by=None, weight=1)]",
    ),
    Row(
        "a limit of one job that nobody declared",
        with_options(limit=Limit("none", 4)),
        "limit_undeclared",
        "limit 'none' is not declared; «a limit of a single job must be that of a kind (@app.job(limit=…)), or be"
        " declared once with app.limits.declare(…), so that workers know it»",
    ),
    Row(
        "a mistyped limit",
        lambda w: w.app.limits.set("tenat", 4),
        "limit_unknown",
        "there is no limit 'tenat' (did you mean 'tenant'?); «app.limits.set('tenat', NUMBER, new=True) makes one»",
        EVERY,
    ),
    Row(
        "a mistyped limit to look at",
        lambda w: w.app.limits.show("tenat"),
        "limit_unknown",
        "there is no limit 'tenat' (did you mean 'tenant'?); «app.limits.set('tenat', NUMBER, new=True) makes one»",
        EVERY,
    ),
    Row(
        "a mistyped limit to hold",
        lambda w: w.app.limits.hold("tenat").acquire(),
        "limit_unknown",
        "there is no limit 'tenat' (did you mean 'tenant'?); «app.limits.set('tenat', NUMBER, new=True) makes one»",
    ),
    Row(
        "a limit as text",
        lambda w: w.app.limits.set("tenant", "5"),
        "limit_rule_invalid",
        "a limit «must be a whole number from 1 to 1000000000000», not '5'",
    ),
    Row(
        "a place without its key",
        lambda w: w.app.limits.hold("tenant"),
        "limit_key_invalid",
        "limit 'tenant' goes by 'to': «name one with key=»",
    ),
    Row(
        "a key of a limit without keys",
        lambda w: w.app.limits.set("disk", 4, key="x"),
        "limit_key_invalid",
        "limit 'disk' has one key for all jobs: «leave out key=»",
    ),
    Row(
        "a wait as text",
        lambda w: w.app.limits.hold("disk", wait="5"),
        "wait_invalid",
        "wait «must be seconds (a number, not negative) or a timedelta», not '5'",
    ),
    Row(
        "a mistyped queue to limit",
        lambda w: w.app.queues.limit("defualt", 40),
        "queue_unknown",
        "no job has ever been in queue 'defualt' (did you mean 'default'?); «with new=True it is limited all the same»",
        EVERY,
    ),
    Row(
        "no jobs of a queue at once",
        lambda w: w.app.queues.limit("default", 0),
        "concurrency_invalid",
        "concurrency «must be a whole number from 1 to 1000000000000», not 0",
    ),
    # flows
    Row(
        "the name of a flow for its id",
        lambda w: w.app.flows.get("nightly"),
        "id_invalid",
        "'nightly' is not the id of a flow; «flows of a name are found with app.flows.list(name=…)»",
    ),
    Row(
        "a number for a flow",
        lambda w: w.app.flows.jobs(5),
        "flow_invalid",
        "«expected a flow, or its id,» not 5",
    ),
    Row(
        "a flow instead of a job",
        lambda w: w.app.runs(w.app.workflow("w")),
        "job_invalid",
        "expected a job, or its id, not flow <id>; «app.flows.get(flow) reads a flow, app.flows.jobs(flow) its jobs;"
        " cancel, pause, resume, retry, wait and explain take flows too»",
    ),
    Row(
        "deleting a flow",
        lambda w: w.app.delete(w.app.workflow("w")),
        "job_invalid",
        "expected a job, or its id, not flow <id>; «app.flows.get(flow) reads a flow, app.flows.jobs(flow) its jobs;"
        " cancel, pause, resume, retry, wait and explain take flows too»",
    ),
    Row(
        "a group without a list, as in Celery",
        lambda w: w.app.group(w.send.new("a"), w.send.new("b")),
        "draft_invalid",
        "a group takes its jobs as one list; «write app.group([send.new(…), send.new(…)])»",
        EVERY,
    ),
    Row(
        "a group of one without a list",
        lambda w: w.app.group(w.send.new("a")),
        "draft_invalid",
        "a group takes its jobs as one list; «write app.group([send.new(…)])»",
    ),
    Row(
        "a group of five without a list",
        lambda w: w.app.group(*[w.send.new("a")] * 5),
        "draft_invalid",
        "a group takes its jobs as one list; «write app.group([send.new(…), send.new(…), send.new(…), …])»",
    ),
    Row(
        "a group of a number",
        lambda w: w.app.group(5),
        "draft_invalid",
        "expected jobs made by kind.new(…), not 5; «name the kind and its arguments, as in send.new(to)»",
    ),
    Row(
        "a group of kinds",
        lambda w: w.app.group([w.send]),
        "draft_invalid",
        "expected jobs made by kind.new(…), not the kind send itself; «write send.new(…)»",
    ),
    Row(
        "a group of a kind with options",
        lambda w: w.app.group([w.send.options(delay=5)]),
        "draft_invalid",
        "expected jobs made by kind.new(…), not the kind send itself; «write send.new(…)»",
    ),
    Row(
        "a group of jobs that are there",
        lambda w: w.app.group([w.job]),
        "draft_invalid",
        "expected jobs made by kind.new(…), not job <job>, which is enqueued already; «write send.new(…) instead of"
        " .enqueue(…)»",
    ),
    Row(
        "a chain of a list",
        lambda w: w.app.chain([w.send.new("a"), w.send.new("b")]),
        "draft_invalid",
        "expected jobs made by kind.new(…), not a list; «give the jobs one by one, with * before a list of them»",
    ),
    Row(
        "a group of another app's kind",
        lambda w: w.app.group([a_kind_elsewhere(w).new()]),
        "kind_elsewhere",
        "kind 'elsewhere' belongs to another app, <Perdure <other>>, whose workers run it, and not to <Perdure <url>>;"
        " «declare it on this one, or give its jobs to that one»",
    ),
    Row(
        "a chain of another app's kind",
        lambda w: w.app.chain(w.send.new("a"), a_kind_elsewhere(w).new()),
        "kind_elsewhere",
        "kind 'elsewhere' belongs to another app, <Perdure <other>>, whose workers run it, and not to <Perdure <url>>;"
        " «declare it on this one, or give its jobs to that one»",
    ),
    Row(
        "a workflow of another app's kind",
        lambda w: w.app.workflow("w").__enter__().add(a_kind_elsewhere(w).new()),
        "kind_elsewhere",
        "kind 'elsewhere' belongs to another app, <Perdure <other>>, whose workers run it, and not to <Perdure <url>>;"
        " «declare it on this one, or give its jobs to that one»",
    ),
    Row(
        "many jobs of another app's kind",
        lambda w: w.app.enqueue_many([w.send.new("a"), a_kind_elsewhere(w).new()]),
        "kind_elsewhere",
        "kind 'elsewhere' belongs to another app, <Perdure <other>>, whose workers run it, and not to <Perdure <url>>;"
        " «declare it on this one, or give its jobs to that one»",
    ),
    Row(
        "a misspelt mode",
        lambda w: w.app.group([w.send.new("a")], mode="serial"),
        "mode_invalid",
        'mode must be "parallel" or "sequential", not \'serial\'; «did you mean "sequential"?»',
    ),
    Row(
        "an unknown policy",
        lambda w: w.app.group([w.send.new("a")], on_failure="halt"),
        "on_failure_invalid",
        'on_failure must be «"continue", "stop", "cancel", "pause" or "skip"», not \'halt\'',
    ),
    Row(
        "a callback for a group",
        lambda w: w.app.group([w.send.new("a")], on_failure=w.send.new("b")),
        "on_failure_invalid",
        "on_failure= is a policy here, and not a job; «a job that is told waits for the flow:"
        ' alert.options(after=flow, on="failure").enqueue(), or wf.add(alert.new(), after=wf, on="failure")»',
    ),
    Row(
        "a callback and a policy for a batch",
        lambda w: w.app.batch("b", on_failure=[w.send.new("b"), "stop"]),
        "on_failure_invalid",
        "on_failure= is one job or one policy; «for both give the policy here, and the job once the batch has begun:"
        ' alert.options(after=batch, on="failure").enqueue()»',
    ),
    Row(
        "a kind as a callback",
        lambda w: w.app.batch("b", on_failure=w.send),
        "draft_invalid",
        "expected jobs made by kind.new(…), not the kind send itself; «write send.new(…)»",
    ),
    Row(
        "a batch that may be left somehow",
        lambda w: w.app.batch("b", abandon="leave"),
        "abandon_invalid",
        'abandon must be «"cancel" or "keep"», not \'leave\'',
    ),
    Row(
        "conflict= of a group without a key",
        lambda w: w.app.group([w.send.new("a")], conflict="return"),
        "conflict_invalid",
        'conflict="return" without key=: there is nothing that another flow could have; «give this one a key=, or leave'
        " conflict= out»",
    ),
    Row(
        "conflict= of a batch without a key",
        lambda w: w.app.batch("b", conflict="return"),
        "conflict_invalid",
        'conflict="return" without key=: there is nothing that another flow could have; «give this one a key=, or leave'
        " conflict= out»",
    ),
    Row(
        "none of a group at once",
        lambda w: w.app.group([w.send.new("a")], at_once=0),
        "at_once_invalid",
        "at_once «must be a whole number from 1 on», not 0",
    ),
    Row(
        "properties as a list",
        lambda w: w.app.workflow("w", properties=[1]),
        "properties_invalid",
        "properties must be «a dict of JSON data», not [1]",
    ),
    Row(
        "previous outside of a chain",
        lambda w: w.put.enqueue(previous),
        "reference_invalid",
        "previous has a meaning «only in app.chain and wf.chain, after the first job»; not here",
        EVERY,
    ),
    Row(
        "each outside of a map",
        lambda w: w.app.group([w.put.new(each)]),
        "reference_invalid",
        "each has a meaning «only in wf.map»; not here",
    ),
    Row(
        "after= a draft",
        lambda w: w.send.options(after=w.send.new("a")).enqueue("b"),
        "after_invalid",
        'after must be jobs, flows or ids of them, or pairs as in (job, "end"), not <Draft of send>; «enqueue it'
        " first, as in first = send.enqueue(…), and say after=first»",
    ),
    Row(
        "link_error of Celery",
        lambda w: w.send.options(link_error=w.send.new("a")),
        "option_unknown",
        "there is no option 'link_error'; «write after= with on=\"failure\", on the job that is told»",
    ),
    Row(
        "a flow's job with a transaction of its own",
        lambda w: w.app.group([w.send.options(tx=w.connection()).new("a")]),
        "tx_mixed",
        "«give tx= to the flow, not to its jobs»: all of it is written together",
        EVERY,
    ),
    Row(
        "expect_version= of a flow",
        lambda w: w.app.cancel(w.app.workflow("w"), expect_version=1),
        "option_invalid",
        "«expect_version= is for single jobs»; a flow has no version",
    ),
    Row(
        "the kind in a filter",
        lambda w: w.app.jobs(kind=w.send),
        "filter_invalid",
        "kind= must be text, not <Kind send version 1 from <here>/test_wrong_calls.py<at>>; «write kind='send'»",
    ),
    Row(
        "since yesterday",
        lambda w: w.app.jobs(since="yesterday"),
        "filter_invalid",
        "since= «must be a datetime with a time zone», not 'yesterday'",
    ),
    Row(
        "a negative limit",
        lambda w: w.app.jobs(limit=-1),
        "limit_invalid",
        "limit «must be a whole number, not negative, or None», not -1",
    ),
    Row(
        "a bulk verb by nothing",
        lambda w: w.app.cancel_all(tag=None),
        "filter_none",
        "cancel_all was given tag=None, which would filter nothing; «give a value, or leave tag= out if "
        "every job is meant»",
        EVERY,
    ),
    Row(
        "a purge of everything",
        lambda w: w.app.purge(),
        "filter_invalid",
        'state «must be "cancelled", "completed", "failed" or "skipped"», not None',
        EVERY,
    ),
    Row(
        "an age as a number",
        lambda w: w.app.purge(state="completed", older_than=5),
        "older_than_invalid",
        "older_than «must be a timedelta, not negative», not 5",
    ),
    Row(
        "a number for an archive",
        lambda w: w.app.archive(state="completed", to=5),
        "option_invalid",
        'the archive «must be "table", a folder or a file that ends in .jsonl», not 5',
    ),
    # schedules, templates, locks, reservations
    Row(
        "minute 99",
        lambda w: w.app.schedules.put("x", "99 * * * *", kind="send", payload={"to": "ann"}),
        "cron_invalid",
        "cron '99 * * * *' cannot be read: its minute is '99'; «write 0-59, lists, ranges, or steps such as */5»",
        EVERY,
    ),
    Row(
        "a cron of two fields",
        lambda w: w.app.schedules.put("x", "0 7", kind="send", payload={"to": "ann"}),
        "cron_invalid",
        "cron '0 7' cannot be read: it has 2 fields, and «needs 5 (minute, hour, day of the month, month, "
        "weekday); or 6 with seconds first»",
    ),
    Row(
        "the 30th of February",
        lambda w: w.app.schedules.put("x", "0 7 30 2 *", kind="send", payload={"to": "ann"}),
        "trigger_never",
        "cron '0 7 30 2 *' never matches a date; «change its day or its month»",
    ),
    Row(
        "a schedule without a time",
        lambda w: w.app.schedules.put("x", kind="send", payload={"to": "ann"}),
        "trigger_invalid",
        "«give exactly one of cron, every and at»: each says when to run",
    ),
    Row(
        "a schedule without a job",
        lambda w: w.app.schedules.put("x", "0 7 * * *"),
        "schedule_invalid",
        "«say what to run: kind= or template=, one of them»",
    ),
    Row(
        "a schedule with wrong arguments",
        lambda w: w.app.schedules.put("x", "0 7 * * *", kind="send", payload={"too": "ann"}),
        "payload_invalid",
        "Job 'send' cannot take its arguments: 'to' is missing; 'too' is not a parameter. «Expected "
        "send(to: str, subject: str = ...)».",
    ),
    Row(
        "a misspelt time zone",
        lambda w: w.app.schedules.put("x", "0 7 * * *", tz="Europe/Berln", kind="send", payload={"to": "ann"}),
        "tz_unknown",
        "there is no time zone 'Europe/Berln'; «did you mean 'Europe/Berlin'?»",
    ),
    Row(
        "a schedule of a function",
        lambda w: w.app.schedule("0 7 * * *")(generator),
        "schedule_invalid",
        "@app.schedule was given <here>/test_wrong_calls.py<at>, which is no kind yet; «put it above "
        "@app.job, not below»",
    ),
    Row(
        "a misspelt schedule",
        lambda w: w.app.trigger("nigthly"),
        "schedule_unknown",
        "there is no schedule 'nigthly'; «did you mean 'nightly'?»",
        EVERY,
    ),
    Row(
        "a schedule's name that is taken",
        lambda w: w.app.schedules.rename("nightly", "nightly"),
        "schedule_taken",
        "there is a schedule 'nightly' already; «choose another name»",
        EVERY,
    ),
    Row(
        "a misspelt template",
        lambda w: w.app.templates.enqueue("welcom"),
        "template_unknown",
        "there is no template 'welcom'; «did you mean 'welcome'?»",
        EVERY,
    ),
    Row(
        "a lock for no time",
        lambda w: w.app.lock("report", ttl=0),
        "ttl_invalid",
        "ttl «must be seconds, more than 0, or a timedelta», not 0",
    ),
    Row(
        "a negative wait for a queue",
        lambda w: w.app.reserve("gpu", wait=-1),
        "option_invalid",
        "wait «must be seconds, not negative, a timedelta, or None to wait for ever», not -1",
    ),
    # settings and URLs
    Row(
        "a misspelt setting",
        lambda w: ANY_APP(w.url, lease=5),
        "config_unknown",
        "there is no setting 'lease'; «did you mean 'lease_s'?»",
    ),
    Row(
        "a misspelt durability",
        lambda w: ANY_APP(w.url, durability="ful"),
        "config_invalid",
        'durability must be "full" or "normal", not \'ful\'; «did you mean "full"?»',
    ),
    Row(
        "a negative lease",
        lambda w: Perdure(w.url, lease_s=-1),
        "config_invalid",
        "lease_s «must be a positive number», not -1",
    ),
    Row(
        "a time-out as text",
        lambda w: ANY_APP(w.url, busy_timeout_s="5"),
        "config_invalid",
        "busy_timeout_s «must be a positive number», not '5'",
    ),
    Row(
        "a switch as text",
        lambda w: ANY_APP(w.url, auto_migrate="yes"),
        "config_invalid",
        "auto_migrate «must be True, False or None», not 'yes'",
    ),
    Row(
        "a module without a list",
        lambda w: Perdure(w.url, imports="shop.jobs"),
        "config_invalid",
        "imports must be a list of names, not 'shop.jobs'; «write imports=['shop.jobs']»",
    ),
    Row(
        "a module that is not there",
        lambda w: Perdure(w.url, imports=["shop.jobs"]).worker(),
        "imports_failed",
        "the module 'shop.jobs' of imports= cannot be imported (ModuleNotFoundError: No module named "
        "'shop'); «write it as in an import statement, and see that Python finds it from here»",
    ),
    Row(
        "a retention of some days",
        lambda w: ANY_APP(w.url, retention=timedelta(days=5)),
        "config_invalid",
        "retention «must be Retention(…), such as Retention(completed=timedelta(days=30))», not "
        "datetime.timedelta(days=5)",
    ),
    Row(
        "an age of a retention as a number",
        lambda w: Retention(completed=90),  # type: ignore[arg-type]
        "config_invalid",
        "retention: completed «must be a timedelta, not negative, or None to keep it for ever», not 90",
    ),
    Row(
        "a URL that is a number",
        lambda w: Perdure(5).store,  # type: ignore[arg-type]
        "url_invalid",
        "a database is «named by a path or URL, as in Perdure('jobs.db')», not by 5",
    ),
    Row(
        "a database in memory",
        lambda w: Perdure(":memory:").store,
        "url_invalid",
        "':memory:' names no file, and Perdure needs one to keep jobs after the process ends; «give a path "
        "such as jobs.db»",
    ),
    Row(
        "a broker",
        lambda w: Perdure("redis://localhost/0").store,
        "url_unsupported",
        "redis:// is not a database Perdure knows; «give a path, sqlite:///path, postgresql://host/name or "
        "mysql://host/name, or install a package with a store for redis:// (entry point group "
        "perdure.stores)»",
    ),
    Row(
        "two slashes",
        lambda w: Perdure("sqlite://jobs.db").store,
        "url_invalid",
        "sqlite://jobs.db: an SQLite URL has «three slashes for a relative path (sqlite:///jobs.db) and "
        "four for an absolute one (sqlite:////var/lib/jobs.db)»",
    ),
    Row(
        "a server's URL without a server",
        lambda w: Perdure("postgresql://").store,
        "url_invalid",
        "the PostgreSQL URL cannot be read; «write postgresql://user:password@host:port/database, and "
        "%-escape characters such as @ : / ? # in user and password»",
    ),
    Row(
        "a database without our tables",
        lambda w: Perdure(w.empty).get(NOBODY),
        "schema_missing",
        "<server> has no Perdure tables yet; «run perdure db upgrade once (in Django manage.py migrate), or open it"
        " with auto_migrate=True»",
        ("postgres", "mariadb"),
    ),
    # workers
    Row(
        "a misspelt option of a worker",
        lambda w: w.app.worker(concurency=5),
        "option_unknown",
        "there is no option 'concurency'; «did you mean 'concurrency'?»",
    ),
    Row(
        "no concurrency",
        lambda w: w.app.worker(concurrency=0),
        "option_invalid",
        "concurrency «must be a whole number from 1 to 10000», not 0",
    ),
    Row(
        "a queue without a list",
        lambda w: w.app.worker(queues="mail"),
        "option_invalid",
        "queues must be a list of names, not 'mail'; «write queues=['mail']»",
    ),
    Row(
        "a worker of no queue",
        lambda w: w.app.worker(queues=[]),
        "option_invalid",
        "queues is empty, so there would be nothing to do; «leave it out to serve every queue»",
    ),
    Row(
        "an unknown order",
        lambda w: w.app.worker(order="random"),
        "option_invalid",
        'order «must be "strict" or "round_robin"», not \'random\'',
    ),
    Row(
        "a lifespan that is none",
        lambda w: w.app.worker(lifespan=5),
        "option_invalid",
        "lifespan must be a function that returns a context manager, not 5; «decorate it with "
        "contextlib.asynccontextmanager and pass the function itself»",
    ),
    # tests
    Row(
        "a test inside a test",
        in_a_test(lambda w, t: w.app.testing().__enter__()),
        "testing_nested",
        "app.testing() is already on for this app; «use the kit of that block (with pytest: the `perdure` "
        "fixture is such a block, so do not open your own)»",
    ),
    Row(
        "a worker inside a test",
        in_a_test(lambda w, t: w.app.worker()),
        "testing_worker",
        "no worker can run inside app.testing(), because its clock does not move; «run due jobs with t.drain()»",
    ),
    Row(
        "waiting inside a test",
        in_a_test(lambda w, t: w.app.wait(w.send.enqueue("ann"), 1)),
        "testing_wait",
        "no job runs while you wait inside app.testing(); «call t.drain() first, then wait for the job»",
    ),
    Row(
        "a misspelt kind in a test",
        in_a_test(lambda w, t: t.assert_enqueued("sned")),
        "kind_unknown",
        "no kind is called 'sned' here; «did you mean 'send'?»",
    ),
    Row(
        "time that runs backwards",
        in_a_test(lambda w, t: t.advance(seconds=-5)),
        "clock_backwards",
        "time cannot pass backwards: advance() was given -5.0 s; «give a later time»",
    ),
    Row(
        "a kit after its block",
        after_its_block,
        "testing_over",
        "the app.testing() block of this kit has ended and its database is gone; «look at jobs inside the block»",
    ),
    Row(
        "draining in an event loop",
        in_a_loop(lambda w, t: t.drain()),
        "drain_in_loop",
        "t.drain() cannot run coroutines inside a running event loop; «write `await t.adrain()` here»",
    ),
    Row(
        "a test on a number",
        lambda w: w.app.testing(url=5).__enter__(),
        "url_invalid",
        "a database is «named by a path or URL, as in Perdure('jobs.db')», not by 5",
    ),
    Row(
        "a test on the real database",
        lambda w: w.app.testing(url=w.url).__enter__(),
        "testing_not_empty",
        "<url> has jobs that no test has made, and app.testing(url=…) empties its database; «give the URL "
        "of one that is for tests alone»",
        EVERY,
    ),
    Row(
        "a test in a transaction beside real jobs",
        lambda w: w.app.testing(tx=w.connection()).__enter__(),
        "testing_not_empty",
        "the database of app.testing(tx=…) has jobs that wait or run, and t.drain() would run them; «give "
        "a connection to a database that is for tests alone»",
        EVERY,
    ),
    Row(
        "a test with a URL and a transaction",
        lambda w: w.app.testing(url=w.url, tx=w.connection()).__enter__(),
        "input_invalid",
        "app.testing «takes url= or tx=, not both»: a connection leads to its own database",
    ),
]


def test_there_are_more_than_forty_and_each_has_its_own_sentence() -> None:
    assert len({row.what for row in ROWS}) == len(ROWS) >= 40
    assert len([row for row in ROWS if row.where != SQLITE]) >= 40


def test_each_says_what_to_do() -> None:
    for row in ROWS:
        start, end = row.says.find("«"), row.says.find("»")
        assert 0 <= start < end - 5, row.what


CASES = [
    pytest.param(sort, row, id=f"{sort}: {row.what}", marks=_marks(sort))
    for sort in EVERY
    for row in ROWS
    if sort in row.where
]


@pytest.mark.parametrize(("world", "row"), CASES, indirect=["world"], scope="module")
def test_it_is_refused_in_a_sentence(world: World, row: Row) -> None:
    before = world.contents()

    with pytest.raises(PerdureError) as raised:
        row.call(world)

    assert (raised.value.code, written(raised.value.message, world)) == (row.code, row.says.translate(UNMARKED))
    assert world.contents() == before
    assert world.app.get(world.job) is not None, "the app goes on"


CURSORS = {"sqlite": "a sqlite3 Cursor", "postgres": "a psycopg Cursor", "mariadb": "a pymysql Cursor"}
UNMARKED = {ord("«"): None, ord("»"): None}


def written(message: str, world: World) -> str:
    """The sentence as the table has it, without what is different in every run and on every database."""
    known = {
        without_password(world.url): "<url>",
        urlsplit(world.empty).path[1:]: "<empty>",
        CURSORS[world.sort]: "<cursor>",
        str(world.job.id): "<job>",
        str(world.keyed.id): "<keyed>",
        str(world.done.id): "<done>",
        str(world.failed.id): "<failed>",
        without_password(world.other): "<other>",
        NEEDED[world.sort]: "<needed>",
        str(Path(__file__).parent): "<here>",
    }
    for value, name in known.items():
        message = message.replace(value, name)
    message = re.sub(r"(PostgreSQL|MariaDB/MySQL) database <empty> on \S+", "<server>", message)
    message = re.sub(r"(?<=not flow )[0-9a-f-]{36}", "<id>", message)
    return re.sub(r"(?<=\.py):\d+|0x[0-9a-f]+", "<at>", message)
