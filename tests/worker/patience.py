"""Waiting for something that another thread or process does, where no event can be had; and how a test ends."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from perdure import Perdure
from perdure.ops.doctor import examine, is_healthy

T = TypeVar("T")

DEADLINE_S = 60.0
"""Generous: only a hang is a failure."""


def eventually(look: Callable[[], T]) -> T:
    """The first true answer."""
    deadline = time.monotonic() + DEADLINE_S
    while not (answer := look()):
        assert time.monotonic() < deadline, "it has not happened"
        time.sleep(0.01)
    return answer


async def eventually_here(look: Callable[[], T]) -> T:
    """The same on an event loop, which goes on."""
    deadline = time.monotonic() + DEADLINE_S
    while True:
        if answer := look():
            return answer
        assert time.monotonic() < deadline, "it has not happened"
        await asyncio.sleep(0.01)


def seen_by_the_doctor(app: Perdure) -> None:
    """Examine the database, and close it."""
    findings = examine(app.store)
    app.close()
    assert is_healthy(findings), findings
