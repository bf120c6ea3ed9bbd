"""Instants are exact, naive datetimes are refused, and the manual clock moves only when told."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta, timezone
from zoneinfo import ZoneInfo

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from perdure.cli.render import ago
from perdure.clock import (
    ASK_EVERY_US,
    Clock,
    ManualClock,
    Micros,
    ServerClock,
    SystemClock,
    iso,
    to_datetime,
    to_micros,
)
from perdure.errors import DatabaseUnavailable, InvalidInput, InvalidOption
from perdure.ids import ids_by, timestamp_of
from perdure.text import distance, length, span

FIRST = datetime.min.replace(tzinfo=UTC)
LAST = datetime.max.replace(tzinfo=UTC)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)

instants = st.integers(to_micros(FIRST), to_micros(LAST)).map(Micros)
offsets = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.datetimes(timezones=st.just(UTC)))
@example(FIRST)
@example(LAST)
def test_a_datetime_survives_the_round_trip_to_the_microsecond(value: datetime) -> None:
    assert to_datetime(to_micros(value)) == value


@given(instants)
def test_an_instant_survives_the_round_trip_to_the_microsecond(instant: Micros) -> None:
    assert to_micros(to_datetime(instant)) == instant


@given(st.datetimes(timezones=st.just(UTC)), offsets)
def test_the_zone_of_a_datetime_does_not_change_its_instant(here: datetime, zone: timezone) -> None:
    assume(FIRST + timedelta(days=1) < here < LAST - timedelta(days=1))

    assert to_micros(here.astimezone(zone)) == to_micros(here)


def test_the_two_readings_of_an_hour_repeated_in_autumn_are_an_hour_apart() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    summer = datetime(2026, 10, 25, 2, 30, tzinfo=berlin)

    assert to_micros(summer.replace(fold=1)) - to_micros(summer) == 3_600_000_000


def test_the_epoch_is_zero_and_time_before_it_negative() -> None:
    assert to_micros(datetime(1970, 1, 1, tzinfo=UTC)) == 0
    assert to_micros(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == -1


def test_a_datetime_from_an_instant_is_aware_and_in_utc() -> None:
    assert to_datetime(Micros(0)).tzinfo is UTC


def test_a_naive_datetime_is_refused_and_told_how_to_become_aware() -> None:
    with pytest.raises(InvalidOption, match=r"2026-03-01T12:00:00.*datetime\.now\(timezone\.utc\)") as refused:
        to_micros(NOON.replace(tzinfo=None))

    assert refused.value.code == "naive_datetime"


@pytest.mark.parametrize(
    "value",
    [
        datetime.min.replace(tzinfo=timezone(timedelta(hours=1))),
        datetime.max.replace(tzinfo=timezone(timedelta(hours=-1))),
    ],
)
def test_a_datetime_that_utc_cannot_show_is_refused(value: datetime) -> None:
    with pytest.raises(InvalidOption) as refused:
        to_micros(value)

    assert refused.value.code == "datetime_out_of_range"


@pytest.mark.parametrize("beyond", [to_micros(FIRST) - 1, to_micros(LAST) + 1, 10**40])
def test_an_instant_that_no_datetime_can_show_is_refused(beyond: int) -> None:
    with pytest.raises(InvalidInput) as refused:
        to_datetime(Micros(beyond))

    assert refused.value.code == "datetime_out_of_range"


def test_iso_text_has_six_decimals_and_a_z() -> None:
    assert iso(to_micros(NOON)) == "2026-03-01T12:00:00.000000Z"


@given(instants)
def test_iso_text_reads_back_as_the_same_instant(instant: Micros) -> None:
    assert to_micros(datetime.fromisoformat(iso(instant))) == instant


@given(instants, instants)
def test_iso_texts_sort_as_their_instants_do(one: Micros, other: Micros) -> None:
    assert (iso(one) < iso(other)) == (one < other)


def test_the_system_clock_tells_the_machines_time() -> None:
    before = time.time_ns() // 1_000
    now = SystemClock().now()

    assert before <= now <= time.time_ns() // 1_000


def test_the_system_boottime_passes_while_the_system_clock_waits() -> None:
    clock: Clock = SystemClock()
    start = clock.boottime()

    clock.wait(0.01)

    assert clock.boottime() - start >= 0.01


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="this system has no CLOCK_BOOTTIME")
def test_the_system_boottime_is_the_one_that_goes_on_in_sleep() -> None:
    before = time.clock_gettime(time.CLOCK_BOOTTIME)
    boottime = SystemClock().boottime()

    assert before <= boottime <= time.clock_gettime(time.CLOCK_BOOTTIME)


@pytest.mark.parametrize("clock", [SystemClock(), ManualClock(NOON)])
@pytest.mark.parametrize("seconds", [0.0, -5.0])
def test_a_wait_for_nothing_returns_at_once(clock: Clock, seconds: float) -> None:
    clock.wait(seconds)


def test_a_manual_clock_starts_where_it_is_told_by_datetime_or_instant() -> None:
    assert ManualClock(NOON).now() == ManualClock(to_micros(NOON)).now() == to_micros(NOON)


def test_advancing_moves_wall_clock_and_boottime_together() -> None:
    clock = ManualClock(NOON)
    booted = clock.boottime()

    clock.advance(days=1, hours=2, minutes=3, seconds=4, milliseconds=5)

    assert to_datetime(clock.now()) == datetime(2026, 3, 2, 14, 3, 4, 5_000, tzinfo=UTC)
    assert clock.boottime() - booted == 93_784.005


def test_a_step_moves_the_wall_clock_alone() -> None:
    clock = ManualClock(NOON)
    booted = clock.boottime()

    clock.step(seconds=-3600)

    assert to_datetime(clock.now()) == NOON - timedelta(hours=1)
    assert clock.boottime() == booted


def test_time_cannot_pass_backwards() -> None:
    clock = ManualClock(NOON)

    with pytest.raises(InvalidInput) as refused:
        clock.advance(seconds=-1)

    assert refused.value.code == "clock_backwards"
    assert clock.now() == to_micros(NOON)


def in_a_thread(call: Callable[..., None], *args: float) -> threading.Thread:
    # A daemon: a wait that wrongly never ends must fail its test, not keep the process alive.
    thread = threading.Thread(target=call, args=args, daemon=True)
    thread.start()
    return thread


def has_ended(thread: threading.Thread, within_s: float) -> bool:
    thread.join(within_s)
    return not thread.is_alive()


def test_a_manual_wait_ends_when_enough_time_has_passed_in_steps_and_not_before() -> None:
    clock = ManualClock(NOON)
    clock.advance(seconds=0.1)
    waiter = in_a_thread(clock.wait, 0.2)
    clock.until_waiting()

    clock.advance(seconds=0.1)
    assert not has_ended(waiter, within_s=0.05)

    clock.advance(seconds=0.1)
    assert has_ended(waiter, within_s=10)


def test_a_step_of_the_wall_clock_ends_no_wait() -> None:
    clock = ManualClock(NOON)
    waiter = in_a_thread(clock.wait, 5)
    clock.until_waiting()

    clock.step(seconds=3600)
    assert not has_ended(waiter, within_s=0.05)

    clock.advance(seconds=5)
    assert has_ended(waiter, within_s=10)


def test_one_advance_ends_the_waits_of_all_threads() -> None:
    clock = ManualClock(NOON)
    waiters = [in_a_thread(clock.wait, seconds) for seconds in (1, 2, 3)]
    clock.until_waiting(3)

    clock.advance(minutes=1)

    assert all(has_ended(waiter, within_s=10) for waiter in waiters)


def test_a_test_can_hold_back_until_enough_threads_are_waiting() -> None:
    clock = ManualClock(NOON)
    test = in_a_thread(clock.until_waiting, 2)

    in_a_thread(clock.wait, 1)
    assert not has_ended(test, within_s=0.05)

    in_a_thread(clock.wait, 1)
    assert has_ended(test, within_s=10)
    clock.advance(seconds=1)


# -- a server's ------------------------------------------------------------------------------------------------------


class Machine:
    """A boot clock that stands until it is moved, and a server whose wall clock is ahead of it."""

    def __init__(self, ahead_us: int) -> None:
        self.boot_us = 0
        self.ahead_us = ahead_us
        self.asked = 0
        self.clock = ServerClock(self.ask, lambda: self.boot_us * 1_000)

    def ask(self, there_us: int = 100, back_us: int = 100) -> None:
        """One exchange: the server reads its clock after the way there."""
        self.asked += 1
        sent_us = self.clock.boot_us()
        self.boot_us += there_us
        said = self.boot_us + self.ahead_us
        self.boot_us += back_us
        self.clock.learn(said, sent_us)

    @property
    def error_us(self) -> int:
        return self.clock.now() - (self.boot_us + self.ahead_us)


ways = st.integers(0, 10_000_000)


@given(st.integers(-(10**15), 10**15), st.lists(st.tuples(ways, ways), min_size=1))
def test_a_servers_time_is_wrong_by_no_more_than_its_quickest_answer_took(
    ahead_us: int, exchanges: list[tuple[int, int]]
) -> None:
    machine = Machine(ahead_us)
    for there_us, back_us in exchanges:
        machine.ask(there_us, back_us)

    assert abs(machine.error_us) <= min(map(sum, exchanges))


def test_a_slow_answer_moves_no_time_that_it_does_not_contradict() -> None:
    machine = Machine(10**15)
    machine.ask()
    known = machine.clock.ahead_us
    machine.ask(there_us=9_000_000, back_us=0)

    assert machine.clock.ahead_us == known


def test_a_server_whose_clock_was_set_is_followed() -> None:
    machine = Machine(10**15)
    machine.ask()
    for step in (3_600_000_000, -7_200_000_000):
        machine.ahead_us += step
        machine.ask()

        assert abs(machine.error_us) <= 200


def test_the_first_look_asks_the_server_and_the_next_ones_do_not() -> None:
    machine = Machine(10**15)

    assert abs(machine.error_us) <= 200
    machine.boot_us += 10**12
    assert abs(machine.error_us) <= 200
    assert machine.asked == 1


def test_a_server_is_to_be_asked_again_after_a_minute() -> None:
    machine = Machine(10**15)
    seen = [machine.clock.is_due]
    machine.ask()
    for passed_us in (ASK_EVERY_US - 1, 1):
        machine.boot_us += passed_us
        seen.append(machine.clock.is_due)

    assert seen == [True, False, True]


def test_a_server_that_was_never_reached_tells_no_time_and_is_asked_again() -> None:
    machine = Machine(10**15)
    answers = iter([DatabaseUnavailable("away"), None])

    def ask() -> None:
        if (error := next(answers)) is not None:
            raise error
        machine.ask()

    clock = machine.clock = ServerClock(ask, lambda: machine.boot_us * 1_000)
    with pytest.raises(DatabaseUnavailable):
        clock.now()
    assert abs(machine.error_us) <= 200


def test_ids_of_an_app_on_a_server_are_dated_by_the_server() -> None:
    machine = Machine(to_micros(NOON))
    ids = ids_by(machine.clock)

    assert timestamp_of(ids.new()) == NOON
    machine.boot_us += 86_400_000_000
    assert timestamp_of(ids.new()) == NOON + timedelta(days=1)


# -- for people ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.012, "12 ms"),
        (0.9996, "1 s"),
        (1.5, "1.5 s"),
        (9.96, "10 s"),
        (45, "45 s"),
        (116, "116 s"),
        (119, "2 min"),
        (5 * 3600 + 60, "5 h"),
        (12 * 86_400, "12 d"),
    ],
)
def test_a_length_of_time_is_written_in_one_unit(seconds: float, text: str) -> None:
    assert span(seconds) == text


def test_the_same_length_of_time_is_written_alike_everywhere() -> None:
    now = to_micros(NOON)
    for seconds in (0, 1, 9, 59, 61, 118, 119, 120, 3_599, 7_000, 7_199, 90_000, 200_000):
        then = Micros(now - seconds * 1_000_000)
        assert length(now - then) == span(seconds)
        assert distance(then, now) == ago(to_datetime(then), NOON) == f"{span(seconds)} ago"
