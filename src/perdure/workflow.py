"""Builds flows: `app.workflow`, `app.chain`, `app.group` and `app.batch`. Called by `app`; makes jobs with `enqueue`
and calls the store.

A workflow, chain or group is gathered in memory and written in one transaction. A batch is written from the start, and
its members a portion at a time.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from graphlib import CycleError, TopologicalSorter
from itertools import chain, islice
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Never, Self, TypeVar, cast, get_args

from perdure.checks import KEY_LIMIT, check_choice, check_name, check_type, check_whole
from perdure.enqueue import common_tx, listed_drafts
from perdure.errors import InvalidInput, InvalidOption, InvalidPayload, PerdureError, shown
from perdure.flow.planned import (
    Condition,
    FlowHandle,
    Planned,
    Reference,
    condition_of,
    first_that_holds,
    json_value,
    waiting,
    with_values,
)
from perdure.flow.views import Flow
from perdure.ids import FlowId, JobId
from perdure.job.flow import Edge, FlowSort, NeedsName, NewFlow, OnFailure
from perdure.job.model import NewJob, Plan
from perdure.job.states import State
from perdure.kind import Draft, Kind, no_draft
from perdure.names import public
from perdure.options import After, AwaitedLike, Conflict, awaited_id, edges_of, principal

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.store.protocols import Store

PORTION = 1_000
"""Members written at a time."""
_QUEUED = State.QUEUED.value
PROPERTIES_LIMIT = 64 * 1024
INNER = frozenset(("begin", "end", "finish", "fill", "holds_back", "plain", "raw_id", "take", "tx", "write"))
"""What builders have for the package's own parts; users are not shown it."""

Mode = Literal["parallel", "sequential"]
Abandon = Literal["cancel", "keep"]
When = Condition | int | None
"""For type checkers a comparison of results is a bool, and `~` of it an int."""

R = TypeVar("R")


class Settings(NamedTuple):
    """What a flow is made with, besides its members."""

    name: str
    on_failure: OnFailure = "continue"
    key: str | None = None
    conflict: Conflict = "raise"
    at_once: int | None = None
    properties: Mapping[str, Any] | None = None

    def checked(self) -> Settings:
        check_name(self.name, "name")
        _check_policy(self.on_failure)
        check_choice(self.on_failure, "on_failure", get_args(OnFailure), code="on_failure_invalid")
        check_choice(self.conflict, "conflict", get_args(Conflict), code="conflict_invalid")
        if self.key is not None:
            check_name(self.key, "key", KEY_LIMIT)
        elif self.conflict == "return":
            raise InvalidOption(
                'conflict="return" without key=: there is nothing that another flow could have; give this one a key=,'
                " or leave conflict= out",
                code="conflict_invalid",
            )
        if self.at_once is not None:
            check_whole(self.at_once, "at_once", code="at_once_invalid")
        return self

    def new_flow(self, app: Perdure, sort: FlowSort, **fields: Any) -> NewFlow:
        asker = principal.get()
        return NewFlow(
            FlowId(app.ids.new()),
            sort,
            self.name,
            app.owner,
            app.clock.now(),
            key=self.key,
            on_failure=self.on_failure,
            at_once=self.at_once,
            properties=_properties_text(self.properties),
            principal=None if asker is None else check_name(asker, "principal", KEY_LIMIT),
            **fields,
        )


def _properties_text(properties: Mapping[str, Any] | None) -> str | None:
    if properties is None:
        return None
    check_type(properties, "properties", Mapping, "a dict of JSON data", code="properties_invalid")
    text = json.dumps(json_value(dict(properties), "properties are"), ensure_ascii=False, separators=(",", ":"))
    if len(text.encode()) > PROPERTIES_LIMIT:
        raise InvalidOption(
            f"properties= has {len(text.encode())} bytes, the limit is {PROPERTIES_LIMIT}; keep a path or an id in it",
            code="properties_invalid",
        )
    return text


