"""The steps of all databases together: one numbering, steps that only add, and which of them a database still lacks."""

from __future__ import annotations

import re

import pytest

from perdure import SchemaError
from perdure.store.migrate import Applied, Migration, made_by, migrations_of, pending, script
from perdure.store.postgres import statements as postgres
from perdure.store.sqlite import statements as sqlite

NAMINGS = {"sqlite": sqlite.NAMING, "postgres": postgres.NAMING}
DIALECTS = sorted(NAMINGS)

ADDS = (
    r"CREATE TABLE",
    r"CREATE (UNIQUE )?INDEX",
    r"DROP INDEX",
    r"CREATE (OR REPLACE )?VIEW",
    r"DROP VIEW",
    r"CREATE SEQUENCE",
    r"SELECT setval\(",  # of a sequence that is new
    r"ALTER TABLE \S+ ADD COLUMN \w+ \w+( DEFAULT \S+)?( COLLATE \S+)?( NOT NULL DEFAULT \S+)?$",
    r"ALTER TABLE \S+ ADD COLUMN \w+ \w+( COLLATE \S+)?\s+GENERATED ALWAYS AS .* STORED$",
    r"ALTER TABLE \S+ SET \(",
    r"UPDATE \S+ SET traits = 1, version = version \+ 1\s+WHERE traits = 0 ",  # a column that is new
)
"""What a step may do, so that a process of the version before, which is still running, can go on. DROP VIEW: views are
for people. A column that may not be NULL needs a default: older processes do not know it. A generated one is the
database's own affair."""


def step(revision: int) -> Migration:
    return Migration(revision, f"step_{revision}", f"CREATE TABLE {{t{revision}}} (id INTEGER);\n")


def record(of: Migration) -> Applied:
    return Applied(of.revision, of.name, of.checksum)


GAPS = [step(3), step(5), step(9)]
"""The steps of a database that had nothing to do in the others."""


@pytest.mark.parametrize("dialect", DIALECTS)
def test_revisions_rise_and_none_comes_twice(dialect: str) -> None:
    revisions = [each.revision for each in migrations_of(dialect)]

    assert revisions == sorted(set(revisions))


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_later_step_only_adds(dialect: str) -> None:
    first, *later = migrations_of(dialect)
    statements = [one for each in later for one in script(each.text, NAMINGS[dialect])]

    assert [one for one in statements if not any(re.match(pattern, one) for pattern in ADDS)] == []
    assert first.name == "initial"


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_database_has_the_same_tables_and_views(dialect: str) -> None:
    def plain(dialect: str) -> set[tuple[str, str]]:
        made = made_by(migrations_of(dialect), NAMINGS[dialect])
        return {(sort, name.removeprefix(sqlite.PREFIX)) for sort, name in made if sort in ("table", "view")}

    assert plain(dialect) == plain("sqlite")


def test_a_revision_that_is_another_databases_is_not_waited_for() -> None:
    assert pending(GAPS, []) == GAPS
    assert pending(GAPS, [record(GAPS[0])]) == GAPS[1:]
    assert pending(GAPS, [record(one) for one in GAPS]) == []


def test_a_database_without_an_earlier_step_is_refused() -> None:
    with pytest.raises(SchemaError, match=r"revision 5 .* is missing") as refused:
        pending(GAPS, [record(GAPS[0]), record(GAPS[2])])

    assert refused.value.code == "schema_changed"


def test_a_database_with_a_later_step_is_refused() -> None:
    with pytest.raises(SchemaError, match="knows up to 9") as refused:
        pending(GAPS, [*map(record, GAPS), record(step(10))])

    assert refused.value.code == "schema_newer"


def test_what_a_step_drops_is_not_there_any_more() -> None:
    steps = [
        Migration(1, "a", "CREATE TABLE {t} (id INTEGER);\nCREATE UNIQUE INDEX {t}_one ON {t} (id);\n"),
        Migration(2, "b", "DROP INDEX {t}_one;\nCREATE INDEX {t}_two ON {t} (id);\n"),
    ]

    assert made_by(steps, sqlite.NAMING) == {("table", "perdure_t"), ("index", "perdure_t_two")}
