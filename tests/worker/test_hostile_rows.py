"""A live row that somebody else has written into hurts its own job only: the others run, and the doctor names it."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure
from perdure.ops.doctor import examine

pytestmark = pytest.mark.damaged

SCHEMA = Path(__file__).parents[2] / "src/perdure/store/sql/schema/sqlite.sql"
VALUES: dict[str, object] = {
    "text": "abc",
    "bytes": b"\xff",
    "huge": 2**62,
    "far below": -(2**62),
    "fraction": 1.5,
    "largest": 2**63 - 1,
    "nothing": None,
}


def columns(table: str) -> list[str]:
    found = re.search(rf"CREATE TABLE \{{{table}\}} \((.*?)\n\)", SCHEMA.read_text(), re.DOTALL)
    assert found
    return re.findall(r"^    (\w+) +(?:TEXT|INTEGER|BLOB)", found[1], re.MULTILINE)


@pytest.mark.parametrize("state", ["queued", pytest.param("scheduled", marks=pytest.mark.full)])
@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize(
    "column",  # but for the keys: a row without its job, which nobody can claim
    [f"ready.{name}" for name in columns("ready")[1:]] + [f"job.{name}" for name in columns("job")[1:]],
)
def test_whatever_is_in_a_row_the_others_run(tmp_path: Path, column: str, value: str, state: str) -> None:
    table, name = column.split(".")
    app = Perdure(tmp_path / "jobs.db", durability="normal")
    ran: list[int] = []

    @app.job(timeout=60)
    def work(number: int) -> None:
        ran.append(number)

    jobs = [work.options(delay=0.000_001 if state == "scheduled" else None).enqueue(number) for number in range(5)]
    app.close()
    if not written(tmp_path / "jobs.db", table, name, VALUES[value], jobs[1].row.id):
        return

    app.worker().run(until_idle=True)

    assert set(ran) >= {0, 2, 3, 4}
    bad = app.get(jobs[1].id)
    named = {example for finding in examine(app.store) for example in finding.examples}
    assert named or (bad is not None and bad.state in ("completed", "failed", "parked", "held")), (column, value)
    app.close()


def written(path: Path, table: str, name: str, value: Any, job_id: bytes) -> bool:
    key = "id" if table == "job" else "job_id"
    with closing(sqlite3.connect(path)) as raw:
        try:
            raw.execute(f"UPDATE perdure_{table} SET {name} = ? WHERE {key} = ?", (value, job_id))
        except sqlite3.IntegrityError:
            return False
        raw.commit()
    return True
