"""`perdure reserve -- COMMAND`: run something while no job of a queue runs; `perdure reservations`: who holds, or held,
one. Asks `app.reserve`."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.completion import offer_queues
from perdure.cli.queues import New, check_used
from perdure.cli.render import Json, ago, error_text, print_json, print_table
from perdure.cli.target import App, Url, existing_app, existing_database
from perdure.clock import to_datetime
from perdure.errors import InvalidInput, PerdureError
from perdure.store.rows import EVERY_QUEUE

if TYPE_CHECKING:
    from perdure.reservation import Reservation
    from perdure.store.rows import ReservationRow

LOOK_EVERY_S = 0.5
"""Between two looks whether the reservation needs a renewal."""

CommandLine = Annotated[list[str], typer.Argument(metavar="COMMAND", help="The command and its arguments, after --.")]
Queue = Annotated[
    str,
    typer.Option(
        "--queue", "-q", metavar="NAME", help="The queue; without it, every queue.", autocompletion=offer_queues
    ),
]
Wait = Annotated[
    float, typer.Option("--wait", metavar="SECONDS", help="How long to wait until running jobs have ended.")
]
Expires = Annotated[
    float,
    typer.Option("--expires", metavar="SECONDS", help="How long it lasts if this process can no longer renew it."),
]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="How many to show.")]


def reserve(
    command: CommandLine,
    *,
    queue: Queue = EVERY_QUEUE,
    wait: Wait = 30,
    expires: Expires = 600,
    new: New = False,
    url: Url = None,
    app: App = None,
) -> None:
    """Run a command while no job of a queue runs, and exit as it does.

    It starts when the running jobs of the queue have ended; until it ends, no worker starts another. Jobs keep their
    order.
    """
    with existing_app(url, app) as perdure:
        check_used(perdure, queue, new=new)
        with perdure.reserve(queue, wait=wait, expires=expires) as held:
            code = _run(command, held)
    raise typer.Exit(code if code >= 0 else 128 - code)


def reservations(*, limit: Limit = 20, url: Url = None, app: App = None, json: Json = False) -> None:
    """List who holds, or held, a queue for direct work, the newest first."""
    from perdure.ops.forms import reservation_json

    with existing_database(url, app) as store:
        found = store.reservations(limit)
    if json:
        print_json(list(map(reservation_json, found)))
    elif not found:
        print("No queue has been reserved yet.")
    else:
        columns = ("queue", "status", "reserved", "ends", "by")
        print_table(columns, list(map(_row, found)), keep=columns[:-1], clip=("by",), drop=("reserved",))


def _row(row: ReservationRow) -> tuple[str, ...]:
    queue = "* (all queues)" if row.queue == EVERY_QUEUE else row.queue
    status = "waiting" if row.status == "active" and row.entered_at is None else row.status
    ends = ago(to_datetime(row.expires_at if row.closed_at is None else row.closed_at))
    return queue, status, ago(to_datetime(row.reserved_at)), ends, row.reserved_by


def _run(command: Sequence[str], held: Reservation) -> int:
    """The exit status of the command."""
    with _signals() as pass_to:
        child = _start(command)
        pass_to.append(child)
        is_over = False
        while True:
            try:
                return child.wait(LOOK_EVERY_S)
            except subprocess.TimeoutExpired:
                is_over = is_over or not _keep(held)


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(command)  # noqa: S603 - it is what the user asked for
    except OSError as error:
        raise InvalidInput(
            f"the command {command[0]!r} could not be started: {error.strerror}; nothing was run",
            code="command_unusable",
        ) from error


def _keep(held: Reservation) -> bool:
    """False: it could not be renewed. The command goes on: what it has begun is not undone by stopping it."""
    try:
        held.keep()
    except PerdureError as error:
        print(f"the command goes on without its reservation: {error_text(error)}", file=sys.stderr)
        return False
    return True


@contextmanager
def _signals() -> Generator[list[subprocess.Popen[bytes]], None, None]:
    """While the block runs, SIGTERM is passed on. Ctrl-C is not: the command gets it from the terminal by itself."""
    children: list[subprocess.Popen[bytes]] = []

    def pass_on(number: int, _frame: FrameType | None) -> None:
        for child in children:
            child.send_signal(number)

    def wait_on(number: int, frame: FrameType | None) -> None:
        """A function, since a command started under SIG_IGN would ignore it too."""

    before: dict[Any, Any] = {
        signal.SIGINT: signal.signal(signal.SIGINT, wait_on),
        signal.SIGTERM: signal.signal(signal.SIGTERM, pass_on),
    }
    try:
        yield children
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
