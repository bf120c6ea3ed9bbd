"""docs/testing.md is run: its files are written to a new project, and pytest is started in it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.testing.test_plugin import run_pytest

PAGE = (Path(__file__).parents[2] / "docs" / "testing.md").read_text("utf-8")
FILES = re.findall(r"^```(?:python|toml)\n# (\S+)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILES:
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
    return tmp_path


def test_every_test_on_the_page_passes(project: Path) -> None:
    tests = [name for name, _ in FILES if name.startswith("tests/")]
    assert len(tests) == len(re.findall(r"^```python$", PAGE, re.MULTILINE)) - 1
    printed = run_pytest(project, "-q")
    assert f"{len(tests)} passed" in printed, printed
    assert not list(project.rglob("*.db"))


def test_a_disappointed_test_prints_what_the_page_says(project: Path) -> None:
    (shown,) = re.findall(r"^```text\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    test = project / "tests" / "test_shop.py"
    test.write_text(test.read_text("utf-8").replace("ann@example.org", "bob@example.org"), "utf-8")
    printed = run_pytest(project, "tests/test_shop.py")
    assert shown in re.sub(r"^E {7}", "", printed, flags=re.MULTILINE), printed
