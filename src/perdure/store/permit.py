"""Who stops running or waiting gives back what he held, and leaves word of it. Called by `write`, `claim` and `turn`;
the other side, who starts, is `limit`."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence

from perdure.job.model import LiveJob, NewJob, Transition
from perdure.job.states import State
from perdure.limit.key import joined, keys_of
from perdure.store.engine import Blob, Op, Tell


def needing(new: NewJob, key: str) -> NewJob:
    """The same job, which needs one place of this key too."""
    plan = new.plan._replace(limit_key=joined(new.plan.limit_key, key), plain=False, direct=False)
    return new._replace(plan=plan, state=_HELD if new.state == State.QUEUED else new.state)


def left(batch: Sequence[Transition]) -> list[Transition]:
    """Those of limited jobs that stop running, or leave their place in a line or in front of a claim."""
    return [t for t in batch if t.before.limit_key is not None and _leaves(t)]


def _leaves(transition: Transition) -> bool:
    before, after = transition.before.state, transition.after
    if before == _RUNNING:
        return after is None or after.state != _RUNNING
    return before == _HELD


_RUNNING, _HELD = State.RUNNING.value, State.HELD.value


def free(leaving: Sequence[Transition]) -> Op[None]:
    """Give back the permits of those that were running. Their rows were guarded before: nobody gives back twice."""
    permits = [
        (key, Blob(t.before.job_id))
        for t in leaving
        if t.before.state == _RUNNING
        for key in keys_of(t.before.limit_key)
    ]
    if permits:
        yield Tell("free_permit", permits)


def leave_word(leaving: Sequence[Transition], seen_to: Collection[str] = ()) -> Op[None]:
    """Somebody has to look at the keys of these jobs, but for those that it has `seen_to` itself: at keys that it
    does not lock, as in a caller's own transaction, and at those that somebody else has locked.

    Each time under another id: whoever looks at this moment, and does not see yet what is free, deletes the word
    that was left before.
    """
    unseen = {key: t.before for t in leaving for key in keys_of(t.before.limit_key) if key not in seen_to}
    if unseen:
        yield Tell("insert_look", [(_look_id(live), key, 0, "") for key, live in sorted(unseen.items())])
        yield Tell("ring", {"queue": "*"})


def _look_id(leaving: LiveJob) -> bytes:
    """A job leaves a version once."""
    return hashlib.sha256(b"%b %d" % (leaving.job_id, leaving.version)).digest()[:16]


def keys_left(leaving: Sequence[Transition]) -> list[str]:
    return [key for t in leaving for key in keys_of(t.before.limit_key)]
