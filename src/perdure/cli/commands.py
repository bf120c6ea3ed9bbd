"""Every command: where it is, what it is for, examples, and how its arguments are read. Read by `main`.

A command's module is loaded when it runs. The sentences are for the list of all commands; the whole help of each is its
docstring.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from enum import EnumType
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup

from perdure.errors import PerdureError


class InvalidValue(typer.BadParameter):
    """Its message already names the option."""


class Entry(NamedTuple):
    """One command. `module`: where in this package the function or group of that name is."""

    name: str
    module: str
    summary: str
    examples: tuple[str, ...] = ()


COMMANDS: dict[str, tuple[Entry, ...]] = {
    "Start": (
        Entry("demo", "demo", "See it work: failures, a killed worker, its jobs rescued.", ("demo",)),
        Entry("init", "init", "Write a small app that works, and say how to run it.", ("init",)),
        Entry(
            "worker",
            "worker",
            "Run jobs until a signal says stop.",
            (
                "worker shop.jobs:app --concurrency 20",
                "worker shop.jobs:app --queue mail --until-idle",
                "worker shop.jobs:app --reload",
            ),
        ),
        Entry(
            "enqueue",
            "enqueue",
            "Enqueue a job of an app's kind and print it.",
            (
                "enqueue send to=ann@example.org --app shop.jobs:app",
                "enqueue resize --payload '{\"width\": 80}' --delay 10m --tag night",
            ),
        ),
        Entry("check", "kinds", "Check that an app can run the jobs that are stored.", ("check shop.jobs:app",)),
    ),
    "Look at jobs": (
        Entry("status", "status", "Answer six questions about what is going on.", ("status", "status --watch")),
        Entry("top", "top", "Watch it live; pause, retry and cancel by key.", ("top",)),
        Entry("explain", "jobs", "Say why a job is not running, or how it ended.", ("explain 3fa2c1d0",)),
        Entry(
            "jobs",
            "jobs",
            "List jobs, the newest first.",
            (
                "jobs --state failed --since 1h",
                "jobs --queue mail --state queued",
                "jobs --flow 77b0e912",
                "jobs --kind send --follow",
            ),
        ),
        Entry("job", "jobs", "Show everything about one job.", ("job 3fa2c1d0", "job 3fa2c1d0 --json")),
        Entry(
            "runs",
            "jobs",
            "List attempts, of all jobs or of one, the newest first.",
            ("runs 3fa2c1d0", "runs --state failed --since 1d", "runs --follow"),
        ),
        Entry("logs", "jobs", "Print what a job has logged.", ("logs 3fa2c1d0 --follow",)),
        Entry(
            "flows",
            "flows",
            "List chains, groups, batches and workflows.",
            ("flows --state running", "flows --name nightly"),
        ),
        Entry("flow", "flows", "Show a flow and draw its graph.", ("flow 77b0e912", "flow 77b0e912 --json")),
    ),
    "Decide about jobs": (
        Entry("seal", "flows", "Close an open batch: no more members come.", ("seal 77b0e912",)),
        Entry(
            "retry",
            "control",
            "Run failed or cancelled jobs again.",
            ("retry 3fa2c1d0", "retry --kind send --since 1d", "retry --state cancelled --tag import --yes"),
        ),
        Entry(
            "cancel",
            "control",
            "Cancel waiting jobs, and ask running ones to stop.",
            ("cancel 3fa2c1d0", "cancel --queue mail --state queued --limit 100"),
        ),
        Entry(
            "pause",
            "control",
            "Set waiting jobs aside until they are resumed.",
            ("pause 3fa2c1d0 77b0e912", "pause --kind send"),
        ),
        Entry("resume", "control", "Let paused or parked jobs continue.", ("resume 3fa2c1d0", "resume --state parked")),
        Entry(
            "move",
            "control",
            "Give a waiting job another place in its queue.",
            ("move 3fa2c1d0 --to front", "move 3fa2c1d0 --before 77b0e912"),
        ),
        Entry("priority", "control", "Give a waiting job another priority.", ("priority 3fa2c1d0 10",)),
        Entry("delete", "control", "Remove ended jobs with their runs and logs.", ("delete 3fa2c1d0",)),
    ),
    "Templates and schedules": (
        Entry(
            "templates",
            "templates",
            "List templates; show, put, enqueue, archive, restore and rename them.",
            (
                "templates",
                "templates put news send subject=News --description 'to every customer' --app shop.jobs:app",
                "templates enqueue news to=ann@example.org --app shop.jobs:app",
                "templates show news",
                "templates archive news",
                "templates restore news",
                "templates rename news newsletter",
            ),
        ),
    ),
    "Queues and workers": (
        Entry(
            "queues",
            "queues",
            "List queues and what is in them; pause, resume and limit them.",
            ("queues", "queues pause mail", "queues resume mail", "queues limit mail 40"),
        ),
        Entry(
            "limits",
            "limits",
            "List limits and rates; show, set, reset and pause them.",
            (
                "limits",
                "limits show tenant",
                "limits set tenant 10",
                "limits set tenant 50 --key acme",
                "limits reset tenant",
                "limits pause tenant --key acme",
                "limits resume tenant --key acme",
            ),
        ),
        Entry(
            "reserve",
            "reserve",
            "Run a command while no job of a queue runs.",
            ("reserve --queue gpu -- python train.py", "reserve --wait 600 -- ./migrate.sh"),
        ),
        Entry("reservations", "reserve", "List who holds, or held, a queue for direct work."),
        Entry("nodes", "nodes", "List the workers that live, and the last ones that stopped."),
        Entry("kinds", "kinds", "List the kinds of an app, and of the jobs stored.", ("kinds --app shop.jobs:app",)),
        Entry(
            "health", "health", "Tell whether the database answers and a worker lives.", ("health --max-beat-age 30",)
        ),
    ),
    "By the clock": (
        Entry(
            "schedules",
            "schedules",
            "List schedules; show, preview, add, switch and remove them.",
            (
                "schedules",
                "schedules show daily",
                'schedules preview "0 7 * * MON-FRI" --tz Europe/Berlin',
                'schedules add daily "0 7 * * *" --kind send to=ann@example.org --app shop.jobs:app',
                "schedules disable daily --cancel-pending",
                "schedules enable daily",
                "schedules remove daily",
            ),
        ),
        Entry(
            "trigger",
            "trigger",
            "Make the job of a schedule now, or for a planned instant.",
            ("trigger daily", "trigger daily --for 2026-01-31T06:00Z"),
        ),
        Entry(
            "backfill",
            "trigger",
            "Make the jobs of all planned instants of a stretch of time.",
            ("backfill daily --from 2026-01-01T00:00Z --to 2026-02-01T00:00Z", "backfill daily --from 7d"),
        ),
    ),
    "Look after it": (
        Entry(
            "archive",
            "archive",
            "List the jobs of the archive; show one; move jobs there.",
            ("archive", "archive show 3fa2c1d0", "archive put --state completed --older-than 90d --to old.jsonl"),
        ),
        Entry(
            "purge",
            "archive",
            "Remove ended jobs for good, with their runs and logs.",
            ("purge --state failed --older-than 30d", "purge --state completed --kind send --yes"),
        ),
        Entry("doctor", "doctor", "Look for broken promises in the database.", ("doctor", "doctor --repair")),
        Entry(
            "db",
            "db",
            "Create, upgrade, check, show, back up and move the database.",
            (
                "db check",
                "db upgrade",
                "db backup copy.db",
                "db sql --dialect postgres --after 3",
                "db grants --role web --for enqueue",
                "db copy --from jobs.db --to postgresql://localhost/shop",
            ),
        ),
    ),
}

_OTHER_NAMES: dict[str, str] = {
    "perdure --help": "help commands",
    "perdure --version": "version",
    "perdure worker": "run start work serve consume consumer",
    "perdure enqueue": "add push put submit send new",
    "perdure jobs": "list ls",
    "perdure jobs --state failed": "failed failures errors",
    "perdure jobs --follow": "tail follow watch",
    "perdure status": "stat stats info overview inspect",
    "perdure top": "monitor dashboard flower",
    "perdure job ID": "show get view describe",
    "perdure explain ID": "why",
    "perdure flows": "workflows workflow batches batch groups chains chain dag dags pipelines",
    "perdure nodes": "ps workers processes",
    "perdure reserve": "exclusive direct hold",
    "perdure retry": "requeue rerun redo again redrive",
    "perdure cancel": "stop kill abort revoke",
    "perdure delete": "remove rm del",
    "perdure purge": "prune clean cleanup clear trim",
    "perdure health": "ping live alive",
    "perdure schedules": "schedule cron crontab beat scheduler recurring periodic",
    "perdure trigger NAME": "fire",
    "perdure backfill NAME": "catchup",
    "perdure db upgrade": "migrate upgrade create setup",
    "perdure db backup": "backup dump",
}
MEANINGS: dict[tuple[str, str], str] = {
    **{("perdure", name): command for command, names in _OTHER_NAMES.items() for name in names.split()},
    **{("db", name): "perdure db upgrade" for name in ("create", "init", "migrate", "setup", "update", "make", "new")},
    **{("db", name): "perdure db check" for name in ("show", "status", "info", "version", "verify")},
    **{("db", name): "perdure db backup" for name in ("dump", "save", "export")},
    **{("db", name): "perdure db copy" for name in ("move", "transfer", "clone")},
    ("db", "schema"): "perdure db sql",
    **{("templates", name): "perdure templates" for name in ("list", "ls")},
    **{("templates", name): "perdure templates put" for name in ("add", "create", "new", "edit", "update", "set")},
    **{("templates", name): "perdure templates archive" for name in ("remove", "rm", "delete", "disable")},
    **{("templates", name): "perdure templates enqueue" for name in ("run", "use", "start")},
    **{("archive", name): "perdure archive" for name in ("list", "ls", "jobs")},
    **{("archive", name): "perdure archive show" for name in ("job", "get", "view")},
    **{("archive", name): "perdure archive put" for name in ("add", "move", "run")},
    **{("schedules", name): "perdure schedules" for name in ("list", "ls", "status")},
    **{("schedules", name): "perdure schedules show NAME" for name in ("get", "view", "describe", "info")},
    **{("schedules", name): "perdure schedules preview NAME" for name in ("next", "test")},
    **{("schedules", name): "perdure schedules add" for name in ("put", "new", "create", "set", "edit", "update")},
    **{("schedules", name): "perdure schedules enable NAME" for name in ("on", "resume", "start", "unpause")},
    **{("schedules", name): "perdure schedules disable NAME" for name in ("off", "pause", "stop", "suspend")},
    **{("schedules", name): "perdure schedules remove NAME" for name in ("delete", "rm", "del")},
    **{("schedules", name): "perdure trigger NAME" for name in ("trigger", "run", "fire")},
    ("schedules", "backfill"): "perdure backfill NAME",
    **{("queues", name): "perdure queues" for name in ("list", "ls", "show", "status")},
    **{("limits", name): "perdure limits" for name in ("list", "ls", "status")},
    **{("limits", name): "perdure limits show NAME" for name in ("get", "view", "keys")},
    **{("limits", name): "perdure limits set NAME NUMBER" for name in ("put", "raise", "change", "update")},
    **{("queues", name): "perdure queues pause" for name in ("stop", "hold", "close")},
    **{("queues", name): "perdure queues resume" for name in ("start", "continue", "unpause", "open")},
}
"""What users of other tools type: the group and the word, and the command that does it here."""
SHARED = ("url", "app", "json")


class _Own:
    """What our commands and groups of them do in another way than typer's."""

    def parse_args(self: Any, ctx: Any, args: list[str]) -> Any:
        prepare(self.get_params(ctx))
        return super().parse_args(ctx, args)  # type: ignore[misc]

    def format_epilog(self: Any, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - typer's signature
        """Examples are lines, which typer would run together."""
        if self.epilog:
            formatter.write(f"\n{self.epilog.rstrip()}\n")


class Command(_Own, TyperCommand):
    """A command whose examples are shown as they are written."""

    def invoke(self, ctx: Any) -> Any:
        """An error about a keyword of the Python API names the option of the same name."""
        try:
            return super().invoke(ctx)
        except PerdureError as error:
            for param in self.params:
                is_it = param.name == error.option and param.param_type_name == "option"
                if is_it and error.message.startswith(f"{param.name} "):
                    error.args = (_name(param) + error.message.removeprefix(param.name),)
            raise

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The parts of the usage line: `[OPTIONS]`, `ID`, `[NAME=VALUE]...`."""
        options = [self.options_metavar] if self.options_metavar else []
        return options + [_spelt(param) for param in self.get_params(ctx) if param.param_type_name == "argument"]


class Commands(_Own, TyperGroup):
    """Commands that take over --url, --app and --json from before their name; where one is given twice, the last
    counts."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        wanted = args[0] if args else "-"
        if not (wanted.startswith("-") or ctx.resilient_parsing or wanted in self.list_commands(ctx)):
            ctx.fail(f"there is no command {wanted!r}{self._suggestion(ctx, wanted)}")
        found = super().resolve_command(ctx, args)
        before: dict[str, Any] = ctx.default_map or {}
        handed = before | {name: ctx.params[name] for name in SHARED if ctx.params.get(name)}
        if handed and found[0] is not None:
            ctx.default_map = {found[0]: handed}
        return found

    def _suggestion(self, ctx: Any, name: str) -> str:
        """The command that has this name elsewhere, or one that is spelt nearly so."""
        found = MEANINGS.get((ctx.info_name, name.lower()))
        if found is None:
            near = get_close_matches(name.lower(), self.list_commands(ctx), n=1)
            found = f"{ctx.command_path} {near[0]}" if near else None
        return "" if found is None else f"; did you mean {found}?"


class Program(Commands):
    """All commands of `COMMANDS`, under their headings; each is loaded when it is asked for."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self._entries = {entry.name: entry for entries in COMMANDS.values() for entry in entries}
        self.commands: Any = dict.fromkeys(self._entries)  # their names, for suggestions and completion

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002 - typer's signature
        return list(self._entries)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:  # noqa: ARG002 - typer's signature
        entry = self._entries.get(cmd_name)
        return None if entry is None else build(entry)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - typer's signature
        widest = max(map(len, self._entries))
        for heading, entries in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(entry.name.ljust(widest), entry.summary) for entry in entries])


_SETTINGS: dict[str, dict[str, Any]] = {
    "priority": {"ignore_unknown_options": True},  # a priority such as -5 is a number, not an option
    "reserve": {"allow_interspersed_args": False},  # from the command on, options are the command's
}


def build(entry: Entry) -> Any:
    found = getattr(import_module(f"perdure.cli.{entry.module}"), entry.name)
    title = "Example" if len(entry.examples) == 1 else "Examples"
    epilog = "\n".join((f"{title}:", *(f"  perdure {one}" for one in entry.examples))) if entry.examples else None
    if isinstance(found, typer.Typer):
        group: Any = typer.main.get_group(found)
        group.name, group.epilog = entry.name, epilog
        return group
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    single.command(entry.name, cls=Command, epilog=epilog, context_settings=_SETTINGS.get(entry.name))(found)
    return typer.main.get_command(single)


def _spelt(param: Any) -> str:
    name = _bare(param)
    return (name if param.required else f"[{name}]") + ("..." if param.nargs != 1 else "")


def _bare(param: Any) -> str:
    return str(param.metavar or param.name.upper())


def prepare(params: Sequence[Any]) -> None:
    """Make these parameters read their values, and show in the help, in our own way."""
    for param in params:
        if not (hasattr(param, "get_runtime_param") and hasattr(param, "type_descriptor")):
            continue  # older versions of typer have neither
        param.get_runtime_param = _Reader(param).itself
        if param.param_type_name == "argument":
            param.display_type_rich = _no_type


def _no_type(ctx: Any) -> str:  # noqa: ARG001 - typer's signature
    """The type of an argument, which would be listed as `ID <str>`."""
    return ""


class _Reader:
    """Takes text, numbers, choices, and what is of its type already; asks typer for all others.

    Typer would refuse numbers and choices in pydantic's words, and take 80 ms to build an adapter for every parameter
    of a command, given or not.
    """

    def __init__(self, param: Any) -> None:
        self._wanted: Any = param.type_descriptor.annotation
        self._ask_typer = param.get_runtime_param

    def itself(self) -> _Reader:
        return self

    def coerce(self, value: Any, param: Any, ctx: Any) -> Any:
        if value is None:
            return () if param.multiple or param.nargs == -1 else None
        if self._wanted == list[str] and not isinstance(value, str):
            return list(value)
        if self._wanted in (int, float):
            return _number(self._wanted, value, param, ctx)
        if isinstance(self._wanted, EnumType):
            return _choice(self._wanted, value, param, ctx)
        return value if type(value) is self._wanted else self._ask_typer().coerce(value, param=param, ctx=ctx)


def _number(wanted: type[int | float], value: Any, param: Any, ctx: Any) -> int | float:
    least, most = param.min, param.max
    bound = "" if least is None else f", at least {least}"
    try:
        number = wanted(value)
        if most is not None and number > most:
            bound = f", at most {most:,}"
        elif least is None or number >= least:
            return number
    except ValueError:
        pass
    what = "a whole number" if wanted is int else "a number"
    raise InvalidValue(f"{_name(param)} must be {what}{bound}, not {value!r}", ctx=ctx)


def _choice(wanted: Any, value: Any, param: Any, ctx: Any) -> Any:
    choices = [str(choice.value) for choice in wanted]
    if isinstance(value, wanted) or value in choices:
        return wanted(value)
    near = get_close_matches(str(value).lower(), choices, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise InvalidValue(f"{_name(param)} must be one of {', '.join(choices)}, not {value!r}{hint}", ctx=ctx)


def _name(param: Any) -> str:
    return _bare(param) if param.param_type_name == "argument" else str(max(param.opts, key=len))
