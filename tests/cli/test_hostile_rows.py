"""A database into which somebody else has written: every command shows what can be shown, and harms no terminal."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure as App
from perdure import Retry
from perdure.errors import InvalidPayload
from perdure.ids import to_uuid
from tests.cli import shop
from tests.cli.terminal import PROGRAM, Perdure, surroundings
from tests.fresh import columns_of

pytestmark = pytest.mark.damaged

URL = {"PERDURE_URL": "shop.db"}
EVIL = "\x1b]0;title\x07\x9b31m\u202eevil\u2066\u200f\ufeff\x7f\r\x00"
ACTED_ON = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
HOSTILE: dict[str, object] = {
    "text": EVIL,
    "bytes": b"\xff\x9b31m",
    "huge": 2**62,
    "far below": -(2**62),
    "fraction": 1.5,
    "no UTF-8": "CAST(x'ff9b41' AS TEXT)",
    "nothing": None,
}
TABLES = (
    "job",
    "ready",
    "run",
    "outcome",
    "queue",
    "tag",
    "job_log",
    "idempotency_key",
    "business_key",
    "node",
    "edge",
)
LISTS = (
    *(("status",), ("jobs", "--limit", "1000"), ("runs", "--limit", "1000"), ("queues",), ("nodes",), ("kinds",)),
    *(("doctor",), ("health",), ("db", "check")),
)
ONE = (("job",), ("explain",), ("runs",), ("logs",))
SAID = (("job", "payload"), ("job", "kind_version"), ("run", "attempt"), ("run", "metrics"))
"""A few of the columns that `unreadable` must name."""


COPIES = 32


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with something in every table."""
    folder = tmp_path_factory.mktemp("whole")
    app = shop.made(folder / "shop.db")
    send, resize = app.kinds.get("send"), app.kinds.get("resize")
    for number in range(COPIES):
        own = send.options(tags=(f"t{number}",), idempotency_key=f"i{number}", business_key=f"b{number}")
        own.enqueue(to="nobody" if number % 2 else "somebody", token="hidden")
    assert app.worker(poll_s=0.02).run(until_idle=True) == 0
    for number in range(COPIES):
        own = send.options(business_key=f"live {number}", params={"a": 1}, tags=("u",), queue=f"queue {number}")
        own.options(delay=3600 if number % 3 else None).enqueue(to="later")
    waits = resize.enqueue(width=2)
    app.close()
    with closing(sqlite3.connect(folder / "shop.db")) as raw:
        raw.execute(
            "INSERT INTO perdure_edge (depends_on, job_id) SELECT id, ? FROM perdure_job LIMIT 3", (waits.row.id,)
        )
        _, *node = raw.execute("SELECT * FROM perdure_node").fetchone()
        for number in range(COPIES):
            raw.execute(
                f"INSERT INTO perdure_node VALUES ({', '.join('?' * (len(node) + 1))})", (bytes([number] * 16), *node)
            )
        raw.commit()
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    for file in whole.glob("shop.db*"):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path


_COLUMNS = [(table, column.name, column.may_be_empty) for table in TABLES for column in columns_of(table)]
"""Every column of these tables, and whether it may be empty."""


def damage(path: Path, table: str, column: str, value: object, which: int = 0) -> bool:
    """Write this value into one row. False: the database does not take it."""
    with closing(sqlite3.connect(path)) as raw:
        literal = isinstance(value, str) and value.startswith("CAST(")
        key = "rowid" if table == "job" else _key(raw, table)
        raw.text_factory = bytes
        rows = raw.execute(f"SELECT {key} FROM perdure_{table} ORDER BY 1").fetchall()
        where = " AND ".join(f"{name} = ?" for name in key.split(", "))
        try:
            raw.execute(
                f"UPDATE perdure_{table} SET {column} = {value if literal else '?'} WHERE {where}",
                (() if literal else (value,)) + rows[which % len(rows)],
            )
        except sqlite3.IntegrityError:
            return False
        raw.commit()
        return True


def _key(raw: sqlite3.Connection, table: str) -> str:
    return ", ".join(name for _, name, _, _, _, pk in raw.execute(f"PRAGMA table_info(perdure_{table})") if pk)


def looked_at(perdure: Perdure, folder: Path, *command: str) -> None:
    """The command says what it has to say, as text and as JSON, in characters that a terminal only shows."""
    for more in ((), ("--json",)):
        ran = perdure(*command, *more, cwd=folder, **URL)
        said = ran.out + ran.err
        assert "internal_error" not in said, (command, said)
        assert not ACTED_ON.search(said), (command, said)
        assert ran.status in (0, 1) or "[job_not_found]" in said, (command, said)
        if more and ran.status != 2:
            json.loads(ran.out, parse_constant=_not_json)


def _not_json(constant: str) -> None:
    raise AssertionError(constant)


def ids(folder: Path) -> list[str]:
    with closing(sqlite3.connect(folder / "shop.db")) as raw:
        raw.text_factory = bytes
        return [
            str(to_uuid(job_id))
            for (job_id,) in raw.execute("SELECT id FROM perdure_job")
            if isinstance(job_id, bytes) and len(job_id) == 16
        ]


@pytest.mark.parametrize("name", HOSTILE)
def test_whatever_is_in_a_column_every_command_shows_the_rows(
    perdure: Perdure, folder: Path, name: str, full_size: bool
) -> None:
    """Every column of every table is hostile in one row, each in another one."""
    for number, (table, column, empty) in enumerate(_COLUMNS):
        if HOSTILE[name] is not None or empty:
            damage(folder / "shop.db", table, column, HOSTILE[name], number)
    for command in LISTS:
        looked_at(perdure, folder, *command)
    for job_id in ids(folder) if full_size else ids(folder)[::9]:
        for command in ONE:
            looked_at(perdure, folder, *command, job_id)


