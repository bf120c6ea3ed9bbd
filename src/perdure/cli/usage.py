"""How a command is written: its usage line, and one sentence for a value that is no such number or choice.

Used by `groups` for every command. Typer would say it in pydantic's words, and take 80 ms to build an adapter for every
parameter of a command, given or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from enum import EnumType
from typing import Any

import typer


class NoSuchValue(typer.BadParameter):
    """Its message names the option by itself."""


def pieces(command: Any, ctx: Any) -> list[str]:
    """The parts of the usage line: `[OPTIONS]`, `ID`, `[NAME=VALUE]...`."""
    options = [command.options_metavar] if command.options_metavar else []
    return options + [_spelt(param) for param in command.get_params(ctx) if param.param_type_name == "argument"]


def _spelt(param: Any) -> str:
    name = _bare(param)
    return (name if param.required else f"[{name}]") + ("..." if param.nargs != 1 else "")


def _bare(param: Any) -> str:
    return str(param.metavar or param.name.upper())


def prepare(params: Sequence[Any]) -> None:
    """Let these parameters read their values, and be listed in the help, as it is done here."""
    for param in params:
        if not (hasattr(param, "get_runtime_param") and hasattr(param, "type_descriptor")):
            continue  # older typers do without
        param.get_runtime_param = _Reader(param).itself
        if param.param_type_name == "argument":
            param.display_type_rich = _unsaid


def _unsaid(ctx: Any) -> str:  # noqa: ARG001 - typer's signature
    """The type of an argument, which would be listed as `ID <str>`."""
    return ""


class _Reader:
    """Takes text, numbers, choices, and what is of its type already; asks typer for all others."""

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
    raise NoSuchValue(f"{_name(param)} must be {what}{bound}, not {value!r}", ctx=ctx)


def _choice(wanted: Any, value: Any, param: Any, ctx: Any) -> Any:
    """The member of this enumeration that has the value."""
    choices = [str(choice.value) for choice in wanted]
    if isinstance(value, wanted) or value in choices:
        return wanted(value)
    near = get_close_matches(str(value).lower(), choices, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise NoSuchValue(f"{_name(param)} must be one of {', '.join(choices)}, not {value!r}{hint}", ctx=ctx)


def _name(param: Any) -> str:
    return _bare(param) if param.param_type_name == "argument" else str(max(param.opts, key=len))
