"""Whether output is what a page says, ids, times and durations aside. Called by `pages`; pure."""

from __future__ import annotations

import re

_HEX = r"[0-9a-f]"
_ID = rf"{_HEX}{{8}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{4}}-{_HEX}{{12}}|\b(?=[a-f]*[0-9]){_HEX}{{8,12}}\b"
_TIME = r"\d{4}-\d\d-\d\d(?:[ T]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?(?:Z|[+-]\d\d:?\d\d)?|\b\d\d:\d\d:\d\d(?:[.,]\d+)?"
_SPAN = r"(?:\b|<)\d+(?:\.\d+)? ?(?:µs|ms|s|min|h)\b"
_PIECE = re.compile(rf"(?P<id>{_ID})|(?P<time>{_TIME})|(?P<span>{_SPAN})|(?P<any>…)|(?P<rule>─+)|(?P<gap>\s+)")
_HEX_WORD = re.compile(r"\b[0-9a-f][0-9a-f-]{3,35}\b")


class Reader:
    """Compares output with a page, and remembers which real id stands for which one on the page."""

    def __init__(self) -> None:
        self._ids: dict[str, str] = {}

    def in_a_command(self, command: str) -> str:
        """The command with real ids in place of those on the page, also where only their tail is written."""
        return _HEX_WORD.sub(lambda word: self._real(word[0]), command)

    def _real(self, word: str) -> str:
        for shown, real in self._ids.items():
            if shown.endswith(word):
                return real
        return word

    def compared(self, expected: str, printed: str) -> str | None:
        """What differs, as a sentence; None: it is as the page says."""
        wanted = [line.rstrip() for line in expected.splitlines() if line.strip()]
        lines = [line.rstrip() for line in printed.splitlines() if line.strip()]
        return self._lines(wanted, lines)

    def _lines(self, wanted: list[str], lines: list[str]) -> str | None:
        while wanted:
            line = wanted.pop(0)
            if line == "…":
                if not wanted:
                    return None
                lines = self._from_the_next(wanted[0], lines)
            elif not lines:
                return f"the page goes on with {line!r}, the output has ended"
            elif not self._same(line, lines.pop(0)):
                return f"the page says {line!r}"
        return f"the output goes on with {lines[0]!r}" if lines else None

    def _from_the_next(self, line: str, lines: list[str]) -> list[str]:
        fits = (number for number, text in enumerate(lines) if self._match(line, text) is not None)
        return lines[next(fits, len(lines)) :]

    def _same(self, wanted: str, line: str) -> bool:
        found = self._match(wanted, line)
        if found is not None:
            self._ids = found
        return found is not None

    def _match(self, wanted: str, line: str) -> dict[str, str] | None:
        """All ids known so far, with those of this line; None: it is another line."""
        ids: list[str] = []
        match = re.fullmatch(_pattern(wanted, ids), line)
        if match is None:
            return None
        known = dict(self._ids)
        for shown, real in zip(ids, match.groups(), strict=True):
            if known.setdefault(shown, real) != real:
                return None
        return known if len(set(known.values())) == len(known) else None


def _pattern(wanted: str, ids: list[str]) -> str:
    """A regular expression for the line; the ids of the page, in the order of its groups, are added to `ids`."""
    parts: list[str] = []
    end = 0
    for piece in _PIECE.finditer(wanted):
        parts.append(re.escape(wanted[end : piece.start()]))
        end = piece.end()
        match piece.lastgroup:
            case "id":
                ids.append(piece[0])
                parts.append(r"([0-9a-f-]{8,36})")
            case "time":
                parts.append(f"(?:{_TIME})")
            case "span":
                parts.append(f"(?:{_SPAN})")
            case "any":
                parts.append(".*")
            case "rule":
                parts.append("─+")
            case _:
                parts.append(r"\s+")
    return "".join(parts) + re.escape(wanted[end:])
