"""Brings a job into any state by legal verbs only. Used by the files that test every verb from every state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Unpack

from perdure.ids import JobId
from perdure.job.model import Claim
from perdure.job.reports import Completed, Failed, Report, Skipped
from perdure.job.states import State
from perdure.testing.contract.rig import BROKEN, HOPELESS, NONE, Rig, Wish

Way = Callable[[Rig, Wish], JobId]


def in_state(rig: Rig, state: State, **wish: Unpack[Wish]) -> JobId:
    """A job of the rig's queue in this state; no other job of the queue can be claimed."""
    job_id = _WAYS[state](rig, wish)
    assert rig.job(job_id).state == state
    return job_id


def lost_in_state(rig: Rig, state: State) -> tuple[Claim, JobId]:
    """A job in this state, and an older claim on it whose node was declared dead."""
    node = rig.register()
    job_id = rig.enqueue(max_attempts=9)
    stale = rig.claim_one(node=node)
    rig.crash(node)
    _ONWARD[state](rig, job_id)
    assert rig.job(job_id).state == state
    return stale, job_id


def _paused(rig: Rig, wish: Wish) -> JobId:
    return rig.pause(rig.enqueue(**wish)).row.id


def _blocked(rig: Rig, wish: Wish) -> JobId:
    running = rig.start()
    replacement = rig.new(**wish)
    rig.store.supersede(running.job_id, replacement, rig.now)
    return replacement.id


def _scheduled(rig: Rig, wish: Wish) -> JobId:
    wish["delay_s"] = 3600
    return rig.enqueue(**wish)


def _held(rig: Rig, wish: Wish) -> JobId:
    wish["limit_key"] = "printer"
    return rig.enqueue(**wish)


def _parked(rig: Rig, wish: Wish) -> JobId:
    job_id = rig.enqueue(**wish)
    assert not rig.claim(kinds=NONE)
    return job_id


def _cancelled(rig: Rig, wish: Wish) -> JobId:
    return rig.cancel(rig.enqueue(**wish)).row.id


def _ended_by(report: Report) -> Way:
    def way(rig: Rig, wish: Wish) -> JobId:
        claim = rig.start(**wish)
        rig.finish(claim, report)
        return claim.job_id

    return way


_WAYS: dict[State, Way] = {
    State.PAUSED: _paused,
    State.BLOCKED: _blocked,
    State.SCHEDULED: _scheduled,
    State.HELD: _held,
    State.QUEUED: lambda rig, wish: rig.enqueue(**wish),
    State.RUNNING: lambda rig, wish: rig.start(**wish).job_id,
    State.PARKED: _parked,
    State.COMPLETED: _ended_by(Completed('"done"')),
    State.FAILED: _ended_by(Failed(HOPELESS)),
    State.CANCELLED: _cancelled,
    State.SKIPPED: _ended_by(Skipped("nothing to do")),
}

_ONWARD: dict[State, Callable[[Rig, JobId], object]] = {
    State.PAUSED: lambda rig, job_id: rig.pause(job_id),
    State.SCHEDULED: lambda rig, _: rig.finish(rig.claim_one(), Failed(BROKEN, 60_000_000)),
    State.QUEUED: lambda _rig, _: None,
    State.RUNNING: lambda rig, _: rig.claim_one(),
    State.PARKED: lambda rig, _: rig.claim(kinds=NONE),
    State.COMPLETED: lambda rig, _: rig.finish(rig.claim_one(), Completed('"done"')),
    State.FAILED: lambda rig, _: rig.finish(rig.claim_one(), Failed(HOPELESS)),
    State.CANCELLED: lambda rig, job_id: rig.cancel(job_id),
    State.SKIPPED: lambda rig, _: rig.finish(rig.claim_one(), Skipped()),
}

CLAIMED_BEFORE = tuple(_ONWARD)
"""The states of a job that was claimed before."""
