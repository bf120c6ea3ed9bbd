"""Interrupts (Ctrl-C, exceptions raised by signal handlers) at any moment of a write."""

from __future__ import annotations

import inspect
import json
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import pytest

from perdure import Perdure
from perdure.errors import StoreError
from perdure.store.sql.dialects.sqlite.database import Database
from tests.app.contents import jobs_in


class Told(NamedTuple):
    """What the interrupted program says."""

    acknowledged: list[list[Any]]
    errors: list[str]
    interrupts: int
    path: Path


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory, full_size: bool) -> Told:
    path = tmp_path_factory.mktemp("interrupts") / "jobs.db"
    program = Path(__file__).with_name("interrupted.py")
    ended = subprocess.run(
        [sys.executable, str(program), str(path), str(20_000 if full_size else 1_000)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=170 if not full_size else 1_700,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert not ended.stderr
    return Told(**json.loads(ended.stdout), path=path)


def test_the_program_was_interrupted_often(told: Told) -> None:
    assert told.interrupts > 100


def test_nobody_saw_an_error_that_was_not_theirs(told: Told) -> None:
    assert told.errors == []


def test_every_acknowledged_job_is_there_and_none_twice(told: Told) -> None:
    there = Counter((job["who"], job["number"]) for job in map(json.loads, jobs_in(told.path)))
    assert set(there.values()) == {1}
    assert {(who, number) for who, number in told.acknowledged} <= set(there)


def test_the_file_is_whole(told: Told) -> None:
    with closing(sqlite3.connect(told.path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


# -- at every single point -------------------------------------------------------------------------------------------


def interrupted_at(point: int, act: Callable[[], object]) -> bool:
    """Interrupt `act` at the nth moment at which Python would raise an interrupt: where a function of ours begins, or a
    built-in one has returned. False: it has fewer."""
    seen = 0

    def watch(frame: FrameType, event: str, arg: object) -> None:
        nonlocal seen
        resumed = event == "call" and frame.f_code.co_flags & inspect.CO_GENERATOR  # would skip its `finally`
        if event in ("call", "c_return") and not resumed:
            seen += 1
            if seen == point:
                raise KeyboardInterrupt

    try:
        sys.setprofile(watch)
        act()
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


def in_time(act: Callable[[], object]) -> bool:
    """Whether another thread gets it done."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    thread.join(20)
    return not thread.is_alive()


def until(condition: Callable[[], bool]) -> None:
    """Look again and again until it is so."""
    while not condition():
        time.sleep(0.0005)


def nothing_is_left(database: Database) -> bool:
    group, gate = database._group, database._gate
    idle = not database._mutex._line and not gate.inside and not group._waiting and not group._led
    return idle and not database._writer.in_transaction


@pytest.fixture
def database(app: Perdure, send: Any) -> Database:
    send.enqueue("warm")
    runner: Any = app.store.runner  # type: ignore[attr-defined]  # beneath the protocol
    found: Database = runner.database
    return found


def test_an_interrupt_at_any_point_of_a_write_leaves_the_next_one_alone(
    app: Perdure, database: Database, send: Any, path: Path
) -> None:
    draft = app.new_jobs([send.new("x")])[0]
    point = 1
    while interrupted_at(point, lambda: app.store.enqueue([draft._replace(id=app.ids.new())])):  # type: ignore[arg-type]
        assert nothing_is_left(database), point
        assert in_time(partial(send.enqueue, f"after {point}")), point
        point += 1
    assert point > 50
    recipients = Counter(json.loads(payload)["to"] for payload in jobs_in(path))
    assert [recipients[f"after {n}"] for n in range(1, point)] == [1] * (point - 1)


def test_an_interrupt_at_any_point_of_a_block_leaves_the_next_write_alone(
    app: Perdure, database: Database, send: Any, path: Path
) -> None:
    def block() -> None:
        with app.transaction() as tx:
            tx.execute("UPDATE perdure_queue SET concurrency = NULL")
            send.enqueue("block")

    point = 1
    while interrupted_at(point, block):
        assert nothing_is_left(database), point
        assert in_time(partial(send.enqueue, f"after {point}")), point
        point += 1
    assert point > 100
    recipients = Counter(json.loads(payload)["to"] for payload in jobs_in(path))
    assert [recipients[f"after {n}"] for n in range(1, point)] == [1] * (point - 1)


@pytest.mark.parametrize("handling_an_error", [False, True])
def test_an_interrupt_at_any_point_of_leading_reaches_no_follower(
    app: Perdure, database: Database, send: Any, path: Path, handling_an_error: bool
) -> None:
    def lead() -> None:
        send.enqueue("leader")

    def lead_in_a_handler() -> None:
        try:
            raise StoreError("an earlier one of the caller's")
        except StoreError:
            lead()

    point = 1
    while led_and_interrupted(point, app, database, send, lead_in_a_handler if handling_an_error else lead):
        assert nothing_is_left(database), point
        point += 1
    assert point > 50
    recipients = Counter(json.loads(payload)["to"] for payload in jobs_in(path))
    assert [recipients[f"follower {n}"] for n in range(1, point)] == [1] * (point - 1)


def led_and_interrupted(point: int, app: Perdure, database: Database, send: Any, lead: Callable[[], object]) -> bool:
    """Lead a group of two, interrupted at this point. Both come while a third one has the turn."""
    held, ended = threading.Event(), threading.Event()
    waiting = database._group._waiting

    def holder() -> None:
        with app.transaction():
            held.set()
            until(lambda: len(waiting) == 2 or ended.is_set())

    def follower() -> None:
        until(lambda: len(waiting) == 1 or ended.is_set())
        send.enqueue(f"follower {point}")

    threads = [threading.Thread(target=act, daemon=True) for act in (holder, follower)]
    threads[0].start()
    assert held.wait(20)
    threads[1].start()
    interrupted = interrupted_at(point, lead)
    ended.set()
    for thread in threads:
        thread.join(20)
        assert not thread.is_alive(), point
    return interrupted
