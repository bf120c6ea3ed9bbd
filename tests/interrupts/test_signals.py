"""Interrupts (Ctrl-C, exceptions raised by signal handlers) by real signals, beside threads that write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure.errors import StoreError
from perdure.store.sqlite.database import Database
from tests.interrupts.conftest import Scene
from tests.interrupts.points import interrupted_at
from tests.interrupts.test_every_point import left


@pytest.mark.parametrize("what", ["enqueue", "block", "awaited"])
def test_whoever_is_interrupted_by_signals_costs_nobody_a_job_or_an_error(
    scene: Scene, what: str, full_size: bool
) -> None:
    rounds = 20_000 if full_size else 400 // scene.thrift
    ended = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("interrupted.py")), scene.url, str(rounds), what],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=1_700 if full_size else 170,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)

    assert told["errors"] == []
    assert told["interrupts"] > rounds // 20
    there = Counter((note["who"], note["number"]) for note in notes(scene))
    assert set(there.values()) == {1}
    assert {(who, number) for who, number in told["acknowledged"]} <= set(there)
    if scene.dialect == "sqlite":
        with closing(scene.connect()) as connection:
            assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def notes(scene: Scene) -> list[dict[str, Any]]:
    return [payload for payload in scene.payloads() if "who" in payload]


@pytest.mark.parametrize("scene", ["sqlite"], indirect=True)
@pytest.mark.parametrize("handling_an_error", [False, True])
def test_an_interrupt_at_any_point_of_leading_reaches_no_follower(scene: Scene, handling_an_error: bool) -> None:
    def lead() -> None:
        scene.send.enqueue("leader")

    def lead_in_a_handler() -> None:
        try:
            raise StoreError("an earlier one of the caller's")
        except StoreError:
            lead()

    runner: Any = scene.app.store.runner  # type: ignore[attr-defined]  # beneath the protocol
    point = 1
    while led_and_interrupted(point, scene, runner.database, lead_in_a_handler if handling_an_error else lead):
        assert not left(scene), point
        point += 1
    assert point > 50
    recipients = Counter(scene.sent())
    assert [recipients[f"follower {n}"] for n in range(1, point)] == [1] * (point - 1)


def led_and_interrupted(point: int, scene: Scene, database: Database, lead: Callable[[], object]) -> bool:
    """Lead a group of two, interrupted at this point. Both come while a third one has the turn."""
    held, ended = threading.Event(), threading.Event()
    waiting = database._group._waiting

    def holder() -> None:
        with scene.app.transaction():
            held.set()
            until(lambda: len(waiting) == 2 or ended.is_set())

    def follower() -> None:
        until(lambda: len(waiting) == 1 or ended.is_set())
        scene.send.enqueue(f"follower {point}")

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


def until(condition: Callable[[], bool]) -> None:
    """Look again and again until it is so."""
    while not condition():
        time.sleep(0.0005)
