"""A store in a dictionary: what any store should do, as simply as possible. `machine` compares the two.

It does not use `job/transitions`: the rules are written a second time, so that a mistake in one of them shows.
Positions are the store's own numbers; the model only says in which order they must be.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from perdure.ids import FlowId, JobId
from perdure.job.states import Suspicion
from perdure.testing.contract.case import each
from perdure.testing.contract.rig import NotSupported, Rig

MAX_CRASHES = 3


@each("jobs", "flows", "limits")
def test_random_sequences_of_operations_do_what_the_model_says(rig: Rig, about: str) -> None:
    try:
        from perdure.testing.contract import machine
    except ImportError as error:
        raise NotSupported(f"hypothesis is not installed ({error})") from error
    machine.run(rig, machine.MACHINES[about])


class Refused(Exception):
    """The verb is not allowed now."""


@dataclass
class Entry:
    """One job."""

    id: JobId
    rank: int
    position: int
    run_at: int
    max_attempts: int
    key: str | None
    state: str = "queued"
    attempts: int = 0
    crashes: int = 0
    life: int = 1
    paused: bool = False
    cancel_requested: bool = False
    run: bytes | None = None
    runs: int = 0
    after: dict[bytes, str] = field(default_factory=dict[bytes, str])
    """What it still waits for, and what it needs of each."""
    never_ran: bool = False
    """It was skipped without asking its handler."""
    flow: FlowId | None = None
    """The flow that counts it."""
    needs: Mapping[str, int] = field(default_factory=dict[str, int])
    """The keys of limits, and how many places it takes of each."""
    permits: dict[str, int] = field(default_factory=dict[str, int])
    """What it holds of them while it runs."""

    @property
    def place(self) -> tuple[int, int, bytes]:
        return self.rank, self.position, self.id

    @property
    def is_final(self) -> bool:
        return self.state in ("completed", "failed", "cancelled", "skipped")

    @property
    def is_suspect(self) -> bool:
        """It has crashed twice, or it has crashed once and the next crash would fail it."""
        return self.crashes >= 2 or (self.crashes == 1 and self.attempts + 1 >= self.max_attempts)

    @property
    def is_waiting(self) -> bool:
        return not self.is_final and self.state != "running"


@dataclass
class Flow:
    """One flow. Its counts follow from its members."""

    id: FlowId
    on_failure: str
    outer: Flow | None = None
    sealed: bool = True
    paused: bool = False
    cancelled: bool = False
    """Somebody has asked for its end."""
    state: str = "running"


@dataclass
class Limit:
    """How much at once, or of a rate how many starts in any window, in each window by the clock, or out of a bucket;
    None: nobody limits it."""

    declared: int | None
    per_us: int | None = None
    sort: str = "at_once"
    by_hand: int | None = None
    paused: bool = False
    starts: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """When, and how heavy."""
    full_at: int = 0
    """When a bucket is full again."""

    @property
    def most(self) -> int | None:
        return self.declared if self.by_hand is None else self.by_hand

    def weight(self, asked: int) -> int:
        """What is heavier than the whole limit counts as much as it."""
        return asked if self.most is None else min(asked, self.most)

    def start(self, at: int, asked: int) -> None:
        """Of a rate."""
        self.starts.append((at, self.weight(asked)))
        if self.sort == "bucket" and self.per_us is not None and self.most:
            self.full_at = max(self.full_at, at) + self.weight(asked) * self.per_us // self.most

    def started(self, now: int) -> int:
        """Of a rate: what counts now. What has not come back to a bucket in full is missing."""
        per_us, most = self.per_us or 1, self.most or 0
        if self.sort == "bucket":
            return 0 if self.paused else -(-max(0, self.full_at - now) * most // per_us)
        since = now - now % per_us - 1 if self.sort == "fixed" else now - per_us
        return sum(weight for at, weight in self.starts if at > since)


class Hold(NamedTuple):
    """A place of a limit that a block of code holds, until it gives it back or its lease ends."""

    key: str
    weight: int
    until: int


@dataclass
class Model:
    """All jobs of one queue, with their keys, runs, flows and limits."""

    now: int
    jobs: dict[JobId, Entry] = field(default_factory=dict[JobId, Entry])
    idempotency: dict[str, JobId] = field(default_factory=dict[str, JobId])
    holders: dict[str, JobId] = field(default_factory=dict[str, JobId])
    closed: dict[bytes, str] = field(default_factory=dict[bytes, str])
    edges: dict[tuple[bytes, JobId], str] = field(default_factory=dict[tuple[bytes, JobId], str])
    """What was needed of whom, by whom, where that is decided."""
    flows: dict[FlowId, Flow] = field(default_factory=dict[FlowId, Flow])
    todo: list[tuple[str, Flow]] = field(default_factory=list[tuple[str, Flow]])
    """What is decided about flows and not done yet: the work list."""
    limits: dict[str, Limit] = field(default_factory=dict[str, Limit])
    holds: dict[bytes, Hold] = field(default_factory=dict[bytes, Hold])
    """What blocks of code hold of them."""
    at_most: dict[str, int | None] = field(default_factory=dict[str, int | None])
    """How many jobs of the queue may run at once, and (`*`) of all queues; None: as many as like."""

    # -- questions ---------------------------------------------------------------------------------------------------

    def queued(self) -> list[Entry]:
        return sorted((job for job in self.jobs.values() if job.state == "queued"), key=lambda job: job.place)

    def claimable(self, room: int, company: Suspicion = Suspicion.NONE) -> list[Entry]:
        """In queue order. A suspect is claimed only if no other job that has crashed runs beside it."""
        line = [job for job in self.jobs.values() if job.state in ("queued", "parked")]
        line.sort(key=lambda job: job.place)
        if company is Suspicion.SUSPECT:
            return [job for job in line if not job.crashes][:room]
        suspects = [job for job in line[:room] if job.is_suspect]
        if not suspects:
            return line[:room]
        others = [job for job in line if not job.is_suspect][:room]
        if company or any(job.crashes for job in others):
            return others
        return sorted([suspects[0], *others], key=lambda job: job.place)[:room]

    def due(self) -> list[Entry]:
        found = [job for job in self.jobs.values() if job.state == "scheduled" and job.run_at <= self.now]
        return sorted(found, key=lambda job: (job.run_at, job.id))

    def is_at_the_back(self, position: int, *, of: Iterable[Entry]) -> bool:
        return all(job.position < position for job in of)

    def _wait(self, job: Entry) -> None:
        job.run, job.cancel_requested = None, False
        job.permits = {}
        if job.paused or job.after:
            job.state = "paused" if job.paused else "blocked"
        elif job.run_at > self.now:
            job.state = "scheduled"
        else:
            job.state = "held" if job.needs else "queued"

    def _end(self, *jobs: Entry, state: str, never_ran: bool = False) -> None:
        """All of them, and then what follows from it."""
        for job in jobs:
            job.state, job.run, job.never_ran, job.permits = state, None, never_ran, {}
            if job.key is not None and self.holders.get(job.key) == job.id:
                del self.holders[job.key]
        for job in jobs:
            self._tell(job.id)
            if job.flow is not None:
                self._count(self.flows[job.flow], state)

    # -- edges -------------------------------------------------------------------------------------------------------

    def add(self, job: Entry) -> None:
        """A new job: what it needs of those that have ended is decided at once."""
        self.jobs[job.id] = job
        self._wait(job)
        for parent in list(job.after):
            if self._end_of(parent) is not None:
                self._decide(parent, job)

    def _end_of(self, parent: bytes) -> str | None:
        """How a job or flow has ended. None: it has not."""
        flow, job = self.flows.get(FlowId(parent)), self.jobs.get(JobId(parent))
        if flow is not None:
            return None if flow.state == "running" else flow.state
        assert job is not None
        return None if not job.is_final else "not run" if job.never_ran else job.state

    def _tell(self, parent: bytes) -> None:
        """Those that wait for what has ended go on, or are skipped."""
        for job in list(self.jobs.values()):
            if parent in job.after:
                self._decide(parent, job)

    def _decide(self, parent: bytes, job: Entry) -> None:
        need, ended = job.after.pop(parent), self._end_of(parent)
        self.edges[parent, job.id] = need
        is_met = {"end": True, "failure": ended == "failed", "success": ended in ("completed", "skipped")}[need]
        if job.is_final:
            return
        if not is_met:
            self._end(job, state="skipped", never_ran=True)
        elif job.state == "blocked":
            self._wait(job)

    # -- flows -------------------------------------------------------------------------------------------------------

    def members(self, flow: Flow) -> list[Entry]:
        return [job for job in self.jobs.values() if job.flow == flow.id]

    def inner(self, flow: Flow) -> list[Flow]:
        return [other for other in self.flows.values() if other.outer is flow]

    def counts(self, flow: Flow) -> Counter[str]:
        """Its members by their states, inner flows among them."""
        return Counter([*(job.state for job in self.members(flow)), *(inner.state for inner in self.inner(flow))])

    def _count(self, flow: Flow, state: str) -> None:
        """A member has ended."""
        if state == "failed" and flow.on_failure in ("stop", "cancel", "pause"):
            self.todo.append((flow.on_failure, flow))
        self.look(flow)

    def look(self, flow: Flow) -> None:
        """It ends if no more members come, and all have ended."""
        counts = self.counts(flow)
        ended = sum(counts[state] for state in ("completed", "failed", "cancelled", "skipped"))
        if flow.state != "running" or not flow.sealed or ended < counts.total():
            return
        is_failed = counts["failed"] and flow.on_failure != "skip"
        flow.state = "failed" if is_failed else "cancelled" if counts["cancelled"] else "completed"
        self._tell(flow.id)
        if flow.outer is not None:
            self._count(flow.outer, flow.state)

    def grow(self, flow: Flow, added: Iterable[JobId]) -> None:
        """It has these members more: what was decided about it goes for them too."""
        new = [self.jobs[job_id] for job_id in added]
        if flow.cancelled:
            self._change(new, "cancel")
        elif self._is_stopped(flow):
            self._change(new, "stop")
        elif flow.paused:
            self._change(new, "pause")

    def _is_stopped(self, flow: Flow | None) -> bool:
        """It, or one around it."""
        if flow is None:
            return False
        return (flow.on_failure == "stop" and self.counts(flow)["failed"] > 0) or self._is_stopped(flow.outer)

    def change_flow(self, flow: Flow, verb: str) -> None:
        """Cancel, pause or resume it by hand; or stop it, because a member has failed."""
        if flow.state != "running" and (verb, flow.state) != ("cancel", "cancelled"):
            raise Refused
        self._mark(flow, verb)
        self._change([job for job in self.members(flow) if not job.is_final], verb)
        for inner in self.inner(flow):
            if inner.state == "running":
                self._mark(inner, verb)
                self.todo.append((verb, inner))
        self.look(flow)

    def _mark(self, flow: Flow, verb: str) -> None:
        if verb == "cancel":
            flow.sealed = flow.cancelled = True
        elif verb in ("pause", "resume"):
            flow.paused = verb == "pause"
            undone = "resume" if flow.paused else "pause"
            self.todo = [(what, other) for what, other in self.todo if (what, other) != (undone, flow)]

    def _change(self, members: list[Entry], verb: str) -> None:
        waiting = [job for job in members if job.is_waiting]
        if verb == "cancel":
            self._end(*waiting, state="cancelled")
            for job in members:
                job.cancel_requested = job.cancel_requested or job.state == "running"
        elif verb == "stop":
            self._end(*waiting, state="skipped", never_ran=True)
        for job in waiting:
            if verb == "pause":
                self.pause(job)
            elif verb == "resume" and job.paused:
                self.resume(job)

    def settle(self) -> None:
        """The work list is worked off."""
        while self.todo:
            verb, flow = self.todo.pop(0)
            if flow.state == "running":
                self.change_flow(flow, verb)

    # -- limits ------------------------------------------------------------------------------------------------------

    def in_use(self, key: str) -> int:
        """What running jobs and blocks of code hold; of a rate, what was started and still counts."""
        limit = self.limits[key]
        if limit.per_us is not None:
            return limit.started(self.now)
        held = sum(hold.weight for hold in self.holds.values() if hold.key == key and hold.until > self.now)
        return held + sum(job.permits.get(key, 0) for job in self.jobs.values())

    def has_room(self, key: str, asked: int) -> bool:
        limit = self.limits[key]
        if limit.paused:
            return False
        return limit.most is None or self.in_use(key) + limit.weight(asked) <= limit.most

    def fits(self, job: Entry) -> bool:
        """Whether there is room for it in each of its keys."""
        return all(self.has_room(key, weight) for key, weight in job.needs.items())

    def hold(self, key: str, weight: int, holder: bytes, until: int) -> bool:
        """A block of code asks for a place, and stands in no line for it. False: there is no room."""
        if not self.has_room(key, weight):
            return False
        limit = self.limits[key]
        if limit.per_us is None:
            self.holds[holder] = Hold(key, limit.weight(weight), until)
        else:
            limit.start(self.now, weight)
        return True

    def room_in_queue(self) -> int:
        """How many more may run."""
        running = sum(job.state == "running" for job in self.jobs.values())
        return min((most - running for most in self.at_most.values() if most is not None), default=len(self.jobs))

    def held(self) -> list[Entry]:
        return sorted((job for job in self.jobs.values() if job.state == "held"), key=lambda job: job.place)

    def overtaken_by(self, job: Entry) -> list[Entry]:
        """Those that wait for nothing but a key that this one was given after them."""
        return [
            other
            for other in self.held()
            if other.place < job.place and len(other.needs) == 1 and other.needs.keys() <= job.needs.keys()
        ]

    def asleep(self) -> list[Entry]:
        """Those that could start, first in line for each of their keys; but who has crashed may have to wait for
        others, and those behind him with him."""
        seen = {key for job in self.jobs.values() if job.crashes and job.is_waiting for key in job.needs}
        found: list[Entry] = []
        for job in self.held():
            if not seen & job.needs.keys() and self.fits(job):
                found.append(job)
            seen |= job.needs.keys()
        return found

    # -- runs --------------------------------------------------------------------------------------------------------

    def start(self, job: Entry, run: bytes) -> None:
        job.state, job.run = "running", run
        for key, asked in job.needs.items():
            limit = self.limits[key]
            if limit.per_us is None:
                job.permits[key] = limit.weight(asked)
            elif limit.most is not None:
                limit.start(self.now, asked)
        job.attempts += 1
        job.runs += 1

    def park_all(self) -> None:
        """A node that knows no kind claims."""
        for job in self.queued():
            job.state = "parked"

    def report(self, job: Entry, run: bytes, what: str, delay: int) -> str:
        """The result of a report: applied, already or lost."""
        closing = {"fail": "failed", "fail for good": "failed", "time out": "timed_out"}.get(what, what)
        if what in ("snooze", "release", "interrupt"):
            closing = "released"
        if job.run != run:
            return "already" if self.closed[run] == closing else "lost"
        self.closed[run] = closing
        self._come_back(job, what, delay)
        return "applied"

    def _come_back(self, job: Entry, what: str, delay: int) -> None:
        spent = job.attempts >= job.max_attempts
        if what == "completed":
            self._end(job, state=what)
        elif what == "cancelled" or job.cancel_requested:
            self._end(job, state="cancelled")
        elif what == "skipped":
            self._end(job, state=what)
        elif what == "fail for good" or (what in ("fail", "time out", "interrupt") and spent):
            self._end(job, state="failed")
        else:
            if what in ("fail", "time out", "snooze"):
                job.run_at = self.now + delay
            if what in ("snooze", "release"):
                job.attempts -= 1
            self._wait(job)

    def crash(self) -> int:
        """The node that held all running jobs died."""
        lost = [job for job in self.jobs.values() if job.state == "running"]
        for job in lost:
            assert job.run is not None
            self.closed[job.run] = "lost"
            job.crashes += 1
            if job.cancel_requested:
                self._end(job, state="cancelled")
            elif job.attempts >= job.max_attempts or job.crashes >= MAX_CRASHES:
                self._end(job, state="failed")
            else:
                self._wait(job)
        return len(lost)

    def promote(self, limit: int) -> int:
        promoted = self.due()[:limit]
        for job in promoted:
            self._wait(job)
        return len(promoted)

    # -- by hand -----------------------------------------------------------------------------------------------------

    def cancel(self, job: Entry) -> None:
        if job.is_final and job.state != "cancelled":
            raise Refused
        if job.state == "running":
            job.cancel_requested = True
        elif not job.is_final:
            self._end(job, state="cancelled")

    def pause(self, job: Entry) -> None:
        if not job.is_waiting:
            raise Refused
        job.paused = True
        self._wait(job)

    def resume(self, job: Entry) -> None:
        if job.is_final:
            raise Refused
        if job.state in ("paused", "parked"):
            job.paused = False
            self._wait(job)

    def retry(self, job: Entry) -> None:
        if not job.is_final and job.life > 1:
            return
        if job.state not in ("failed", "cancelled") or (job.key is not None and job.key in self.holders):
            raise Refused
        if any(parent == job.id and need != "end" for (parent, _), need in self.edges.items()):
            raise Refused  # somebody has acted on its end
        if job.flow is not None and self.flows[job.flow].state != "running":
            raise Refused
        if job.key is not None:
            self.holders[job.key] = job.id
        job.life, job.attempts, job.crashes, job.paused, job.run_at = job.life + 1, 0, 0, False, self.now
        self._wait(job)

    def may_be_placed(self, job: Entry) -> None:
        if not job.is_waiting:
            raise Refused
