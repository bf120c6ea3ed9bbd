"""What a store answers when it is asked what is going on: one row type per question. Made by `store/sql/questions`.

Times are instants; `example` is one of the jobs counted, to look at next.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from perdure.clock import Micros
from perdure.ids import JobId

EVERY_QUEUE = "*"
"""The queue that stands for all of them where one is paused or reserved."""


class Gate(NamedTuple):
    """What may keep the jobs of a queue from being claimed."""

    name: str
    paused_at: Micros | None
    reserved_until: Micros | None


class Outstanding(NamedTuple):
    """Live jobs of one kind, queue and state. `since`: when the oldest of them was enqueued."""

    kind: str
    queue: str
    state: str
    jobs: int
    since: Micros


class Failures(NamedTuple):
    """Jobs of one kind that failed for good with the same type of error. The rest is about the newest of them."""

    kind: str
    error_type: str | None
    jobs: int
    last: Micros
    example: JobId
    message: str | None


class Hitch(StrEnum):
    """Why a job does not get on."""

    LOST = "lost"
    """It runs on a node that has stopped: no worker has taken it back yet."""
    SILENT = "silent"
    """It runs on a node of which nothing was heard for long, and for its whole lease: it may be dead, or only slow."""
    OVERTIME = "overtime"
    """It runs longer than its time-out allows."""
    SLOW = "slow"
    """It has no time-out, and runs far longer than those of its kind before it."""
    LONG = "long"
    """It has no time-out and runs for long, and none of its kind before it completed: there is nothing to compare."""
    PARKED = "parked"
    """No worker that reached it could run it."""
    DUE = "due"
    """Its time came long ago, and no worker has queued it."""
    PAUSED = "paused"
    """It is the first of a queue that is paused."""
    WAITING = "waiting"
    """It is the first of a queue of which nothing runs and nothing was begun for long."""


class Stuck(NamedTuple):
    """Jobs of one kind and queue that do not get on. `since`: for how long the first of them, `example`, has not."""

    reason: Hitch
    kind: str
    queue: str
    jobs: int
    since: Micros
    example: JobId


class Durations(NamedTuple):
    """How long completed runs of one kind took, and how long their jobs could have started before they did."""

    kind: str
    runs: int
    p50_ms: int
    p95_ms: int
    p99_ms: int
    wait_p50_ms: int
    wait_p95_ms: int
    wait_p99_ms: int


class Sameness(StrEnum):
    """What jobs have in common that may have done work twice."""

    BUSINESS_KEY = "business_key"
    """Several jobs of one kind had this business key, one after the other, whether or not they ran. Retries are left
    out, and jobs that another one took the place of."""
    IDEMPOTENCY_KEY = "idempotency_key"
    """The same with this idempotency key; the store prevents that."""
    BEGUN_AGAIN = "begun_again"
    """Jobs whose node died in the middle, and that were begun again."""


class Duplicates(NamedTuple):
    """Jobs of one kind that may have done work twice, by what they share. `key`: None if that is no key."""

    sort: Sameness
    kind: str
    key: str | None
    jobs: int
    example: JobId


class Ran(NamedTuple):
    """Runs of one kind, by how they stand: `runs` is the sum of the rest.

    `failed` ended their job for good; `retried` failed or timed out and the job went on; `lost`: the node died and the
    job went on; `other` were cancelled, skipped or given back.
    """

    kind: str
    runs: int
    running: int
    completed: int
    failed: int
    retried: int
    lost: int
    other: int
