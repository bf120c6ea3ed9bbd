"""Transactions shared with the user: ours, which their calls join, and theirs, given as `tx=`. Used by the dialects."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from inspect import iscoroutinefunction
from typing import Any, NamedTuple, Protocol

from perdure.errors import StoreError, TransactionError
from perdure.store.engine import Make
from perdure.uninterrupted import interruptible

# -- ours ------------------------------------------------------------------------------------------------------------

open_here: ContextVar[Mapping[object, Any] | None] = ContextVar("perdure_transaction", default=None)
"""The transactions of ours that are open in this thread or task, by database."""


class Block(Protocol):
    """One transaction of ours around the caller's code: how a database begins, commits and ends it."""

    def begin(self) -> Any:
        """`end` follows, even if this fails."""
        ...

    def commit(self) -> None:
        """Nothing joins any more. Returns when the transaction is durable."""
        ...

    def end(self, *, at_rest: bool) -> None:
        """Roll back what was not committed, and give back what it holds. May be repeated after an interrupt. `at_rest`
        False: it was interrupted, and nobody knows what its connection has read."""
        ...


def joined(database: object) -> Any:
    """The open transaction in this database that a call made now would join. None: there is none."""
    found = (open_here.get() or {}).get(database)
    return found if found is not None and found.is_joinable() else None


def open_block(database: object, block: Block, *, join: bool) -> Generator[Any, None, None]:
    """Yield a new transaction once, which calls join until it ends.

    Inside another one of this thread or task it is refused; with `join` it is a part of that one. If an interrupt stops
    a `with` from resuming this generator, the transaction ends with the last reference to the generator.
    """
    outer = joined(database)
    if outer is not None and join:
        with interruptible:
            yield outer
        return
    if outer is not None:
        raise StoreError("a transaction is already open here; use the one you have", code="tx_nested")
    before = open_here.get()
    inside: dict[object, Any] = {}
    at_rest = False
    try:
        opened = block.begin()
        inside.update({**(before or {}), database: opened})
        open_here.set(inside)
        with interruptible:
            yield opened
        _leave(inside, before)
        block.commit()
        at_rest = True
    except Exception:
        at_rest = True
        raise
    finally:
        try:
            _leave(inside, before)
            block.end(at_rest=at_rest)
        except BaseException:  # an interrupt just now: finish the clean-up in any case
            _leave(inside, before)
            block.end(at_rest=False)
            raise


@contextmanager
def joining(database: object, run: Callable[[Make[Any]], Any]) -> Generator[None, None, None]:
    """Calls in this thread or task join a transaction of the user's, in which `run` runs operations. He commits it."""
    before = open_here.get()
    joined = _Joined(run)
    inside = {**(before or {}), database: joined}
    try:
        open_here.set(inside)
        yield
    finally:
        joined.over = True
        _leave(inside, before)


class _Joined:
    """A transaction of the user's that calls without `tx=` join."""

    def __init__(self, run: Callable[[Make[Any]], Any]) -> None:
        self.run = run
        self.read = run
        self.over = False

    def is_joinable(self) -> bool:
        return not self.over


def _leave(inside: Mapping[object, Any], before: Mapping[object, Any] | None) -> None:
    if open_here.get() is inside:  # else the block was abandoned, and is ended from another context
        open_here.set(before)


# -- the user's ------------------------------------------------------------------------------------------------------


def driver_connection(tx: Any) -> Any:
    """The connection to write jobs on, found by duck typing: of a driver connection, an SQLAlchemy Connection or
    Session, or a Django connection. If it has a method `run_async`, there is an asynchronous one behind it, on which
    that method runs a coroutine, and waits for it (SQLAlchemy's `run_sync`; a verb of `app.aio`).

    SQLAlchemy must know first that its transaction has begun: otherwise it would roll our work back, not commit it,
    when the connection goes back to its pool.
    """
    if is_async(tx):
        raise _to_be_awaited(tx)
    with _usable(tx):
        return _behind(tx)


async def async_connection(tx: Any) -> Any:
    """The same for coroutines: the driver's own asynchronous connection, also behind SQLAlchemy's, or behind what the
    pool of asyncpg lends."""
    if hasattr(tx, "_con"):
        tx = tx._con
    if tx is None:
        raise closed()
    if not hasattr(tx, "run_sync"):
        return tx
    with _usable(tx):
        adapted = await tx.run_sync(driver_connection)
    return adapted.driver_connection


