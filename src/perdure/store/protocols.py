"""What a store promises, in small protocols; `Store` is all of them. `app`, worker and ops use nothing else of a store.

Every method is one transaction; on the store that `within(tx)` returns, a part of the caller's transaction. Errors are
those of `perdure.errors`; after an error nothing of the call remains. Any number of threads and processes may call at
the same time. The contract suite (`perdure.testing.contract`) has one file per protocol.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self

from perdure.clock import Clock, Micros, SystemClock
from perdure.errors import DatabaseBusy, DatabaseUnavailable, StoreError
from perdure.ids import FlowId, IdFactory, JobId, NodeId, ReservationId, RunId
from perdure.job.flow import EdgeRow, FlowRow, FlowVerb, NewFlow, Source
from perdure.job.model import Claim, Failure, JobRow, LiveJob, NewJob, Transition
from perdure.job.reports import Finish
from perdure.job.states import Verb
from perdure.job.views import Job, Run
from perdure.store.rows import (
    Archived,
    Claimer,
    Duplicates,
    Durations,
    Edit,
    Ended,
    Fact,
    Failures,
    Finished,
    Fired,
    Firing,
    Glance,
    Hindrance,
    JobFilter,
    KeyState,
    Kinds,
    Lane,
    LimitRule,
    LimitState,
    LogLine,
    Missed,
    NewNode,
    NewSlot,
    NewTemplate,
    NodeRow,
    OldFlow,
    Outstanding,
    Page,
    Place,
    QueueHold,
    QueueRow,
    Ran,
    Rescued,
    ReservationRow,
    RunFilter,
    ScheduleRow,
    SlotRow,
    Spot,
    StoredKind,
    Stuck,
    TemplateRow,
    Turn,
    Turned,
    Until,
)

Decide = Callable[[LiveJob, Micros], Transition | None]


class Bell(Protocol):
    """Wakes a worker that has nothing to do. Only a hint: it may ring for nothing, and workers also poll."""

    @property
    def tells_when(self) -> bool:
        """True: `wait` tells whenever it is time for a look into the queues, which costs something: poll rarely."""
        ...

    def ring(self) -> None:
        """Wake the sleeper from inside its own process. Any thread and any signal handler may call it.

        After `close` nothing happens: a handler that was left behind rings when it ends.
        """
        ...

    def wait(self, timeout_s: float, *, rung_only: bool = False) -> bool:
        """Sleep until rung, until someone may have written, or until the time-out. False: nothing happened.

        `rung_only`: only `ring` ends the sleep, not what others write.
        """
        ...

    def close(self) -> None: ...


class JobOperations(Protocol):
    """Create, edit and delete jobs."""

    def enqueue(self, new: Sequence[NewJob]) -> list[Job]:
        """Insert all of these jobs, each at the back of its queue in the order given, or none of them.

        If an idempotency key is taken, or a business key with conflict="return", the job is not inserted: the job that
        holds the key is returned for it, marked `deduplicated`. In a race exactly one caller inserts. KeyConflict:
        nothing at all was written.
        """
        ...

    def aenqueue(self, new: Sequence[NewJob]) -> Awaitable[list[Job]]:
        """The same for coroutines of the running event loop."""
        ...

    def edit(self, edited: Edit, expect_version: int) -> Job:
        """Change a waiting job that was never claimed. TransitionRefused: it was claimed, or it changed."""
        ...

    def delete(self, job_id: JobId) -> Job:
        """Remove an ended job with its runs, and return it as it was. Its idempotency key stays taken."""
        ...


class ControlOperations(Protocol):
    """What people decide about single jobs. A repeat changes nothing. TransitionRefused: the job's state forbids it."""

    def change(self, job_id: JobId, verb: Verb, decide: Decide, now: Micros, expect_version: int | None = None) -> Job:
        """Apply what the pure function `decide` returns for the job as it is now; called inside the transaction."""
        ...

    def retry(self, job_id: JobId, now: Micros) -> Job:
        """Open a new life for a failed or cancelled job; its runs stay."""
        ...

    def retry_as_new(self, job_id: JobId, new_id: JobId, now: Micros) -> Job:
        """A new job like an ended one, linked to it."""
        ...

    def supersede(self, job_id: JobId, replacement: NewJob, now: Micros) -> Job:
        """Put another job in this one's place. Returns the superseded job."""
        ...


