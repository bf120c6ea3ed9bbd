"""The order inside a queue: rank, position, id. Used by `app` for priorities and by `store/control` for moves."""

from __future__ import annotations

from enum import IntEnum

GAP = 100
"""Positions rise by this much, so that a job can be moved between two others without touching them."""

RESPACE = 64
"""How many neighbours a spent gap may renumber."""

PRIORITY_LIMIT = 2**31 - 1


class Priority(IntEnum):
    """Names for the usual priorities. Any 32-bit integer is one; higher goes first."""

    LOWEST = -2
    LOW = -1
    NORMAL = 0
    HIGH = 1
    CRITICAL = 2


def rank_of(priority: int) -> int:
    """The stored form of a priority: smaller first, so that one ascending index serves the claim."""
    return -priority


def priority_of(rank: int) -> int:
    return -rank


def between(left: int | None, right: int | None) -> int | None:
    """A position strictly between two neighbours, or None when the gap is spent. None stands for no neighbour."""
    if left is None and right is None:
        return GAP
    if left is None:
        assert right is not None
        return right - GAP
    if right is None:
        return left + GAP
    middle = (left + right) // 2
    return middle if left < middle < right else None
