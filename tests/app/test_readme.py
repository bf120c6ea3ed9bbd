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


def test_the_example_of_a_test_passes(tmp_path: Path) -> None:
    assert ran_after_the_first(tmp_path, 1, "test_a_welcome_is_sent()\nprint('passed')") == "passed"


def test_the_example_of_a_shared_transaction_runs(tmp_path: Path) -> None:
    assert ran_after_the_first(tmp_path, 2, "print(len(list(app.jobs())))") == "4"


def test_the_example_of_a_shared_transaction_runs_in_an_empty_folder(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    declared = blocks[0].split("\n\n\nsend.enqueue(")[0]
    assert printed_last(tmp_path, declared, blocks[2], "print(len(list(app.jobs())))") == "1"


def ran_after_the_first(folder: Path, number: int, after: str) -> str:
    """The last line that is printed by the first example, another one, and some code after that."""
    blocks = re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), re.DOTALL)
    return printed_last(folder, blocks[0], blocks[number], after)


def printed_last(folder: Path, *code: str) -> str:
    (folder / "example.py").write_text("\n".join(code), "utf-8")
    ran = subprocess.run(
        [sys.executable, "example.py"], cwd=folder, capture_output=True, text=True, check=False, timeout=60
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()[-1]
