"""Filters as options, and times as people write them. Used by the commands that list jobs and runs, or change many."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from functools import wraps
from inspect import Parameter, signature
from itertools import chain
from typing import Annotated, Any

import typer

from perdure.cli.completion import offer_kinds, offer_queues, offer_run_states, offer_states
from perdure.errors import InvalidOption, shown

Limit = Annotated[int | None, typer.Option("--limit", "-n", min=1, max=10**9, metavar="N", help="At most this many.")]
Follow = Annotated[
    bool,
    typer.Option(
        "--follow",
        "-f",
        help="Keep printing what is new or has changed, until Ctrl-C; with --json one per line. Changes are seen in the"
        " newest 200 or so.",
    ),
]

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_LONGEST_S = 100_000 * 86_400
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*([smhdw]?)")
_KIND = typer.Option("--kind", "-k", metavar="NAME", help="Of this kind.", autocompletion=offer_kinds)
_OWNER = typer.Option("--owner", metavar="NAME", help="Enqueued by the app of this name.")
_SPANS = "10m, 2h or 3d ago, or 2026-01-31T12:00Z."
_JOB_FILTERS = {
    "state": typer.Option(
        "--state",
        "-s",
        metavar="STATE",
        help="In this state: queued, running, failed, …; several: failed,parked.",
        autocompletion=offer_states,
    ),
    "queue": typer.Option("--queue", "-q", metavar="NAME", help="In this queue.", autocompletion=offer_queues),
    "kind": _KIND,
    "tag": typer.Option("--tag", "-t", metavar="TAG", help="With this tag."),
    "owner": _OWNER,
    "since": typer.Option("--since", metavar="TIME", help=f"Created at or after it: {_SPANS}"),
    "until": typer.Option("--until", metavar="TIME", help="Created before it; written as for --since."),
    "business_key": typer.Option("--business-key", metavar="KEY", help="With this business key."),
}
_RUN_FILTERS = {
    "state": typer.Option(
        "--state",
        "-s",
        metavar="STATE",
        help="Running, or closed as completed, failed, lost, …; several: failed,lost.",
        autocompletion=offer_run_states,
    ),
    "kind": _KIND,
    "owner": _OWNER,
    "since": typer.Option("--since", metavar="TIME", help=f"Started at or after it: {_SPANS}"),
    "until": typer.Option("--until", metavar="TIME", help="Started before it; written as for --since."),
}


def with_filters(command: Callable[..., None], *, of_runs: bool = False) -> Callable[..., None]:
    """The command with one option per filter instead of its parameter `filters`, which gets those that were given."""
    known: dict[str, Any] = _RUN_FILTERS if of_runs else _JOB_FILTERS

    @wraps(command)
    def filtered(**arguments: Any) -> None:
        given = {name: value for name in known if (value := arguments.pop(name)) is not None}
        command(**arguments, filters=_read(given, of_runs=of_runs))

    declared = signature(command, eval_str=True)
    options = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[str | None, option])
        for name, option in known.items()
    ]
    parameters = (options if parameter.name == "filters" else [parameter] for parameter in declared.parameters.values())
    vars(filtered)["__signature__"] = declared.replace(parameters=list(chain.from_iterable(parameters)))
    return filtered


def _read(given: dict[str, str], *, of_runs: bool) -> dict[str, Any]:
    """The filters as `app.jobs` takes them, or `app.runs`."""
    from perdure.job.states import RunState, State

    found: dict[str, Any] = dict(given)
    if "state" in given:
        found["state"] = states_of(given["state"], RunState if of_runs else State)
    for name in [name for name in ("since", "until") if name in given]:
        found[name] = moment_of(given[name], f"--{name}", ago=True)
    return found


def states_of(text: str, states: Iterable[str]) -> list[str]:
    """One or several, with commas between them."""
    return [_known_state(one, states) for one in text.split(",")]


def _known_state(text: str, states: Iterable[str]) -> str:
    known = [str(state) for state in states]
    text = text.strip()
    if text.lower() in known:
        return text.lower()
    near = get_close_matches(text.lower(), known, n=1)
    hint = f"did you mean {near[0]}? There are" if near else "there are"
    raise InvalidOption(f"--state {shown(text)} is no state; {hint} {', '.join(known)}", code="filter_invalid")


def moment_of(text: str, what: str, *, ago: bool = False) -> datetime:
    """An instant: ISO 8601, UTC where no zone is named; with `ago` also a span before now, such as 2h."""
    span = seconds_of(text) if ago else None
    try:
        if span is not None:
            return datetime.now(UTC) - timedelta(seconds=span)
        moment = datetime.fromisoformat(text.strip())
    except (ValueError, OverflowError):
        example = "2h (two hours ago) or 2026-01-31T12:00Z" if ago else "2026-01-31T12:00Z"
        raise InvalidOption(f"{what} {shown(text)} is no time; write {example}", code="time_invalid") from None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def seconds_of(text: str) -> float | None:
    """A span such as 90, 90s, 10m, 2h or 3d in seconds. None: it is none."""
    found = _SPAN.fullmatch(text.strip())
    return float(found[1]) * _UNITS[found[2] or "s"] if found else None


def span_of(text: str, what: str) -> float:
    """The same for an option that takes nothing else."""
    seconds = seconds_of(text)
    if seconds is None:
        raise InvalidOption(f"{what} {shown(text)} is no time span; write 90, 90s, 10m, 2h or 3d", code="time_invalid")
    if seconds > _LONGEST_S:
        raise InvalidOption(
            f"{what} {shown(text)} is too long; {_LONGEST_S // 86_400}d is the most", code="time_invalid"
        )
    return seconds
