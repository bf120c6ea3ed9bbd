"""Texts of runs as they may be stored: without the job's secrets, and without what some databases refuse.

Used by `context` for log lines and by `run` for errors.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode, urlsafe_b64encode
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import date, datetime, time
from typing import cast
from urllib.parse import quote, quote_plus

HIDDEN = "•••"
SHORTEST_SECRET = 3
"""In characters, without blanks at its ends: shorter ones reveal nothing and are found in every line."""
_LONG_ENOUGH = 6
"""A secret of this many bytes is also searched for inside longer base64, and as decoded with errors left out. Pieces of
shorter ones are found in any text."""

_SAFE_IN_URLS = ("", "/", "!'()*", "!#$&'()*+,/:;=?@[]~")
"""Characters that are not quoted: none; as `urllib`, JavaScript and HTTP clients do it."""
_LINE_LENGTHS = (76, 64)
"""Where base64 is broken into lines: MIME, PEM."""


def storable(text: str) -> str:
    """Without what some databases refuse: NUL, and halves of surrogate pairs."""
    return text.replace("\0", "�").encode("utf-8", "replace").decode()


def shortened(text: str, limit: int) -> str:
    """Cuts out the middle of a text that is too long: how it begins and how it ends is worth keeping."""
    if len(text) <= limit:
        return text
    mark = f"\n… {len(text) - limit:,} characters or more were left out here …\n"
    head = (limit - len(mark)) // 2
    return text[:head] + mark + text[head + len(mark) - limit :]


class Redactor:
    """Hides a job's secret arguments in texts.

    It knows of each value, and of each key of a secret dict: the value itself, each of its lines, how `repr`, `ascii`
    and JSON write it (also one inside the other), how URLs quote it, its base64 (also inside that of a longer value)
    and its hex digits; bytes as text, and text as bytes. Values of fewer than three characters are not hidden, nor is
    a part of a line.
    """

    def __init__(self, stored: str, declared: frozenset[str] = frozenset()) -> None:
        """`stored` is the column of a job's secrets; `declared` are the field names of its types, no secrets."""
        found: set[str] = set()
        for text in _values(stored, declared):
            found |= _forms(text)
        self._forms = [form for form in found if len(form) >= SHORTEST_SECRET]

    def __call__(self, text: str) -> str:
        kept: list[str] = []
        at = 0
        for start, end in self._places(text):
            if start >= at:
                kept += (text[at:start], HIDDEN)
            at = max(at, end)
        return "".join((*kept, text[at:])) if kept else text

    def _places(self, text: str) -> list[tuple[int, int]]:
        """Where a secret begins and ends, in order; they may overlap."""
        places: list[tuple[int, int]] = []
        for form in self._forms:
            start = text.find(form)
            while start >= 0:
                places.append((start, start + len(form)))
                start = text.find(form, start + 1)
        return sorted(places)


# -- which values are secret -----------------------------------------------------------------------------------------


def _values(stored: str, declared: frozenset[str]) -> set[str]:
    try:
        arguments = json.loads(stored)
    except ValueError:  # damaged: nothing is known of it but that it is secret
        return {stored}
    named = cast("dict[str, object]", arguments) if isinstance(arguments, dict) else {"": arguments}
    return set[str]().union(*(_texts(value, declared) for value in named.values()))


def _texts(tree: object, declared: frozenset[str]) -> set[str]:
    if isinstance(tree, dict):
        members = cast("dict[str, object]", tree)
        keys = _spellings(key for key in members if key not in declared)
        return keys.union(*(_texts(value, declared) for value in members.values()))
    if isinstance(tree, list):
        return set[str]().union(*(_texts(item, declared) for item in cast("list[object]", tree)))
    return set() if tree is None or isinstance(tree, bool) else _spellings([str(tree)])


def _spellings(texts: Iterable[str]) -> set[str]:
    """These, and how Python prints the dates and times among them, which JSON writes otherwise."""
    found: set[str] = set()
    for text in texts:
        if len(text.strip()) >= SHORTEST_SECRET:
            found.add(text)
            for read in (date.fromisoformat, time.fromisoformat, datetime.fromisoformat):
                with suppress(ValueError):
                    moment = read(text)
                    found |= {str(moment), repr(moment)}
    return found


# -- how they may look -----------------------------------------------------------------------------------------------


def _forms(text: str) -> set[str]:
    found = _text_forms(text) | _byte_forms(text.encode())
    meant = _bytes_in(text)
    if meant is not None:
        found |= _shown_bytes(meant).union(*map(_shown_bytes, meant.splitlines()))
    return found


def _text_forms(text: str) -> set[str]:
    """As it is and escaped, twice at most; and each line: a traceback of a group puts a margin before it."""
    once = {text, *_escaped(text)}
    found = once.union(*map(_escaped, once))
    for line in {line.strip() for line in text.splitlines()} - {text}:
        if len(line) >= SHORTEST_SECRET:
            found |= {line, *_escaped(line)} | _byte_forms(line.encode())
    return found


def _shown_bytes(data: bytes) -> set[str]:
    if len(data) < SHORTEST_SECRET:
        return set()
    found = _byte_forms(data) | _text_forms(data.decode("latin-1"))
    with suppress(UnicodeDecodeError):
        return found | _text_forms(data.decode())
    found |= {data.decode(errors="backslashreplace"), data.decode(errors="surrogateescape")}
    with_gaps = {data.decode(errors="ignore"), data.decode(errors="replace")}
    return found | {text for text in with_gaps if len(text.strip("\ufffd")) >= _LONG_ENOUGH}


def _bytes_in(text: str) -> bytes | None:
    """The bytes of a text that is base64, as bytes are stored. A text that only looks like it does no harm: its bytes
    occur nowhere."""
    if len(text) % 4:
        return None
    try:
        data = b64decode(text, altchars=b"-_" if {*text} & {*"-_"} else None, validate=True)
    except ValueError:
        return None
    return data if text.encode() in (b64encode(data), urlsafe_b64encode(data)) else None


def _escaped(text: str) -> set[str]:
    """As `repr`, `ascii` and JSON write it, each kind of quote escaped or not: what else is in a text decides that."""
    pieces = text.split("'")
    shown = {quote.join(write(piece)[1:-1] for piece in pieces) for quote in ("'", "\\'") for write in (repr, ascii)}
    return shown | {json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]}


def _byte_forms(data: bytes) -> set[str]:
    pieces = data.split(b"'")
    shown = {quote.join(repr(piece)[2:-1] for piece in pieces) for quote in ("'", "\\'")}
    quoted = {quote(data, safe) for safe in _SAFE_IN_URLS} | {quote_plus(data)}
    return shown | quoted | {data.hex(), data.hex().upper(), *_base64_forms(data)}


def _base64_forms(data: bytes) -> Iterator[str]:
    """Whole, with and without padding, in lines, and the part that is the same wherever it is inside longer data."""
    for encode in (b64encode, urlsafe_b64encode):
        whole = encode(data).decode()
        yield from (whole, whole.rstrip("="))
        for length in _LINE_LENGTHS:
            lines = (whole[at : at + length] for at in range(0, len(whole), length))
            yield from (line for line in lines if len(line) > _LONG_ENOUGH)
        if len(data) >= _LONG_ENOUGH:
            for before in range(3):
                yield encode(bytes(before) + data).decode()[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
