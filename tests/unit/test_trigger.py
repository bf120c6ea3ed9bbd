"""Triggers: which instants are planned, what is refused, and how it is said in words."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta, timezone
from itertools import islice, pairwise
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from perdure.clock import Micros, to_datetime, to_micros
from perdure.errors import InvalidOption
from perdure.schedule.trigger import CRON_LIMIT, Trigger

BERLIN = ZoneInfo("Europe/Berlin")
PAGE = Path(__file__).parents[2] / "docs" / "schedules.md"
NOON = datetime(2026, 11, 16, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


def micros(year: int, month: int, day: int, hour: int = 0, minute: int = 0, *, tz: ZoneInfo | None = None) -> Micros:
    return to_micros(datetime(year, month, day, hour, minute, tzinfo=tz or UTC))


def upcoming(trigger: Trigger, after: datetime = NOON, count: int = 3, tz: Any = UTC) -> list[str]:
    planned = islice(trigger.instants(to_micros(after)), count)
    return [f"{to_datetime(instant).astimezone(tz):%m-%d %H:%M:%S}" for instant in planned]


def refusal(**options: Any) -> InvalidOption:
    with pytest.raises(InvalidOption) as caught:
        Trigger.of(**options)
    return caught.value


# What is planned


@pytest.mark.parametrize(
    ("cron", "expected"),
    [
        ("0 7 * * *", ["11-17 07:00:00", "11-18 07:00:00", "11-19 07:00:00"]),
        ("30 0 7 * * *", ["11-17 07:00:30", "11-18 07:00:30", "11-19 07:00:30"]),
        ("*/20 * * * *", ["11-16 12:20:00", "11-16 12:40:00", "11-16 13:00:00"]),
        ("@hourly", ["11-16 13:00:00", "11-16 14:00:00", "11-16 15:00:00"]),
        ("@Daily", ["11-17 00:00:00", "11-18 00:00:00", "11-19 00:00:00"]),
        ("@midnight", ["11-17 00:00:00", "11-18 00:00:00", "11-19 00:00:00"]),
        ("@weekly", ["11-22 00:00:00", "11-29 00:00:00", "12-06 00:00:00"]),
        ("@monthly", ["12-01 00:00:00", "01-01 00:00:00", "02-01 00:00:00"]),
        ("@yearly", ["01-01 00:00:00", "01-01 00:00:00", "01-01 00:00:00"]),
        ("@annually", ["01-01 00:00:00", "01-01 00:00:00", "01-01 00:00:00"]),
        ("0 9 * * mon-fri", ["11-17 09:00:00", "11-18 09:00:00", "11-19 09:00:00"]),
        ("0 9 * * SAT-SUN", ["11-21 09:00:00", "11-22 09:00:00", "11-28 09:00:00"]),
        ("0 9 L * *", ["11-30 09:00:00", "12-31 09:00:00", "01-31 09:00:00"]),
        ("0 0 29 2 *", ["02-29 00:00:00", "02-29 00:00:00", "02-29 00:00:00"]),
    ],
)
def test_a_cron_expression_runs_at_its_times(cron: str, expected: list[str]) -> None:
    assert upcoming(Trigger.of(cron)) == expected


def test_a_cron_expression_is_read_on_the_clocks_of_its_zone() -> None:
    assert upcoming(Trigger.of("0 7 * * *", tz="Europe/Berlin"), count=1) == ["11-17 06:00:00"]
    assert Trigger.of("0 7 * * *", tz=BERLIN) == Trigger.of("0 7 * * *", tz="Europe/Berlin")
    assert Trigger.of("0 7 * * *", tz=UTC) == Trigger.of("0 7 * * *")


def test_an_interval_counts_from_1970_and_so_is_the_same_in_every_process() -> None:
    trigger = Trigger.of(every=timedelta(minutes=7))
    assert trigger.after(Micros(0)) == 7 * 60 * 1_000_000
    assert trigger.before(Micros(-1)) == -7 * 60 * 1_000_000
    assert upcoming(trigger) == ["11-16 12:02:00", "11-16 12:09:00", "11-16 12:16:00"]


def test_an_interval_with_a_start_counts_from_it() -> None:
    trigger = Trigger.of(every=90, start=NOON + timedelta(seconds=1))
    assert upcoming(trigger, NOON - HOUR) == ["11-16 12:00:01", "11-16 12:01:31", "11-16 12:03:01"]
    assert trigger.before(to_micros(NOON)) is None


def test_an_interval_may_have_a_fraction_of_a_second() -> None:
    assert Trigger.of(every=1.5).every_us == 1_500_000


def test_one_instant_is_planned_once() -> None:
    trigger = Trigger.of(at=NOON)
    noon = to_micros(NOON)
    assert trigger.after(Micros(noon - 1)) == noon
    assert trigger.after(noon) is None
    assert trigger.before(noon) == noon
    assert trigger.before(Micros(noon - 1)) is None
    assert [trigger.count(Micros(noon - 1), noon, cap) for cap in (9, 0)] == [1, 0]


@pytest.mark.parametrize("what", [{"cron": "0 * * * *"}, {"every": HOUR}])
def test_start_is_planned_and_end_is_not(what: dict[str, Any]) -> None:
    trigger = Trigger.of(**what, start=NOON, end=NOON + 3 * HOUR)
    planned = ["11-16 12:00:00", "11-16 13:00:00", "11-16 14:00:00"]
    assert upcoming(trigger, NOON - 9 * HOUR, 9) == planned
    assert trigger.before(to_micros(NOON + 9 * HOUR)) == to_micros(NOON + 2 * HOUR)
    assert trigger.before(to_micros(NOON)) == to_micros(NOON)
    assert trigger.before(Micros(to_micros(NOON) - 1)) is None
    assert trigger.after(to_micros(NOON + 2 * HOUR)) is None


def test_a_start_in_1970_is_a_start() -> None:
    assert Trigger.of(every=HOUR, start=to_datetime(Micros(0))).before(Micros(-1)) is None


@pytest.mark.parametrize("what", [{"cron": "*/10 * * * *"}, {"every": 600}])
def test_counting_excludes_the_first_bound_includes_the_last_and_stops_at_the_cap(what: dict[str, Any]) -> None:
    trigger = Trigger.of(**what)
    noon, one = to_micros(NOON), to_micros(NOON + HOUR)
    assert trigger.count(noon, one, 100) == 6
    assert trigger.count(Micros(noon - 1), Micros(one - 1), 100) == 6
    assert trigger.count(noon, one, 4) == 4
    assert trigger.count(noon, noon, 4) == 0
    assert trigger.count(one, noon, 4) == 0
    assert trigger.count(noon, one, -1) == 0


@pytest.mark.parametrize("what", [{"cron": "* * * * *"}, {"cron": "0 7 * * *"}, {"every": 1}, {"at": NOON}])
def test_instants_far_outside_of_any_calendar_have_an_answer(what: dict[str, Any]) -> None:
    trigger = Trigger.of(**what)
    assert trigger.after(Micros(-(10**30))) is not None
    assert trigger.before(Micros(10**30)) is not None
    assert trigger.after(Micros(10**30)) is None
    assert trigger.before(Micros(-(10**30))) is None


# Clocks that are moved


def table() -> list[tuple[str, str, str]]:
    section = PAGE.read_text("utf-8").partition("## Daylight saving time")[2]
    rows = re.findall(r"^\| `(.+?)` \| (.+?) \| (.+?) \|$", section, re.MULTILINE)
    assert len(rows) == 10
    return rows


@pytest.mark.parametrize(("cron", "march", "october"), table())
def test_the_page_says_what_happens_when_clocks_are_moved(cron: str, march: str, october: str) -> None:
    trigger = Trigger.of(cron, tz="Europe/Berlin")
    for day, said in (((2026, 3, 29), march), ((2026, 10, 25), october)):
        first, last = micros(*day, 1, 45, tz=BERLIN), micros(*day, 3, 15, tz=BERLIN)
        planned = islice(trigger.instants(Micros(first - 1)), trigger.count(Micros(first - 1), last, 99))
        assert ", ".join(map(shown_in_berlin, planned)) == said.replace("–", "")


def shown_in_berlin(instant: Micros) -> str:
    return f"{to_datetime(instant).astimezone(BERLIN):%H:%M:%S %Z}".replace(":00 ", " ")


def test_in_an_hour_that_comes_again_what_has_run_is_not_planned_again() -> None:
    trigger = Trigger.of("*/15 2 * * *", tz="Europe/Berlin")
    again = datetime(2026, 10, 25, 2, 20, tzinfo=BERLIN, fold=1)
    assert upcoming(trigger, again, 1, BERLIN) == ["10-26 02:00:00"]
    assert trigger.before(to_micros(again)) == micros(2026, 10, 25, 2, 45, tz=BERLIN)


def test_a_day_that_a_zone_has_left_out_runs_at_the_beginning_of_the_next() -> None:
    apia = ZoneInfo("Pacific/Apia")
    trigger = Trigger.of("0 7 * * *", tz="Pacific/Apia")
    before = datetime(2011, 12, 29, 0, tzinfo=apia)
    assert upcoming(trigger, before, 3, apia) == ["12-29 07:00:00", "12-31 00:00:00", "12-31 07:00:00"]


@pytest.mark.parametrize(
    ("cron", "latest", "following"),
    [
        ("0 * 28 3 *", (2025, 3, 28, 23), (2026, 3, 28, 0)),
        ("0 * 29 2 *", (2024, 2, 29, 23), (2028, 2, 29, 0)),
        ("0 * 30 10 *", (2025, 10, 30, 23), (2026, 10, 30, 0)),
    ],
)
def test_hours_of_a_few_days_are_found_over_years_of_moved_clocks(
    cron: str, latest: tuple[int, int, int, int], following: tuple[int, int, int, int]
) -> None:
    trigger = Trigger.of(cron, tz="Europe/Berlin")
    before, after = micros(*latest, tz=BERLIN), micros(*following, tz=BERLIN)
    for instant in (Micros(before + 1), micros(2025, 11, 2), micros(2026, 1, 1), Micros(after - 1)):
        assert (trigger.before(instant), trigger.after(instant)) == (before, after)


def test_an_hour_shortly_before_clocks_are_moved_is_found_from_long_after() -> None:
    auckland = ZoneInfo("Pacific/Auckland")
    trigger = Trigger.of("0 * 26 9 *", tz="Pacific/Auckland")
    assert trigger.before(micros(2026, 10, 1)) == micros(2026, 9, 26, 23, tz=auckland)
    assert trigger.before(micros(2026, 12, 31)) == micros(2026, 9, 26, 23, tz=auckland)


def test_every_hour_means_the_same_however_it_is_written() -> None:
    before = datetime(2026, 10, 24, 12, tzinfo=UTC)
    star, *others = (Trigger.of(f"30 {hours} * * *", tz=BERLIN) for hours in ("*", "*/1", "0-23", "0-11,12-23"))
    assert all(upcoming(other, before, 24) == upcoming(star, before, 24) for other in others)


# Properties

zones = st.sampled_from(
    [
        "UTC",
        "Europe/Berlin",
        "America/Sao_Paulo",
        "Australia/Lord_Howe",
        "Pacific/Apia",
        "Antarctica/Troll",
        "Asia/Gaza",
    ]
)


def field(low: int, high: int) -> st.SearchStrategy[str]:
    number = st.integers(low, high)
    ranges = st.tuples(number, number).map(lambda two: f"{min(two)}-{max(two)}")
    steps = st.tuples(st.one_of(st.just("*"), ranges), st.integers(1, high)).map(lambda two: f"{two[0]}/{two[1]}")
    part = st.one_of(number.map(str), ranges, steps)
    return st.one_of(st.just("*"), st.lists(part, min_size=1, max_size=3).map(",".join))


seconds_and_minutes = field(0, 59)
crons = st.tuples(
    st.one_of(st.just(""), seconds_and_minutes),
    seconds_and_minutes,
    field(0, 23),
    st.one_of(field(1, 28), st.sampled_from(["L", "LW", "31", "*"])),
    st.one_of(st.just("*"), field(1, 12)),
    st.one_of(field(0, 7), st.sampled_from(["SUN#1", "5L", "MON-FRI", "SAT-SUN"])),
).map(" ".join)
instants = st.integers(micros(1990, 1, 1), micros(2060, 1, 1)).map(Micros)


@st.composite
def triggers(draw: st.DrawFn) -> Trigger:
    what: dict[str, Any] = draw(
        st.one_of(
            st.builds(dict, cron=crons),
            st.builds(dict, every_us=st.integers(1_000_000, 10**14)),
            st.builds(dict, at=instants),
        )
    )
    bounds: dict[str, Any] = draw(
        st.one_of(st.just({}), st.builds(dict, start=instants), st.builds(dict, end=instants))
    )
    try:
        return Trigger(**what, **bounds, tz=draw(zones))
    except InvalidOption as error:
        assume(error.code != "trigger_never")  # a date that does not exist, or bounds that leave nothing
        raise


@given(triggers(), instants)
def test_planned_instants_rise_and_each_is_found_from_both_sides(trigger: Trigger, instant: Micros) -> None:
    planned = list(islice(trigger.instants(instant), 20))
    assert all(one < other for one, other in pairwise([instant, *planned]))
    assert [trigger.before(one) for one in planned] == planned
    assert [trigger.before(Micros(other - 1)) for other in planned[1:]] == planned[:-1]
    if planned:
        assert trigger.count(instant, planned[-1], 100) == len(planned)
        assert trigger.count(instant, planned[-1], 5) == min(5, len(planned))


@given(triggers(), instants)
def test_the_one_before_leads_back_to_the_next(trigger: Trigger, instant: Micros) -> None:
    latest, following = trigger.before(instant), trigger.after(instant)
    assert latest is None or latest <= instant
    assert latest is None or trigger.after(latest) == following
    assert following is None or trigger.before(Micros(following - 1)) == latest


@given(triggers())
def test_a_trigger_is_the_same_after_it_was_stored(trigger: Trigger) -> None:
    again = Trigger.read(json.loads(json.dumps(trigger.stored())))
    assert again == trigger
    assert hash(again) == hash(trigger)
    assert again.describe() == trigger.describe() != ""


@given(st.text("0123456789*,-/#LW@ \tSUNMODAYJ?x\u0663\xa0", max_size=30))
def test_any_text_is_planned_or_refused_with_a_code(text: str) -> None:
    assert outcome(text) in {"planned", "cron_invalid", "trigger_never"}


def outcome(text: str) -> str:
    try:
        Trigger.of(text).describe()
    except InvalidOption as error:
        return error.code
    return "planned"


# What is refused


HOSTILE = {
    "empty": "",
    "blank": " \t ",
    "four fields": "* * * *",
    "seven fields": "* * * * * * *",
    "a range that would fill the memory": "1--100000000 * * * *",
    "a large number": f"{'9' * 200} * * * *",
    "a large step that is none": "*/0 * * * *",
    "a hundred thousand characters": "0," * 50_000 + "0 * * * *",
    "a hundred thousand fields": "* " * 50_000,
    "a long list": ",".join(map(str, range(60))) + " " + ",".join(map(str, range(60))) + " * * * *",
    "digits of another script": "\u0663 * * * *",
    "a letter that grows when it is raised": "\u00df * * * *",
    "a NUL": "0 7 * * *\0",
    "a line break inside": "0 7\n* * *",
    "an escape sequence": "\x1b[31m 7 * * *",
    "a blank of another script": "0\u20037 * * *",
    "a range backwards": "0 17-9 * * *",
    "a minute too many": "60 * * * *",
    "a month of no name": "0 0 1 foo *",
    "a question mark": "0 0 ? * *",
    "no number": 7,
    "bytes": b"0 7 * * *",
    "half of a pair": "\ud800 * * * *",
}


@pytest.mark.parametrize("cron", HOSTILE.values(), ids=HOSTILE)
def test_an_expression_that_cannot_be_read_is_refused_in_one_short_sentence(cron: Any) -> None:
    error = refusal(cron=cron)
    assert error.code == "cron_invalid"
    assert error.message.startswith("cron ")
    assert len(error.message) < 320
    assert error.message.isprintable()


@pytest.mark.parametrize("cron", ["0 0 30 2 *", "0 0 31 2 *", "0 0 31 4,6,9,11 *", "0 0 0 30 2 *", "0 0 */29 2 MON#5"])
def test_an_expression_without_any_date_is_refused(cron: str) -> None:
    error = refusal(cron=cron)
    assert error.code == "trigger_never"
    assert error.message == f"cron '{cron}' never matches a date; change its day or its month"


@pytest.mark.parametrize("cron", ["0 0 29 2 *", "0 0 29 2 */7", "0 0 * 2 MON#5", "0 0 30 2 1", "0 0 31 2 SUN"])
def test_an_expression_with_few_dates_is_none_without_any(cron: str) -> None:
    assert Trigger.of(cron).after(micros(2026, 1, 1)) is not None


def test_the_longest_useful_expression_is_not_too_long() -> None:
    minutes = ",".join(map(str, range(60)))
    assert len(minutes) < CRON_LIMIT
    assert upcoming(Trigger.of(f"{minutes} * * * *"), count=1) == ["11-16 12:01:00"]


@pytest.mark.parametrize(
    ("cron", "said"),
    [
        ("0 25 * * *", "cron '0 25 * * *' cannot be read: its hour is '25'; write 0-23, lists, ranges, or steps"),
        ("5 0 25 * * *", "its hour is '25'"),
        ("x 0 * * *", "its minute is 'x'"),
        ("61 0 0 * * *", "its second is '61'"),
        ("0 0 32 * *", "its day-of-month is '32'"),
        ("0 0 * 13 *", "its month is '13'"),
        ("0 0 * * FRI-MON", "its day-of-week is 'FRI-MON'"),
        ("0 7 * *", "it has 4 fields, and needs 5 (minute, hour, day of the month, month, weekday); or 6 with seconds"),
        ("@dayly", 'did you mean "@daily"?'),
    ],
)
def test_the_message_names_the_field_that_is_wrong(cron: str, said: str) -> None:
    assert said in refusal(cron=cron).message


@pytest.mark.parametrize("options", [{}, {"cron": "0 7 * * *", "every": 5}, {"every": 5, "at": NOON}])
def test_exactly_one_of_cron_every_and_at_is_given(options: dict[str, Any]) -> None:
    assert refusal(**options).code == "trigger_invalid"


@pytest.mark.parametrize("every", [0, -1, 0.999, True, "5", float("nan"), float("inf"), 10**400, timedelta.max])
def test_an_interval_that_is_none_is_refused(every: Any) -> None:
    error = refusal(every=every)
    assert error.code == "every_invalid"
    assert "every must be seconds or a timedelta, from 1 second to 10 years" in error.message


@pytest.mark.parametrize("what", ["at", "start", "end"])
def test_a_time_without_a_zone_is_refused(what: str) -> None:
    cron = {} if what == "at" else {"cron": "0 7 * * *"}
    naive = datetime(2026, 1, 1)
    assert refusal(**cron, **{what: naive}).code == "naive_datetime"
    assert refusal(**cron, **{what: "2026-01-01"}).code == "trigger_invalid"
    assert refusal(**cron, **{what: datetime(1812, 1, 1, tzinfo=UTC)}).code == "datetime_out_of_range"


@pytest.mark.parametrize(
    ("zone", "meant"),
    [
        ("Europe/Berln", "did you mean 'Europe/Berlin'?"),
        ("europe/berlin", "did you mean 'Europe/Berlin'?"),
        ("Berlin", "did you mean 'Europe/Berlin'?"),
        ("America/New York", "did you mean 'America/New_York'?"),
        ("CEST", "use an IANA name such as 'Europe/Berlin'"),
        ("Europe", "use an IANA name such as 'Europe/Berlin'"),
        ("", "use an IANA name such as 'Europe/Berlin'"),
        ("../../etc/passwd", "use an IANA name such as 'Europe/Berlin'"),
        ("\0", "use an IANA name such as 'Europe/Berlin'"),
        ("x" * 100_000, "use an IANA name such as 'Europe/Berlin'"),
        ("localtime", "use an IANA name such as 'Europe/Berlin'"),
        ("posix/Europe/Berlin", "did you mean 'Europe/Berlin'?"),
    ],
    ids=lambda text: text[:20],
)
def test_an_unknown_zone_is_refused_with_the_one_that_was_probably_meant(zone: str, meant: str) -> None:
    error = refusal(cron="0 7 * * *", tz=zone)
    assert error.code == "tz_unknown"
    assert error.message.endswith(meant)


@pytest.mark.parametrize("zone", [5, b"UTC", timezone(HOUR), ["UTC"]])
def test_a_zone_without_a_name_is_refused(zone: Any) -> None:
    assert refusal(cron="0 7 * * *", tz=zone).code == "tz_unknown"


@pytest.mark.parametrize(
    "options",
    [
        {"cron": "0 7 * * *", "start": NOON, "end": NOON},
        {"cron": "0 7 * * *", "start": NOON, "end": NOON + HOUR},
        {"cron": "0 0 29 2 *", "start": NOON, "end": NOON + 365 * 24 * HOUR},
        {"every": 60, "start": NOON, "end": NOON - HOUR},
        {"at": NOON, "start": NOON + HOUR},
        {"at": NOON, "end": NOON},
    ],
)
def test_bounds_that_leave_nothing_are_refused(options: dict[str, Any]) -> None:
    assert refusal(**options).code == "trigger_never"


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({"cron": "0 7 * * *", "zone": "UTC"}, "option_unknown"),
        ({"cron": "0 7 * * *", "tz": None}, "tz_unknown"),
        ({"cron": "0 7 * * *", "tz": ["UTC"]}, "tz_unknown"),
        ({"cron": "0 7 * *"}, "cron_invalid"),
        ({"every_us": 0}, "every_invalid"),
        ({"every_us": "5"}, "every_invalid"),
        ({"at": "now"}, "datetime_out_of_range"),
        ({"every_us": 10**6, "start": 10**30}, "datetime_out_of_range"),
        ({}, "trigger_invalid"),
        (["cron"], "trigger_invalid"),
    ],
)
def test_stored_values_that_cannot_be_are_refused(values: Any, code: str) -> None:
    with pytest.raises(InvalidOption) as caught:
        Trigger.read(values)
    assert caught.value.code == code


# In words


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"cron": "0 7 * * *", "tz": "Europe/Berlin"}, "At 07:00 every day (Europe/Berlin)"),
        ({"cron": "@daily"}, "At 00:00 every day (UTC)"),
        ({"cron": "0 9 * * MON-FRI"}, "At 09:00 on Monday through Friday (UTC)"),
        ({"cron": "0 9 * * sat-sun"}, "At 09:00 on Saturday and Sunday (UTC)"),
        ({"cron": "0 9 21,22,23,31 * *"}, "At 09:00 on the 21st, the 22nd, the 23rd, and the 31st day of month (UTC)"),
        ({"cron": "0 9 11 * *"}, "At 09:00 on the 11th day of every month (UTC)"),
        ({"every": 300}, "Every 5 minutes"),
        ({"every": 60}, "Every minute"),
        ({"every": 90}, "Every 90 seconds"),
        ({"every": 1.5}, "Every 1.5 seconds"),
        ({"every": timedelta(days=7)}, "Every 7 days"),
        ({"every": HOUR, "start": NOON}, "Every hour, from 2026-11-16 12:00 UTC"),
        ({"every": HOUR, "end": NOON, "tz": BERLIN}, "Every hour, until 2026-11-16 13:00 Europe/Berlin"),
        ({"at": NOON}, "Once, on 2026-11-16 12:00 UTC"),
        ({"at": NOON + timedelta(seconds=5), "tz": BERLIN}, "Once, on 2026-11-16 13:00:05 Europe/Berlin"),
    ],
)
def test_a_trigger_is_described_in_words(options: dict[str, Any], words: str) -> None:
    assert Trigger.of(**options).describe() == words


def test_what_is_stored_is_small_and_plain() -> None:
    assert Trigger.of(" 0  7 * * *\n", tz="Europe/Berlin").stored() == {"cron": "0 7 * * *", "tz": "Europe/Berlin"}
    assert Trigger.of(every=5, start=NOON).stored() == {"every_us": 5_000_000, "tz": "UTC", "start": to_micros(NOON)}
