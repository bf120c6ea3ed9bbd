"""A row that somebody else has written into hurts its own job only: the others run, and the doctor names it."""

from __future__ import annotations

import json
import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure, State
from perdure.ids import to_uuid
from perdure.ops.doctor import examine
from tests.fresh import Column, columns_of

pytestmark = pytest.mark.damaged

VALUES: dict[str, object] = {
    "text": "abc",
    "bytes": b"\xff",
    "huge": 2**62,
    "far below": -(2**62),
    "fraction": 1.5,
    "largest": 2**63 - 1,
    "nothing": None,
    "no UTF-8": "CAST(x'ff9b41' AS TEXT)",
}
FIRST_YEAR, LAST_YEAR = -62_135_596_800_000_000, 253_402_300_799_999_999
ANY_NUMBER = ("sequence", "exit_code", "wait_ms", "duration_ms")
"""Nobody reckons with these."""
JSON_OBJECTS = ("payload", "secrets", "params", "options", "refs")


WRITTEN = [*columns_of("ready"), *columns_of("job")]
LOOKED_AT = [*WRITTEN, *columns_of("outcome"), *columns_of("run")]


def cases(*, full: bool) -> list[tuple[Column, str, str]]:
    """Every value in every column, of a job that is queued and of one that is scheduled. Everyday: one in six, so that
    each column has some, and each value."""
    return [
        (WRITTEN[c], value, state)
        for c in range(len(WRITTEN))
        for v, value in enumerate(VALUES)
        for s, state in enumerate(("queued", "scheduled"))
        if full or (c + v + 3 * s) % 6 == 0
    ]


def test_a_small_run_has_some_value_in_every_column_and_every_value() -> None:
    small = cases(full=False)
    assert {column for column, _, _ in small} == set(WRITTEN)
    assert {value for _, value, _ in small} == set(VALUES)


@pytest.mark.parametrize(
    ("column", "value", "state"), cases(full=os.environ.get("PERDURE_TEST_SIZE") == "full"), ids=str
)
def test_whatever_is_in_a_row_the_others_run_and_the_doctor_names_it(
    tmp_path: Path, column: Column, value: str, state: str
) -> None:
    app = Perdure(tmp_path / "jobs.db", durability="normal")
    ran: list[int] = []

    @app.job(timeout=60)
    def work(number: int) -> None:
        ran.append(number)

    jobs = [work.options(delay=0.000_001 if state == "scheduled" else None).enqueue(number) for number in range(5)]
    app.close()
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
        if not write(raw, column, VALUES[value], jobs[1].row.id):
            return

    assert app.worker().run(until_idle=True) == 0

    assert sorted({*ran, 1}) == [0, 1, 2, 3, 4]
    assert len(ran) <= 5
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
        wrong = hostile_values(raw)
        others = {str(job.id) for job in jobs} - {str(jobs[1].id)}
    named = {example for finding in examine(app.store) for example in finding.examples}
    bad = app.get(jobs[1].id)
    assert wrong <= named, "the doctor is silent about what is still there"
    assert not named & others
    if not named:
        assert bad is not None
        healed = (State.PARKED,) if str(column) == "ready.version" else ()  # setting it aside makes it a number again
        assert bad.state in (State.COMPLETED, State.HELD, *healed), "nothing is wrong, but it did not run"
    if bad is not None and bad.park_reason == "unreadable":
        assert app.cancel(bad).state is State.CANCELLED, "what its error tells to do"
    app.close()


@pytest.mark.parametrize("state", ["queued", "scheduled", "parked"])
def test_a_live_row_without_its_job_keeps_no_worker_from_ending(tmp_path: Path, state: str) -> None:
    app = Perdure(tmp_path / "jobs.db", durability="normal")
    ran: list[int] = []

    @app.job
    def work(number: int) -> None:
        ran.append(number)

    orphan = work.options(delay=0.000_001 if state == "scheduled" else None).enqueue(0)
    if state == "parked":
        with closing(Perdure(tmp_path / "jobs.db")) as ignorant:
            assert ignorant.worker().run(until_idle=True) == 0
        assert app.existing(orphan).state is State.PARKED
    work.enqueue(1)
    app.close()
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw, raw:
        raw.execute("DELETE FROM perdure_job WHERE id = ?", (orphan.row.id,))

    assert app.worker().run(until_idle=True) == 0

    assert ran == [1]
    assert [(found.name, found.examples) for found in examine(app.store)] == [("live_without_job", (str(orphan.id),))]
    app.close()


def write(raw: sqlite3.Connection, column: Column, value: Any, job_id: bytes) -> bool:
    """False: the database does not take it."""
    literal = isinstance(value, str) and value.startswith("CAST(")
    statement = (
        f"UPDATE perdure_{column.table} SET {column.name} = {value if literal else '?'} WHERE {column.row_id} = ?"
    )
    try:
        raw.execute(statement, (job_id,) if literal else (value, job_id))
    except sqlite3.IntegrityError:
        return False
    raw.commit()
    return True


def hostile_values(raw: sqlite3.Connection) -> set[str]:
    """The jobs in whose rows is, now, a value that cannot be what it should be; by what the schema says."""
    raw.text_factory = lambda text: text.decode("utf-8", "backslashreplace")
    found: set[str] = set()
    for column in LOOKED_AT:
        query = f"SELECT {column.row_id}, {column.name} FROM perdure_{column.table}"
        found |= {shown(job_id) for job_id, value in raw.execute(query) if is_hostile(column, value)}
    return found


def shown(job_id: object) -> str:
    if isinstance(job_id, bytes) and len(job_id) == 16:
        return str(to_uuid(job_id))
    return job_id if isinstance(job_id, str) else repr(job_id)


def is_hostile(column: Column, value: Any) -> bool:
    if value is None:
        return False
    if column.sort == "BLOB":
        return not isinstance(value, bytes) or len(value) != 16
    if column.sort == "TEXT":
        return not isinstance(value, str) or (column.name in JSON_OBJECTS and not is_object(value))
    if not isinstance(value, int) or column.name in ANY_NUMBER:
        return not isinstance(value, int)
    if column.name.endswith(("_at", "_for")) and column.name != "waits_for":
        return not FIRST_YEAR <= value <= LAST_YEAR
    return abs(value) >= 2**62 or (value < 0 and column.name not in ("rank", "position"))


def is_object(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
