"""Sets the stage, plays the acts and clears everything away. Called by the command; calls all of this package.

Whatever happens, and whichever signal comes, the workers are dead and the folder is gone when this returns.
"""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

from perdure.cli.demo import acts, closing, express, jobs, killing
from perdure.cli.demo.crew import Crew, WorkerMissing
from perdure.cli.demo.interrupts import Interrupted, Interrupts
from perdure.cli.demo.proof import prove
from perdure.cli.demo.screen import Screen
from perdure.cli.demo.watching import Scene, Watch

FALSE = 1
IMPOSSIBLE = 2


def perform(count: int, keep: Path | None, interrupts: Interrupts, *, plain: bool) -> int:
    """Play the whole demo. Answers the exit status of the command."""
    try:
        return _on_stage(count, keep, interrupts, plain=plain)
    except Interrupted as told:
        print(f"perdure demo: ended by {told}; nothing is left behind", file=sys.stderr)
        return told.status
    except WorkerMissing as missing:
        print(f"perdure demo: {missing}", file=sys.stderr)
        return IMPOSSIBLE


def _on_stage(count: int, keep: Path | None, interrupts: Interrupts, *, plain: bool) -> int:
    began = time.monotonic()
    with ExitStack() as cleared:
        folder = Path(cleared.enter_context(tempfile.TemporaryDirectory(prefix="perdure-demo-")))
        jobs.app.url = folder / "jobs.db"
        cleared.callback(jobs.app.close)
        crew = cleared.enter_context(Crew(jobs.app, folder, interrupts))
        screen = cleared.enter_context(Screen(plain=plain))
        scene = Scene(jobs.app, crew, screen, interrupts)
        screen.say("perdure", f"A demo on a throw-away database, {jobs.app.url}{_in_memory(folder)}")
        _play(scene, count)
        screen.doing("comparing what was accepted with what is recorded")
        proof = prove(jobs.app, scene.figures, folder / "starts")
        screen.calm()
        closing.close(screen, scene.figures, proof, time.monotonic() - began)
        interrupts.check()  # for the last time: after it something may be left behind, as it was asked for
        if keep is not None:
            _keep(keep)
        closing.point_on(screen, keep)
        return FALSE if proof.problems else 0


def _play(scene: Scene, count: int) -> None:
    last = acts.enqueue(scene, count)
    acts.explain(scene, last)
    first, second = acts.begin_work(scene)
    shop = Watch(scene, len(scene.figures.accepted), jobs.SHOP, jobs.POST)
    acts.reorder(scene, shop, last)
    killed_at = killing.kill(scene, shop, first)
    third = express.begin(scene)
    killing.await_rescue(scene, shop, first, second, killed_at)
    killing.drain(scene, shop, second)
    scene.crew.await_start(third)
    express.latency(scene)
    express.sprint(scene, count)
    scene.crew.stop()


def _keep(target: Path) -> None:
    from perdure.ops.database import back_up

    back_up(jobs.app.store, target)


def _in_memory(folder: Path) -> str:
    """Where the temporary folder is no disk, the rates are those of memory, and that has to be said."""
    from perdure.store.sqlite.files import MOUNTS, filesystem_of

    try:
        kind = filesystem_of(str(folder.resolve()), MOUNTS.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError:
        return ""
    return " (in memory: this folder is no disk)" if kind in ("tmpfs", "ramfs") else ""
