"""`perdure worker`: runs the jobs of an app until a signal, and logs on standard error. Asks `app.worker`."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from perdure.cli.completion import offer_queues
from perdure.cli.discovery import find_app
from perdure.cli.live import live_lines
from perdure.cli.log_lines import LogFormat, LogLevel, log_on_stderr
from perdure.cli.reload import SourceWatch, begin_anew
from perdure.cli.render import error_text, one_line, visible
from perdure.cli.suggest import no_queue_called, queue_names
from perdure.cli.target import App, AppArgument, Url, app_name
from perdure.errors import PerdureError
from perdure.text import counted

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.worker.worker import Worker


Queue = Annotated[
    list[str] | None,
    typer.Option(
        "--queue", "-q", metavar="NAME", help="A queue to serve; several in this order.", autocompletion=offer_queues
    ),
]
Concurrency = Annotated[
    int | None, typer.Option(min=1, max=10_000, metavar="N", help="How many jobs at once; 10 by default.")
]
InTurn = Annotated[bool, typer.Option("--round-robin", help="Serve the queues in turn, not strictly in order.")]
UntilIdle = Annotated[bool, typer.Option("--until-idle", help="End when nothing is queued, running or due.")]
Grace = Annotated[
    float,
    typer.Option(
        "--grace",
        min=0,
        max=1_000_000,
        metavar="SECONDS",
        help="How long running jobs may take to finish when stopping.",
    ),
]
Exclusive = Annotated[
    str | None, typer.Option(metavar="NAME", help="Of all workers with this name one works, the others stand by.")
]
Format = Annotated[
    LogFormat | None, typer.Option("--log-format", help="How to write log lines; else as the app has set it up.")
]
Level = Annotated[
    LogLevel | None, typer.Option("--log-level", help="From which level on log lines are shown; info by default.")
]

Reload = Annotated[bool, typer.Option("--reload", help="Begin anew when a source file changes; for development.")]


def worker(
    target: AppArgument = None,
    *,
    url: Url = None,
    app: App = None,
    queue: Queue = None,
    concurrency: Concurrency = None,
    round_robin: InTurn = False,
    until_idle: UntilIdle = False,
    grace_s: Grace = 25.0,
    exclusive: Exclusive = None,
    log_format: Format = None,
    log_level: Level = None,
    reload: Reload = False,
) -> None:
    """Run jobs until a signal says stop.

    The first SIGTERM or SIGINT lets running jobs finish for the grace, the second releases them at once. Exits with 0
    when all is well, 3 if handlers had to be left behind, 75 if the connection to the database hung. On a terminal
    jobs that take long have a line with their progress.
    """
    watch = SourceWatch(Path.cwd()) if reload else None
    found, name = _found(url, app_name(target, app), watch)
    handler = log_on_stderr(log_format, log_level)
    running = found.worker(
        queue or None,
        concurrency,
        order="round_robin" if round_robin else "strict",
        grace_s=grace_s,
        exclusive=exclusive,
    )
    place = _database(found)

    def on_start() -> None:
        if log_format is not LogFormat.JSON:  # in JSON the log lines have it
            _print_start(found, running, name, place, queue)
        _warn_of_unknown(queue or (), found)

    if watch is not None:
        watch.stop_on_change(running.stop)
    with live_lines(lambda: running.contexts, None if log_format is LogFormat.JSON else handler):
        code = running.run(until_idle=until_idle, started=on_start)
    if watch is not None and watch.has_changed and not running.is_hurried:
        begin_anew()
    _leave(code)


def _found(url: str | None, name: str | None, watch: SourceWatch | None) -> tuple[Perdure, str]:
    """The app, with its kinds. With a watch, code that cannot be imported ends nothing: the next change is waited
    for."""
    try:
        found = find_app(url, name)
        found[0].import_kinds()
    except PerdureError as error:
        if watch is None:
            raise
        return _begin_anew_after_a_change(error, watch)
    return found


def _begin_anew_after_a_change(error: PerdureError, watch: SourceWatch) -> NoReturn:
    print(f"perdure: {one_line(error_text(error))}", file=sys.stderr)
    print("perdure: waiting for a change of the source files; Ctrl-C ends", file=sys.stderr, flush=True)
    try:
        watch.wait()
    except KeyboardInterrupt:
        raise typer.Exit(0) from None
    begin_anew()


def _print_start(app: Perdure, running: Worker, name: str, place: str, queues: list[str] | None) -> None:
    kinds = ", ".join(sorted(kind.name for kind in app.kinds))
    print(visible(f"app       {name}"))
    print(visible(f"database  {place}"))
    print(f"node      {running.health().node_id}")
    print(visible(f"queues    {', '.join(queues) if queues else 'all'}"))
    print(visible(f"kinds     {kinds or 'none: this worker can run nothing'}"))
    print(f"others    {_others(app, running)}", flush=True)


def _warn_of_unknown(queues: Sequence[str], app: Perdure) -> None:
    """A queue is made by its first job, so a mistyped one is no error; but the worker would wait for ever."""
    known = {*queue_names(app), *(kind.defaults.queue for kind in app.kinds)}
    for name in dict.fromkeys(queues):
        if name not in known:
            logging.getLogger("perdure.cli").warning("%s", no_queue_called(name, known, yet=True))


def _database(app: Perdure) -> str:
    """Where the jobs are, without a password; called before the file is made."""
    from perdure.store.open import is_sqlite, sqlite_path, without_password

    if not is_sqlite(app.url):
        return without_password(app.url)
    path = sqlite_path(app.url)
    return f"{path} ({'found' if path.exists() else 'created'})"


def _others(app: Perdure, running: Worker) -> str:
    from perdure.ids import to_uuid

    own = running.health().node_id
    count = sum(to_uuid(node.id) != own for node in app.store.live_nodes())
    return f"{counted(count, 'node')} on this database" if count else "none: this is the only node"


def _leave(code: int) -> NoReturn:
    """Exit even where handlers were left behind: the interpreter would wait for some of their threads."""
    logging.shutdown()
    sys.stdout.flush()
    sys.stderr.flush()
    if code:
        os._exit(code)
    raise typer.Exit(code)
