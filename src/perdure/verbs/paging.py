"""Listings as lazy pages. Used by `app` and `bulk`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from perdure.errors import InvalidOption, shown

S = TypeVar("S")

PAGE = 200
"""Listings read this many at a time, so that no snapshot is held for long."""


def pages(read: Callable[[S | None, int], list[S]], limit: int | None) -> Iterator[S]:
    """Page after page, each read when it is wanted."""
    last: S | None = None
    left = limit
    while left is None or left > 0:
        size = PAGE if left is None else min(PAGE, left)
        page = read(last, size)
        yield from page
        if len(page) < size:
            return
        last = page[-1]
        left = None if left is None else left - len(page)


def checked_limit(limit: int | None) -> int | None:
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidOption(
            f"limit must be a whole number, not negative, or None; not {shown(limit)}", code="limit_invalid"
        )
    return limit
