"""Time-outs at any moment of what a handler does with the app: nobody else is stopped, and the worker goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from perdure.ops.doctor import examine, is_healthy
from perdure.store.engine import Call, Op
from perdure.uninterrupted import Mark, interruptible
from tests.interrupts.conftest import Scene


def test_handlers_that_are_timed_out_at_any_moment_stop_nobody_else(scene: Scene, full_size: bool) -> None:
    number = 500 if full_size else 12 // scene.thrift
    ended = subprocess.run(
        [sys.executable, "-X", "faulthandler", str(Path(__file__).with_name("timed_out.py")), scene.url, str(number)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=1_700 if full_size else 170,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)

    timed_out = {kind: told["ended"].get(f"{kind} failed", 0) for kind in NEVER_END}
    assert timed_out == dict.fromkeys(NEVER_END, number)
    assert set(told["why"]) == {"JobTimeout"}
    assert "after" in [payload.get("who") for payload in scene.payloads()]
    assert is_healthy(examine(scene.app.store))


NEVER_END = ("reads", "enqueues", "in_blocks", "in_its_own_block", "starts_threads")


class Stopped(BaseException):
    """What a handler is stopped by."""


@pytest.mark.parametrize("call", ["write", "read"])
def test_what_a_handler_asked_of_the_database_is_done_before_it_is_stopped(scene: Scene, call: str) -> None:
    runner: Any = scene.app.store.runner  # type: ignore[attr-defined]  # beneath the protocol
    done: list[str] = []

    def handler() -> None:
        mark = Mark()

        def operation() -> Op[None]:
            mark.raise_in_thread(Stopped, surely=True)
            yield Call("list_nodes", {"page": 1})
            done.append("all of it")

        try:
            with interruptible:
                getattr(runner, call)(operation)
                done.append("and more")
        except Stopped:
            done.append("stopped")

    thread = threading.Thread(target=handler, daemon=True)
    thread.start()
    thread.join(30)
    assert done == ["all of it", "stopped"]


def test_a_handler_inside_of_a_block_is_stopped_at_once(scene: Scene) -> None:
    done: list[str] = []

    def handler() -> None:
        mark = Mark()
        try:
            with interruptible, scene.app.transaction():
                mark.raise_in_thread(Stopped, surely=True)
                done.append("went on")
        except Stopped:
            done.append("stopped")

    thread = threading.Thread(target=handler, daemon=True)
    thread.start()
    thread.join(30)
    assert done == ["stopped"]
