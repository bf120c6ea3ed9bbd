"""Which statements are refused inside `app.transaction()`: those that begin or end it, however they are written."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import closing, contextmanager

from hypothesis import example, given, settings
from hypothesis import strategies as st

from perdure.errors import TransactionError
from perdure.store.transaction import POSTGRES, POSTGRES_WITH_BACKSLASHES, SQLITE, Grammar, refuse_control

CONTROL = ("COMMIT", "ROLLBACK", "END", "BEGIN", "COMMIT TRANSACTION", "END TRANSACTION", "ROLLBACK TRANSACTION")
SQLITE_CONTROL = (*CONTROL, "BEGIN IMMEDIATE", "BEGIN DEFERRED TRANSACTION")
POSTGRES_CONTROL = (
    *(*CONTROL, "ABORT", "START TRANSACTION", "COMMIT WORK", "COMMIT AND CHAIN", "ROLLBACK AND NO CHAIN"),
    *(
        "PREPARE TRANSACTION 'to'",
        "COMMIT PREPARED 'x'",
        "ROLLBACK PREPARED 'to'",
        "BEGIN ISOLATION LEVEL SERIALIZABLE",
    ),
)
HARMLESS = (
    *("SELECT 1", "SAVEPOINT mine", "ROLLBACK TO mine", "RELEASE mine", "ROLLBACK TRANSACTION TO SAVEPOINT mine"),
    *(
        "SELECT 'x; COMMIT; it''s'",
        'SELECT 1 AS "x; commit; ""end"""',
        "SELECT 1 AS a -- ; COMMIT\n",
        "SELECT /* ; COMMIT */ 1",
    ),
    "SELECT CASE WHEN 1 = 1 THEN 2 END",
)
SQLITE_HARMLESS = (
    *HARMLESS,
    *("SELECT 1 AS `; commit`", "SELECT 1 AS [; commit]", "EXPLAIN COMMIT"),
    "CREATE TEMP TRIGGER t BEFORE INSERT ON mine BEGIN SELECT 1; SELECT CASE WHEN 1 THEN 2 END; END",
)
POSTGRES_HARMLESS = (
    *HARMLESS,
    *("SELECT 1; SELECT 2", r"SELECT E'\'; COMMIT; \''", "SELECT $$; COMMIT;$$", "SELECT $a$; $$ COMMIT; $b$ $a$"),
    *("PREPARE commit AS SELECT 1", "ROLLBACK WORK TO SAVEPOINT mine", "SELECT /* /* */ ; COMMIT */ 1"),
    "CREATE FUNCTION pg_temp.f() RETURNS int LANGUAGE sql BEGIN ATOMIC SELECT CASE WHEN true THEN 1 END; SELECT 2; END",
    "CREATE RULE r AS ON INSERT TO mine DO ALSO (SELECT 1; SELECT 2)",
    "DO $$ BEGIN PERFORM 1; END $$",
)

blanks = st.sampled_from([" ", "\t", "\n", "\r", "\f"])
comments = st.sampled_from(["-- x\n", "--;\n", "/*x*/", "/**/", "/* ' */", '/* -- " */', "/*\n;*/", "/* BEGIN */"])
SQLITE_GAPS = st.one_of(blanks, comments, st.sampled_from(["\ufeff", "-- \r COMMIT\n", "/* /* */"]))
POSTGRES_GAPS = st.one_of(blanks, st.just("\v"), comments, st.sampled_from(["/* /* */ */", "--\r", "--'\r\n"]))


def refused(sql: str, grammar: Grammar) -> bool:
    try:
        refuse_control(sql, grammar)
    except TransactionError as error:
        return error.code == "tx_managed"
    return False


