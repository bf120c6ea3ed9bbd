"""`perdure queues …`: whole queues. Asks `app.queues`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.commands import Command, Commands
from perdure.cli.completion import offer_queues
from perdure.cli.render import Json, ago, print_json, print_table, visible
from perdure.cli.suggest import no_queue_called, queue_names
from perdure.cli.target import App, Url, existing_app
from perdure.errors import InvalidOption
from perdure.store.rows import EVERY_QUEUE
from perdure.text import counted

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.queues import Queue

queues = typer.Typer(cls=Commands, invoke_without_command=True, rich_markup_mode=None)

Name = Annotated[
    str,
    typer.Argument(metavar="NAME", help="The queue; '*' (in quotes) means all of them.", autocompletion=offer_queues),
]
New = Annotated[bool, typer.Option("--new", help="Also a queue that no job has used yet.")]


@queues.callback()
def list_queues(context: typer.Context, url: Url = None, app: App = None, json: Json = False) -> None:
    """List queues and what is in them; pause, resume and limit them."""
    if context.invoked_subcommand is not None:
        return
    from perdure.ops.forms import queue_json

    with existing_app(url, app) as perdure:
        found = _read(perdure)
    if json:
        print_json(list(map(queue_json, found)))
    elif not found:
        print("No queues yet: the first job makes one.")
    else:
        columns = ("queue", "state", "queued", "running", "others")
        rows = [_row(queue) for queue in found]
        shown = print_table(columns, rows, keep=columns[1:], drop=("running", "others"))
        if "others" in shown and any(row[-1] != "0" for row in rows):
            print("others: scheduled, paused, blocked, held or parked; perdure status counts each.")
        if any(queue.reserved for queue in found):
            print("reserved: held for direct work; perdure reservations says by whom.")


@queues.command(cls=Command)
def pause(name: Name, *, new: New = False, url: Url = None, app: App = None, json: Json = False) -> None:
    """Claim nothing more from this queue. Running jobs continue; `resume` opens it again."""
    with existing_app(url, app) as perdure:
        check_used(perdure, name, new=new, otherwise="--new pauses one that is still to come")
        perdure.queues.pause(name)
        _print_state(perdure, name, json=json)


@queues.command(cls=Command)
def resume(name: Name, *, url: Url = None, app: App = None, json: Json = False) -> None:
    """Open a paused queue again."""
    with existing_app(url, app) as perdure:
        check_used(perdure, name, new=False)
        perdure.queues.resume(name)
        _print_state(perdure, name, json=json)


@queues.command(cls=Command)
def limit(
    name: Name,
    most: Annotated[str, typer.Argument(metavar="NUMBER", help="How many of its jobs at once, or 'none'.")],
    *,
    new: New = False,
    url: Url = None,
    app: App = None,
    json: Json = False,
) -> None:
    """Run at most so many jobs of this queue at once, over all workers."""
    if most != "none" and not (most.isascii() and most.isdigit() and int(most) > 0):
        raise InvalidOption(
            f"NUMBER must be a whole number from 1 on, or none; not {most!r}", code="concurrency_invalid"
        )
    with existing_app(url, app) as perdure:
        check_used(perdure, name, new=new, otherwise="--new limits one that is still to come")
        perdure.queues.limit(name, None if most == "none" else int(most), new=True)
        if json:
            _print_state(perdure, name, json=json)
            return
    what = "all queues" if name == EVERY_QUEUE else visible(f"queue {name}")
    print(f"{what}: no limit" if most == "none" else f"{what}: at most {int(most):,} jobs at once")


def check_used(perdure: Perdure, name: str, *, new: bool, otherwise: str = "") -> None:
    """A mistyped name would pause or reserve a queue that nobody uses, and look as if it had worked."""
    known = queue_names(perdure)
    if name not in (*known, EVERY_QUEUE) and not new:
        why = no_queue_called(name, known)
        told = f"{why}{'' if why.endswith('?') else ';'} {otherwise}" if otherwise else why
        raise InvalidOption(told, code="queue_unknown")


def _read(perdure: Perdure) -> list[Queue]:
    """All queues; `*` counts the jobs of all of them, and while it is paused or reserved, so are they."""
    found = perdure.queues.list()
    all_of_them = next((queue for queue in found if queue.name == EVERY_QUEUE), None)
    if all_of_them is None:
        return found
    jobs: dict[str, Any] = {of: sum(getattr(queue, of) for queue in found) for of in ("queued", "running", "live")}
    jobs |= {of: any(getattr(queue, of) for queue in found) for of in ("more_queued", "more_live")}
    paused, reserved = all_of_them.paused_at, all_of_them.reserved_until
    return [
        replace(queue, **jobs)
        if queue is all_of_them
        else replace(queue, paused_at=queue.paused_at or paused, reserved_until=queue.reserved_until or reserved)
        for queue in found
    ]


def _print_state(perdure: Perdure, name: str, *, json: bool) -> None:
    from perdure.ops.forms import queue_json

    queue = next((queue for queue in _read(perdure) if queue.name == name), None)
    if json:
        print_json(None if queue is None else queue_json(queue))
        return
    what = "every queue" if name == EVERY_QUEUE else visible(f"queue {name}")
    if queue is None or not queue.paused:
        print(f"{what} is open")
    else:
        where = "in them" if name == EVERY_QUEUE else "in it"
        queued = counted(queue.queued, "job") if not queue.more_queued else f"{queue.queued:,}+ jobs"
        print(f"{what} is paused; {queued} queued {where}, {queue.running} running")


def _row(queue: Queue) -> tuple[str, ...]:
    name = "* (all queues)" if queue.name == EVERY_QUEUE else queue.name
    state = "reserved" if queue.reserved else "open"
    if queue.paused:
        state = f"paused {ago(queue.paused_at)}"
    others = queue.live - queue.queued - queue.running
    running = str(queue.running) if queue.concurrency is None else f"{queue.running} of {queue.concurrency}"
    more = queue.more_live and not queue.more_queued
    return name, state, _number(queue.queued, queue.more_queued), running, _number(others, more)


def _number(count: int, more: bool) -> str:
    return f"{count:,}+" if more else str(count)
