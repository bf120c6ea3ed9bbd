"""Every SQL statement as a text: its state literals are those of TRANSITIONS, the only list of legal moves; and what is
shared by all databases says nothing that one of them does not understand."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from perdure.job.flow import EdgeState, FlowState
from perdure.job.states import TRANSITIONS, RunState, State, Verb
from perdure.store import migrate
from perdure.store.engine import Statement, Statements, row_for, rows_for
from perdure.store.mysql.statements import Flavour, dialect
from perdure.store.postgres.statements import READING, WRITING
from perdure.store.sqlite.statements import STATEMENTS
from perdure.store.statements import load, of_sqlite_and_postgres, statement_texts
from perdure.testing.contract.schema import UNIQUE

_COMPARED = re.compile(r"\bstate\s*(?:=|<>|!=|(?:NOT\s+)?IN)\s*('\w+'|\([^()]*\))", re.IGNORECASE)
_INSERTED = re.compile(r"INSERT INTO \S+ \(([^()]*)\)\s*VALUES\s*\(([^()]*)\)")

DIALECTS = {
    "sqlite": STATEMENTS,
    "postgres": WRITING,
    "postgres, reading": READING,
    **{flavour.value: dialect(flavour).writing for flavour in Flavour},
}

EVERY_STATE = {*State, *RunState, *EdgeState, *FlowState}

each_dialect = pytest.mark.parametrize("statements", DIALECTS.values(), ids=DIALECTS)


class Literals(NamedTuple):
    """The states a statement names: those it sets, and those it looks for."""

    written: set[str]
    sought: set[str]


def literals_of(statement: Statement) -> Literals:
    set_clause = ""
    rest = statement.sql
    if statement.sql.startswith("UPDATE"):
        head, where, tail = statement.sql.partition("WHERE")
        set_clause, rest = head, where + tail
    return Literals(_states_in(set_clause), _states_in(rest))


def _states_in(sql: str) -> set[str]:
    return {word for group in _COMPARED.findall(sql) for word in re.findall(r"'(\w+)'", group)}


@each_dialect
def test_statements_name_only_states_that_exist(statements: Statements) -> None:
    named = {name: set().union(*literals_of(statement)) for name, statement in statements.items()}

    assert {name: states for name, states in named.items() if not states <= EVERY_STATE} == {}


@each_dialect
def test_the_statements_of_a_verb_take_jobs_from_where_to_where_the_verb_does(statements: Statements) -> None:
    for statement in statements.values():
        if statement.verb is not None:
            move, literals = TRANSITIONS[Verb(statement.verb)], literals_of(statement)
            assert literals.sought <= move.sources, statement.name
            assert literals.written <= move.targets, statement.name


@each_dialect
def test_a_statement_that_changes_live_jobs_by_their_state_names_its_verb(statements: Statements) -> None:
    writing = [
        statement
        for statement in statements.values()
        if re.match(r"(UPDATE|DELETE FROM) perdure[_.]ready\b", statement.sql) and any(literals_of(statement))
    ]

    assert [statement.name for statement in writing if statement.verb is None] == []


@each_dialect
def test_the_comparison_sees_what_it_should(statements: Statements) -> None:
    """Else the tests above would pass by seeing nothing."""
    assert literals_of(statements["claim_head"]) == (set(), {"queued"})
    assert literals_of(statements["claim_ready"]) == ({"running"}, {"queued", "held", "parked"})
    assert literals_of(statements["close_run"]) == (set(), {"running"})
    assert literals_of(statements["waiting_but_held"]).sought == {"running"}
    assert {statement.verb for statement in statements.values()} >= {"claim", "promote", "rescue", "move"}


@each_dialect
def test_a_new_run_is_running_and_a_new_job_is_not(statements: Statements) -> None:
    inserted = {
        name: match[2]
        for name, statement in statements.items()
        if (match := _INSERTED.search(statement.sql)) and re.search(r"\bstate\b", match[1])
    }

    assert [name for name, values in inserted.items() if "'running'" in values] == ["insert_run"]
    assert "insert_ready" in inserted


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_the_indexes_name_only_states_that_exist(dialect: str) -> None:
    texts = "\n".join(step.text for step in migrate.migrations_of(dialect))

    assert {"queued", "scheduled", "running"} <= _states_in(texts) <= EVERY_STATE


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_every_unique_key_of_the_schema_is_tried_by_the_contract(dialect: str) -> None:
    """The other way round, the contract tries that each of them refuses a second row."""
    found: set[tuple[str, ...]] = set()
    table = ""
    for line in (line for step in migrate.migrations_of(dialect) for line in step.text.splitlines()):
        if made := re.match(r"CREATE TABLE \{(\w+)\}", line):
            table = made[1]
        elif own := re.match(r"\s+(\w+) .*\b(?:PRIMARY KEY|UNIQUE)\b", line):
            found.add((table, own[1]))
        elif several := re.match(r"\s+PRIMARY KEY \((.*)\)", line):
            found.add((table, *several[1].split(", ")))
        elif index := re.match(r"CREATE UNIQUE INDEX \S+ ON \{(\w+)\} \(([^()]*)\)", line):
            found.add((index[1], *index[2].split(", ")))

    assert found - {("schema_version", "revision")} == set(UNIQUE)


# -- what every database understands -------------------------------------------------------------------------------


NOT_IN_MYSQL = {
    "ON CONFLICT": r"\bON CONFLICT\b",
    "RETURNING": r"\bRETURNING\b",
    "FILTER": r"\bFILTER\s*\(",
    "|| between texts": r"\|\|",
    "a cast by ::": r"::",
    "a cast to text": r"\bAS text\b",
    "NULLS FIRST or LAST": r"\bNULLS (FIRST|LAST)\b",
    "IS DISTINCT FROM": r"\bDISTINCT FROM\b",
    "a division of integers": r"\s/\s",
    "a % that drivers take for a marker": r"%",
    "LATERAL, MATERIALIZED": r"\b(LATERAL|MATERIALIZED)\b",
    "LIMIT right inside of IN": r"^IN\b.*\bLIMIT\b",
    "UPDATE … FROM": r"^UPDATE\b.*\bFROM\b",
    "WITH in front of a change": r"^WITH\b.*\b(UPDATE|DELETE|INSERT)\b",
    "a reserved word for a table in FROM or a column": r"\bAS (before|groups|key|lead|of|over|rank|row|rows|window)\b",
}


def levels(sql: str) -> list[str]:
    """The statement and each bracket in it with the word before it, all without the brackets inside."""
    found: list[str] = []
    while innermost := re.search(r"(\w*)\s*\([^()]*\)", sql):
        found.append(innermost[0])
        sql = f"{sql[: innermost.start()]}{innermost[1]} …{sql[innermost.end() :]}"
    return [*found, sql]


def says(construct: str, sql: str) -> bool:
    pattern = re.compile(NOT_IN_MYSQL[construct], re.DOTALL)
    return any(pattern.search(level) for level in levels(sql))


def shared() -> Statements:
    """What all databases share, with the parts that a dialect supplies left as their names."""
    return load("", lambda name: f"the_{name}", "%s")


@pytest.mark.parametrize("construct", NOT_IN_MYSQL)
def test_shared_statements_say_nothing_that_mysql_does_not_understand(construct: str) -> None:
    assert [name for name, statement in shared().items() if says(construct, statement.sql.replace("%s", "?"))] == []


@pytest.mark.parametrize(
    ("construct", "sql"),
    {
        "LIMIT right inside of IN": "SELECT 1 FROM a WHERE b IN (SELECT c FROM d WHERE e = (f) LIMIT 3)",
        "UPDATE … FROM": "UPDATE a SET b = (SELECT 1) FROM c WHERE d = e",
        "WITH in front of a change": "WITH a AS (SELECT (1))\nUPDATE b SET c = 1",
    }.items(),
)
def test_the_patterns_see_what_they_should(construct: str, sql: str) -> None:
    assert says(construct, sql)


_LOCKS_ALL = re.compile(r"(?:FOR (?:UPDATE|SHARE)|LOCK IN SHARE MODE)(?: SKIP LOCKED)?\s*$")
"""At the end of a statement: a lock on whatever is in its FROM."""


def test_no_statement_asks_mysql_to_lock_a_list_that_it_was_given() -> None:
    """It refuses a JSON_TABLE in a locking clause, which MariaDB passes over (error 3569)."""
    forms = dialect(Flavour.MYSQL)
    parts = [
        (name, part)
        for statements in (forms.writing, forms.reading, forms.borrowed)
        for name, statement in statements.items()
        for part in statement.sql.split(";\n")
        if "JSON_TABLE" in part
    ]
    assert parts
    assert [name for name, part in parts if _LOCKS_ALL.search(part)] == []


def test_only_what_they_share_is_in_the_file_of_sqlite_and_postgres() -> None:
    """And every fragment of it is used by what all databases share."""
    fragments = set(re.findall(r"^-- fragment: (\w+)$", of_sqlite_and_postgres(), re.MULTILINE))
    texts = "".join(statement_texts().values())

    assert fragments == {name for name in fragments if f"{{{name}}}" in texts}


def test_a_driver_that_counts_no_markers_gets_a_parameter_for_each() -> None:
    shared_by_number = load("", lambda name: f"the_{name}", "?{}")
    for name, statement in shared().items():
        assert statement.sql.count("%s") == len(statement.names), name
        assert tuple(dict.fromkeys(statement.names)) == shared_by_number[name].names, name


def test_parameters_are_repeated_as_often_as_they_stand_in_the_statement() -> None:
    statement = Statement("x", "SELECT %s, %s, %s", ("now", "id", "now"), returns_rows=True, verb=None)

    assert row_for(statement, {"id": 7, "now": 1}) == (1, 7, 1)
    assert row_for(statement, (1, 7)) == (1, 7, 1)
    assert rows_for(statement, [(1, 7), (2, 8)]) == [(1, 7, 1), (2, 8, 2)]
    assert rows_for(statement, [{"id": 7, "now": 1}]) == [(1, 7, 1)]


@each_dialect
def test_no_comment_is_left_in_a_statement(statements: Statements) -> None:
    """A fragment is also put in the middle of a line, and there its comment would end the line of the statement."""
    assert [statement.name for statement in statements.values() if "--" in statement.sql] == []
