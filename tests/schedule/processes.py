"""What the processes of these tests do; each is a program of its own with a clock of its own."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from perdure import Perdure
from perdure.clock import ManualClock
from tests.schedule.conftest import START, Firer

MINUTES = 60
PATIENCE_S = 120
"""After that a process that waits for the others gives up: one of them has failed."""


def declare(app: Perdure) -> None:
    """Schedules of all sorts; nobody runs their jobs."""

    @app.job
    def send(to: str) -> str:
        return to

    for minutes in (1, 2, 10):
        app.schedule(every=timedelta(minutes=minutes), name=f"every {minutes}", overlap="allow", payload={"to": "a"})(
            send
        )
    app.schedule("*/7 * * * *", name="cron", overlap="allow", payload={"to": "b"})(send)
    app.schedule("* * * * *", name="in line", overlap="queue", payload={"to": "c"})(send)
    app.schedule("* * * * *", name="one at a time", overlap="skip", payload={"to": "d"})(send)


def an_hour(step: Any, url: str) -> int:
    """Look once a minute, all processes at the same moment. Answers how many jobs this one has made."""
    clock = ManualClock(START)
    app = Perdure(url, durability="normal", clock=clock, auto_migrate=True)
    declare(app)
    step.wait(PATIENCE_S)
    worker = Firer(app)
    made = worker.look()
    for _ in range(MINUTES):
        step.wait(PATIENCE_S)
        clock.advance(minutes=1)
        made += worker.look()
    worker.end()
    app.close()
    return made
