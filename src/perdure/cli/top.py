"""`perdure top`: queues, workers and jobs on one screen, and keys to pause, retry and cancel. Asks `app` and `ops`."""

from __future__ import annotations

import os
import re
import select
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, NamedTuple

import typer

from perdure.cli.render import ago, console, current_time, error_line, error_text, one_line, sentence, visible
from perdure.cli.target import App, Url, existing_app
from perdure.clock import to_datetime
from perdure.errors import PerdureError, StoreError
from perdure.text import counted, length, moment, short_id

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

    from perdure.app import Perdure
    from perdure.job.states import StateName
    from perdure.job.views import Job
    from perdure.ops.progress import Working
    from perdure.queues import Queue

EVERY_S = 1.0
_QUEUES, _NODES, _JOBS = 8, 5, 50
_FRAME = 10
"""Lines that are not rows: the headings and heads of three tables, the first and the last line."""
_IN_TROUBLE: Sequence[StateName] = ("failed", "parked", "paused")
_KEYS = re.compile(rb"\x1b[\[O][A-D]|\x1b|[^\x1b]")
_ARROWS = {b"A": "up", b"B": "down"}
_HELP = "up/down choose   p pause or resume   r retry   c cancel   e explain   q quit"


def top(*, url: Url = None, app: App = None) -> None:
    """Watch queues, workers and jobs, and pause, retry and cancel by key.

    Jobs that run come first, with their progress; then those that failed, are parked or paused. Choose a queue or a job
    with the arrow keys; p pauses or resumes it, r retries a job, c cancels it, e says why it is where it is, q ends.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise typer.BadParameter("it needs a terminal; perdure status --json is for programs")
    with existing_app(url, app) as perdure, suppress(KeyboardInterrupt):
        _show(Top(perdure))


def _show(view: Top) -> None:
    from rich.live import Live

    out = console()
    with _keyboard() as typed, Live(console=out, screen=True, auto_refresh=False, vertical_overflow="crop") as live:
        while not view.is_over:
            view.look()
            live.update(view.screen(out.width, out.height), refresh=True)
            for key in typed():
                view.press(key)


@contextmanager
def _keyboard() -> Generator[Callable[[], list[str]], None, None]:
    """Gives the keys that are pressed within `EVERY_S`, one by one and unseen; Ctrl-C is a signal as ever."""
    import termios
    import tty

    keyboard = sys.stdin.fileno()
    before = termios.tcgetattr(keyboard)
    tty.setcbreak(keyboard)

    def typed() -> list[str]:
        if not select.select([keyboard], [], [], EVERY_S)[0]:
            return []
        return keys_in(os.read(keyboard, 1024))

    try:
        yield typed
    finally:
        termios.tcsetattr(keyboard, termios.TCSADRAIN, before)


def keys_in(data: bytes) -> list[str]:
    """The keys of what a terminal has sent. None at all: it is gone, which means to quit."""
    if not data:
        return ["q"]
    keys = (_ARROWS.get(key[-1:], "") if len(key) > 1 else key.decode("latin-1") for key in _KEYS.findall(data))
    return [{"k": "up", "j": "down", "\r": "e", "\n": "e"}.get(key, key) for key in keys if key]


class Choice(NamedTuple):
    """What the cursor is at: a queue, or a job."""

    queue: Queue | None = None
    job: Job | None = None

    @property
    def name(self) -> object:
        """The same at the next look."""
        return self.queue.name if self.queue is not None else self.job and self.job.id


class Top:
    """What is shown, and what a key does."""

    def __init__(self, perdure: Perdure) -> None:
        self._perdure = perdure
        self.is_over = False
        self._queues: list[Queue] = []
        self._working: list[Working] = []
        self._troubled: list[Job] = []
        self._nodes: list[tuple[str, ...]] = []
        self._chosen: object = None
        self._asked: Job | None = None
        """The job that is to be cancelled, if the next key is y."""
        self.said = _HELP
        """The last line of the screen."""

    # -- looking -----------------------------------------------------------------------------------------------------

    def look(self) -> None:
        """Read it all anew. A database that is away is said, and asked again at the next look."""
        from perdure.ops.progress import working

        perdure = self._perdure
        try:
            self._queues = perdure.queues.list()
            self._working = sorted(working(perdure.store, _JOBS), key=lambda one: one.since)
            self._troubled = list(perdure.jobs(state=_IN_TROUBLE, limit=_JOBS))
            self._nodes = self._live_nodes()
        except StoreError as error:
            self.said = error_text(error)

    def _live_nodes(self) -> list[tuple[str, ...]]:
        from perdure.ops.workers import node_state
        from perdure.worker.liveness import ProcLiveness

        store, now, liveness = self._perdure.store, current_time(), ProcLiveness()
        return [
            (
                short_id(node.id),
                node_state(node, now, liveness),
                str(len(store.held_by(node.id))),
                ago(to_datetime(node.beat_at)),
                f"{'?' if node.pid is None else node.pid} on {node.host or '?'}",
            )
            for node in store.live_nodes()
        ]

    @property
    def _choices(self) -> list[Choice]:
        jobs = [*(one.job for one in self._working), *self._troubled]
        return [*(Choice(queue=queue) for queue in self._queues), *(Choice(job=job) for job in jobs)]

    @property
    def _choice(self) -> Choice:
        """What is chosen, if it is still there; else the first."""
        choices = self._choices
        return next((one for one in choices if one.name == self._chosen), choices[0] if choices else Choice())

    # -- keys --------------------------------------------------------------------------------------------------------

    def press(self, key: str) -> None:
        asked, self._asked = self._asked, None
        if asked is not None:
            self.said = "Nothing was changed."
            if key == "y":
                self._do(lambda: self._changed(self._perdure.cancel(asked)))
            return
        match key:
            case "q":
                self.is_over = True
            case "up" | "down":
                self._move(-1 if key == "up" else 1)
            case "p":
                self._do(self._pause)
            case "r":
                self._do(self._retry)
            case "c":
                self._ask()
            case "e":
                self._do(self._explain)
            case _:
                self.said = _HELP

    def _move(self, by: int) -> None:
        names = [one.name for one in self._choices]
        if names:
            at = names.index(self._choice.name)
            self._chosen = names[max(0, min(len(names) - 1, at + by))]
        self.said = _HELP

    def _do(self, act: Callable[[], str]) -> None:
        try:
            self.said = act()
        except PerdureError as error:
            self.said = error_text(error)

    def _pause(self) -> str:
        queue, job = self._choice
        if queue is not None:
            (self._perdure.queues.resume if queue.paused else self._perdure.queues.pause)(queue.name)
            return f"queue {queue.name} {'continues' if queue.paused else 'is paused'}"
        if job is None:
            return _HELP
        is_resting = job.state in ("paused", "parked")
        return self._changed((self._perdure.resume if is_resting else self._perdure.pause)(job))

    def _retry(self) -> str:
        job = self._choice.job
        return "choose a job to retry" if job is None else self._changed(self._perdure.retry(job))

    def _ask(self) -> None:
        self._asked = self._choice.job
        self.said = "choose a job to cancel" if self._asked is None else f"Cancel {_name(self._asked)}? y or n"

    def _explain(self) -> str:
        job = self._choice.job
        if job is None:
            return "choose a job to explain"
        found = self._perdure.explain(job)
        return f"{_name(job)} is {found.state}: {sentence(one_line(found.why))} {found.next}."

    def _changed(self, job: Job) -> str:
        asked = ", asked to stop" if job.state == "running" and job.cancel_requested else ""
        return f"{_name(job)} is {job.state}{asked}"

    # -- the screen --------------------------------------------------------------------------------------------------

    def screen(self, width: int, height: int) -> Group:
        from rich.console import Group
        from rich.text import Text

        queues, nodes = self._queues[:_QUEUES], self._nodes[:_NODES]
        room = max(3, height - _FRAME - max(1, len(queues)) - max(1, len(nodes)))
        return Group(
            Text(f"perdure top  {moment(current_time())}", style="bold", no_wrap=True),
            *_table("queues", ("queue", "state", "queued", "running", "live"), self._queue_rows(), len(queues), width),
            *_table(
                "workers", ("node", "state", "jobs", "beat", "process"), [(row, False) for row in nodes], 99, width
            ),
            *_table("jobs", ("job", "kind", "queue", "state", "try", "for", "note"), self._job_rows(), room, width),
            Text(f"\n{one_line(self.said)}", style="bold" if self._asked else "", no_wrap=True, overflow="ellipsis"),
        )

    def _queue_rows(self) -> list[tuple[tuple[str, ...], bool]]:
        chosen = self._choice
        return [
            (
                (
                    queue.name,
                    "paused" if queue.paused else "reserved" if queue.reserved else "open",
                    f"{queue.queued:,}{'+' * queue.more_queued}",
                    f"{queue.running:,}",
                    f"{queue.live:,}{'+' * queue.more_live}",
                ),
                chosen.queue is not None and chosen.queue.name == queue.name,
            )
            for queue in self._queues
        ]

    def _job_rows(self) -> list[tuple[tuple[str, ...], bool]]:
        from perdure.ops.progress import progress_text

        now, chosen = current_time(), self._choice.job
        rows = [
            (one.job, length(now - one.since), "" if one.progress is None else progress_text(one.progress))
            for one in self._working
        ]
        rows += [
            (job, ago(job.finished_at or job.queued_at), error_line(job.error_type, job.error))
            for job in self._troubled
        ]
        return [
            (
                (
                    short_id(job.row.id),
                    job.kind,
                    job.queue,
                    job.state,
                    f"{job.attempts}/{job.max_attempts}",
                    when,
                    note,
                ),
                chosen is not None and chosen.id == job.id,
            )
            for job, when, note in rows
        ]


def _name(job: Job) -> str:
    return f"{job.kind} {short_id(job.row.id)}"


def _table(
    heading: str, columns: Sequence[str], rows: Sequence[tuple[tuple[str, ...], bool]], most: int, width: int
) -> list[RenderableType]:
    """The rows around the chosen one, which is marked; the last column is cut."""
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return [Text(f"\nno {heading}", style="bold")]
    at = next((number for number, (_, is_chosen) in enumerate(rows) if is_chosen), 0)
    first = max(0, min(at - most + 1, len(rows) - most))
    table = Table(box=None, pad_edge=False, padding=(0, 1), header_style="dim", width=width)
    for column in columns:
        is_last = column == columns[-1]
        table.add_column(column, no_wrap=True, overflow="ellipsis", ratio=1 if is_last else None)
    for cells, is_chosen in rows[first : first + most]:
        table.add_row(*(visible(cell) for cell in cells), style="reverse" if is_chosen else "")
    noun = heading.removesuffix("s")
    return [Text(f"\n{counted(len(rows), noun)}", style="bold"), table]
