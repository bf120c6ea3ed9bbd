"""Writes docs/errors.md: `python -m tests.docs.errors_page`. Asks `error_tree` for classes, docs/errors.toml for words.

A code that errors.toml says nothing about stops it, and is named.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from tests.docs import error_tree

DOCS = Path(__file__).parents[2] / "docs"
SOURCE = DOCS / "errors.toml"
PAGE = DOCS / "errors.md"

HEAD = """\
# Errors

Every error is a `PerdureError` with a stable `code` and a message that says what happened, which value it was, and what
to do next. Catch the class, report the code: `error.code`, `error.message`. After a refusal nothing was written. The
command line prints message and code on one line and exits with 2.

```text
{tree}
```

`<…>` stands for a part that varies. This page is made from the source and [errors.toml](errors.toml); do not edit it.
"""


class Section(NamedTuple):
    """A part of the page.

    `composed`: the class of codes that the source puts together and nobody can look up; empty: they have none.
    """

    title: str
    composed: str
    codes: Mapping[str, str]


def sections() -> list[Section]:
    content = tomllib.loads(SOURCE.read_text("utf-8"))
    return [Section(part["title"], part.get("class", "PerdureError"), part["codes"]) for part in content["section"]]


def unexplained() -> set[str]:
    """Codes of the package that errors.toml says nothing about."""
    return set(error_tree.codes()) - {code for section in sections() for code in section.codes}


def page() -> str:
    """The page as it should be."""
    return "".join(_parts())


def _parts() -> Iterator[str]:
    found = error_tree.codes()
    yield HEAD.format(tree=error_tree.tree())
    for section in sections():
        yield f"\n## {section.title}\n\n| code | class | means |\n|---|---|---|\n"
        for code, means in section.codes.items():
            classes = ", ".join(f"`{name}`" if name else "–" for name in sorted(found.get(code) or {section.composed}))
            yield f"| `{code}` | {classes} | {means} |\n"


if __name__ == "__main__":
    if missing := unexplained():
        raise SystemExit(f"{SOURCE} says nothing about {', '.join(sorted(missing))}")
    PAGE.write_text(page(), "utf-8")
