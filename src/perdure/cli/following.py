"""`--follow`: prints what is new, as it comes. Used by `jobs` and `runs`; `lines` looks as often."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

T = TypeVar("T")

PAUSE_S = 1.0
KNOWN = 200
"""A look goes back until it has met so many that were there before: ids of several processes do not always come in
order, and what was shown may have changed."""
_MOST = 5_000
_REMEMBERED = 20_000


def news(read: Callable[[], Iterable[T]], mark: Callable[[T], tuple[object, object]], first: int) -> Iterator[T]:
    """What is new or stands otherwise than when it was given, oldest first; then sleeps and looks again, for ever.

    What changes further back than the newest `KNOWN` or so is not seen: a look does not read everything again.

    `read` gives the newest first. `mark` says what a thing is and how it stands. The first look gives `first` of them.
    """
    seen: dict[object, object] = {}
    most = first
    while True:
        yield from reversed(_unseen(islice(read(), most + KNOWN), mark, seen, most))
        most = _MOST
        for name in list(seen)[: len(seen) - _REMEMBERED if len(seen) > 2 * _REMEMBERED else 0]:
            del seen[name]
        time.sleep(PAUSE_S)


def _unseen(
    things: Iterable[T], mark: Callable[[T], tuple[object, object]], seen: dict[object, object], most: int
) -> list[T]:
    fresh: list[T] = []
    known = 0
    for thing in things:
        name, standing = mark(thing)
        known += name in seen
        if seen.get(name) != standing and len(fresh) < most:
            fresh.append(thing)
        seen[name] = standing
        if known >= KNOWN:
            break
    return fresh
