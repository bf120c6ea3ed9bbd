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

from perdure.text import span

if TYPE_CHECKING:
    from perdure.errors import PerdureError

Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]

_URL_PASSWORD = re.compile(r"(\w+://[^\s/:@]*):\S*@")
_NAMED_PASSWORD = re.compile(r"(password=)[^\s&]+", re.IGNORECASE)
_UNSEEN = "\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff"
"""DEL, C1, what turns the direction of writing or takes no room (but for the joiners, which some scripts need), and
halves of a character, which no terminal can be sent."""
_ACTED_ON = re.compile(f"[\x00-\x08\x0b-\x1f{_UNSEEN}]")
_IN_JSON = re.compile(f"[{_UNSEEN}]")


def one_line(message: str) -> str:
    return " ".join(visible(message).split())


def complain(error: PerdureError) -> None:
    """Print an error that does not end the command."""
    from perdure.cli.typed import options_in
    from perdure.cli.wording import in_words

    print(f"perdure: {one_line(in_words(error, options_in(sys.argv[1:])))}", file=sys.stderr)


def visible(text: str) -> str:
    """The text without anything a terminal would act on, and without the passwords of URLs; line breaks stay."""
    harmless = _ACTED_ON.sub(_escaped, text.replace("\r\n", "\n"))
    return _NAMED_PASSWORD.sub(r"\1***", _URL_PASSWORD.sub(r"\1:***@", harmless))


def _escaped(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}"


def json_text(value: object, indent: int | None = None) -> str:
    """JSON that can be looked at in a terminal: whatever that would act on is escaped, which means the same in JSON."""
    import json

    text = json.dumps(value, indent=indent, ensure_ascii=False, default=str)
    return _IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def sentence(text: str) -> str:
    """With a full stop, unless it ends like a sentence already."""
    return text if text.endswith((".", "!", "?")) else f"{text}."


def first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]


def print_json(value: object) -> None:
    print(json_text(value, indent=2))


def print_json_line(value: object) -> None:
    """One object on one line, at once: for what goes on."""
    print(json_text(value), flush=True)


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
