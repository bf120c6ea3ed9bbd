"""A worker is killed in the middle of its work, and its jobs go on elsewhere. Called by `stage`, after `acts`."""

from __future__ import annotations

from uuid import UUID

from perdure.app import Perdure
from perdure.cli.demo import jobs, programme
from perdure.cli.demo.crew import Member
from perdure.cli.demo.figures import spoken
from perdure.cli.demo.watching import Scene, Watch
from perdure.clock import Micros
from perdure.ids import NodeId, to_uuid
from perdure.job.states import RunState
from perdure.job.views import Run


def kill(scene: Scene, watch: Watch, victim: Member) -> Micros:
    """Without a warning, once enough jobs have ended and while it holds some. Answers when."""
    app, node_id = scene.app, node_of(victim)
    while not watch.is_stuck:
        standing = watch.look()
        if standing.ended >= standing.total * programme.KILL_AT and app.store.held_by(node_id):
            break
    killed_at = app.clock.now()
    scene.crew.kill(victim)
    held = {to_uuid(live.job_id) for live in app.store.held_by(node_id)}
    scene.figures.in_hand = held | {run.job_id for run in _lost(app, node_id)}  # rescued before we could look
    scene.screen.say(
        "kill", f"Killed worker {victim.pid} with SIGKILL, {len(scene.figures.in_hand)} jobs in hand.", "bold red"
    )
    return killed_at


def await_rescue(scene: Scene, watch: Watch, victim: Member, other: Member, killed_at: Micros) -> None:
    """Until the record shows the loss of every run that the killed worker had open."""
    figures, node_id = scene.figures, node_of(victim)
    while scene.app.store.held_by(node_id):
        watch.look()
        if watch.is_stuck:
            return
    lost = _lost(scene.app, node_id)
    rescued = {run.job_id for run in lost}
    figures.rescue_s = (max((run.row.finished_at or 0 for run in lost), default=killed_at) - killed_at) / 1e6
    if rescued != figures.in_hand:
        figures.surprises.append(f"{len(figures.in_hand)} jobs were in hand, and {len(rescued)} recorded as lost")
    scene.screen.say(
        "rescue",
        f"Worker {other.pid} noticed and took back {len(rescued)} of {len(figures.in_hand)} jobs,"
        f" {spoken(figures.rescue_s)} after the kill. It runs them one at a time, in case one of them was the killer.",
        "green",
    )


def drain(scene: Scene, watch: Watch, other: Member) -> None:
    """Until the shop is empty."""
    watch.until_ended()
    figures, app = scene.figures, scene.app
    runs = [run for run in app.runs() if run.kind not in (jobs.ping.name, jobs.nothing.name)]
    figures.mixed, figures.mixed_rate = watch.total, watch.rate(runs)
    failed = sum(run.state is RunState.FAILED for run in runs)
    scene.screen.say("retry", f"{failed} attempts failed; all but the one meant to fail for good were tried again.")
    ended = _completed_on(runs, node_of(other), figures.in_hand)
    scene.screen.say(
        "drain",
        f"The queue is empty. All {len(ended)} rescued jobs were completed by worker {other.pid}."
        if len(ended) == len(figures.in_hand)
        else f"Of {len(figures.in_hand)} rescued jobs, worker {other.pid} completed {len(ended)}.",
    )


def node_of(member: Member) -> NodeId:
    assert member.node_id is not None
    return member.node_id


def _lost(app: Perdure, node_id: NodeId) -> list[Run]:
    return [run for run in app.runs(state=RunState.LOST.value) if run.row.node_id == node_id]


def _completed_on(runs: list[Run], node_id: NodeId, wanted: set[UUID]) -> set[UUID]:
    return {
        run.job_id
        for run in runs
        if run.job_id in wanted and run.state is RunState.COMPLETED and run.row.node_id == node_id
    }
