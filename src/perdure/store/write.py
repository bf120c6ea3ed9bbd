"""Applies transitions: the one door through which a live job is ever changed. Called by every operation that decides.

All of a batch or none: the guards of the batch are counted, and where one fails the caller rolls back to its savepoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from perdure.clock import Micros
from perdure.ids import JobId
from perdure.job import transitions
from perdure.job.model import LiveJob, OutcomeRow, RunClosing, Transition
from perdure.store import read
from perdure.store.engine import Blob, Call, Op


def apply(batch: Sequence[Transition], now: Micros) -> Op[bool]:
    """Write these transitions, of different jobs. False: a guard failed, part may be written, roll back.

    In one go per table: hot rows (the guards), runs, outcomes, then what hangs on the ended jobs.
    """
    if not (yield from _change_rows(batch)):
        return False
    if not (yield from _close_runs([t.run for t in batch if t.run is not None])):
        return False
    ended = [t for t in batch if t.outcome is not None]
    if ended:
        yield from _insert_outcomes([t.outcome for t in batch if t.outcome is not None])
        yield from _insert_successors(ended, now)
        yield from _free_keys(ended)
        yield from _unblock_dependents(ended, now)
    return True


def _change_rows(batch: Sequence[Transition]) -> Op[bool]:
    ended = [t.before for t in batch if t.after is None]
    by_run = [(Blob(live.job_id), Blob(live.run_id), live.version) for live in ended if live.run_id is not None]
    if by_run and (yield Call("delete_ready_of_run", by_run)).changed != len(by_run):
        return False
    by_version = [(live.job_id, live.version) for live in ended if live.run_id is None]
    if by_version and (yield Call("delete_ready", by_version)).changed != len(by_version):
        return False
    updates = [_update(t.after, t.before.version) for t in batch if t.after is not None]
    return not updates or (yield Call("update_ready", updates)).changed == len(updates)


def _close_runs(closings: Sequence[RunClosing]) -> Op[bool]:
    """Most runs have nothing to tell but how long they took; the others bind six columns more."""
    plain = [
        (run.state, run.finished_at, run.duration_ms, Blob(run.run_id)) for run in closings if run[3:9] == _SIX_EMPTY
    ]
    if plain and (yield Call("close_run_plainly", plain)).changed != len(plain):
        return False
    told = [run for run in closings if run[3:9] != _SIX_EMPTY] if len(plain) < len(closings) else []
    return not told or (yield Call("close_run", told)).changed == len(told)


def _insert_outcomes(outcomes: Sequence[OutcomeRow]) -> Op[None]:
    plain = [(Blob(end[0]), *end[1:13], end.version) for end in outcomes if end[13:17] == _FOUR_EMPTY]
    if plain:
        yield Call("insert_plain_outcome", plain)
    if len(plain) < len(outcomes):
        yield Call("insert_outcome", [end for end in outcomes if end[13:17] != _FOUR_EMPTY])


_SIX_EMPTY = (None,) * 6
_FOUR_EMPTY = (None,) * 4


def _update(after: LiveJob, expected: int) -> tuple[object, ...]:
    return (*after[1:], after.job_id, expected)


def _insert_successors(ended: Sequence[Transition], now: Micros) -> Op[None]:
    for transition in ended:
        if transition.successor is not None:
            live, source = transition.successor
            yield from copy(source, live, now, auto_retry_of=source, chain_step=1)


def copy(source: JobId, live: LiveJob, now: Micros, *, auto_retry_of: JobId | None, chain_step: int) -> Op[None]:
    """A job like `source` under the id of `live`, linked to it by retry_of."""
    yield Call(
        "copy_job",
        {
            "id": live.job_id,
            "auto_retry_of": auto_retry_of,
            "chain_step": chain_step,
            "created_at": now,
            "source": source,
        },
    )
    yield Call("copy_tags", {"id": live.job_id, "source": source})
    yield Call("insert_live", live)


def _free_keys(ended: Sequence[Transition]) -> Op[None]:
    for transition in ended:
        live = transition.before
        if live.business_key is None:
            continue
        own = {"key": live.business_key, "job_id": live.job_id}
        if transition.successor is not None:
            yield Call("move_business_key", own | {"new_owner": transition.successor.live.job_id})
        else:
            yield Call("free_business_key", own)


def _unblock_dependents(ended: Sequence[Transition], now: Micros) -> Op[None]:
    """One look tells most databases apart from those where anything depends on anything."""
    if not (yield Call("any_edge")).rows:
        return
    for transition in ended:
        job_id = transition.before.job_id
        if transition.successor is not None:
            yield Call("move_edges", {"job_id": job_id, "new_owner": transition.successor.live.job_id})
            continue
        for (dependent,) in (yield Call("read_dependents", {"job_id": job_id})).rows:
            live = yield from read.live(cast("JobId", dependent))
            if live is not None:
                yield from apply([transitions.unblock(live, now)], now)
        yield Call("delete_edges", {"job_id": job_id})


DAMAGED = "a value in this job's row is one that no worker can handle; perdure doctor names it: cancel it, enqueue anew"


def set_aside(now: Micros) -> Op[int]:
    """Park the live jobs that no worker can handle, because somebody else has written into their rows. How many."""
    parked = (yield Call("set_aside_damaged", {"reason": DAMAGED, "now": now})).changed
    if parked:
        yield Call("close_open_runs", {"now": now, "error_type": "Unreadable", "error_message": DAMAGED})
    return parked
