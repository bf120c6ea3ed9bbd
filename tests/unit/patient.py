"""A database with a job in every situation, and the ways to break it by hand. Used by the doctor's tests."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from perdure import Job, Perdure, Retry
from perdure.clock import Micros
from perdure.ids import FlowId, JobId, NodeId, ReservationId, RunId, to_uuid
from perdure.job.flow import NewFlow
from perdure.job.model import Claim, Failure, NewJob, Plan
from perdure.job.reports import (
    Cancelled,
    Completed,
    Failed,
    Finish,
    Released,
    Report,
    Skipped,
    TimedOut,
    Unreadable,
)
from perdure.limit.key import Need, key_of, name_of, written
from perdure.store.repair import CLOCKS_DIFFER_US
from perdure.store.rows import HOLD_LEASE_US, Claimer, Lane, LimitRule, LogLine, NewNode, ReservationRow, Turn

MISSING = b"\xee" * 16
FEW, FEW_TOO = key_of("few", has_value=False), key_of("few_too", "a")
"""Keys of two limits: one that goes by nothing, and one value of the other."""
LEASE_US = 60_000_000
BROKEN = Failed(Failure("RuntimeError", "no", permanent=True))


class Patient(NamedTuple):
    """A database file and the ids of what is in it, by the name of their situation."""

    path: Path
    ids: dict[str, bytes]

    def suffer(self, *statements: str) -> None:
        """Do something to the database that Perdure never would. `:queued` and so on stand for the ids."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            for statement in statements:
                connection.execute(statement, self.ids)

    def rows(self, query: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(query, self.ids).fetchall()

    def copy(self, path: Path) -> Patient:
        shutil.copy(self.path, path)
        return Patient(path, self.ids)

    def app(self) -> Perdure:
        return Perdure(self.path)

    def now(self) -> Micros:
        """The moment at which it was healthy, and which the cases reckon with."""
        [[moment]] = self.rows(f"SELECT {NOW}")
        assert isinstance(moment, int)
        return Micros(moment)


def healthy(path: Path) -> Patient:
    """A new database file in which nothing is wrong."""
    app = Perdure(path)
    ids = populate(app)
    app.close()
    return Patient(path, ids)


TWINS = ("", "_too")
"""Of every sort there are two, so that what is true of one cannot stand for the other."""


def populate(app: Perdure) -> dict[str, bytes]:
    """Bring two jobs into every situation; answers their ids by name."""
    kinds = _kinds(app)
    ids = {"missing": MISSING}
    for twin in TWINS:
        ids[f"node{twin}"] = _new_node(app)
    for twin in TWINS:
        node = NodeId(ids[f"node{twin}"])
        ids |= {f"{name}{twin}": job_id for name, job_id in _ended(app, node, *kinds).items()}
    for twin in TWINS:
        node = NodeId(ids[f"node{twin}"])
        ids |= {f"{name}{twin}": job_id for name, job_id in _running(app, node, kinds[0], twin).items()}
    ids |= _parked(app, NodeId(ids["node"]), kinds[0])
    for twin in TWINS:
        ids |= {f"{name}{twin}": job_id for name, job_id in _waiting(app, kinds[0], twin).items()}
    for twin, key in zip(TWINS, (FEW, FEW_TOO), strict=True):
        node = NodeId(ids[f"node{twin}"])
        ids |= {f"{name}{twin}": job_id for name, job_id in _limited(app, node, key, f"limited{twin}").items()}
    for twin in TWINS:
        ids |= {f"{name}{twin}": one for name, one in _flows(app).items()}
    ids["retired"] = _new_node(app)
    app.store.stop(NodeId(ids["retired"]), "shutdown", app.clock.now())
    for twin in TWINS:
        _reserve(app, f"gpu{twin}")
        app.store.close_reservation(_reserve(app, f"side{twin}"), "released", app.clock.now())
    return ids


def _kinds(app: Perdure) -> tuple[Any, Any]:
    """One kind that is retried in place, and one that is retried as a new job."""

    @app.job(retry=Retry(max_attempts=3))
    def work(n: int = 0) -> int:
        return n

    @app.job(retry=Retry(max_attempts=3, as_new_job=True))
    def chain() -> None: ...

    return work, chain


def _ended(app: Perdure, node: NodeId, work: Any, chain: Any) -> dict[str, bytes]:
    """Jobs that have ended in every way, and what came after them."""
    ids: dict[str, bytes] = {}

    def ended(name: str, *reports: Report) -> None:
        ids[name] = work.options(tags=["done"]).enqueue(1).row.id
        for report in reports:
            _finish(app, report, *_claim(app, node))

    ids["completed"] = work.options(tags=["done"]).enqueue(1).row.id
    [taken] = _claim(app, node)
    app.store.append_log([LogLine(taken.run_id, 1, taken.job_id, app.clock.now(), "INFO", "working")])
    _finish(app, Completed("1"), taken)
    ended("failed", BROKEN)
    ended("skipped", Skipped("nothing to do"))
    ended("timed_out", TimedOut(Failure("TimedOut", "too long", permanent=True)))
    ids["cancelled"] = app.cancel(work.enqueue()).row.id
    ended("stopped", Cancelled())
    ended("twice", BROKEN)
    app.retry(_text(ids["twice"]))
    _finish(app, Completed("1"), *_claim(app, node))
    ended("reborn", BROKEN)
    app.pause(app.retry(_text(ids["reborn"])))
    ids["chained"] = chain.enqueue().row.id
    _finish(app, Failed(Failure("RuntimeError", "once more")), *_claim(app, node))
    [successor] = app.jobs(state="queued", kind="chain")
    ids["successor"] = app.pause(successor).row.id
    gone = work.options(idempotency_key=f"gone-{node.hex()}").enqueue()
    ids["deleted"] = gone.row.id
    app.cancel(gone)
    app.delete(gone)
    return ids


def _running(app: Perdure, node: NodeId, work: Any, twin: str) -> dict[str, bytes]:
    """Jobs that are running, the second one after an attempt that was given back, and one to be replaced."""
    ids = {"running": work.options(timeout=60).enqueue(4).row.id}
    if twin:
        _finish(app, Released(counts=True), *_claim(app, node))
    _claim(app, node)
    ids["superseded"] = work.options(business_key=f"replaced{twin}").enqueue(5).row.id
    _claim(app, node)
    replaced = app.supersede(_text(ids["superseded"]), work.options(business_key=f"replaced{twin}").new(6))
    assert replaced.superseded_by is not None
    ids["blocked"] = replaced.superseded_by.bytes
    return ids


def _parked(app: Perdure, node: NodeId, work: Any) -> dict[str, bytes]:
    """Jobs that are parked, for every reason there is."""
    ids = {"unreadable": work.enqueue(7).row.id}
    _finish(app, Unreadable("what is this"), *_claim(app, node))
    for name, knows in (("parked_too", {"work": 0}), ("parked", {"chain": 1})):
        ids[name] = work.enqueue(7).row.id
        _claim(app, node, knows)
    return ids


def _waiting(app: Perdure, work: Any, twin: str) -> dict[str, bytes]:
    """Jobs that wait."""
    keyed = work.options(business_key=f"order-1{twin}", idempotency_key=f"once{twin}")
    return {
        "paused": app.pause(work.enqueue(8)).row.id,
        "scheduled": work.options(delay=3600).enqueue(9).row.id,
        "keyed": keyed.enqueue(10).row.id,
        "aside": work.options(queue=f"side{twin}").enqueue(11).row.id,
        "queued": _from_template(app, f"news{twin}").row.id,
    }


def _flows(app: Perdure) -> dict[str, bytes]:
    """A flow with one member that waits, one that was cancelled, and another flow inside it; one that has ended; and
    one that is open. Inside the first two is one that has ended."""
    now = app.clock.now()
    outer, inner, ended, still_open, *done = (
        NewFlow(FlowId(app.ids.new()), "workflow", "nightly", "shop", now) for _ in range(6)
    )
    plan = _plan("flows")
    jobs = {
        name: NewJob(JobId(app.ids.new()), plan, '{"n":1}', None, now, now, "queued", flow_id=of.id, sequence=number)
        for name, of, number in (
            ("member", outer, 0),
            ("dropped", outer, 1),
            ("inner_member", inner, 0),
            ("ended_member", ended, 0),
        )
    }
    inner, done_inside, done_too = (
        one._replace(parent_id=of.id) for one, of in ((inner, outer), (done[0], outer), (done[1], ended))
    )
    waiting = [jobs[name] for name in ("member", "dropped", "inner_member")]
    app.store.start_flows([outer, inner, done_inside], waiting)
    app.store.start_flows([ended, done_too], [jobs["ended_member"]])
    app.store.start_flows([still_open._replace(open=True)], [])
    for name in ("dropped", "ended_member"):
        app.cancel(_text(jobs[name].id))
    app.store.turn(Turn(settle=True), now)
    flows = {"flow": outer.id, "inner": inner.id, "flow_ended": ended.id, "flow_open": still_open.id}
    return {**{name: job.id for name, job in jobs.items()}, **flows}


def _limited(app: Perdure, node: NodeId, key: str, queue: str) -> dict[str, bytes]:
    """A job that holds the only permit of a key, and one that is twice as heavy and stands in its line."""
    now = app.clock.now()
    app.store.declare_limits([LimitRule(name_of(key), "at_once", 1)], [queue], Micros(now - 1))
    jobs = {
        name: NewJob(JobId(app.ids.new()), _plan(queue, Need(key, weight)), '{"n":1}', None, now, now, "held")
        for name, weight in (("permitted", 1), ("in_line", 2))
    }
    app.store.enqueue(list(jobs.values()))
    app.store.turn(Turn(settle=True), now)
    for _ in jobs:
        _claim(app, node, queue=queue)
    return {name: job.id for name, job in jobs.items()}


def _plan(queue: str, *needs: Need) -> Plan:
    few = (None, None, None, 0, 3, 0, None, written(needs), (), "raise", ("work",))
    return Plan("work", 1, "shop", queue, *few, plain=not needs)


def _from_template(app: Perdure, name: str) -> Job:
    """A job of the first version of a template that has two."""
    app.templates.put(name, "work", {"n": 12}, tags=["x"])
    job = app.templates.enqueue(name)
    app.templates.put(name, "work", {"n": 13}, tags=["x"])
    return job


def _new_node(app: Perdure) -> NodeId:
    node = NodeId(app.ids.new())
    app.store.register(NewNode(node, app.clock.now()))
    return node


def _reserve(app: Perdure, queue: str) -> ReservationId:
    held = ReservationId(app.ids.new())
    now = app.clock.now()
    made_by = (held, queue, "ann", "active", now, None)
    assert app.store.reserve(ReservationRow(*made_by, Micros(now + LEASE_US), LEASE_US, LEASE_US)) is None
    return held


def _claim(app: Perdure, node: NodeId, kinds: dict[str, int] | None = None, queue: str = "default") -> Sequence[Claim]:
    """The job at the head of a queue; with kinds that do not fit, it is parked."""
    runs = [RunId(run) for run in app.ids.new_many(1)]
    return app.store.claim([Lane(queue, 1)], Claimer(node, kinds, runs, LEASE_US), app.clock.now())


def _finish(app: Perdure, report: Report, taken: Claim) -> None:
    app.store.finish([Finish(taken.live, report, JobId(app.ids.new()))], app.clock.now())


def _text(job_id: bytes) -> str:
    return job_id.hex()


# -- what can be done to it ------------------------------------------------------------------------------------------


class Case(NamedTuple):
    """Something done to the healthy database, and what the doctor must find then: whom, by the name of the check.

    Whom: ids by their names in `Patient.ids`, or names of queues, with blanks between them. Nothing: it did no harm.
    """

    statements: tuple[str, ...]
    findings: dict[str, str]

    def __str__(self) -> str:
        return "+".join(self.findings) or "harmless"

    def expected(self, ids: Mapping[str, bytes]) -> dict[str, list[str]]:
        """What the findings and their examples must be."""
        return {
            name: sorted(str(to_uuid(ids[one])) if one in ids else one for one in whom.split())
            for name, whom in self.findings.items()
        }


def case(*statements: str, **findings: str) -> Case:
    return Case(statements, findings)


def job(name: str, change: str) -> str:
    return f"UPDATE perdure_job SET {change} WHERE id = :{name}"


def ready(name: str, change: str) -> str:
    return f"UPDATE perdure_ready SET {change} WHERE job_id = :{name}"


def run(name: str, change: str) -> str:
    return f"UPDATE perdure_run SET {change} WHERE job_id = :{name}"


def edge(name: str, change: str) -> str:
    return f"UPDATE perdure_edge SET {change} WHERE job_id = :{name}"


def flow(name: str, change: str) -> str:
    return f"UPDATE perdure_flow SET {change} WHERE id = :{name}"


def outcome(name: str, change: str) -> str:
    return f"UPDATE perdure_outcome SET {change} WHERE job_id = :{name}"


def limit(name: str, change: str) -> str:
    return f"UPDATE perdure_limit_rule SET {change} WHERE name = '{name}'"


def permit(name: str, change: str) -> str:
    return f"UPDATE perdure_permit SET {change} WHERE holder = :{name}"


def of_key(key: str, column: str, value: int | str) -> tuple[str, str]:
    """Set by hand for one key, or noted of it. On servers it may have a row already: its lock."""
    forget = f"DELETE FROM perdure_limit_key WHERE key = '{key}'"
    return forget, f"INSERT INTO perdure_limit_key (key, {column}) VALUES ('{key}', {value})"


def look(key: str, whole: int) -> str:
    """Word left that this line is to be looked at, or those of a whole limit."""
    return f"INSERT INTO perdure_limit_look (look_id, key, whole, after) VALUES (:missing, '{key}', {whole}, '')"


def another_permit(key: str, holder: str, lease_until: str) -> str:
    values = f"('{key}', :{holder}, 1, {lease_until})"
    return f"INSERT INTO perdure_permit (key, holder, weight, lease_until) VALUES {values}"


def awake(queue: str, needs: str) -> tuple[str, str]:
    """Another job in a queue, at the front of it, that the next claim looks at."""
    change = f"queue = '{queue}', position = 7, state = 'held', limit_key = '{needs}'"
    return job("queued", f"queue = '{queue}'"), ready("queued", change)


def first_life(change: str) -> str:
    return f"{change} AND life = 1"


NOW = "(SELECT MAX(created_at) + 1 FROM perdure_job)"
MINUTE, HOUR = 60_000_000, 3_600_000_000
DAY = 24 * HOUR
SOON = HOLD_LEASE_US + CLOCKS_DIFFER_US
A_WHILE = 600 * 1_000_000
"""Repairs go by the clock of a server, which goes on meanwhile."""

_CREATED = "(SELECT created_at FROM perdure_job WHERE id = :{})"
_RUN = "INSERT INTO perdure_run (id, job_id, state, node_id, attempt, life, started_at, finished_at, wait_ms)"
_COLUMNS = "job_id, state, node_id, attempt, life, started_at, finished_at, wait_ms"
_SECOND_RUN = (
    f"INSERT INTO perdure_run (id, {_COLUMNS}) SELECT :missing, {_COLUMNS} FROM perdure_run WHERE job_id = :completed"
)
_OUTCOME = (
    "INSERT INTO perdure_outcome (job_id, life, state, finished_at, rank, position, run_at, queued_at, started_at,"
    " attempts, crashes, max_attempts, version) SELECT {}, 1, '{}', finished_at + 3600000000, rank, position, run_at,"
    " queued_at, started_at, attempts, crashes, max_attempts, 1 FROM perdure_outcome WHERE job_id = :failed"
)


def ended_and_live(name: str) -> str:
    return _OUTCOME.format(f":{name}", "cancelled")


CASES: tuple[Case, ...] = (
    # -- lives --
    case("DELETE FROM perdure_ready WHERE job_id = :scheduled", job_without_state="scheduled"),
    case("DELETE FROM perdure_outcome WHERE job_id = :failed", job_without_state="failed"),
    case("DELETE FROM perdure_job WHERE id = :scheduled", live_without_job="scheduled"),
    case(ended_and_live("scheduled"), ended_and_live="scheduled"),
    case(ready("scheduled", "life = 3"), life_missing="scheduled"),
    case(ready("scheduled", "life = 2"), life_missing="scheduled"),
    case(outcome("failed", "life = 2"), run("failed", "life = 2"), life_missing="failed"),
    case(outcome("failed", "life = 3"), run("failed", "life = 3"), life_missing="failed"),
    case(ready("scheduled", "state = 'dreaming'"), unknown_state="scheduled"),
    case(outcome("failed", "state = 'vanished'"), unknown_state="failed"),
    case(run("failed", "state = 'vanished'"), unknown_state="failed"),
    case(run("failed", "state = 'lost'")),
    case(ready("queued", "kind_version = 7"), live_copy_differs="queued"),
    case(ready("queued", "kind = 'chain'"), live_copy_differs="queued"),
    case(job("queued", "queue = 'elsewhere'"), live_copy_differs="queued"),
    case(job("queued", "business_key = 'mine'"), live_copy_differs="queued"),
    case(job("keyed", "business_key = NULL"), live_copy_differs="keyed"),
    # -- runs --
    case("DELETE FROM perdure_run WHERE job_id = :running", running_without_run="running"),
    case("DELETE FROM perdure_run WHERE job_id = :superseded", running_without_run="superseded"),
    case(run("running", f"state = 'lost', finished_at = {NOW}"), running_without_run="running"),
    case(run("running", f"state = 'completed', finished_at = {NOW}"), running_without_run="running"),
    case(run("running", "job_id = :reborn"), run("reborn", f"state = 'lost', finished_at = {NOW}"),
         running_without_run="running"),
    case(run("running", "job_id = :queued"), running_without_run="running", open_run_without_running_job="queued"),
    case(ready("running", "run_id = NULL"), running_without_run="running", second_open_run="running"),
    case(ready("running", "run_id = :missing"), running_without_run="running", second_open_run="running"),
    case(f"{_RUN} VALUES (:missing, :queued, 'running', :node, 1, 1, {NOW}, NULL, 0)",
         open_run_without_running_job="queued"),
    case(f"{_RUN} VALUES (:missing, :running, 'running', :node, 1, 1, {NOW}, NULL, 0)", second_open_run="running"),
    case(f"{_RUN} VALUES (:missing, :missing, 'failed', :node, 1, 1, {NOW}, {NOW}, 0)", run_without_job="missing"),
    case(f"{_RUN} VALUES (:missing, :missing, 'running', :node, 1, 1, {NOW}, NULL, 0)", run_without_job="missing"),
    case(f"{_RUN} VALUES (:missing, :missing, 'completed', :node, 1, 1, {NOW}, {NOW}, 0)", run_without_job="missing"),
    case("DELETE FROM perdure_job WHERE id = :failed", "DELETE FROM perdure_tag WHERE job_id = :failed",
         run("failed", "life = 9"), run_without_job="failed", outcome_without_job="failed"),
    case(run("failed", "life = 2"), run_of_no_life="failed"),
    case(run("running", "life = 2"), run_of_no_life="running"),
    case(run("failed", "finished_at = NULL"), run_end_disagrees="failed"),
    case(run("running", f"finished_at = {NOW}"), run_end_disagrees="running"),
    case("DELETE FROM perdure_run WHERE job_id = :completed", completed_without_run="completed"),
    case(run("completed", "state = 'failed'"), completed_without_run="completed"),
    case(first_life(outcome("twice", "state = 'completed'")), completed_without_run="twice"),
    case(_SECOND_RUN, completed_twice="completed"),
    case(outcome("completed", "state = 'failed'"), completed_run_not_ended="completed"),
    case(first_life(run("twice", "state = 'completed'")), completed_run_not_ended="twice"),
    case(run("reborn", "state = 'completed'"), completed_run_not_ended="reborn"),
    case(outcome("completed", "state = 'failed'"),
         ready("queued", "run_id = (SELECT id FROM perdure_run WHERE job_id = :completed)"),
         completed_run_not_ended="completed", waiting_but_held="queued"),
    case(ready("queued", "attempts = 99"), attempts_beyond_budget="queued"),
    case(ready("queued", "attempts = max_attempts")),
    case(outcome("failed", "attempts = 99"), attempts_beyond_budget="failed"),
    case(outcome("failed", "attempts = max_attempts")),
    case(run("failed", "attempt = 99"), attempts_beyond_budget="failed"),
    case(run("failed", "attempt = 3")),
    case(run("running", "attempt = 99"), attempts_beyond_budget="running"),
    case(run("running", "attempt = 3")),
    case(run("running", "attempt = 3"), ready("queued", "max_attempts = 1")),
    case(run("reborn", "attempt = 3"), ready("reborn", "max_attempts = 1")),
    case(run("failed", "attempt = 3"), outcome("failed_too", "max_attempts = 1")),
    case(run("twice", "attempt = 1 + life"), first_life(outcome("twice", "max_attempts = 2"))),
    # -- nodes --
    case(ready("running", "node_id = NULL"), running_without_node="running"),
    case(ready("running", "node_id = :missing"), running_on_unknown_node="running"),
    case(f"UPDATE perdure_node SET stopped_at = {NOW}, stop_reason = 'crash' WHERE id = :node",
         running_on_stopped_node="running superseded permitted"),
    case(ready("running", "claimed_at = NULL"), running_half_claimed="running"),
    case(ready("running", "started_at = NULL"), running_half_claimed="running"),
    case(ready("running", "attempts = 0"), running_half_claimed="running"),
    case(ready("running", "deadline_at = NULL"), running_half_claimed="running"),
    case(ready("superseded", f"deadline_at = {NOW}"), running_half_claimed="superseded"),
    # -- waiting --
    case(ready("queued", "node_id = :node"), waiting_but_held="queued"),
    case(ready("queued", "node_id = :retired"), waiting_but_held="queued"),
    case(ready("queued", "node_id = :missing"), waiting_but_held="queued"),
    case(ready("queued", "run_id = :missing"), waiting_but_held="queued"),
    case(ready("queued", f"claimed_at = {NOW}"), waiting_but_held="queued"),
    case(ready("queued", f"deadline_at = {NOW}"), waiting_but_held="queued"),
    case(ready("queued", "cancel_requested = 1"), waiting_but_held="queued"),
    case(ready("running", "cancel_requested = 1")),
    case(ready("paused", "paused = 0"), pause_disagrees="paused"),
    case(ready("queued", "paused = 1"), pause_disagrees="queued"),
    case(ready("running", "paused = 1"), pause_disagrees="running"),
    case(ready("blocked", "state = 'queued'"), block_disagrees="blocked"),
    case(ready("queued", "state = 'blocked'"), block_disagrees="queued"),
    case(ready("running", "waits_for = 1"), block_disagrees="running"),
    case(ready("blocked", "state = 'paused', paused = 1")),
    case(ready("queued", "run_at = updated_at + 3600000000"), queued_too_early="queued"),
    case(ready("queued", "run_at = updated_at")),
    case(ready("scheduled", f"run_at = {NOW} - {5 * MINUTE + 1}"), overdue="scheduled"),
    case(ready("scheduled", f"run_at = {NOW} - {5 * MINUTE}")),
    case(ready("queued", "run_at = 1")),
    case(ready("queued", "state = 'held'"), held_without_limit="queued"),
    case(ready("queued", "state = 'held', limit_key = 'few'")),
    case(ready("parked", "park_reason = NULL"), park_reason_disagrees="parked"),
    case(ready("parked", "park_reason = 'boredom'"), park_reason_disagrees="parked"),
    case(ready("queued", "park_reason = 'unreadable'"), park_reason_disagrees="queued"),
    # -- limits --
    case(another_permit("other", "missing", "NULL"), permit_without_run="other"),
    case(another_permit("other", "queued", "NULL"), permit_without_run="other"),
    case(another_permit("other", "missing", f"{NOW} + {HOUR}")),
    case("DELETE FROM perdure_permit WHERE holder = :permitted", limit("few", "most = 2"),
         run_without_permit="permitted", line_asleep="few"),
    case("DELETE FROM perdure_permit WHERE holder = :permitted_too",
         run_without_permit="permitted_too", line_asleep="few_too=a"),
    case(permit("permitted", "holder = :queued"), permit_without_run="few", run_without_permit="permitted"),
    case(permit("permitted", "key = 'other'"), run_without_permit="permitted", line_asleep="few"),
    case(permit("permitted", "key = 'other'"),
         limit("few", "declared_at = (SELECT claimed_at FROM perdure_ready WHERE job_id = :permitted)"),
         line_asleep="few"),
    case(permit("permitted", "key = 'other'"), limit("few", "sort = 'sliding', per_us = 1"), line_asleep="few"),
    case(ready("in_line", f"claimed_at = {NOW}"), waiting_but_held="in_line"),
    case(permit("permitted", "weight = 2"), over_limit="few"),
    case(permit("permitted_too", "weight = 2"), over_limit="few_too=a"),
    case(permit("permitted", "weight = 2"), *of_key("few", "set_most", 2)),
    case(permit("permitted", "weight = 2"), *of_key("other", "set_most", 2), over_limit="few"),
    case(permit("permitted", "weight = 2"), limit("few", "sort = 'sliding', per_us = 1")),
    case(limit("few", "most = 3"), line_asleep="few"),
    case(limit("few", "most = 2")),
    case(limit("few_too", "most = 3"), line_asleep="few_too=a"),
    case("DELETE FROM perdure_limit_rule WHERE name = 'few'", line_asleep="few"),
    case("DELETE FROM perdure_limit_rule WHERE name = 'few'", *of_key("few", "set_most", 2)),
    case(limit("few", "most = 3"), ready("aside", "state = 'held', held_by = 'few', limit_key = 'few*1'"),
         line_asleep="few few"),
    case(limit("few", f"most = 3, paused_at = {NOW}")),
    case(limit("few", "most = 3"), *of_key("few", "paused_at", 1)),
    case(limit("few", "most = 3"), *of_key("other", "paused_at", 1), line_asleep="few"),
    case(limit("few", "most = 3"), *of_key("few", "opens_at", 1)),
    case(limit("few", "most = 3"), look("few", 0)),
    case(limit("few", "most = 3"), look("other", 1), line_asleep="few"),
    case(limit("few_too", "most = 3"), look("few_too", 1)),
    case(limit("few_too", "most = 3"), look("few_too", 0), line_asleep="few_too=a"),
    case(limit("few", "most = 3"), *awake("limited", "few*1")),
    case(limit("few", "most = 3"), *awake("limited", "other*1"), line_asleep="few"),
    case(limit("few", "most = 3"), *awake("limited_too", "few*1"), line_asleep="few"),
    case(*of_key("few", "opens_at", f"{NOW} + {SOON + A_WHILE}"), key_opens_never="few"),
    case(*of_key("few", "opens_at", f"{NOW} + {SOON}")),
    case(*of_key(FEW_TOO, "opens_at", f"{NOW} + {SOON + A_WHILE}"), key_opens_never="few_too=a"),
    case(limit("few", f"per_us = {HOUR}"), *of_key("few", "opens_at", f"{NOW} + {HOUR}")),
    case(limit("few", f"per_us = {HOUR}"), *of_key(FEW_TOO, "opens_at", f"{NOW} + {HOUR}"),
         key_opens_never="few_too=a"),
    case(limit("few_too", f"per_us = {HOUR}"), *of_key(FEW_TOO, "opens_at", f"{NOW} + {HOUR}")),
    case(ready("queued", "held_by = 'few'"), in_line_not_held="queued"),
    case(ready("running", "held_by = 'few'"), in_line_not_held="running"),
    # -- keys --
    case("INSERT INTO perdure_business_key VALUES ('ghost', :missing)", business_key_without_job="missing"),
    case("INSERT INTO perdure_business_key VALUES ('old', :failed)", business_key_of_ended_job="failed"),
    case("INSERT INTO perdure_business_key VALUES ('other', :queued)", business_key_not_its_own="queued"),
    case("INSERT INTO perdure_business_key VALUES ('other', :keyed)", business_key_not_its_own="keyed"),
    case("DELETE FROM perdure_business_key WHERE job_id = :keyed", business_key_not_reserved="keyed"),
    case("UPDATE perdure_business_key SET key = 'other' WHERE job_id = :keyed",
         business_key_not_its_own="keyed", business_key_not_reserved="keyed"),
    case("UPDATE perdure_business_key SET job_id = :queued WHERE job_id = :keyed",
         business_key_not_its_own="queued", business_key_not_reserved="keyed"),
    case("INSERT INTO perdure_idempotency_key VALUES ('work', 'k', :missing, 1, 'f', 1, NULL)",
         ledger_without_job="missing"),
    case("DELETE FROM perdure_idempotency_key WHERE job_id = :keyed", key_not_in_ledger="keyed"),
    case("UPDATE perdure_idempotency_key SET kind = 'chain' WHERE job_id = :keyed", key_not_in_ledger="keyed"),
    # -- order --
    case("DELETE FROM perdure_queue WHERE name = 'side'", queue_missing="side"),
    case("UPDATE perdure_queue SET next_position = 1 WHERE name = 'default'", queue_counter_behind="default"),
    case("UPDATE perdure_queue SET next_position = (SELECT MAX(position) FROM perdure_ready WHERE queue = 'default')"
         " WHERE name = 'default'", queue_counter_behind="default"),
    case("UPDATE perdure_ready SET position = 7 WHERE job_id IN (:scheduled, :queued)", order_tie="scheduled queued"),
    case("UPDATE perdure_ready SET position = 7 WHERE job_id IN (:scheduled, :queued, :aside)",
         order_tie="scheduled queued"),
    case("UPDATE perdure_ready SET position = 7 WHERE job_id IN (:scheduled, :queued)",
         ready("paused", "position = 7, rank = -5"), order_tie="scheduled queued"),
    # -- reservations --
    case("UPDATE perdure_queue SET reserved_until = 1 WHERE name = 'side'", reserved_for_nobody="side"),
    case("UPDATE perdure_reservation SET status = 'released' WHERE queue = 'gpu'", reserved_for_nobody="gpu"),
    case("DELETE FROM perdure_reservation WHERE queue = 'gpu'", reserved_for_nobody="gpu"),
    case("UPDATE perdure_queue SET reserved_until = NULL WHERE name = 'gpu'", reserved_but_open="gpu"),
    case("DELETE FROM perdure_queue WHERE name = 'gpu'", reserved_but_open="gpu"),
    case("UPDATE perdure_queue SET reserved_until = NULL WHERE name = 'gpu'",
         "UPDATE perdure_queue SET reserved_until = 1 WHERE name = 'default'",
         reserved_but_open="gpu", reserved_for_nobody="default"),
    # -- links --
    case("INSERT INTO perdure_edge VALUES (:queued, :missing, 'end', 'met')", edge_without_job="missing"),
    case(edge("blocked", "depends_on = :missing"), edge_without_job="blocked"),
    case(edge("blocked", "depends_on = :missing, state = 'met'"), ready("blocked", "waits_for = 0, state = 'queued'")),
    case(edge("blocked", "depends_on = :failed"), edge_on_ended_job="blocked"),
    case(edge("blocked", "depends_on = :flow_ended"), edge_on_ended_job="blocked"),
    case(edge("blocked", "depends_on = :flow")),
    case(edge("blocked", "depends_on = :failed"),
         f"INSERT INTO perdure_todo VALUES ('unblock', :failed, :failed, NULL, {NOW})"),
    case(edge("blocked", "depends_on = :failed"),
         f"INSERT INTO perdure_todo VALUES ('look', :failed, :failed, NULL, {NOW})", edge_on_ended_job="blocked"),
    case(edge("blocked", "depends_on = :failed"),
         f"INSERT INTO perdure_todo VALUES ('unblock', :skipped, :failed, NULL, {NOW})", edge_on_ended_job="blocked"),
    case("INSERT INTO perdure_edge VALUES (:failed, :skipped, 'end', 'waiting')"),
    case("INSERT INTO perdure_edge VALUES (:failed, :queued, 'end', 'met')"),
    case(ready("blocked", "waits_for = 2"), waits_for_differs="blocked"),
    case(edge("blocked", "state = 'met'"), waits_for_differs="blocked"),
    case(ready("superseded", "traits = 0"), dependents_not_flagged="superseded"),
    case(ready("superseded", "traits = 6"), dependents_not_flagged="superseded"),
    case(ready("superseded", "traits = 0"), edge("blocked", "state = 'met'"),
         ready("blocked", "waits_for = 0, state = 'queued'")),
    # -- flows --
    case(flow("flow", "total = 9"), flow_sum_differs="flow"),
    case(flow("flow", "completed = completed + 1"), flow_sum_differs="flow"),
    case("DELETE FROM perdure_tally WHERE flow_id = :flow", flow_sum_differs="flow"),
    case("UPDATE perdure_tally SET added = 3 WHERE flow_id = :flow", flow_sum_differs="flow"),
    case(ready("member", "flow_id = NULL"), flow_sum_differs="flow"),
    case(ready("member", "flow_id = :flow_ended"), flow_sum_differs="flow", flow_ended_too_early="flow_ended"),
    case(flow("inner", "parent_id = :flow_ended"), flow_sum_differs="flow", flow_ended_too_early="flow_ended"),
    case(flow("flow_ended", "total = 9")),
    case(ready("superseded", "flow_id = :flow")),
    case(ready("superseded", "flow_id = :flow_ended")),
    case(flow("flow_open", f"created_at = {NOW} - {DAY + 1}"), flow_open_long="flow_open"),
    case(flow("flow_open", f"created_at = {NOW} - {DAY}")),
    case(f"UPDATE perdure_job SET created_at = {NOW} - {DAY + 1} WHERE flow_id = :flow"),
    case(flow("flow_open", f"created_at = {NOW} - {DAY + 1}"), job("completed", "flow_id = :flow_open")),
    case(flow("flow_ended", "sealed_at = NULL"),
         f"UPDATE perdure_job SET created_at = {NOW} - {DAY + 1} WHERE flow_id = :flow_ended"),
    case(flow("flow_open", "sealed_at = created_at"), flow_not_ended="flow_open"),
    case(flow("flow_open", "sealed_at = created_at"), ready("queued", "flow_id = :flow_open"),
         "INSERT INTO perdure_tally VALUES (:flow_open, :node, 1, 0, 0, 0, 0, 0, 0, 0)"),
    case(flow("flow_open", "sealed_at = created_at"),
         f"INSERT INTO perdure_todo VALUES ('look', :flow_open, :flow_open, NULL, {NOW})"),
    case(flow("flow_open", "sealed_at = created_at"),
         f"INSERT INTO perdure_todo VALUES ('look', :flow, :flow, NULL, {NOW})", flow_not_ended="flow_open"),
    case(flow("flow_open", "sealed_at = created_at"),
         f"INSERT INTO perdure_todo VALUES ('stop', :flow_open, :flow_open, NULL, {NOW})", flow_not_ended="flow_open"),
    case("INSERT INTO perdure_todo VALUES ('look', :flow, :flow, NULL, 1)", todo_stuck="flow"),
    case(f"INSERT INTO perdure_todo VALUES ('look', :flow, :flow, NULL, {NOW} - 300000000)"),
    case(outcome("failed", "superseded_by = :missing"), superseded_by_missing="failed"),
    case(outcome("failed", "superseded_by = :queued")),
    case(ready("superseded", "superseded_by = :missing"), superseded_by_missing="superseded"),
    case(outcome("failed", "successor = :missing"), successor_missing="failed"),
    case(job("successor", "auto_retry_of = NULL"), successor_not_linked="chained"),
    case(job("successor", "auto_retry_of = :missing"), successor_not_linked="chained"),
    case(job("successor", "auto_retry_of = :failed"), successor_not_linked="chained failed"),
    case(outcome("chained", "successor = NULL"), successor_not_linked="chained"),
    case("DROP INDEX perdure_job_one_successor", job("queued", "auto_retry_of = :chained"), two_successors="chained"),
    case(job("queued", "parent_id = :missing"), ancestor_missing="queued"),
    case(job("queued", "retry_of = :missing"), ancestor_missing="queued"),
    case(job("queued", "root_id = :missing"), ancestor_missing="queued"),
    case(job("queued", "retry_of = :failed, parent_id = :failed, root_id = :failed")),
    case("DELETE FROM perdure_template_version WHERE version = 2"
         " AND template_id = (SELECT id FROM perdure_template WHERE name = 'news')", template_without_version="news"),
    case("UPDATE perdure_template SET version = 3 WHERE name = 'news'", template_without_version="news"),
    case("DELETE FROM perdure_template_version WHERE version = 1"
         " AND template_id = (SELECT id FROM perdure_template WHERE name = 'news')", template_missing="queued"),
    case(job("queued", "template_version = 3"), template_missing="queued"),
    case(job("queued", "template_version = NULL"), template_missing="queued"),
    case(job("queued", "template_id = :missing"), template_missing="queued"),
    case(job("queued", "template_id = NULL")),
    case("INSERT INTO perdure_slot (schedule_id, scheduled_for, job_id, created_at) VALUES (:missing, 1, :missing, 1)",
         slot_without_job="missing"),
    case("INSERT INTO perdure_slot (schedule_id, scheduled_for, job_id, created_at) VALUES (:missing, 1, NULL, 1)"),
    case("INSERT INTO perdure_slot (schedule_id, scheduled_for, job_id, created_at) VALUES (:missing, 1, :queued, 1)"),
    # -- contents --
    case(ready("queued", "attempts = -1"), impossible_number="queued"),
    case(ready("queued", "crashes = -1"), impossible_number="queued"),
    case(ready("queued", "waits_for = -1"), impossible_number="queued", waits_for_differs="queued"),
    case(ready("queued", "life = 0"), impossible_number="queued"),
    case(ready("queued", "max_attempts = 0"), impossible_number="queued"),
    case(ready("queued", "version = 0"), impossible_number="queued"),
    case(outcome("failed", "attempts = -1"), impossible_number="failed"),
    case(outcome("failed", "crashes = -1"), impossible_number="failed"),
    case(outcome("cancelled", "life = 0"), impossible_number="cancelled"),
    case(outcome("cancelled", "max_attempts = 0"), impossible_number="cancelled"),
    case(outcome("failed", "version = 0"), impossible_number="failed"),
    case(run("failed", "attempt = 0"), impossible_number="failed"),
    case(run("failed", "life = 0"), impossible_number="failed", run_of_no_life="failed"),
    case(job("queued", "chain_attempt = 0"), impossible_number="queued"),
    case(job("failed", "kind_version = 0"), impossible_number="failed"),
    case(job("queued", "created_at = -4611686018427387904"), impossible_number="queued"),
    case(job("queued", "scheduled_for = 4611686018427387904"), impossible_number="queued"),
    case(outcome("failed", "rank = 4611686018427387904"), impossible_number="failed"),
    case(outcome("failed", "run_at = 4611686018427387904"), impossible_number="failed"),
    case(outcome("cancelled", "finished_at = 1"), time_backwards="cancelled"),
    case(outcome("cancelled", f"finished_at = {_CREATED.format('cancelled')} - {MINUTE}")),
    case(outcome("failed", f"started_at = finished_at + {MINUTE + 1}"), time_backwards="failed"),
    case(outcome("failed", f"started_at = finished_at + {MINUTE}")),
    case(run("failed", "started_at = 1"), time_backwards="failed"),
    case(run("failed", f"started_at = {_CREATED.format('failed')} - {MINUTE}")),
    case(run("failed", "finished_at = 1"), time_backwards="failed"),
    case(run("failed", f"finished_at = started_at - {MINUTE}")),
    case(job("queued", f"created_at = created_at + {HOUR}")),
    case(job("queued", "payload = '{'"), unreadable_payload="queued"),
    case(job("queued", "params = '{'"), unreadable_payload="queued"),
    case(job("queued", "options = 'NaN'"), unreadable_payload="queued"),
    case(job("queued", "payload = '[1]'"), unreadable_payload="queued"),
    case(job("queued", "secrets = '{'"), unreadable_payload="queued"),
    case(job("queued", "params = '5'"), unreadable_payload="queued"),
    case(job("queued", "refs = '{'"), unreadable_payload="queued"),
    case(job("queued", "refs = '[1]'"), unreadable_payload="queued"),
    case(outcome("completed", "result = 'nope'"), unreadable_result="completed"),
    case(_OUTCOME.format(":missing", "cancelled"), outcome_without_job="missing"),
    case(_OUTCOME.format(":missing", "completed"), outcome_without_job="missing"),
    case("INSERT INTO perdure_tag VALUES (:missing, 'x')", tag_without_job="missing"),
    case("INSERT INTO perdure_job_log VALUES (:missing, 1, :missing, 1, 'INFO', 'x', NULL)",
         log_without_job="missing"),
)  # fmt: skip
"""What can be done to a healthy database. A condition of a check that no case needs is found by a test."""
