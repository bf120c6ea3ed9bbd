"""What users get from a package index: a wheel with its types, and a page whose links lead somewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from email import message_from_bytes
from email.message import Message
from pathlib import Path
from zipfile import ZipFile

from readme_renderer import markdown

ROOT = Path(__file__).parents[2]
HOME = "https://code.example.org/perdure/perdure"
HOOK = "[tool.hatch.metadata.hooks.custom]\n"
BUILD = "from hatchling.build import build_wheel; print(build_wheel('dist'))"


def built(folder: Path, home: str = "") -> ZipFile:
    """The wheel of this tree, with this address of the repository."""
    for name in ("README.md", "LICENSE", "pyproject.toml", "hatch_build.py"):
        shutil.copy(ROOT / name, folder / name)
    shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
    settings = (folder / "pyproject.toml").read_text("utf-8")
    assert HOOK in settings
    (folder / "pyproject.toml").write_text(
        settings.replace(HOOK, f'{HOOK}home = "{home}"\n') if home else settings, "utf-8"
    )
    done = subprocess.run([sys.executable, "-c", BUILD], cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return ZipFile(folder / "dist" / done.stdout.split()[-1])


def metadata(wheel: ZipFile) -> Message:
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return message_from_bytes(wheel.read(name))


def rendered(data: Message) -> str:
    """The description as a package index shows it."""
    assert data["Description-Content-Type"].startswith("text/markdown")
    text = data.get_payload(decode=True)
    assert isinstance(text, bytes)
    html = markdown.render(text.decode())
    assert html
    return html


def links(html: str) -> list[str]:
    return re.findall(r'href="([^"]*)"', html)


def test_the_wheel_has_types_statements_and_license(folder: Path) -> None:
    wheel = built(folder)
    names = set(wheel.namelist())
    sql = {f"perdure/{path.relative_to(ROOT / 'src/perdure')}" for path in (ROOT / "src/perdure").rglob("*.sql")}
    assert {"perdure/py.typed", "pytest_perdure.py", *sql} <= names
    assert sql
    assert any(name.endswith("/licenses/LICENSE") for name in names)
    assert "Typing :: Typed" in metadata(wheel).get_all("Classifier", [])


def test_without_an_address_the_page_on_an_index_has_no_link_that_leads_nowhere(folder: Path) -> None:
    data = metadata(built(folder))
    assert [link for link in links(rendered(data)) if not link.startswith(("https://", "#"))] == []
    assert data.get_all("Project-URL") is None


def test_with_an_address_every_link_into_the_repository_works_on_an_index(folder: Path) -> None:
    data = metadata(built(folder, HOME))
    version = data["Version"]
    ours = [link for link in links(rendered(data)) if link.startswith(HOME)]
    assert len(ours) > 30
    for link in ours:
        path, _, _ = link.removeprefix(f"{HOME}/blob/v{version}/").partition("#")
        assert (ROOT / path).is_file(), link
    assert [link for link in links(rendered(data)) if not link.startswith(("https://", "#"))] == []
    urls = dict(one.split(", ", 1) for one in data.get_all("Project-URL", []))
    assert urls == {
        "Repository": HOME,
        "Documentation": f"{HOME}/blob/main/README.md",
        "Changelog": f"{HOME}/blob/main/CHANGELOG.md",
        "Issues": f"{HOME}/issues",
    }


def test_code_is_left_as_it_is() -> None:
    """A link is only a link outside of code."""
    sys.path.insert(0, str(ROOT))
    try:
        from hatch_build import for_an_index
    finally:
        sys.path.remove(str(ROOT))
    text = "```python\na[b](c)\n```\n[x](docs/y.md) [z](https://z.org)\n"
    assert for_an_index(text, "H") == "```python\na[b](c)\n```\n[x](H/docs/y.md) [z](https://z.org)\n"
