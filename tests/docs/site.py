"""The documentation as a site: `python -m tests.docs.site` writes the pages to .site/pages and builds them into site/.

The pages are those of the repository, in the same places, so that their links hold here as on a code host. Two things
are added: a page for each other file that a page links to (examples, configuration), and the reference, which is made
from docstrings by mkdocstrings. Any warning of the builder is an error.
"""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from pydoc import locate

import yaml

ROOT = Path(__file__).parents[2]

ERRORS = "Error classes\n\nThe tree, and every code: [errors](../docs/errors.md). What they have besides their message:"

REFERENCE = {
    "app": (
        "The app",
        (
            "perdure.Perdure",
            "perdure.config.Config",
            "perdure.Retention",
            "perdure.queues.Queues",
            "perdure.limits.Limits",
            "perdure.schedules.Schedules",
            "perdure.templates.Templates",
            "perdure.lock.Lock",
            "perdure.reservation.Reservation",
            "perdure.worker.worker.Worker",
        ),
    ),
    "jobs": (
        "Kinds, jobs and runs",
        (
            "perdure.Kind",
            "perdure.kind.Bound",
            "perdure.options.OptionFields",
            "perdure.Retry",
            "perdure.Unique",
            "perdure.Limit",
            "perdure.Rate",
            "perdure.Priority",
            "perdure.Secret",
            "perdure.Draft",
            "perdure.Job",
            "perdure.State",
            "perdure.Run",
            "perdure.RunState",
            "perdure.principal",
        ),
    ),
    "flows": (
        "Flows",
        (
            "perdure.workflow.Workflow",
            "perdure.workflow.InnerFlow",
            "perdure.workflow.Batch",
            "perdure.Planned",
            "perdure.each",
            "perdure.previous",
            "perdure.Flow",
            "perdure.FlowState",
            "perdure.Outcome",
            "perdure.flows.Flows",
        ),
    ),
    "handlers": (
        "What handlers use",
        (
            "perdure.JobContext",
            "perdure.current",
            "perdure.Done",
            "perdure.RetryAfter",
            "perdure.Snooze",
            "perdure.Skip",
            "perdure.Cancel",
            "perdure.Fail",
        ),
    ),
    "errors": (ERRORS, ("perdure.PerdureError", "perdure.InvalidPayload", "perdure.KeyConflict", "perdure.JobFailed")),
    "testing": ("Testing", ("perdure.testing.Kit", "perdure.testing.KitContext")),
    "contrib": (
        "Frameworks",
        (
            "perdure.contrib.asgi",
            "perdure.contrib.fastapi",
            "perdure.contrib.flask",
            "perdure.contrib.django",
            "perdure.contrib.alembic",
        ),
    ),
}

INNER_OF_VALUES = {
    "Config": ("check", "of", "store_settings"),
    "Retention": ("age_of", "shortest"),
    "Retry": ("counting", "from_json", "of", "retries", "to_json"),
    "Unique": ("names",),
    "Draft": ("plan",),
    "Limit": ("burst", "per_us", "sort"),
    "Rate": ("per_us", "sort"),
    "Workflow": ("app", "check_open", "close", "flow_id", "keep", "plan"),
    "InnerFlow": ("app", "check_open", "close", "flow_id", "keep", "plan"),
    "PerdureError": ("default_code",),
    "InvalidPayload": ("default_code",),
    "KeyConflict": ("default_code",),
    "JobFailed": ("default_code",),
}
"""What these have for Perdure's own parts. For other classes their modules say it, in `INNER`."""
SETTINGS = ("Config", "Retention", "Retry", "Unique", "Limit", "Rate", "OptionFields")
"""Whose fields are what one sets, whatever they are called."""
FIELDS = ("Job", "Run", "Draft", "State", "RunState", "FlowState", "Priority")
"""Whose fields speak for themselves: docs/jobs.md explains them in tables."""
CALLED = (
    "Perdure",
    "Config",
    "Retention",
    "Retry",
    "Unique",
    "Limit",
    "Rate",
    "Secret",
    "Done",
    "RetryAfter",
    "Snooze",
    "Skip",
    "Cancel",
    "Fail",
)
"""What users make themselves. How the others are made is not theirs to know."""
INHERITING = ("Workflow", "InnerFlow", "Batch", "Planned", "Flow")
"""What these have from classes that have no entry of their own is shown with them."""