class _Plan(NamedTuple):
    """All of a flow that is not written yet, with the flows inside it."""

    flows: list[NewFlow]
    callbacks: list[NewJob]
    """They wait for the outermost flow. Written first: they take the place of the first member."""
    jobs: list[NewJob]
    long: list[tuple[FlowId, Iterator[NewJob]]]
    """Inner flows with more members than one portion, and the rest of these."""

    def check(self) -> None:
        """InvalidInput: something waits for itself."""
        if self._is_in_order():
            return
        waits: dict[bytes, set[bytes]] = {}
        for flow in self.flows:
            waits.setdefault(flow.id, set()).update(filter(None, [flow.filled_by]))
            if flow.parent_id is not None:
                waits.setdefault(flow.parent_id, set()).add(flow.id)
        for job in (*self.callbacks, *self.jobs):
            if job.after:
                waits[job.id] = {edge.depends_on for edge in job.after}
                if job.flow_id is not None and job.sequence is not None:
                    waits[job.flow_id].add(job.id)
        try:
            TopologicalSorter(waits).prepare()
        except CycleError as error:
            raise InvalidInput(
                f"these would wait for each other for ever: {self._named(error.args[1])}; a member of a flow cannot"
                " wait for what waits for the flow",
                code="flow_cycle",
            ) from None

    def _is_in_order(self) -> bool:
        """Whether every job waits for earlier ones alone, and none for a flow of the plan: then nothing waits for
        itself, which is seen in a tenth of the time."""
        if self.callbacks:
            return False
        later = set[bytes](flow.id for flow in self.flows)
        later.update([job.id for job in self.jobs])
        for job in self.jobs:
            for edge in job.after:
                if edge.depends_on in later:
                    return False
            later.discard(job.id)
        return True

    def _named(self, ids: Sequence[bytes]) -> str:
        names = {flow.id: f"flow {flow.name!r}" for flow in self.flows}
        kinds = {job.id: job.plan.kind for job in (*self.callbacks, *self.jobs)}
        return " → ".join(names.get(FlowId(one)) or kinds[JobId(one)] for one in reversed(ids))


