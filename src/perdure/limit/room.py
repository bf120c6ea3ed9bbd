"""Who may start: what is free of each key, and which of the jobs in front of a claim get their permits. Pure; called by
`store.limit`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from perdure.clock import Micros
from perdure.limit.key import Need

PLENTY = 2**62


class Sort(StrEnum):
    """What a limit counts."""

    AT_ONCE = "at_once"
    """Running jobs."""
    SLIDING = "sliding"
    """Starts in any window."""
    FIXED = "fixed"
    """Starts in windows by the clock."""
    BUCKET = "bucket"
    """Starts, evenly spread but for a burst."""


class RuleRow(NamedTuple):
    """What a limit means: as declared, and as set or paused by hand."""

    name: str
    sort: str
    most: int | None
    per_us: int | None
    burst: int | None
    set_most: int | None
    paused_at: Micros | None


NO_RULE = RuleRow("", Sort.AT_ONCE.value, None, None, None, None, None)
"""Nobody limits it."""


class KeyRow(NamedTuple):
    """A key as it was read under its lock: what was set by hand, what is in use, and where its first line is."""

    key: str
    set_most: int | None
    paused_at: Micros | None
    opens_at: Micros | None
    since_at: Micros | None
    spent: int | None
    in_use: int | None
    first_queue: str | None
    started: int | None = None


class Room:
    """What is free of one key, as a claim gives it away. `most`: by hand for the key, by hand for the limit, or as
    declared; 0 while paused; None: nobody limits it."""

    __slots__ = ("_heaviest", "is_rate", "left", "most", "now", "row", "rule", "taken")

    def __init__(self, rule: RuleRow, row: KeyRow, now: Micros) -> None:
        self.rule = rule
        self.row = row
        self.now = now
        self.is_rate = rule.sort != _AT_ONCE
        self.most = _most(rule, row)
        self._heaviest = self._at_most_together
        self.left = self._free()
        self.taken = 0

    @property
    def _at_most_together(self) -> int:
        """What one job can be as heavy as: for a bucket its burst, else the limit."""
        if self.most is None:
            return PLENTY
        return min(self.most, self.burst) if self.rule.sort == Sort.BUCKET else self.most

    @property
    def burst(self) -> int:
        return self.rule.burst or self.most or 0

    @property
    def per_us(self) -> int:
        return self.rule.per_us or 1

    def weight(self, asked: int) -> int:
        """A job that is heavier than its limit counts as the whole limit: else it would wait for ever."""
        return min(asked, self._heaviest)

    def fits(self, asked: int) -> bool:
        return self.most != 0 and self.weight(asked) <= self.left

    def take(self, asked: int) -> int:
        """Give it away. Returns what it counts."""
        weight = self.weight(asked)
        self.left -= weight
        self.taken += weight
        return weight

    def _free(self) -> int:
        row, most = self.row, self.most
        if most is None:
            return PLENTY
        if not self.is_rate:
            return most - (row.in_use or 0)
        match self.rule.sort:
            case Sort.SLIDING:
                return most - int(row.started or 0)
            case Sort.FIXED:
                return most - self._spent
            case Sort.BUCKET if most:
                return (self._brimful - self._missing) // self.per_us
            case _:
                return 0

    @property
    def in_use(self) -> int:
        """What runs, by weight; of a rate, what was started in its window, or has not come back to its bucket."""
        match self.rule.sort:
            case Sort.SLIDING:
                return int(self.row.started or 0)
            case Sort.FIXED:
                return self._spent
            case Sort.BUCKET:
                return self.burst - self._free() if self.most else 0
            case _:
                return int(self.row.in_use or 0)

    @property
    def _spent(self) -> int:
        """What was started in this fixed window."""
        return int(self.row.spent or 0) if self.row.since_at == self._window else 0

    @property
    def _window(self) -> int:
        return self.now - self.now % self.per_us

    # A bucket (GCRA) is counted in drops: a start takes `per_us` of them, and `most` come back in a microsecond. So
    # nothing is ever rounded.

    @property
    def _brimful(self) -> int:
        return self.burst * self.per_us

    @property
    def _missing(self) -> int:
        """What has not come back. More than the bucket holds was written before the clock was set back."""
        most, since = self.most or 1, self.row.since_at or 0
        missing = (since - self.now) * most + min(int(self.row.spent or 0), most - 1)
        return missing if 0 < missing <= self._brimful else 0

    def spent_since(self) -> tuple[int, int]:
        """What a fixed window or a bucket keeps after these starts: `since_at`, `spent`. Of a bucket, when it is full
        again, in whole microseconds, and what comes after them."""
        if self.rule.sort == Sort.FIXED:
            return self._window, self._spent + self.taken
        later, rest = divmod(self._missing + self.taken * self.per_us, self.most or 1)
        return self.now + later, rest

    def opens_at(self, asked: int, starts: Sequence[tuple[Micros, int]] = ()) -> Micros | None:
        """When a job of this weight fits again, after what was taken now. None: only when somebody frees a permit.

        `starts`: the oldest that count in a sliding window, as (at, weight).
        """
        if not self.is_rate or not self.most:
            return None
        weight = self.weight(asked)
        if self.rule.sort == Sort.FIXED:
            return Micros(self._window + self.per_us)
        if self.rule.sort == Sort.BUCKET:
            short = self._missing + (self.taken + weight) * self.per_us - self._brimful
            return Micros(self.now + max(0, -(-short // self.most)))
        missing = weight - self.left
        for at, freed in starts:
            missing -= freed
            if missing <= 0:
                return Micros(min(at, self.now) + self.per_us)
        return Micros(self.now + self.per_us)


_AT_ONCE = Sort.AT_ONCE.value


def _most(rule: RuleRow, row: KeyRow) -> int | None:
    if rule.paused_at is not None or row.paused_at is not None:
        return 0
    if row.set_most is not None:
        return row.set_most
    return rule.most if rule.set_most is None else rule.set_most


class Candidate(NamedTuple):
    """A job in front of a claim. `in_line`: it stands in the line of this key already."""

    place: tuple[int, int, bytes]
    needs: Sequence[Need]
    in_line: str | None = None


class Decision(NamedTuple):
    """What becomes of candidates, by their numbers: those that start, and those that stand in line of a key now."""

    start: list[int]
    wait: dict[int, str]


def decide(
    candidates: Sequence[Candidate],
    rooms: Mapping[str, Room],
    most: int,
    seen_up_to: Mapping[str, tuple[int, int, bytes]] | None = None,
) -> Decision:
    """Who of these jobs of one queue, in queue order, starts: all permits of a job or none, `most` at most.

    Within a key nobody overtakes: behind a job that waits for a key, the others of that key wait too. `seen_up_to`: the
    last that was read of a line that goes on; whoever is behind it joins the line.
    """
    start: list[int] = []
    wait: dict[int, str] = {}
    closed: set[str] = set()
    for number, (place, needs, _) in enumerate(candidates):
        if len(start) >= most:
            break
        full = _first_full(place, needs, rooms, closed, seen_up_to or {})
        if full is None:
            for key, weight in needs:
                rooms[key].take(weight)
            start.append(number)
        else:
            wait[number] = full
            closed.add(full)
    return Decision(start, wait)


def _first_full(
    place: tuple[int, int, bytes],
    needs: Iterable[Need],
    rooms: Mapping[str, Room],
    closed: set[str],
    seen_up_to: Mapping[str, tuple[int, int, bytes]],
) -> str | None:
    for key, weight in needs:
        if key in closed or not rooms[key].fits(weight) or (key in seen_up_to and place > seen_up_to[key]):
            return key
    return None
