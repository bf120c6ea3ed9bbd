"""The guides do what they say: their files are written, their programs and commands run, their output is compared."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs import pages

PAGES = (("tutorial.md", 22), ("operations.md", 7), ("coming-from-celery.md", 6), ("coming-from-apscheduler.md", 6))
"""And how many programs and commands there are at least: a page that runs nothing would pass."""


@pytest.mark.parametrize(("name", "at_least"), PAGES, ids=[name for name, _ in PAGES])
def test_a_page_runs_as_printed(name: str, at_least: int, folder: Path) -> None:
    ran = pages.run(name, folder)
    assert ran.problems == [], "\n\n".join(ran.problems)
    assert ran.commands >= at_least
