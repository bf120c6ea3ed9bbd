"""What runs say, made fit to be kept: without the job's secrets, and without what not every database holds.

Used by `context` for log lines and by `run` for errors.
"""

from __future__ import annotations

import json
from typing import cast

HIDDEN = "•••"
SHORTEST_SECRET = 3
"""Shorter ones tell nothing and would riddle every line."""


def storable(text: str) -> str:
    """Without what not every database keeps: NUL, and halves of surrogate pairs."""
    return text.replace("\0", "�").encode("utf-8", "replace").decode()


def shortened(text: str, limit: int) -> str:
    """A text that is too long loses its middle: both where it began and how it ended is worth keeping."""
    if len(text) <= limit:
        return text
    mark = f"\n… {len(text) - limit:,} characters or more were left out here …\n"
    head = (limit - len(mark)) // 2
    return text[:head] + mark + text[head + len(mark) - limit :]


def secrets_in(stored: str | None) -> tuple[str, ...]:
    """Every text by which a secret argument could be recognised: as it is, and as `repr` and JSON write it."""
    if stored is None:
        return ()
    found: set[str] = set()
    for secret in _texts(json.loads(stored)):
        found |= {secret, repr(secret)[1:-1], json.dumps(secret)[1:-1], json.dumps(secret, ensure_ascii=False)[1:-1]}
    return tuple(sorted(found, key=len, reverse=True))


def without(secrets: tuple[str, ...], text: str) -> str:
    for secret in secrets:
        text = text.replace(secret, HIDDEN)
    return text


def _texts(tree: object) -> set[str]:
    if isinstance(tree, dict):
        return set[str]().union(*map(_texts, cast("dict[str, object]", tree).values()))
    if isinstance(tree, list):
        return set[str]().union(*map(_texts, cast("list[object]", tree)))
    text = "" if tree is None or isinstance(tree, bool) else str(tree)
    return {text} if len(text) >= SHORTEST_SECRET else set()
