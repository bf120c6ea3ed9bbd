"""Flows of random shape under SIGKILL at every statement: workers die again and again in the middle of their turns. In
the end each job has ended once, as its parents' ends and its condition say, every flow has counted all its members,
those that others have added among them, and nothing waits."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections import Counter, defaultdict
from contextlib import suppress
from multiprocessing.context import ForkServerProcess
from typing import NamedTuple

import pytest

from perdure.errors import DatabaseBusy, TransitionRefused
from perdure.ids import FlowId, NodeId
from perdure.job.flow import NEVER_RAN, STOPPED, Edge, FlowRow, NeedsName, NewFlow, OnFailure, end_state, is_met
from perdure.job.model import NewJob
from perdure.job.references import Tree, reference, waiting_for, with_condition
from perdure.ops.doctor import examine, is_healthy
from perdure.store.protocols import clock_of
from perdure.testing.contract.rig import Rig
from tests import history
from tests.conftest import SIZE
from tests.crash import points
from tests.crash.points import GROWN
from tests.crash.test_limits_killed import WORKERS, live, rescued
from tests.crash.workers import Scene, ended

NEEDS: tuple[NeedsName, ...] = ("success", "success", "failure", "end")
ON_FAILURE: tuple[OnFailure, ...] = ("continue", "continue", "skip", "stop", "cancel", "pause")
AT_ONCE = 2
"""So many members of a flow run beside each other, where it has a limit."""
ENOUGH = 200
"""Live jobs that keep all workers busy."""
FEW = 4


class Maker:
    """Makes flows of random shape, the same for the same seed."""

    def __init__(self, rig: Rig, seed: int) -> None:
        self._rig = rig
        self._chance = random.Random(seed)
        self.callbacks: dict[bytes, tuple[FlowId, NeedsName]] = {}
        self.conditions: dict[bytes, bytes] = {}
        """Jobs with a condition on a job (its result is not 0) or on a flow (none of its members has failed)."""
        self.made = 0

    def start(self) -> None:
        """One, with a flow or two inside it, and callbacks for each end of the outermost."""
        outer, jobs = self._flow(None)
        flows = [outer]
        for _ in range(self._chance.randrange(3)):
            inner, members = self._filled(outer, jobs) if self._chance.random() < 0.3 else self._flow(outer)
            flows.append(inner)
            jobs += members
            [join] = self._rig.members(outer, 1, len(jobs), queue="flows", after=(self._edge(inner.id),))
            jobs.append(self._perhaps_if(join, condition_on_flow(inner.id)))
        for needs in ("success", "failure", "end"):
            callback = self._rig.new(
                queue="flows", flow_id=outer.id, after=(Edge(outer.id, needs),), max_attempts=10_000
            )
            self.callbacks[callback.id] = (outer.id, needs)
            jobs.append(callback)
        now = clock_of(self._rig.store).now()
        self._rig.store.start_flows(
            [flow._replace(created_at=now) for flow in flows],
            [job._replace(created_at=now, run_at=now) for job in jobs],
        )
        self.made += 1

    def _filled(self, outer: NewFlow, jobs: list[NewJob]) -> tuple[NewFlow, list[NewJob]]:
        """One that a member of the outer one fills."""
        filler = self._chance.choice([job for job in jobs if job.flow_id == outer.id])
        flow = self._new_flow(outer)
        return flow._replace(sort="batch", open=True, filled_by=filler.id), []

    def _new_flow(self, outer: NewFlow | None) -> NewFlow:
        on_failure = self._chance.choice(ON_FAILURE)
        flow = self._rig.new_flow(parent_id=None if outer is None else outer.id, on_failure=on_failure)
        return flow._replace(at_once=AT_ONCE if self._chance.random() < 0.3 else None)

    def _flow(self, outer: NewFlow | None) -> tuple[NewFlow, list[NewJob]]:
        flow = self._new_flow(outer)
        jobs = self._rig.members(flow, self._chance.randint(1, 6), queue="flows", max_attempts=10_000)
        for number in range(1, len(jobs)):
            parents = self._chance.sample(jobs[:number], self._chance.randint(0, min(2, number)))
            jobs[number] = jobs[number]._replace(after=tuple(self._edge(parent.id) for parent in parents))
            for parent in parents[:1]:
                jobs[number] = self._perhaps_if(jobs[number], condition_on_job(parent.id))
        return flow, jobs

    def _perhaps_if(self, job: NewJob, when: Condition) -> NewJob:
        """The same job, perhaps with this condition."""
        if self._chance.random() < 0.7:
            return job
        self.conditions[job.id] = when.source
        return waiting_for(job, (), with_condition(None, when.tree))

    def _edge(self, parent: bytes) -> Edge:
        return Edge(parent, self._chance.choice(NEEDS))


class Condition(NamedTuple):
    """A condition, and the job or flow that it is on."""

    source: bytes
    tree: Tree


def condition_on_job(job_id: bytes) -> Condition:
    return Condition(job_id, {"left": reference(job_id, "result"), "is": ">", "value": 0})


def condition_on_flow(flow_id: bytes) -> Condition:
    return Condition(flow_id, {"left": reference(flow_id, "summary", ["failed"]), "is": "==", "value": 0})


def ends(rig: Rig) -> dict[bytes, tuple[str, str | None]]:
    """How each job ended; none has ended twice."""
    rows = rig.execute("SELECT job_id, state, error_type, life FROM {outcome}")
    assert {row[3] for row in rows} == {1}
    return {_id(row[0]): (str(row[1]), None if row[2] is None else str(row[2])) for row in rows}


def _id(value: object) -> bytes:
    """PostgreSQL's driver makes a UUID of it."""
    return value if isinstance(value, bytes) else getattr(value, "bytes")  # noqa: B009 - for type checkers


