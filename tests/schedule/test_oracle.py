"""Triggers run when the oracle says: in every zone, around every time that clocks were moved from 2000 to 2037."""

from __future__ import annotations

import os
import random
from bisect import bisect_right
from collections import defaultdict
from datetime import UTC, date, datetime
from itertools import cycle, pairwise
from zoneinfo import available_timezones

import pytest

from perdure.clock import Micros
from perdure.schedule.trigger import Trigger
from tests.schedule.oracle import DAY, FIRST_DAY, Change, Cron, Wall, changes

FULL = os.environ.get("PERDURE_TEST_SIZE") == "full"
ZONES = sorted(available_timezones() - {"localtime", "posixrules"})
YEARS = range(2000, 2038)

SPARSE = """
0 0 * * *
30 0 * * *
0 1 * * *
30 1 * * *
0 2 * * *
1 2 * * *
15 2 * * *
30 2 * * *
59 2 * * *
0 3 * * *
30 3 * * *
59 23 * * *
0 12 * * *
30 2,3 * * *
0,30 1,2,3 * * *
15,45 0-3 * * *
0 0,6,12,18 * * *
0 */2 * * *
0 1/2 * * *
30 */3 * * *
0 */5 * * *
0 20-23 * * *
30 1 * * 0
30 2 * * sun
30 2 * * SUN#1
0 2 * * sun#2
30 2 * * 7L
0 3 * * SAT-SUN
30 2 * * mon-fri
0 0 * * 5,6
0 1 L * *
30 2 LW * *
0 0 1 * *
30 0 1,15,30,31 * *
30 2 25-31 * 0
30 2 */2 * 0
15 1 * mar,oct sun
30 2 * 3-4 *
0 0 30 12 *
30 3 1-7 */2 */7
0 0 29 2 *
@daily
@midnight
@weekly
@monthly
@yearly
@annually
@hourly
0 * * * *
30 * * * *
45 * * * 0
10 0-23 * * *
20 */1 30 * *
0 * 31 * *
""".strip().splitlines()

DENSE = """
* * * * *
*/5 * * * *
*/7 * * * *
*/15 * * * *
7-59/13 * * * *
0,1,2,58,59 * * * SUN
* 2 * * *
*/15 2 * * *
*/20 0-3 * * *
*/10 1-23/2 * * *
*/30 */2 * * *
""".strip().splitlines()

SECONDS = """
0 30 2 * * *
15 30 2 * * *
59 59 1 * * *
0 0 0 * * *
30 0 * * * *
30 15,45 * * * *
*/20 30 2 * * *
*/30 */10 1-2 * * *
*/45 * * * * *
0 */15 * * * SUN
1-59/29 59 * * * *
10,20 0 */2 * * SUN#1,SUN#2,0L
""".strip().splitlines()

REACHES = ((SPARSE, 36 * 3600, 60), (DENSE, 3 * 3600, 60), (SECONDS, 5400, 1))
"""How far around a change each sort of expression is looked at, and in which steps."""

CRONS = {text: Cron(text) for text in (*SPARSE, *DENSE, *SECONDS)}

TELLING = [
    ("Europe/Berlin", 2026),
    ("America/New_York", 2026),
    ("Australia/Lord_Howe", 2026),  # by half an hour
    ("Antarctica/Troll", 2026),  # by two hours
    ("Pacific/Apia", 2011),  # without 30 December
    ("Pacific/Fakaofo", 2011),
    ("America/Sao_Paulo", 2018),  # at midnight
    ("Asia/Beirut", 2026),
    ("Africa/Cairo", 2010),  # four times in a year
    ("Africa/Casablanca", 2026),
    ("America/Caracas", 2007),  # by half an hour, for good
    ("Asia/Pyongyang", 2015),
    ("America/St_Johns", 2010),  # at one minute past midnight
]


def differences(change: Change, zones: list[str]) -> list[str]:
    """Where triggers differ from the oracle around a change. Each expression is tried in the next of the zones."""
    found: list[str] = []
    in_turn = cycle(zones)
    for texts, least, step in REACHES:
        reach = max(least, change.before - change.after + 3600)  # all that is shown twice, both times
        wall = Wall(change, reach, step)
        for text, zone in zip(texts, in_turn, strict=False):
            expected = [second * 1_000_000 for second in CRONS[text].runs(wall)]
            trigger = Trigger.of(text, tz=zone)
            found += compare(trigger, expected, (change.at - reach, change.at + reach - 1))
            found += compare_between(trigger, expected, change)
    return found


