"""`SqlStore`: every protocol of `store/protocols`, one line per operation of this folder. Made by `open`.

The runner knows the database, the operations know the statements; each signature is written once, at its operation.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy
from functools import partial, update_wrapper
from inspect import signature
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, runtime_checkable

from perdure.clock import Clock, Micros, SystemClock
from perdure.errors import ConfigError, PerdureError, StoreError
from perdure.job.model import NewJob
from perdure.job.views import Job
from perdure.store import admin, control, read, retention, todo, whole_flow
from perdure.store import claim as _claim
from perdure.store import copy as _copy
from perdure.store import enqueue as _enqueue
from perdure.store import flow as _flow
from perdure.store import follow as _follow
from perdure.store import limit as _limit
from perdure.store import repair as _repair
from perdure.store import reservation as _reservation
from perdure.store import rule as _rule
from perdure.store import schedule as _schedule
from perdure.store import template as _template
from perdure.store import turn as _turn
from perdure.store.engine import Make, Op, Serialization
from perdure.store.migrate import Applied
from perdure.store.protocols import Bell
from perdure.store.rows import Fact, Verdict
from perdure.store.transaction import is_async
from perdure.store.write import set_aside

P = ParamSpec("P")
T = TypeVar("T")


class Runner(Protocol):
    """Runs whole operations in transactions on one database."""

    def write(self, make: Make[T], *, brief: bool = False) -> T:
        """Run the operation in a transaction and return when it is durable. On an error nothing of it remains.

        `brief`: wait only a moment for locks of others, then raise `Locked` inside the operation. No effect with a
        single writer, or inside a joined transaction.
        """
        ...

    async def awrite(self, make: Make[T]) -> T:
        """The same for coroutines."""
        ...

    def write_within(self, tx: object, make: Make[T]) -> T:
        """Run the operation inside the caller's transaction, whose commit makes it durable."""
        ...

    async def awrite_within(self, tx: object, make: Make[T]) -> T:
        """The same on an asynchronous connection (`is_async`)."""
        ...

    def read(self, make: Make[T]) -> T:
        """Run a reading operation on one consistent snapshot. It cannot write."""
        ...

    def look(self, make: Make[T]) -> T:
        """The same where each statement may see another snapshot: on a server this saves two statements of three."""
        ...

    def transaction(self, *, join: bool = False) -> AbstractContextManager[object]: ...

    def bell(self, queues: Sequence[str] | None) -> Bell: ...

    def upgrade(self) -> str: ...

    def close(self) -> None: ...


@runtime_checkable
class Checked(Protocol):
    """A runner that can look at a database which cannot be used as it is."""

    def applied(self) -> list[Applied]: ...

    def facts(self) -> list[Fact]: ...


@runtime_checkable
class FileRunner(Protocol):
    """A runner whose database is one file."""

    def require_current(self) -> None: ...

    def back_up(self, target: Path) -> None: ...

    def vacuum(self) -> None: ...


class Within:
    """The runner of a store that is bound to the user's transaction: every operation is a part of it."""

    def __init__(self, runner: Runner, tx: object) -> None:
        self._runner = runner
        self._tx = tx

    def write(self, make: Make[T], *, brief: bool = False) -> T:  # noqa: ARG002 - the user's transaction may wait
        return self._runner.write_within(self._tx, make)

    async def awrite(self, make: Make[T]) -> T:
        """A synchronous connection belongs to the caller's thread, so it is used there."""
        if is_async(self._tx):
            return await self._runner.awrite_within(self._tx, make)
        return self.write(make)

    def read(self, make: Make[T]) -> T:
        return self.write(make)

    def look(self, make: Make[T]) -> T:
        return self.read(make)

    def joined(self) -> object:
        return self._tx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


# -- from operations to methods --------------------------------------------------------------------------------------