_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]+`", re.MULTILINE | re.DOTALL)
_LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", ".service": "ini", ".md": "markdown"}


def build(root: Path = ROOT) -> None:
    """Make the site of this tree anew. SystemExit: a page, link or docstring is wrong; the builder has said which."""
    pages = root / ".site" / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    write_pages(root, pages)
    done = subprocess.run([sys.executable, "-m", "zensical", "build", "--strict", "--clean"], cwd=root, check=False)
    if done.returncode:
        raise SystemExit(done.returncode)


def write_pages(root: Path, pages: Path) -> None:
    """Every page that the site has, below `pages`."""
    coming = [root / "README.md", root / "CHANGELOG.md", *sorted((root / "docs").glob("*.md"))]
    seen: set[Path] = set()
    while coming:
        file = coming.pop()
        if file not in seen:
            seen.add(file)
            text = file.read_text("utf-8")
            coming += _linked(root, file, text)
            _write(pages / _page_of(file.relative_to(root)), _with_pages(root, file, text))
    shutil.copy(root / "docs" / "site.css", pages / "docs" / "site.css")
    for name, text in reference():
        _write(pages / "reference" / f"{name}.md", text)


def reference() -> Iterator[tuple[str, str]]:
    """The pages that mkdocstrings fills."""
    for name, (title, paths) in REFERENCE.items():
        yield name, f"# {title}\n\n" + "\n".join(map(_entry, paths))


def _entry(path: str) -> str:
    return f"::: {path}\n" + textwrap.indent(yaml.safe_dump({"options": entry_options(path)}), "    ")


def entry_options(path: str) -> dict[str, object]:
    """What an entry shows, for mkdocstrings."""
    name = path.rpartition(".")[2]
    is_settings = name in SETTINGS
    return {
        "filters": ["!^_", *(f"!^{name}$" for name in inner_names(path))],
        "show_if_no_docstring": is_settings or name in FIELDS,
        "show_attribute_values": name not in (*FIELDS, "Kit"),
        "merge_init_into_class": name in CALLED,
        "inherited_members": name in INHERITING,
    }


def inner_names(path: str) -> list[str]:
    """The names of an entry that are for Perdure's own parts."""
    of_module: frozenset[str] = getattr(inspect.getmodule(locate(path)), "INNER", frozenset())
    return sorted(of_module.union(INNER_OF_VALUES.get(path.rpartition(".")[2], ())))


def _linked(root: Path, file: Path, text: str) -> list[Path]:
    """The files of the repository that a page links to."""
    if file.suffix != ".md":
        return []
    found = ((file.parent / link).resolve() for link in _LINK.findall(_CODE.sub("", text)))
    return [path for path in found if path.is_file() and path.is_relative_to(root)]


def _page_of(path: Path) -> Path:
    """Where the page of a file is: a file that is no page has one with its name and `.md` behind it."""
    return path if path.suffix == ".md" else path.with_name(f"{path.name}.md")


def _with_pages(root: Path, file: Path, text: str) -> str:
    """A page whose links lead to pages; of another file, a page that shows it."""
    if file.suffix != ".md":
        language = _LANGUAGES.get(file.suffix, "docker" if file.name == "Dockerfile" else "text")
        return f"# {file.relative_to(root)}\n\n```{language}\n{text.rstrip()}\n```\n"
    return _LINK.sub(lambda link: _shown(file, link[1]), text)


def _shown(file: Path, link: str) -> str:
    target = (file.parent / link).resolve()
    return f"{link}.md" if target.is_file() and target.suffix != ".md" else link


def _write(page: Path, text: str) -> None:
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text, "utf-8")


if __name__ == "__main__":
    build()
