"""What the program says about its commands: help, parameters, examples. Asked by `cli_page`.

Only what typer and click have had under the same names for years: the records that their own help is made of.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cache
from typing import Any, NamedTuple

import typer

from perdure.cli.commands import COMMANDS
from perdure.cli.main import app

HELP = "--help"
COMPLETION = ("--install-completion", "--show-completion")


class Parameter(NamedTuple):
    """An argument or an option: how it is written, as in `-q, --queue NAME`, and what it means."""

    names: str
    help: str


class Command(NamedTuple):
    path: str
    help: str
    examples: Sequence[str]
    parameters: Sequence[Parameter]
    commands: Sequence[Command]


@cache
def program() -> Command:
    """`perdure` itself, with all its commands."""
    root = typer.main.get_command(app)
    return _read(root, root.make_context("perdure", [], resilient_parsing=True), ())


def sections() -> Iterator[tuple[str, list[Command]]]:
    """The commands under the headings of `perdure --help`."""
    commands = {command.path: command for command in program().commands}
    for heading, entries in COMMANDS.items():
        yield heading, [commands[f"perdure {entry.name}"] for entry in entries]


def every(commands: Sequence[Command]) -> Iterator[Command]:
    for command in commands:
        yield command
        yield from every(command.commands)


def _read(command: Any, context: Any, of_parent: Sequence[str]) -> Command:
    path = context.command_path
    given = [line.strip() for line in (command.epilog or "").splitlines() if line.startswith("  perdure ")]
    examples = [line for line in (*of_parent, *given) if f"{line} ".startswith(f"{path} ")]
    parameters = tuple(_parameters(command, context))
    names = command.list_commands(context) if hasattr(command, "list_commands") else ()
    children = [
        _read(child, type(context)(child, info_name=name, parent=context), given if context.parent else ())
        for name in names
        for child in [command.get_command(context, name)]
    ]
    own = [line for line in examples if not any(f"{line} ".startswith(f"{child.path} ") for child in children)]
    if not own and not children:
        own = [_simplest(path, command)]
    return Command(path, command.help or "", own, parameters, children)


def _simplest(path: str, command: Any) -> str:
    """Its name alone, where that is enough."""
    if any(parameter.required for parameter in command.params):
        raise SystemExit(f"perdure/cli/commands.py gives no example of {path!r}, and its name alone is none")
    return str(path)


def _parameters(command: Any, context: Any) -> Iterator[Parameter]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None or set(parameter.opts) & {HELP, *COMPLETION}:
            continue
        yield Parameter(_argument(parameter) if parameter.param_type_name == "argument" else record[0], record[1])


def _argument(parameter: Any) -> str:
    name = re.sub(r"[\[\]{}.…]+$|^[\[{]+", "", parameter.metavar or parameter.name.upper())
    return f"{name} …" if parameter.nargs == -1 else name
