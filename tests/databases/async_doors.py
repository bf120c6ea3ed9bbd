"""The user's own asynchronous transactions, one class for each kind of connection, and how jobs get into them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar, Protocol
from urllib.parse import parse_qs, urlsplit

import aiomysql
import aiosqlite
import asyncmy
import asyncmy.cursors
import asyncpg
import psycopg
import sqlalchemy as sa
from psycopg.rows import dict_row
from sqlalchemy.ext.asyncio import AsyncEngine, AsyncSession, create_async_engine

from perdure import Job, Perdure
from tests.postgres.doors import Shouting, ShoutingBinary


class AsyncDoor(Protocol):
    """A connection with a transaction that is open, or begins by itself with the first statement."""

    tx: Any

    async def execute(self, sql: str) -> None: ...

    async def enqueue(self, kind: Any, *args: Any, **options: Any) -> Job: ...

    async def call(self, app: Perdure, verb: str, *args: Any, **options: Any) -> Any: ...

    async def commit(self) -> None: ...

    async def rollback(self) -> None: ...

    async def close(self) -> None: ...


class Awaited:
    """Jobs are enqueued by `await`."""

    tx: Any

    async def enqueue(self, kind: Any, *args: Any, **options: Any) -> Job:
        job: Job = await kind.options(tx=self.tx, **options).aenqueue(*args)
        return job

    async def call(self, app: Perdure, verb: str, *args: Any, **options: Any) -> Any:
        return await _verb(app.aio, verb)(*args, tx=self.tx, **options)

    async def execute(self, sql: str) -> None:
        await self.tx.execute(sql)

    async def commit(self) -> None:
        await self.tx.commit()

    async def rollback(self) -> None:
        await self.tx.rollback()

    async def close(self) -> None:
        await self.tx.close()


def _verb(app: Any, name: str) -> Any:
    for part in name.split("."):
        app = getattr(app, part)
    return app


class Aiosqlite(Awaited):
    """As aiosqlite connects by default: the first INSERT begins the transaction."""

    @classmethod
    async def open(cls, url: str) -> AsyncDoor:
        door = cls()
        door.tx = await aiosqlite.connect(url)
        return door


class AiosqliteBegun(Aiosqlite):
    """Without implicit transactions, after BEGIN; rows and texts come as the user likes them."""

    @classmethod
    async def open(cls, url: str) -> AsyncDoor:
        door = cls()
        door.tx = await aiosqlite.connect(url, isolation_level=None)
        door.tx.row_factory, door.tx.text_factory = aiosqlite.Row, bytes
        await door.tx.execute("BEGIN")
        return door


class Psycopg(Awaited):
    """As psycopg connects by default: the first statement begins the transaction."""

    @classmethod
    async def open(cls, url: str) -> AsyncDoor:
        door = cls()
        door.tx = await psycopg.AsyncConnection.connect(url)
        return door


class PsycopgOdd(Awaited):
    """In autocommit mode, inside `async with connection.transaction():`; all that can be set is set in another way."""

    @classmethod
    async def open(cls, url: str) -> AsyncDoor:
        door = cls()
        door.tx = await psycopg.AsyncConnection.connect(
            url,
            autocommit=True,
            row_factory=dict_row,
            cursor_factory=psycopg.AsyncClientCursor,
            prepare_threshold=0,
        )
        for name in ("text", "int8", "uuid"):
            door.tx.adapters.register_loader(name, Shouting)
            door.tx.adapters.register_loader(name, ShoutingBinary)
        door._block = door.tx.transaction()
        await door._block.__aenter__()
        return door

    _block: Any

    async def commit(self) -> None:
        await self._block.__aexit__(None, None, None)

    async def rollback(self) -> None:
        rollback = psycopg.Rollback()
        await self._block.__aexit__(type(rollback), rollback, None)


class Asyncpg(Awaited):
    """Inside its own transaction, begun by hand."""

    options: ClassVar[dict[str, Any]] = {}
    _begun: Any

    @classmethod
    async def open(cls, url: str) -> AsyncDoor:
        door = cls()
        door.tx = await asyncpg.connect(url, **cls.options)
        door._begun = door.tx.transaction()
        await door._begun.start()
        return door

    async def commit(self) -> None:
        await self._begun.commit()

    async def rollback(self) -> None:
        await self._begun.rollback()


class OwnRecord(asyncpg.Record):  # type: ignore[misc]  # asyncpg carries no types
    """Rows as the user likes them."""


class AsyncpgUncached(Asyncpg):
    """As behind a pooler: nothing is prepared for longer than one statement."""

    options: ClassVar[dict[str, Any]] = {"statement_cache_size": 0, "record_class": OwnRecord}


class AsyncpgPool(Asyncpg):
    """A connection that asyncpg's own pool lends."""

    _pool: Any

    @classmethod
    async def open(cls, url: str) -> AsyncDoor:
        door = cls()
        door._pool = await asyncpg.create_pool(url, min_size=1, max_size=1)
        door.tx = await door._pool.acquire()
        door._begun = door.tx.transaction()
        await door._begun.start()
        return door

    async def close(self) -> None:
        await self._pool.release(self.tx)
        await self._pool.close()


