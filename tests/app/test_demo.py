"""`make demo` runs to its end, says what happened, and leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def test_the_demo_runs_and_leaves_nothing_behind(tmp_path: Path) -> None:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    ran = subprocess.run(
        [sys.executable, DEMO],
        cwd=tmp_path,
        env=clean | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )

    assert (ran.returncode, ran.stderr) == (0, "")
    assert "ConnectionError: the mail server is busy\n       attempt 2 completed" in ran.stdout
    assert "send   failed     no such address" in ran.stdout
    assert "count  completed  8" in ran.stdout
    assert "doctor    healthy" in ran.stdout
    assert list(tmp_path.iterdir()) == []
