"""The steps of `perdure demo`, one after the other, and the worker processes they need. Called by the command.

Each step leaves its numbers in the figures; whether all of it is true is for `report.prove` to find out. Whatever
happens, and whichever signal comes, the workers are dead and the folder is gone when `run` returns.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self
from uuid import UUID

from rich.text import Text

from perdure.cli.demo import COULD_NOT_RUN, DemoStopped, Interrupts, shop
from perdure.cli.demo.report import (
    Figures,
    Progress,
    Screen,
    percentile,
    print_next_steps,
    print_table,
    prove,
    with_inner,
)
from perdure.cli.demo.shop import app
from perdure.clock import Micros
from perdure.errors import ReservationBusy, ReservationExpired
from perdure.flow.views import Flow
from perdure.ids import NodeId, to_uuid
from perdure.job.states import RunState, State
from perdure.job.views import Job, Run
from perdure.kind import Draft
from perdure.ops.graph import drawn
from perdure.text import counted, span

_PERDURE = (sys.executable, "-P", "-c", "from perdure.cli.demo import main; main()")
APP = "perdure.cli.demo.shop:app"
NOT_PROVEN = 1
AT_ONCE = 10
"""How many jobs each worker of the shop runs at a time; the default of `perdure worker`."""
EXPRESS_AT_ONCE = 200
BATCH = 500
SINGLES = 50
"""Of each batch, this many are enqueued one by one."""
PINGS = 150
PING_EVERY_S = 0.008
START_S = 30.0
STOP_S = 10.0
WAITING = 500
"""Jobs that wait in a queue while it is reserved."""
HOLD_S = 0.3
PATIENCE_S = 60.0
"""If no job ends for this long, the demo continues, and finds the jobs that have not ended."""
LOOK_S = 0.02
SHOW_S = 0.1
LAST_LINES = 15
_UNKNOWN = NodeId(b"")
"""The node of a worker that the database does not know yet."""


def run(count: int, keep: Path | None, interrupts: Interrupts, *, plain: bool) -> int:
    """Run the whole demo. Returns the exit status of the command."""
    began = time.monotonic()
    with ExitStack() as cleared:
        folder = Path(cleared.enter_context(tempfile.TemporaryDirectory(prefix="perdure-demo-")))
        app.url = folder / "jobs.db"
        cleared.callback(app.close)
        workers = cleared.enter_context(Workers(folder, interrupts))
        screen = cleared.enter_context(Screen(plain=plain))
        demo = Demo(workers, screen, interrupts)
        screen.say("perdure", f"A demo on a throw-away database, {app.url}{_in_memory(folder)}")
        _run_steps(demo, count)
        screen.draw("comparing what was accepted with what is recorded ...")
        proof = prove(app, demo.figures, folder / "starts")
        screen.calm()
        print_table(screen, demo.figures, proof, time.monotonic() - began)
        interrupts.check()  # for the last time: after it something may be left behind, as it was asked for
        if keep is not None:
            app.store.back_up(keep)
        print_next_steps(screen, keep)
        return NOT_PROVEN if proof.problems else 0


def _run_steps(demo: Demo, count: int) -> None:
    last = enqueue(demo, count)
    demo.screen.say("explain", f'Why does job {tail(last)} not run? app.explain says: "{app.explain(last)}"')
    start_clock()
    first, second = start_workers(demo)
    watch = QueueWatch(demo, len(demo.figures.accepted), shop.SHOP, shop.POST)
    reorder(demo, watch, last)
    killed_at = kill(demo, watch, first)
    others = [demo.workers.start(shop.STUDIO, shop.EXPRESS, concurrency=EXPRESS_AT_ONCE) for _ in range(2)]
    await_rescue(demo, watch, first, second, killed_at)
    drain(demo, watch, second)
    stop_clock(demo, watch, first, killed_at)
    demo.workers.await_start(*others)
    survive(demo, others)
    latency(demo)
    sprint(demo, count)
    reserve(demo)
    demo.workers.stop()


def _in_memory(folder: Path) -> str:
    """If the temporary folder is no disk, the rates are those of memory: the demo says so."""
    from perdure.store.sqlite.files import MOUNTS, filesystem_of

    try:
        kind = filesystem_of(str(folder.resolve()), MOUNTS.read_text(encoding="utf-8", errors="surrogateescape"))
    except OSError:
        return ""
    return " (in memory: this folder is no disk)" if kind in ("tmpfs", "ramfs") else ""


@dataclass
class WorkerProcess:
    """One worker process. What it prints is in `log`."""

    process: subprocess.Popen[bytes]
    log: Path
    node_id: NodeId = _UNKNOWN

    @property
    def pid(self) -> int:
        return self.process.pid

    def end(self) -> None:
        """SIGKILL: it cannot tidy up. Returns when it is gone."""
        self.process.kill()
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def check(self) -> None:
        if (status := self.process.poll()) is not None:
            raise self.missing(f"ended with status {status}")

    def missing(self, why: str) -> DemoStopped:
        """The worker is not there, and the demo cannot continue. The message has the end of its log."""
        lines = self.log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        printed = "\n  ".join(["the end of its log:", *lines]) if lines else "it printed nothing"
        return DemoStopped(f"worker {self.pid} {why}; {printed}", COULD_NOT_RUN)


class Workers:
    """All workers. Leaving `with` kills those that are still there: none is left behind.

    If this process itself is killed, its end of a pipe is closed, and the workers end.
    """

    def __init__(self, folder: Path, interrupts: Interrupts) -> None:
        self._folder = folder
        self._interrupts = interrupts
        self.running: list[WorkerProcess] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self.running:
            worker.end()

    def start(self, *queues: str, concurrency: int) -> WorkerProcess:
        """`perdure worker`, not waited for. In a session of its own: Ctrl-C at the terminal is for the demo alone."""
        options = [part for queue in queues for part in ("--queue", queue)]
        log = self._folder / f"worker-{len(list(self._folder.glob('worker-*')))}.log"
        with log.open("wb") as output:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter
                [*_PERDURE, "worker", APP, "--url", app.url, "--concurrency", str(concurrency), *options],
                cwd=self._folder,
                env=_environment(self._folder / "starts"),
                stdin=subprocess.PIPE,  # nothing is written into it; it ends when we do
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.running.append(WorkerProcess(process, log))
        return self.running[-1]

    def await_start(self, *workers: WorkerProcess) -> None:
        """Until the database knows their nodes. DemoStopped: one of them did not make it."""
        deadline = time.monotonic() + START_S
        while missing := [worker for worker in workers if not worker.node_id]:
            nodes = {node.pid: node.id for node in app.store.live_nodes()}
            for worker in missing:
                worker.node_id = nodes.get(worker.pid, worker.node_id)
                worker.check()
            if time.monotonic() > deadline:
                raise missing[0].missing(f"was not there after {START_S:.0f} s")
            self._interrupts.sleep(LOOK_S)

    def kill(self, worker: WorkerProcess) -> None:
        worker.end()
        self.running.remove(worker)

    def stop(self) -> None:
        """Let all of them end as a deploy does: SIGTERM, and they sign off."""
        for worker in self.running:
            worker.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + STOP_S
        for worker in self.running:
            while worker.process.poll() is None and time.monotonic() < deadline:
                self._interrupts.sleep(LOOK_S)


def _environment(ledger: Path) -> dict[str, str]:
    """Ours, without settings meant for other apps, and with the package found from another working directory."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")}
    places = [os.path.abspath(place) for place in kept.get("PYTHONPATH", "").split(os.pathsep) if place]  # noqa: PTH100
    home = str(Path(__file__).resolve().parents[3])
    if home not in (sysconfig.get_path("purelib"), *places):
        places.append(home)
    return kept | {shop.LEDGER: str(ledger), "PYTHONPATH": os.pathsep.join(places)}


