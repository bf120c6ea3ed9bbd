"""What an explanation is, and the parts that several of them share. Used by `explain`, `waiting` and `at_work`."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import NamedTuple

from perdure.clock import Micros
from perdure.job.job import Job
from perdure.job.states import State
from perdure.ops.spans import moment
from perdure.store.tallies import EVERY_QUEUE, Gate

START_A_WORKER = "perdure worker MODULE:APP"
"""Which app that is, only the caller may know; the command line puts it in."""

Facts = tuple[tuple[str, str], ...]


class Explanation(NamedTuple):
    """`why` the job is in its state; `next`: what moves it on; `facts`: what that rests on, as names and texts.

    `remedy` is the command that helps, where someone has to do something. None: nobody has to.
    """

    state: State
    why: str
    next: str
    facts: Facts = ()
    remedy: str | None = None

    def __str__(self) -> str:
        return f"{self.state}: {self.why}. {self.next}."


def last_error(job: Job) -> Facts:
    return (("last error", first_line(job.error)),) if job.error else ()


def first_line(text: str) -> str:
    return text.strip().partition("\n")[0]


def gate_facts(gates: Sequence[Gate], now: Micros) -> Facts:
    return tuple(("closed", closed.why) for gate in gates if (closed := closure(gate, now)))


def closure(gate: Gate, now: Micros) -> Explanation | None:
    """What keeps all jobs of a queue from being claimed. None: it is open."""
    name = "every queue" if gate.name == EVERY_QUEUE else f"queue {gate.name!r}"
    if gate.paused_at is not None:
        return Explanation(
            State.QUEUED,
            f"{name} is paused since {moment(gate.paused_at)}",
            f"app.queues.resume({gate.name!r}) lets it go on",
            remedy=f"perdure queues resume {quote(gate.name)}",
        )
    if gate.reserved_until is not None and gate.reserved_until > now:
        return Explanation(
            State.QUEUED,
            f"{name} is reserved until {moment(gate.reserved_until)}",
            "It goes on when the reservation ends",
        )
    return None
