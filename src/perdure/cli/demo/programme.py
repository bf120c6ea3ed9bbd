"""Which jobs the shop gets. Pure; asked by `acts`."""

from __future__ import annotations

from collections.abc import Iterator

from perdure.cli.demo import jobs
from perdure.kind import Draft

CLIPS = 16
"""Long jobs in a row, that meet the kill. Rescued jobs run one at a time, so not too many."""
KILL_AT = 0.3
"""The share of jobs that have ended when a worker is killed."""


def drafts(count: int) -> Iterator[Draft]:
    """So many jobs of all kinds, in the order in which they are to be run."""
    first_clip = int(count * KILL_AT)
    for number in range(count):
        in_clips = first_clip <= number < first_clip + CLIPS
        yield jobs.render.new(number) if in_clips else _draft(number)


def _draft(number: int) -> Draft:
    if number % 300 == 20:
        return jobs.report.new(number // 300)
    match number % 20:
        case 3 | 9 | 15:
            return jobs.thumbnail.new(number)
        case 5 | 12:
            return jobs.charge.new(number)
        case 7:
            return jobs.order.new(number)
        case _:
            return jobs.fetch.new(number)
