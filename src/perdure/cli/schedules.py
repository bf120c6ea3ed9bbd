"""`perdure schedules …`: what happens by the clock. Asks `app.schedules`.

Instants are shown in UTC; `show` and `preview` also name them in the schedule's own zone.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple
from zoneinfo import ZoneInfo

import typer

from perdure.cli.commands import Command, Commands
from perdure.cli.completion import offer_kinds
from perdure.cli.discovery import no_app
from perdure.cli.enqueue import Payload, Priority, Queue, Tags, Values, arguments_of, in_one_sentence
from perdure.cli.filters import moment_of, span_of
from perdure.cli.render import (
    Json,
    ago,
    current_time,
    id_text,
    minute,
    moment,
    one_line,
    print_fields,
    print_heading,
    print_json,
    print_table,
    visible,
)
from perdure.cli.target import App, Url, existing_app, named_app
from perdure.clock import iso, to_datetime, to_micros
from perdure.errors import InvalidOption, InvalidPayload, ScheduleError
from perdure.text import span

if TYPE_CHECKING:
    from perdure.app import Perdure
    from perdure.clock import Micros
    from perdure.schedule.policy import Policy
    from perdure.schedule.trigger import Trigger
    from perdure.schedules import MissedSlots, Schedule, Slot
    from perdure.store.rows import ScheduleRow

schedules = typer.Typer(cls=Commands, invoke_without_command=True, rich_markup_mode=None)

NEXT_SHOWN = 5
SLOTS_SHOWN = 10
_OFF_BECAUSE = {"gone_from_code": "not in the code", "by_hand": "by hand"}

All = Annotated[bool, typer.Option("--all", help="Also those that were removed, and the built-in upkeep.")]
Name = Annotated[str, typer.Argument(metavar="NAME", help="The schedule.")]
What = Annotated[
    str, typer.Argument(metavar="NAME|CRON", help='A schedule, or an expression such as "0 7 * * MON-FRI".')
]
Number = Annotated[int, typer.Option("--number", "-n", min=1, max=1000, metavar="N", help="How many instants.")]
Slots = Annotated[
    int, typer.Option("--limit", "-n", min=1, max=10_000, metavar="N", help="How many of the last slots.")
]
Tz = Annotated[
    str | None,
    typer.Option("--tz", metavar="ZONE", help="On the clocks of this zone, such as Europe/Berlin; else UTC."),
]
CancelPending = Annotated[bool, typer.Option("--cancel-pending", help="Also cancel its jobs that wait.")]
Cron = Annotated[
    str | None,
    typer.Argument(metavar="CRON", help='When: "0 7 * * *", 6 fields with seconds first, or @daily; or --every, --at.'),
]
KindName = Annotated[
    str | None,
    typer.Option(
        "--kind", "-k", metavar="KIND", help="What to run: a kind, as the app declares it.", autocompletion=offer_kinds
    ),
]
TemplateName = Annotated[
    str | None,
    typer.Option("--template", metavar="NAME", help="Or a template, as it is at the time; arguments are what differs."),
]
Every = Annotated[str | None, typer.Option(metavar="SPAN", help="When: again and again after 30s, 5m, 2h or 1d.")]
At = Annotated[str | None, typer.Option(metavar="TIME", help="When: once, at 2026-01-31T12:00Z; UTC without zone.")]
Start = Annotated[str | None, typer.Option(metavar="TIME", help="Not before then.")]
End = Annotated[str | None, typer.Option(metavar="TIME", help="Only before then.")]
CatchUp = Annotated[
    str | None, typer.Option(metavar="none|latest|all", help="What to do about instants that were missed.")
]
Overlap = Annotated[
    str | None, typer.Option(metavar="skip|queue|allow", help="What to do while its last job has not ended.")
]
MisfireGrace = Annotated[str | None, typer.Option(metavar="SPAN", help="How late an instant may be taken.")]
Jitter = Annotated[str | None, typer.Option(metavar="SPAN", help="Spread the start of its jobs over this long.")]
MaxRuntime = Annotated[str | None, typer.Option(metavar="SPAN", help="Stop a job that is at work for longer.")]
AtMostOnce = Annotated[bool, typer.Option("--at-most-once", help="Never try a job again.")]
Description = Annotated[str | None, typer.Option(metavar="TEXT", help="What it is for.")]
Replace = Annotated[bool, typer.Option("--replace", help="Change the schedule of this name, if there is one.")]


# -- look ------------------------------------------------------------------------------------------------------------


class Last(NamedTuple):
    """How the last planned instant of a schedule came out."""

    at: datetime
    outcome: str
    slot: Slot | None


@schedules.callback()
def list_schedules(
    context: typer.Context, all: All = False, url: Url = None, app: App = None, json: Json = False
) -> None:
    """List schedules with their next instant and how the last one came out; show, preview, add, switch and remove them.

    Times are UTC.
    """
    if context.invoked_subcommand is not None:
        return
    from perdure.ops.forms import schedule_json, slot_json

    with existing_app(url, app) as perdure:
        found = [(one, _last(perdure, one.name)) for one in perdure.schedules.list(all=all)]
        waiting = _not_made_yet(perdure)
    now = current_time()
    if json:
        print_json(
            [
                schedule_json(one, now)
                | {"last_slot": None if last is None or last.slot is None else slot_json(last.slot)}
                for one, last in found
            ]
        )
        return
    if found:
        _print_schedules(found, now)
    elif not waiting:
        print("No schedules yet: declare one with @app.schedule, or use perdure schedules add.")
    if waiting:
        print(visible(f"Declared in the code, made when a worker starts: {', '.join(waiting)}."))


def _last(perdure: Perdure, name: str) -> Last | None:
    """The newest instant that was taken or missed. None: there was none yet."""
    taken = [Last(slot.scheduled_for, slot.status, slot) for slot in perdure.schedules.slots(name, limit=1)]
    missed = [Last(one.last, f"missed ({one.reason})", None) for one in perdure.schedules.missed(name, limit=1)]
    return max([*taken, *missed], key=lambda last: last.at, default=None)


def _not_made_yet(perdure: Perdure) -> list[str]:
    """What the code declares and no worker has stored. Empty as well where no app was named."""
    declared = [definition.name for definition in perdure.parts().declared()]
    return [name for name in declared if perdure.schedules.get(name) is None]


def _print_schedules(found: Sequence[tuple[Schedule, Last | None]], now: Micros) -> None:
    columns = ("name", "when", "next (UTC)", "due", "last", "state")
    rows = [
        (
            one.name,
            one.words,
            "-" if one.next_trigger_at is None else minute(one.next_trigger_at),
            ago(one.next_trigger_at, to_datetime(now)),
            "-" if last is None else last.outcome,
            _state(one, now),
        )
        for one, last in found
    ]
    print_table(columns, rows, keep=("next (UTC)", "due"), clip=("when", "name"), drop=("last", "when", "due"))
    for one, _ in found:
        if one.enabled and one.problem is not None:
            print(one_line(f"{one.name}: {one.problem}"))


def _state(schedule: Schedule, now: Micros) -> str:
    from perdure.ops.status import ScheduleState, schedule_state

    state = schedule_state(schedule, now)
    if state is not ScheduleState.OFF:
        return state.value
    if schedule.disabled_reason == "removed":
        return "removed"
    return f"off ({_OFF_BECAUSE.get(schedule.disabled_reason or '', schedule.disabled_reason or '?')})"


@schedules.command(cls=Command)
def show(name: Name, *, limit: Slots = SLOTS_SHOWN, url: Url = None, app: App = None, json: Json = False) -> None:
    """Show everything about one schedule: what it runs and when, its last slots, and what it has missed."""
    from perdure.ops.forms import missed_json, schedule_json, slot_json, with_stars

    with existing_app(url, app) as perdure:
        slots, missed = perdure.schedules.slots(name, limit=limit), perdure.schedules.missed(name, limit=limit)
        found, row = _existing(perdure, name)
        template = None if row.template_id is None else perdure.store.template_by_id(row.template_id)
    made_from = None if template is None else template.name
    now = current_time()
    payload = with_stars(found.payload, row.secrets)
    coming = [] if found.trigger is None or not found.enabled else _coming(found.trigger, now, NEXT_SHOWN)
    if json:
        following = {"next": [_utc(at) for at in coming], "slots": list(map(slot_json, slots))}
        print_json(
            schedule_json(found, now)
            | {"payload": payload, "template": made_from}
            | following
            | {"missed": list(map(missed_json, missed))}
        )
        return
    print_fields([*_fields(found, row, payload, now), ("template", made_from)])
    if coming and found.trigger is not None:
        print_heading("next")
        _print_instants(coming, found.trigger.tz)
    if slots:
        print_heading("last slots")
        _print_slots(slots)
    if missed:
        print_heading("missed")
        _print_missed(missed)


def _existing(perdure: Perdure, name: str) -> tuple[Schedule, ScheduleRow]:
    found, row = perdure.schedules.get(name), perdure.store.schedule(name)
    assert found is not None  # its slots were read before, which an unknown name refuses
    assert row is not None
    return found, row


def _fields(
    schedule: Schedule, row: ScheduleRow, payload: dict[str, object], now: Micros
) -> Iterator[tuple[str, str | None]]:
    from json import dumps

    yield "name", schedule.name
    yield "state", _state(schedule, now)
    yield "problem", schedule.problem
    yield "description", schedule.description
    yield "when", schedule.words
    yield "cron", None if schedule.trigger is None else schedule.trigger.cron
    yield "kind", schedule.kind
    yield "arguments", dumps(payload, ensure_ascii=False) if payload else None
    yield "queue", _queue(row)
    yield from _policy_fields(schedule.policy)
    yield "source", _source(schedule)
    yield "created", moment(schedule.created_at)


def _queue(row: ScheduleRow) -> str | None:
    """None: upkeep has none, and one that cannot be read is told as the problem."""
    from perdure.job.model import plan_of

    try:
        return None if row.source == "builtin" else plan_of(row.plan).queue
    except ValueError:
        return None


def _policy_fields(policy: Policy) -> Iterator[tuple[str, str | None]]:
    window = f", up to {policy.catch_up_limit:,} of the last {_span(policy.catch_up_window_us)}"
    yield "catch up", policy.catch_up + (window if policy.catch_up == "all" else "")
    yield "misfire grace", _span(policy.misfire_grace_us) if policy.catch_up != "latest" else None
    yield "overlap", policy.overlap
    yield "jitter", _span(policy.jitter_us) if policy.jitter_us else None
    yield "max runtime", None if policy.max_runtime_us is None else _span(policy.max_runtime_us)
    yield "at most once", "yes" if policy.at_most_once else None


def _source(schedule: Schedule) -> str:
    if schedule.source == "code":
        return f"the code of app {schedule.owner}"
    return "built in" if schedule.source == "builtin" else f"made by hand in app {schedule.owner}"


def _span(micros: int) -> str:
    return span(micros / 1_000_000)


def _print_slots(slots: Sequence[Slot]) -> None:
    columns = ("planned (here)", "state", "job", "taken", "by")
    rows = [
        (
            minute(slot.scheduled_for),
            slot.status,
            "-" if slot.job_id is None else id_text(slot.job_id),
            ago(slot.taken_at),
            "hand" if slot.node_id is None else id_text(slot.node_id),
        )
        for slot in slots
    ]
    print_table(columns, rows, keep=columns[:4], drop=("by", "taken"))


def _print_missed(missed: Sequence[MissedSlots]) -> None:
    columns = ("from (here)", "to", "instants", "reason")
    rows = [
        (minute(one.first), minute(one.last), "many" if one.count is None else f"{one.count:,}", one.reason)
        for one in missed
    ]
    print_table(columns, rows, keep=columns, drop=("to",))


@schedules.command(cls=Command)
def preview(
    what: What, *, number: Number = NEXT_SHOWN, tz: Tz = None, url: Url = None, app: App = None, json: Json = False
) -> None:
    """Show the next instants of a schedule, or of a cron expression, which needs no database."""
    trigger = _trigger(what, tz, url, app)
    coming = _coming(trigger, current_time(), number)
    if json:
        print_json({"words": trigger.describe(), "tz": trigger.tz, "next": [_utc(at) for at in coming]})
        return
    print(visible(trigger.describe()))
    if coming:
        print()
        _print_instants(coming, trigger.tz)
    else:
        print("No instant is left.")


def _trigger(what: str, tz: str | None, url: str | None, app: str | None) -> Trigger:
    from perdure.schedule.trigger import Trigger

    if " " in what.strip() or what.startswith("@"):
        return Trigger.of(what, tz=tz)
    with existing_app(url, app) as perdure:
        perdure.schedules.describe(what)  # refuses an unknown name, and a row that cannot be understood
        found = perdure.schedules.get(what)
    assert found is not None
    assert found.trigger is not None
    if tz is not None:
        raise InvalidOption(f"--tz goes with an expression; schedule {what!r} has its own zone, {found.trigger.tz}")
    return found.trigger


def _coming(trigger: Trigger, now: Micros, number: int) -> list[datetime]:
    zone = ZoneInfo(trigger.tz)
    return [to_datetime(at).astimezone(zone) for at in islice(trigger.instants(now), number)]


def _print_instants(instants: Sequence[datetime], zone: str) -> None:
    """In the schedule's zone, and in UTC where that is another time."""
    rows = [(f"{at:%a %Y-%m-%d %H:%M:%S %Z}", minute(at), ago(at)) for at in instants]
    if not any(at.utcoffset() for at in instants):
        print_table((zone, "due"), [(there, due) for there, _, due in rows], keep=(zone, "due"))
    else:
        print_table((zone, "UTC", "due"), rows, keep=(zone, "UTC", "due"), drop=("UTC",))


