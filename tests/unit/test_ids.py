"""Ids are UUIDv7, unique, and rise within a process over threads, ticks and forks."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.clock import to_micros
from perdure.errors import ConfigError, InvalidInput
from perdure.ids import Drawn, IdFactory, id_floor, parse_id, timestamp_of, to_uuid

MS = 1_772_366_400_123
NEXT = MS + 1
A_TEXT = "019caa2f-5c7b-7000-8000-0123456789ab"

milliseconds = st.integers(0, to_micros(datetime.max.replace(tzinfo=UTC)) // 1_000)
ids = st.binary(min_size=16, max_size=16)


def frozen() -> int:
    return MS


def reading(*times: int) -> Callable[[], int]:
    """A clock that shows these milliseconds in turn, then stays on the last."""
    return itertools.chain(times, itertools.repeat(times[-1])).__next__


def ms_of(value: bytes) -> int:
    return int.from_bytes(value[:6], "big")


def counter_of(value: bytes) -> int:
    return int.from_bytes(value[6:8], "big") & 0xFFF


@given(milliseconds, st.binary(min_size=8, max_size=8))
def test_an_id_is_a_uuid_of_version_7_whatever_the_time_and_the_random_bits(ms: int, bits: bytes) -> None:
    factory = IdFactory(lambda: ms, lambda size: (bits * size)[:size])

    for made in (factory.new(), *factory.new_many(2)):
        assert to_uuid(made).version == 7
        assert to_uuid(made).variant == uuid.RFC_4122
        assert ms_of(made) == ms


def test_all_62_random_bits_are_used() -> None:
    all_set = IdFactory(frozen, lambda size: b"\xff" * size)
    none_set = IdFactory(frozen, bytes)

    assert all_set.new()[8:] == b"\xbf" + b"\xff" * 7
    assert none_set.new()[8:] == b"\x80" + b"\x00" * 7


def test_the_counter_rises_from_zero_in_every_millisecond() -> None:
    factory = IdFactory(reading(MS, MS, NEXT))

    assert [(ms_of(made), counter_of(made)) for made in (factory.new(), factory.new(), factory.new())] == [
        (MS, 0),
        (MS, 1),
        (NEXT, 0),
    ]


def test_single_ids_and_batches_continue_one_sequence() -> None:
    factory = IdFactory(frozen)

    made = [factory.new(), *factory.new_many(3), factory.new()]

    assert [counter_of(value) for value in made] == [0, 1, 2, 3, 4]


def test_the_same_seed_and_clock_give_the_same_ids() -> None:
    def seeded() -> IdFactory:
        return IdFactory(frozen, random.Random(7).randbytes)

    first, second = seeded(), seeded()

    assert [first.new(), *first.new_many(5)] == [second.new(), *second.new_many(5)]


def test_the_random_bits_of_a_batch_come_in_one_call() -> None:
    sizes: list[int] = []

    def noted(size: int) -> bytes:
        sizes.append(size)
        return os.urandom(size)

    IdFactory(frozen, noted).new_many(1_000)

    assert sizes == [8_000]


def test_a_real_factory_makes_rising_ids_stamped_with_the_present() -> None:
    factory = IdFactory()
    before = time.time_ns() // 1_000_000

    made = [*(factory.new() for _ in range(5_000)), *factory.new_many(10_000)]

    assert all(one < other for one, other in itertools.pairwise(made))
    assert before <= ms_of(made[0]) <= ms_of(made[-1]) <= time.time_ns() // 1_000_000


@pytest.mark.parametrize("n", [0, -1])
def test_a_batch_of_none_is_empty(n: int) -> None:
    assert IdFactory().new_many(n) == []


def test_drawn_ids_are_made_when_they_are_looked_at_and_keep_their_places() -> None:
    made: list[int] = []
    ids = IdFactory(lambda: 1_000, lambda n: made.append(n // 8) or b"\0" * n)
    drawn = Drawn(ids, 100)

    assert (len(drawn), bool(drawn), bool(Drawn(ids, -1)), made) == (100, True, False, [])
    first = drawn[:3]
    assert made == [3]
    assert drawn[1] == first[1] == drawn[1:2][0]
    assert drawn[3:2] == []
    assert made == [3]
    assert [*first, drawn[3], *drawn[4:]] == list(drawn) == sorted(set(drawn))
    assert made == [3, 1, 96]
    assert drawn[-1] == drawn[99]
    with pytest.raises(IndexError):
        _ = drawn[100]


def test_a_full_millisecond_makes_the_next_id_wait_for_the_tick() -> None:
    now = [MS]
    pauses: list[int] = []

    def tick_at_the_third_pause() -> None:
        pauses.append(now[0])
        now[0] += len(pauses) == 3

    factory = IdFactory(lambda: now[0], pause=tick_at_the_third_pause)
    full = [factory.new() for _ in range(4096)]
    assert pauses == []

    late = factory.new()

    assert pauses == [MS, MS, MS]
    assert (ms_of(full[-1]), counter_of(full[-1])) == (MS, 4095)
    assert (ms_of(late), counter_of(late)) == (NEXT, 0)


def test_a_batch_larger_than_a_millisecond_goes_on_in_the_next_ones() -> None:
    polls = itertools.count()

    made = IdFactory(lambda: MS + next(polls) // 3).new_many(10_000)

    assert len(made) == 10_000
    assert all(one < other for one, other in itertools.pairwise(made))
    assert {ms_of(value) for value in made} == {MS, MS + 1, MS + 2}


def test_after_a_step_back_ids_follow_the_new_clock() -> None:
    factory = IdFactory(reading(MS, MS - 60_000))

    before, after = factory.new(), factory.new()

    assert (ms_of(before), ms_of(after)) == (MS, MS - 60_000)


def test_a_step_back_ends_the_wait_for_a_tick() -> None:
    factory = IdFactory(reading(MS, MS, MS, MS - 60_000))
    factory.new_many(4096)

    assert ms_of(factory.new()) == MS - 60_000


def test_a_millisecond_lived_twice_repeats_no_id() -> None:
    factory = IdFactory(reading(MS, MS - 1, MS))

    first, _, again = factory.new(), factory.new(), factory.new()

    assert first[:8] == again[:8]
    assert first != again


@pytest.mark.parametrize("ms", [-1, 1 << 48])
def test_a_clock_that_no_id_can_hold_is_refused(ms: int) -> None:
    with pytest.raises(ConfigError) as refused:
        IdFactory(lambda: ms).new()

    assert refused.value.code == "clock_out_of_range"


def wall_ms_letting_others_run() -> int:
    """The time, already old when it is returned: without a lock another thread has by then opened a later one."""
    ms = time.time_ns() // 1_000_000
    time.sleep(0)
    return ms


def test_eight_threads_share_a_factory_without_a_repeat_and_each_sees_its_ids_rise() -> None:
    factory = IdFactory(wall_ms_letting_others_run)
    start = threading.Barrier(8)
    made: list[list[bytes]] = [[] for _ in range(8)]

    def make(mine: list[bytes]) -> None:
        start.wait()
        for _ in range(1_000):
            mine.append(factory.new())
            mine.extend(factory.new_many(4))

    threads = [threading.Thread(target=make, args=(mine,)) for mine in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert [len(mine) for mine in made] == [5_000] * 8
    # The first 8 bytes, time and counter: unique without any help from the random bits.
    assert len({value[:8] for mine in made for value in mine}) == 40_000
    assert all(one < other for mine in made for one, other in itertools.pairwise(mine))


def ids_of_a_forked_child(make: Callable[[], bytes]) -> bytes:
    """What `make` returns in a forked child; empty if the child has not answered within five seconds."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        # Nothing of pytest may run in the child: it ends here whatever happens, by the alarm if it hangs.
        try:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(5)
            os.write(writer, make())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as answer:
        said = answer.read()
    os.waitpid(pid, 0)
    return said


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_and_its_parent_share_no_random_bits() -> None:
    factory = IdFactory(frozen)
    factory.new()  # random bits are now in stock

    child = ids_of_a_forked_child(lambda: b"".join(factory.new() for _ in range(100)))
    parent = b"".join(factory.new() for _ in range(100))

    assert len(child) == len(parent)
    assert {child[i + 8 : i + 16] for i in range(0, 1600, 16)}.isdisjoint(
        parent[i + 8 : i + 16] for i in range(0, 1600, 16)
    )


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_child_forked_while_another_thread_makes_an_id_can_make_its_own() -> None:
    inside, leave = threading.Event(), threading.Event()

    def slow_in_the_other_thread() -> int:
        if threading.current_thread().name == "slow":
            inside.set()
            leave.wait()
        return MS

    factory = IdFactory(slow_in_the_other_thread)
    slow = threading.Thread(target=factory.new, name="slow")
    slow.start()
    inside.wait()

    try:
        child = ids_of_a_forked_child(factory.new)
    finally:
        leave.set()
        slow.join()

    assert len(child) == 16


