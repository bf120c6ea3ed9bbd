"""`ctx.transaction(session=…)`: the handler's own transaction, of SQLAlchemy or Django, as the one that ends the job.
Called by `services`. Found by duck typing: neither is imported here."""

from __future__ import annotations

import sys
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from perdure.errors import InvalidOption, TransactionError, shown
from perdure.store.transaction import is_async, is_django, named


@contextmanager
def opened(source: Any) -> Generator[Any, None, None]:
    """A new transaction of the user's: a Session, a Connection, or Django's connection inside `atomic()`. Commits at
    the end; an error rolls it back."""
    if is_django(source):
        with sys.modules["django.db.transaction"].atomic(using=source.alias):
            yield source
    elif _is_engine(source):
        if hasattr(source, "sync_engine"):
            raise _to_be_awaited(source)
        with source.begin() as connection:
            yield connection
    else:
        session = _made(source)
        if is_async(session):
            raise _to_be_awaited(session)
        with session, session.begin():
            yield session


@asynccontextmanager
async def opened_async(source: Any) -> AsyncGenerator[Any, None]:
    """The same for coroutines: an AsyncSession or AsyncConnection."""
    if is_django(source):
        raise _not_awaitable(source)
    if _is_engine(source):
        if not hasattr(source, "sync_engine"):
            raise _not_awaitable(source)
        async with source.begin() as connection:
            yield connection
    else:
        session = _made(source)
        if not is_async(session):
            raise _not_awaitable(session)
        async with session, session.begin():
            yield session


def _is_engine(source: Any) -> bool:
    return hasattr(source, "connect") and hasattr(source, "dialect")


def _made(source: Any) -> Any:
    session = source() if callable(source) else None
    if not hasattr(session, "begin") or not hasattr(session, "get_bind"):
        raise InvalidOption(
            "session= takes what opens one: SQLAlchemy's sessionmaker, scoped_session or Engine, or Django's"
            f" connection; not {shown(source)}"
        )
    return session


def _to_be_awaited(session: object) -> TransactionError:
    return TransactionError(
        f"session= gives {named(session)}, whose statements have to be awaited; write"
        " async with ctx.transaction(session=…) in a coroutine",
        code="tx_async",
    )


def _not_awaitable(session: object) -> TransactionError:
    return TransactionError(
        f"session= gives {named(session)}, which cannot be awaited; give an async_sessionmaker or an AsyncEngine, or"
        " write a plain with ctx.transaction(session=…) in a function that is not a coroutine",
        code="tx_async",
    )
