"""Every condition of every query of the doctor is needed: without it, one of the cases in `patient` is judged wrongly.

The queries are taken as SQLite gets them. Each condition that AND, OR, WHERE, ON or HAVING joins is left out in turn
(also those that tie a subquery to its row), each clause is made to match nothing, each name in a list is taken out, and
each bound is moved by one. A weaker query like this must find something else than the right one in the healthy
database, after an injury or after a change that does no harm; the tests beside this one say what the right one finds.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from typing import NamedTuple

import pytest

from perdure.clock import Micros
from perdure.ops.doctor import CHECKS, Check
from perdure.store.engine import Statement, row_for
from perdure.store.repair import check_params
from perdure.store.sqlite.statements import STATEMENTS
from tests.unit.patient import CASES, healthy

pytestmark = pytest.mark.damaged

EQUIVALENT = {
    ("successor_not_linked", "without: s.auto_retry_of IS NOT NULL"): "no job has the id NULL; an index needs it",
    ("unreadable_result", "without: result IS NOT NULL"): "NOT json_valid(NULL) is NULL, which matches nothing either",
    ("unreadable_result", "without: (NOT json_valid(result))"): "what SQL lets through, `not_json` reads again",
    ("unreadable_result", "without: NOT json_valid(result)"): "what SQL lets through, `not_json` reads again",
    ("flow_sum_differs", "without: flow_id IS NOT NULL"): "no flow has the id NULL; an index needs it",
    ("line_asleep", "without: w.held_by IS NOT NULL"): "nobody stands in the line NULL; an index needs it",
    ("key_opens_never", "without: y.opens_at IS NOT NULL"): "NULL is later than nothing; an index needs it",
    **{
        ("flow_not_ended", what): "it shares its counts with `flow_sum_differs`, and needs no others"
        for what in (
            "never: l.flow_id = f.id",
            "never: i.parent_id = f.id",
            "never: flow_id IS NOT NULL AND superseded_by IS NULL",
            "without: flow_id IS NOT NULL",
            "without: superseded_by IS NULL",
            "never: finished_at IS NULL",
            "without: finished_at IS NULL",
        )
    },
}
"""Weaker queries that find the same all the same, and why."""

TOKEN = re.compile(r"'[^']*'|\w+|[<>=!]+|[^\s\w]")
OPENS = frozenset({"WHERE", "ON", "HAVING"})
CLOSES = frozenset({"WHERE", "GROUP", "HAVING", "ORDER", "LIMIT", "UNION", "LEFT", "JOIN"})
BOUNDS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
ALWAYS, NEVER = "1 = 1", "1 = 0"


class Weaker(NamedTuple):
    """A query with one thing less in it, and what that is."""

    check: Check
    what: str
    sql: str


class Token(NamedTuple):
    text: str
    start: int
    end: int


class Part(NamedTuple):
    """A condition, by its tokens, and what stands in its place when it is left out."""

    tokens: Sequence[Token]
    instead: str

    def left_out_of(self, sql: str) -> str:
        return sql[: self.tokens[0].start] + self.instead + sql[self.tokens[-1].end :]

    def text(self, sql: str) -> str:
        return " ".join(sql[self.tokens[0].start : self.tokens[-1].end].split())


# -- taking a query apart --------------------------------------------------------------------------------------------


def weaker_queries(check: Check, sql: str) -> Iterator[Weaker]:
    """Every query that is this one with something less in it."""
    tokens = [Token(found[0], found.start(), found.end()) for found in TOKEN.finditer(sql)]
    for clause in clauses(tokens):
        whole = Part(clause, NEVER)
        yield Weaker(check, f"never: {whole.text(sql)}", whole.left_out_of(sql))
        for part in conditions(clause):
            yield Weaker(check, f"without: {part.text(sql)}", part.left_out_of(sql))
    for value in listed(tokens):
        yield Weaker(check, f"without the name: {value.text(sql)}", value.left_out_of(sql))
    for bound in (token for token in tokens if token.text in BOUNDS):
        part = Part([bound], BOUNDS[bound.text])
        yield Weaker(check, f"bound at {bound.start}: {bound.text}", part.left_out_of(sql))


def clauses(tokens: Sequence[Token]) -> Iterator[Sequence[Token]]:
    """What follows each WHERE, ON and HAVING, to its end."""
    for at, token in enumerate(tokens):
        if token.text in OPENS:
            yield tokens[at + 1 : at + 1 + _length(tokens[at + 1 :])]


def _length(tokens: Sequence[Token]) -> int:
    depth = 0
    for at, token in enumerate(tokens):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth < 0 or (depth == 0 and token.text in CLOSES):
            return at
    return len(tokens)


def conditions(clause: Sequence[Token]) -> Iterator[Part]:
    """The clause's conditions, those in parentheses too: what AND joins becomes true, what OR joins false."""
    choices = split(clause, "OR")
    for choice in choices:
        if len(choices) > 1:
            yield Part(choice, NEVER)
        needs = split(choice, "AND")
        for need in needs:
            if len(needs) > 1 or len(choices) == 1:
                yield Part(need, ALWAYS)
            if need[0].text == "(" and _length(need[1:]) == len(need) - 2:
                yield from conditions(need[1:-1])


