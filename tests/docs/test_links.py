"""No page leads nowhere: every link to a file of the repository, and to a heading in it, is one that exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`[^`\n]+`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in _links(page) if not _exists(page, link)] == []


def _links(page: Path) -> list[str]:
    """Those inside the repository."""
    return [link for link in _LINK.findall(_CODE.sub("", _prose(page))) if "://" not in link]


def _exists(page: Path, link: str) -> bool:
    path, _, heading = link.partition("#")
    target = (page.parent / path).resolve() if path else page
    return target.exists() and (not heading or heading in _headings(target))


def _prose(page: Path) -> str:
    return _FENCED.sub("", page.read_text("utf-8"))


def _headings(page: Path) -> set[str]:
    """As GitHub names them."""
    titles = re.findall(r"^#+ (.*)$", _prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def test_every_page_can_be_reached_from_the_readme() -> None:
    seen: set[Path] = set()
    coming = [ROOT / "README.md"]
    while coming:
        page = coming.pop()
        if page not in seen and page.suffix == ".md":
            seen.add(page)
            linked = (link.partition("#")[0] for link in _links(page))
            coming += [(page.parent / path).resolve() for path in linked if path]
    assert [page.name for page in PAGES if page not in seen] == []