def engine_at(url: str, driver: str, **options: Any) -> AsyncEngine:
    """SQLAlchemy's, on this driver."""
    if driver == "aiosqlite":
        return create_async_engine(f"sqlite+aiosqlite:///{url}", **options)
    scheme, rest = url.split(":", 1)
    return create_async_engine(f"{scheme}+{driver}:{rest}", **options)


class Aiomysql(Awaited):
    """As aiomysql connects by default: the first statement begins the transaction."""

    library: ClassVar[Any] = aiomysql
    options: ClassVar[dict[str, Any]] = {}

    @classmethod
    async def open(cls, url: str) -> AsyncDoor:
        parts, door = urlsplit(url), cls()
        line = parse_qs(parts.query)["unix_socket"][0]
        door.tx = await cls.library.connect(
            unix_socket=line, user=parts.username, db=parts.path[1:], autocommit=False, **cls.options
        )
        return door

    async def execute(self, sql: str) -> None:
        async with self.tx.cursor() as cursor:
            await cursor.execute(sql)

    async def close(self) -> None:
        await self.tx.ensure_closed()


class Asyncmy(Aiomysql):
    """In autocommit mode, after BEGIN; rows are dicts."""

    library: ClassVar[Any] = asyncmy
    options: ClassVar[dict[str, Any]] = {"cursor_cls": asyncmy.cursors.DictCursor}

    @classmethod
    async def open(cls, url: str) -> AsyncDoor:
        door = await super().open(url)
        await door.tx.autocommit(True)
        await door.tx.begin()
        return door


class SqlAlchemy(Awaited):
    """An AsyncSession."""

    _engine: AsyncEngine

    @classmethod
    async def open(cls, url: str, driver: str) -> AsyncDoor:
        door = cls()
        door._engine = engine_at(url, driver)
        door.tx = await door.begun()
        return door

    async def begun(self) -> Any:
        return AsyncSession(self._engine)

    async def execute(self, sql: str) -> None:
        await self.tx.execute(sa.text(sql))

    async def close(self) -> None:
        await self.tx.invalidate()  # a cancel may have closed the connection, and nothing can be rolled back on it
        await self.tx.close()
        await self._engine.dispose()


class SqlAlchemyConnection(SqlAlchemy):
    """An AsyncConnection."""

    async def begun(self) -> Any:
        return await self._engine.connect()


class RunSync(SqlAlchemy):
    """An AsyncSession whose synchronous one is used, as `run_sync` gives it."""

    async def enqueue(self, kind: Any, *args: Any, **options: Any) -> Job:
        job: Job = await self.tx.run_sync(lambda session: kind.options(tx=session, **options).enqueue(*args))
        return job

    async def call(self, app: Perdure, verb: str, *args: Any, **options: Any) -> Any:
        return await self.tx.run_sync(lambda session: _verb(app, verb)(*args, tx=session, **options))


Open = Callable[[str], Any]


def _with_sqlalchemy(driver: str) -> dict[str, Open]:
    ways: dict[str, Any] = {"AsyncSession": SqlAlchemy, "AsyncConnection": SqlAlchemyConnection, "run_sync": RunSync}
    return {f"{name}, {driver}": partial(way.open, driver=driver) for name, way in ways.items()}


DOORS: dict[str, dict[str, Open]] = {
    "sqlite": {
        "aiosqlite": Aiosqlite.open,
        "aiosqlite, begun": AiosqliteBegun.open,
        **_with_sqlalchemy("aiosqlite"),
    },
    "postgres": {
        "psycopg": Psycopg.open,
        "psycopg, transaction block": PsycopgOdd.open,
        "asyncpg": Asyncpg.open,
        "asyncpg, uncached": AsyncpgUncached.open,
        "asyncpg, pool": AsyncpgPool.open,
        **_with_sqlalchemy("psycopg"),
        **_with_sqlalchemy("asyncpg"),
    },
    "mariadb": {
        "aiomysql": Aiomysql.open,
        "asyncmy": Asyncmy.open,
        **_with_sqlalchemy("aiomysql"),
        **_with_sqlalchemy("asyncmy"),
    },
}
