"""What the shell offers for states, queues, kinds and job ids. Asked by the shell while someone types (`perdure
--install-completion`); looks into the database that the line names so far, and prints nothing, whatever goes wrong."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import redirect_stderr, redirect_stdout
from io import StringIO
from itertools import islice
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from perdure.app import Perdure

Offers = list[str | tuple[str, str]]

_NEWEST = 40
_TAIL = 8
_LOOKED_AT = 200


def offer_states(incomplete: str) -> Offers:
    """Also the next one of several."""
    from perdure.job.states import State

    return _next_state(incomplete, State)


def offer_run_states(incomplete: str) -> Offers:
    from perdure.job.states import RunState

    return _next_state(incomplete, RunState)


def _next_state(incomplete: str, known: Iterable[str]) -> Offers:
    before, comma, begun = incomplete.rpartition(",")
    taken = before.split(",")
    return [f"{before}{comma}{state}" for state in known if state.startswith(begun) and state not in taken]


def offer_queues(ctx: typer.Context, incomplete: str) -> Offers:
    from perdure.store.rows import EVERY_QUEUE

    def names(perdure: Perdure) -> Offers:
        declared = {kind.defaults.queue for kind in perdure.kinds}
        found = {*declared, *(queue.name for queue in perdure.queues.list())} - {EVERY_QUEUE}
        return [name for name in sorted(found) if name.startswith(incomplete)]

    return _offered(ctx, names)


def offer_kinds(ctx: typer.Context, incomplete: str) -> Offers:
    """Those of the app, and of the newest jobs."""

    def names(perdure: Perdure) -> Offers:
        found = {kind.name for kind in perdure.kinds} | {job.kind for job in islice(perdure.jobs(), _LOOKED_AT)}
        return [name for name in sorted(found) if name.startswith(incomplete)]

    return _offered(ctx, names)


def offer_jobs(ctx: typer.Context, incomplete: str) -> Offers:
    """The ends of the newest ids, or whole ids if one is begun, with what they are."""

    def ids(perdure: Perdure) -> Offers:
        names = ((job, name) for job in perdure.jobs(limit=_NEWEST) for name in (job.id.hex[-_TAIL:], str(job.id)))
        fitting = {job.id: (name, job) for job, name in reversed(list(names)) if name.startswith(incomplete)}
        return [(name, f"{job.kind}, {job.state}") for name, job in reversed(fitting.values())]

    return _offered(ctx, ids)


def _offered(ctx: typer.Context, ask: Callable[[Perdure], Offers]) -> Offers:
    """What the app or database that the line names has. Whatever goes wrong, nothing."""
    from perdure.cli.target import existing_app

    url, app = (_given(ctx, name) for name in ("url", "app"))
    try:
        with redirect_stdout(StringIO()), redirect_stderr(StringIO()), existing_app(url, app) as perdure:
            return ask(perdure)
    except BaseException:  # noqa: BLE001 - a program that cannot be imported may even leave
        return []


def _given(ctx: typer.Context, name: str) -> str | None:
    """Where an option may stand before or after the command."""
    at: typer.Context | None = ctx
    while at is not None:
        if at.params.get(name):
            return str(at.params[name])
        at = at.parent  # type: ignore[assignment]
    return None
