"""When a schedule is due: the planned instants of a cron expression, an interval, or one date. Pure: no database, and
no clock of its own. Used by everything that fires or shows schedules; calls cronsim, `checks` and `clock`.

cronsim reads the expression and finds the next match on a calendar without time zones. Which instant that is, with
clocks that are moved forward and back, is decided here (docs/schedules.md, "Daylight saving time").
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, timedelta, tzinfo
from difflib import get_close_matches
from functools import lru_cache
from itertools import islice, pairwise, takewhile
from typing import Any, NamedTuple, cast
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from perdure.checks import (
    NAME_LIMIT,
    Span,
    check_choice,
    check_known,
    check_span,
    check_time,
    check_type,
    check_whole,
    refused,
)
from perdure.clock import Micros, to_datetime, to_micros
from perdure.errors import InvalidOption, shown
from perdure.text import counted

CRON_LIMIT = 255
"""Characters of a cron expression: one that lists all 60 minutes has 180."""

_SECOND = 1_000_000  # of microseconds; everything about cron below counts whole seconds
_DAY = 86_400
_LONGEST_S = 10 * 365 * _DAY
_CHUNK = 400 * _DAY
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_WALL_EPOCH = _EPOCH.replace(tzinfo=None)

# Years in which every zone and the 50 years that cronsim searches stay inside what a datetime can hold.
_FIRST = to_micros(datetime(1900, 1, 1, tzinfo=UTC))
_LAST = to_micros(datetime(9900, 1, 1, tzinfo=UTC))

_NAMED = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_FIELDS = {  # as cronsim calls them, in the order of six fields
    "second": "0-59",
    "minute": "0-59",
    "hour": "0-23",
    "day-of-month": "1-31, L (last day) or LW (last weekday)",
    "month": "1-12 or JAN-DEC",
    "day-of-week": "0-7 or SUN-SAT, with #1 to #5 or L behind the number",
}
_BERLIN = "'Europe/Berlin'"
_EXAMPLE = '"0 7 * * MON-FRI"'
_LETTERS = re.compile(r"[0-9A-Za-z*,/#\t -]*")
_OF_THIS_MACHINE = ("localtime", "posixrules", "posix/", "right/")
_UNITS = ((86_400, "day"), (3_600, "hour"), (60, "minute"), (1, "second"))


@dataclass(frozen=True, slots=True)
class Trigger:
    """When something is due: exactly one of `cron`, `every_us` and `at`. Checked when made, also from stored values.

    The same everywhere: no process, restart or earlier firing changes an instant. Cron is read on the clocks of `tz`;
    an interval counts from `start`, or else from 1970, and so does not drift. No instant is before `start`, and none
    is at or after `end`.
    """

    cron: str | None = None
    every_us: int | None = None
    at: Micros | None = None
    tz: str = "UTC"
    start: Micros | None = None
    end: Micros | None = None

    def __post_init__(self) -> None:
        if [self.cron, self.every_us, self.at].count(None) != 2:
            raise InvalidOption("give exactly one of cron, every and at: each says when to run", code="trigger_invalid")
        check_type(self.tz, "tz", str, f"a name such as {_BERLIN}", code="tz_unknown")
        _zone(self.tz)
        if self.cron is not None:
            cron = _tidy(self.cron)
            _plan(cron)
            object.__setattr__(self, "cron", cron)
        if self.every_us is not None:
            check_whole(self.every_us, "every_us", _SECOND, _LONGEST_S * _SECOND, code="every_invalid")
        for what in ("at", "start", "end"):
            _check_instant(getattr(self, what), what)
        if (self.at, self.end) != (None, None) and self.after(Micros(_FIRST - 1)) is None:
            raise InvalidOption("nothing is planned from start until end; choose other bounds", code="trigger_never")

    @classmethod
    def of(
        cls,
        cron: str | None = None,
        *,
        every: Span | None = None,
        at: datetime | None = None,
        tz: str | tzinfo | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
    ) -> Trigger:
        """The trigger meant by these options. `every` in seconds or as a timedelta; datetimes must be aware.

        `tz` is the zone whose clocks a cron expression is read on; for the others it is the one to show times in.
        """
        return cls(
            cron=cron,
            every_us=None if every is None else _interval(every),
            at=_instant(at, "at"),
            tz=_zone_name(tz),
            start=_instant(start, "start"),
            end=_instant(end, "end"),
        )

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> Trigger:
        """The trigger that `stored` described. Values that cannot be are refused as if they were given just now."""
        check_type(values, "trigger", Mapping, "a dict of its parts", code="trigger_invalid")
        check_known(values, [field.name for field in fields(cls)], "part of a trigger")
        return cls(**values)

    def stored(self) -> dict[str, str | int]:
        """What makes this trigger, as JSON values, without what is not given."""
        return {name: value for name, value in asdict(self).items() if value is not None}

    def after(self, instant: Micros) -> Micros | None:
        """The first planned instant later than this one. None: there is none."""
        first, last = self._bounds()
        if instant >= last:
            return None
        found = self._next(max(instant, first - 1))
        return None if found is None or found >= last else Micros(found)

    def before(self, instant: Micros) -> Micros | None:
        """The last planned instant that is not later than this one: itself, if it is planned. None: there is none."""
        first, last = self._bounds()
        if instant < first:
            return None
        found = self._latest(min(instant, last - 1))
        return None if found is None or found < first else Micros(found)

    def instants(self, after: Micros) -> Iterator[Micros]:
        """The planned instants later than this one, in order."""
        found = self.after(after)
        while found is not None:
            yield found
            found = self.after(found)

    def count(self, after: Micros, until: Micros, cap: int) -> int:
        """How many instants are planned later than `after` and not later than `until`. It stops counting at `cap`."""
        if self.every_us is None:
            planned = islice(self.instants(after), max(0, cap))
            return sum(1 for _ in takewhile(lambda instant: instant <= until, planned))
        first, last = self.after(after), self.before(until)
        return 0 if first is None or last is None else max(0, min((last - first) // self.every_us + 1, cap))

    def describe(self) -> str:
        """In words, for people: `At 07:00 every day (Europe/Berlin)`."""
        since = "" if self.start is None else f", from {self._local(self.start)}"
        until = "" if self.end is None else f", until {self._local(self.end)}"
        return self._in_words() + since + until

    def _bounds(self) -> tuple[int, int]:
        """The first instant that may be planned, and the first that may not any more."""
        return _FIRST if self.start is None else self.start, _LAST if self.end is None else self.end

    def _next(self, instant: int) -> int | None:
        """The first planned instant later than this one, bounds apart."""
        if self.at is not None:
            return self.at if self.at > instant else None
        if self.every_us is not None:
            return self._counted(instant) + self.every_us
        return _in_micros(_plan(cast(str, self.cron)).after(self.tz, instant // _SECOND))

    def _latest(self, instant: int) -> int | None:
        """The last planned instant that is not later than this one, bounds apart."""
        if self.at is not None:
            return self.at if self.at <= instant else None
        if self.every_us is not None:
            return self._counted(instant)
        return _in_micros(_plan(cast(str, self.cron)).before(self.tz, instant // _SECOND))

    def _counted(self, instant: int) -> int:
        anchor, every = self.start or 0, cast(int, self.every_us)
        return instant - (instant - anchor) % every

    def _in_words(self) -> str:
        if self.at is not None:
            return f"Once, on {self._local(self.at)}"
        if self.every_us is not None:
            return _interval_in_words(self.every_us)
        return f"{_plan(cast(str, self.cron)).in_words()} ({self.tz})"

    def _local(self, instant: Micros) -> str:
        local = to_datetime(instant).astimezone(_zone(self.tz))
        return f"{local:%Y-%m-%d %H:%M:%S} {self.tz}".replace(":00 ", " ", 1)


class _Plan:
    """A cron expression that was read. Times of the wall are whole seconds, as if the zone had no offset."""

    def __init__(self, fields: list[str]) -> None:
        weekday = re.sub("-SUN", "-7", fields[-1].upper()) if fields else ""  # cronsim: Sunday is 0, and ends no range
        expression = " ".join((*fields[:-1], weekday))
        self._forward = CronSim(expression, _WALL_EPOCH)
        self._backward = CronSim(expression, _WALL_EPOCH, reverse=True)
        self._is_every_hour = len(self._forward.hours) == 24

    def after(self, zone: str, second: int) -> int | None:
        """The first planned second later than this one."""
        if self._is_every_hour:
            return self._next_shown(zone, second + 1)
        wall = self.first_from(_latest_shown(zone, second) + 1)
        return None if wall is None else _first_reached(zone, wall)

    def before(self, zone: str, second: int) -> int | None:
        """The last planned second that is not later than this one."""
        if self._is_every_hour:
            return self._last_shown(zone, second)
        wall = self.last_until(_latest_shown(zone, second))
        return None if wall is None else _first_reached(zone, wall)

    def _next_shown(self, zone: str, second: int) -> int | None:
        """The first second, from this one on, at which the wall shows a planned time."""
        while (wall := self.first_from(second + (stretch := _stretch(zone, second)).offset)) is not None:
            if wall - stretch.offset < stretch.end:
                return wall - stretch.offset
            # Clocks are set back by a day at most. If more than that was searched, no time before `wall` comes again:
            # the years up to it can be left out.
            seen = stretch.end - second > _DAY
            second = max(stretch.end, wall - _DAY) if seen else stretch.end
        return None

    def _last_shown(self, zone: str, second: int) -> int | None:
        """The last second, up to this one, at which the wall shows a planned time."""
        while (wall := self.last_until(second + (stretch := _stretch(zone, second)).offset)) is not None:
            if wall - stretch.offset >= stretch.start:
                return wall - stretch.offset
            seen = second - stretch.start > _DAY
            second = min(stretch.start - 1, wall + _DAY) if seen else stretch.start - 1
        return None

    def first_from(self, wall: int) -> int | None:
        """The first planned time of the wall from this one on."""
        return _found(self._forward, wall - 1)

    def last_until(self, wall: int) -> int | None:
        """The last planned time of the wall up to this one."""
        return _found(self._backward, wall + 1)

    def in_words(self) -> str:
        return re.sub("[2-9][123]th", _ordinal, self._forward.explain())


def _found(search: CronSim, wall: int) -> int | None:
    """The match next to this time of the wall, in the direction of the search. None: not within 50 years."""
    search = copy(search)  # reading the expression again would take as long as the search
    search.dt = _WALL_EPOCH + timedelta(seconds=wall)
    found = next(search, None)
    return None if found is None else (found - _WALL_EPOCH) // timedelta(seconds=1)


def _ordinal(number: re.Match[str]) -> str:
    """21st for the 21th that cronsim writes."""
    return number[0][:2] + {"1": "st", "2": "nd", "3": "rd"}[number[0][1]]


class _Stretch(NamedTuple):
    """Seconds in which the clocks of a zone are not moved: from `start` to before `end`."""

    start: int
    end: int
    offset: int


def _latest_shown(zone: str, second: int) -> int:
    """The latest time that the wall has shown by then: more than now after the clocks were set back."""
    stretch = _stretch(zone, second)
    latest = second + stretch.offset
    while stretch.start > second - _DAY:
        stretch = _stretch(zone, stretch.start - 1)
        latest = max(latest, stretch.end - 1 + stretch.offset)
    return latest


def _first_reached(zone: str, wall: int) -> int:
    """The second at which the wall shows this time, or a later one, for the first time."""
    stretch = _stretch(zone, wall - _DAY)
    while stretch.end + stretch.offset <= wall:
        stretch = _stretch(zone, stretch.end)
    return max(stretch.start, wall - stretch.offset)


def _stretch(zone: str, second: int) -> _Stretch:
    stretches = _stretches(zone, second // _CHUNK)
    return next(stretch for stretch in stretches if second < stretch.end)


@lru_cache(4096)
def _stretches(zone: str, chunk: int) -> tuple[_Stretch, ...]:
    """The stretches of a bit more than a year. zoneinfo does not tell when clocks are moved: we look every two days.

    No zone has moved its clocks twice within less than four days since 1900. Takes 0.3 ms, once per zone and year.
    """
    first, last = chunk * _CHUNK, (chunk + 1) * _CHUNK - 1
    starts, offset = [first], _offset(zone, first)
    for probe in (*range(first, last, 2 * _DAY), last):
        if _offset(zone, probe) != offset:
            offset = _offset(zone, probe)
            seen = range(max(first, probe - 2 * _DAY), probe)
            starts.append(seen.start + bisect_left(seen, True, key=lambda second: _offset(zone, second) == offset))
    return tuple(_Stretch(start, end, _offset(zone, start)) for start, end in pairwise((*starts, last + 1)))


def _offset(zone: str, second: int) -> int:
    """How far the clocks of a zone are ahead of UTC, in seconds."""
    local = (_EPOCH + timedelta(seconds=second)).astimezone(_zone(zone))
    return cast(timedelta, local.utcoffset()) // timedelta(seconds=1)


@lru_cache(1024)
def _zone(name: str) -> ZoneInfo:
    """A zone of the IANA database, under a name that means the same on every machine."""
    try:
        if len(name) <= NAME_LIMIT and not name.startswith(_OF_THIS_MACHINE):
            return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):  # a folder, or a path that leads out of the database
        pass
    raise InvalidOption(f"there is no time zone {shown(name)}; {_near_zone(name)}", code="tz_unknown", option="tz")


def _near_zone(name: str) -> str:
    """Which zone was probably meant. For `Berlin` it is the one of that city; for `CEST` EST would be a bad guess."""
    wanted = name[:NAME_LIMIT].casefold().replace(" ", "_")
    known = {zone.casefold(): zone for zone in sorted(available_timezones()) if not zone.startswith(_OF_THIS_MACHINE)}
    cities = {zone.rpartition("/")[2]: zone for zone in known}
    near = get_close_matches(wanted, known, n=1, cutoff=0.75) if len(wanted) > 4 else []
    meant = cities.get(wanted) or (near[0] if near else None)
    return f"use an IANA name such as {_BERLIN}" if meant is None else f"did you mean {known[meant]!r}?"


def _zone_name(zone: object) -> str:
    if zone is None or zone is UTC:
        return "UTC"
    if isinstance(zone, ZoneInfo) and zone.key:
        return zone.key
    if not isinstance(zone, str):
        raise refused("tz", f"a name such as {_BERLIN}", zone, code="tz_unknown")
    return zone


@lru_cache(1024)
def _plan(cron: str) -> _Plan:
    """The plan of an expression that `_tidy` has made. Refused if it cannot be read, or if it never matches."""
    fields = _NAMED.get(cron, cron).split()
    try:
        plan = _Plan(fields)
    except CronSimError as error:
        raise (_never(cron) if _is_of_no_month(fields, error) else _unreadable(cron, fields, error)) from None
    if plan.first_from(0) is None:
        raise _never(cron)
    return plan


def _tidy(cron: object) -> str:
    """The expression with single blanks, as it was given otherwise."""
    check_type(cron, "cron", str, f"text such as {_EXAMPLE}", code="cron_invalid")
    text = cast(str, cron).strip()
    if len(text) > CRON_LIMIT:
        raise InvalidOption(
            f"cron has {len(text)} characters, the limit is {CRON_LIMIT}; write ranges such as 0-29 in place of lists",
            code="cron_invalid",
            option="cron",
        )
    if text.startswith("@"):
        return check_choice(text.lower(), "cron", tuple(_NAMED), code="cron_invalid")
    if not _LETTERS.fullmatch(text):
        raise refused("cron", f"made of digits, names and * , - / #, such as {_EXAMPLE}", cron, code="cron_invalid")
    return " ".join(text.split())


def _is_of_no_month(fields: list[str], error: CronSimError) -> bool:
    """Whether cronsim complains about a day that its month does not have, such as 30 February."""
    if str(error) != "Bad day-of-month":
        return False
    try:
        _Plan([*fields[:-2], "*", fields[-1]])
    except CronSimError:
        return False
    return True


def _unreadable(cron: str, fields: list[str], error: CronSimError) -> InvalidOption:
    """cronsim says `Bad hour`, or that the number of fields is wrong."""
    if len(fields) not in (5, 6):
        wrong = f"it has {counted(len(fields), 'field')}, and needs 5 (minute, hour, day of the month, month, weekday)"
        hint = "or 6 with seconds first"
    else:
        name = str(error).removeprefix("Bad ")
        wrong = f"its {name} is {shown(fields[list(_FIELDS).index(name) - 6])}"
        hint = f"write {_FIELDS[name]}, lists, ranges, or steps such as */5"
    return InvalidOption(f"cron {shown(cron)} cannot be read: {wrong}; {hint}", code="cron_invalid", option="cron")


def _never(cron: str) -> InvalidOption:
    return InvalidOption(
        f"cron {shown(cron)} never matches a date; change its day or its month", code="trigger_never", option="cron"
    )


def _interval(every: object) -> int:
    must_be = "seconds or a timedelta, from 1 second to 10 years"
    return round(check_span(every, "every", 1, _LONGEST_S, must_be=must_be, code="every_invalid") * _SECOND)


def _interval_in_words(micros: int) -> str:
    size, unit = next(((size, unit) for size, unit in _UNITS if micros % (size * _SECOND) == 0), (1, "second"))
    number = micros / (size * _SECOND)
    return f"Every {unit}" if number == 1 else f"Every {number:,.12g} {unit}s"


def _instant(when: object, what: str) -> Micros | None:
    hint = ", such as datetime(2027, 1, 1, 7, tzinfo=ZoneInfo('Europe/Berlin'))"
    return None if when is None else check_time(when, what, code="trigger_invalid", hint=hint)


def _check_instant(instant: object, what: str) -> None:
    if instant is not None:
        must_be = "in the years 1900 to 9899"
        check_whole(instant, what, _FIRST, _LAST - 1, must_be=must_be, code="datetime_out_of_range")


def _in_micros(second: int | None) -> int | None:
    return None if second is None else second * _SECOND
