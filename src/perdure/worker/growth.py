"""`ctx.flow` and `ctx.results`: what a handler does with the flow of its job. Made by `context`; asks the store.

Members that a handler adds at once have ids that follow from the job, the flow, and a number or key: whatever becomes
of this attempt, another one adds the same members, and none of them twice. Where every attempt is a job of its own,
they follow from the first of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from perdure.checks import check_name
from perdure.errors import InvalidInput, InvalidOption, PerdureError, TransitionRefused, shown
from perdure.flow.planned import FlowHandle, Outcome, Planned, waiting
from perdure.ids import FlowId, JobId, parse_id
from perdure.job.flow import FlowRow, NeedsName
from perdure.job.model import NewJob, json_of
from perdure.kind import Draft, no_draft
from perdure.names import public
from perdure.options import After, edges_of

if TYPE_CHECKING:
    from perdure.store.protocols import FlowOperations
    from perdure.worker.context import JobContext, Services

PORTION = 1_000
"""Members written at a time."""
PAGE = 200
"""Results read at a time."""
INNER = frozenset(("raw_id", "row"))
_GROWN = 1 << 62
"""Numbers from here on are those of members that were added by members."""

R = TypeVar("R")
Key = str | Callable[[Mapping[str, Any]], object] | None
"""What tells members apart that a handler adds: an argument's name, a function of the arguments, or their order."""


def derived_id(job_id: JobId, flow_id: FlowId, what: str) -> JobId:
    """The id of a member that this job adds to a flow: the same for every attempt. It has the time of the job's id."""
    digest = bytearray(sha256(b"".join((job_id, flow_id, what.encode()))).digest()[:10])
    digest[0] = digest[0] & 0x0F | 0x70
    digest[2] = digest[2] & 0x3F | 0x80
    return JobId(job_id[:6] + bytes(digest))


def number_of(member: JobId) -> int:
    """A number for a member that was added by another: hardly ever that of a second one."""
    return _GROWN | int.from_bytes(member[8:]) & (_GROWN - 1)


def ordered_number(job_id: JobId, flow_id: FlowId, number: int) -> int:
    """The same for members that one job adds in an order, which they keep."""
    adder = int.from_bytes(sha256(job_id + flow_id).digest()[:5]) >> 2
    return _GROWN | adder << 24 | number & 0xFF_FFFF


def own_flow(ctx: JobContext, services: Services) -> OwnFlow:
    job = services.get_job(ctx).row
    row = None if job.flow_id is None else services.flows(ctx).flow(job.flow_id)
    if row is None:
        raise PerdureError(
            f"the job {ctx.job_id} ({ctx.kind.name}) belongs to no flow, so there is no ctx.flow; enqueue other jobs"
            " with ctx.enqueue(…)",
            code="no_flow",
        )
    return OwnFlow(ctx, services, row, job.root_id or job.id)


class _Grown(FlowHandle):
    """`adder`: the job, or the first of those whose work it continues."""

    def __init__(self, ctx: JobContext, services: Services, row: FlowRow, adder: JobId) -> None:
        self._ctx = ctx
        self._services = services
        self._adder = adder
        self.row = row

    @property
    def raw_id(self) -> bytes:
        return self.row.id

    @property
    def name(self) -> str:
        return self.row.name

    def _taken(self, draft: Draft[Any], after: After, on: NeedsName | None, when: object) -> NewJob:
        if not isinstance(draft, Draft):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise no_draft(draft)
        options = draft.options
        if options.tx is not None or (options.idempotency_key, options.business_key, options.unique) != (None,) * 3:
            raise InvalidOption(
                "a job that is added from inside a flow takes no tx= and no key: it is part of what this job does, and"
                " added once, however often this job runs"
            )
        return waiting(self._services.new_job(draft, self._ctx), edges_of(after, on), when)

    def __dir__(self) -> list[str]:
        return public(super().__dir__(), INNER)


class OwnFlow(_Grown):
    """`ctx.flow`."""

    def add(
        self, draft: Draft[R], *, after: After = None, on: NeedsName | None = None, when: object = None
    ) -> Planned[R]:
        """Add a job to the flow in the transaction that completes this one, and only if it completes."""
        ctx = self._ctx
        ctx.check_open("flow")
        if ctx.claim.live.flow_id != self.row.id:
            raise TransitionRefused(
                f"the job {ctx.job_id} ({ctx.kind.name}) cannot add to {self.row.sort} {self.name!r}: it is no member"
                " that the flow counts, so the flow does not wait for it; enqueue other jobs with ctx.enqueue(…)",
                code="flow_not_counted",
            )
        new = self._taken(draft, after, on, when)
        ctx.add_child(new._replace(flow_id=self.row.id, sequence=number_of(new.id)))
        return Planned(new.id, draft.kind.name)

    def __getitem__(self, name: str) -> Growing:
        """The flow of this name directly inside this one: `ctx.flow["more"].add_many(…)`."""
        found = _inside(self._services.flows(self._ctx), self.row.id, name)
        if found is None:
            raise InvalidInput(
                f"there is no flow {name!r} inside {self.row.sort} {self.name!r}; plan it with"
                f" wf.batch({name!r}, filled_by=…)",
                code="flow_unknown",
            )
        return Growing(self._ctx, self._services, found, self._adder)

    def __repr__(self) -> str:
        return f"<flow {self.name} {self.id} of {self._ctx.name}>"