class OrderOperations(Protocol):
    """Places inside a queue."""

    def move(self, job_id: JobId, to: Place, now: Micros, expect_version: int | None = None) -> Job:
        """Another place within the job's queue and priority; the order of all other jobs does not change."""
        ...

    def set_priority(self, job_id: JobId, rank: int, now: Micros, expect_version: int | None = None) -> Job:
        """Another priority; the job becomes the last one of it."""
        ...


class ClaimOperations(Protocol):
    """Jobs become runs."""

    def claim(self, lanes: Sequence[Lane], claimer: Claimer, now: Micros) -> list[Claim]:
        """Take up to `lane.room` jobs per lane, in queue order, and open a run for each.

        Atomic: a job is never returned without its run, nor to two callers. Jobs of kinds or versions that the claimer
        does not have are parked in the same transaction, about a thousand at most. Of the jobs that may have killed a
        node, at most one is given, and none if the claimer holds one. Empty: nothing was claimable; the queue may still
        hold jobs.
        """
        ...


class FinishOperations(Protocol):
    """Runs come back."""

    def finish(self, batch: Sequence[Finish], now: Micros) -> list[Finished]:
        """Write what these runs report, in order. Each is applied, was applied before, has lost its job to someone
        else, or waits because someone's open transaction has locked what it needs.

        The fence is the run: a report whose run no longer holds the job changes nothing. The children of a report are
        enqueued if and only if it is applied and completes its job. KeyConflict, from one of them: nothing at all was
        written. Waits only a moment for locks.
        """
        ...

    def afinish(self, batch: Sequence[Finish], now: Micros) -> Awaitable[list[Finished]]: ...


class TurnOperations(Protocol):
    """What a worker repeats."""

    def turn(self, wanted: Turn, now: Micros) -> Turned:
        """Finish, note, promote and claim in one transaction; each part like the method of that name."""
        ...

    def glance(self, node_id: NodeId, kinds: Kinds | None) -> Glance:
        """What a turn of this node would find to do. Writes nothing and waits for no lock."""
        ...

    def held_by(self, node_id: NodeId) -> list[LiveJob]:
        """The running jobs of this node."""
        ...

    def overdue(self, now: Micros, limit: int) -> list[LiveJob]:
        """Running jobs past the time at which any node may close their run."""
        ...


class RescueOperations(Protocol):
    """Jobs that would otherwise wait for ever."""

    def promote(self, now: Micros, most: int) -> int:
        """Queue up to `most` jobs that are due. Fewer: there are no more for now."""
        ...

    def rescue(
        self,
        node_id: NodeId,
        failure: Failure,
        max_crashes: int,
        next_ids: Sequence[JobId],
        now: Micros,
        only: JobId | None = None,
    ) -> list[Rescued]:
        """Take back up to len(next_ids) jobs from a dead node; the attempt counts. Fewer: it holds no more.

        `only` this one, if the node holds it.
        """
        ...

    def rescue_flows(self, now: Micros) -> int:
        """See to it that flows end whose members have all ended, but whose last node died before it looked again: some
        worker looks at them. Returns how many. One that is about to end anyway may be among them."""
        ...


class RunOperations(Protocol):
    """The record of attempts."""

    def runs(self, wanted: RunFilter, after: Spot | None, size: int) -> Page[Run]:
        """Up to `size` runs, newest first, from the beginning or from where another page ended."""
        ...

    def append_artifacts(self, run_id: RunId, artifacts: Sequence[str]) -> bool:
        """Add new ones to a run's artifacts, also when it is closed. False: no such run."""
        ...


class LogOperations(Protocol):
    """Captured log lines."""

    def append_log(self, lines: Sequence[LogLine]) -> None:
        """Keep these lines; a repeat changes nothing."""
        ...

    def log(self, job_id: JobId, after: LogLine | None, size: int) -> list[LogLine]:
        """One page in the order written. Shorter than `size`: the last page."""
        ...