def test_a_signal_handler_may_make_an_id_while_its_thread_is_making_one() -> None:
    made_inside: list[bytes] = []

    def interrupted_once() -> int:
        if not interrupted.is_set():
            interrupted.set()
            signal.raise_signal(signal.SIGUSR1)
        return MS

    def make_one_inside(_signal: int, _frame: object) -> None:
        made_inside.append(factory.new())

    interrupted = threading.Event()
    factory = IdFactory(interrupted_once)
    before = signal.signal(signal.SIGUSR1, make_one_inside)
    try:
        outer = factory.new()
    finally:
        signal.signal(signal.SIGUSR1, before)

    assert [counter_of(value) for value in (*made_inside, outer)] == [0, 1]


@given(milliseconds)
def test_the_timestamp_of_an_id_is_the_millisecond_it_was_made_in(ms: int) -> None:
    made = IdFactory(lambda: ms).new()

    expected = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)
    assert timestamp_of(made) == timestamp_of(to_uuid(made)) == expected
    assert timestamp_of(made).tzinfo is UTC


@pytest.mark.parametrize("other", [uuid.UUID(int=0), uuid.uuid4(), uuid.UUID("019caa2f-5c7b-7000-c000-0123456789ab")])
def test_a_uuid_of_another_kind_has_no_timestamp(other: uuid.UUID) -> None:
    with pytest.raises(InvalidInput, match=str(other)) as refused:
        timestamp_of(other)

    assert refused.value.code == "id_invalid"


