"""The user's own transaction: finds the driver's connection behind whatever was given as `tx=`. Used by the dialects.

Duck typing, no dependency: a driver connection, an SQLAlchemy Connection or Session, or a Django connection.
"""

from __future__ import annotations

from typing import Any

from perdure.errors import TransactionError


def driver_connection(tx: Any) -> object:
    """The connection the jobs are written on. SQLAlchemy is told first that its transaction has begun: work it has not
    seen begin would be thrown away, not committed, when its connection goes back to the pool."""
    try:
        return _behind(tx)
    except TransactionError:
        raise
    except Exception as error:
        raise TransactionError(
            f"tx= is a {type(tx).__name__} that gives no connection ({error}); hand over one that has begun its"
            " transaction, or can",
            code="tx_unusable",
        ) from error


def behind_a_job(tx: object) -> object:
    """The transaction of ours that stands behind what `ctx.transaction()` gives to a handler."""
    return getattr(tx, "__perdure_transaction__", tx)


def _behind(tx: Any) -> object:
    if hasattr(tx, "get_bind") and callable(getattr(tx, "connection", None)):
        return _of_sqlalchemy(tx.connection())
    if hasattr(tx, "exec_driver_sql"):
        return _of_sqlalchemy(tx)
    if hasattr(tx, "ensure_connection") and hasattr(tx, "vendor"):
        return _of_django(tx)
    return tx


def _of_sqlalchemy(connection: Any) -> object:
    if connection.closed:
        raise closed()
    if not connection.in_transaction():
        connection.begin()
    return connection.connection.driver_connection


def _of_django(connection: Any) -> object:
    connection.ensure_connection()
    return connection.connection


def closed() -> TransactionError:
    return TransactionError(
        "the connection given as tx= is closed; give an open one, inside the transaction that the job belongs to",
        code="tx_closed",
    )


def not_open() -> TransactionError:
    return TransactionError(
        "the connection given as tx= is in autocommit mode and no transaction is open, so the job would not share your"
        " work's fate; begin a transaction first (BEGIN, atomic(), session.begin())",
        code="tx_not_open",
    )


def unknown(tx: object, wanted: str) -> TransactionError:
    return TransactionError(
        f"tx= got a {type(tx).__name__}; this app's database needs {wanted}, an SQLAlchemy Connection or Session on it,"
        " or Django's connection",
        code="tx_unknown_type",
    )