@st.composite
def decorated(draw: st.DrawFn, statement: str, gaps: st.SearchStrategy[str]) -> str:
    """The same statement for the database: other letters, and blanks, comments and semicolons around its words."""
    gap = st.lists(gaps, min_size=1, max_size=3).map("".join)
    words = statement.split(" ")
    if "'" not in statement and '"' not in statement:
        words = [draw(st.sampled_from([word.upper(), word.lower(), word.title()])) for word in words]
    text = (draw(blanks) + draw(gap)).join(words)
    before = draw(st.lists(st.one_of(gaps, st.just(";")), max_size=4).map("".join))
    return before + text + draw(st.sampled_from(["", ";", " ;", "/* x */", "-- x"]))


@contextmanager
def in_sqlite() -> Generator[sqlite3.Connection, None, None]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.execute("CREATE TABLE mine (x)")
        connection.execute("BEGIN")
        connection.execute("SAVEPOINT mine")
        yield connection


def sqlite_ends(sql: str) -> bool | None:
    """Whether SQLite itself begins or ends a transaction with it. None: it does not understand it."""
    with in_sqlite() as connection:
        try:
            connection.execute(sql)
        except (sqlite3.Error, sqlite3.Warning) as error:
            return True if "within a transaction" in str(error) else None
        return not connection.in_transaction


@given(data=st.data(), statement=st.sampled_from(SQLITE_CONTROL))
def test_sqlite_transaction_control_is_refused_however_it_is_decorated(data: st.DataObject, statement: str) -> None:
    sql = data.draw(decorated(statement, SQLITE_GAPS))
    assert sqlite_ends(sql), sql
    assert refused(sql, SQLITE), sql


@given(data=st.data(), statement=st.sampled_from(SQLITE_HARMLESS))
def test_harmless_sqlite_statements_pass(data: st.DataObject, statement: str) -> None:
    before = data.draw(st.lists(SQLITE_GAPS, max_size=3).map("".join))
    assert sqlite_ends(before + statement) is False
    assert not refused(before + statement, SQLITE)


PIECES = st.sampled_from(  # what the reading of a text may stumble over
    [
        *(
            "COMMIT",
            "END",
            "ROLLBACK",
            "TO",
            "BEGIN",
            "mine",
            "SELECT",
            "1",
            "CASE",
            "AS",
            "CREATE",
            "TRANSACTION",
            ",",
        ),
        *("'", '"', "`", "[", "]", "--", "\n", "\r", "/*", "*/", ";", "(", ")", " ", "\ufeff", "$$", "$a$", "E'", "\\"),
    ]
)


@given(pieces=st.lists(PIECES, max_size=12))
@settings(max_examples=500)
@example(["\ufeff", "COMMIT"])
@example(["--", "\r", "\n", "COMMIT"])
def test_no_text_that_sqlite_would_take_for_a_commit_passes(pieces: list[str]) -> None:
    sql = "".join(pieces)
    if sqlite_ends(sql):
        assert refused(sql, SQLITE), sql


@given(data=st.data(), statement=st.sampled_from(POSTGRES_CONTROL))
@settings(max_examples=300)
def test_postgres_transaction_control_is_refused_wherever_it_stands(data: st.DataObject, statement: str) -> None:
    sql = data.draw(decorated(statement, POSTGRES_GAPS))
    first = data.draw(st.sampled_from(["", *(harmless + ";" for harmless in POSTGRES_HARMLESS)]))
    last = data.draw(st.sampled_from(["", *("\n;" + harmless for harmless in POSTGRES_HARMLESS)]))
    assert refused(first + sql + last, POSTGRES), first + sql + last


@given(statements=st.lists(st.sampled_from(POSTGRES_HARMLESS), min_size=1, max_size=3))
def test_harmless_postgres_statements_pass(statements: list[str]) -> None:
    assert not refused(";".join(statements), POSTGRES)


def test_a_plain_string_has_backslashes_where_the_server_says_so() -> None:
    sql = r"SELECT 'a\'; COMMIT; --'"
    assert refused(sql, POSTGRES)
    assert not refused(sql, POSTGRES_WITH_BACKSLASHES)
    assert refused(r"SELECT 'a\\'; COMMIT", POSTGRES_WITH_BACKSLASHES)
