"""Removes what is old: ended jobs with all that belongs to them, log lines, and records of nodes, slots and the like;
and moves ended jobs into the archive. Called by `upkeep/retention` and `app` through `store`.

The caller decides what is old enough. A job goes only if it is still ended, in the life that the decision was about:
the transaction that removes it checks that. Each operation is one short transaction, and a repeat changes nothing.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, NoReturn, TypeVar, cast

from perdure.clock import Micros, iso
from perdure.errors import PerdureError
from perdure.ids import FlowId, JobId, NodeId, id_floor, to_uuid
from perdure.job.model import JobView, OutcomeRow, RunRow, readable
from perdure.job.views import TAG_SEPARATOR
from perdure.store.engine import Call, Op
from perdure.store.rows import FIRST_ID, Archived, Ended, LogLine, OldFlow, Page, Spot
from perdure.store.statements import groups, whole_group

T = TypeVar("T")

REMOVED = ("logs", "runs", "outcomes", "tags", "waits", "slots", "jobs")
"""What belongs to a job, and the job itself. Its idempotency keys are not among them: they stay taken for ever."""

CLOCKS_DIFFER_US = 3600 * 1_000_000
"""By how much the clock that made the id of a run may differ from the one that dated its node."""
NAMED_BY = 1_000
"""How many runs are looked through for the name of a node. If there were more in its time, the node is kept."""


def ended(after: Ended | None, below: bytes, size: int) -> Op[list[Ended]]:
    """One page of ends, by job and life, of jobs created before `below`. Shorter than `size`: the last page."""
    spot = (FIRST_ID, 0) if after is None else (after.job_id, after.life)
    return [Ended._make(row) for row in (yield Call("list_ends", (*spot, below, size))).rows]


# -- jobs ------------------------------------------------------------------------------------------------------------


def remove(old: Sequence[Ended], written: Mapping[JobId, str] | None = None) -> Op[list[JobId]]:
    """Remove these jobs with all that belongs to them. Returns those that are gone.

    A job stays if it lives again or has ended once more, and while someone else's transaction holds it; one of a flow,
    unless it goes with it. With `written` (documents by job) also if it has no document, or is not as that says.
    """
    gone: list[JobId] = []
    for group in groups(old):
        going = yield from _still_ended(group)
        if written is not None and going:
            now_true = {found.job_id: found.document for found in (yield from documents(group, Micros(0)))}
            going = [one for one in going if now_true.get(one.job_id) == written.get(one.job_id, "")]
        yield from take_out(going)
        gone += [one.job_id for one in going]
    return gone


def archive(old: Sequence[Ended], now: Micros) -> Op[list[JobId]]:
    """Move these jobs into the archive. Returns those that were moved; the others stay, as in `remove`."""
    moved: list[JobId] = []
    for group in groups(old):
        going = yield from _still_ended(group)
        ids = {one.job_id for one in going}
        kept = [found for found in (yield from documents(group, now)) if found.job_id in ids]
        if kept:
            yield Call("remove_archived", whole_group(ids))
            yield Call("insert_archived", kept)
        yield from take_out(going)
        moved += ids
    return moved


def old_flows(after: FlowId | None, before: Micros, size: int) -> Op[list[OldFlow]]:
    """One page of flows that ended before then, by id, with all their jobs. Shorter than `size`: the last page."""
    params = {"after": after or FIRST_ID, "before": before, "page": size}
    return [OldFlow._make(row) for row in (yield Call("old_flows", params)).rows]


def flow_ends(flow_id: FlowId, size: int) -> Op[list[Ended]]:
    """How the first `size` jobs of this flow ended, those that it does not count too."""
    return [Ended._make(row) for row in (yield Call("flow_ends", {"flow_id": flow_id, "page": size})).rows]


def remove_flow(flow_id: FlowId) -> Op[bool]:
    """Remove a flow that has ended and has no jobs any more. False: it has some, or lives again."""
    gone = (yield Call("delete_flow", {"id": flow_id})).changed == 1
    if gone:
        yield Call("remove_waits_of_flow", {"id": flow_id})
    return gone


class Going(NamedTuple):
    """An ended job that is about to be removed. It is locked, if the database locks rows."""

    job_id: JobId
    life: int
    state: str
    idempotency_key: str | None
    flow_id: FlowId | None = None


def _still_ended(group: Sequence[Ended]) -> Op[list[Going]]:
    """Those that are what they were when it was decided, and that nobody else changes before the transaction ends."""
    decided = {one.job_id: (one.life, one.flow_id) for one in group}
    these = whole_group(decided)
    locked = {row[0] for row in (yield Call("lock_these_jobs", these)).rows}
    found = map(Going._make, (yield Call("these_ended", these)).rows)
    return [one for one in found if one.job_id in locked and (one.life, one.flow_id) == decided[one.job_id]]


def take_out(going: Sequence[Going]) -> Op[None]:
    """Delete these jobs, not more than a group, and all that belongs to them; the ledger notes how they ended."""
    if not going:
        return
    for one in going:
        if one.idempotency_key is not None:
            ended_so = {"final_state": one.state, "key": one.idempotency_key, "job_id": one.job_id}
            yield Call("settle_idempotency_key", ended_so)
    these = whole_group([one.job_id for one in going])
    for what in REMOVED:
        yield Call(f"remove_{what}", these)


# -- documents -------------------------------------------------------------------------------------------------------


def documents(old: Sequence[Ended], now: Micros) -> Op[list[Archived]]:
    """These jobs as the archive keeps them; without those that live again or are gone."""
    made: list[Archived] = []
    for group in groups(old):
        these = whole_group([one.job_id for one in group])
        parts: dict[object, dict[str, list[dict[str, Any]]]] = {}
        for name, sort in (("outcomes", OutcomeRow), ("runs", RunRow), ("logs", LogLine)):
            for row in (yield Call(f"these_{name}", these)).rows:
                part = _plain(sort, row)
                of_job = parts.setdefault(part.pop("job_id"), {"outcomes": [], "runs": [], "logs": []})
                of_job[name].append(part)
        for row in (yield Call("these_jobs", these)).rows:
            job = _plain(JobView, row)
            job["tags"] = sorted(job["tags"].split(TAG_SEPARATOR)) if job["tags"] else []
            made.append(_archived(readable(JobView, row)[0], {"job": job, **parts[job["id"]]}, now))
    return made


def _archived(view: JobView, document: dict[str, Any], now: Micros) -> Archived:
    finished_at = view.finished_at or view.created_at
    text = _text(document)
    return Archived(view.id, view.kind, view.owner, view.queue, view.state, view.created_at, finished_at, now, text)


def _text(document: dict[str, Any]) -> str:
    text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
    # Half a character is possible in JSON, but no database stores it: written as an escape.
    return json.dumps(document, separators=(",", ":")) if _HALVES.search(text) else text


_HALVES = re.compile("[\ud800-\udfff]")
_JSON = frozenset(("payload", "params", "options", "result", "artifacts", "metrics", "fields"))


def _plain(sort: Any, row: Sequence[object]) -> dict[str, Any]:
    """The row as JSON data: ids as text, times in ISO 8601. Values that cannot be are as `readable` leaves them."""
    try:
        return {name: None if value is None else to(value) for (name, to), value in zip(_forms(sort), row, strict=True)}
    except (TypeError, ValueError, AttributeError, PerdureError):
        return {name: None if value is None else to(value) for (name, to), value in _mended(sort, row)}


def _mended(sort: Any, row: Sequence[object]) -> Iterable[tuple[tuple[str, Callable[[Any], Any]], object]]:
    return zip(_forms(sort), readable(sort, row)[0], strict=True)


@cache
def _forms(sort: Any) -> list[tuple[str, Callable[[Any], Any]]]:
    """For each column its name, and how a value of it is written."""
    written = {name: str(getattr(type_, "__forward_arg__", type_)) for name, type_ in sort.__annotations__.items()}
    return [(name, _form(name, type_.removesuffix(" | None"))) for name, type_ in written.items()]


def _form(name: str, written: str) -> Callable[[Any], Any]:
    if name in _JSON:
        return _parsed
    if written == "Micros":
        return iso
    return _id_text if written in ("bytes", "JobId", "RunId", "NodeId", "FlowId") else _same


def _same(value: Any) -> Any:
    return value


def _id_text(id: bytes) -> str:
    return str(to_uuid(id))


def _parsed(text: str) -> Any:
    """The value of a JSON column; the text itself where it is no JSON that could be written again."""
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError):
        return text


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is too large for a float")
    return number


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_DECODER = json.JSONDecoder(parse_float=_finite, parse_constant=_refuse)


def archived(job_id: JobId) -> Op[Archived | None]:
    """The job in the archive. None: it is not there."""
    rows = (yield Call("read_archived", (job_id,))).rows
    return readable(Archived, rows[0])[0] if rows else None


def archived_jobs(below: bytes, size: int) -> Op[list[Archived]]:
    """One page of the archive, the newest jobs first. Shorter than `size`: the last page."""
    return [readable(Archived, row, "job_id")[0] for row in (yield Call("list_archived", (below, size))).rows]


# -- log lines and records -------------------------------------------------------------------------------------------


def remove_logs(before: Micros, limit: int) -> Op[int]:
    """Remove up to `limit` log lines older than that, of any job. Fewer: there are no more."""
    rows = (yield Call("old_logs", (id_floor(before), before, limit))).rows
    last = dict(rows)
    if last:
        yield Call("delete_old_logs", [(run_id, line, before) for run_id, line in last.items()])
    return len(rows)


def remove_records(before: Micros, limit: int) -> Op[dict[str, int]]:
    """Remove up to `limit` each of what was closed before then: slots of built-in work, stretches of missed instants,
    closed reservations, expired locks; and keys of limits that nothing uses. Returns how many of each. Fewer than
    `limit` of all: there are no more."""
    slots = yield from _found("old_slots", before, limit)
    if slots:
        yield Call("delete_old_slots", list(dict(slots).items()))
    missed = yield from _found("old_missed", before, limit)
    if missed:
        yield Call("delete_missed", missed)
    reservations = yield from _found("old_reservations", before, limit)
    if reservations:
        yield Call("delete_reservation", reservations)
    locks = yield from _found("old_locks", before, limit)
    if locks:
        yield Call("delete_old_lock", [(name, before) for (name,) in locks])
    keys = yield from _found("unused_keys", before, limit)
    if keys:
        yield Call("drop_key", keys)
    found = {"slots": slots, "missed": missed, "reservations": reservations, "locks": locks, "limit keys": keys}
    return {name: len(rows) for name, rows in found.items()}


def _found(statement: str, before: Micros, limit: int) -> Op[list[tuple[Any, ...]]]:
    return (yield Call(statement, (before, limit))).rows


def remove_nodes(after: NodeId | None, before: Micros, size: int) -> Op[Page[NodeId]]:
    """Of the next `size` nodes that stopped before then, remove those that no job, run or schedule names.

    The next page begins after `next.id`.
    """
    found = (yield Call("old_nodes", (after or FIRST_ID, before, size))).rows
    unnamed: list[NodeId] = []
    for node_id, started_at, stopped_at in found:
        time = (id_floor(started_at - CLOCKS_DIFFER_US), id_floor(stopped_at + CLOCKS_DIFFER_US), NAMED_BY)
        names = (yield Call("nodes_of_runs", time)).rows
        if len(names) < NAMED_BY and (node_id,) not in names:
            unnamed.append(cast("NodeId", node_id))
    if unnamed:
        yield Call("delete_node", [(node_id,) for node_id in unnamed])
    return Page(unnamed, Spot(found[-1][0]) if len(found) == size else None)


# -- space -----------------------------------------------------------------------------------------------------------

SPARE_PAGES = 1_000
SPARE_PART = 10
FREED_AT_ONCE = 200
"""Pages: the last ones of the file are moved to where there is room."""


def give_back() -> Op[bool]:
    """Give some of the free space in the file back to the file system. True: there is more to give.

    A tenth of the file is kept: new jobs need room too.
    """
    rows = (yield Call("count_pages")).rows
    if not rows or rows[0][0] <= max(SPARE_PAGES, rows[0][1] // SPARE_PART):
        return False
    for _ in range(FREED_AT_ONCE):
        yield Call("free_page")
    return True
