"""Two at once on the same rows, on two connections, in every order of their statements with at most two switches.

At small size each pair is played in every order with one switch and in some with two; on MariaDB, where a play takes
longer, only in those in which one comes at the last moment before the other commits. Whatever the order: no error but a
refusal, the doctor finds nothing, the history can be explained, the answers of both fit together, and all that is left
can be brought to its end. Deadlocks are allowed only because the runner tries again.
"""

from __future__ import annotations

import pytest

from tests.interleaving.pairs import PAIRS
from tests.interleaving.stage import orders
from tests.interleaving.theatre import Theatre


@pytest.mark.parametrize("pair", PAIRS)
def test_two_at_once_leave_everything_whole(theatre: Theatre, pair: str, full_size: bool) -> None:
    steps = theatre.steps_of(PAIRS[pair])
    assert min(steps) > 1
    for order in orders(steps) if full_size else theatre.dialect.small(steps, pair):
        theatre.play(PAIRS[pair], order)
