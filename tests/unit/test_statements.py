"""The state literals of every SQL statement, compared with TRANSITIONS: the table is the only list of legal moves."""

from __future__ import annotations

import re
from typing import NamedTuple

import pytest

from perdure.job.states import TRANSITIONS, RunState, State, Verb
from perdure.store import migrate
from perdure.store.postgres.statements import READING, WRITING
from perdure.store.sqlite.statements import STATEMENTS
from perdure.store.statements import Statement, Statements
from perdure.testing.contract.schema import UNIQUE

_COMPARED = re.compile(r"\bstate\s*(?:=|<>|!=|(?:NOT\s+)?IN)\s*('\w+'|\([^()]*\))", re.IGNORECASE)
_INSERTED = re.compile(r"INSERT INTO \S+ \(([^()]*)\)\s*VALUES\s*\(([^()]*)\)")

DIALECTS = {"sqlite": STATEMENTS, "postgres": WRITING, "postgres, reading": READING}

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

    assert {name: states for name, states in named.items() if not states <= {*State, *RunState}} == {}


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
    assert literals_of(statements["claim_ready"]) == ({"running"}, {"queued", "parked"})
    assert literals_of(statements["close_run"]) == (set(), {"running"})
    assert literals_of(statements["list_aside"]).sought == {"queued", "running", "scheduled"}
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

    assert {"queued", "scheduled", "running"} <= _states_in(texts) <= {*State, *RunState}


@pytest.mark.parametrize("dialect", ["sqlite", "postgres"])
def test_every_unique_key_of_the_schema_is_tried_by_the_contract(dialect: str) -> None:
    """The other way round, the contract tries that each of them refuses a second row."""
    found: set[tuple[str, ...]] = set()
    table = ""
    for line in (line for step in migrate.migrations_of(dialect) for line in step.text.splitlines()):
        if made := re.match(r"CREATE TABLE \{(\w+)\}", line):
            table = made[1]
        elif own := re.match(r"\s+(\w+) .*\bPRIMARY KEY", line):
            found.add((table, own[1]))
        elif several := re.match(r"\s+PRIMARY KEY \((.*)\)", line):
            found.add((table, *several[1].split(", ")))
        elif index := re.match(r"CREATE UNIQUE INDEX \S+ ON \{(\w+)\} \(([^()]*)\)", line):
            found.add((index[1], *index[2].split(", ")))

    assert found - {("schema_version", "revision")} == set(UNIQUE)