def is_async(tx: object) -> bool:
    """Whether its statements have to be awaited. (Those who borrow a connection from asyncpg's pool get an object that
    hides its coroutines on Python 3.11.)"""
    return iscoroutinefunction(getattr(tx, "commit", None)) or hasattr(tx, "is_in_transaction")


def is_django(tx: object) -> bool:
    """Whether it is a connection of Django's, which is not imported here."""
    return hasattr(tx, "ensure_connection") and hasattr(tx, "vendor")


def of_this_thread(tx: object) -> object:
    """Django's `connection` is another one in each thread and in each coroutine: the one that it is here."""
    given = vars(tx) if is_django(tx) else {}
    return given["_connections"][given["_alias"]] if "_alias" in given else tx


@contextmanager
def _usable(tx: object) -> Generator[None, None, None]:
    try:
        yield
    except TransactionError:
        raise
    except Exception as error:
        if type(error).__name__ == "MissingGreenlet":  # SQLAlchemy's word for it
            raise _to_be_awaited(tx) from error
        raise TransactionError(
            f"tx= is {named(tx)} that gives no connection ({error}); give one whose transaction has begun, or can"
            " begin",
            code="tx_unusable",
        ) from error


def _to_be_awaited(tx: object) -> TransactionError:
    return TransactionError(
        f"tx= is {named(tx)}, whose statements have to be awaited; write await kind.options(tx=…).aenqueue(…), or"
        " await app.aio.cancel(job, tx=…) and the like. With SQLAlchemy also"
        " await session.run_sync(lambda s: kind.options(tx=s).enqueue(…))",
        code="tx_async",
    )


def named(tx: object) -> str:
    """What it is, with the library that made it: `a psycopg AsyncConnection`."""
    library, name = type(tx).__module__.split(".")[0], type(tx).__name__
    words = name if library == "builtins" else f"{library} {name}"
    return f"an {words}" if words[0] in "aeiouAEIOU" else f"a {words}"


def behind_a_job(tx: object) -> object:
    """The transaction of ours behind the object that `ctx.transaction()` gives to a handler."""
    return getattr(tx, "__perdure_transaction__", tx)


def _behind(tx: Any) -> object:
    if hasattr(tx, "get_bind") and callable(getattr(tx, "connection", None)):
        return _of_sqlalchemy(tx.connection())
    if hasattr(tx, "exec_driver_sql"):
        return _of_sqlalchemy(tx)
    if is_django(tx):
        return _of_django(tx)
    return tx


def _of_sqlalchemy(connection: Any) -> object:
    if connection.closed:
        raise closed()
    if not connection.in_transaction():
        connection.begin()
    if connection.dialect.driver == "asyncpg" and not connection.connection.driver_connection.is_in_transaction():
        connection.exec_driver_sql("SELECT 1")  # SQLAlchemy begins it with its own first statement
    found = connection.connection.dbapi_connection
    if hasattr(found, "run_async"):
        found.run_async(_nothing)  # fails outside of run_sync
    return found


async def _nothing(connection: object) -> None: ...


def _of_django(connection: Any) -> object:
    if connection.connection is None:  # in a coroutine Django refuses to open one
        connection.ensure_connection()
    return connection.connection


def closed() -> TransactionError:
    return TransactionError(
        "the connection given as tx= is closed; give an open one, inside the transaction of the job",
        code="tx_closed",
    )


def over() -> TransactionError:
    """The error for a transaction of ours that is used after its block."""
    return TransactionError(
        "this transaction has ended; use it inside its with block, in the process that opened it", code="tx_closed"
    )


def not_open() -> TransactionError:
    return TransactionError(
        "the connection given as tx= is in autocommit mode and no transaction is open, so the job would not commit"
        " together with your rows; begin a transaction first (BEGIN, atomic(), session.begin())",
        code="tx_not_open",
    )


BUSY = (
    "the connection given as tx= is in the middle of another statement; finish that first, and use a connection in one"
    " thread or task at a time"
)


def busy() -> TransactionError:
    return TransactionError(BUSY, code="tx_busy")


def unknown(tx: object, wanted: str) -> TransactionError:
    return TransactionError(
        f"tx= got {named(tx)}; {_way_out(tx)}this app's database needs {wanted}, an SQLAlchemy Connection or Session on"
        " it, or Django's connection",
        code="tx_unknown_type",
    )