def check_edges(rig: Rig, maker: Maker, ended: dict[bytes, tuple[str, str | None]]) -> None:
    """Every edge was decided by the end of what it leads to, and every job by its edges and its condition."""
    flows = {_id(one): (str(state), None) for one, state in rig.execute("SELECT id, state FROM {flow}")}
    unmet: Counter[bytes] = Counter()
    for depends_on, job_id, needs, state in rig.execute("SELECT depends_on, job_id, needs, state FROM {edge}"):
        met = is_met(str(needs), *(ended | flows)[_id(depends_on)])
        assert state == ("met" if met else "unmet")
        unmet[_id(job_id)] += not met
    for job_id, (state, error_type) in ended.items():
        ran = state in ("completed", "failed")
        source = maker.conditions.get(job_id)
        hinders = unmet[job_id] or (source is not None and not _holds(rig, source, ended))
        assert not (ran and hinders), "a job ran although it could not"
        if state == "skipped":
            assert error_type in NEVER_RAN
            assert error_type == STOPPED or hinders, "a job was skipped without a reason"


def _holds(rig: Rig, source: bytes, ended: dict[bytes, tuple[str, str | None]]) -> bool:
    """The condition that the maker has given on this job or flow."""
    if source in ended:
        return ended[source][0] == "completed" and points.result_of(source) > 0
    return rig.flow(FlowId(source)).failed == 0


def check_flows(rig: Rig, ended: dict[bytes, tuple[str, str | None]]) -> None:
    """Every flow has counted all its members, and ended as they did."""
    counted: dict[bytes, Counter[str]] = defaultdict(Counter)
    for job_id, flow_id in rig.execute("SELECT id, flow_id FROM {job} WHERE sequence IS NOT NULL"):
        counted[_id(flow_id)][ended[_id(job_id)][0]] += 1
    rows = _flows(rig)
    for row in rows:
        if row.parent_id is not None:
            counted[row.parent_id][row.state] += 1
    for row in rows:
        names = ("completed", "failed", "cancelled", "skipped")
        shown, members = ({name: of[name] for name in names} for of in (row._asdict(), counted[row.id]))
        may_be = [members, *_unfilled(row, members, ended)]
        assert shown in (may_be if row.cancel_requested_at else may_be[-1:])
        assert row.state == end_state(row.failed, row.cancelled, row.on_failure)


def _unfilled(
    row: FlowRow, members: dict[str, int], ended: dict[bytes, tuple[str, str | None]]
) -> list[dict[str, int]]:
    """Where the job that fills a flow does not succeed, it counts as a member, unless the flow was cancelled before."""
    if row.filled_by is None or is_met("success", *ended[row.filled_by]):
        return []
    state = "failed" if ended[row.filled_by][0] == "failed" else "cancelled"
    return [members | {state: members[state] + 1}]


def check_growth(rig: Rig, ended: dict[bytes, tuple[str, str | None]]) -> None:
    """Each that adds to its flow has done so once, if it completed; and each that fills a flow has filled it once."""
    members, added = list[tuple[bytes, bytes]](), Counter[tuple[bytes, bytes]]()
    for one, kind, of, payload in rig.execute(
        "SELECT id, kind, flow_id, payload FROM {job} WHERE sequence IS NOT NULL"
    ):
        if kind == GROWN:
            added[bytes.fromhex(json.loads(str(payload))["by"]), _id(of)] += 1
        else:
            members.append((_id(one), _id(of)))
    for job_id, flow_id in members:
        assert added.pop((job_id, flow_id), 0) == (ended[job_id][0] == "completed" and points.grows(job_id))
    for flow in _flows(rig):
        if flow.filled_by is not None:
            count = added.pop((flow.filled_by, flow.id), 0)
            assert count in (0, points.FILLED)
            assert count or ended[flow.filled_by][0] != "completed" or flow.cancel_requested_at
    assert not added


