"""Waiting for a job's end. Called by `app.wait` and `kind.wait`; polls, because any process may end the job."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from perdure.errors import InvalidOption, WaitTimeout, shown
from perdure.job.job import Job

FIRST_PAUSE_S = 0.002
LONGEST_PAUSE_S = 0.1


def pauses(timeout: float | None, monotonic: Callable[[], float]) -> Iterator[float]:
    """How long to pause before each further look; ends when the time is up. The pauses grow to a tenth of a second."""
    _check(timeout)
    deadline = None if timeout is None else monotonic() + timeout
    pause = FIRST_PAUSE_S
    while True:
        left = LONGEST_PAUSE_S if deadline is None else deadline - monotonic()
        if left <= 0:
            return
        yield min(pause, left)
        pause = min(pause * 1.5, LONGEST_PAUSE_S)


def _check(timeout: object) -> None:
    if timeout is not None and not (isinstance(timeout, (int, float)) and timeout >= 0):
        raise InvalidOption(
            f"timeout must be seconds, not negative, or None to wait for ever; not {shown(timeout)}",
            code="timeout_invalid",
        )


def gave_up(job: Job, timeout: float | None) -> WaitTimeout:
    return WaitTimeout(
        f"job {job.id} ({job.kind}) was {job.state} after {timeout:g} s; it goes on, wait again or look with app.get"
    )