class ReadOperations(Protocol):
    """Reading. Each call sees one consistent snapshot."""

    def get(self, job_id: JobId) -> Job | None:
        """The job as it is now. None: there is no such job."""
        ...

    def row(self, job_id: JobId) -> JobRow | None:
        """The cold row, secrets included. None: there is no such job."""
        ...

    def live(self, job_id: JobId) -> LiveJob | None:
        """The hot row. None: the job is not live."""
        ...

    def jobs(self, wanted: JobFilter, after: Spot | None, size: int) -> Page[Job]:
        """Up to `size` jobs: newest first, or in queue order for the queued jobs of one queue.

        Over all pages, a job that fits the whole time is listed once; one that fits only for a time may be listed. In
        queue order this holds for jobs that are not moved.
        """
        ...

    def count_ahead(self, job: Job, cap: int) -> int:
        """How many queued jobs of its queue start before this one, at most `cap`."""
        ...

    def waited_for(self, job_id: JobId, limit: int) -> list[EdgeRow]:
        """Up to `limit` of the jobs and flows that this one waits for, or waited for: those that have not ended come
        first."""
        ...


class QueueOperations(Protocol):
    """Whole queues."""

    def queues(self) -> list[QueueRow]:
        """Every queue ever used. Counting its jobs stops after some thousands."""
        ...

    def pause_queue(self, queue: str, paused_at: Micros | None) -> bool:
        """After the commit nothing is claimed from it (`*`: from any queue); None resumes it. False: no change."""
        ...


class LimitOperations(Protocol):
    """How much at once: limits and rates, over all workers. Jobs carry the keys they need (see `limit/key`): no claim
    starts a job unless all of its keys have room, and jobs that wait for one are never scanned."""

    def declare_limits(self, rules: Iterable[LimitRule], sources: Collection[str], now: Micros) -> int:
        """Make these the limits of these sources (kinds). A limit without a source is gone, and its line let go, unless
        it is set by hand. Returns how many have changed."""
        ...

    def set_limit(self, name: str, most: int, key: str | None, now: Micros) -> None:
        """By hand, for all keys or one; it wins over what is declared, and counts for jobs that wait already."""
        ...

    def reset_limit(self, name: str, key: str | None) -> None:
        """Back to what is declared."""
        ...

    def pause_limit(self, name: str, key: str | None, paused_at: Micros | None) -> None:
        """After the commit nothing of it starts; None resumes it."""
        ...

    def limit_queue(self, queue: str, concurrency: int | None) -> bool:
        """How many jobs of a queue (`*`: of all) may run at once; None lifts it. False: no change."""
        ...

    def take_hold(self, key: str, weight: int, holder: bytes, now: Micros, lease_us: int) -> bool:
        """A place for a block of code, until its lease ends. False: there is no room."""
        ...

    def renew_hold(self, key: str, holder: bytes, now: Micros, lease_us: int) -> bool:
        """False: its lease has ended, and the place may be that of another. Of a rate: True."""
        ...

    def drop_hold(self, key: str, holder: bytes) -> None:
        """Give the place back; a repeat changes nothing."""
        ...

    def limits(self) -> list[LimitState]:
        """Every limit that is declared or set."""
        ...

    def limit_keys(self, name: str, now: Micros) -> list[KeyState]:
        """The keys of a limit that are in use, waited for, or set by hand; not all of very many."""
        ...

    def line_ahead(self, live: LiveJob) -> int:
        """How many jobs stand in line before this one, which stands in a line."""
        ...

    def key_state(self, key: str, now: Micros) -> KeyState:
        """One key as it stands, whether it was ever used or not."""
        ...


class NodeOperations(Protocol):
    """Worker process lifetimes."""

    def register(self, node: NewNode) -> None:
        """Register the node; before that it claims nothing. Others judge by its lease whether it is alive."""
        ...

    def beat(self, node_id: NodeId, now: Micros) -> bool:
        """Record that the node is alive. False: it was declared stopped and stays so."""
        ...

    def stop(self, node_id: NodeId, reason: str, now: Micros, seen_beat: int | None = None) -> bool:
        """Declare a node stopped, if it has not beaten since `seen_beat`. False: it has, or it was stopped before."""
        ...

    def live_nodes(self) -> list[NodeRow]:
        """Every node that has not been declared stopped."""
        ...

    def nodes_left_behind(self) -> list[NodeId]:
        """Nodes that are stopped, or unknown, and still hold running jobs, which need a rescue."""
        ...

    def nodes(self, limit: int) -> list[NodeRow]:
        """The newest nodes first."""
        ...


