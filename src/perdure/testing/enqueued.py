"""Which jobs were enqueued, by kind and arguments, and how to tell of it when a test is disappointed. Used by `kit`."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

from perdure.errors import InvalidInput, InvalidPayload, shown
from perdure.job.job import Job
from perdure.kind import Kind

if TYPE_CHECKING:
    from perdure.app import Perdure

AnyKind = Kind[..., Any, ..., Any]
KindLike = str | AnyKind

LINES = 20
"""Jobs listed in a message, at most."""


def kind_of(app: Perdure, kind: object) -> AnyKind:
    """The kind that is meant. A name that nothing is declared under is refused: a typing error must not pass a test."""
    if isinstance(kind, str):
        return app.kinds.get(kind)
    if not isinstance(kind, Kind):
        raise InvalidInput(f"expected a function under @app.job, or a kind's name, not {shown(kind)}")
    known = cast("AnyKind", kind)
    if app.kinds.find(known.name) is not known:
        raise InvalidInput(f"{known!r} is no kind of this app; test it with the app that declares it")
    return known


def jobs_of(app: Perdure, kind: AnyKind | None, arguments: Mapping[str, object]) -> list[Job]:
    """In the order they were enqueued, whatever became of them; retries made as new jobs are not among them."""
    __tracebackhide__ = True
    found = app.jobs() if kind is None else app.jobs(kind=kind.name)
    jobs = [job for job in found if job.retry_of is None][::-1]
    if kind is None or not arguments:
        return jobs
    signature = kind.codec.signature
    if unknown := signature.unknown(arguments):
        raise signature.refusal(unknown)
    return [job for job in jobs if _fits(app, kind, job, arguments)]


def _fits(app: Perdure, kind: AnyKind, job: Job, wanted: Mapping[str, object]) -> bool:
    """Each argument as the handler would be given it, or as it is stored: a model may be named by its dict."""
    given, stored = _arguments(app, kind, job), job.payload or {}
    return all(
        (name in given and bool(value == given[name])) or (name in stored and bool(value == stored[name]))
        for name, value in wanted.items()
    )


def _arguments(app: Perdure, kind: AnyKind, job: Job) -> dict[str, object]:
    """Decoded and upgraded, secrets and defaults included. Empty where the stored ones fit the function no more."""
    row = app.store.row(job.row.id)
    if row is None:
        return {}
    try:
        args, kwargs = kind.load(row.payload, row.secrets, row.kind_version)
        return _defaults(kind) | kind.codec.bind(args, kwargs)
    except InvalidPayload:
        return {}


def _defaults(kind: AnyKind) -> dict[str, object]:
    parameters = inspect.signature(inspect.unwrap(kind.function)).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


# -- messages --------------------------------------------------------------------------------------------------------


def not_among(app: Perdure, kind: AnyKind, arguments: Mapping[str, object]) -> str:
    """Why `assert_enqueued` fails: what was wanted, and what there is instead."""
    wanted = f" with {_call(arguments)}" if arguments else ""
    of_kind = jobs_of(app, kind, {})
    if of_kind:
        return f"no {kind.name} job was enqueued{wanted}; these were:\n{_lines(of_kind)}"
    others = Counter(job.kind for job in jobs_of(app, None, {}))
    told = ", ".join(f"{name} ({times})" for name, times in sorted(others.items()))
    return f"no {kind.name} job was enqueued{wanted}; " + (f"others were: {told}" if told else "nothing was at all")


def among(kind: AnyKind | None, arguments: Mapping[str, object], found: Sequence[Job]) -> str:
    """Why `assert_not_enqueued` fails."""
    what = "jobs were" if kind is None else f"{kind.name} was"
    wanted = f" with {_call(arguments)}" if arguments else ""
    return f"{what} enqueued{wanted}:\n{_lines(found)}"


def _lines(jobs: Sequence[Job]) -> str:
    """Without secrets: a job does not show them."""
    lines = [f"  {job.kind}({_call(job.payload or {})})  {job.state}" for job in jobs[:LINES]]
    if len(jobs) > LINES:
        lines.append(f"  … and {len(jobs) - LINES} more")
    return "\n".join(lines)


def _call(arguments: Mapping[str, object]) -> str:
    return ", ".join(f"{name}={shown(value)}" for name, value in arguments.items())
