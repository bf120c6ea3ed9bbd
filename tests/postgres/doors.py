"""The user's own transactions on PostgreSQL, one class for each kind of connection that `tx=` takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import psycopg2
import sqlalchemy as sa
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.rows import dict_row
from psycopg2.extras import RealDictCursor, register_uuid

from tests.app.doors import DjangoAtomic, Door, SqlAlchemyConnection, SqlAlchemySession


class Psycopg:
    """As psycopg connects by default: the first statement begins the transaction."""

    def __init__(self, url: str) -> None:
        self.tx: psycopg.Connection[Any] = psycopg.connect(url)

    def execute(self, sql: str) -> None:
        self.tx.execute(sql.encode())

    def commit(self) -> None:
        self.tx.commit()

    def rollback(self) -> None:
        self.tx.rollback()

    def close(self) -> None:
        self.tx.close()


class PsycopgBlock(Psycopg):
    """In autocommit mode, inside `with connection.transaction():`."""

    def __init__(self, url: str) -> None:
        self.tx = psycopg.connect(url, autocommit=True)
        self._block = self.tx.transaction()
        self._block.__enter__()

    def commit(self) -> None:
        self._block.__exit__(None, None, None)

    def rollback(self) -> None:
        rollback = psycopg.Rollback()
        self._block.__exit__(type(rollback), rollback, None)


class Shouting(Loader):
    def load(self, data: Any) -> str:
        return f"{bytes(data)!r}!"


class ShoutingBinary(Shouting):
    format = Format.BINARY


class OddFactories(Psycopg):
    """Rows, cursors, numbers and texts come as the user likes them, and everything is prepared at once."""

    def __init__(self, url: str) -> None:
        self.tx = psycopg.connect(url, row_factory=dict_row, cursor_factory=psycopg.ClientCursor, prepare_threshold=0)
        for name in ("text", "int8", "uuid"):
            self.tx.adapters.register_loader(name, Shouting)
            self.tx.adapters.register_loader(name, ShoutingBinary)


def engine_at(url: str, driver: str = "psycopg", **options: Any) -> sa.Engine:
    return sa.create_engine(url.replace("postgresql:", f"postgresql+{driver}:"), **options)


class Psycopg2(Psycopg):
    """As psycopg2 connects by default, with rows and ids as the user likes them."""

    def __init__(self, url: str) -> None:
        self.tx: Any = psycopg2.connect(url, cursor_factory=RealDictCursor)
        register_uuid(conn_or_curs=self.tx)

    def execute(self, sql: str) -> None:
        self.tx.cursor().execute(sql)


DOORS: dict[str, Callable[[str], Door]] = {
    "psycopg2": Psycopg2,
    "SQLAlchemy Session on psycopg2": lambda url: SqlAlchemySession(engine_at(url, "psycopg2")),
    "psycopg": Psycopg,
    "psycopg, transaction block": PsycopgBlock,
    "psycopg, odd factories": OddFactories,
    "SQLAlchemy Connection": lambda url: SqlAlchemyConnection(engine_at(url)),
    "SQLAlchemy Session": lambda url: SqlAlchemySession(engine_at(url)),
    "Django, atomic": DjangoAtomic,
}