class LockOperations(Protocol):
    """Named leases."""

    def take_lock(self, name: str, owner: str, now: Micros, ttl_us: int) -> bool:
        """True: `owner` holds it until now + ttl, and nobody else does."""
        ...

    def renew_lock(self, name: str, owner: str, now: Micros, ttl_us: int) -> bool:
        """False: it has expired or belongs to someone else."""
        ...

    def release_lock(self, name: str, owner: str) -> bool:
        """False: `owner` did not hold it."""
        ...

    def lock_holder(self, name: str, now: Micros) -> str | None:
        """Who holds it. None: nobody."""
        ...


class ScheduleOperations(Protocol):
    """What happens by the clock. A schedule's row is the lock of its slots: each planned instant is taken once.

    A store may raise NotImplementedError for all of these: then it has no schedules.
    """

    def save_schedule(self, row: ScheduleRow, seen_version: int | None, missed: Sequence[Missed] = ()) -> bool:
        """Insert a schedule (no version seen), or replace the one with this id, and record what it has missed.

        False: its name is taken, or it has another version by now; nothing was written.
        """
        ...

    def schedule(self, name: str) -> ScheduleRow | None:
        """The schedule of this name, disabled ones too. None: there is none."""
        ...

    def schedule_by_id(self, schedule_id: bytes) -> ScheduleRow | None:
        """The same by its id, which stays when it is renamed."""
        ...

    def schedules(self, after: str, size: int) -> list[ScheduleRow]:
        """Up to `size` schedules in the order of their names, from behind the name `after`."""
        ...

    def declared_schedules(self, owner: str) -> list[ScheduleRow]:
        """The enabled schedules that the code of this app has declared."""
        ...

    def due_schedules(self, now: Micros, limit: int) -> list[ScheduleRow]:
        """Enabled schedules whose next instant has come, the longest due first."""
        ...

    def schedules_in_trouble(self, late: Micros, limit: int) -> list[ScheduleRow]:
        """Enabled schedules, by name, that have a problem, or whose next instant was due at `late` or before."""
        ...

    def next_trigger(self) -> Micros | None:
        """When the next instant of any enabled schedule comes. None: nothing is planned."""
        ...

    def fire(self, firings: Sequence[Firing], node_id: NodeId | None, now: Micros) -> list[Fired]:
        """Take the due instants of these schedules, with their jobs, and set their next ones.

        For each schedule all of it or nothing: nothing if it is not as it was read. An instant that is taken already is
        passed over. While an earlier job of the schedule is live, `overlap` of the slot decides.
        """
        ...

    def take_slot(self, schedule_id: bytes, slot: NewSlot, now: Micros) -> Job:
        """Take one instant by hand. If it is taken already, its job is returned, marked `deduplicated`.

        TransitionRefused: an earlier job of the schedule is live, and the slot's `overlap` is "skip".
        """
        ...

    def note_slot(self, schedule_id: bytes, scheduled_for: Micros, status: str, note: str | None) -> bool:
        """How the upkeep that took this slot ended. False: there is no such slot."""
        ...

    def slot_of(self, job_id: JobId) -> SlotRow | None:
        """The slot that this job, or the job whose work it continues, was made for. None: no slot."""
        ...

    def slots(self, schedule_id: bytes, below: Micros, size: int) -> list[SlotRow]:
        """Up to `size` slots that were taken, newest first, from before the instant `below`."""
        ...

    def missed(self, schedule_id: bytes, below: Micros, size: int) -> list[Missed]:
        """Up to `size` stretches that nobody took, newest first, from before the instant `below`."""
        ...

    def pending_of(self, schedule_id: bytes, limit: int) -> list[JobId]:
        """Up to `limit` jobs of this schedule that wait."""
        ...

    def declare(self, node_id: NodeId, digests: Mapping[str, str], now: Micros) -> dict[str, set[str]]:
        """Record which schedules the code of this node declares. Returns what the code of other live nodes declares."""
        ...


