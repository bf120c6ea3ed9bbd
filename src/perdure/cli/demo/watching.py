"""Waiting for the jobs of some queues, with the display moving meanwhile. Used by `acts`; asks the store."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from perdure.app import Perdure
from perdure.cli.demo.crew import Crew
from perdure.cli.demo.figures import Figures
from perdure.cli.demo.interrupts import Interrupts
from perdure.cli.demo.screen import Screen, Standing
from perdure.clock import Micros
from perdure.job.views import Run

PATIENCE_S = 60.0
"""Without any job ending for so long, the demo goes on, and finds the jobs that have not ended."""
LOOK_S = 0.02
SHOW_S = 0.1


@dataclass
class Scene:
    """What every act works with."""

    app: Perdure
    crew: Crew
    screen: Screen
    interrupts: Interrupts
    figures: Figures = field(default_factory=Figures)


class Watch:
    """How far the jobs of these queues are. `start()` when they may begin."""

    def __init__(self, scene: Scene, total: int, *queues: str) -> None:
        self._scene = scene
        self.total = total
        self._queues = queues
        self.started_at = Micros(0)
        self._shown = self._moved = self._began = time.monotonic()
        self._last = Standing(0, total, 0, total, 0.0)

    def start(self) -> None:
        """Let the queues go on; from here the time counts."""
        self._moved = self._began = time.monotonic()
        self.started_at = self._scene.app.clock.now()
        for queue in self._queues:
            self._scene.app.queues.resume(queue)

    def look(self) -> Standing:
        """How it stands; moves the display now and then, and lets an interrupt in. WorkerMissing: one has died."""
        self._scene.interrupts.sleep(LOOK_S)
        for member in self._scene.crew.members:
            member.check()
        standing = self._standing()
        if standing.ended != self._last.ended:
            self._moved = time.monotonic()
        self._last = standing
        if time.monotonic() - self._shown >= SHOW_S:
            self._shown = time.monotonic()
            self._scene.screen.show(standing)
        return standing

    @property
    def is_stuck(self) -> bool:
        return time.monotonic() - self._moved > PATIENCE_S

    def until_ended(self) -> None:
        """Until none of the jobs is live any more, or nothing moves."""
        while self.look().ended < self.total and not self.is_stuck:
            pass
        self._scene.screen.calm()

    def rate(self, runs: Iterable[Run]) -> float:
        """Jobs per second, from the start until the last of these runs had ended, as recorded."""
        last = max((run.row.finished_at or 0 for run in runs), default=0)
        return self.total * 1e6 / (last - self.started_at) if last > self.started_at else 0.0

    def _standing(self) -> Standing:
        rows = [row for row in self._scene.app.queues.list() if row.name in self._queues]
        live, running = sum(row.live for row in rows), sum(row.running for row in rows)
        ended = self.total - live
        return Standing(
            ended=ended,
            total=self.total,
            running=running,
            waiting=live - running,
            rate=ended / max(time.monotonic() - self._began, 0.001),
            workers=self._workers(),
        )

    def _workers(self) -> list[tuple[int, int]]:
        store = self._scene.app.store
        return [
            (member.pid, len(store.held_by(member.node_id)))
            for member in self._scene.crew.members
            if member.node_id is not None
        ]