class Growing(_Grown):
    """A flow that the handler fills. Each call writes at once, and may be repeated by another attempt."""

    def add(self, draft: Draft[R], *, key: str | None = None) -> Planned[R]:
        """Add one member. `key` tells it from others that this job adds; by default their order does."""
        new = self._member(draft, None if key is None else check_name(key, "key"))
        self._write([new])
        return Planned(new.id, draft.kind.name)

    def add_many(self, drafts: Iterable[Draft[Any]], *, key: Key = None) -> int:
        """Add all of these, 1,000 at a time; a generator is read as it goes. Returns how many were not there before.

        Another attempt adds nothing twice, as long as it adds the same in the same order; where the order may change,
        `key` is the name of an argument, or a function of the arguments, that tells members apart.
        """
        added = 0
        members = (self._member(draft, _key_of(draft, key)) for draft in drafts)
        while portion := list(islice(members, PORTION)):
            added += self._write(portion)
        return added

    async def aadd(self, draft: Draft[R], *, key: str | None = None) -> Planned[R]:
        """`add` for coroutines."""
        return await asyncio.to_thread(self.add, draft, key=key)

    async def aadd_many(self, drafts: Iterable[Draft[Any]], *, key: Key = None) -> int:
        """`add_many` for coroutines; a generator is read in another thread."""
        return await asyncio.to_thread(self.add_many, drafts, key=key)

    def _member(self, draft: Draft[Any], key: str | None) -> NewJob:
        job_id, flow_id = self._adder, self.row.id
        new = self._taken(draft, None, None, None)
        if key is not None:
            member = derived_id(job_id, flow_id, f"key {key}")
            return new._replace(id=member, flow_id=flow_id, sequence=number_of(member))
        number = self._ctx.next_number(flow_id)
        member = derived_id(job_id, flow_id, str(number))
        return new._replace(id=member, flow_id=flow_id, sequence=ordered_number(job_id, flow_id, number))

    def _write(self, members: list[NewJob]) -> int:
        store = self._services.flows(self._ctx)
        return store.add_members(self.row.id, members, self._services.now(), perhaps_again=True)

    def __repr__(self) -> str:
        return f"<flow {self.name} {self.id}, filled by {self._ctx.name}>"


def _key_of(draft: Draft[Any], key: Key) -> str | None:
    if key is None:
        return None
    if isinstance(key, str):
        if key not in draft.arguments:
            raise InvalidInput(
                f"key={key!r}: a {draft.kind.name} job was added without that argument; pass it, or give a function of"
                " the arguments",
                code="key_missing",
            )
        return str(draft.arguments[key])
    return str(key(draft.arguments))


def outcomes(ctx: JobContext, services: Services, flow: FlowHandle | UUID | str | None) -> Iterator[Outcome]:
    """How the members of a flow ended, read a page at a time."""
    store, flow_id = services.flows(ctx), _meant(ctx, services, flow)

    def read() -> Iterator[Outcome]:
        last = -1
        while page := store.results(flow_id, last, PAGE):
            for last, source in page:  # noqa: B007 - how far it has come
                yield Outcome(source.state or "unknown", json_of(source.result), source.error_type, source.error)

    return read()


def _meant(ctx: JobContext, services: Services, flow: FlowHandle | UUID | str | None) -> FlowId:
    """The flow that is meant. A name is looked for inside the job's own flow, then inside those around it."""
    if isinstance(flow, FlowHandle):
        return FlowId(flow.raw_id)
    if isinstance(flow, UUID) or (flow is not None and _is_id(flow)):
        return FlowId(parse_id(flow))
    own = own_flow(ctx, services).row
    if flow is None:
        return own.id
    store = services.flows(ctx)
    around: FlowRow | None = own
    while around is not None:
        if (found := _inside(store, around.id, flow)) is not None:
            return found.id
        around = None if around.parent_id is None else store.flow(around.parent_id)
    raise InvalidInput(f"there is no flow {shown(flow)} inside {own.name!r}; give its id", code="flow_unknown")


def _is_id(text: str) -> bool:
    try:
        parse_id(text)
    except InvalidInput:
        return False
    return True


def _inside(store: FlowOperations, flow_id: FlowId, name: str) -> FlowRow | None:
    return next((row for row in store.inner_flows(flow_id) if row.name == name), None)