class TemplateOperations(Protocol):
    """Jobs to be enqueued under a name. What is once written as a version never changes.

    Where None is returned, there is no template of that name. A store may raise NotImplementedError for all of them.
    """

    def put_template(self, new: NewTemplate, now: Micros, expect_version: int | None = None) -> TemplateRow | None:
        """Make the template, or its next version; the same as its newest version changes nothing.

        With `expect_version` it must exist, and of several callers that expect the same version one writes the next.
        TemplateError: it is at another version (`version_changed`), or archived; nothing was written.
        """
        ...

    def archive_template(self, name: str, archived_at: Micros | None, now: Micros) -> TemplateRow | None:
        """Set it aside since then; None restores it. A repeat changes nothing."""
        ...

    def rename_template(self, name: str, new_name: str, now: Micros) -> TemplateRow | None:
        """Give it another name; id and versions stay. TemplateError: the name is taken (`template_taken`)."""
        ...

    def template(self, name: str, version: int | None = None) -> TemplateRow | None:
        """As it is now, or as it was at this version; None also if it has no such version."""
        ...

    def template_by_id(self, template_id: bytes, version: int | None = None) -> TemplateRow | None:
        """The same by its id, which never changes; under the name that it has now."""
        ...

    def templates(self) -> list[TemplateRow]:
        """All of them, archived ones too, at their newest version, by name."""
        ...

    def template_versions(self, name: str) -> list[TemplateRow]:
        """Every version of one, the newest first. Empty: there is no such template."""
        ...


class ReservationOperations(Protocol):
    """Queues that are held for direct work. A store may raise NotImplementedError for what it does not have."""

    def reserve(self, new: ReservationRow) -> ReservationRow | None:
        """Close the queue (`*`: every queue) to claims, from the commit on. A repeat with the same id changes nothing.

        None: it is reserved. Every claim that began before has committed, so its jobs are seen running, and each one
        that begins later finds the queue closed, until the reservation is closed; time alone opens nothing. Otherwise
        nothing was changed, and the result is the active reservation that is in the way: of the same queue, or one of
        the two is of `*`. Locked: claims were under way for longer than a moment; try again.
        """
        ...

    def enter_reservation(self, reservation_id: ReservationId, until: Until, now: Micros) -> bool:
        """The holder's work begins. False: a job of the queue still runs. ReservationExpired: it is closed."""
        ...

    def renew_reservation(self, reservation_id: ReservationId, until: Until) -> bool:
        """It lasts until then. False: it is closed; nothing was changed."""
        ...

    def close_reservation(
        self, reservation_id: ReservationId, status: str, now: Micros, seen_expires_at: Micros | None = None
    ) -> bool:
        """End it as `released` or `expired`, and open its queue to claims: as one. The row stays, as a record.

        With `seen_expires_at` only if it was not renewed since that was read. False: it was, or it is closed already.
        """
        ...

    def active_reservations(self) -> list[ReservationRow]:
        """Those that close a queue now."""
        ...

    def reservations(self, limit: int) -> list[ReservationRow]:
        """The newest first, closed ones too."""
        ...

    def start_reserved(
        self, new: NewJob, reservation_id: ReservationId, claimer: Claimer, now: Micros
    ) -> tuple[Job, Claim | None]:
        """Enqueue a job and claim it for the holder of its queue, past the jobs that wait there: as one.

        Without a claim: one of its keys was taken, and this is the job that has it. ReservationExpired: the reservation
        is closed, or of another queue.
        """
        ...