def writes(operation: Callable[P, Op[T | PerdureError]]) -> Callable[Concatenate[SqlStore, P], T]:
    """A method that runs the operation in its own transaction, durable when it returns."""

    def method(store: SqlStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _answered(store.runner.write(partial(operation, *args, **kwargs)))

    return update_wrapper(method, operation)


def briefly(operation: Callable[P, Op[T]]) -> Callable[Concatenate[SqlStore, P], T]:
    """The same for workers, which must not wait long for someone's open transaction."""

    def method(store: SqlStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return store.runner.write(partial(operation, *args, **kwargs), brief=True)

    return update_wrapper(method, operation)


def awrites(operation: Callable[P, Op[T | PerdureError]]) -> Callable[Concatenate[SqlStore, P], Awaitable[T]]:
    """Like `writes`, for coroutines."""

    async def method(store: SqlStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return _answered(await store.runner.awrite(partial(operation, *args, **kwargs)))

    return update_wrapper(method, operation)


def reads(operation: Callable[P, Op[T]]) -> Callable[Concatenate[SqlStore, P], T]:
    """A method that runs the operation on one consistent snapshot."""

    def method(store: SqlStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return store.runner.read(partial(operation, *args, **kwargs))

    return update_wrapper(method, operation)


def looks(operation: Callable[P, Op[T]]) -> Callable[Concatenate[SqlStore, P], T]:
    """The same without the snapshot: for what workers ask all the time, of one statement, or where an answer that is
    partly older does no harm."""

    def method(store: SqlStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return store.runner.look(partial(operation, *args, **kwargs))

    return update_wrapper(method, operation)


def past_damage(method: Callable[Concatenate[SqlStore, P], T]) -> Callable[Concatenate[SqlStore, P], T]:
    """If a row that another program has damaged stops the method, park such rows and run the method again.

    Rows are checked only after an error: rows that Perdure wrote need no check.
    """

    def again(store: SqlStore, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return method(store, *args, **kwargs)
        except (TypeError, ValueError, ArithmeticError, StoreError) as error:
            now: Micros = signature(method).bind(*args, **kwargs).arguments["now"]
            parked = _may_be_damage(error, store) and store.runner.write(partial(set_aside, now))
            if not parked:
                raise
            _warn_of_damage(parked)
            return method(store, *args, **kwargs)

    return update_wrapper(again, method)


def _may_be_damage(error: Exception, store: SqlStore) -> bool:
    if isinstance(error, Serialization):
        return store.single_writer  # then nobody can have changed the row meanwhile, so it is damaged
    return not isinstance(error, StoreError) or error.code == "value_invalid"


def _warn_of_damage(parked: int) -> None:
    import logging  # not at the top: `perdure health` needs none of it

    logging.getLogger("perdure.store").warning(
        "jobs parked because another program has damaged their rows: %d; see perdure doctor", parked
    )


def _answered(result: T | PerdureError) -> T:
    """An operation returns a refusal as a value; here, outside the transaction, it is raised."""
    if isinstance(result, PerdureError):
        raise result
    return result


class SqlStore:
    """A store in an SQL database."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    def within(self, tx: object) -> Self:
        bound = copy(self)
        bound.runner = Within(self.runner, tx)
        return bound

    # JobOperations, ControlOperations, OrderOperations
    def enqueue(self, new: Sequence[NewJob]) -> list[Job]:
        return _answered(self.runner.write(_enqueue.starting(new)))

    async def aenqueue(self, new: Sequence[NewJob]) -> list[Job]:
        return _answered(await self.runner.awrite(_enqueue.starting(new)))

    edit = writes(control.edit)
    delete = writes(control.delete)
    change = writes(control.change)
    retry = writes(control.retry)
    retry_as_new = writes(control.retry_as_new)
    supersede = writes(control.supersede)
    move = writes(control.move)
    set_priority = writes(control.set_priority)

    # ClaimOperations, FinishOperations, RescueOperations, TurnOperations
    claim = past_damage(writes(_claim.claim))
    finish = past_damage(briefly(_turn.finish))
    afinish = awrites(_turn.finish)
    promote = past_damage(writes(_turn.promote))
    rescue = past_damage(briefly(_turn.rescue))
    rescue_flows = briefly(todo.rescue_flows)
    turn = past_damage(briefly(_turn.turn))
    glance = looks(_turn.glance)
    held_by = reads(_turn.held_by)
    overdue = looks(_turn.overdue)

    # RunOperations, LogOperations
    runs = reads(read.runs)
    append_artifacts = writes(_turn.append_artifacts)
    append_log = writes(_turn.append_log)
    log = reads(_turn.log)

    # ReadOperations, QueueOperations
    get = reads(read.get)
    row = reads(read.row)
    live = reads(read.live)
    jobs = reads(read.jobs)
    count_ahead = reads(read.count_ahead)
    waited_for = reads(read.waited_for)
    queues = reads(admin.queues)
    pause_queue = writes(admin.pause_queue)

    # LimitOperations
    declare_limits = writes(_rule.declare_limits)
    set_limit = writes(_rule.set_limit)
    reset_limit = writes(_rule.reset_limit)
    pause_limit = writes(_rule.pause_limit)
    limit_queue = writes(_rule.limit_queue)
    take_hold = writes(_limit.take_hold)
    renew_hold = writes(_limit.renew_hold)
    drop_hold = writes(_limit.drop_hold)
    limits = reads(_rule.limits)
    limit_keys = reads(_rule.limit_keys)
    key_state = reads(_rule.key_state)
    line_ahead = reads(_rule.line_ahead)

    # NodeOperations, LockOperations
    register = writes(admin.register)
    beat = writes(admin.beat)
    stop = writes(admin.stop)
    live_nodes = looks(admin.live_nodes)
    nodes_left_behind = looks(admin.nodes_left_behind)
    nodes = reads(admin.nodes)
    take_lock = writes(admin.take_lock)
    renew_lock = writes(admin.renew_lock)
    release_lock = writes(admin.release_lock)
    lock_holder = reads(admin.lock_holder)

    # ScheduleOperations
    save_schedule = writes(_schedule.save_schedule)
    schedule = reads(_schedule.schedule)
    schedule_by_id = reads(_schedule.schedule_by_id)
    schedules = reads(_schedule.schedules)
    declared_schedules = reads(_schedule.declared_schedules)
    due_schedules = reads(_schedule.due_schedules)
    schedules_in_trouble = reads(_schedule.schedules_in_trouble)
    next_trigger = looks(_schedule.next_trigger)
    fire = writes(_schedule.fire)
    take_slot = writes(_schedule.take_slot)
    note_slot = writes(_schedule.note_slot)
    slot_of = reads(_schedule.slot_of)
    slots = reads(_schedule.slots)
    missed = reads(_schedule.missed)
    pending_of = reads(_schedule.pending_of)
    declare = writes(_schedule.declare)
    # TemplateOperations
    put_template = writes(_template.put_template)
    archive_template = writes(_template.archive_template)
    rename_template = writes(_template.rename_template)
    template = reads(_template.template)
    template_by_id = reads(_template.template_by_id)
    templates = reads(_template.templates)
    template_versions = reads(_template.template_versions)
    # ReservationOperations
    reserve = briefly(_reservation.reserve)
    enter_reservation = writes(_reservation.enter)
    renew_reservation = writes(_reservation.renew)
    close_reservation = writes(_reservation.close)
    active_reservations = looks(_reservation.active)
    reservations = reads(_reservation.newest)
    start_reserved = writes(_reservation.start_job)
    # RetentionOperations
    ended = reads(retention.ended)
    remove = briefly(retention.remove)
    archive = briefly(retention.archive)
    documents = reads(retention.documents)
    archived = reads(retention.archived)
    archived_jobs = reads(retention.archived_jobs)
    remove_logs = briefly(retention.remove_logs)
    remove_records = briefly(retention.remove_records)
    old_flows = reads(retention.old_flows)
    flow_ends = reads(retention.flow_ends)
    remove_flow = briefly(retention.remove_flow)
    remove_nodes = briefly(retention.remove_nodes)
    give_back = briefly(retention.give_back)

    # FlowOperations
    start_flows = writes(_flow.start_flows)
    add_members = writes(_flow.add_members)
    seal_flow = writes(_flow.seal_flow)
    flow = reads(_flow.shown)
    flows = reads(_flow.flows)
    inner_flows = reads(_flow.inner_flows)
    flow_jobs = reads(_flow.flow_jobs)
    flow_edges = reads(_flow.flow_edges)
    sources = reads(_follow.sources)
    results = reads(_flow.results)
    change_flow = writes(whole_flow.change_flow)
    retry_flow = writes(whole_flow.retry_flow)

    # StatusQueries
    outstanding = reads(read.outstanding)
    failures = reads(read.failures)
    count_failed = reads(read.count_failed)
    stuck = reads(read.stuck)
    hindrances = reads(read.hindrances)
    durations = reads(read.durations)
    duplicates = reads(read.duplicates)
    ran = reads(read.ran)
    queue_holds = reads(read.queue_holds)
    live_kinds = reads(read.live_kinds)

    # HealthOperations
    check = reads(_repair.check)
    repair = writes(_repair.repair)

    # for `ops/copying`: no part of what other stores must have
    closure = reads(_copy.closure)
    close_for = writes(_copy.close)
    reopen = writes(_copy.reopen)
    count_rows = reads(_copy.count_rows)
    send = reads(_copy.send)
    send_job_ids = reads(_copy.send_job_ids)
    unknown_jobs = reads(_copy.unknown_jobs)
    fill = writes(_copy.fill)
    empty = writes(_copy.empty)

    def facts(self) -> list[Fact]:
        if isinstance(self.runner, Checked):
            found = self.runner.facts()
            usable = all(fact.verdict is not Verdict.PROBLEM for fact in found)
            closed = self.closure() if usable else None
            return [*found, closed.fact] if closed else found
        return [Fact("schema", f"revision {self.runner.read(admin.revision)}")]

    def applied(self) -> list[Applied]:
        """The steps of the schema that the database has recorded. Empty: none, or the store keeps no such record."""
        return self.runner.applied() if isinstance(self.runner, Checked) else []

    def require_current(self) -> None:
        if isinstance(self.runner, FileRunner):  # servers refuse by themselves on first use
            self.runner.require_current()

    def back_up(self, target: Path) -> None:
        if not isinstance(self.runner, FileRunner):
            raise ConfigError(
                "perdure db backup copies SQLite files; back up a server with its own tool (pg_dump, mariadb-dump)",
                code="backup_unsupported",
            )
        self.runner.back_up(target)

    def vacuum(self) -> None:
        if not isinstance(self.runner, FileRunner):
            raise ConfigError(
                "perdure db vacuum is for SQLite files; a server does this by itself (autovacuum, purge)",
                code="vacuum_unsupported",
            )
        self.runner.vacuum()

    # StoreLifecycle
    @property
    def single_writer(self) -> bool:
        return getattr(self.runner, "single_writer", False)  # most runners do not define it

    @property
    def look_every_s(self) -> float:
        return getattr(self.runner, "look_every_s", 1.0)  # as above

    @property
    def clock(self) -> Clock:
        return getattr(self.runner, "clock", None) or SystemClock()  # as above

    @property
    def in_transaction(self) -> bool:
        joined = getattr(self.runner, "joined", None)  # as above
        return joined is not None and joined() is not None

    def transaction(self, *, join: bool = False) -> AbstractContextManager[object]:
        return self.runner.transaction(join=join)

    def joining(self, tx: object) -> AbstractContextManager[None]:
        joining = getattr(self.runner, "joining", None)  # as above: without it calls do not join, and need tx=
        return nullcontext() if joining is None else joining(tx)

    begin_writing = writes(admin.begin_writing)
    abegin_writing = awrites(admin.begin_writing)

    def bell(self, queues: Sequence[str] | None = None) -> Bell:
        return self.runner.bell(queues)

    def upgrade(self) -> str:
        return self.runner.upgrade()

    def close(self) -> None:
        self.runner.close()
