"""Which jobs are meant: by id, by the end of an id, or by filter. Called by the command line; asks the store."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, NamedTuple

from perdure.errors import InvalidInput, JobNotFound, shown
from perdure.ids import FlowId, JobId, parse_id, to_uuid
from perdure.store.rows import LAST_ID, JobFilter, Spot, not_found

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.job.flow import FlowRow
    from perdure.job.states import State
    from perdure.job.views import Job
    from perdure.store.protocols import Store

SHORTEST_TAIL = 4
LOOKED_THROUGH = 10_000
"""A tail is looked for among this many of the newest jobs; older ones are found by their whole id."""
FLOWS_LOOKED_THROUGH, FLOWS_LOOKED_INTO = 1_000, 100
AT_ONCE = 10_000
"""How many are chosen at once: exactly those that were counted, and their ids are kept meanwhile."""
_WHOLE = 32
_TAIL = re.compile(r"[0-9a-fA-F-]{4,}")
_PAGE = 200
_CANDIDATES = 5
_SHOWN = 5


def find_job(store: Store, text: str) -> Job:
    """The job with this id, or whose id ends with this. JobNotFound: there is none. InvalidInput: there are several.

    A tail is looked for among the newest 10,000 jobs.
    """
    return find_jobs(store, [text])[0]


def find_jobs(store: Store, texts: Sequence[str]) -> list[Job]:
    """The same for several at once, in the order named; all of them or an error."""
    tails = {text: _tail(text) for text in texts}
    found = _by_tail(store, {tail for tail in tails.values() if len(tail) < _WHOLE})
    return [_whole(store, text) if len(tail) == _WHOLE else _only(text, found[tail]) for text, tail in tails.items()]


def find_either(store: Store, texts: Sequence[str]) -> list[Job | FlowRow]:
    """The jobs and flows with these ids, or whose ids end so; a job first. All of them or an error."""
    try:
        return list(find_jobs(store, texts))
    except JobNotFound:
        flows = {text: flow for text in texts if (flow := find_flow(store, text)) is not None}
        if not flows:
            raise
    jobs = iter(find_jobs(store, [text for text in dict.fromkeys(texts) if text not in flows]))
    return [flows.get(text) or next(jobs) for text in dict.fromkeys(texts)]


def find_flow(store: Store, text: str) -> FlowRow | None:
    """The flow with this id, or, of the newest 1,000, the one whose id ends with this; of flows inside others, those in
    the newest 100 are looked at. None: there is none. InvalidInput: there are several."""
    tail = _tail(text)
    if len(tail) == _WHOLE:
        return store.flow(FlowId(parse_id(text.strip())))
    newest = store.flows(None, None, LAST_ID, FLOWS_LOOKED_THROUGH)
    found = [flow for flow in newest if flow.id.hex().endswith(tail)]
    if not found:
        inner = chain.from_iterable(_inside(store, flow) for flow in newest[:FLOWS_LOOKED_INTO])
        found = [flow for flow in inner if flow.id.hex().endswith(tail)]
    if len(found) > 1:
        raise InvalidInput(
            f"{len(found)} flows have an id that ends with {shown(text)}: {_listed(found)}; give more of it",
            code="id_ambiguous",
        )
    return found[0] if found else None


def find_flow_or_name(store: Store, text: str) -> FlowRow | None:
    """The same, or the one flow that is called so."""
    found = find_flow(store, text) if _TAIL.fullmatch(text.strip()) else None
    if found is not None:
        return found
    named = store.flows(None, text, LAST_ID, _CANDIDATES + 1)
    if len(named) > 1:
        many = f"more than {_CANDIDATES}" if len(named) > _CANDIDATES else str(len(named))
        raise InvalidInput(
            f"{many} flows are called {shown(text)}, the newest first: {_listed(named)}; give an id, or the end of one",
            code="flow_ambiguous",
        )
    return named[0] if named else None


def _inside(store: Store, flow: FlowRow) -> Iterator[FlowRow]:
    for inner in store.inner_flows(flow.id):
        yield inner
        yield from _inside(store, inner)


def _listed(flows: Sequence[FlowRow]) -> str:
    return ", ".join(f"{to_uuid(flow.id)} ({flow.sort} {flow.name}, {flow.state})" for flow in flows[:_CANDIDATES])


class Choice(NamedTuple):
    """Jobs that fit a filter, as they were when they were counted."""

    first: Sequence[Job]
    ids: Sequence[JobId]
    more: bool
    """There are others that fit, beyond what can be changed at once."""


def choose_jobs(app: Perdure, states: Sequence[State], filters: Mapping[str, Any], limit: int | None) -> Choice:
    """The jobs in one of these states that fit the other filters: `AT_ONCE` of them, or fewer if `limit` says so."""
    others = {name: value for name, value in filters.items() if name != "state"}
    most = AT_ONCE if limit is None else min(AT_ONCE, limit)
    found = chain.from_iterable(app.jobs(state=state, **others) for state in states)
    first = list(islice(found, min(_SHOWN, most)))
    ids = [job.row.id for job in chain(first, islice(found, most - len(first)))]
    more = most == AT_ONCE and limit != AT_ONCE and next(found, None) is not None
    return Choice(first, ids, more)


def _tail(text: str) -> str:
    """The hexadecimal digits of what may be an id or its tail."""
    tail = text.strip().replace("-", "").lower()
    if not SHORTEST_TAIL <= len(tail) <= _WHOLE or not set(tail) <= set("0123456789abcdef"):
        raise InvalidInput(
            f"{shown(text)} is not an id; give a job's id, or at least its last {SHORTEST_TAIL} characters",
            code="id_invalid",
        )
    return tail


def _whole(store: Store, text: str) -> Job:
    job_id = JobId(parse_id(text.strip()))
    found = store.get(job_id)
    if found is None:
        raise not_found(job_id)
    return found


def _by_tail(store: Store, tails: set[str]) -> dict[str, list[Job]]:
    """For each tail the newest jobs that end with it, found in one pass."""
    found: dict[str, list[Job]] = {tail: [] for tail in tails}
    for job in islice(_newest(store), LOOKED_THROUGH if tails else 0):
        digits = job.row.id.hex()
        for tail in tails:
            if digits.endswith(tail):
                found[tail].append(job)
    return found


def _newest(store: Store) -> Iterator[Job]:
    spot: Spot | None = None
    while True:
        page, spot = store.jobs(JobFilter(), spot, _PAGE)
        yield from page
        if spot is None:
            return


def _only(text: str, candidates: Sequence[Job]) -> Job:
    if len(candidates) == 1:
        return candidates[0]
    if not candidates:
        raise JobNotFound(
            f"none of the newest {LOOKED_THROUGH:,} jobs has an id that ends with {shown(text)}; older ones are found"
            " by their whole id, and perdure jobs lists them"
        )
    listed = ", ".join(f"{job.id} ({job.kind}, {job.state})" for job in candidates[:_CANDIDATES])
    more = f" and {len(candidates) - _CANDIDATES} more" if len(candidates) > _CANDIDATES else ""
    raise InvalidInput(
        f"{len(candidates)} jobs have an id that ends with {shown(text)}: {listed}{more}; give more of it",
        code="id_ambiguous",
    )
