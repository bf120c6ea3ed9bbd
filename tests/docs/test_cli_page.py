"""docs/cli.md is what `python -m tests.docs.cli_page` makes of the program, and its examples can be typed."""

from __future__ import annotations

import re
import shlex
from typing import Any

import pytest
import typer

from perdure.cli.main import _USAGE_ERROR, app
from tests.docs import cli_page
from tests.docs.command_tree import every, program

EXAMPLES = sorted({example for command in every(program().commands) for example in command.examples})


def test_the_page_is_up_to_date() -> None:
    assert cli_page.PAGE.read_text("utf-8") == cli_page.page(), "run: make docs"


def test_every_command_is_on_it_with_an_example() -> None:
    parts = dict(re.findall(r"^### (perdure .*)\n((?:(?!^#).*\n)*)", cli_page.page(), re.MULTILINE))
    commands = {command.path: command for command in every(program().commands)}

    assert parts.keys() == commands.keys()
    assert [path for path, command in commands.items() if not command.commands and "```sh" not in parts[path]] == []
    assert {path for path, part in parts.items() if "Exit status 0, " not in part} == {"perdure db"}, "it only groups"


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_can_be_typed(example: str) -> None:
    assert f"{example} ".startswith(f"{understood(example)} ")


@pytest.mark.parametrize("wrong", ["perdure jobs --sate failed", "perdure job", "perdure bojs", "perdure status now"])
def test_an_example_that_cannot_be_typed_is_noticed(wrong: str) -> None:
    with pytest.raises(_USAGE_ERROR):
        understood(wrong)


def understood(typed: str) -> str:
    """The command that is meant, read by the program from its name down to the last option, and not run."""
    command: Any = typer.main.get_command(app)
    name, *words = shlex.split(typed)
    context = command.make_context(name, words)
    while words := [*context._protected_args, *context.args]:
        name, command, words = context.command.resolve_command(context, words)
        context = command.make_context(name, words, parent=context)
    return str(context.command_path)
