"""`perdure templates …`: jobs to be enqueued under a name. Asks `app.templates`."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from perdure.cli.commands import Command, Commands
from perdure.cli.discovery import no_app
from perdure.cli.enqueue import (
    BusinessKey,
    Delay,
    IdempotencyKey,
    KindName,
    Payload,
    Priority,
    Queue,
    RunAt,
    Tags,
    Values,
    arguments_of,
    enqueued_line,
    given,
    in_one_sentence,
    start_of,
)
from perdure.cli.filters import span_of
from perdure.cli.jobs import values_of
from perdure.cli.render import Json, ago, moment, print_fields, print_heading, print_json, print_table, visible
from perdure.cli.target import App, Url, existing_app, named_app
from perdure.errors import InvalidPayload
from perdure.text import span

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.templates import Template

templates = typer.Typer(cls=Commands, invoke_without_command=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="NAME", help="The template's name.")]
NewName = Annotated[str, typer.Argument(metavar="NEW", help="The name that it gets.")]
Archived = Annotated[bool, typer.Option("--archived", help="Archived ones too.")]
Version = Annotated[int | None, typer.Option("--version", metavar="N", help="As it was at this version.")]
Expected = Annotated[
    int | None, typer.Option("--expect-version", metavar="N", help="Only if this is its newest version now.")
]
Description = Annotated[str | None, typer.Option("--description", metavar="TEXT", help="What it is for.")]
Retry = Annotated[int | None, typer.Option("--retry", metavar="N", help="Attempts of each job, instead of the kind's.")]
Timeout = Annotated[str | None, typer.Option("--timeout", metavar="SPAN", help="For one attempt: 90, 90s, 10m, 2h.")]


@templates.callback()
def list_templates(
    context: typer.Context, archived: Archived = False, url: Url = None, app: App = None, json: Json = False
) -> None:
    """List templates; show, put, enqueue, archive, restore and rename them."""
    if context.invoked_subcommand is not None:
        return
    from perdure.ops.forms import template_json

    with existing_app(url, app) as perdure:
        known = perdure.templates.list(archived=True)
    found = [template for template in known if archived or not template.archived]
    if json:
        print_json(list(map(template_json, found)))
    elif not found and known:
        print("All templates are archived; --archived lists them.")
    elif not found:
        print("No templates yet: perdure templates put NAME KIND makes one.")
    else:
        columns = ("template", "version", "kind", "queue", "written", "description")
        print_table(columns, map(_row, found), keep=columns[1:2], clip=columns[-1:], drop=("written", "queue"))


@templates.command(cls=Command)
def show(name: Name, *, version: Version = None, url: Url = None, app: App = None, json: Json = False) -> None:
    """Show a template: its arguments with secrets hidden, its options and its versions."""
    from perdure.ops.forms import template_json

    with existing_app(url, app) as perdure:
        found = perdure.templates.get(name, version)
        versions = perdure.templates.versions(name)
    if json:
        print_json(template_json(found) | {"versions": list(map(template_json, versions))})
        return
    print_fields(_fields(found))
    print_heading("arguments")
    print_fields(values_of(template_json(found)["payload"]))
    if found.params:
        print_heading("params")
        print_fields(values_of(found.params))
    print_heading("versions")
    rows = [(str(each.version), moment(each.written_at) or "-", each.description or "-") for each in versions]
    print_table(("version", "written", "description"), rows, keep=("version", "written"), clip=("description",))


@templates.command(cls=Command)
def put(
    name: Name,
    kind: KindName,
    values: Values = None,
    *,
    payload: Payload = None,
    description: Description = None,
    queue: Queue = None,
    priority: Priority = None,
    tag: Tags = None,
    retry: Retry = None,
    timeout: Timeout = None,
    expect_version: Expected = None,
    url: Url = None,
    app: App = None,
    json: Json = False,
) -> None:
    """Make a template, or its next version. The same again changes nothing.

    Its arguments are any part of the kind's; the others are given when it is enqueued.
    """
    options: Any = given(queue=queue, priority=priority, tags=tag or None, retry=retry)
    if timeout is not None:
        options["timeout"] = span_of(timeout, "--timeout")
    with _declaring_app(url, app) as perdure:
        arguments = arguments_of(perdure.kinds.get(kind), values or (), payload)
        now = perdure.templates.put(
            name, kind, arguments, description=description, expect_version=expect_version, **options
        )
    _print_state(now, f"version {now.version}", json=json)


@templates.command(cls=Command)
def enqueue(
    name: Name,
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
    """Enqueue a job made from a template, with these arguments and options instead of its own."""
    keys: Any = given(idempotency_key=idempotency_key, business_key=business_key)
    options: Any = given(queue=queue, priority=priority, tags=tag or None) | start_of(delay, run_at) | keys
    with _declaring_app(url, app) as perdure:
        kind = perdure.kinds.get(perdure.templates.get(name).kind)
        job = perdure.templates.enqueue(name, arguments_of(kind, values or (), payload), **options)
    if json:
        from perdure.ops.forms import job_json

        print_json(job_json(job) | {"deduplicated": job.deduplicated})
    else:
        print(visible(enqueued_line(job)))


@templates.command(cls=Command)
def archive(name: Name, *, url: Url = None, app: App = None, json: Json = False) -> None:
    """Set a template aside: it is neither enqueued nor changed until it is restored. Its jobs stay."""
    with existing_app(url, app) as perdure:
        now = perdure.templates.archive(name)
    _print_state(now, f"archived {ago(now.archived_at)}", json=json)


@templates.command(cls=Command)
def restore(name: Name, *, url: Url = None, app: App = None, json: Json = False) -> None:
    """Use an archived template again."""
    with existing_app(url, app) as perdure:
        now = perdure.templates.restore(name)
    _print_state(now, f"in use, version {now.version}", json=json)


@templates.command(cls=Command)
def rename(name: Name, new_name: NewName, *, url: Url = None, app: App = None, json: Json = False) -> None:
    """Give a template another name. Its versions and jobs stay its own."""
    with existing_app(url, app) as perdure:
        now = perdure.templates.rename(name, new_name)
    _print_state(now, f"was called {name}", json=json)


@contextmanager
def _declaring_app(url: str | None, app: str | None) -> Generator[Perdure, None, None]:
    """The app that declares the kinds. A refusal of arguments is said in one sentence."""
    perdure = named_app(url, app)
    if perdure is None:
        needs = "a template's arguments are checked against its kind, so this needs the app that declares it"
        raise no_app(f"{needs}; give --app MODULE:APP")
    try:
        yield perdure
    except InvalidPayload as error:
        raise in_one_sentence(error) from error
    finally:
        perdure.close()


def _print_state(template: Template, what: str, *, json: bool) -> None:
    from perdure.ops.forms import template_json

    if json:
        print_json(template_json(template))
    else:
        print(visible(f"template {template.name} ({template.kind}): {what}"))


def _row(template: Template) -> tuple[str, ...]:
    state = f"{template.name} (archived)" if template.archived else template.name
    what = "cannot be read; put it again" if template.problem else template.description or "-"
    return state, str(template.version), template.kind, template.queue or "-", ago(template.written_at), what


def _fields(template: Template) -> Iterator[tuple[str, str | None]]:
    yield "template", template.name
    yield "version", f"{template.version} of {template.latest}"
    yield "description", template.description
    yield "archived", moment(template.archived_at)
    yield "problem", template.problem
    yield "kind", template.kind + (f" (version {template.kind_version})" if template.kind_version != 1 else "")
    yield "queue", template.queue or None
    yield "priority", str(template.priority) if template.priority else None
    yield "attempts", str(template.max_attempts)
    yield "timeout", None if template.timeout is None else span(template.timeout.total_seconds())
    yield "tags", ", ".join(template.tags) or None
    yield "principal", template.principal
    yield "created", f"{moment(template.created_at)} ({ago(template.created_at)})"
    yield "written", f"{moment(template.written_at)} ({ago(template.written_at)})"
