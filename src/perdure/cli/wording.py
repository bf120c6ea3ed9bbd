"""Errors in the words of someone at a terminal: options and commands where a program would read Python's names.

Used by `main` and `verbs` for every error they print, and by the commands whose options go by other names in Python.
"""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager

from perdure.errors import InvalidPayload, PerdureError

_COMMANDS = (
    (
        r"^(cannot retry job (\S+): .*); use retry\(j, as_new=True\) to run it",
        r"\1; perdure retry \2 --as-new{options} runs it",
    ),
    (r"^(cannot .*\bjob (\S+): .*); retry opens a new life$", r"\1; perdure retry \2{options} runs it again"),
    (r"; set_priority gives both the same$", "; perdure priority gives both the same"),
    (
        r'held by live job (\S+); wait for it, supersede it, or enqueue with conflict="return" to get that job$',
        r"held by live job \1; wait until it has ended, or cancel it with perdure cancel \1{options}",
    ),
    (r"pass a path or URL, as in Perdure\('jobs.db'\), or set", "give --url, name it in Perdure('jobs.db'), or set"),
)
"""What a message says to do in Python, and the command that does it; {options} name the same database."""

_GOT = r"(?:, [^,;]*)?, got "
_PROSE = (
    (rf"Input should be a valid integer{_GOT}", "must be a whole number, not "),
    (rf"Input should be a valid number{_GOT}", "must be a number, not "),
    (rf"Input should be a valid string{_GOT}", "must be text, not "),
    (rf"Input should be a valid boolean{_GOT}", "must be true or false, not "),
    (rf"Input should be a valid datetime(?: or date)?{_GOT}", "must be a time such as 2026-01-31T12:00Z, not "),
    (rf"Input should be a valid date(?: or datetime)?{_GOT}", "must be a date such as 2026-01-31, not "),
    (rf"Input should be a valid (?:list|tuple|set){_GOT}", "must be a list such as [1, 2], not "),
    (rf"Input should be a valid dictionary(?: or \w+ of \w+)?{_GOT}", 'must be an object such as {"a": 1}, not '),
    (r"Input should be greater than or equal to (\S+), got ", r"must be at least \1, not "),
    (r"Input should be less than or equal to (\S+), got ", r"must be at most \1, not "),
    (r"Input should be (.*?), got ", r"must be \1, not "),
    (r"Field required, got [^;]*", "is missing"),
    (r"Value error, (.*?), got ", r"\1: "),
    (r"(^|; )'([^']+)':? (must|is missing)", r"\1\2 \3"),
    (r"(^|; )'([^']+)' is not a parameter", r"\1\2 is none of its arguments"),
)
"""How pydantic puts it, and how people do."""

_REFUSAL = re.compile(
    r"Job '(?P<kind>.*?)' cannot take its arguments: (?P<said>.*)\. Expected .*?\((?P<takes>.*)\)\.", re.DOTALL
)
_SECRET = re.compile(r"Annotated\[([^\[\]]*), <class '[\w.]*\.Secret'>\]")
_MODULES = re.compile(r"(?<!['\w.])(?:[A-Za-z_]\w*\.)+(?=[A-Za-z_])")


def in_words(error: PerdureError, options: str = "") -> str:
    """The error as it is printed: what to do next is a command, which ends with `options`, and the code comes last."""
    message = error.message
    for pattern, instead in _COMMANDS:
        message = re.sub(pattern, instead, message)
    message = message.replace("{options}", options)
    return f"{message} [{error.code}]"


@contextmanager
def as_options(**options: str) -> Generator[None, None, None]:
    """An error inside that begins with one of these names begins with the option instead: `grace_s="--grace"`."""
    try:
        yield
    except PerdureError as error:
        name, space, rest = error.message.partition(" ")
        if name not in options:
            raise
        raise type(error)(f"{options[name]}{space}{rest}", code=error.code) from error


def about_arguments(error: InvalidPayload) -> InvalidPayload:
    """The same refusal of a job's arguments, in one plain sentence that names each of them and says what there is."""
    found = _REFUSAL.fullmatch(error.message)
    if found is None:
        return error
    said = found["said"]
    for pattern, instead in _PROSE:
        said = re.sub(pattern, instead, said)
    takes = _MODULES.sub("", _SECRET.sub(r"secret \1", found["takes"])).replace(" = ...", " (optional)")
    return InvalidPayload(f"{found['kind']}: {said}; it takes {takes or 'no arguments'}", code=error.code)