def _way_out(tx: Any) -> str:
    """For what people have in their hands where the connection is meant."""
    if hasattr(tx, "dialect"):
        return "open a connection first (with engine.begin() as connection); "
    if hasattr(tx, "class_") and hasattr(tx, "begin"):
        return "open a session first (with sessions.begin() as session); "
    if hasattr(tx, "fetchone"):
        return "give the connection of this cursor; "
    if hasattr(tx, "__enter__") and hasattr(tx, "gen"):
        return "give what its block gives (with app.transaction() as tx); "
    return ""


# -- statements that begin or end a transaction ----------------------------------------------------------------------


class Grammar(NamedTuple):
    """How a database splits a text into pieces, whether it runs only the first statement of it, and which statements
    commit by themselves: by their first words."""

    pieces: re.Pattern[str]
    only_first: bool = False
    commits: frozenset[str] = frozenset()


def refuse_control(sql: str, grammar: Grammar) -> None:
    """Raise TransactionError if any statement of the text would begin or end the transaction, however it is written.

    The text is read as the database reads it: comments, strings, quoted names and the body of a trigger or a function
    may contain anything. Text that the database cannot parse may pass: the database refuses all of it.
    """
    if not grammar.commits and not _SUSPECT.search(sql):
        return
    for words in _statements(sql, grammar.pieces):
        if _commits(words, grammar.commits):
            raise TransactionError(
                f"{' '.join(words[:3])} inside app.transaction(): this database commits before such a statement, and"
                " your transaction would end in its middle; run it first, or outside of the block",
                code="tx_managed",
            )
        if _controls(words):
            raise TransactionError(
                f"{' '.join(words[:3])} inside app.transaction(): the block commits at its end and rolls back on an"
                " exception; leave BEGIN, COMMIT and ROLLBACK to it, and use a SAVEPOINT to undo a part",
                code="tx_managed",
            )
        if words and grammar.only_first:
            return


def ended() -> TransactionError:
    """The error for a transaction that has ended before its block."""
    return TransactionError(
        "the transaction was ended by a statement inside it, so nothing more can join it. If that was a COMMIT, what"
        " was written before it is in the database; if it was a rollback (INSERT OR ROLLBACK, RAISE(ROLLBACK), a full"
        " disk), nothing is. Leave COMMIT and ROLLBACK to the block; check what was written, and begin again",
        code="tx_ended",
    )


