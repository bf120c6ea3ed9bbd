"""Writes docs/cli.md: `python -m tests.docs.cli_page`. Asks the program itself, by `command_tree`.

A command that nobody can be shown an example of stops it, and is named.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

from perdure import State
from tests.docs.command_tree import Command, Parameter, program, sections

PAGE = Path(__file__).parents[2] / "docs" / "cli.md"
SHARED = ("--url", "--app", "--json")

HEAD = """\
# The command line

`perdure`, or `python -m perdure`. Every command with its arguments and options, as `perdure COMMAND --help` tells them.
This page is made from the program by `make docs`; do not edit it.

{about}

| option | means |
|---|---|
{options}
| exit status | means |
|---|---|
| 0 | done, and nothing is wrong; also where the reader of the output has closed it, as `head` does |
| 1 | something wrong was found, or a question was not answered |
| 2 | it could not be done: one line on standard error says why, and ends with the code of [the error](errors.md) |
| 130 | ended by Ctrl-C. 0 where that is how it ends: `worker`, and everything with `--watch` or `--follow` |

Which of them a command has is said with it, and what they mean there where it is something else.
"""

_NOTE = re.compile(r"\s+\[([^\[\]]+)\]$")
_RANGE = re.compile(r"(\d+)<=x<=(\d+)$")
_AT_LEAST = re.compile(r"x>=(\d+)$")
_EXITS = re.compile(r"\bExits with [^.]+\.")
_STATES = "|".join(State)
_CODE = re.compile(rf"(?<![\w`-])(--[a-z][\w-]*(?: (?:[A-Z]+|{_STATES})\b)?|PERDURE_[A-Z]+|\[tool\.perdure\])")
"""What help writes as it is typed: options with their values, variables, tables of pyproject.toml."""
_WIDTH = 120


def page() -> str:
    """The page as it should be."""
    return "".join(_parts())


def _parts() -> Iterator[str]:
    root = program()
    about = root.help.partition("\n\nExit status:")[0].partition("\n\n")[2]
    yield HEAD.format(about=_prose(about), options="".join(map(_row, root.parameters)))
    for heading, commands in sections():
        yield f"\n## {heading}\n"
        for command in commands:
            yield from _command(command)


def _command(command: Command) -> Iterator[str]:
    yield f"\n### {command.path}\n\n{_prose(command.help)}\n"
    if command.examples:
        yield "\n".join(("", "```sh", *command.examples, "```", ""))
    own = [parameter for parameter in command.parameters if not parameter.names.startswith(SHARED)]
    if own:
        yield "\n| argument, option | means |\n|---|---|\n" + "".join(map(_row, own))
    if command.examples:
        yield f"\n{_prose(f'{_shared(command)} {_statuses(command)}')}\n"
    for child in command.commands:
        yield from _command(child)


def _shared(command: Command) -> str:
    """Which of the options that most commands have it takes."""
    taken = [name for name in SHARED if any(one.names.startswith(name) for one in command.parameters)]
    return f"Takes {', '.join(taken)}." if taken else ""


def _statuses(command: Command) -> str:
    """Those it speaks of itself, and those that go without saying."""
    said = {int(number) for sentence in _EXITS.findall(command.help) for number in re.findall(r"\d+", sentence)}
    asks = {1} if any("--yes" in parameter.names for parameter in command.parameters) else set[int]()
    return f"Exit status {', '.join(map(str, sorted({0, 2} | said | asks)))}."


def _row(parameter: Parameter) -> str:
    """Of a table: how it is written, and what it means."""
    names = parameter.names.replace("<int>", "N").replace("<float>", "N").replace("<str>", "TEXT")
    names = re.sub(r"<(.+)>", r"\1", names)  # <human|json>
    return f"| {_cell(f'`{names}`')} | {_cell(_marked(_means(parameter.help)))} |\n"


def _means(help: str) -> str:
    """As a sentence, with what stands in brackets behind it said in words."""
    note = _NOTE.search(help)
    notes = map(_said, note[1].split("; ")) if note is not None else ()
    return " ".join(part if part.endswith((".", "…")) else f"{part}." for part in (_NOTE.sub("", help), *notes) if part)


def _said(note: str) -> str:
    if note == "required":
        return ""
    if between := _RANGE.match(note):
        return f"From {between[1]} to {between[2]}"
    if least := _AT_LEAST.match(note):
        return f"{least[1]} or more"
    return note.replace("default: ", "Default ").removesuffix(".0")


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*")


def _prose(text: str) -> str:
    """Help as Markdown."""
    return "\n\n".join(_wrapped(_marked(paragraph)) for paragraph in text.split("\n\n"))


def _marked(text: str) -> str:
    return _CODE.sub(r"`\1`", text)


def _wrapped(paragraph: str) -> str:
    return textwrap.fill(" ".join(paragraph.split()), _WIDTH, break_long_words=False, break_on_hyphens=False)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
