"""The site can be built, strictly and offline, and nothing in it leads nowhere or to foreign hosts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html import unescape
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import yaml

import perdure
from tests.docs import site

ROOT = site.ROOT
BUILD = "from pathlib import Path; from tests.docs.site import build; build(Path().resolve())"
PARTS = ("docs", "examples", "src", "tests/docs")
OFFLINE = ["unshare", "--user", "--net", "--map-root-user"]
_ATTRIBUTE = re.compile(r'<(\w+)[^>]*?\s(?:href|src)="?([^\s">]+)')
_NAME = re.compile(r'\s(?:id|name)="?([^\s">]+)')


def copied(folder: Path) -> Path:
    """What the site is made of."""
    for part in PARTS:
        shutil.copytree(ROOT / part, folder / part, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("README.md", "CHANGELOG.md", "mkdocs.yml", "tests/customers.py"):
        shutil.copy(ROOT / name, folder / name)
    return folder


def built(folder: Path, *, before: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*before, sys.executable, "-c", BUILD],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built without any network where this machine can take it away."""
    folder = copied(tmp_path_factory.mktemp("site"))
    can = subprocess.run([*OFFLINE, "true"], capture_output=True, check=False).returncode == 0
    done = built(folder, before=tuple(OFFLINE) if can else ())
    assert done.returncode == 0, done.stdout
    return folder / "site"


def links(page: Path) -> list[tuple[str, str]]:
    """The tags and targets of all links of a page."""
    return [(tag, unescape(to)) for tag, to in _ATTRIBUTE.findall(page.read_text("utf-8"))]


def target(made: Path, page: Path, link: str) -> tuple[Path, str]:
    """The file that a link leads to, and the place in it."""
    parts = urlsplit(link)
    path = unquote(parts.path)
    file = made / path.lstrip("/") if path.startswith("/") else (page.parent / path).resolve()
    if not parts.path:
        file = page
    return (file / "index.html" if file.is_dir() else file), unquote(parts.fragment)


def test_every_link_of_the_site_leads_somewhere(made: Path) -> None:
    names = {page: set(_NAME.findall(page.read_text("utf-8"))) for page in made.rglob("*.html")}
    wrong: list[str] = []
    for page in names:
        for _, link in links(page):
            if page.name == "404.html" or urlsplit(link).scheme:
                continue
            file, place = target(made, page, link)
            if not file.exists() or (place and file in names and place not in names[file]):
                wrong.append(f"{page.relative_to(made)}: {link}")
    assert wrong == []
    assert len(names) > 40


def test_nothing_is_fetched_from_other_hosts(made: Path) -> None:
    fetched = [
        link for page in made.rglob("*.html") for tag, link in links(page) if tag != "a" and urlsplit(link).netloc
    ]
    imported = [
        name
        for style in made.rglob("*.css")
        for name in re.findall(r"(?:url\(|@import )[\"']?(https?://[^\"')]+)", style.read_text("utf-8"))
    ]
    assert (fetched, imported) == ([], [])


def test_the_reference_has_every_public_name(made: Path) -> None:
    reference = "".join(page.read_text("utf-8") for page in (made / "reference").rglob("*.html"))
    errors = (made / "docs" / "errors" / "index.html").read_text("utf-8")
    names = [name for name in perdure.__all__ if name != "__version__"]
    assert [name for name in names if f'id="perdure.{name}"' not in reference and f"{name} " not in errors] == []


def test_every_page_is_in_the_navigation() -> None:
    text = re.sub(r"!!python\S+ \{.*\}", "x", (ROOT / "mkdocs.yml").read_text("utf-8"))
    listed = re.findall(r"[\w./-]+\.md", str(yaml.safe_load(text)["nav"]))
    ours = {"README.md", "CHANGELOG.md", *(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md"))}
    assert sorted(listed) == sorted(ours | {f"reference/{name}.md" for name in site.REFERENCE})


@pytest.mark.parametrize("wrong", ["[one](nowhere.md)", "[one](jobs.md#nowhere)"])
def test_a_broken_link_stops_the_build(wrong: str, folder: Path) -> None:
    copied(folder)
    page = folder / "docs" / "faq.md"
    page.write_text(f"{page.read_text('utf-8')}\n{wrong}\n", "utf-8")
    assert built(folder).returncode != 0


def test_a_name_that_is_gone_from_the_code_stops_the_build(folder: Path) -> None:
    copied(folder)
    pages = folder / "tests" / "docs" / "site.py"
    pages.write_text(pages.read_text("utf-8").replace('"perdure.Retry"', '"perdure.Rerty"'), "utf-8")
    assert built(folder).returncode != 0