_SUSPECT = re.compile(r"\b(?:BEGIN|START|COMMIT|END|ABORT|ROLLBACK|PREPARE)\b", re.IGNORECASE)
_SQLITE = re.compile(
    r"""(?P<skip>[\s\ufeff]+ | --[^\n]* | /\*.*?(?:\*/|\Z))
    | (?P<quoted>'(?:[^']|'')*' | "(?:[^"]|"")*" | `(?:[^`]|``)*` | \[[^]]*\])
    | (?P<word>[^\W\d][\w$]*)
    | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)
SQLITE = Grammar(_SQLITE, only_first=True)
"""The sqlite3 module runs no text with a second statement in it."""
_POSTGRES = r"""(?P<skip>\s+ | --[^\n\r]*)
    | (?P<comment>/\*)
    | (?P<quoted>[eE]'(?:[^'\\]|\\.|'')*' | '(?:%s|'')*' | "(?:[^"]|"")*" | \$(?P<tag>(?:[^\W\d]\w*)?)\$.*?\$(?P=tag)\$)
    | (?P<word>[^\W\d][\w$]*)
    | (?P<mark>.)"""
POSTGRES = Grammar(re.compile(_POSTGRES % "[^']", re.VERBOSE | re.DOTALL))
POSTGRES_WITH_BACKSLASHES = Grammar(re.compile(_POSTGRES % r"[^'\\]|\\.", re.VERBOSE | re.DOTALL))
"""With standard_conforming_strings off, where a backslash may escape the quote of any string."""


_MYSQL = re.compile(
    r"""(?P<skip>\s+ | --(?=[\s\x00-\x1f]|\Z)[^\n]* | \#[^\n]* | /\*M?!\d* | \*/ | /\*(?!M?!).*?(?:\*/|\Z))
    | (?P<quoted>'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `(?:[^`]|``)*`)
    | (?P<word>@{0,2}[^\W\d][\w$]*)
    | (?P<mark>.)""",
    re.VERBOSE | re.DOTALL,
)
MYSQL = Grammar(
    _MYSQL,
    commits=frozenset(
        [
            "ALTER",
            "ANALYZE",
            "CACHE",
            "CHANGE",
            "CHECK",
            "CREATE",
            "DROP",
            "FLUSH",
            "GRANT",
            "INSTALL",
            "LOCK",
            "OPTIMIZE",
            "PURGE",
            "RENAME",
            "REPAIR",
            "RESET",
            "REVOKE",
            "STOP",
            "TRUNCATE",
            "UNINSTALL",
            "UNLOCK",
            "XA",
        ]
    ),
)
"""MariaDB and MySQL. What stands in /*! … */ is run. A backslash is taken for an escape, as it is unless sql_mode says
otherwise."""


def begins_with(sql: str, grammar: Grammar, verbs: Collection[str]) -> bool:
    """Whether the text is one statement, whose first word is one of these."""
    words, *more = _statements(sql, grammar.pieces)
    return bool(words) and words[0] in verbs and not any(more)


def by_name(sql: str, params: Any, grammar: Grammar) -> str:
    """The statement with `:name` written as `%(name)s`, as drivers of servers want it. Only where the parameters have
    names and one of them is written so: anything else is in the driver's own style, and stays as it is.

    A `:name` in a string, a comment or a quoted name stays, and so does `::name`, which is a cast.
    """
    if not isinstance(params, Mapping) or ":" not in sql:
        return sql
    written: list[str] = []
    at = last = 0
    while found := grammar.pieces.match(sql, at):
        colon = found.start()
        at = _end_of_comment(sql, found.end()) if found.lastgroup == "comment" else found.end()
        name = _NAME.match(sql, at) if found[0] == ":" and sql[colon - 1 : colon] != ":" else None
        if name is not None and name[0] in params:
            written += [sql[last:colon].replace("%", "%%"), f"%({name[0]})s"]
            at = last = name.end()
    return "".join([*written, sql[last:].replace("%", "%%")]) if written else sql


_NAME = re.compile(r"[^\W\d]\w*")


def _statements(sql: str, pieces: re.Pattern[str]) -> Iterator[list[str]]:
    """The unquoted words of each statement, in capitals. Semicolons in brackets, or in a function's body, end none."""
    words: list[str] = []
    brackets = blocks = 0
    for sort, text in _tokens(sql, pieces):
        if text == ";" and not brackets and not blocks:
            yield words
            words = []
        elif sort == "mark":
            brackets += (text == "(") - (text == ")")
        elif sort == "word":
            words.append(text.upper())
            blocks += _opens_or_closes(words, inside=blocks > 0)
    yield words


def _tokens(sql: str, pieces: re.Pattern[str]) -> Iterator[tuple[str, str]]:
    at = 0
    while found := pieces.match(sql, at):
        at = found.end()
        sort = found.lastgroup or "quoted"
        if sort == "comment":
            at = _end_of_comment(sql, at)
        elif sort in ("word", "mark"):
            yield sort, found[0]


def _end_of_comment(sql: str, at: int) -> int:
    """PostgreSQL's comments can be nested."""
    depth = 1
    for mark in re.compile(r"/\*|\*/").finditer(sql, at):
        depth += 1 if mark[0] == "/*" else -1
        if not depth:
            return mark.end()
    return len(sql)


def _opens_or_closes(words: Sequence[str], *, inside: bool) -> int:
    """How the last word changes the depth of BEGIN ATOMIC … END in CREATE FUNCTION, which contains statements."""
    before, last = words[-2:] if len(words) > 1 else ("", words[-1])
    if last == "ATOMIC" and before == "BEGIN" and words[0] == "CREATE":
        return 1
    if not inside or before == "AS":
        return 0
    return {"CASE": 1, "END": -1}.get(last, 0)


def _commits(words: Sequence[str], commits: frozenset[str]) -> bool:
    """Temporary tables commit nothing; to switch autocommit on does."""
    match words:
        case [first, second, *_] if first in commits:
            return first not in ("CREATE", "DROP") or second != "TEMPORARY"
        case ["SET", *rest] if commits:
            return any(word.lstrip("@") in ("AUTOCOMMIT", "PASSWORD") for word in rest)
        case _:
            return False


def _controls(words: Sequence[str]) -> bool:
    match words:
        case ["ROLLBACK", *rest]:
            return "TO" not in rest
        case ["PREPARE", second, *_]:
            return second == "TRANSACTION"
        case ["BEGIN" | "START" | "COMMIT" | "END" | "ABORT", *_]:
            return True
        case _:
            return False