def _cases(*, full: bool) -> list[tuple[Any, ...]]:
    """Every value in every column. Everyday: one in five, so that each column has one, and each value many."""
    return [
        (*column, name)
        for at, column in enumerate(_COLUMNS)
        for which, name in enumerate(HOSTILE)
        if full or (at + which) % 5 == 0 or column[:2] in SAID
    ]


@pytest.mark.parametrize(
    ("table", "column", "empty", "name"), _cases(full=os.environ.get("PERDURE_TEST_SIZE") == "full")
)
def test_whatever_is_in_a_column_reading_raises_only_what_is_documented(
    folder: Path, table: str, column: str, empty: bool, name: str
) -> None:
    value = HOSTILE[name]
    if (value is None and not empty) or not damage(folder / "shop.db", table, column, value):
        return
    app = shop.made(folder / "shop.db")
    try:
        jobs, runs = list(app.jobs()), list(app.runs())
        everything: list[Any] = [*jobs, *runs, *(app.get(job.id) for job in jobs), *app.queues.list()]
        for thing in everything:
            for each in dir(type(thing)):
                if isinstance(getattr(type(thing), each), property):
                    _read(thing, each)
            repr(thing)
        for job in jobs:
            list(app.logs(job))
            app.explain(job)
    finally:
        app.close()
    assert len(jobs) >= len(ids(folder)), "all but one whose id is none"
    if (table, column) in SAID and name in ("text", "bytes", "fraction"):
        assert any(job.unreadable for job in jobs) or any(run.unreadable for run in runs)


def _read(thing: Any, name: str) -> None:
    """InvalidPayload is the one documented error."""
    with suppress(InvalidPayload):
        getattr(thing, name)


# -- what a worker prints --------------------------------------------------------------------------------------------

BAD_SHOP = """
import logging, warnings
from perdure import Cancel, Perdure, current

EVIL = {evil!r} + chr(0xD83D)
app = Perdure("jobs.db", durability="normal")

@app.job
def talk(what: str) -> str:
    logging.getLogger("shop").warning("heard %s", EVIL)
    logging.getLogger("shop" + EVIL).error(EVIL, extra={{"more": EVIL}})
    current().log.info(EVIL)
    warnings.warn(EVIL)
    return what

@app.job
def fail() -> None:
    error = type("Bad" + EVIL[:-2], (Exception,), {{}})(EVIL)  # a name takes neither a NUL nor half a pair
    error.add_note(EVIL)
    raise error from ExceptionGroup(EVIL, [OSError(EVIL)])

@app.job
async def fail_async() -> None:
    raise ValueError(EVIL)

@app.job(isolation="process")
def fail_apart() -> None:
    raise KeyError(EVIL)

@app.job
def leave() -> None:
    raise Cancel(EVIL)
"""


@pytest.fixture
def bad_shop(tmp_path: Path) -> Path:
    """An app whose handlers say and raise what a terminal acts on, and a database with such names and values."""
    (tmp_path / "bad_shop.py").write_text(BAD_SHOP.format(evil=EVIL))
    talk = {"kind": "talk", "payload": json.dumps({"what": EVIL})}
    rows: list[dict[str, Any]] = [
        talk,
        *({"kind": name} for name in ("fail", "fail_async", "fail_apart", "leave")),
        {"kind": EVIL},
        {**talk, "payload": "{" + EVIL},
        {**talk, "queue": EVIL},
        {**talk, "kind_version": 7, "owner": EVIL},
        {**talk, "timeout_ms": 2**62, "last_error": EVIL},
    ]
    app = App(tmp_path / "jobs.db", durability="normal")
    kind = app.job(retry=Retry(1))(_nothing)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as raw:
        for row in rows:
            job_id = kind.enqueue().row.id
            for table, key in (("job", "id"), ("ready", "job_id")):
                known = {name for of, name, _ in _COLUMNS if of == table}
                for column in known & row.keys():
                    raw.execute(f"UPDATE perdure_{table} SET {column} = ? WHERE {key} = ?", (row[column], job_id))
            raw.commit()
        raw.execute("INSERT INTO perdure_queue (name, next_position) VALUES (?, 100000)", (EVIL,))
        raw.commit()
    app.close()
    return tmp_path


def _nothing() -> None: ...


@pytest.mark.parametrize("form", ["human", "json"])
def test_whatever_jobs_say_and_are_called_a_worker_prints_only_what_a_terminal_shows(bad_shop: Path, form: str) -> None:
    arguments = ("worker", "bad_shop:app", "--until-idle", "--log-format", form, "--log-level", "debug")
    ran = subprocess.run(
        [*PROGRAM, *arguments], cwd=bad_shop, capture_output=True, check=False, env=surroundings({}), timeout=120
    )

    out, err = ran.stdout.decode(), ran.stderr.decode()  # UTF-8, all of it
    assert ran.returncode == 0, err
    assert not ACTED_ON.search(out), ascii(out)
    assert not ACTED_ON.search(err), ascii(err)
    if form == "json":
        lines = [json.loads(line, parse_constant=_not_json) for line in (out + err).splitlines()]
        told = {line.get("event") for line in lines}
        assert {"completed", "failed", "parked", "cancelled"} <= told
    for said in ("fail_async", "fail_apart", "leave", "heard", "UserWarning", "Bad", "damaged their rows: 1;"):
        assert said in err, ascii(err)
    assert err.count("evil") >= 12
    with closing(sqlite3.connect(bad_shop / "jobs.db")) as raw:
        left = raw.execute("SELECT COUNT(*) FROM perdure_ready WHERE state <> 'parked'").fetchone()
        assert left == (0,)