def split(tokens: Sequence[Token], word: str) -> list[Sequence[Token]]:
    """The pieces between the words that stand outside of parentheses. The AND of a BETWEEN is none of them."""
    pieces: list[Sequence[Token]] = []
    depth = start = between = 0
    for at, token in enumerate(tokens):
        depth += {"(": 1, ")": -1}.get(token.text, 0)
        if depth == 0 and token.text == "BETWEEN":
            between += 1
        elif depth == 0 and token.text == "AND" and between:
            between -= 1
        elif depth == 0 and token.text == word:
            pieces.append(tokens[start:at])
            start = at + 1
    return [*pieces, tokens[start:]]


def listed(tokens: Sequence[Token]) -> Iterator[Part]:
    """The names in each `IN (…)`, each of which another name can replace that nothing has."""
    for at, token in enumerate(tokens):
        if token.text == "IN" and tokens[at + 2].text.startswith("'"):
            for value in tokens[at + 2 : at + 1 + _length(tokens[at + 2 :]) + 1]:
                if value.text != ",":
                    yield Part([value], "'-'")


# -- trying them -----------------------------------------------------------------------------------------------------


class Scene(NamedTuple):
    """The patient after something was done to it, in memory."""

    connection: sqlite3.Connection
    now: Micros

    def found(self, check: Check, statement: Statement, sql: str) -> list[tuple[object, ...]]:
        """What the query finds, as the doctor would tell."""
        rows = self.connection.execute(sql, row_for(statement, check_params(self.now, 1_000))).fetchall()
        return [row for row in rows if check.confirm is None or check.confirm(row[2:])]

    def notices(self, weaker: Weaker) -> bool:
        right = STATEMENTS[weaker.check.name]
        return self.found(weaker.check, right, weaker.sql) != self.found(weaker.check, right, right.sql)


@pytest.fixture(scope="module")
def scenes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Scene]]:
    """The healthy database, and one more for each case."""
    patient = healthy(tmp_path_factory.mktemp("healthy") / "jobs.db")
    with ExitStack() as stack, closing(sqlite3.connect(patient.path)) as model:
        made: list[Scene] = []
        for statements in [(), *[case.statements for case in CASES]]:
            connection = stack.enter_context(closing(sqlite3.connect(":memory:")))
            model.backup(connection)
            for statement in statements:
                connection.execute(statement, patient.ids)
            made.append(Scene(connection, patient.now()))
        yield made


def test_a_query_is_taken_apart_condition_by_condition() -> None:
    sql = "SELECT x FROM t JOIN u ON u.x = t.x WHERE a NOT BETWEEN 1 AND 9 AND (b = 'OR' OR EXISTS (SELECT 1 WHERE c))"

    assert [one.what for one in weaker_queries(CHECKS[0], sql)] == [
        "never: u.x = t.x",
        "without: u.x = t.x",
        "never: a NOT BETWEEN 1 AND 9 AND (b = 'OR' OR EXISTS (SELECT 1 WHERE c))",
        "without: a NOT BETWEEN 1 AND 9",
        "without: (b = 'OR' OR EXISTS (SELECT 1 WHERE c))",
        "without: b = 'OR'",
        "without: EXISTS (SELECT 1 WHERE c)",
        "never: c",
        "without: c",
    ]


ODD = (b"\x01", "x", 1.5, -1, 1, 2**62, -(2**62), 10**15)
"""What SQLite lets anybody write into any column: of every type, and numbers in and out of every range."""


def odd_scenes(scene: Scene) -> Iterator[str]:
    """The database with one such value in one row, for each column of the tables that `impossible_number` reads: says
    which column it is in."""
    for table in ("ready", "outcome", "run", "job"):
        for _, column, *_ in scene.connection.execute(f"PRAGMA table_info(perdure_{table})").fetchall():
            for value in ODD:
                with scene.connection, suppress(sqlite3.IntegrityError):
                    one = f"(SELECT {column} FROM perdure_{table} ORDER BY {column} DESC LIMIT 1)"
                    scene.connection.execute(
                        f"UPDATE perdure_{table} SET {column} = ? WHERE {column} IS {one}", (value,)
                    )
                    yield column
                    scene.connection.rollback()


@pytest.mark.parametrize("check", CHECKS, ids=[check.name for check in CHECKS])
def test_no_condition_can_be_dropped_unnoticed(check: Check, scenes: list[Scene]) -> None:
    weaker = list(weaker_queries(check, STATEMENTS[check.name].sql))
    assert weaker

    unnoticed = weaker
    if check.name == "impossible_number":
        for column in odd_scenes(scenes[0]):
            concerned = [one for one in unnoticed if column in one.what or "the name" in one.what]
            noticed = [one for one in concerned if scenes[0].notices(one)]
            unnoticed = [one for one in unnoticed if one not in noticed]
    unnoticed = [one for one in unnoticed if not any(scene.notices(one) for scene in scenes)]

    assert {one.what for one in unnoticed} == {what for name, what in EQUIVALENT if name == check.name}
