"""Listings as lazy pages. Used by `app` and `bulk`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import merge
from itertools import islice
from typing import TypeVar

from perdure.errors import InvalidOption, shown
from perdure.job.job import Job
from perdure.job.run import Run
from perdure.job.states import State
from perdure.store.answers import JobFilter

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


def jobs_of_all(listings: Sequence[Iterator[Job]], wanted: JobFilter, limit: int | None) -> Iterator[Job]:
    """Listings of jobs as one, in the order that each of them has."""
    if len(listings) == 1:
        return listings[0]
    has_key = wanted.business_key is not None or wanted.idempotency_key is not None
    if wanted.state == State.QUEUED and wanted.queue is not None and not has_key:
        return islice(merge(*listings, key=lambda job: (job.row.rank, job.row.position, job.row.id)), limit)
    return islice(merge(*listings, key=lambda job: job.row.id, reverse=True), limit)


def runs_of_all(listings: Sequence[Iterator[Run]], limit: int | None) -> Iterator[Run]:
    """The same for runs."""
    if len(listings) == 1:
        return listings[0]
    return islice(merge(*listings, key=lambda run: run.row.id, reverse=True), limit)


def checked_limit(limit: int | None) -> int | None:
    if limit is not None and (type(limit) is not int or limit < 0):
        raise InvalidOption(
            f"limit must be a whole number, not negative, or None; not {shown(limit)}", code="limit_invalid"
        )
    return limit
