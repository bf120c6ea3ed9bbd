"""A store in a dictionary: what any store should do, as simply as possible. `machine` compares the two.

It does not use `job/transitions`: the rules are written a second time, so that a mistake in one of them shows.
Positions are the store's own numbers; the model only says in which order they must be.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from perdure.ids import JobId
from perdure.job.states import Suspicion
from perdure.testing.contract.rig import NotSupported, Rig

MAX_CRASHES = 3


def test_random_sequences_of_operations_do_what_the_model_says(rig: Rig) -> None:
    try:
        from perdure.testing.contract import machine
    except ImportError as error:
        raise NotSupported(f"hypothesis is not installed ({error})") from error
    machine.run(rig)


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
class Model:
    """All jobs of one queue, with their keys and runs."""

    now: int
    jobs: dict[JobId, Entry] = field(default_factory=dict[JobId, Entry])
    idempotency: dict[str, JobId] = field(default_factory=dict[str, JobId])
    holders: dict[str, JobId] = field(default_factory=dict[str, JobId])
    closed: dict[bytes, str] = field(default_factory=dict[bytes, str])

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
        job.state = "paused" if job.paused else "scheduled" if job.run_at > self.now else "queued"

    def _end(self, job: Entry, state: str) -> None:
        job.state, job.run = state, None
        if job.key is not None and self.holders.get(job.key) == job.id:
            del self.holders[job.key]

    # -- runs --------------------------------------------------------------------------------------------------------

    def start(self, job: Entry, run: bytes) -> None:
        job.state, job.run = "running", run
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
            self._end(job, what)
        elif what == "cancelled" or job.cancel_requested:
            self._end(job, "cancelled")
        elif what == "skipped":
            self._end(job, what)
        elif what == "fail for good" or (what in ("fail", "time out", "interrupt") and spent):
            self._end(job, "failed")
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
                self._end(job, "cancelled")
            elif job.attempts >= job.max_attempts or job.crashes >= MAX_CRASHES:
                self._end(job, "failed")
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
            self._end(job, "cancelled")

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
        if job.key is not None:
            self.holders[job.key] = job.id
        job.life, job.attempts, job.crashes, job.paused, job.run_at = job.life + 1, 0, 0, False, self.now
        self._wait(job)

    def may_be_placed(self, job: Entry) -> None:
        if not job.is_waiting:
            raise Refused
