"""The store under test, a clock that does not move by itself, and short helpers. Given to every test.

Only the protocols of `store/protocols` are used, except in `execute` and `everything`, which read the tables if the
database is one of ours. Each rig has its own queue, kind and keys, so many tests can use one database in turn.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from typing import Any, TypedDict, Unpack

from perdure.clock import ManualClock, Micros
from perdure.ids import FlowId, IdFactory, JobId, NodeId, ReservationId, RunId
from perdure.job import transitions
from perdure.job.flow import Edge, FlowRow, FlowSort, NewFlow, OnFailure
from perdure.job.model import (
    NO_STATS,
    Claim,
    Failure,
    JobRow,
    LiveJob,
    NewJob,
    Plan,
    RunStats,
    plan_json,
    rank_of,
)
from perdure.job.reports import Finish, Report
from perdure.job.states import WAITING, State, Suspicion, Verb
from perdure.job.views import Job, Run
from perdure.listing import pages
from perdure.store import migrate
from perdure.store.mysql import statements as mysql
from perdure.store.open import open_store
from perdure.store.protocols import Decide, Locked, Store
from perdure.store.rows import (
    Claimer,
    Finished,
    JobFilter,
    Kinds,
    Lane,
    NewNode,
    NewTemplate,
    Process,
    ReservationRow,
    RunFilter,
    Turn,
    Until,
)

Opener = Callable[[str], Store]
Dump = dict[str, list[tuple[object, ...]]]

FULL = os.environ.get("PERDURE_TEST_SIZE") == "full"
"""With every number at full size; else as fits between two changes of the code."""
LEASE_US = 60_000_000
START = datetime(2030, 1, 1, tzinfo=UTC)
ANY: Kinds | None = None
"""A node that takes whatever there is."""
NONE: Kinds = {}
"""A node that knows no kind at all."""

BROKEN = Failure("ValueError", "it broke", "Traceback: it broke")
HOPELESS = Failure("ValueError", "it will never work", permanent=True)
CRASHED = Failure("NodeLost", "the node died")

_TABLES = {
    **dict.fromkeys(("sqlite", "mysql", "mariadb"), "perdure_{}"),
    **dict.fromkeys(("postgresql", "postgres"), "perdure.{}"),
}
_NOT_COMPARED = "schema_version"


class NotSupported(Exception):
    """The store, or this installation, does not have what a test needs."""


class Wish(TypedDict, total=False):
    """The options of a new job; all have defaults."""

    kind: str
    kind_version: int
    queue: str
    payload: str
    secrets: str | None
    params: str | None
    principal: str | None
    owner: str
    priority: int
    delay_s: float
    max_attempts: int
    as_new_job: bool
    timeout_ms: int | None
    idempotency_key: str
    business_key: str
    conflict: str
    fingerprint: str
    names: tuple[str, ...]
    tags: tuple[str, ...]
    limit_key: str
    after: tuple[Edge, ...]
    flow_id: FlowId | None
    sequence: int | None
    refs: str | None


class FlowWish(TypedDict, total=False):
    """The options of a new flow; all have defaults."""

    key: str | None
    parent_id: FlowId | None
    filled_by: JobId | None
    on_failure: OnFailure
    at_once: int
    open: bool


class Rig:
    """A store to be tested. `clock` moves only when the test moves it."""

    def __init__(self, url: str, opener: Opener = open_store) -> None:
        self.url = url
        self.opener = opener
        self.store = opener(url)
        self.clock = ManualClock(START)
        self.ids = IdFactory()
        self.mark = self.ids.new()[-5:].hex()
        self.queue = f"queue-{self.mark}"
        self.kind = f"kind-{self.mark}"
        self._node: NodeId | None = None

    @property
    def now(self) -> Micros:
        return self.clock.now()

    def key(self, name: str) -> str:
        """A key no other rig uses."""
        return f"{name}-{self.mark}"

    # -- jobs --------------------------------------------------------------------------------------------------------

    def new(self, **wish: Unpack[Wish]) -> NewJob:
        """A job as the app would make it."""
        now = self.now
        run_at = Micros(now + round(wish.get("delay_s", 0) * 1_000_000))
        plan = self._plan(wish)
        held = State.QUEUED if plan.limit_key is None else State.HELD
        return NewJob(
            id=JobId(self.ids.new()),
            plan=plan,
            payload=wish.get("payload", '{"n":1}'),
            secrets=wish.get("secrets"),
            created_at=now,
            run_at=run_at,
            state=(State.SCHEDULED if run_at > now else held).value,
            idempotency_key=wish.get("idempotency_key"),
            business_key=wish.get("business_key"),
            fingerprint=wish.get("fingerprint", "same") if wish.get("idempotency_key") is not None else None,
            after=wish.get("after", ()),
            flow_id=wish.get("flow_id"),
            sequence=wish.get("sequence"),
            refs=wish.get("refs"),
        )

    def _plan(self, wish: Wish) -> Plan:
        options = {"as_new_job": wish.get("as_new_job", False), "timeout_ms": wish.get("timeout_ms")}
        kind = wish.get("kind", self.kind)
        return Plan(
            kind=kind,
            kind_version=wish.get("kind_version", 1),
            owner=wish.get("owner", "contract"),
            queue=wish.get("queue", self.queue),
            params=wish.get("params"),
            options=json.dumps(options),
            principal=wish.get("principal"),
            rank=rank_of(wish.get("priority", 0)),
            max_attempts=wish.get("max_attempts", 3),
            as_new_job=int(wish.get("as_new_job", False)),
            timeout_ms=wish.get("timeout_ms"),
            limit_key=wish.get("limit_key"),
            tags=wish.get("tags", ()),
            conflict=wish.get("conflict", "raise"),
            names=wish.get("names", (kind,)),
        )

    def new_template(self, name: str, payload: str = '{"n":1}', secrets: str | None = None) -> NewTemplate:
        """A template, or a version of it, as the app would make it."""
        plan = plan_json(self._plan({}))
        return NewTemplate(self.ids.new(), name, self.kind, 1, payload, secrets, plan, "for the suite")

    def cold(self, new: NewJob) -> JobRow:
        """The cold row of this job."""
        known = {**new.plan._asdict(), **new._asdict(), "chain_attempt": 1}
        return JobRow._make(known.get(column) for column in JobRow._fields)

    def hot(self, new: NewJob) -> LiveJob:
        """The hot row of this job, except its position."""
        start = {
            "position": 0,
            "attempts": 0,
            "crashes": 0,
            "life": 1,
            "paused": 0,
            "cancel_requested": 0,
            "version": 1,
        }
        times = {"queued_at": new.created_at, "updated_at": new.created_at}
        known = {**new.plan._asdict(), **new._asdict(), "job_id": new.id, **start, **times}
        return LiveJob._make(known.get(column) for column in LiveJob._fields)

    def enqueue(self, **wish: Unpack[Wish]) -> JobId:
        """Enqueue one job, which must be inserted."""
        job = self.store.enqueue([self.new(**wish)])[0]
        assert not job.deduplicated
        return job.row.id

    def enqueue_many(self, count: int, **wish: Unpack[Wish]) -> list[JobId]:
        """Enqueue `count` jobs in one call."""
        return [job.row.id for job in self.store.enqueue([self.new(**wish) for _ in range(count)])]

    def job(self, job_id: JobId) -> Job:
        """The job as it is now; it must exist."""
        job = self.store.get(job_id)
        assert job is not None, "the job is gone"
        return job

    def live(self, job_id: JobId) -> LiveJob:
        """The hot row; it must exist."""
        live = self.store.live(job_id)
        assert live is not None, f"the job is not live but {self.job(job_id).state}"
        return live

    def row(self, job_id: JobId) -> JobRow:
        """The cold row; it must exist."""
        row = self.store.row(job_id)
        assert row is not None, "the job is gone"
        return row

    def jobs(self, wanted: JobFilter, size: int = 100) -> list[JobId]:
        """The first `size` that fit."""
        return [job.row.id for job in self.listed(wanted, size)]

    def listed(self, wanted: JobFilter, size: int = 100) -> list[Job]:
        return list(pages(lambda spot, page: self.store.jobs(wanted, spot, page), size))

    def states(self, job_ids: Iterable[JobId]) -> list[str]:
        """Of these jobs, in this order; they must exist. Many are read faster so than each by itself."""
        states = {job.row.id: job.state for job in self.listed(JobFilter(), 10_000)}
        return [states[job_id] for job_id in job_ids]

    def in_order(self, queue: str | None = None) -> list[JobId]:
        """The queued jobs of a queue, in the order of claims."""
        return self.jobs(JobFilter(state="queued", queue=queue or self.queue), 1_000)

    def runs(self, job_id: JobId) -> list[Run]:
        """The attempts of a job, newest first."""
        return self.all_runs(RunFilter(job_id=job_id))

    def all_runs(self, wanted: RunFilter, size: int = 1_000) -> list[Run]:
        """The first `size` that fit, newest first."""
        return list(pages(lambda spot, page: self.store.runs(wanted, spot, page), size))

    # -- flows -------------------------------------------------------------------------------------------------------

    def new_flow(self, **wish: Unpack[FlowWish]) -> NewFlow:
        """A flow as the app would make it."""
        sort: FlowSort = "batch" if wish.get("open") else "workflow"
        return NewFlow(FlowId(self.ids.new()), sort, "nightly", "contract", self.now)._replace(**wish)

    def members(self, flow: NewFlow, count: int, first: int = 0, **wish: Unpack[Wish]) -> list[NewJob]:
        """So many new jobs of this flow, numbered from `first`."""
        new = [self.new(**wish) for _ in range(count)]
        return [job._replace(flow_id=flow.id, sequence=first + number) for number, job in enumerate(new)]

    def start_flow(self, count: int, **wish: Unpack[FlowWish]) -> tuple[FlowId, list[JobId]]:
        """A flow with so many jobs, each of which may start."""
        flow = self.new_flow(**wish)
        jobs = self.members(flow, count, max_attempts=1)
        self.store.start_flows([flow], jobs)
        return flow.id, [job.id for job in jobs]

    def flow(self, flow_id: FlowId) -> FlowRow:
        """The flow as it is now; it must exist."""
        flow = self.store.flow(flow_id)
        assert flow is not None, "the flow is gone"
        return flow

    def settle(self) -> int:
        """Work the list off, as workers do, one portion a turn; returns in how many turns."""
        turns = 0
        while self.store.glance(self.node, ANY).todo:
            self.store.turn(Turn(settle=True), self.now)
            turns += 1
            assert turns < 1_000, "the work list does not become shorter"
        return turns

    # -- verbs -------------------------------------------------------------------------------------------------------

    def register(self) -> NodeId:
        """A new, registered node."""
        node_id = NodeId(self.ids.new())
        self.store.register(NewNode(node_id, self.now, Process(host="here", pid=1)))
        return node_id

    @property
    def node(self) -> NodeId:
        """The node that claims if a test does not care which."""
        if self._node is None:
            self._node = self.register()
        return self._node

    def claimer(
        self,
        room: int,
        node: NodeId | None = None,
        kinds: Kinds | None = ANY,
        *,
        company: Suspicion = Suspicion.NONE,
        max_crashes: int = 3,
    ) -> Claimer:
        run_ids = [RunId(run_id) for run_id in self.ids.new_many(room)]
        return Claimer(node or self.node, kinds, run_ids, LEASE_US, company, max_crashes)

    def claim(
        self,
        room: int = 1,
        *,
        queue: str | None = None,
        node: NodeId | None = None,
        kinds: Kinds | None = ANY,
        company: Suspicion = Suspicion.NONE,
        max_crashes: int = 3,
    ) -> list[Claim]:
        """What a node gets that claims from one queue."""
        claimer = self.claimer(room, node, kinds, company=company, max_crashes=max_crashes)
        return self.store.claim([Lane(queue or self.queue, room)], claimer, self.now)

    def claim_one(self, *, node: NodeId | None = None) -> Claim:
        """The job at the head of the rig's queue; there must be one."""
        claims = self.claim(1, node=node)
        assert len(claims) == 1, "nothing could be claimed"
        return claims[0]

    def start(self, **wish: Unpack[Wish]) -> Claim:
        """A running job. The queue must be empty except for it."""
        job_id = self.enqueue(**wish)
        claim = self.claim_one()
        assert claim.job_id == job_id
        return claim

    def finish(self, claim: Claim, report: Report, stats: RunStats = NO_STATS) -> Finished:
        """Report for one run."""
        return self.store.finish([self.report(claim, report, stats)], self.now)[0]

    def report(self, claim: Claim, report: Report, stats: RunStats = NO_STATS) -> Finish:
        return Finish(claim.live, report, JobId(self.ids.new()), stats)

    def crashed(self, count: int, times: int = 1, **wish: Unpack[Wish]) -> list[JobId]:
        """`count` queued jobs that have crashed `times` times. The queue must be empty except for them."""
        ids = self.enqueue_many(count, **wish)
        for _ in range(times):
            node = self.register()
            claims = self.claim(count, node=node, queue=wish.get("queue"), max_crashes=99)
            while len(claims) < count:  # suspects, each by itself
                claims += self.claim(1, node=node, queue=wish.get("queue"), max_crashes=99)
            self.crash(node)
        return ids

    def suspects(self, count: int, **wish: Unpack[Wish]) -> list[JobId]:
        """`count` queued jobs that have crashed twice. The queue must be empty except for them."""
        return self.crashed(count, 2, **wish)

    def change(self, job_id: JobId, verb: Verb, decide: Decide, expect_version: int | None = None) -> Job:
        return self.store.change(job_id, verb, decide, self.now, expect_version)

    def cancel(self, job_id: JobId) -> Job:
        return self.change(job_id, Verb.CANCEL, transitions.cancel)

    def pause(self, job_id: JobId) -> Job:
        return self.change(job_id, Verb.PAUSE, transitions.pause)

    def resume(self, job_id: JobId) -> Job:
        return self.change(job_id, Verb.RESUME, transitions.resume)

    def rescue(self, node: NodeId, *, room: int = 100, max_crashes: int = 3) -> int:
        """Rescue the jobs of the node."""
        next_ids = [JobId(job_id) for job_id in self.ids.new_many(room)]
        return len(self.store.rescue(node, CRASHED, max_crashes, next_ids, self.now))

    def crash(self, node: NodeId, *, max_crashes: int = 3) -> int:
        """Declare the node dead and rescue its jobs."""
        assert self.store.stop(node, "crash", self.now)
        return self.rescue(node, max_crashes=max_crashes)

    def reservation(self, queue: str | None = None, lasts_s: float = 10) -> ReservationRow:
        """A reservation that nobody has made yet."""
        made_by = (ReservationId(self.ids.new()), queue or self.queue, "ann", "active", self.now, None)
        return ReservationRow(*made_by, *self.until(lasts_s), host="here", pid=1, boot_id="boot")

    def until(self, lasts_s: float = 10) -> Until:
        """From now on, by the rig's clock."""
        lasts_us = round(lasts_s * 1_000_000)
        return Until(Micros(self.now + lasts_us), round(self.clock.boottime() * 1_000_000) + lasts_us, lasts_us)

    def reserve(self, queue: str | None = None, lasts_s: float = 10) -> ReservationRow:
        """A queue that someone holds; nobody else may."""
        new = self.reservation(queue, lasts_s)
        assert reserve(self.store, new) is None
        return new

    # -- behind the protocols ----------------------------------------------------------------------------------------

    @property
    def scheme(self) -> str:
        return self.url.split("://", 1)[0].lower() if "://" in self.url else "sqlite"

    def table(self, name: str) -> str:
        """The name of the table in this database."""
        runner = getattr(self.store, "runner", None)
        form: str | None = getattr(runner, "tables", _TABLES.get(self.scheme))
        if runner is None or form is None:
            raise NotSupported("the suite cannot look into the tables of this store")
        return form.format(name)

    def id_of(self, digits: str) -> str:
        """An id for a test's own SQL, from its hexadecimal digits."""
        return f"'{digits}'" if self.scheme.startswith("postgres") else f"x'{digits}'"

    def execute(self, sql: str, **values: str | int) -> list[tuple[object, ...]]:
        """Run a test's own SQL in a transaction; `{x}` is the table x, `:name` one of the values, as a literal."""
        named = re.sub(r"\{(\w+)\}", lambda match: self.table(match[1]), sql)
        if self.scheme in ("mysql", "mariadb"):
            named = mysql.written(named)
        written = re.sub(r":(\w+)", lambda match: _literal(values[match[1]]), named)
        with self.store.transaction() as tx:
            cursor = tx.execute(written)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description else []

    def tables(self) -> Dump:
        """Every row of every table."""
        tables = {name: self.table(name) for name in _table_names()}
        with self.store.transaction() as tx:
            found = {name: tx.execute(f"SELECT * FROM {tables[name]}").fetchall() for name in _filled(tx, tables)}  # noqa: S608
        return {name: sorted(map(tuple, found.get(name, ())), key=repr) for name in tables}

    def everything(self) -> Dump:
        """All data, for comparison: a difference means that something was written. Of a foreign store, all it shows."""
        try:
            return self.tables()
        except NotSupported:
            jobs = self.listed(JobFilter(), 10_000)
            return {
                "jobs": [job.row for job in jobs],
                "rows": [row for job in jobs if (row := self.store.row(job.row.id)) is not None],
                "live": [live for job in jobs if (live := self.store.live(job.row.id)) is not None],
                "runs": [run.row for run in self.all_runs(RunFilter(), 10_000)],
                "queues": list(self.store.queues()),
                "nodes": list(self.store.nodes(10_000)),
            }

    # -- the end -----------------------------------------------------------------------------------------------------

    def clear(self) -> None:
        """Clean the database for the next test: empty if it is one of ours, else without live jobs."""
        try:
            tables = {name: self.table(name) for name in _table_names()}
        except NotSupported:
            self._end_all()
            return
        with self.store.transaction() as tx:
            for name in _filled(tx, tables):
                tx.execute(f"DELETE FROM {tables[name]}")  # noqa: S608

    def _end_all(self) -> None:
        for job in self._listed(State.RUNNING):
            assert job.row.node_id is not None
            self.store.stop(job.row.node_id, "crash", self.now)
            self.rescue(job.row.node_id, room=1_000, max_crashes=1)
        for state in sorted(WAITING):
            for job in self._listed(state):
                self.cancel(job.row.id)

    def _listed(self, state: State) -> list[Job]:
        return self.listed(JobFilter(state=state), 10_000)

    def close(self) -> None:
        self.store.close()


def reserve(store: Store, new: ReservationRow) -> ReservationRow | None:
    """As `app.reserve` does: whoever has what it needs, if only a vacuum of PostgreSQL, has it for a moment."""
    for _ in range(PATIENCE):
        with suppress(Locked):
            return store.reserve(new)
    return store.reserve(new)


PATIENCE = 100


def _literal(value: str | int) -> str:
    return str(value) if isinstance(value, int) else "'" + value.replace("'", "''") + "'"


@cache
def _table_names() -> Sequence[str]:
    texts = "".join(step.text for step in migrate.migrations_of("sqlite"))
    return [name for name in re.findall(r"CREATE TABLE \{(\w+)\}", texts) if name != _NOT_COMPARED]


def _filled(tx: Any, tables: Mapping[str, str]) -> list[str]:
    """Which tables have rows. Few have: to ask for all at once takes less than to read or empty each."""
    asked = (f"SELECT '{name}' FROM (SELECT 1 FROM {table} LIMIT 1) AS {name}_row" for name, table in tables.items())  # noqa: S608
    return [name for (name,) in tx.execute("\nUNION ALL\n".join(asked)).fetchall()]
