"""What `dir` shows, and so what editors and consoles offer: the names that are for users. For `__dir__` of the objects
that users hold; each module says which of their other names are there only for the package's own parts."""

from __future__ import annotations

from collections.abc import Collection, Iterable


def public(names: Iterable[str], inner: Collection[str]) -> list[str]:
    """These names without the inner ones, and without those that begin with one underscore."""
    return sorted(name for name in names if name not in inner and (name[0] != "_" or name.startswith("__")))