class RetentionOperations(Protocol):
    """What is old goes. A store may raise NotImplementedError for these; then nothing is ever removed from it.

    The caller decides what is old enough. Each call is one short transaction that waits only a moment for locks
    (`Locked`: nothing was written) and can be repeated.
    """

    def ended(self, after: Ended | None, below: bytes, size: int) -> list[Ended]:
        """One page of ends, by job and life, of jobs whose id is less than `below`, and so created before then.

        Shorter than `size`: the last page. Each job appears once per life; `live` says that it lives again.
        """
        ...

    def remove(self, old: Sequence[Ended], written: Mapping[JobId, str] | None = None) -> list[JobId]:
        """Remove these jobs with runs, outcomes, tags, log lines and slots; returns those that are gone.

        Their idempotency keys stay taken. A job that lives again or has ended once more stays, and so do one that
        someone else's transaction holds, and one of a flow, unless `flow_id` says that it goes with it.
        With `written`, documents by job, only those are removed that are still as their document says.
        """
        ...

    def archive(self, old: Sequence[Ended], now: Micros) -> list[JobId]:
        """Move these jobs into the archive; returns those that were moved. The others stay, as in `remove`."""
        ...

    def documents(self, old: Sequence[Ended], now: Micros) -> list[Archived]:
        """These jobs as the archive would keep them, without those that live again or are gone."""
        ...

    def old_flows(self, after: FlowId | None, before: Micros, size: int) -> list[OldFlow]:
        """One page of flows that ended before then, by id, with all their jobs; those inside others are left out.
        Shorter than `size`: the last page."""
        ...

    def flow_ends(self, flow_id: FlowId, size: int) -> list[Ended]:
        """How the first `size` jobs of this flow ended, those that it does not count too: to be given to `remove` or
        `archive`, all of them before `remove_flow`."""
        ...

    def remove_flow(self, flow_id: FlowId) -> bool:
        """Remove a flow that has ended and has no jobs any more. False: it has some, or lives again."""
        ...

    def archived(self, job_id: JobId) -> Archived | None:
        """The job in the archive. None: it is not there."""
        ...

    def archived_jobs(self, below: bytes, size: int) -> list[Archived]:
        """One page of the archive, the newest jobs first. Shorter than `size`: the last page."""
        ...

    def remove_logs(self, before: Micros, limit: int) -> int:
        """Remove up to `limit` log lines older than that, whatever job they are of. Fewer: there are no more."""
        ...

    def remove_records(self, before: Micros, limit: int) -> dict[str, int]:
        """Remove up to `limit` each of what was closed before then, and say how many: slots of built-in work, stretches
        of missed instants, closed reservations, expired locks; and keys of limits that nothing uses. Fewer than `limit`
        of all: there are no more."""
        ...

    def remove_nodes(self, after: NodeId | None, before: Micros, size: int) -> Page[NodeId]:
        """Of the next `size` nodes that stopped before then, remove those that nothing names any more."""
        ...

    def give_back(self) -> bool:
        """Give some space that nothing needs any more back to the file system. True: there is more to give."""
        ...


class FlowOperations(Protocol):
    """Chains, groups, batches and workflows: jobs that are counted together and wait for each other.

    A flow ends when it is sealed and all its members have ended: its jobs, and the flows inside it. That is decided in
    the transaction of the last end, or, on servers, by a look of some worker soon after.
    """

    def start_flows(
        self, flows: Sequence[NewFlow], jobs: Sequence[NewJob], conflict: str = "raise"
    ) -> tuple[FlowRow, list[Job]]:
        """Insert these flows, the outermost first, and these jobs, with what each of them waits for: all or nothing.

        A job may wait for jobs and flows of the same call, and for any that exist. Where one of them has ended, that is
        decided at once: the job may be skipped before this returns. Unknown ones are refused (`parent_unknown`).
        If another live flow has the key of the first one: KeyConflict, or with conflict="return" that flow and no jobs.
        """
        ...

    def add_members(
        self, flow_id: FlowId, jobs: Sequence[NewJob], now: Micros, *, perhaps_again: bool = False
    ) -> list[Job]:
        """Add jobs to an open flow. `perhaps_again`: some may be there already, by their ids; they are not inserted
        again but returned, marked `deduplicated`. TransitionRefused: the flow is sealed (`flow_sealed`), cancelled or
        has ended."""
        ...

    def seal_flow(self, flow_id: FlowId, now: Micros) -> FlowRow:
        """No more members come from outside. A flow whose members have all ended, or that has none, ends now."""
        ...

    def flow(self, flow_id: FlowId) -> FlowRow | None:
        """The flow as it is now. None: there is no such flow."""
        ...

    def flows(self, state: str | None, name: str | None, below: bytes, size: int) -> list[FlowRow]:
        """Up to `size` flows that fit, newest first, with ids below `below`; the flows inside others are left out."""
        ...

    def inner_flows(self, flow_id: FlowId) -> list[FlowRow]:
        """The flows directly inside this one, in the order of their making."""
        ...

    def flow_jobs(self, flow_id: FlowId, state: str | None, after: Spot | None, size: int) -> Page[Job]:
        """The jobs that belong to this flow (not to those inside it), by their number; callbacks first."""
        ...

    def flow_edges(self, flow_id: FlowId, after: Spot | None, size: int) -> Page[EdgeRow]:
        """What the jobs of this flow wait for, or waited for: of `size` jobs at a time, in the order of `flow_jobs`."""
        ...

    def sources(self, ids: Sequence[bytes]) -> dict[bytes, Source]:
        """What is known of these jobs and flows. Of a job whose work another one continues, what that one made."""
        ...

    def results(self, flow_id: FlowId, after: int, size: int) -> list[tuple[int, Source]]:
        """How the members with numbers above `after` ended, by number."""
        ...

    def change_flow(self, flow_id: FlowId, verb: FlowVerb, now: Micros) -> FlowRow:
        """Cancel, pause or resume all members, those inside inner flows too. The first hundreds at once, the others by
        the workers, in portions; until then they are as they were. A repeat changes nothing."""
        ...

    def retry_flow(self, flow_id: FlowId, now: Micros, *, again: bool = False) -> FlowRow:
        """Open a new life for the members that failed or were cancelled; those skipped because of them wait again.

        TransitionRefused: nothing of it failed, its key is taken, or a job that waited for its end has started
        (`again`: that one gets a new life too)."""
        ...


