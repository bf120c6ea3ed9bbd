"""What is written once: only `store/write.py` writes the table `ready`, and its columns are listed in one place."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import perdure
from perdure.job.model import JobRow, LiveJob, OutcomeRow
from perdure.store import statements
from perdure.store.mysql.statements import Flavour, dialect
from perdure.store.postgres.statements import READING, WRITING
from perdure.store.sqlite.statements import OWN, STATEMENTS

SOURCES = Path(perdure.__file__).parent
DIALECTS = {
    "sqlite": STATEMENTS,
    "postgres": WRITING,
    "postgres, reading": READING,
    **{flavour.value: dialect(flavour).writing for flavour in Flavour},
}
_WRITES = re.compile(r"\b(?:INSERT INTO|UPDATE|DELETE FROM)\s+(?:ONLY\s+)?(?:perdure[_.]|\{)ready\b", re.IGNORECASE)
_COLUMNS = {"ready": LiveJob._fields, "job": JobRow._fields, "outcome": OutcomeRow._fields}
LISTED_AT_MOST = 8


def writers() -> set[str]:
    """The statements that write `ready`, on any database."""
    return {name for texts in DIALECTS.values() for name, statement in texts.items() if _WRITES.search(statement.sql)}


def sql_files() -> Iterator[tuple[Path, str]]:
    for path in [
        *SOURCES.glob("store/sql/*.sql"),
        *SOURCES.glob("store/*.sql"),
        *SOURCES.glob("store/*/statements.sql"),
    ]:
        yield path, path.read_text("utf-8")


def test_statements_that_write_live_rows_are_in_one_file() -> None:
    assert {path.name for path, text in sql_files() if _WRITES.search(text)} == {"write.sql"}


def test_statements_that_write_live_rows_are_named_in_one_module() -> None:
    writing = writers()
    named = {
        path.relative_to(SOURCES).as_posix()
        for path in SOURCES.glob("**/*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Constant) and node.value in writing
    }

    assert named == {"store/write.py"}


def test_every_way_to_write_a_live_row_is_known() -> None:
    """Else the tests above would pass by seeing nothing."""
    assert writers() == {
        "insert_ready",
        "insert_plain_ready",
        "insert_member_ready",
        "insert_limited_ready",
        "insert_live",
        "claim_ready",
        "stand_in_line",
        "wake",
        "update_ready",
        "unblock_ready",
        "delete_ready",
        "delete_ready_of_run",
        "delete_ended_ready",
        "flag_ready",
        "respace",
        "set_aside_damaged",
    }


@pytest.mark.parametrize("table", _COLUMNS)
def test_no_second_list_of_the_columns_is_kept(table: str) -> None:
    """A list of so many columns one after the other would be a second one to keep up to date."""
    known = set(_COLUMNS[table])
    found: list[tuple[str, int]] = []
    for path, text in sql_files():
        for listed in re.findall(r"(?:\b(?:\w\.)?\w+\b(?: = :\w+)?,\s+){3,}", text):
            names = re.findall(r"(\w+)(?: = :\w+)?,", listed)
            if len([name for name in names if name in known]) > LISTED_AT_MOST:
                found.append((path.name, len(names)))

    assert found == []


def test_a_new_column_of_a_row_type_reaches_every_statement(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing but the row type, and the migration, says which columns there are."""
    for row in (LiveJob, JobRow):
        monkeypatch.setattr(row, "_fields", (*row._fields, "brand_new"))
    loaded = statements.load(OWN, str, "?{}")

    for name in ("read_live", "insert_live", "update_ready", "claim_head", "read_job_row", "copy_job"):
        assert "brand_new" in loaded[name].sql, name


def test_a_new_job_brings_values_for_its_columns_in_order() -> None:
    for name, row in (("new_ready", LiveJob), ("new_job", JobRow)):
        brought = statements.BROUGHT[name]
        begun = statements.AT_FIRST[name.split("_")[1]]
        assert {*brought, *begun} <= set(row._fields)
        optional = {field for field, sort in row.__annotations__.items() if "None" in str(sort)}
        assert set(row._fields) - {*brought, *begun} <= optional