@dataclass
class Demo:
    """What every step works with."""

    workers: Workers
    screen: Screen
    interrupts: Interrupts
    figures: Figures = field(default_factory=Figures)


class QueueWatch:
    """How far the jobs of these queues are. `start()` when they may begin."""

    def __init__(self, demo: Demo, total: int, *queues: str) -> None:
        self._demo = demo
        self.total = total
        self._queues = queues
        self.started_at = Micros(0)
        self._shown = self._moved = self._began = time.monotonic()
        self._ended = 0

    def start(self) -> None:
        """Resume the queues; the time counts from here."""
        self._moved = self._began = time.monotonic()
        self.started_at = app.clock.now()
        for queue in self._queues:
            app.queues.resume(queue)

    def look(self) -> int:
        """How many jobs have ended; updates the display now and then. DemoStopped: a worker died, or a signal came."""
        self._demo.interrupts.sleep(LOOK_S)
        for worker in self._demo.workers.running:
            worker.check()
        rows = [row for row in app.queues.list() if row.name in self._queues]
        live, running = sum(row.live for row in rows), sum(row.running for row in rows)
        ended, now = self.total - live, time.monotonic()
        if ended != self._ended:
            self._ended, self._moved = ended, now
        if now - self._shown >= SHOW_S:
            self._shown = now
            known = [worker for worker in self._demo.workers.running if worker.node_id]
            held = [(worker.pid, len(app.store.held_by(worker.node_id))) for worker in known]
            rate = ended / max(now - self._began, 0.001)
            self._demo.screen.show(Progress(ended, self.total, running, live - running, rate, held))
        return ended

    @property
    def is_stuck(self) -> bool:
        return time.monotonic() - self._moved > PATIENCE_S

    def until_ended(self) -> None:
        """Until none of the jobs is live any more, or nothing moves."""
        while self.look() < self.total and not self.is_stuck:
            pass
        self._demo.screen.calm()

    def rate(self, runs: Iterable[Run]) -> float:
        """Jobs per second, from the start until the last of these runs had ended, as recorded."""
        last = max((run.row.finished_at or 0 for run in runs), default=0)
        return self.total * 1e6 / (last - self.started_at) if last > self.started_at else 0.0


