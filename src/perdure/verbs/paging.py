"""Listings as lazy pages. Used by `app` and `bulk`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

from perdure.errors import InvalidOption, shown

S = TypeVar("S")
M = TypeVar("M")

PAGE = 200
"""Listings read this many at a time, so that no snapshot is held for long."""


def pages(read: Callable[[M | None, int], tuple[list[S], M | None]], limit: int | None) -> Iterator[S]:
    """Page after page, each read when it is wanted, until one says that there is no next one.

    Pages that hold little or nothing do not show: the iterator goes on.
    """
    mark: M | None = None
    left = limit
    while left is None or left > 0:
        items, mark = read(mark, PAGE if left is None else min(PAGE, left))
        yield from items
        if mark is None:
            return
        left = None if left is None else left - len(items)


def checked_limit(limit: int | None) -> int | None:
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidOption(
            f"limit must be a whole number, not negative, or None; not {shown(limit)}", code="limit_invalid"
        )
    return limit
