"""How commands are grouped, found and built. Used by `main` for the program, and by its groups.

An option of the program given before the command counts as if it were given after it; where both are, the last counts.
"""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from perdure.cli.commands import COMMANDS, MEANT, Entry
from perdure.cli.usage import pieces, prepare

SHARED = ("url", "app", "json")


class Command(TyperCommand):
    """A command whose examples are shown as they are written."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        prepare(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return pieces(self, ctx)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - typer's signature
        _write_as_it_is(formatter, self.epilog)


class Commands(TyperGroup):
    """Commands that take over --url, --app and --json from before their name."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        prepare(self.get_params(ctx))
        return super().parse_args(ctx, args)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        wanted = args[0] if args else "-"
        if not (wanted.startswith("-") or ctx.resilient_parsing or wanted in self.list_commands(ctx)):
            ctx.fail(f"there is no command {wanted!r}{self._meant(ctx, wanted)}")
        found = super().resolve_command(ctx, args)
        before: dict[str, Any] = ctx.default_map or {}
        handed = before | {name: ctx.params[name] for name in SHARED if ctx.params.get(name)}
        if handed and found[0] is not None:
            ctx.default_map = {found[0]: handed}
        return found

    def _meant(self, ctx: Any, name: str) -> str:
        """What others call so, or a command that is written nearly so."""
        found = MEANT.get((ctx.info_name, name.lower()))
        if found is None:
            near = get_close_matches(name.lower(), self.list_commands(ctx), n=1)
            found = f"{ctx.command_path} {near[0]}" if near else None
        return "" if found is None else f"; did you mean {found}?"

    def format_epilog(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - typer's signature
        _write_as_it_is(formatter, self.epilog)


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
        return None if entry is None else built(entry)

    def format_commands(self, ctx: Any, formatter: Any) -> None:  # noqa: ARG002 - typer's signature
        widest = max(map(len, self._entries))
        for heading, entries in COMMANDS.items():
            with formatter.section(heading):
                formatter.write_dl([(entry.name.ljust(widest), entry.says) for entry in entries])


def built(entry: Entry) -> Any:
    """The command itself, ready to be run."""
    module, _, name = entry.place.partition(":")
    found = getattr(import_module(module), name)
    title = "Example" if len(entry.examples) == 1 else "Examples"
    epilog = "\n".join((f"{title}:", *(f"  perdure {one}" for one in entry.examples))) if entry.examples else None
    if isinstance(found, typer.Typer):
        group: Any = typer.main.get_group(found)
        group.name, group.epilog = entry.name, epilog
        return group
    single = typer.Typer(add_completion=False, rich_markup_mode=None)
    # A priority such as -5 is a number, not an option.
    settings = {"ignore_unknown_options": True} if entry.name == "priority" else None
    single.command(entry.name, cls=Command, epilog=epilog, context_settings=settings)(found)
    return typer.main.get_command(single)


def _write_as_it_is(formatter: Any, text: str | None) -> None:
    """Examples are lines, which typer would run together."""
    if text:
        formatter.write(f"\n{text.rstrip()}\n")