class _Planning(FlowHandle):
    """A flow that is being planned: jobs and other flows are added to it."""

    _root: Workflow
    """The outermost one, which is written."""
    _parent: _Planning | None = None

    def __init__(self, flow: NewFlow) -> None:
        self._flow = flow
        self._members = 0
        self._raw_id: bytes = flow.id

    @property
    def raw_id(self) -> bytes:
        return self._raw_id

    @property
    def name(self) -> str:
        """As it is called. Not unique."""
        return self._flow.name

    def add(
        self, draft: Draft[R], *, after: After = None, on: NeedsName | None = None, when: When = None
    ) -> Planned[R]:
        """Add a job made by `kind.new(…)`. It waits for what `after` names, and for those whose results it is given.

        `on`: which end of those lets it go on; if they end otherwise, it is skipped. `when`: a condition on results or
        counts; if it does not hold, the job is skipped. With `after=` this flow itself it is a callback: the flow does
        not wait for it.
        """
        self._check_takes_more()
        new = waiting(self._root.take(draft), edges_of(after, on), when)
        self._home_of(new.after).keep(new)
        return Planned(new.id, draft.kind.name)

    def choose(
        self, *choices: tuple[object, Draft[Any]], otherwise: Draft[Any] | None = None, after: After = None
    ) -> tuple[Planned[Any], ...]:
        """Add jobs of which one runs: the first whose condition holds, or `otherwise`. The others are skipped."""
        if not choices:
            raise InvalidInput(
                "wf.choose has nothing to choose from: give it pairs, as in wf.choose((size.result > 10, big.new()),"
                " otherwise=small.new())",
                code="condition_invalid",
            )
        for one in choices:
            if not _is_pair(one):
                raise InvalidInput(
                    f"wf.choose takes pairs of a condition and a job, not {shown(one)}", code="condition_invalid"
                )
        conditions = list(first_that_holds(condition_of(condition) for condition, _ in choices))
        drafts = [draft for _, draft in choices]
        if otherwise is not None:
            drafts.append(otherwise)
        return tuple(self.add(draft, when=when, after=after) for draft, when in zip(drafts, conditions, strict=False))

    def map(
        self,
        draft: Draft[Any],
        over: Iterable[object],
        *,
        name: str | None = None,
        at_once: int | None = None,
        on_failure: OnFailure = "continue",
        after: After = None,
        on: NeedsName | None = None,
    ) -> InnerFlow:
        """Add one job for each of these values, as a batch inside this flow: `wf.map(render.new(row=each), over=rows)`.

        `each` stands for the value, `each["id"]` for a part of it. Any iterable; of more than 1,000 values the rest is
        read and written after the workflow itself, 1,000 at a time.
        """
        self._check_takes_more()
        root = self._root
        if isinstance(over, Reference):
            raise InvalidInput(
                "wf.map goes over values that are known now; let the job that finds them add the jobs itself:"
                ' more = wf.batch("more", filled_by=job), and in its handler ctx.flow["more"].add_many(…)',
                code="reference_invalid",
            )
        if not isinstance(over, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InvalidInput(f"wf.map goes over a list or another iterable, not over {shown(over)}")
        settings = Settings(_checked(draft).kind.name if name is None else name, on_failure, at_once=at_once)
        edges = edges_of(after, on)
        values = iter(over)

        def members(first: int, values: Iterable[object]) -> Iterator[NewJob]:
            for number, value in enumerate(values, first):
                one = draft._replace(arguments=with_values(draft.arguments, each=value))
                yield waiting(root.take(one), edges, None)._replace(flow_id=inner.flow_id, sequence=number)

        head = list(islice(values, PORTION + 1))
        inner = self._inside("batch", settings, open=len(head) > PORTION)
        root.plan.jobs.extend(members(0, head[:PORTION]))
        if len(head) > PORTION:
            rest = members(PORTION, chain(head[PORTION:], values))
            root.plan.long.append((inner.flow_id, rest))
        inner.close(len(head))
        return inner

    def batch(
        self,
        name: str,
        *,
        filled_by: AwaitedLike | None = None,
        at_once: int | None = None,
        on_failure: OnFailure = "continue",
    ) -> InnerFlow:
        """A batch inside this flow. With `filled_by`, a job whose handler adds the members: its end seals the batch."""
        self._check_takes_more()
        filler = None if filled_by is None else JobId(awaited_id(filled_by))
        inner = self._inside(
            "batch",
            Settings(name, on_failure, at_once=at_once),
            filled_by=filler,
            open=filler is not None,
        )
        if filler is not None:
            inner.close(0)
        return inner

    def chain(self, *drafts: Draft[Any], name: str | None = None) -> InnerFlow:
        """A chain inside this flow: each job waits for the success of the one before; `previous` is its result."""
        self._check_takes_more()
        inner = self._inside("chain", Settings(_chain_name(drafts) if name is None else name))
        inner.fill(drafts, "success")
        return inner

    def group(
        self,
        drafts: Iterable[Draft[Any]],
        *others: Never,
        name: str | None = None,
        mode: Mode = "parallel",
        on_failure: OnFailure = "continue",
        at_once: int | None = None,
    ) -> InnerFlow:
        """A group inside this flow; `mode` and `on_failure` as in `app.group`."""
        self._check_takes_more()
        listed = listed_drafts(drafts, others)
        settings = Settings(_group_name(listed) if name is None else name, on_failure, at_once=at_once)
        inner = self._inside("group", settings)
        inner.fill(listed, _order(mode, on_failure))
        return inner

    # -- inside ------------------------------------------------------------------------------------------------------

    @property
    def flow_id(self) -> FlowId:
        return self._flow.id

    def keep(self, new: NewJob) -> None:
        """A member of this flow, or, if it waits for the outermost flow, a callback of that."""
        plan, outermost = self._root.plan, self._root.flow_id
        if outermost in [edge.depends_on for edge in new.after]:
            plan.callbacks.append(new._replace(flow_id=outermost))
            return
        plan.jobs.append(new.as_member(self.flow_id, self._members))
        self._members += 1

    def fill(self, drafts: Iterable[Draft[Any]], order: NeedsName | None) -> None:
        """Add these jobs. With `order`, each waits for such an end of the one before."""
        before: Planned[Any] | None = None
        for draft in drafts:
            result = {} if before is None else {"previous": before.result}
            one = _checked(draft)._replace(arguments=with_values(draft.arguments, **result))
            after: After = None if order is None or before is None else (before, order)
            before = self.add(one, after=after)

    def _home_of(self, edges: Sequence[Edge]) -> _Planning:
        """Where a job belongs that waits for these: outside of every flow that it waits for."""
        if self._parent is None or not edges:
            return self
        awaited = {edge.depends_on for edge in edges}
        home: _Planning = self
        at: _Planning | None = self
        while at is not None:
            if at.flow_id in awaited and at._parent is not None:
                home = at._parent
            at = at._parent
        return home

    def _inside(self, sort: FlowSort, settings: Settings, **fields: Any) -> InnerFlow:
        root = self._root
        flow = settings.checked().new_flow(root.app, sort, parent_id=self.flow_id, **fields)
        root.plan.flows.append(flow)
        return InnerFlow(root, flow, self)

    def _check_takes_more(self) -> None:
        self._root.check_open()

    def __dir__(self) -> list[str]:
        return public(super().__dir__(), INNER | {"app", "check_open", "close", "flow_id", "keep", "plan"})


class InnerFlow(_Planning):
    """A flow inside a workflow: others can wait for it, and read its `summary` in conditions."""

    _closed: str | None = None

    def __init__(self, root: Workflow, flow: NewFlow, parent: _Planning) -> None:
        super().__init__(flow)
        self._root = root
        self._parent = parent

    def close(self, members: int) -> None:
        """It takes no more from here: it is filled otherwise."""
        self._closed = "its members are known already" if members else "the job of filled_by= adds its members"
        self._members = members

    def _check_takes_more(self) -> None:
        super()._check_takes_more()
        if self._closed is not None:
            raise InvalidInput(f"flow {self.name!r} takes no more here: {self._closed}", code="flow_sealed")

    def __repr__(self) -> str:
        return f"<InnerFlow {self.name} {self.id}>"


class Workflow(_Planning):
    """A workflow that is being planned: `with app.workflow("nightly") as wf:`. Written at the end of the block."""

    def __init__(self, app: Perdure, sort: FlowSort, settings: Settings, tx: Any = None) -> None:
        super().__init__(settings.checked().new_flow(app, sort))
        self._root = self
        self.app = app
        self.tx = tx
        self.plan = _Plan([self._flow], [], [], [])
        self._conflict = settings.conflict
        self._written: Flow | None = None
        self._state: Literal["new", "open", "over"] = "new"

    @property
    def flow(self) -> Flow:
        """The flow as it was written, or the live one that has its key."""
        if self._written is None:
            raise InvalidInput(
                f"workflow {self.name!r} is written at the end of its block; look at it after that",
                code="flow_not_written",
            )
        return self._written

    def begin(self) -> Self:
        """From here on it takes jobs."""
        if self._state != "new":
            raise InvalidInput(
                f"workflow {self.name!r} was begun before; make another with app.workflow", code="flow_sealed"
            )
        self._state = "open"
        return self

    def __enter__(self) -> Self:
        return self.begin()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._state = "over"
        if kind is None:
            self.write(self.tx)

    def take(self, draft: Draft[Any]) -> NewJob:
        """The job of a draft. It has this transaction and no other, and a key that is taken is refused."""
        return _new_member(self.app, draft, self.tx)

    def check_open(self) -> None:
        if self._state == "new":
            raise InvalidInput(
                f"workflow {self.name!r} takes jobs inside its block alone, and is written at its end: with"
                " app.workflow(…) as wf: wf.add(…)",
                code="flow_sealed",
            )
        if self._state == "over":
            raise InvalidInput(
                f"workflow {self.name!r} is written: its block has ended; from inside a job use ctx.flow.add(…)",
                code="flow_sealed",
            )

    def write(self, tx: Any) -> Flow:
        """Write all of it, as one; then what did not fit into one portion. Returns the flow."""
        self._state = "over"
        self.plan.check()
        store = self.app.store_of(tx)
        row, _ = store.start_flows(self.plan.flows, [*self.plan.callbacks, *self.plan.jobs], self._conflict)
        is_other = row.id != self.raw_id
        self._raw_id = row.id
        if not is_other and self.plan.long:
            self._write_the_rest(store)
            row = store.flow(row.id) or row
        self._written = Flow(row, self.app.clock.now(), deduplicated=is_other)
        return self._written

    def _write_the_rest(self, store: Store) -> None:
        """If a value cannot be had or written, all of the workflow is cancelled."""
        try:
            for flow_id, members in self.plan.long:
                while portion := list(islice(members, PORTION)):
                    store.add_members(flow_id, portion, self.app.clock.now())
                store.seal_flow(flow_id, self.app.clock.now())
        except BaseException:
            with suppress(PerdureError):
                give_up(self.app, store, FlowId(self.raw_id), [flow_id for flow_id, _ in self.plan.long])
            raise

    def __repr__(self) -> str:
        return f"<Workflow {self.name} {self.id}>"


def chained(app: Perdure, drafts: Sequence[Draft[Any]], name: str | None, **settings: Any) -> Workflow:
    """A chain, to be written."""
    tx = settings.pop("tx")
    flow = Workflow(app, "chain", Settings(_chain_name(drafts) if name is None else name, **settings), tx).begin()
    flow.fill(drafts, "success")
    return flow


def grouped(app: Perdure, drafts: Iterable[Draft[Any]], name: str | None, mode: Mode, **settings: Any) -> Workflow:
    """A group, to be written."""
    tx, listed = settings.pop("tx"), list(drafts)
    made = Settings(_group_name(listed) if name is None else name, **settings)
    order = _order(mode, made.on_failure)
    flow = Workflow(app, "group", made, tx).begin()
    flow.fill(listed, order)
    return flow


class _Unnamed(Planned[R]):
    """A member of a batch that gets its id when somebody asks for it, or when it is written."""

    __slots__ = ("_batch", "named")

    def __init__(self, batch: Batch, kind: str) -> None:  # not that of `Planned`: there is no id yet
        self._batch = batch
        self.kind = kind
        self.named: bytes | None = None

    @property
    def raw_id(self) -> bytes:
        if self.named is None:
            self._batch.name_members()
        assert self.named is not None
        return self.named


class Batch(FlowHandle):
    """A batch that is being filled: `with app.batch("import") as batch: batch.add(load.new(row))`.

    Members are written 1,000 at a time and run while it goes on. Sealed at the end of the block; an exception cancels
    it, or with `abandon="keep"` leaves it open.
    """

    def __init__(
        self,
        app: Perdure,
        settings: Settings,
        callbacks: Mapping[NeedsName, Draft[Any] | None],
        abandon: Abandon,
        tx: Any,
    ) -> None:
        check_choice(abandon, "abandon", get_args(Abandon), code="abandon_invalid")
        self._app = app
        self.tx = tx
        self._conflict = settings.conflict
        self._flow = settings.checked().new_flow(app, "batch", open=True)
        self._callbacks = [
            _new_member(app, draft, tx)._replace(after=(Edge(self._flow.id, needs),), flow_id=self._flow.id)
            for needs, draft in callbacks.items()
            if draft is not None
        ]
        self._abandon = abandon
        self._unwritten: list[NewJob] = []
        self._unnamed: list[tuple[_Unnamed[Any], Plan, str, str | None]] = []
        self._members = 0
        self._state: Literal["new", "open", "over"] = "new"
        self._is_other = False
        self._raw_id: bytes = self._flow.id

    @property
    def raw_id(self) -> bytes:
        return self._raw_id

    @property
    def name(self) -> str:
        """As it is called. Not unique."""
        return self._flow.name

    @property
    def deduplicated(self) -> bool:
        """True: another live batch has the key; what is added here is dropped."""
        return self._is_other

    def add(
        self, draft: Draft[R], *, after: After = None, on: NeedsName | None = None, when: When = None
    ) -> Planned[R]:
        """Add a job; `after`, `on` and `when` as in `wf.add`. Written with others, 1,000 at a time."""
        planned = self.taken(draft, after, on, when)
        if self.is_full:
            self.flush(self.tx)
        return planned

    def add_many(self, drafts: Iterable[Draft[Any]]) -> None:
        """Add all of these; a generator is read as it goes."""
        for draft in drafts:
            self.add(draft)

    def begin(self, tx: Any) -> None:
        """Write the batch, still empty, and its callbacks."""
        if self._state != "new":
            raise InvalidInput(f"batch {self.name!r} was begun before; make another with app.batch", code="flow_sealed")
        row, _ = self._app.store_of(tx).start_flows([self._flow], self._callbacks, self._conflict)
        self._state = "open"
        self._is_other = row.id != self.raw_id
        self._raw_id = row.id

    @property
    def is_full(self) -> bool:
        """There is a portion to write."""
        return len(self._unnamed) + len(self._unwritten) >= PORTION

    def flush(self, tx: Any) -> None:
        """Write what was added."""
        self.name_members()
        portion, self._unwritten = self._unwritten, []
        if portion and not self._is_other:
            self._app.store_of(tx).add_members(self._flow.id, portion, self._app.clock.now())

    def end(self, failed: bool, tx: Any) -> None:
        """Seal it, or give it up."""
        self._state = "over"
        store = self._app.store_of(tx)
        if self._is_other:
            return
        if not failed:
            try:
                self.flush(tx)
                store.seal_flow(self._flow.id, self._app.clock.now())
            except BaseException:
                self._given_up(store, tx)
                raise
        else:
            self._given_up(store, tx)

    def _given_up(self, store: Store, tx: Any) -> None:
        """Cancel it, or keep it open with all that was added."""
        with suppress(PerdureError):  # the exception that ended the block says what is wrong
            if self._abandon == "cancel":
                give_up(self._app, store, self._flow.id, [self._flow.id])
            else:
                self.flush(tx)

    def taken(self, draft: Draft[R], after: After, on: NeedsName | None, when: When) -> Planned[R]:
        """Keep a new member until it is written."""
        if self._state != "open":
            raise InvalidInput(
                f"batch {self.name!r} is not open: add to it inside its block, with app.batch(…) as batch",
                code="flow_sealed",
            )
        if after is None and on is None and when is None and _is_direct(draft, self._app):
            try:
                payload, secrets = draft.kind.codec.encode(draft.arguments)
            except InvalidPayload:
                pass  # perhaps it takes the result of another job: seen to below
            else:
                member: _Unnamed[R] = _Unnamed(self, draft.kind.name)
                self._unnamed.append((member, draft.plan, payload, secrets))
                return member
        self.name_members()
        new = _new_member(self._app, draft, self.tx)
        if after is not None or on is not None or when is not None:
            new = waiting(new, edges_of(after, on), when)
        if new.after and any(edge.depends_on == self._flow.id for edge in new.after):
            raise InvalidInput(
                "a member of a batch cannot wait for the batch; give callbacks as on_success=, on_failure= or on_end=",
                code="flow_cycle",
            )
        self._unwritten.append(new.as_member(self._flow.id, self._members))
        self._members += 1
        return Planned(new.id, draft.kind.name)

    def name_members(self) -> None:
        """Give ids to those that have none yet, in the order in which they were added: all together, which is a tenth
        of what a member costs."""
        unnamed, self._unnamed = self._unnamed, []
        if not unnamed:
            return
        now = self._app.clock.now()  # before the ids, whose time since= compares with created_at
        flow_id, numbers = self._flow.id, range(self._members, self._members + len(unnamed))
        self._members += len(unnamed)
        ids = self._app.ids.new_many(len(unnamed))
        for (planned, plan, payload, secrets), one, number in zip(unnamed, ids, numbers, strict=True):
            job_id = planned.named = JobId(one)
            new = NewJob(job_id, plan, payload, secrets, now, now, _QUEUED, flow_id=flow_id, sequence=number)
            self._unwritten.append(new)

    def __enter__(self) -> Self:
        self.begin(self.tx)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end(kind is not None, self.tx)

    def __dir__(self) -> list[str]:
        return public(super().__dir__(), INNER | {"flush", "is_full", "name_members", "taken"})

    def __repr__(self) -> str:
        return f"<Batch {self.name} {self.id}>"


def give_up(app: Perdure, store: Store, flow_id: FlowId, opened: Iterable[FlowId]) -> None:
    """Cancel a flow whose members will not all come, and seal what is open of it, so that it ends."""
    store.change_flow(flow_id, "cancel", app.clock.now())
    for one in opened:
        found = store.flow(one)
        if found is not None and found.sealed_at is None:
            store.seal_flow(one, app.clock.now())


def new_batch(
    app: Perdure,
    name: str,
    *,
    on_success: Draft[Any] | None,
    on_failure: Draft[Any] | OnFailure | None,
    on_end: Draft[Any] | None,
    abandon: Abandon,
    tx: Any,
    **settings: Any,
) -> Batch:
    """A batch, to be begun. `on_failure` is a callback or a policy."""
    _check_on_failure(on_failure)
    policy: Any = "continue" if on_failure is None or isinstance(on_failure, Draft) else on_failure
    alert = on_failure if isinstance(on_failure, Draft) else None
    callbacks: dict[NeedsName, Draft[Any] | None] = {"success": on_success, "failure": alert, "end": on_end}
    return Batch(app, Settings(name, policy, **settings), callbacks, abandon, tx)


# -- pieces ----------------------------------------------------------------------------------------------------------


def _new_member(app: Perdure, draft: Draft[Any], tx: Any) -> NewJob:
    if common_tx([draft], tx) is not tx:
        raise InvalidOption("give tx= to the flow, not to its jobs: all of it is written together", code="tx_mixed")
    new = app.new_job(draft)
    return new if new.plan.conflict == "raise" else new._replace(plan=new.plan._replace(conflict="raise"))


def _is_direct(draft: Draft[Any], app: Perdure) -> bool:
    """Whether the job of this draft, of a kind of this app, needs no more than its arguments: see `Plan.direct`."""
    if not isinstance(cast("object", draft), Draft) or not draft.plan.direct or draft.kind.app is not app:
        return False
    return draft.options.tx is None and draft.plan.conflict == "raise" and principal.get() is None


def _check_policy(on_failure: object) -> None:
    """A job is no policy; only a batch takes either."""
    if isinstance(on_failure, (Draft, Kind)):
        raise InvalidOption(
            "on_failure= is a policy here, and not a job; a job that is told waits for the flow:"
            ' alert.options(after=flow, on="failure").enqueue(), or wf.add(alert.new(), after=wf, on="failure")',
            code="on_failure_invalid",
        )


def _check_on_failure(given: object) -> None:
    """What may be a callback or a policy is neither both nor a kind."""
    if isinstance(given, Kind):
        raise no_draft(cast("Kind[..., Any, ..., Any]", given))
    if isinstance(given, (list, tuple)) and not isinstance(given, Draft):
        raise InvalidOption(
            "on_failure= is one job or one policy; for both give the policy here, and the job once the batch has begun:"
            ' alert.options(after=batch, on="failure").enqueue()',
            code="on_failure_invalid",
        )


def _is_pair(value: object) -> bool:
    return isinstance(value, tuple) and len(cast("tuple[object, ...]", value)) == 2


def _checked(draft: Draft[Any]) -> Draft[Any]:
    common_tx([draft], None)
    return draft


def _order(mode: Mode, on_failure: OnFailure) -> NeedsName | None:
    """What each member of a group needs of the one before."""
    check_choice(mode, "mode", get_args(Mode), code="mode_invalid")
    if mode == "parallel":
        return None
    return "success" if on_failure in ("stop", "cancel") else "end"


def _chain_name(drafts: Sequence[Draft[Any]]) -> str:
    return _short(" → ".join(_checked(draft).kind.name for draft in drafts) or "chain")


def _group_name(drafts: Sequence[Draft[Any]]) -> str:
    return _short(", ".join(dict.fromkeys(_checked(draft).kind.name for draft in drafts)) or "group")


def _short(name: str) -> str:
    return name if len(name) <= 100 else f"{name[:99]}…"
