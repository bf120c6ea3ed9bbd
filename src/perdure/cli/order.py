"""`perdure move` and `perdure priority`: places in a queue. Asks `app`."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from perdure.cli.show import Json, print_json, visible
from perdure.cli.target import App, JobName, Url, find_job, front_door
from perdure.errors import InvalidOption

To = Annotated[str | None, typer.Option("--to", metavar="front|back", help="To an end of its priority.")]
Before = Annotated[str | None, typer.Option("--before", metavar="ID", help="Right before this job.")]
After = Annotated[str | None, typer.Option("--after", metavar="ID", help="Right after this job.")]
Priority = Annotated[int, typer.Argument(metavar="N", help="The new priority; higher starts earlier, 0 is usual.")]


def move(
    id: JobName,
    *,
    to: To = None,
    before: Before = None,
    after: After = None,
    url: Url = None,
    app: App = None,
    json: Json = False,
) -> None:
    """Give a waiting job another place in its queue.

    Among those of its priority; the order of all other jobs stays.
    """
    from perdure.cli.plain import plain_job
    from perdure.ops.explain import COUNTED, at_least

    end = _end(to)
    if sum(wish is not None for wish in (to, before, after)) != 1:
        raise typer.BadParameter("say where to with one of --to front, --to back, --before ID and --after ID")
    with front_door(url, app) as door:
        near = [None if name is None else find_job(door, name) for name in (before, after)]
        moved = door.move(find_job(door, id), before=near[0], after=near[1], to=end)
        ahead = door.store.count_ahead(moved, COUNTED) if moved.state == "queued" else None
    if json:
        print_json(plain_job(moved))
    else:
        there = "" if ahead is None else f", {at_least(ahead)} job{'s' * (ahead != 1)} of queue {moved.queue} before it"
        print(visible(f"{moved.id} {moved.kind}: moved{there}"))


_ENDS: dict[str, Literal["front", "back"]] = {"front": "front", "back": "back"}


def _end(to: str | None) -> Literal["front", "back"] | None:
    if to is None:
        return None
    if to in _ENDS:
        return _ENDS[to]
    raise InvalidOption(f"--to takes front or back, not {to!r}")


def priority(id: JobName, n: Priority, *, url: Url = None, app: App = None, json: Json = False) -> None:
    """Give a waiting job another priority.

    It goes to the back of it.
    """
    from perdure.cli.plain import plain_job

    with front_door(url, app) as door:
        changed = door.set_priority(find_job(door, id), n)
    if json:
        print_json(plain_job(changed))
    else:
        print(visible(f"{changed.id} {changed.kind}: priority {changed.priority}"))