def _utc(at: datetime) -> str:
    return iso(to_micros(at))


# -- change ----------------------------------------------------------------------------------------------------------


@schedules.command(cls=Command)
def add(
    name: Name,
    cron: Cron = None,
    values: Values = None,
    *,
    kind: KindName = None,
    template: TemplateName = None,
    payload: Payload = None,
    every: Every = None,
    at: At = None,
    tz: Tz = None,
    start: Start = None,
    end: End = None,
    catch_up: CatchUp = None,
    overlap: Overlap = None,
    misfire_grace: MisfireGrace = None,
    jitter: Jitter = None,
    max_runtime: MaxRuntime = None,
    at_most_once: AtMostOnce = False,
    queue: Queue = None,
    priority: Priority = None,
    tag: Tags = None,
    description: Description = None,
    replace: Replace = False,
    url: Url = None,
    app: App = None,
    json: Json = False,
) -> None:
    """Make a schedule of an app's kind, or of a template.

    Give one of CRON, --every and --at. Arguments of the job are written as with perdure enqueue.
    """
    if (kind is None) == (template is None):
        raise typer.BadParameter("say what to run with --kind or --template, one of them")
    given = list(values or ())
    if cron is not None and "=" in cron:  # no expression has one: it is the first argument of the job
        given, cron = [cron, *given], None
    fields: dict[str, Any] = {
        **_read(span_of, every=every, misfire_grace=misfire_grace, jitter=jitter, max_runtime=max_runtime),
        **_read(moment_of, at=at, start=start, end=end),
        **_read(None, tz=tz, catch_up=catch_up, overlap=overlap, queue=queue, description=description),
        **_read(None, priority=priority, tags=tag or None, at_most_once=at_most_once or None),
    }
    with _app_for(url, app) as perdure:
        if not replace:
            _refuse_taken(perdure, name)
        target = kind if template is None else perdure.templates.get(template).kind
        arguments = arguments_of(perdure.kinds.get(target or ""), given, payload)
        try:
            made = perdure.schedules.put(name, cron, kind=kind, template=template, payload=arguments, **fields)
        except InvalidPayload as error:
            raise in_one_sentence(error) from error
        _print_switched(made, json=json)