class StatusQueries(Protocol):
    """What happens in the queue.

    Each is one query that reads at most `cap` rows and what belongs to them; with fewer rows than that the result is
    exact. Ids contain their time of creation: `from_id` is an `id_floor`.
    """

    def outstanding(self, cap: int) -> list[Outstanding]:
        """The oldest `cap` live jobs by kind, queue and state. If the counts add up to less, these are all."""
        ...

    def failures(self, since: Micros, cap: int) -> list[Failures]:
        """Jobs that failed for good since then and were not retried, the most frequent first: among the last `cap`
        lives that failed."""
        ...

    def count_failed(self, since: Micros, cap: int) -> int:
        """How many lives failed since then, retried or not. If it is `cap`, there may be more."""
        ...

    def stuck(self, now: Micros, stale: Micros, from_id: bytes, cap: int) -> list[Stuck]:
        """Jobs that make no progress, by `StuckReason`. "Long" means: since before `stale`.

        A queue waits if none of its jobs runs on a node that beats, and none had a run since `from_id`. With `cap` runs
        or more since then that is not known, and no queue is reported as waiting.
        """
        ...

    def hindrances(self, long_s: int, most_dead: int) -> list[Hindrance]:
        """What keeps a server from removing dead rows: transactions open for `long_s` and more, also on a standby, and
        replication slots that nobody reads; and tables of ours with more than `most_dead` dead rows, if these are more
        than the others. Empty where nothing can."""
        ...

    def durations(self, from_id: bytes, cap: int) -> list[Durations]:
        """Percentiles by kind, of the completed runs among the newest `cap` since `from_id`."""
        ...

    def duplicates(self, from_id: bytes, cap: int, limit: int) -> list[Duplicates]:
        """Up to `limit` groups among the newest `cap` jobs and lost runs since `from_id`, the most frequent first."""
        ...

    def ran(self, from_id: bytes, cap: int) -> list[Ran]:
        """The newest `cap` runs that began since `from_id`, by kind."""
        ...

    def queue_holds(self, queue: str) -> list[QueueHold]:
        """What may stop claims from this queue: its own row and the row for all queues, as far as they exist."""
        ...

    def live_kinds(self) -> list[StoredKind]:
        """The kinds of all jobs that have not ended, by name and version."""
        ...


class HealthOperations(Protocol):
    """For `perdure doctor` and `perdure db`. A store may raise NotImplementedError for what it does not have."""

    def check(self, name: str, now: Micros, limit: int) -> list[tuple[object, ...]]:
        """Up to `limit` cases that the check of this name (docs/doctor.md) finds. Empty: all is well.

        Each is an example (an id, or the name of a queue or template), how many there are in all, and what else the
        check needs.
        """
        ...

    def repair(self, name: str, now: Micros, ids: IdFactory, limit: int) -> int:
        """Run the repair of this name (docs/doctor.md) on up to `limit` jobs. Returns how many it changed."""
        ...

    def facts(self) -> list[Fact]:
        """What is known about the database. Changes nothing: a missing database is an error, an old schema stays."""
        ...

    def require_current(self) -> None:
        """Refuse a database that does not exist or needs an upgrade."""
        ...

    def back_up(self, target: Path) -> None:
        """Copy the database to a new file, readable by its owner only. Workers may run meanwhile."""
        ...

    def vacuum(self) -> None:
        """Write the file anew without free space in it. Nobody else can write meanwhile."""
        ...


