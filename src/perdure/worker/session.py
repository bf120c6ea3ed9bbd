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
    made = _made(source)
    if _is_awaited(made):
        raise _to_be_awaited(made)
    if is_django(made):
        with sys.modules["django.db.transaction"].atomic(using=made.alias):
            yield made
    elif _is_engine(made):
        with made.begin() as connection:
            yield connection
    else:
        with made, made.begin():
            yield made


@asynccontextmanager
async def opened_async(source: Any) -> AsyncGenerator[Any, None]:
    """The same for coroutines: an AsyncSession or AsyncConnection."""
    made = _made(source)
    if not _is_awaited(made):
        raise _not_awaitable(made)
    if _is_engine(made):
        async with made.begin() as connection:
            yield connection
    else:
        async with made, made.begin():
            yield made


def _made(source: Any) -> Any:
    """What the transaction is begun on: Django's connection, an Engine, or a new Session."""
    if is_django(source) or _is_engine(source):
        return source
    session = source() if callable(source) else None
    if not hasattr(session, "begin") or not hasattr(session, "get_bind"):
        raise InvalidOption(
            "session= takes what opens one: SQLAlchemy's sessionmaker, scoped_session or Engine, or Django's"
            f" connection; not {shown(source)}"
        )
    return session


def _is_engine(source: Any) -> bool:
    return hasattr(source, "connect") and hasattr(source, "dialect")


def _is_awaited(made: Any) -> bool:
    return hasattr(made, "sync_engine") or is_async(made)


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
