"""`Perdure`: the front door. Brings kinds, options and codec together and calls the store.

Nothing is opened, read or started before the first call that needs the database.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from importlib import import_module
from itertools import islice
from typing import TYPE_CHECKING, Any, Concatenate, Literal, Never, TypeVar, Unpack, get_args, overload
from uuid import UUID

from perdure.checks import Span, check_choice, check_list, check_span, check_whole
from perdure.clock import Clock, asked
from perdure.config import Config, Settings, resolve_url
from perdure.enqueue import EditFields, common_tx, edited, listed_drafts, new_job
from perdure.errors import (
    ConfigError,
    InvalidInput,
    InvalidOption,
    JobNotFound,
    KindError,
    PerdureError,
    WaitTimeout,
    shown,
)
from perdure.flow.planned import FlowHandle, Planned
from perdure.ids import FlowId, IdFactory, JobId, ids_by, parse_id
from perdure.job import transitions
from perdure.job.flow import FlowVerb, OnFailure
from perdure.job.model import NewJob, Plan, rank_of
from perdure.job.states import Verb
from perdure.job.views import Job, Run
from perdure.kind import Declaration, Declare, Draft, Isolation, Kind, P, R, Registry, Upgrade
from perdure.lazy import Lazy, lazy
from perdure.listing import (
    EndedFilters,
    JobFilters,
    RunFilters,
    change_all,
    checked_limit,
    list_jobs,
    list_runs,
    old_jobs,
    pages,
    put_away,
    refuse_none,
)
from perdure.names import public
from perdure.options import Conflict, OptionFields, Options, for_a_kind
from perdure.upkeep.archive import archive_of, archived_jobs, exit_to, find_archived
from perdure.words_of_others import OF_AN_APP, refuse
from perdure.worker.lifecycle import is_logged, log_enqueued, log_flow, log_verb

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from perdure.aio import AsyncPerdure
    from perdure.flow.views import Flow
    from perdure.flows import Flows
    from perdure.limits import Limits
    from perdure.lock import Lock
    from perdure.ops.explain import Explanation
    from perdure.queues import Queues
    from perdure.reservation import Reservation, ReservationRecord
    from perdure.schedule.definition import Definition
    from perdure.schedules import Declarations, ScheduleFields, Schedules
    from perdure.store.protocols import Store, StoreFactory
    from perdure.store.rows import LogLine
    from perdure.templates import Templates
    from perdure.testing.kit import Kit, KitBlock
    from perdure.worker.context import JobContext
    from perdure.worker.options import Parts, WorkerFields
    from perdure.worker.run import Middleware
    from perdure.worker.worker import Worker
    from perdure.workflow import Abandon, Batch, Mode, Workflow

    M = TypeVar("M", bound=Middleware)
    K = TypeVar("K", bound=Kind[..., Any, ..., Any])

T = TypeVar("T")
F = TypeVar("F")

JobLike = Job | Planned[Any] | UUID | str
End = Literal["front", "back"]

FIRST_PAUSE_S = 0.002
LONGEST_PAUSE_S = 0.1
"""How long `wait` pauses between two looks at a job, at first and at most."""

INNER = frozenset((
    "aenqueue_draft", "clock", "declared_schedules", "draft", "enqueue_arguments", "existing", "ids", "import_kinds",
    "kit", "looks", "middlewares", "new_job", "new_jobs", "newest", "parts", "store_of",
))  # fmt: skip
"""What an app has for the package's own parts; users are not shown it."""

logging.getLogger("perdure").addHandler(logging.NullHandler())  # silent, unless the program sets up logging