@given(ids)
def test_every_form_of_an_id_parses_to_the_same_bytes(raw: bytes) -> None:
    text = str(to_uuid(raw))

    forms = (raw, to_uuid(raw), text, text.upper(), text.replace("-", ""))
    assert {parse_id(form) for form in forms} == {raw}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "7",
        A_TEXT + "0",
        A_TEXT[:-1],
        A_TEXT + "\n",
        " " + A_TEXT,
        "{" + A_TEXT + "}",
        "urn:uuid:" + A_TEXT,
        A_TEXT.replace("-", "", 1),
        A_TEXT.replace("-", "_"),
        "0x" + A_TEXT.replace("-", "")[2:],
        A_TEXT.replace("0", "g"),
        A_TEXT.replace("0", "٠"),
        b"",
        b"x" * 15,
        A_TEXT.encode(),
    ],
)
def test_what_is_not_an_id_is_refused(text: str | bytes) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_id(text)

    assert refused.value.code == "id_invalid"


def test_an_object_of_another_type_is_refused_as_an_id() -> None:
    with pytest.raises(InvalidInput, match=r"^7 is not an id"):
        parse_id(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


def test_a_long_text_is_shortened_in_the_refusal() -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_id("x" * 100_000)

    assert len(str(refused.value)) < 300


@given(milliseconds, st.integers(0, 999))
def test_the_floor_divides_the_ids_of_a_millisecond_from_those_before(ms: int, micros: int) -> None:
    lowest = IdFactory(lambda: ms, bytes).new()
    floor = id_floor(ms * 1_000 + micros)

    assert floor == lowest
    if ms > 0:
        assert IdFactory(lambda: ms - 1, lambda size: b"\xff" * size).new_many(4096)[-1] < floor


@given(st.one_of(st.integers(-(10**20), -1), st.integers((1 << 48) * 1_000, 10**20)))
def test_the_floor_of_a_time_no_id_can_hold_is_that_of_the_nearest_it_can(micros: int) -> None:
    nearest = 0 if micros < 0 else (1 << 48) - 1

    assert id_floor(micros) == id_floor(nearest * 1_000)
