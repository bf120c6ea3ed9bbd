"""`Perdure`: the front door. Brings kinds, options and codec together and hands the store what it is to do.

Nothing is opened, read or started before the first call that needs the database.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from importlib import import_module
from typing import TYPE_CHECKING, Any, Concatenate, Literal, TypeVar, Unpack, get_args, overload
from uuid import UUID

from perdure.clock import Clock, SystemClock
from perdure.config import Config, resolve_url
from perdure.errors import ConfigError, InvalidOption, PerdureError, not_among, shown
from perdure.ids import IdFactory, JobId, parse_id
from perdure.job import transitions
from perdure.job.model import NewJob, Plan
from perdure.job.ordering import rank_of
from perdure.job.states import Verb
from perdure.job.views import Job, Run
from perdure.kind import Draft, Kind, P, R, Registry, Upgrade
from perdure.lazy import lazy
from perdure.options import OptionFields, Options, check_name, listed
from perdure.verbs.declare import (
    Declare,
    Facts,
    Isolation,
    checked_aliases,
    checked_upgrades,
    declared,
    for_a_kind,
)
from perdure.verbs.enqueue import common_tx, laid_out, new_job
from perdure.verbs.find import checked_limit, gave_up, jobs_of_all, pages, pauses, runs_of_all
from perdure.worker.lifecycle import hears_of_verbs, tell_of_enqueued, tell_of_verb

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from perdure.aio import AsyncPerdure
    from perdure.ops.explain import Explanation
    from perdure.store.protocols import Store, StoreFactory
    from perdure.store.rows import JobFilter, LogLine, RunFilter
    from perdure.testing.kit import Kit
    from perdure.verbs.named import Lock, Queues
    from perdure.worker.context import JobContext
    from perdure.worker.options import Parts, WorkerFields
    from perdure.worker.run import Middleware
    from perdure.worker.worker import Worker

    M = TypeVar("M", bound=Middleware)
    W = TypeVar("W", JobFilter, RunFilter)

JobLike = Job | UUID | str
End = Literal["front", "back"]

logging.getLogger("perdure").addHandler(logging.NullHandler())  # silent, unless the program sets up logging


class Perdure:
    """A job queue in one database.

    `url` is a path or a URL; without one it comes from the environment variable PERDURE_URL. `store` is a store of
    your own for it, or what opens one: see docs/stores.md. The other arguments are the fields of `Config`. Safe to
    share between threads, and to use in a process forked from the one that made it.
    """

    def __init__(
        self,
        url: str | os.PathLike[str] | None = None,
        *,
        store: Store | StoreFactory | None = None,
        clock: Clock | None = None,
        ids: IdFactory | None = None,
        **knobs: Any,
    ) -> None:
        self._url = url
        self._given_store = store
        self.config = Config.of(knobs)
        self.clock: Clock = clock or SystemClock()
        self.ids = ids or IdFactory()
        self.kinds = Registry()
        self.middlewares: tuple[Middleware, ...] = ()
        self.kit: Kit | None = None
        """The kit of the `testing()` block that the app is in."""

    @property
    def owner(self) -> str:
        """Whose jobs these are."""
        return self.config.name

    @property
    def url(self) -> str:
        """The path or URL of the app's database."""
        return resolve_url(self._url)

    @url.setter
    def url(self, url: str | os.PathLike[str]) -> None:
        """Use another database from now on. Inside a `testing()` block nothing changes."""
        if self.kit is not None:
            return  # start-up code that is under test must not lead it to a real database
        self.close()
        self.__dict__.pop("store", None)
        self._url = url
        if not callable(self._given_store):
            self._given_store = None  # it is the store of the URL before

    @lazy
    def store(self) -> Store:
        """The store behind the app; opened on first use."""
        from perdure.store.open import open_store

        given = self._given_store
        if given is not None and not callable(given):
            return given
        return (given or open_store)(self.url, self.config.store_settings())

    def _store_of(self, tx: Any) -> Store:
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

        facts = Facts(name, checked_aliases(aliases), version, checked_upgrades(upgrades), isolation)

        def declare(function: Callable[..., Any]) -> Kind[..., Any, ..., Any]:
            kind = declared(self, function, facts, self._defaults.changed(for_a_kind(options)), self.config)
            self.kinds.add(kind)
            return kind

        return declare if function is None else declare(function)

    @lazy
    def _defaults(self) -> Options:
        return Options(queue=self.config.queue)

    # -- enqueue -----------------------------------------------------------------------------------------------------

    def enqueue(self, kind: str, arguments: Mapping[str, Any] | None = None, **options: Unpack[OptionFields]) -> Job:
        """Enqueue a job by its kind's name. When this returns it is in the database for good (with `tx=`: once you
        commit)."""
        return self.enqueue_arguments(*self.draft(kind, arguments, options))

    def draft(self, kind: str, arguments: Mapping[str, Any] | None, options: OptionFields) -> Draft:
        found = self.kinds.get(kind)
        return found.options(**options).draft({} if arguments is None else arguments)

    def enqueue_arguments(
        self, kind: Kind[..., Any, ..., Any], arguments: Mapping[str, Any], options: Options, plan: Plan
    ) -> Job:
        """What a draft holds, without one: every enqueue comes this way."""
        now = self.clock.now()  # before the id, whose time since= compares with created_at
        new = laid_out(kind, arguments, options, plan, JobId(self.ids.new()), now)
        tx = options.tx
        jobs = (self.store if tx is None else self.store.within(tx)).enqueue([new])
        tell_of_enqueued(jobs)
        return jobs[0]

    async def aenqueue_draft(self, draft: Draft) -> Job:
        if draft.options.tx is not None:
            return self.enqueue_arguments(*draft)  # the caller's connection belongs to the caller's thread
        jobs = await self.store.aenqueue([self._new_job(draft)])
        tell_of_enqueued(jobs)
        return jobs[0]

    def enqueue_many(self, drafts: Iterable[Draft], *, tx: Any = None) -> list[Job]:
        """Enqueue drafts made by `kind.new(…)`, in order, in one transaction: all of them or none."""
        listed_drafts = listed(drafts, "a list of jobs made by kind.new(…)")
        tx = common_tx(listed_drafts, tx)
        new = self.new_jobs(listed_drafts)
        jobs = self._store_of(tx).enqueue(new) if new else []
        tell_of_enqueued(jobs)
        return jobs

    def new_jobs(self, drafts: Sequence[Draft]) -> list[NewJob]:
        now = self.clock.now()
        ids = self.ids.new_many(len(drafts))
        return [new_job(draft, JobId(job_id), now) for draft, job_id in zip(drafts, ids, strict=True)]

    # -- look --------------------------------------------------------------------------------------------------------

    def get(self, job: JobLike) -> Job | None:
        """The job as it is now. None: there is no such job."""
        return self.store.get(job_id_of(job))

    def jobs(self, *, limit: int | None = None, **filters: Any) -> Iterator[Job]:
        """Jobs that fit all filters, lazily, in pages: newest first; with state="queued" and a queue, in queue order.

        Filters: state, queue, kind, owner, tag, business_key, idempotency_key, since, until (aware datetimes, compared
        with the time of creation). One that is None means any. A kind's name stands for its aliases too.
        """
        from perdure.verbs.find import job_filter

        wanted = job_filter(filters)
        limit = checked_limit(limit)
        return jobs_of_all([self._pages_of_jobs(one, limit) for one in self.under_all_names(wanted)], wanted, limit)

    def _pages_of_jobs(self, wanted: JobFilter, limit: int | None) -> Iterator[Job]:
        return pages(lambda spot, size: self.store.jobs(wanted, spot, size), limit)

    def under_all_names(self, wanted: W) -> list[W]:
        """This filter for each name that its kind has had."""
        return [wanted._replace(kind=name) for name in self.kinds.meant_by(wanted.kind)]

    def runs(self, job: JobLike | None = None, *, limit: int | None = None, **filters: Any) -> Iterator[Run]:
        """Attempts, newest first: of one job, or of all that fit the filters kind, state, owner, since, until."""
        from perdure.verbs.find import run_filter

        wanted = run_filter(None if job is None else job_id_of(job), filters)
        limit = checked_limit(limit)
        return runs_of_all([self._pages_of_runs(one, limit) for one in self.under_all_names(wanted)], limit)

    def _pages_of_runs(self, wanted: RunFilter, limit: int | None) -> Iterator[Run]:
        return pages(lambda spot, size: self.store.runs(wanted, spot, size), limit)

    def logs(self, job: JobLike) -> Iterator[LogLine]:
        """The log lines captured from all runs of a job, in the order they were written."""
        job_id = job_id_of(job)

        def read(last: LogLine | None, size: int) -> tuple[list[LogLine], LogLine | None]:
            lines = self.store.log(job_id, last, size)
            return lines, lines[-1] if len(lines) == size else None

        return pages(read, None)

    def explain(self, job: JobLike) -> Explanation:
        """Why the job is where it is, and what would move it on."""
        from perdure.ops.explain import explain

        return explain(self.store, self.existing(job), self.clock.now())

    def wait(self, job: JobLike, timeout: float | None = None) -> Job:
        """Wait until the job has ended, following its retries, and return it. WaitTimeout: it has not; it goes on."""
        current = self.existing(job)
        for pause in pauses(timeout, self.clock.boottime):
            current = self.newest(current)
            if current.is_final:
                return current
            self.clock.wait(pause)
        if (current := self.newest(current)).is_final:
            return current
        raise gave_up(current, timeout)

    async def await_(self, job: JobLike, timeout: float | None = None) -> Job:
        return await self.aio.wait(job, timeout)

    def existing(self, job: JobLike, tx: Any = None) -> Job:
        from perdure.store.rows import not_found

        found = self._store_of(tx).get(job_id_of(job))
        if found is None:
            raise not_found(job_id_of(job))
        return found

    def newest(self, job: Job) -> Job:
        """The job as it is now, or the one that goes on with its work."""
        current = self.existing(job)
        while current.successor is not None:
            current = self.existing(current.successor)
        return current

    # -- decide ------------------------------------------------------------------------------------------------------

    def cancel(self, job: JobLike, *, expect_version: int | None = None, tx: Any = None) -> Job:
        """End a waiting job as cancelled; ask a running one to stop. Cancelling twice changes nothing."""
        return self._change(job, Verb.CANCEL, transitions.cancel, expect_version, tx)

    def pause(self, job: JobLike, *, expect_version: int | None = None, tx: Any = None) -> Job:
        """Set a waiting job aside until it is resumed."""
        return self._change(job, Verb.PAUSE, transitions.pause, expect_version, tx)

    def resume(self, job: JobLike, *, expect_version: int | None = None, tx: Any = None) -> Job:
        """Let a paused or parked job go on."""
        return self._change(job, Verb.RESUME, transitions.resume, expect_version, tx)

    def retry(self, job: JobLike, *, as_new: bool = False, tx: Any = None) -> Job:
        """Run a failed or cancelled job again, as a new life of it; with `as_new`, any ended job, as a new one."""
        if as_new:
            new_id = JobId(self.ids.new())
            again = self._store_of(tx).retry_as_new(job_id_of(job), new_id, self.clock.now())
            return self._told(Verb.RETRY, again, tx, retry_of=str(again.retry_of))
        return self._by_hand(Verb.RETRY, job, lambda: self._store_of(tx).retry(job_id_of(job), self.clock.now()), tx)

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
        """Give a waiting job another place among those of its queue and priority."""
        from perdure.store.rows import Place

        if to is not None and to not in get_args(End):
            raise InvalidOption(not_among("to", to, get_args(End)))
        if sum(wish is not None for wish in (before, after, to)) != 1:
            raise InvalidOption('say where to move to with one of before=, after=, to="front" or to="back"')
        place = Place(
            None if before is None else job_id_of(before), None if after is None else job_id_of(after), to == "front"
        )
        job_id, now = job_id_of(job), self.clock.now()
        return self._by_hand(Verb.MOVE, job, lambda: self._store_of(tx).move(job_id, place, now, expect_version), tx)

    def set_priority(self, job: JobLike, priority: int, *, expect_version: int | None = None, tx: Any = None) -> Job:
        """Give a waiting job another priority; it goes to the back of it."""
        rank = rank_of(Options(priority=priority).priority)
        job_id, now = job_id_of(job), self.clock.now()

        def change() -> Job:
            return self._store_of(tx).set_priority(job_id, rank, now, expect_version)

        return self._by_hand(Verb.SET_PRIORITY, job, change, tx)

    def supersede(self, job: JobLike, replacement: Draft, *, tx: Any = None) -> Job:
        """Put another job in this one's place; answers the superseded job, whose `superseded_by` names the new one.

        A waiting job is cancelled at once. A running one is asked to stop, and the replacement waits for its end. The
        business key goes over, unless the replacement brings its own.
        """
        tx = common_tx([replacement], tx)
        now = self.clock.now()
        new = new_job(replacement, JobId(self.ids.new()), now)
        old = self._store_of(tx).supersede(job_id_of(job), new, now)
        is_repeat = old.row.superseded_by != new.id
        return old if is_repeat else self._told(Verb.SUPERSEDE, old, tx, superseded_by=str(old.superseded_by))

    def edit(self, job: JobLike, *, tx: Any = None, **changes: Any) -> Job:
        """Change a job that was never claimed: payload, params, tags, principal, queue, run_at, delay, timeout."""
        from perdure.verbs.enqueue import edited

        current = self.existing(job, tx)
        edit = edited(self, current, changes, self._store_of(tx))
        return current if edit is None else self._told(Verb.EDIT, self._store_of(tx).edit(edit, current.version), tx)

    def delete(self, job: JobLike, *, tx: Any = None) -> Job:
        """Remove an ended job with its runs; answers it as it was. Its idempotency key stays taken."""
        return self._told("delete", self._store_of(tx).delete(job_id_of(job)), tx)

    def _change(self, job: JobLike, verb: Verb, decide: Any, expect_version: int | None, tx: Any) -> Job:
        job_id, now = job_id_of(job), self.clock.now()
        return self._by_hand(
            verb, job, lambda: self._store_of(tx).change(job_id, verb, decide, now, expect_version), tx
        )

    def _by_hand(self, verb: Verb, job: JobLike, change: Callable[[], Job], tx: Any) -> Job:
        """Make a change that may find nothing to do, and log it if it did something and anybody listens."""
        if not hears_of_verbs():
            return change()
        before = self._store_of(tx).get(job_id_of(job))
        after = change()
        return after if before is not None and after.version == before.version else self._told(verb, after, tx)

    def _told(self, verb: str, job: Job, tx: Any, **facts: str) -> Job:
        if hears_of_verbs():
            tell_of_verb(verb, job, in_transaction=tx is not None or self.store.in_transaction, **facts)
        return job

    # -- decide for many ---------------------------------------------------------------------------------------------

    def cancel_all(self, *, limit: int | None = None, **filters: Any) -> int:
        """Cancel every live job that fits the filters, at most `limit`; answers how many. Without filters: all jobs.

        The filters are those of `jobs`; one that is given and None is refused, here and in the other bulk verbs.
        """
        from perdure.verbs.find import change_all

        return change_all(self, Verb.CANCEL, filters, limit)

    def pause_all(self, *, limit: int | None = None, **filters: Any) -> int:
        """Pause every waiting job that fits the filters, at most `limit`; answers how many."""
        from perdure.verbs.find import change_all

        return change_all(self, Verb.PAUSE, filters, limit)

    def resume_all(self, *, limit: int | None = None, **filters: Any) -> int:
        """Resume every paused or parked job that fits the filters, at most `limit`; answers how many."""
        from perdure.verbs.find import change_all

        return change_all(self, Verb.RESUME, filters, limit)

    def retry_all(self, *, limit: int | None = None, **filters: Any) -> int:
        """Retry every failed job that fits the filters (state="cancelled": every cancelled one), at most `limit`."""
        from perdure.verbs.find import change_all

        return change_all(self, Verb.RETRY, filters, limit)

    # -- the rest ----------------------------------------------------------------------------------------------------

    @lazy
    def queues(self) -> Queues:
        """Whole queues: list, pause, resume."""
        from perdure.verbs.named import Queues

        return Queues(self)

    @lazy
    def aio(self) -> AsyncPerdure:
        """The same verbs as coroutines."""
        from perdure.aio import AsyncPerdure

        return AsyncPerdure(self)

    def lock(self, name: str, *, ttl: float) -> Lock:
        """A named lease, held by at most one at a time, in any process: `with app.lock("report", ttl=60): …`."""
        from perdure.verbs.named import Lock

        return Lock(self, check_name(name, "the lock's name", 255), ttl)

    def worker(
        self,
        queues: Sequence[str] | Mapping[str, int] | None = None,
        concurrency: int | None = None,
        **options: Unpack[WorkerFields],
    ) -> Worker:
        """Something that runs jobs: `app.worker().run()`, or `with app.worker().running(): …` beside other code.

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
                "inside app.testing() there is no worker, since its clock stands still; run what is due with t.drain()",
                code="testing_worker",
            )

    def parts(self) -> Parts:
        """What jobs of this app run with: in a worker, in its child processes, in `testing()`. Opens nothing."""
        from perdure.worker.options import Parts

        self.import_kinds()
        return Parts(self.store, self.kinds, self.clock, self.ids, self._new_job, self.middlewares)

    def import_kinds(self) -> None:
        """Import the modules of `imports=`, which declare this app's kinds."""
        for name in self.config.imports:
            try:
                import_module(name)
            except Exception as error:
                raise ConfigError(
                    f"the module {shown(name)} of imports= cannot be imported ({type(error).__name__}: {error})",
                    code="imports_failed",
                ) from error

    def _new_job(self, draft: Draft) -> NewJob:
        now = self.clock.now()  # before the id, whose time since= compares with created_at
        return new_job(draft, JobId(self.ids.new()), now)

    def middleware(self, function: M) -> M:
        """`@app.middleware` above a context manager made of a run's context: every handler of this app runs inside it.

        The first one declared is the outermost. An asynchronous one wraps coroutine handlers only.
        """
        if not callable(function):
            raise InvalidOption(f"a middleware is a function of the job's context, not {shown(function)}")
        self.middlewares = (*self.middlewares, function)
        return function

    def transaction(self) -> AbstractContextManager[Any]:
        """A transaction on the app's database: `tx.execute(…)` for your rows, and every call on the app joins it.

        Commits at the end of the block; an exception rolls everything back. On SQLite it keeps all other writers out,
        so keep it short.
        """
        return self.store.transaction()

    def testing(
        self, *, start: datetime | None = None, state: Mapping[str, Any] | None = None
    ) -> AbstractContextManager[Kit]:
        """`with app.testing() as t:` the app is on a temporary file, with a clock that stands still, for this process.

        Its own database is not touched, and is the app's again when the block ends, as are its clock and ids. Kinds and
        middleware declared inside stay declared: a module is imported once. `start`: the time at its beginning, now by
        default; `state`: what handlers find as `ctx.state`. See docs/testing.md.
        """
        from perdure.testing.kit import testing

        return testing(self, start, state)

    def close(self) -> None:
        """Give back what the app holds open. Using it again opens it again."""
        if "store" in self.__dict__:
            self.store.close()

    def __repr__(self) -> str:
        from perdure.store.open import without_password

        return (
            f"<Perdure {without_password(os.fspath(self._url)) if self._url is not None else 'from the environment'}>"
        )


def job_id_of(job: JobLike) -> JobId:
    """The id of whatever stands for a job."""
    if isinstance(job, Job):
        return job.row.id
    return JobId(parse_id(job))