class Perdure(Lazy):
    """A job queue in one database.

    `url` is a path or a URL; without one it comes from the environment variable PERDURE_URL. `store` is your own
    store for it, or a function that opens one: see docs/stores.md. `clock` and `ids` replace the machine's, for tests.
    The other arguments are the fields of `Config`. Safe to share between threads, and to use in a process forked from
    the one that made it.

    Verbs on a job take a Job, or its id as UUID or text, and return the job as it is afterwards. TransitionRefused: the
    job's state does not allow it; the message says what is possible. `tx`: do it in this transaction of yours.
    `expect_version`: do it only if the job still has this version.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        store: Store | StoreFactory | None = None,
        clock: Clock | None = None,
        ids: IdFactory | None = None,
        **settings: Unpack[Settings],
    ) -> None:
        self._url = url
        self._given_store = store
        self.config = Config.of(settings)
        """All settings, checked."""
        self._given_clock = clock
        self._given_ids = ids
        self.kinds = Registry()
        """The kinds declared on it, by name."""
        self.middlewares: tuple[Middleware, ...] = ()
        self.kit: Kit | None = None
        """The kit of the `testing()` block that the app is in."""

    @property
    def owner(self) -> str:
        """The owner of the jobs that this app enqueues."""
        return self.config.name

    @property
    def url(self) -> str:
        """The path or URL of the app's database."""
        return resolve_url(self._url)

    @url.setter
    def url(self, url: str | os.PathLike[str]) -> None:
        """Use another database from now on. Inside a `testing()` block nothing changes."""
        if self.kit is not None:
            return  # start-up code under test must not switch the app to a real database
        self.close()
        for name in ("store", "clock", "ids"):
            self.__dict__.pop(name, None)
        self._url = url
        if not callable(self._given_store):
            self._given_store = None  # it belongs to the old URL

    @lazy
    def store(self) -> Store:
        """The store behind the app; opened on first use."""
        from perdure.store.open import open_store

        given = self._given_store
        if given is not None and not callable(given):
            return given
        return (given or open_store)(self.url, self.config.store_settings())

    @lazy
    def clock(self) -> Clock:
        """Whose time the app goes by: the one it was given, else the database server's, else this machine's."""
        from perdure.store.protocols import clock_of

        return self._given_clock or clock_of(self.store)

    @lazy
    def ids(self) -> IdFactory:
        return self._given_ids or (IdFactory() if self._given_clock else ids_by(self.clock))

    def store_of(self, tx: Any) -> Store:
        """The store, inside the user's transaction if there is one."""
        return self.store if tx is None else self.store.within(tx)

    # -- kinds -------------------------------------------------------------------------------------------------------

    @overload
    def job(
        self, function: Callable[Concatenate[JobContext, P], Coroutine[Any, Any, R]], /
    ) -> Kind[P, R, Concatenate[JobContext, P], Coroutine[Any, Any, R]]: ...
    @overload
    def job(
        self, function: Callable[Concatenate[JobContext, P], R], /
    ) -> Kind[P, R, Concatenate[JobContext, P], R]: ...
    @overload
    def job(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> Kind[P, R, P, Coroutine[Any, Any, R]]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> Kind[P, R, P, R]: ...
    @overload
    def job(
        self,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        version: int = 1,
        upgrades: Mapping[int, Upgrade] | None = None,
        isolation: Isolation | None = None,
        **options: Unpack[OptionFields],
    ) -> Declare: ...

    def job(
        self,
        function: Callable[..., Any] | None = None,
        *,
        name: str | None = None,
        aliases: Sequence[str] = (),
        version: int = 1,
        upgrades: Mapping[int, Upgrade] | None = None,
        isolation: Isolation | None = None,
        **options: Unpack[OptionFields],
    ) -> Any:
        """Declare a function as a kind of job. `@app.job` or `@app.job(queue="mail", retry=5, …)`.

        The kind's name is the function's, or `name=`; `aliases=` are names it had before; `version=` rises when the
        arguments change, with `upgrades={1: function}` from version 1 to 2 and so on.
        """
        from perdure.worker.context import JobContext

        said = Declaration.checked(name, aliases, version, upgrades, isolation)

        def declare(function: Callable[..., Any]) -> Kind[..., Any, ..., Any]:
            defaults = self._defaults.changed(for_a_kind(options))
            kind: Kind[..., Any, ..., Any] = Kind(self, function, said, defaults, JobContext)
            self.kinds.add(kind)
            return kind

        return declare if function is None else declare(function)

    @lazy
    def _defaults(self) -> Options:
        return Options(queue=self.config.queue)

    # -- enqueue -----------------------------------------------------------------------------------------------------

    def enqueue(self, kind: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[OptionFields]) -> Job:
        """Enqueue a job by its kind's name. When this returns, the job is durable (with `tx=`: once you commit)."""
        return self.enqueue_arguments(*self.draft(kind, arguments, options))

    def draft(self, kind: str, arguments: Mapping[str, Any] | None, options: OptionFields) -> Draft:
        found = self.kinds.get(kind)
        return found.options(**options).draft({} if arguments is None else arguments)

    def enqueue_arguments(
        self, kind: Kind[..., Any, ..., Any], arguments: Mapping[str, Any], options: Options, plan: Plan
    ) -> Job:
        """Every single enqueue comes here; the arguments are the fields of a `Draft`."""
        now = self.clock.now()  # before the id, whose time since= compares with created_at
        new = new_job(kind, arguments, options, plan, JobId(self.ids.new()), now)
        tx = options.tx
        jobs = (self.store if tx is None else self.store.within(tx)).enqueue([new])
        if is_logged(logging.DEBUG):
            log_enqueued(jobs)
        return jobs[0]

    async def aenqueue_draft(self, draft: Draft) -> Job:
        await asked(self.clock)
        jobs = await self.store_of(draft.options.tx).aenqueue([self.new_job(draft)])
        if is_logged(logging.DEBUG):
            log_enqueued(jobs)
        return jobs[0]

    def enqueue_many(self, drafts: Iterable[Draft], *, tx: Any = None) -> list[Job]:
        """Enqueue drafts made by `kind.new(…)`, in order, in one transaction: all of them or none."""
        listed = check_list(drafts, "a list of jobs made by kind.new(…)")
        tx = common_tx(listed, tx)
        new = self.new_jobs(listed)
        jobs = self.store_of(tx).enqueue(new) if new else []
        if is_logged(logging.DEBUG):
            log_enqueued(jobs)
        return jobs

    def new_jobs(self, drafts: Sequence[Draft]) -> list[NewJob]:
        for draft in drafts:
            self._check_here(draft.kind)
        now = self.clock.now()
        ids = self.ids.new_many(len(drafts))
        return [new_job(*draft, JobId(job_id), now) for draft, job_id in zip(drafts, ids, strict=True)]

    # -- look --------------------------------------------------------------------------------------------------------

    def get(self, job: JobLike) -> Job | None:
        """The job as it is now. None: no job has this id. InvalidInput: it is no id, as with every verb."""
        return self.store.get(job_id_of(job))

    def jobs(
        self,
        /,
        *,
        flow: FlowHandle | UUID | str | None = None,
        limit: int | None = None,
        **filters: Unpack[JobFilters[None]],
    ) -> Iterator[Job]:
        """Jobs that fit all filters, lazily, in pages: newest first; with state="queued" and a queue, in queue order;
        with `flow` those of that flow, as `app.flows.jobs` has them.

        Filters: state (or a list of states), queue, kind, owner, tag, business_key, idempotency_key, since, until
        (aware datetimes, compared with the time of creation). None means any. A kind's name also finds jobs under its
        aliases.
        """
        return list_jobs(self, filters, limit) if flow is None else self.flows.matching(flow, filters, limit)

    def runs(
        self, /, job: JobLike | None = None, *, limit: int | None = None, **filters: Unpack[RunFilters]
    ) -> Iterator[Run]:
        """Attempts, newest first: of one job, or of all that fit the filters kind, state, owner, since, until."""
        return list_runs(self, None if job is None else job_id_of(job), filters, limit)

    def logs(self, job: JobLike) -> Iterator[LogLine]:
        """The log lines captured from all runs of a job, in the order they were written."""
        job_id = job_id_of(job)

        def read(last: LogLine | None, size: int) -> tuple[list[LogLine], LogLine | None]:
            lines = self.store.log(job_id, last, size)
            return lines, lines[-1] if len(lines) == size else None

        return pages(read, None)

    def explain(self, job: JobLike | FlowHandle) -> Explanation:
        """Why the job, or flow, is in its state, and what would change that."""
        from perdure.ops.explain import explain, explain_flow

        def of_flow() -> Explanation:
            return explain_flow(self.store, self.flows.existing(meant_flow(job)).row, self.clock.now())

        return self._either(job, lambda: explain(self.store, self.existing(meant_job(job)), self.clock.now()), of_flow)

    @overload
    def wait(self, job: FlowHandle, timeout: Span | None = None) -> Flow: ...
    @overload
    def wait(self, job: JobLike, timeout: Span | None = None) -> Job: ...

    def wait(self, job: JobLike | FlowHandle, timeout: Span | None = None) -> Job | Flow:
        """Wait until the job has ended, following its retries, and return it. WaitTimeout: it has not; it continues.

        The same for a flow.
        """
        looks = self.looks(job, timeout)
        found, pause = next(looks)
        while not found.is_final:
            self.clock.wait(pause)
            found, pause = next(looks)
        return found

    def looks(self, job: JobLike | FlowHandle, timeout: Span | None) -> Iterator[tuple[Job | Flow, float]]:
        """Polls the job or flow: yields it as it is now and the pause before the next look. WaitTimeout: time is up.

        Polled, because any process may end it.
        """
        limit = math.inf
        if timeout is not None:
            must_be = "seconds, not negative, a timedelta, or None to wait for ever"
            limit = check_span(timeout, "timeout", 0, math.inf, must_be=must_be, code="timeout_invalid")
        current = self._either(job, lambda: self.existing(meant_job(job)), lambda: self.flows.existing(meant_flow(job)))
        pause = FIRST_PAUSE_S
        deadline = self.clock.boottime() + limit
        while True:
            left = deadline - self.clock.boottime()
            current = self.newest(current) if isinstance(current, Job) else self.flows.existing(current)
            if left <= 0 and not current.is_final:
                what = f"job {current.id} ({current.kind})" if isinstance(current, Job) else f"flow {current.id}"
                raise WaitTimeout(
                    f"{what} was {current.state} after {limit:g} s; it continues: wait again, or ask"
                    f" app.explain({what.partition(' ')[0]}) what it waits for"
                )
            yield current, min(pause, left)
            pause = min(pause * 1.5, LONGEST_PAUSE_S)

    def _either(self, what: JobLike | FlowHandle, of_job: Callable[[], T], of_flow: Callable[[], F]) -> T | F:
        """For the job that is meant, or else for the flow: an id may be of either."""
        if isinstance(what, FlowHandle):
            return of_flow()
        try:
            return of_job()
        except JobNotFound:
            if isinstance(what, (UUID, str)) and self.store.flow(FlowId(parse_id(what))) is not None:
                return of_flow()
            raise

    def existing(self, job: JobLike, tx: Any = None) -> Job:
        from perdure.store.rows import not_found

        found = self.store_of(tx).get(job_id_of(job))
        if found is None:
            raise not_found(job_id_of(job))
        return found

    def newest(self, job: Job) -> Job:
        """The job as it is now, or the one that continues its work."""
        current = self.existing(job)
        while current.successor is not None:
            current = self.existing(current.successor)
        return current

    # -- decide ------------------------------------------------------------------------------------------------------

    @overload
    def cancel(self, job: FlowHandle, *, tx: Any = None) -> Flow: ...
    @overload
    def cancel(self, job: JobLike, *, expect_version: int | None = None, tx: Any = None) -> Job: ...

    def cancel(self, job: JobLike | FlowHandle, *, expect_version: int | None = None, tx: Any = None) -> Job | Flow:
        """End a waiting job as cancelled; ask a running one to stop. Cancelling twice changes nothing.

        Of a flow: all members, those of flows inside it too; the first hundreds at once, the others by the workers.
        """
        return self._either(
            job,
            lambda: self._change(meant_job(job), Verb.CANCEL, transitions.cancel, expect_version, tx),
            lambda: self._change_flow(meant_flow(job), "cancel", expect_version, tx),
        )

    @overload
    def pause(self, job: FlowHandle, *, tx: Any = None) -> Flow: ...
    @overload
    def pause(self, job: JobLike, *, expect_version: int | None = None, tx: Any = None) -> Job: ...

    def pause(self, job: JobLike | FlowHandle, *, expect_version: int | None = None, tx: Any = None) -> Job | Flow:
        """Set a waiting job aside until it is resumed; of a flow, all members that have not started."""
        return self._either(
            job,
            lambda: self._change(meant_job(job), Verb.PAUSE, transitions.pause, expect_version, tx),
            lambda: self._change_flow(meant_flow(job), "pause", expect_version, tx),
        )

    @overload
    def resume(self, job: FlowHandle, *, tx: Any = None) -> Flow: ...
    @overload
    def resume(self, job: JobLike, *, expect_version: int | None = None, tx: Any = None) -> Job: ...

    def resume(self, job: JobLike | FlowHandle, *, expect_version: int | None = None, tx: Any = None) -> Job | Flow:
        """Let a paused or parked job continue; of a flow, all its members."""
        return self._either(
            job,
            lambda: self._change(meant_job(job), Verb.RESUME, transitions.resume, expect_version, tx),
            lambda: self._change_flow(meant_flow(job), "resume", expect_version, tx),
        )

    @overload
    def retry(self, job: FlowHandle, *, again: bool = False, tx: Any = None) -> Flow: ...
    @overload
    def retry(self, job: JobLike, *, as_new: bool = False, again: bool = False, tx: Any = None) -> Job: ...

    def retry(
        self, job: JobLike | FlowHandle, *, as_new: bool = False, again: bool = False, tx: Any = None
    ) -> Job | Flow:
        """Run a failed or cancelled job again, under its id and with all its attempts; what it did before stays on
        record. With `as_new`: any ended job, as a new job with a new id.

        Of a flow: the members that failed or were cancelled run again, those skipped because of them wait again, and
        what completed stays. Refused where a job that waited for the flow's end has started, unless `again`: then that
        one gets a new life too.
        """

        def of_flow() -> Flow:
            if as_new:
                raise InvalidOption("as_new= is for single jobs; a flow is retried in its place")
            flow = self.flows.retry(meant_flow(job), again=again, tx=tx)
            return self._flow_logged("retry", flow, tx)

        return self._either(job, lambda: self._retry(meant_job(job), as_new=as_new, tx=tx), of_flow)

    def _retry(self, job: JobLike, *, as_new: bool, tx: Any) -> Job:
        if as_new:
            new_id = JobId(self.ids.new())
            again = self.store_of(tx).retry_as_new(job_id_of(job), new_id, self.clock.now())
            return self._logged(Verb.RETRY, again, tx, retry_of=str(again.retry_of))
        return self._by_hand(Verb.RETRY, job, lambda: self.store_of(tx).retry(job_id_of(job), self.clock.now()), tx)

    def _change_flow(self, flow: FlowHandle | UUID | str, verb: FlowVerb, expect_version: int | None, tx: Any) -> Flow:
        if expect_version is not None:
            raise InvalidOption("expect_version= is for single jobs; a flow has no version")
        return self._flow_logged(verb, self.flows.change(flow, verb, tx), tx)

    def _flow_logged(self, verb: str, flow: Flow, tx: Any) -> Flow:
        if is_logged(logging.INFO):
            log_flow(verb, flow, in_transaction=tx is not None or self.store.in_transaction)
        return flow

    def move(
        self,
        job: JobLike,
        *,
        before: JobLike | None = None,
        after: JobLike | None = None,
        to: End | None = None,
        expect_version: int | None = None,
        tx: Any = None,
    ) -> Job:
        """Give a waiting job another place among the jobs of its queue and priority: `before` or `after` one of them,
        or `to="front"` or `to="back"`."""
        from perdure.store.rows import Place

        if to is not None:
            check_choice(to, "to", get_args(End))
        if sum(wish is not None for wish in (before, after, to)) != 1:
            raise InvalidOption('say where to move to with one of before=, after=, to="front" or to="back"')
        place = Place(
            None if before is None else job_id_of(before), None if after is None else job_id_of(after), to == "front"
        )
        job_id, now = job_id_of(job), self.clock.now()
        return self._by_hand(Verb.MOVE, job, lambda: self.store_of(tx).move(job_id, place, now, expect_version), tx)

    def set_priority(self, job: JobLike, priority: int, *, expect_version: int | None = None, tx: Any = None) -> Job:
        """Give a waiting job another priority; it becomes the last job of that priority."""
        rank = rank_of(Options(priority=priority).priority)
        job_id, now = job_id_of(job), self.clock.now()

        def change() -> Job:
            return self.store_of(tx).set_priority(job_id, rank, now, expect_version)

        return self._by_hand(Verb.SET_PRIORITY, job, change, tx)

    def supersede(self, job: JobLike, replacement: Draft, *, tx: Any = None) -> Job:
        """Put another job in this one's place; returns the superseded job, whose `superseded_by` names the new one.

        A waiting job is cancelled at once. A running one is asked to stop, and the replacement waits for its end. The
        replacement takes over the business key, unless it has its own.
        """
        tx = common_tx([replacement], tx)
        now = self.clock.now()
        new = new_job(*replacement, JobId(self.ids.new()), now)
        old = self.store_of(tx).supersede(job_id_of(job), new, now)
        is_repeat = old.row.superseded_by != new.id
        return old if is_repeat else self._logged(Verb.SUPERSEDE, old, tx, superseded_by=str(old.superseded_by))

    def edit(self, /, job: JobLike, *, tx: Any = None, **changes: Unpack[EditFields]) -> Job:
        """Change a job that was never claimed: payload, params, tags, principal, queue, run_at, delay, timeout."""
        current = self.existing(job, tx)
        edit = edited(self, current, changes, self.store_of(tx))
        return current if edit is None else self._logged(Verb.EDIT, self.store_of(tx).edit(edit, current.version), tx)

    def delete(self, job: JobLike, *, tx: Any = None) -> Job:
        """Remove an ended job with its runs; returns it as it was. Its idempotency key stays taken."""
        return self._logged("delete", self.store_of(tx).delete(job_id_of(job)), tx)

    def _change(self, job: JobLike, verb: Verb, decide: Any, expect_version: int | None, tx: Any) -> Job:
        job_id, now = job_id_of(job), self.clock.now()
        return self._by_hand(verb, job, lambda: self.store_of(tx).change(job_id, verb, decide, now, expect_version), tx)

    def _by_hand(self, verb: Verb, job: JobLike, change: Callable[[], Job], tx: Any) -> Job:
        """Make a change, and log it if logging is on and the job has really changed."""
        if not is_logged(logging.INFO):
            return change()
        before = self.store_of(tx).get(job_id_of(job))
        after = change()
        return after if before is not None and after.version == before.version else self._logged(verb, after, tx)

    def _logged(self, verb: str, job: Job, tx: Any, **facts: str) -> Job:
        if is_logged(logging.INFO):
            log_verb(verb, job, in_transaction=tx is not None or self.store.in_transaction, **facts)
        return job

    # -- decide for many ---------------------------------------------------------------------------------------------

    def cancel_all(self, /, *, limit: int | None = None, **filters: Unpack[JobFilters[Never]]) -> int:
        """Cancel every live job that fits the filters, at most `limit`; returns how many. Without filters: all jobs.

        The filters are those of `jobs`. A filter that is None is refused, here and in the other bulk verbs.
        """
        return change_all(self, Verb.CANCEL, filters, limit)

    def pause_all(self, /, *, limit: int | None = None, **filters: Unpack[JobFilters[Never]]) -> int:
        """Pause every waiting job that fits the filters, at most `limit`; returns how many."""
        return change_all(self, Verb.PAUSE, filters, limit)

    def resume_all(self, /, *, limit: int | None = None, **filters: Unpack[JobFilters[Never]]) -> int:
        """Resume every paused or parked job that fits the filters, at most `limit`; returns how many."""
        return change_all(self, Verb.RESUME, filters, limit)

    def retry_all(self, /, *, limit: int | None = None, **filters: Unpack[JobFilters[Never]]) -> int:
        """Retry every failed job that fits the filters (state="cancelled": every cancelled one), at most `limit`."""
        return change_all(self, Verb.RETRY, filters, limit)

    def purge(
        self, /, *, older_than: timedelta = timedelta(0), limit: int | None = None, **filters: Unpack[EndedFilters]
    ) -> int:
        """Remove ended jobs for good, with runs, tags and log lines: at most `limit`; returns how many.

        `state` is required: completed, failed, cancelled or skipped. `older_than`: only those that ended that long ago.
        The other filters are those of `jobs`. Their idempotency keys stay taken.
        """
        refuse_none("purge", filters)
        way = exit_to(self.store, self.clock, None)
        return put_away(self, "purge", way, old_jobs(self, filters, older_than, limit))

    def archive(
        self,
        /,
        *,
        to: str | os.PathLike[str] | None = None,
        older_than: timedelta = timedelta(0),
        limit: int | None = None,
        **filters: Unpack[EndedFilters],
    ) -> int:
        """Move ended jobs into the archive, with runs, tags and log lines: at most `limit`; returns how many.

        `to` is "table", a folder, or a file that ends in .jsonl; by default where `retention=` says, else the table.
        The rest is as in `purge`.
        """
        refuse_none("archive", filters)
        way = exit_to(self.store, self.clock, archive_of(self.config, to))
        return put_away(self, "archive", way, old_jobs(self, filters, older_than, limit))

    def archived(self, job: JobLike, *, at: str | os.PathLike[str] | None = None) -> dict[str, Any] | None:
        """A job of the archive, with runs, outcomes and log lines, as JSON data. None: it is not there.

        `at`: "table", a folder or a file; by default where `retention=` says, else the table.
        """
        return find_archived(self.store, archive_of(self.config, at), job_id_of(job))

    def archived_jobs(
        self, *, at: str | os.PathLike[str] | None = None, limit: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """All jobs of the archive, lazily, the newest first."""
        left = checked_limit(limit)
        return islice(archived_jobs(self.store, archive_of(self.config, at)), left)

    # -- flows -------------------------------------------------------------------------------------------------------

    @lazy
    def flows(self) -> Flows:
        """Chains, groups, batches and workflows: get, list, jobs, graph, seal."""
        from perdure.flows import Flows

        return Flows(self)

    def workflow(
        self,
        name: str,
        *,
        key: str | None = None,
        conflict: Conflict = "raise",
        on_failure: OnFailure = "continue",
        at_once: int | None = None,
        properties: Mapping[str, Any] | None = None,
        tx: Any = None,
    ) -> Workflow:
        """A graph of jobs: `with app.workflow("nightly") as wf: rows = wf.add(fetch.new(day)); …`.

        Written in one transaction at the end of the block, yours with `tx=`: all of it or nothing. `key`: no other live
        flow has it; if one has, KeyConflict, or with conflict="return" that one counts. `on_failure`: what a failed
        member does to the others ("continue", "stop", "cancel", "pause", "skip"). See docs/flows.md.
        """
        from perdure.workflow import Settings, Workflow

        return Workflow(self, "workflow", Settings(name, on_failure, key, conflict, at_once, properties), tx)

    def chain(
        self,
        *drafts: Draft,
        name: str | None = None,
        key: str | None = None,
        conflict: Conflict = "raise",
        properties: Mapping[str, Any] | None = None,
        tx: Any = None,
    ) -> Flow:
        """Enqueue jobs that run one after the other, each after the success of the one before.

        `app.chain(fetch.new(day), scrub.new(rows=previous), store.new(rows=previous))`: `previous` is the result of the
        job before. If one fails, the rest is skipped.
        """
        from perdure.workflow import chained

        flow = chained(self, drafts, name, key=key, conflict=conflict, properties=properties, tx=tx)
        return flow.write(tx)

    def group(
        self,
        drafts: Iterable[Draft],
        *others: Never,
        name: str | None = None,
        mode: Mode = "parallel",
        on_failure: OnFailure = "continue",
        at_once: int | None = None,
        key: str | None = None,
        conflict: Conflict = "raise",
        properties: Mapping[str, Any] | None = None,
        tx: Any = None,
    ) -> Flow:
        """Enqueue jobs that are counted together, in one transaction. For many, or a generator, see `batch`.

        mode="sequential": one after the other, in this order. `on_failure`: "continue": the others go on; "stop": those
        that have not started are skipped; "cancel": and those that run are asked to stop; "pause": those that have not
        started are paused; "skip": the others go on, and the group does not fail for it.
        """
        from perdure.workflow import grouped

        drafts = listed_drafts(drafts, others)
        settings: dict[str, Any] = {"on_failure": on_failure, "at_once": at_once, "key": key, "conflict": conflict}
        return grouped(self, drafts, name, mode, **settings, properties=properties, tx=tx).write(tx)

    def batch(
        self,
        name: str,
        *,
        on_success: Draft | None = None,
        on_failure: Draft | OnFailure | None = None,
        on_end: Draft | None = None,
        at_once: int | None = None,
        key: str | None = None,
        conflict: Conflict = "raise",
        properties: Mapping[str, Any] | None = None,
        abandon: Abandon = "cancel",
        tx: Any = None,
    ) -> Batch:
        """Many jobs, counted together: `with app.batch("import", on_success=report.new()) as batch: batch.add(…)`.

        Members are written 1,000 at a time and run while the block goes on; it is sealed at its end. If the block ends
        with an exception, the batch is cancelled; with abandon="keep" it stays open, to be sealed or cancelled by hand.
        `on_success`, `on_failure`, `on_end`: jobs that run when all members have ended so; `on_failure` may also be a
        policy, as in `group`.
        """
        from perdure.workflow import new_batch

        jobs: dict[str, Any] = {"on_success": on_success, "on_failure": on_failure, "on_end": on_end}
        settings: dict[str, Any] = {"at_once": at_once, "key": key, "conflict": conflict, "properties": properties}
        return new_batch(self, name, **jobs, **settings, abandon=abandon, tx=tx)

    # -- the rest ----------------------------------------------------------------------------------------------------

    @lazy
    def limits(self) -> Limits:
        """Limits and rates: set, pause, show, hold."""
        from perdure.limits import Limits

        return Limits(self)

    @lazy
    def queues(self) -> Queues:
        """Whole queues: list, pause, resume, limit."""
        from perdure.queues import Queues

        return Queues(self)

    @lazy
    def templates(self) -> Templates:
        """Jobs to be enqueued under a name: put, get, list, enqueue, archive."""
        from perdure.templates import Templates

        return Templates(self)

    @lazy
    def aio(self) -> AsyncPerdure:
        """The same verbs as coroutines."""
        from perdure.aio import AsyncPerdure

        return AsyncPerdure(self)

    def lock(self, name: str, *, ttl: Span) -> Lock:
        """A named lease with one holder at a time across all processes: `with app.lock("report", ttl=60): …`."""
        from perdure.lock import Lock

        return Lock(self, name, ttl)

    @lazy
    def schedules(self) -> Schedules:
        """What runs by the clock: put, get, list, enable, disable, remove, preview."""
        from perdure.schedules import Schedules

        return Schedules(self)

    @lazy
    def declared_schedules(self) -> Declarations:
        """What `@app.schedule` has declared."""
        from perdure.schedules import Declarations

        return Declarations(self)

    def schedule(
        self,
        cron: str | None = None,
        *,
        name: str | None = None,
        payload: Mapping[str, Any] | None = None,
        **fields: Unpack[ScheduleFields],
    ) -> Callable[[K], K]:
        """`@app.schedule("0 7 * * *", tz="Europe/Berlin")` above `@app.job`: workers make such a job at these times.

        Also `every=timedelta(minutes=5)` or `at=datetime(…)`. `payload` are the arguments; `name` is the schedule's,
        by default that of the kind. Each planned instant makes at most one job, however many workers there are. See
        docs/schedules.md for what happens to instants that were missed, and for the other options.
        """

        def declare(kind: K) -> K:
            self.declared_schedules.add(kind, name, cron, {} if payload is None else dict(payload), fields)
            return kind

        return declare

    def trigger(self, name: str, scheduled_for: datetime | None = None) -> Job:
        """Make the job of a schedule's slot now: the one planned for `scheduled_for`, by default one for this second.

        It takes the slot as a worker does: if the slot is taken, its job is returned, marked `deduplicated`. Refused
        (TransitionRefused) while an earlier job of the schedule is live and its overlap policy is "skip".
        """
        return self.schedules.trigger(name, scheduled_for)

    def reserve(
        self, queue: str = "*", *, wait: Span | None = 30.0, expires: Span = 600.0, by: str | None = None
    ) -> Reservation:
        """Hold a queue for direct work: `with app.reserve("gpu") as r: …`. Without a queue, every queue.

        The block begins when the queue's running jobs have ended; until its end none starts, on any worker. `wait`:
        seconds to wait for that, then ReservationBusy; None: for ever. `expires`: seconds after which it is over unless
        `r.renew()` is called; a holder that died on this machine loses it at once. `by`: who it is, for others to read.
        """
        from perdure.reservation import Reservation

        return Reservation(self, queue, wait, expires, by)

    def reservations(self, *, limit: int = 100) -> list[ReservationRecord]:
        """The reservations of queues, the newest first, closed ones too."""
        from perdure.reservation import list_reservations

        return list_reservations(self, check_whole(limit, "limit", 1, 10**6, code="limit_invalid"))

    def run_direct(
        self,
        kind: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        wait: Span | None = 30.0,
        expires: Span = 600.0,
        **options: Unpack[OptionFields],
    ) -> Job:
        """Run a job in this process now, with its queue reserved meanwhile; returns it as it is after this attempt.

        It is recorded, and rescued if this process dies, like any other; the jobs that wait in the queue keep their
        order and continue afterwards. If the attempt fails, a retry is the queue's matter. With a key that is taken,
        nothing runs, and the job that has it is returned.
        """
        from perdure.reservation import run_direct

        return run_direct(self, self.draft(kind, arguments, options), wait, expires)

    def worker(
        self,
        queues: Sequence[str] | Mapping[str, int] | None = None,
        concurrency: int | None = None,
        **options: Unpack[WorkerFields],
    ) -> Worker:
        """A worker, which runs jobs: `app.worker().run()`, or `with app.worker().running(): …` beside other code.

        `queues`: all of them in turn by default; a list is served strictly in its order (or order="round_robin"); a
        dict also says how many jobs of each queue may run at once. `concurrency`: how many jobs in all, 10 by default,
        with a dict as many as its queues together. See docs/worker.md for the other options.
        """
        from perdure.worker.options import WorkerOptions
        from perdure.worker.worker import Worker

        self._check_not_testing()
        checked = WorkerOptions.of(queues, concurrency, options, self.config)
        return Worker(self.parts(), checked, self._check_not_testing)

    def _check_not_testing(self) -> None:
        """Called again when a worker starts: it may have been made before the block."""
        if self.kit is not None:
            raise PerdureError(
                "no worker can run inside app.testing(), because its clock does not move; run due jobs with t.drain()",
                code="testing_worker",
            )

    def parts(self) -> Parts:
        """What jobs of this app need to run: in a worker, in its child processes, in `testing()`. Opens nothing."""
        from perdure.worker.options import Parts

        self.import_kinds()
        parts = Parts(self.store, self.kinds, self.clock, self.ids, self.new_job, self.middlewares)
        return parts._replace(owner=self.owner, declared=self._declared, retention=self.config.retention)

    def _declared(self) -> Sequence[Definition]:
        """The schedules of the code; nothing is loaded where there are none."""
        return self.declared_schedules.all() if "declared_schedules" in self.__dict__ else ()

    def import_kinds(self) -> None:
        """Import the modules of `imports=`, which declare this app's kinds."""
        for name in self.config.imports:
            try:
                import_module(name)
            except Exception as error:
                is_missing = isinstance(error, ModuleNotFoundError) and f"{name}.".startswith(f"{error.name}.")
                remedy = "write it as in an import statement, and see that Python finds it from here"
                raise ConfigError(
                    f"the module {shown(name)} of imports= cannot be imported ({type(error).__name__}: {error});"
                    f" {remedy if is_missing else 'mend it first'}",
                    code="imports_failed",
                ) from error

    def new_job(self, draft: Draft) -> NewJob:
        self._check_here(draft.kind)
        now = self.clock.now()  # before the id, whose time since= compares with created_at
        return new_job(*draft, JobId(self.ids.new()), now)

    def _check_here(self, kind: Kind[..., Any, ..., Any]) -> None:
        """Refuse a kind of an app on another file: no worker of this one would know its jobs. Two URLs of a server may
        lead to the same database, by way of a pooler or not."""
        other: Perdure = kind.app
        if other is self or other._file == self._file:
            return
        raise KindError(
            f"kind {kind.name!r} belongs to another app, {other!r}, whose workers run it, and not to {self!r};"
            " declare it on this one, or give its jobs to that one",
            code="kind_elsewhere",
        )

    @property
    def _file(self) -> object:
        """The SQLite file, without opening it. None: the database is elsewhere."""
        from perdure.store.open import is_sqlite, sqlite_path

        return sqlite_path(self.url) if self._given_store is None and is_sqlite(self.url) else None

    def middleware(self, function: M) -> M:
        """`@app.middleware` above a function that takes a run's context and returns a context manager: every handler
        of this app runs inside it.

        The first one declared is the outermost. An asynchronous one wraps coroutine handlers only.
        """
        if not callable(function):
            raise InvalidOption(f"a middleware is a function of the job's context, not {shown(function)}")
        self.middlewares = (*self.middlewares, function)
        return function

    def transaction(self) -> AbstractContextManager[Any]:
        """A transaction on the app's database: `tx.execute(…)` for your rows, and every call on the app joins it.

        Commits at the end of the block; an exception rolls everything back. On SQLite it blocks all other writers, so
        keep it short.
        """
        return self.store.transaction()

    def testing(
        self,
        *,
        start: datetime | None = None,
        state: Mapping[str, Any] | None = None,
        url: str | os.PathLike[str] | None = None,
        tx: Any = None,
    ) -> KitBlock:
        """`with app.testing() as t:` uses a temporary file and a clock that does not move, for this whole process.

        The app's own database is not touched. When the block ends, the app has its database, clock and ids again. Kinds
        and middleware declared inside stay declared: a module is imported once. `start`: the time at the beginning, now
        by default; `state`: what handlers find as `ctx.state`. `url`: a database for tests, which is emptied. `tx`: a
        connection or session whose transaction the test rolls back, and the jobs with it; an asynchronous one with
        `async with app.testing(tx=…) as t:`. See docs/testing.md.
        """
        from perdure.testing.kit import KitBlock

        return KitBlock(self, start, state, None if url is None else resolve_url(url), tx)

    def close(self) -> None:
        """Close the app's connections. They are opened again on the next use."""
        if "store" in self.__dict__:
            self.store.close()

    if not TYPE_CHECKING:  # else type checkers would accept any name

        def __getattr__(self, name: str) -> Any:
            """Only asked for what is not there."""
            refuse(self, name, OF_AN_APP, "a Perdure app")

    def __dir__(self) -> list[str]:
        return public(super().__dir__(), INNER)

    def __repr__(self) -> str:
        from perdure.store.open import without_password

        return (
            f"<Perdure {without_password(os.fspath(self._url)) if self._url is not None else 'from the environment'}>"
        )


def job_id_of(job: JobLike) -> JobId:
    if isinstance(job, Job):
        return job.row.id
    flow: object = job
    if isinstance(flow, FlowHandle):
        raise InvalidInput(
            f"expected a job, or its id, not flow {flow.id}; app.flows.get(flow) reads a flow, app.flows.jobs(flow) its"
            " jobs; cancel, pause, resume, retry, wait and explain take flows too",
            code="job_invalid",
        )
    return JobId(job.raw_id if isinstance(job, Planned) else parse_id(job))


def meant_job(what: JobLike | FlowHandle) -> JobLike:
    assert not isinstance(what, FlowHandle)
    return what


def meant_flow(what: JobLike | FlowHandle) -> FlowHandle | UUID | str:
    assert not isinstance(what, (Job, Planned))
    return what
