"""`perdure enqueue`: one job, checked against the kind's own signature. Asks `discovery` and `app.enqueue`."""

from __future__ import annotations

import json as json_text
import re
from collections.abc import Sequence
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin

import typer

from perdure.cli.completion import offer_kinds, offer_queues
from perdure.cli.discovery import no_app
from perdure.cli.filters import moment_of, span_of
from perdure.cli.render import Json, ago, print_json, visible
from perdure.cli.target import App, Url, named_app
from perdure.errors import InvalidPayload, Problem, shown

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.job.views import Job
    from perdure.kind import Kind
    from perdure.options import OptionFields

KindName = Annotated[
    str, typer.Argument(metavar="KIND", help="The kind, as the app declares it.", autocompletion=offer_kinds)
]
Values = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="NAME=VALUE",
        help="Arguments. A value is taken as JSON if it is JSON, else as text; for a parameter declared as str always"
        " as text.",
    ),
]
Payload = Annotated[str | None, typer.Option(metavar="JSON", help="All arguments at once, as a JSON object.")]
Queue = Annotated[
    str | None,
    typer.Option("--queue", "-q", metavar="NAME", help="Another queue than the kind's.", autocompletion=offer_queues),
]
Delay = Annotated[str | None, typer.Option(metavar="SPAN", help="Not before this long from now: 90, 90s, 10m, 2h, 3d.")]
RunAt = Annotated[
    str | None, typer.Option(metavar="TIME", help="Not before then: 2026-01-31T12:00Z; UTC without zone.")
]
Priority = Annotated[int | None, typer.Option(metavar="N", help="Higher starts earlier; 0 is usual.")]
IdempotencyKey = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="Idempotency key: one job of this kind for it, for ever.")
]
BusinessKey = Annotated[str | None, typer.Option(metavar="KEY", help="One live job for it, of whatever kind.")]
Tags = Annotated[list[str] | None, typer.Option("--tag", "-t", metavar="TAG", help="A tag; may be given again.")]

_INPUT = "Input should be "
_RAISED = "Value error, "
_LIST = "a list such as [1, 2]"
_WANTED = {
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a valid string": "text",
    "a valid boolean": "true or false",
    "a valid datetime": "a time such as 2026-01-31T12:00Z",
    "a valid date": "a date such as 2026-01-31",
    "a valid list": _LIST,
    "a valid tuple": _LIST,
    "a valid set": _LIST,
    "a valid dictionary": 'an object such as {"a": 1}',
}
"""How pydantic says it, and how people do."""
_SECRET = re.compile(r"Annotated\[([^\[\]]*), <class '[\w.]*\.Secret'>\]")
_MODULES = re.compile(r"(?<!['\w.])(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")


def enqueue(
    kind: KindName,
    values: Values = None,
    *,
    payload: Payload = None,
    queue: Queue = None,
    delay: Delay = None,
    run_at: RunAt = None,
    priority: Priority = None,
    idempotency_key: IdempotencyKey = None,
    business_key: BusinessKey = None,
    tag: Tags = None,
    url: Url = None,
    app: App = None,
    json: Json = False,
) -> None:
    """Enqueue a job of an app's kind and print it."""
    perdure = named_app(url, app)
    if perdure is None:
        needs = "enqueue checks the arguments against the kind, so it needs the app that declares it"
        raise no_app(f"{needs}; give --app MODULE:APP")
    keys: Any = given(idempotency_key=idempotency_key, business_key=business_key)
    options: Any = given(queue=queue, priority=priority, tags=tag or None) | start_of(delay, run_at) | keys
    try:
        job = _enqueued(perdure, kind, values or (), payload, options)
    finally:
        perdure.close()
    if json:
        from perdure.ops.forms import job_json

        print_json(job_json(job) | {"deduplicated": job.deduplicated})
    else:
        print(visible(enqueued_line(job)))


def given(**options: object) -> dict[str, Any]:
    """Those that were given."""
    return {name: value for name, value in options.items() if value is not None}


def start_of(delay: str | None, run_at: str | None) -> dict[str, Any]:
    """When the job may start, as an option."""
    if delay is not None and run_at is not None:
        raise typer.BadParameter("give --delay or --run-at, not both: each says when the job may start")
    if delay is not None:
        return {"delay": span_of(delay, "--delay")}
    return {} if run_at is None else {"run_at": moment_of(run_at, "--run-at")}


def _enqueued(perdure: Perdure, name: str, values: Sequence[str], payload: str | None, options: OptionFields) -> Job:
    kind = perdure.kinds.get(name)
    arguments = arguments_of(kind, values, payload)
    try:
        return perdure.enqueue(name, arguments, **options)
    except InvalidPayload as error:
        raise in_one_sentence(error) from error


def arguments_of(kind: Kind[..., Any, ..., Any], values: Sequence[str], payload: str | None) -> dict[str, object]:
    """The arguments that were typed, by name or as JSON."""
    if payload is not None and values:
        raise typer.BadParameter("give the arguments as name=value or with --payload, not both")
    return _from_json(kind, payload) if payload is not None else _by_name(kind, values)


def in_one_sentence(error: InvalidPayload) -> InvalidPayload:
    """The same refusal of a job's arguments, in one sentence that names each of them and says what there is."""
    if error.kind is None:
        return error
    wrong = "; ".join(map(_in_words, error.problems))
    takes = _MODULES.sub("", _SECRET.sub(r"secret \1", error.parameters)).replace(" = ...", " (optional)")
    return InvalidPayload(f"{error.kind}: {wrong}; it takes {takes or 'no arguments'}", code=error.code)


def _in_words(problem: Problem) -> str:
    from perdure.payload.signature import MISSING, UNKNOWN
    from perdure.words_of_others import ON_THE_COMMAND_LINE

    name = problem.place.strip("'")
    if problem.wrong == UNKNOWN:
        hint = ON_THE_COMMAND_LINE.get(f"--{name.replace('_', '-')}")
        return f"{name} is none of its arguments" + (f" (write {hint})" if hint else "")
    if problem.wrong in (MISSING, "Field required"):
        return f"{name} is missing"
    if problem.value is not None and problem.wrong.startswith(_INPUT):
        return f"{name} must be {_wanted(problem.wrong.removeprefix(_INPUT))}, not {problem.value}"
    if problem.value is not None and problem.wrong.startswith(_RAISED):
        text = problem.wrong.removeprefix(_RAISED)
        return f"{name if text.startswith('must') else problem.place + ':'} {text}: {problem.value}"
    return str(problem)


def _wanted(wanted: str) -> str:
    """What pydantic wants, as people say it; the rest of its sentence says why the value is not that."""
    head = wanted.partition(", ")[0].partition(" or ")[0]
    if head in _WANTED:
        return _WANTED[head]
    return wanted.replace("greater than or equal to", "at least").replace("less than or equal to", "at most")


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
    """What was given, unless the kind takes secrets: then it may be one."""
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
    """The type alone: `Annotated[str, Secret]` is text."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _json_or_text(value: str) -> object:
    try:
        return json_text.loads(value)
    except ValueError:
        return value


def enqueued_line(job: Job) -> str:
    if job.deduplicated:
        return f"{job.id} {job.kind}: was enqueued before, {job.state}"
    when = f", due {ago(job.run_at)}" if job.state == "scheduled" else ""
    return f"{job.id} {job.kind}: {job.state} in {job.queue}{when}"
