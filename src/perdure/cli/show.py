"""How commands print: JSON for programs, times and numbers for people, errors as one line without secrets.

Whatever a job brought along is shown with its control characters made visible, so that no payload can talk to the
terminal. Tables are in `tables`.
"""

from __future__ import annotations

import re
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from perdure.clock import span

if TYPE_CHECKING:
    from perdure.errors import PerdureError

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

_URL_PASSWORD = re.compile(r"(\w+://[^\s/:@]*):\S*@")
_NAMED_PASSWORD = re.compile(r"(password=)[^\s&]+", re.IGNORECASE)
_CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def one_line(message: str) -> str:
    return " ".join(visible(message).split())


def complain(error: PerdureError) -> None:
    """Print an error that does not end the command."""
    from perdure.cli.typed import options_in
    from perdure.cli.wording import in_words

    print(f"perdure: {one_line(in_words(error, options_in(sys.argv[1:])))}", file=sys.stderr)


def visible(text: str) -> str:
    """The text without anything a terminal would act on, and without the passwords of URLs; line breaks stay."""
    harmless = _CONTROL.sub(lambda found: f"\\x{ord(found[0]):02x}", text.replace("\r\n", "\n"))
    return _NAMED_PASSWORD.sub(r"\1***", _URL_PASSWORD.sub(r"\1:***@", harmless))


def sentence(text: str) -> str:
    """With a full stop, unless it ends like a sentence already."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def print_json(value: object) -> None:
    import json

    print(json.dumps(value, indent=2, ensure_ascii=False))


def print_json_line(value: object) -> None:
    """One object on one line, at once: for what goes on."""
    import json

    print(json.dumps(value, ensure_ascii=False), flush=True)


def moment(at: datetime | None) -> str | None:
    """A time as people read it, in UTC to the second."""
    return None if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def moment_json(at: datetime | None) -> str | None:
    """A time as programs read it: ISO 8601 in UTC, always with six decimals."""
    return None if at is None else at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="microseconds") + "Z"


def ago(at: datetime | None, now: datetime | None = None) -> str:
    """How long something is ago, or ahead, in one unit."""
    if at is None:
        return "-"
    seconds = ((now or datetime.now(UTC)) - at).total_seconds()
    return f"{span(round(seconds))} ago" if seconds >= 0 else f"in {span(round(-seconds))}"


def plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"