def _flows(rig: Rig) -> list[FlowRow]:
    return [rig.flow(FlowId(_id(one))) for (one,) in rig.execute("SELECT id FROM {flow}")]


def check_callbacks(rig: Rig, maker: Maker, ended: dict[bytes, tuple[str, str | None]]) -> None:
    """Each ran to its end once, or was skipped, as the end of its flow says."""
    lost = "SELECT job_id FROM {run} WHERE state <> 'lost'"
    runs = Counter(_id(job_id) for (job_id,) in rig.execute(lost))
    for job_id, (flow_id, needs) in maker.callbacks.items():
        due = is_met(needs, rig.flow(flow_id).state, None)
        assert (ended[job_id][0] in ("completed", "failed"), runs[job_id]) == (due, int(due))


class Doomed:
    """Workers on one database. Each dies at a statement: of those that workers have come to, one where few have died.
    Then another is started."""

    def __init__(self, scene: Scene, seed: int) -> None:
        self._scene = scene
        self._chance = random.Random(seed)
        self._noted = scene.path.with_suffix(".sorts")
        self._workers: dict[NodeId, ForkServerProcess] = {}

    def sorts(self) -> dict[str, int]:
        """The statements that workers came to, and how many died at each."""
        noted = history.events(self._noted)
        return {one["sort"]: 0 for one in noted} | Counter(one["sort"] for one in noted if one["event"] == "died")

    def go_on(self) -> None:
        """Bury those that have died, and let others take their place."""
        for node, process in list(self._workers.items()):
            if process.exitcode is not None:
                assert process.exitcode == -signal.SIGKILL, self._scene.log.read_text()
                self._bury(node)
        while len(self._workers) < WORKERS:
            self._start()

    def _start(self) -> None:
        node = NodeId(self._scene.app.ids.new())
        sorts = self.sorts()
        fewest = [sort for sort, died in sorts.items() if died == min(sorts.values())]
        if len(sorts) > FEW and self._chance.random() < 0.8:
            which = (self._chance.choice(fewest), self._chance.randint(1, 5))
        else:  # few can be told apart: on PostgreSQL they are sent together
            which = ("", self._chance.randint(1, 400))
        self._workers[node] = self._scene.process(points.end_flows, self._scene.place, node, *which, self._noted)

    def _bury(self, node: NodeId) -> None:
        del self._workers[node]
        rescued(self._scene.app, node)

    def close(self) -> None:
        for node, process in list(self._workers.items()):
            process.kill()
            ended(process)
            self._bury(node)


def resume_all(rig: Rig) -> int:
    """What someone does about flows that have paused because a member failed. Returns how many there were."""
    paused = rig.execute("SELECT id FROM {flow} WHERE state = 'running' AND paused_at IS NOT NULL")
    for (flow_id,) in paused:
        with suppress(DatabaseBusy, TransitionRefused):  # it has ended just now
            rig.store.change_flow(FlowId(_id(flow_id)), "resume", clock_of(rig.store).now())
    return len(paused)


def most_at_once(rig: Rig) -> int:
    """How many members of a flow run that has a limit: the most of any."""
    counts = rig.execute(
        "SELECT COUNT(*) FROM {ready} AS r JOIN {flow} AS f ON f.id = r.flow_id"
        " WHERE r.state = 'running' AND f.at_once IS NOT NULL GROUP BY f.id"
    )
    return max((int(str(count)) for (count,) in counts), default=0)


@pytest.mark.timeout(1_800)
def test_flows_of_any_shape_end_once_while_workers_die_at_every_statement(scene: Scene) -> None:
    wanted = 1_000 if SIZE == "full" else max(20, 100 // scene.thrift)
    rig = Rig(scene.place.url)
    rig.store.upgrade()
    maker, workers, pause = Maker(rig, 5), Doomed(scene, 11), threading.Event()
    resumed = 0
    try:
        while maker.made < wanted or live(rig):
            for _ in range(min(10, wanted - maker.made) if live(rig) < ENOUGH else 0):
                maker.start()
            workers.go_on()
            resumed += resume_all(rig)
            assert most_at_once(rig) <= AT_ONCE
            pause.wait(0.005)
    finally:
        workers.close()
    rig.settle()
    assert live(rig) == 0, "something waits for ever"
    assert resumed or wanted < 100, "no flow has paused"
    outcomes = ends(rig)
    check_edges(rig, maker, outcomes)
    check_flows(rig, outcomes)
    check_growth(rig, outcomes)
    check_callbacks(rig, maker, outcomes)
    findings = examine(rig.store)
    assert is_healthy(findings), findings
    sorts = workers.sorts()
    alive = [sort for sort, died in sorts.items() if not died]
    print(f"{sum(sorts.values())} deaths at {len(sorts)} statements; at none of {alive}")  # noqa: T201 - shown with -s
    assert SIZE != "full" or len(alive) <= len(sorts) // 10, "not everywhere"
    rig.close()