def enqueue(demo: Demo, count: int) -> Job:
    """Fill the shop's queue. Returns the last job."""
    demo.screen.draw("enqueueing ...")
    figures = demo.figures
    key = shop.order.options(idempotency_key="order-17")
    first, again = key.enqueue(17), key.enqueue(17)
    doomed = shop.charge.enqueue(1, card="expired")
    figures.accepted |= {first.id, again.id, doomed.id}
    figures.doomed.add(doomed.id)
    drafts = list(shop.drafts(count))
    figures.parents = 1 + sum(draft.kind.name == shop.order.name for draft in drafts)
    last = _enqueue_all(demo, drafts)
    demo.screen.say(
        "enqueue",
        f"{len(figures.accepted):,} jobs of {len({draft.kind.name for draft in drafts})} kinds are queued: coroutines,"
        " functions in threads, and one kind in its own processes. When enqueue returns, a job is on the disk."
        " Some will fail and be retried, one will fail for good.",
    )
    if again.deduplicated and again.id == first.id:
        demo.screen.say("key", "The idempotency key order-17 was used twice, and there is one job of it.")
    else:
        figures.surprises.append("the same idempotency key made two jobs")
    return last


def _enqueue_all(demo: Demo, drafts: Sequence[Draft]) -> Job:
    last: Job | None = None
    singles, spent_s = 0, 0.0
    for begin in range(0, len(drafts), BATCH):
        demo.interrupts.check()
        batch = drafts[begin : begin + BATCH]
        accepted = app.enqueue_many(batch[:-SINGLES])
        began = time.perf_counter()
        accepted += [app.enqueue_arguments(*draft) for draft in batch[-SINGLES:]]
        spent_s += time.perf_counter() - began
        singles += len(batch[-SINGLES:])
        demo.figures.accepted.update(job.id for job in accepted)
        last = accepted[-1]
    assert last is not None
    demo.figures.single_rate = singles / spent_s
    return last


def start_clock() -> None:
    """Plan a job for every second. Nobody makes it yet: a worker that comes later makes up for what was due."""
    app.schedules.put(shop.tick.name, kind=shop.tick, every=1, catch_up="all", overlap="allow")


