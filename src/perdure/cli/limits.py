"""`perdure limits …`: limits and rates. Asks `app.limits`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.commands import Command, Commands
from perdure.cli.render import Json, ago, print_json, print_table, visible
from perdure.cli.target import App, Url, existing_app
from perdure.store.rows import LINE_COUNTED
from perdure.text import counted, length, short_id

if TYPE_CHECKING:
    from perdure.limits import KeyInfo, LimitInfo

limits = typer.Typer(cls=Commands, invoke_without_command=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The limit, as perdure limits lists it.")]
Key = Annotated[str | None, typer.Option("--key", help="Only this value of the limit, such as one tenant.")]
New = Annotated[bool, typer.Option("--new", help="Also a limit that no code has declared yet.")]


@limits.callback()
def list_limits(context: typer.Context, url: Url = None, app: App = None, json: Json = False) -> None:
    """List limits and rates; show, set, reset and pause them."""
    if context.invoked_subcommand is not None:
        return
    with existing_app(url, app) as perdure:
        found = perdure.limits.list()
        perdure.import_kinds()
        known = {limit.name for limit in found}
        coming = [name for name, *_ in perdure.kinds.rules() if name not in known]
    if json:
        print_json([_limit_json(limit) for limit in found])
    elif not found and not coming:
        print("No limits: a worker whose kinds have some declares them.")
    else:
        columns = ("limit", "at most", "state", "kinds")
        if found:
            print_table(columns, [_row(limit) for limit in found], keep=columns[1:3], drop=("kinds",))
        if coming:
            print(f"{visible(', '.join(coming))}: in the code; the next worker that starts declares it here.")


@limits.command(cls=Command)
def show(name: Name, *, url: Url = None, app: App = None, json: Json = False) -> None:
    """Show what is in use of a limit, key by key, and what waits for it."""
    with existing_app(url, app) as perdure:
        found = perdure.limits.show(name)
    if json:
        print_json([_key_json(key) for key in found])
    elif not found:
        print(f"nothing of limit {visible(name)} is in use or waited for")
    else:
        opens = any(key.opens_at is not None for key in found)
        columns = ("key", "in use", "at most", "in line", "opens" if opens else "held by")
        print_table(columns, [_key_row(key) for key in found], keep=columns[1:4], drop=("held by",))


@limits.command(name="set", cls=Command)
def set_limit(
    name: Name,
    most: Annotated[int, typer.Argument(metavar="NUMBER", help="How many at once; of a rate, how many in its time.")],
    *,
    key: Key = None,
    new: New = False,
    url: Url = None,
    app: App = None,
) -> None:
    """Give a limit another number, at once and until `reset`. It wins over the code."""
    with existing_app(url, app) as perdure:
        perdure.limits.set(name, most, key=key, new=new)
    print(f"limit {_which(name, key)} is {most:,} now")


@limits.command(cls=Command)
def reset(name: Name, *, key: Key = None, url: Url = None, app: App = None) -> None:
    """Take back what was set by hand: the number of the code counts again."""
    with existing_app(url, app) as perdure:
        perdure.limits.reset(name, key=key)
    print(f"limit {_which(name, key)} is as the code declares it")


@limits.command(cls=Command)
def pause(name: Name, *, key: Key = None, url: Url = None, app: App = None) -> None:
    """Start nothing more of a limit. Running jobs continue; `resume` opens it again."""
    with existing_app(url, app) as perdure:
        perdure.limits.pause(name, key=key)
    print(f"limit {_which(name, key)} is paused")


@limits.command(cls=Command)
def resume(name: Name, *, key: Key = None, url: Url = None, app: App = None) -> None:
    """Open a paused limit again."""
    with existing_app(url, app) as perdure:
        perdure.limits.resume(name, key=key)
    print(f"limit {_which(name, key)} is open")


def _which(name: str, key: str | None) -> str:
    return visible(name if key is None else f"{name}={key}")


def _row(limit: LimitInfo) -> tuple[str, ...]:
    most = "no limit" if limit.most is None else f"{limit.most:,}"
    if limit.per is not None:
        most = f"{most} in {length(round(limit.per * 1_000_000))} ({limit.sort})"
    state = "paused" if limit.paused else "set by hand" if limit.set_by_hand else "open"
    return limit.name, most, state, ", ".join(limit.kinds)


def _key_row(key: KeyInfo) -> tuple[str, ...]:
    most = "paused" if key.paused else "no limit" if key.most is None else f"{key.most:,}"
    in_line = f"{key.in_line:,}+" if key.in_line >= LINE_COUNTED else str(key.in_line)
    holders = [short_id(job.bytes) for job in key.jobs]
    if key.blocks:
        holders.append(f"{counted(key.blocks, 'block')} of code")
    shown = "(all)" if key.key is None else key.key or '""'
    last = ", ".join(holders) if key.opens_at is None else ago(key.opens_at)
    return shown, str(key.in_use), most, in_line, last


def _limit_json(limit: LimitInfo) -> dict[str, Any]:
    return {
        "name": limit.name,
        "sort": limit.sort,
        "most": limit.most,
        "declared": limit.declared,
        "set_by_hand": limit.set_by_hand,
        "per_s": limit.per,
        "burst": limit.burst,
        "paused_at": limit.paused_at and limit.paused_at.isoformat(),
        "kinds": list(limit.kinds),
    }


def _key_json(key: KeyInfo) -> dict[str, Any]:
    return {
        "key": key.key,
        "most": key.most,
        "set_by_hand": key.set_by_hand,
        "in_use": key.in_use,
        "in_line": key.in_line,
        "paused_at": key.paused_at and key.paused_at.isoformat(),
        "opens_at": key.opens_at and key.opens_at.isoformat(),
        "jobs": [str(job) for job in key.jobs],
        "blocks": key.blocks,
    }