def compare(trigger: Trigger, expected: list[int], window: tuple[int, int]) -> list[str]:
    """Forward, backward and counted: from before the window until its end."""
    first, last = (Micros(second * 1_000_000) for second in window)
    forward = planned(trigger, Micros(first - 1), last)
    if forward != expected:
        return [f"{trigger.cron} in {trigger.tz}: {listed(forward)} is planned, the oracle says {listed(expected)}"]
    backward = [trigger.before(Micros(later - 1)) for later in expected[1:]]
    if backward != expected[:-1] or [trigger.before(Micros(one)) for one in expected[-1:]] != expected[-1:]:
        return [f"{trigger.cron} in {trigger.tz}: backwards {backward} is planned, the oracle says {expected}"]
    return []


def compare_between(trigger: Trigger, expected: list[int], change: Change) -> list[str]:
    """From instants that are not planned: in the time before clocks are moved, and in the time that comes twice."""
    for minute in (-61, -31, -1, 0, 1, 29, 31, 59, 61, 89):
        instant = Micros((change.at + minute * 60) * 1_000_000 + 1)
        place = bisect_right(expected, instant)
        if place > 0 and trigger.before(instant) != expected[place - 1]:
            return [f"{trigger.cron} in {trigger.tz}: before {instant} the oracle says {expected[place - 1]}"]
        if place < len(expected) and trigger.after(instant) != expected[place]:
            return [f"{trigger.cron} in {trigger.tz}: after {instant} the oracle says {expected[place]}"]
    return []


def planned(trigger: Trigger, after: Micros, until: Micros) -> list[int]:
    found: list[int] = []
    while (instant := trigger.after(after)) is not None and instant <= until:
        assert instant > after, f"{trigger} goes back from {after}"
        found.append(after := instant)
    return found


def listed(instants: list[int]) -> str:
    return ", ".join(f"{datetime.fromtimestamp(instant / 1_000_000, UTC):%Y-%m-%d %H:%M:%S}" for instant in instants)


def changes_of(year: int) -> dict[Change, list[str]]:
    """Every change of a year with the zones that have it: many zones move their clocks at the same instant."""
    found: dict[Change, list[str]] = defaultdict(list)
    for zone in ZONES if FULL else random.Random(year).sample(ZONES, 20):
        for change in changes(zone, year):
            found[change].append(zone)
    return found


@pytest.mark.parametrize("year", YEARS if FULL else YEARS[::2])
def test_triggers_run_when_the_oracle_says_in_every_zone(year: int) -> None:
    found = changes_of(year)
    chosen = list(found) if FULL else random.Random(year).sample(list(found), 1)
    assert [line for change in chosen for line in differences(change, found[change])] == []


@pytest.mark.parametrize(("zone", "year"), TELLING)
def test_triggers_run_when_the_oracle_says_where_clocks_are_moved_oddly(zone: str, year: int) -> None:
    found = list(changes(zone, year))
    assert found
    assert [line for change in found for line in differences(change, [zone])] == []


@pytest.mark.parametrize("text", [*SPARSE, *DENSE])
def test_triggers_follow_the_calendar_as_the_oracle_does(text: str) -> None:
    """In UTC, over a leap year and the one after it; of those that run often the end of February."""
    days = range(date(2028, 1, 1).toordinal() - FIRST_DAY, date(2030, 1, 1).toordinal() - FIRST_DAY)
    cron = CRONS[text]
    days = days if len(cron.times) < 5 else days[55:65]
    expected = [(day * DAY + time) * 1_000_000 for day in days if cron.matches_day(day) for time in sorted(cron.times)]
    assert compare(Trigger.of(text), expected, (days[0] * DAY, days[-1] * DAY + DAY - 1)) == []


@pytest.mark.parametrize("year", YEARS if FULL else random.Random(0).sample(YEARS, 3))
def test_changes_are_so_far_apart_that_each_can_be_looked_at_alone(year: int) -> None:
    """And they are at whole minutes, so that looking at minutes misses none."""
    for zone in ZONES if FULL else random.Random(year).sample(ZONES, 20):
        found = [*changes(zone, year), *changes(zone, year + 1)]
        assert all(later.at - earlier.at > 4 * DAY for earlier, later in pairwise(found))
        assert all(change.at % 60 == change.before % 60 == change.after % 60 == 0 for change in found)