def start_workers(demo: Demo) -> tuple[WorkerProcess, WorkerProcess]:
    """Start two workers; the shop is closed until both are there."""
    for queue in (shop.SHOP, shop.POST, shop.EXPRESS):
        app.queues.pause(queue)
    first, second = (demo.workers.start(shop.POST, shop.SHOP, concurrency=AT_ONCE) for _ in range(2))
    demo.screen.draw("starting two workers ...")
    demo.workers.await_start(first, second)
    demo.screen.say(
        "workers", f"Two worker processes have started, {first.pid} and {second.pid}, {AT_ONCE} jobs at a time each."
    )
    return first, second


def reorder(demo: Demo, watch: QueueWatch, job: Job) -> None:
    """Move the last job to the front, open the shop, and see what starts first."""
    ahead = app.store.count_ahead(job, 1_000_000)
    app.move(job, to="front")
    watch.start()
    while not (runs := list(app.runs(job))) and not watch.is_stuck:
        demo.interrupts.sleep(LOOK_S)
    if not runs:
        return
    run = runs[-1]
    before = sum(other.started_at < run.started_at for other in _shop_runs())
    if before > 2 * AT_ONCE:  # more than both workers could have taken at the same moment
        demo.figures.surprises.append(f"{before} jobs started before the one that was moved to the front")
    demo.screen.say(
        "reorder",
        f"Job {tail(job)} was behind {ahead:,} others. Moved to the front, it started"
        f" {(run.row.started_at - watch.started_at) / 1000:.0f} ms after the queue was opened, with"
        f" {before or 'none'} before it.",
    )


def tail(one: Job | Flow) -> str:
    """Enough of an id to find it by; `perdure job` and `perdure flow` take it."""
    return str(one.id)[-6:]


def kill(demo: Demo, watch: QueueWatch, victim: WorkerProcess) -> Micros:
    """Without a warning, once enough jobs have ended and while it holds some. Returns when."""
    while not watch.is_stuck:
        if watch.look() >= watch.total * shop.KILL_AT and app.store.held_by(victim.node_id):
            break
    killed_at = app.clock.now()
    demo.workers.kill(victim)
    held = {to_uuid(live.job_id) for live in app.store.held_by(victim.node_id)}
    demo.figures.in_hand = held | {run.job_id for run in _lost(victim)}  # rescued before we could look
    demo.screen.say(
        "kill", f"Killed worker {victim.pid} with SIGKILL, {len(demo.figures.in_hand)} jobs in hand.", "bold red"
    )
    return killed_at


def await_rescue(demo: Demo, watch: QueueWatch, victim: WorkerProcess, other: WorkerProcess, killed_at: Micros) -> None:
    """Until the record shows the loss of every run that the killed worker had open."""
    figures = demo.figures
    while app.store.held_by(victim.node_id):
        watch.look()
        if watch.is_stuck:
            return
    lost = _lost(victim)
    rescued = {run.job_id for run in lost}
    figures.rescue_s = (max((run.row.finished_at or 0 for run in lost), default=killed_at) - killed_at) / 1e6
    if rescued != figures.in_hand:
        figures.surprises.append(f"{len(figures.in_hand)} jobs were in hand, and {len(rescued)} recorded as lost")
    demo.screen.say(
        "rescue",
        f"Worker {other.pid} noticed and took back {len(rescued)} of {len(figures.in_hand)} jobs,"
        f" {span(figures.rescue_s)} after the kill. They run again at once; one that sees a second worker die"
        " would run alone.",
        "green",
    )


def drain(demo: Demo, watch: QueueWatch, other: WorkerProcess) -> None:
    watch.until_ended()
    figures = demo.figures
    runs = _shop_runs()
    figures.mixed, figures.mixed_rate = watch.total, watch.rate(runs)
    failed = sum(run.state is RunState.FAILED for run in runs)
    demo.screen.say("retry", f"{failed} attempts failed; all but the one meant to fail for good were retried.")
    rescued = [run for run in app.runs() if run.job_id in figures.in_hand and run.row.node_id == other.node_id]
    ended = {run.job_id for run in rescued if run.state is RunState.COMPLETED}
    demo.screen.say(
        "drain",
        f"The queue is empty. All {len(ended)} rescued jobs were completed by worker {other.pid}."
        if len(ended) == len(figures.in_hand)
        else f"Of {len(figures.in_hand)} rescued jobs, worker {other.pid} completed {len(ended)}.",
    )