def _read(read: Callable[[str, str], object] | None, **options: Any) -> dict[str, Any]:
    """The options that were given, read by this function if there is one."""
    given = {name: value for name, value in options.items() if value is not None}
    if read is None:
        return given
    return {name: read(text, f"--{name.replace('_', '-')}") for name, text in given.items()}


@contextmanager
def _app_for(url: str | None, app: str | None) -> Generator[Perdure, None, None]:
    perdure = named_app(url, app)
    if perdure is None:
        needs = "schedules add checks the arguments against the kind, so it needs the app that declares it"
        raise no_app(f"{needs}; give --app MODULE:APP")
    try:
        yield perdure
    finally:
        perdure.close()


def _refuse_taken(perdure: Perdure, name: str) -> None:
    known = perdure.schedules.get(name)
    if known is not None and known.disabled_reason != "removed":
        raise ScheduleError(
            f"there is a schedule {name!r} already ({known.words}); add --replace to change it", code="schedule_taken"
        )


@schedules.command(cls=Command)
def enable(name: Name, *, url: Url = None, app: App = None, json: Json = False) -> None:
    """Switch a schedule on, also one that was removed. What was planned meanwhile is recorded as missed."""
    with existing_app(url, app) as perdure:
        _print_switched(perdure.schedules.enable(name), json=json)


