"""When a cron expression runs, worked out the slow way: by looking at every minute, or every second.

Written from docs/schedules.md alone. Nothing here is shared with the package or with cronsim: neither the reading of
the fields nor the rule for clocks that are moved. Of zoneinfo only the way from UTC to the wall is used, which is never
ambiguous.
"""

from __future__ import annotations

import calendar
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from functools import cached_property, lru_cache
from typing import NamedTuple
from zoneinfo import ZoneInfo

DAY = 86_400
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_DAY = date(1970, 1, 1).toordinal()

MONTHS = ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"]
WEEKDAYS = ["sun", "mon", "tue", "wed", "thu", "fri", "sat"]


class Change(NamedTuple):
    """Clocks are moved: at this second the offset from UTC becomes another."""

    at: int
    before: int
    after: int


def changes(zone: str, year: int) -> Iterator[Change]:
    """Every time the clocks of a zone were moved in a year."""
    begin, end = (int((datetime(number, 1, 1, tzinfo=UTC) - EPOCH).total_seconds()) for number in (year, year + 1))
    for day in range(begin, end, DAY):
        if offset(zone, day) != offset(zone, day + DAY):
            hour = next(hour for hour in range(day, day + DAY, 3600) if is_moved(zone, hour, hour + 3600))
            at = next(minute for minute in range(hour, hour + 3600, 60) if is_moved(zone, minute, minute + 60)) + 60
            yield Change(at, offset(zone, at - 1), offset(zone, at))


def is_moved(zone: str, earlier: int, later: int) -> bool:
    return offset(zone, earlier) != offset(zone, later)


def offset(zone: str, second: int) -> int:
    ahead = (EPOCH + timedelta(seconds=second)).astimezone(ZoneInfo(zone)).utcoffset()
    assert ahead is not None
    return int(ahead.total_seconds())


class Wall:
    """What clocks show around a change: at every minute (or second) that is looked at, the time on the wall."""

    def __init__(self, change: Change, reach: int, step: int) -> None:
        self.step = step
        self.shown = {
            instant: instant + (change.before if instant < change.at else change.after)
            for instant in range(change.at - reach, change.at + reach, step)
        }

    @cached_property
    def once(self) -> dict[int, int]:
        """For each time on the wall, also for those that a gap leaves out: the instant at which it runs if once."""
        first: dict[int, int] = {}
        for instant, wall in self.shown.items():
            first.setdefault(wall, instant)
        right_after_the_gap = first[max(first)]
        for wall in range(max(first), min(first), -self.step):
            right_after_the_gap = first.setdefault(wall, right_after_the_gap)
        return first


class Cron:
    """An expression, read anew."""

    def __init__(self, text: str) -> None:
        fields = NAMED.get(text, text).lower().split()
        self.has_seconds = len(fields) == 6
        second, minute, hour, self.day, month, self.weekday = fields if self.has_seconds else ["0", *fields]
        self.seconds, self.minutes, self.hours = values(second, 0, 59), values(minute, 0, 59), values(hour, 0, 23)
        self.months = values(month, 1, 12, MONTHS)
        self.times = {
            h * 3600 + m * 60 + s
            for h in range(24)
            for m in range(60)
            for s in range(60)
            if h in self.hours and m in self.minutes and s in self.seconds
        }

    def runs(self, wall: Wall) -> list[int]:
        """The instants at which it runs, of those that were looked at."""
        times, is_day = self.times, self.matches_day
        if self.hours == set(range(24)):
            shown = wall.shown.items()
            return [instant for instant, time in shown if time % DAY in times and is_day(time // DAY)]
        return sorted({instant for time, instant in wall.once.items() if time % DAY in times and is_day(time // DAY)})

    @lru_cache(4096)  # noqa: B019 - there are as many of them as expressions
    def matches_day(self, number: int) -> bool:
        day = date.fromordinal(FIRST_DAY + number)
        if day.month not in self.months:
            return False
        by_day = any(is_day(part, day) for part in self.day.split(","))
        by_weekday = any(is_weekday(part, day) for part in self.weekday.split(","))
        if self.day[0] == "*" or self.weekday[0] == "*":
            return by_day and by_weekday
        return by_day or by_weekday


NAMED = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * sun",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 jan *",
    "@annually": "0 0 1 jan *",
}


def values(field: str, low: int, high: int, names: list[str] | None = None) -> set[int]:
    """The numbers that a field of numbers, names, ranges and steps allows."""
    return {number for part in field.split(",") for number in part_values(part, low, high, names or [])}


def part_values(part: str, low: int, high: int, names: list[str]) -> Iterator[int]:
    body, _, step = part.partition("/")
    if body == "*":
        first, last = low, high
    elif "-" in body:
        first, last = (number(word, low, names) for word in body.split("-"))
        last = 7 if body.endswith("-sun") else last
    else:
        first = number(body, low, names)
        last = high if step else first
    return iter(range(first, last + 1, int(step or 1)))


def number(word: str, low: int, names: list[str]) -> int:
    return names.index(word) + low if word in names else int(word)


def is_day(part: str, day: date) -> bool:
    """Whether a date is one of the days of the month that a part of the field means."""
    length = calendar.monthrange(day.year, day.month)[1]
    if part == "l":
        return day.day == length
    if part == "lw":
        return day.day == max(d for d in range(1, length + 1) if day.replace(day=d).isoweekday() <= 5)
    return day.day in values(part, 1, 31)


def is_weekday(part: str, day: date) -> bool:
    """Whether a date is one of the weekdays: any Monday, the second one (mon#2), or the last of a month (1l)."""
    if "#" in part:
        name, _, count = part.partition("#")
        return is_weekday(name, day) and (day.day - 1) // 7 + 1 == int(count)
    if part.endswith("l"):
        return is_weekday(part[:-1], day) and (day + timedelta(days=7)).month != day.month
    return bool({day.isoweekday(), day.isoweekday() % 7} & values(part, 0, 7, WEEKDAYS))