def _lost(victim: WorkerProcess) -> list[Run]:
    return [run for run in app.runs(state=RunState.LOST.value) if run.row.node_id == victim.node_id]


def _shop_runs() -> list[Run]:
    """The runs that are not of the other steps."""
    return [run for run in app.runs() if run.kind not in (shop.tick.name, shop.ping.name, shop.nothing.name)]


def stop_clock(demo: Demo, watch: QueueWatch, victim: WorkerProcess, killed_at: Micros) -> None:
    """Switch the schedule off, once all that was planned until now, and for a second after the kill, is settled."""
    until = max(app.clock.now(), killed_at + 1_000_000)
    while not (settled := _is_settled(until)) and not watch.is_stuck:
        watch.look()
    if not settled:
        demo.figures.surprises.append("planned instants are due, and no worker has taken them")
    app.schedules.disable(shop.tick.name)
    watch.until_ended()
    takers = [slot.node_id for slot in app.schedules.slots(shop.tick.name, limit=10_000)]
    before = takers.count(to_uuid(victim.node_id))
    demo.screen.say(
        "schedule",
        f"All the while, a schedule made a job every second. Worker {victim.pid} made {before or 'none'} of them before"
        f" it was killed; the others went on and made {len(takers) - before}.",
    )


def _is_settled(until: int) -> bool:
    """Whether all instants up to then were taken, or recorded as missed."""
    following = app.store.next_trigger()
    return following is not None and following > until


def survive(demo: Demo, workers: Sequence[WorkerProcess]) -> None:
    """A workflow whose worker is killed in the middle. The other one carries it on."""
    watch = FlowWatch(demo, shop.workflow().flow)
    demo.figures.accepted |= {job.id for job in watch.jobs}
    demo.screen.say(
        "workflow",
        f"{len(watch.jobs)} jobs: download a film, encode its {shop.PARTS} parts, {shop.ENCODERS} at a time (a limit"
        " over all workers), join them, and announce it when all of that is done.",
    )
    watch.until(lambda: watch.encoding == shop.ENCODERS)
    victim = max(workers, key=lambda worker: len(app.store.held_by(worker.node_id)))
    (other,) = (worker for worker in workers if worker is not victim)
    demo.workers.kill(victim)
    in_hand = counted(len(app.store.held_by(victim.node_id)) + len(_lost(victim)), "part")
    demo.screen.say("kill", f"Killed worker {victim.pid} with SIGKILL, in the middle of {in_hand}.", "bold red")
    watch.until(lambda: watch.has_ended)
    demo.screen.calm()
    demo.figures.surprises += watch.surprises()
    demo.screen.say(
        "carry on",
        f"Worker {other.pid} ran them again and went on from there. perdure flow {tail(watch.graph.flow)} draws it so:",
        "green",
    )
    demo.screen.picture(drawn(watch.graph))


class FlowWatch:
    """How far the workflow is."""

    def __init__(self, demo: Demo, flow: Flow) -> None:
        self._demo = demo
        self._until = time.monotonic() + PATIENCE_S
        self._most = 0
        self.graph = app.flows.graph(flow)

    def until(self, reached: Callable[[], bool]) -> None:
        """Until that is so, or patience ends. DemoStopped: a worker died, or a signal came."""
        while not reached() and time.monotonic() < self._until:
            self._demo.interrupts.sleep(LOOK_S)
            for worker in self._demo.workers.running:
                worker.check()
            self.graph = app.flows.graph(self.graph.flow)
            self._most = max(self._most, self.encoding)
            self._demo.screen.draw(*map(Text, drawn(self.graph)))

    @property
    def jobs(self) -> list[Job]:
        return [job for graph in with_inner(self.graph) for job in graph.jobs]

    @property
    def encoding(self) -> int:
        """How many parts are encoded just now."""
        return sum(job.kind == shop.encode.name and job.state is State.RUNNING for job in self.jobs)

    @property
    def has_ended(self) -> bool:
        """The callback too, for which the workflow does not wait."""
        return all(job.is_final for job in self.jobs)

    def surprises(self) -> Iterator[str]:
        """That the join found every part once, and that the limit held at every look."""
        (joined,) = (job.result for job in self.jobs if job.kind == shop.join.name)
        if joined != [f"{shop.FILM} {part}" for part in range(1, shop.PARTS + 1)]:
            yield f"the join of {shop.PARTS} parts found {joined}"
        if self._most > shop.ENCODERS:
            yield f"{self._most} parts were encoded at a time, where {shop.ENCODERS} are allowed"