class StoreLifecycle(Protocol):
    """The store as a whole."""

    @property
    def single_writer(self) -> bool:
        """True: an open transaction blocks all other writers, so it must be short."""
        ...

    @property
    def look_every_s(self) -> float:
        """How often a worker looks for what may need its care: the dead, schedules, reservations."""
        ...

    @property
    def clock(self) -> Clock:
        """Whose `now` every call should be given, so that all who use the database agree: a server's own. A store that
        has none is for one machine, and goes by that one's clock: see `clock_of`."""
        ...

    def within(self, tx: object) -> Self:
        """The same store inside the caller's own transaction: a driver's connection, or an SQLAlchemy or Django one.

        Only that transaction sees what is written, and it becomes durable when the caller commits.
        """
        ...

    @property
    def in_transaction(self) -> bool:
        """Whether a call made now would join an open `transaction()`, and commit or roll back with it."""
        ...

    def transaction(self, *, join: bool = False) -> AbstractContextManager[Any]:
        """A transaction that calls on the same thread or task join. Commits at the end; an error rolls it back.

        Inside another one it is refused (`tx_nested`); with `join` it becomes a part of that one.
        """
        ...

    def joining(self, tx: object) -> AbstractContextManager[None]:
        """Inside, calls on the same thread or task join the caller's own transaction, as `within(tx)` does."""
        ...

    def begin_writing(self) -> None:
        """With `within(tx)`: nobody else writes before that transaction ends, where a database has one writer at a
        time. So it cannot fail later because someone was faster."""
        ...

    def abegin_writing(self) -> Awaitable[None]: ...

    def bell(self, queues: Sequence[str] | None = None) -> Bell:
        """A bell for one worker that serves these queues (None: all), to sleep until there may be work. It must be
        closed."""
        ...

    def upgrade(self) -> str:
        """Bring the schema to the newest revision and say what was done. A repeat does nothing."""
        ...

    def close(self) -> None:
        """Close the connections. They are opened again on the next use."""
        ...


class Store(
    JobOperations,
    ControlOperations,
    OrderOperations,
    ClaimOperations,
    FinishOperations,
    TurnOperations,
    RescueOperations,
    RunOperations,
    LogOperations,
    ReadOperations,
    QueueOperations,
    LimitOperations,
    NodeOperations,
    LockOperations,
    ScheduleOperations,
    TemplateOperations,
    ReservationOperations,
    RetentionOperations,
    FlowOperations,
    StatusQueries,
    HealthOperations,
    StoreLifecycle,
    Protocol,
):
    """The whole store."""


def clock_of(store: Store) -> Clock:
    """The clock to use with a store: its own, else this machine's."""
    return getattr(store, "clock", None) or SystemClock()  # a store that was written before stores had clocks has none


class ConnectionLost(StoreError):
    """The connection ended; whether the last statement took effect is unknown."""

    default_code = "connection_lost"


class Locked(DatabaseBusy):
    """Someone's open transaction held a lock for longer than we wait. Not an outage: do other work, and retry later."""


OUTAGES = (DatabaseBusy, DatabaseUnavailable, ConnectionLost)
"""The database was not there, or its reply was lost. Not a refusal: the caller repeats the call until it succeeds."""


class StoreSettings(NamedTuple):
    """The settings of a store besides its URL."""

    durability: str = "full"
    busy_timeout_s: float = 5.0
    auto_migrate: bool | None = None
    allow_network_filesystem: bool = False
    closed_too: bool = False
    """Write also to a database that is closed, because it was moved or is an unfinished copy: for `db copy`."""
    listen_url: str | None = None


StoreFactory = Callable[[str, StoreSettings], Store]
"""Opens the store of a URL: for `Perdure(url, store=…)`, or the entry point group `perdure.stores`."""
