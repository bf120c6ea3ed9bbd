"""Processes killed with SIGKILL in the middle of their work: what was acknowledged is there, nothing is half done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from perdure import Perdure, State
from perdure.ops.doctor import examine
from tests.crash.handlers import Place

RARE = pytest.mark.rare

WRITER = """
import sys
from perdure import Perdure
app = Perdure(sys.argv[1])

@app.job
def send(n: int) -> None: ...

n = 0
while True:
    many = send.enqueue_many([{"n": n + i} for i in range(7)])
    one = send.enqueue(n=n + 7)
    n += 8
    print(*[job.id for job in many], one.id, flush=True)
"""

WORKER = """
import sys
from perdure import Perdure
from perdure.job.reports import Completed, Finish
from perdure.store.rows import Claimer, Lane, NewNode
app = Perdure(sys.argv[1])
node = app.ids.new()
app.store.register(NewNode(node, app.clock.now()))
while True:
    claims = app.store.claim([Lane("default", 5)], Claimer(node, None, app.ids.new_many(5), 0), app.clock.now())
    if not claims:
        print("empty", flush=True)
        break
    finishes = [Finish(claim.live, Completed('"done"'), app.ids.new()) for claim in claims]
    app.store.finish(finishes, app.clock.now())
    print(*[__import__("uuid").UUID(bytes=claim.job_id) for claim in claims], flush=True)
"""


def acknowledged_before_kill(script: str, url: str, lines: int) -> set[str]:
    """Run the script, read that many lines of acknowledgements, kill it, and read what it managed to say after that."""
    process = subprocess.Popen([sys.executable, "-c", script, url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    seen = [process.stdout.readline() for _ in range(lines)]
    os.kill(process.pid, signal.SIGKILL)
    rest, _ = process.communicate()
    complete = rest[: rest.rfind("\n") + 1].splitlines()
    return {word for line in (*seen, *complete) for word in line.split() if word != "empty"}


@pytest.mark.parametrize(
    "lines", [pytest.param(1, marks=RARE), pytest.param(3, marks=RARE), 10, pytest.param(25, marks=RARE)]
)
def test_an_acknowledged_enqueue_survives_the_death_of_its_process(place: Place, lines: int) -> None:
    acknowledged = acknowledged_before_kill(WRITER, place.url, lines)
    app = Perdure(place.url)
    assert acknowledged <= {str(job.id) for job in app.jobs()}
    assert examine(app.store) == []
    app.close()


@pytest.mark.parametrize("lines", [pytest.param(1, marks=RARE), 4, pytest.param(12, marks=RARE)])
def test_an_acknowledged_finish_survives_and_no_claim_is_half_done(place: Place, lines: int) -> None:
    app = Perdure(place.url)

    @app.job
    def send(n: int) -> None: ...

    send.enqueue_many([{"n": n} for n in range(400)])
    acknowledged = acknowledged_before_kill(WORKER, place.url, lines)
    assert acknowledged <= {str(job.id) for job in app.jobs(state="completed")}
    assert examine(app.store) == []
    running = {str(job.id) for job in app.jobs(state="running")}
    assert {str(run.job_id) for run in app.runs(state="running")} == running
    assert len(running) <= 5
    assert sum(1 for job in app.jobs() if job.state in (State.QUEUED, State.RUNNING, State.COMPLETED)) == 400
    app.close()