@schedules.command(cls=Command)
def disable(
    name: Name, *, cancel_pending: CancelPending = False, url: Url = None, app: App = None, json: Json = False
) -> None:
    """Switch a schedule off: no instant is taken any more. Running jobs continue."""
    with existing_app(url, app) as perdure:
        found = perdure.schedules.disable(name, cancel_pending=cancel_pending)
        _print_switched(found, json=json, cancelled=cancel_pending)


@schedules.command(cls=Command)
def remove(
    name: Name, *, cancel_pending: CancelPending = False, url: Url = None, app: App = None, json: Json = False
) -> None:
    """Switch a schedule off for good: it is not listed any more. Its slots and jobs stay as a record."""
    with existing_app(url, app) as perdure:
        found = perdure.schedules.remove(name, cancel_pending=cancel_pending)
        _print_switched(found, json=json, cancelled=cancel_pending)


def _print_switched(schedule: Schedule, *, json: bool, cancelled: bool = False) -> None:
    from perdure.ops.forms import schedule_json

    now = current_time()
    if json:
        print_json(schedule_json(schedule, now))
        return
    upcoming = schedule.next_trigger_at
    then = "" if upcoming is None else f"; next {minute(upcoming)} UTC ({ago(upcoming, to_datetime(now))})"
    done = "; its jobs that waited are cancelled" if cancelled else ""
    when = f": {schedule.words}" if schedule.enabled else ""
    print(visible(f"{schedule.name} is {_state(schedule, now)}{when}{then}{done}"))
