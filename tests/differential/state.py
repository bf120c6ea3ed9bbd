"""What can be seen of a database, in a form in which databases can be compared: without the numbers of places."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from uuid import UUID

from perdure.clock import Micros
from perdure.errors import PerdureError
from perdure.ids import NodeId
from perdure.job.states import RunState, State
from perdure.job.views import Job, Run
from perdure.limit.key import flow_of
from perdure.store.protocols import Store
from perdure.store.rows import FIRST_ID, JobFilter, RunFilter
from perdure.store.tables import tables
from perdure.testing.contract.rig import Rig

Rows = list[dict[str, Any]]

NOT_COMPARED = {"position", "next_position"}
JOBS = [
    JobFilter(),
    *(JobFilter(queue=queue) for queue in ("q0", "q1", "q2")),
    *(JobFilter(state=state) for state in State),
    *(JobFilter(state="queued", queue=queue) for queue in ("q0", "q1", "q2")),
    *(JobFilter(kind=kind) for kind in ("k0", "k1")),
    *(JobFilter(tag=tag) for tag in ("a", "ä", "e")),
    *(JobFilter(business_key=key) for key in "xX"),
    *(JobFilter(idempotency_key=key) for key in "xX"),
]
RUNS = [RunFilter(), *(RunFilter(state=state) for state in RunState), RunFilter(kind="k1")]


def plain(value: Any) -> Any:
    """An answer as plain data."""
    if isinstance(value, PerdureError):
        return type(value).__name__, value.code, value.message
    if isinstance(value, Job):
        return plain(value.row), value.deduplicated
    if isinstance(value, Run):
        return plain(value.row)
    if isinstance(value, UUID):
        return value.bytes
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        return plain(value._asdict())
    if isinstance(value, Mapping):
        return {name: _field(name, item) for name, item in value.items() if name not in NOT_COMPARED}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def _field(name: object, value: Any) -> Any:
    return plain(json.loads(value)) if name == "document" else plain(value)


def rows_of(rig: Rig) -> dict[str, list[str]]:
    """Every row of every table, in the columns that all databases have; instead of its place how many of its queue are
    before it. Without keys of which nothing is noted: on servers such a row is a lock; and without word of the lines of
    flows that have ended, whose keys are gone: only on servers does a turn not know that it has looked at them."""
    found: dict[str, Rows] = {}
    with rig.store.transaction() as tx:
        for name, known, _ in tables().values():
            cursor = tx.execute(f"SELECT * FROM {rig.table(name)}")
            columns = [column[0] for column in cursor.description]
            rows = [dict(zip(columns, row, strict=True)) for row in cursor.fetchall()]
            found[name] = [{column: row[column] for column in known} for row in rows]
    found["limit_key"] = [
        row for row in found["limit_key"] if any(row[name] is not None for name in row.keys() - {"key"})
    ]
    running = {_id(row["id"]) for row in found["flow"] if row["finished_at"] is None}
    found["limit_look"] = [row for row in found["limit_look"] if flow_of(row["key"]) in (None, *running)]
    _number(found)
    return {name: sorted(repr(sorted(plain(row).items())) for row in rows) for name, rows in found.items()}


def _number(found: Mapping[str, Rows]) -> None:
    """The places of jobs by their order in the queue."""
    queue_of = {_id(row["id"]): row["queue"] for row in found["job"]}
    placed: dict[str, set[int]] = {}
    for row in (*found["ready"], *found["outcome"]):
        queue = placed.setdefault(queue_of.get(_id(row["job_id"]), "?"), set())
        queue.add(row["position"])
    for row in (*found["ready"], *found["outcome"]):
        queue = placed[queue_of.get(_id(row["job_id"]), "?")]
        row["place"] = sorted(queue).index(row["position"])


def _id(value: Any) -> bytes:
    return value.bytes if isinstance(value, UUID) else bytes(value)


def questions(store: Store, now: Micros) -> dict[str, Any]:
    """What the store answers when it is asked."""
    asked = {
        "queues": store.queues(),
        "jobs": [[job.row.id for job in store.jobs(wanted, None, 500).items] for wanted in JOBS],
        "runs": [store.runs(wanted, None, 500).items for wanted in RUNS],
        "outstanding": store.outstanding(100),
        "failures": store.failures(Micros(0), 100),
        "failed": store.count_failed(Micros(0), 100),
        "stuck": store.stuck(now, Micros(now - 60_000_000), FIRST_ID, 100),
        "durations": store.durations(FIRST_ID, 100),
        "duplicates": store.duplicates(FIRST_ID, 100, 10),
        "ran": store.ran(FIRST_ID, 100),
        "holds": store.queue_holds("q0"),
        "kinds": store.live_kinds(),
        "overdue": sorted(live.job_id for live in store.overdue(now, 100)),
        "glance": store.glance(NodeId(FIRST_ID), {"k0": 1}),
        "left behind": sorted(store.nodes_left_behind()),
        "schedules": store.schedules("", 100),
        "in trouble": store.schedules_in_trouble(now, 100),
        "next": store.next_trigger(),
        "reservations": store.reservations(100),
        "templates": store.templates(),
        "archived": store.archived_jobs(b"\xff" * 16, 100),
    }
    return {name: plain(answer) for name, answer in asked.items()}
