"""Time-outs at any moment of what a handler does with the app: nobody else is stopped, and the worker goes on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from perdure.ops.doctor import examine, is_healthy
from tests.interrupts.conftest import Scene


def test_handlers_that_are_timed_out_at_any_moment_stop_nobody_else(scene: Scene, full_size: bool) -> None:
    number = 500 if full_size else 12
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
