"""The README's example is run, and prints what the README says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[2] / "README.md"


def test_the_first_example_prints_what_it_says(tmp_path: Path) -> None:
    text = README.read_text("utf-8")
    code = re.findall(r"```python\n(.*?)```", text, re.DOTALL)[0]
    printed = re.findall(r"```text\n(.*?)```", text, re.DOTALL)[0]
    (tmp_path / "example.py").write_text(code, "utf-8")
    ran = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert (ran.stdout, ran.stderr) == (printed, "")


def test_the_example_of_a_shared_transaction_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    orders = 'sqlite3.connect("jobs.db").execute("CREATE TABLE orders (id INTEGER)").connection.close()'
    program = f"import sqlite3\n{blocks[0]}\n{orders}"
    (tmp_path / "example.py").write_text(f"{program}\n{blocks[1]}\nprint(len(list(app.jobs())))", "utf-8")
    ran = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.stdout.splitlines()[-1:] == ["4"], ran.stderr
