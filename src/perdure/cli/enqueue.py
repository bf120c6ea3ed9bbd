"""`perdure enqueue`: one job, checked against the kind's own signature. Asks `discovery` and `app.enqueue`."""

from __future__ import annotations

import json as json_text
from collections.abc import Sequence
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

import typer

from perdure.cli.choosing import moment_of, span_of
from perdure.cli.instead import of_nothing
from perdure.cli.show import Json, ago, print_json, visible
from perdure.cli.target import App, Url, named_app
from perdure.cli.wording import about_arguments, as_options
from perdure.errors import ConfigError, InvalidPayload, shown

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.job.views import Job
    from perdure.kind import Kind
    from perdure.options import OptionFields

KindName = Annotated[str, typer.Argument(metavar="KIND", help="The kind, as the app declares it.")]
Values = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME=VALUE",
        help="Arguments. A value is taken as JSON if it is JSON, else as text; for a parameter declared as str always"
        " as text.",
    ),
]
Payload = Annotated[str | None, typer.Option(metavar="JSON", help="All arguments at once, as a JSON object.")]
Queue = Annotated[str | None, typer.Option("--queue", "-q", metavar="NAME", help="Another queue than the kind's.")]
Delay = Annotated[str | None, typer.Option(metavar="SPAN", help="Not before so long from now: 90, 90s, 10m, 2h, 3d.")]
RunAt = Annotated[
    str | None, typer.Option(metavar="TIME", help="Not before then: 2026-01-31T12:00Z; UTC without zone.")
]
Priority = Annotated[int | None, typer.Option(metavar="N", help="Higher starts earlier; 0 is usual.")]
Key = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="Idempotency key: one job of this kind for it, for ever.")
]
BusinessKey = Annotated[str | None, typer.Option(metavar="KEY", help="One live job for it, of whatever kind.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", "-t", metavar="TAG", help="A tag; may be given again.")]


def enqueue(
    kind: KindName,
    values: Values = None,
    *,
    payload: Payload = None,
    queue: Queue = None,
    delay: Delay = None,
    run_at: RunAt = None,
    priority: Priority = None,
    key: Key = None,
    business_key: BusinessKey = None,
    tag: Tags = None,
    url: Url = None,
    app: App = None,
    json: Json = False,
) -> None:
    """Enqueue a job of an app's kind and print it."""
    door = named_app(url, app)
    if door is None:
        raise ConfigError(
            "enqueue checks the arguments against the kind, so it needs the app that declares it; give --app"
            f" MODULE:APP, set PERDURE_APP, or write app under [tool.perdure] in pyproject.toml{of_nothing()}",
            code="app_not_found",
        )
    wanted: dict[str, Any] = {
        "queue": queue,
        "delay": None if delay is None else span_of(delay, "--delay"),
        "run_at": None if run_at is None else moment_of(run_at, "--run-at"),
        "priority": priority,
        "idempotency_key": key,
        "business_key": business_key,
        "tags": tag or None,
    }
    options: Any = {name: value for name, value in wanted.items() if value is not None}
    try:
        job = _enqueued(door, kind, values or (), payload, options)
    finally:
        door.close()
    if json:
        from perdure.cli.plain import plain_job

        print_json(plain_job(job) | {"deduplicated": job.deduplicated})
    else:
        print(visible(_told(job)))


_OPTIONS = {
    "queue": "--queue",
    "delay": "--delay",
    "run_at": "--run-at",
    "priority": "--priority",
    "idempotency_key": "--key",
    "business_key": "--business-key",
    "tag": "--tag",
}


def _enqueued(door: Perdure, name: str, values: Sequence[str], payload: str | None, options: OptionFields) -> Job:
    kind = door.kinds.get(name)
    if options.get("delay") is not None and options.get("run_at") is not None:
        raise typer.BadParameter("give --delay or --run-at, not both: each says when the job may start")
    if payload is not None and values:
        raise typer.BadParameter("give the arguments as name=value or with --payload, not both")
    arguments = _from_json(kind, payload) if payload is not None else _by_name(kind, values)
    try:
        with as_options(**_OPTIONS):
            return door.enqueue(name, arguments, **options)
    except InvalidPayload as error:
        raise about_arguments(error) from error


def _from_json(kind: Kind[..., Any, ..., Any], payload: str) -> dict[str, object]:
    try:
        arguments = json_text.loads(payload)
    except ValueError as error:
        raise InvalidPayload(f"--payload is no JSON ({error}); write it as '{{\"name\": 1}}'") from None
    if not isinstance(arguments, dict):
        given = _shown_of(kind, arguments, "something else")
        raise InvalidPayload(f"--payload must be a JSON object of arguments by name, not {given}")
    return arguments  # pyright: ignore[reportUnknownVariableType]


def _by_name(kind: Kind[..., Any, ..., Any], values: Sequence[str]) -> dict[str, object]:
    types = kind.codec.signature.annotations
    arguments: dict[str, object] = {}
    for number, given in enumerate(values, 1):
        name, equals, value = given.partition("=")
        if not equals or not name:
            what = _shown_of(kind, given, f"value {number}")
            raise InvalidPayload(f"{what} is no argument; write name=value, or all of them with --payload")
        if name in arguments:
            raise InvalidPayload(f"{name} is given twice; which one is meant?")
        arguments[name] = _read(value, types.get(name))
    return arguments


def _shown_of(kind: Kind[..., Any, ..., Any], given: object, otherwise: str) -> str:
    """What was typed; of a kind that takes secrets it may be one."""
    return otherwise if kind.codec.secret_names else shown(given)


def _read(value: str, annotation: Any) -> object:
    """As JSON where that is possible; for a parameter that takes text, as text, and as nothing only if it may be."""
    from pydantic import SecretStr

    bare = _bare(annotation)
    if bare in (str, SecretStr):
        return value
    given = _json_or_text(value)
    parts = set(map(_bare, get_args(bare))) if get_origin(bare) in (Union, UnionType) else set[object]()
    takes_text = parts - {NoneType} in ({str}, {SecretStr})
    return value if takes_text and not isinstance(given, (str, NoneType)) else given


def _bare(annotation: Any) -> Any:
    """Without what stands beside the type: `Annotated[str, Secret]` is text."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _json_or_text(value: str) -> object:
    try:
        return json_text.loads(value)
    except ValueError:
        return value


def _told(job: Job) -> str:
    if job.deduplicated:
        return f"{job.id} {job.kind}: was enqueued before, {job.state}"
    when = f", due {ago(job.run_at)}" if job.state == "scheduled" else ""
    return f"{job.id} {job.kind}: {job.state} in {job.queue}{when}"