def latency(demo: Demo) -> None:
    """Single jobs, one every few milliseconds, for a worker that waits for them."""
    _ping(demo)  # which a new worker imports and builds a few things for; not one of the figures
    watch = QueueWatch(demo, 1, shop.EXPRESS)
    watch.start()
    watch.until_ended()
    sent = [_ping(demo) for _ in range(PINGS)]
    QueueWatch(demo, PINGS, shop.EXPRESS).until_ended()
    results = [app.existing(job).result for job in sent]
    demo.figures.latencies_s = [result for result in results if isinstance(result, float)]
    if demo.figures.latencies_s:
        middle = percentile(demo.figures.latencies_s, 50) * 1000
        demo.screen.say(
            "latency", f"Half of {PINGS} single jobs began within {middle:.1f} ms of the call, in another process."
        )


def _ping(demo: Demo) -> Job:
    job = shop.ping.enqueue(time.monotonic())
    demo.figures.accepted.add(job.id)
    demo.interrupts.sleep(PING_EVERY_S)
    return job


def sprint(demo: Demo, count: int) -> None:
    """Jobs that do nothing: what is left is the queue itself."""
    figures = demo.figures
    app.queues.pause(shop.EXPRESS)
    drafts = [shop.nothing.new() for _ in range(count)]
    spent_s = 0.0
    for first in range(0, count, BATCH):
        demo.interrupts.check()
        began = time.perf_counter()
        accepted = app.enqueue_many(drafts[first : first + BATCH])
        spent_s += time.perf_counter() - began
        figures.accepted.update(job.id for job in accepted)
    figures.batch_rate = count / spent_s
    watch = QueueWatch(demo, count, shop.EXPRESS)
    watch.start()
    watch.until_ended()
    figures.empty, figures.empty_rate = count, watch.rate(app.runs(kind=shop.nothing.name))
    demo.screen.say("sprint", f"{count:,} empty jobs at {figures.empty_rate:,.0f} jobs/s, by one worker process.")


def reserve(demo: Demo) -> None:
    """Hold the queue while jobs wait in it: none of them starts beside us, and they keep their order."""
    figures = demo.figures
    app.queues.pause(shop.EXPRESS)
    accepted = app.enqueue_many([shop.nothing.options(priority=number % 3).new() for number in range(WAITING)])
    figures.accepted.update(job.id for job in accepted)
    order = _waiting()
    try:
        during = _hold(demo)
    except (ReservationBusy, ReservationExpired) as error:
        figures.surprises.append(f"the queue {shop.EXPRESS} was not reserved: {error}")
        return
    QueueWatch(demo, WAITING, shop.EXPRESS).until_ended()
    started = [run.job_id for run in app.runs(kind=shop.nothing.name, limit=WAITING)][::-1]
    if during != order:
        figures.surprises.append(f"{len(order) - len(during)} jobs of a reserved queue ran beside its holder")
    elif started != order:
        figures.surprises.append("the jobs of a reserved queue started in another order than they had waited in")
    else:
        demo.screen.say(
            "reserve",
            f"This process reserved the queue {shop.EXPRESS}, with {len(order)} jobs waiting, and held it for"
            f" {span(HOLD_S)}: none of them started meanwhile, and then all did, in the order that they had before.",
        )


def _hold(demo: Demo) -> list[UUID]:
    """Reserve the queue and open it: nothing else is in the worker's way. Returns what still waits at the end."""
    with app.reserve(shop.EXPRESS, wait=PATIENCE_S) as reservation:
        app.queues.resume(shop.EXPRESS)
        demo.interrupts.sleep(HOLD_S)
        waiting = _waiting()
        reservation.check()  # it was still held when they were read
        return waiting


def _waiting() -> list[UUID]:
    """In the order in which they will start."""
    return [job.id for job in app.jobs(queue=shop.EXPRESS, state=State.QUEUED)]
