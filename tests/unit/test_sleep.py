"""When a worker on PostgreSQL marks itself, looks again, and naps: decided without a server."""

from __future__ import annotations

from perdure.store.postgres.bell import (
    ACTIVE_S,
    BUSY_S,
    FIRST_NAP_S,
    KEEP_ALIVE_S,
    LAST_LOOK_S,
    LONG_NAP_S,
    SHORT_NAP_S,
    SLEEPS_AT_ONCE,
    SLEEPS_PER_S,
    Answer,
    Sleep,
    Snapshot,
)

NOBODY = Snapshot.of("20:20:")


def asleep(snapshot: Snapshot = NOBODY, number: int = 20) -> Sleep:
    sleep = Sleep(0.0)
    assert sleep.hears(Answer(True, snapshot, number), 0.0)
    return sleep


def test_a_snapshot_says_who_is_under_way() -> None:
    snapshot = Snapshot.of("10:20:10,14")
    assert snapshot.under_way(22) == {10, 14, 20, 21}  # those that begin after the last that ended are not listed
    assert [number for number in (9, 10, 13, 14, 19, 20, 21) if snapshot.has_ended(number)] == [9, 13, 19]
    assert NOBODY.under_way(20) == frozenset()


def test_who_has_just_marked_itself_looks_once_more_and_then_rests() -> None:
    sleep = asleep()
    assert sleep.is_marked
    assert sleep.asks_in(0.0) == KEEP_ALIVE_S
    assert not sleep.hears(Answer(True, NOBODY), 10.0)


def test_every_end_of_what_was_under_way_is_a_reason_to_look() -> None:
    sleep = asleep(Snapshot.of("10:20:10,14"), number=21)
    assert not sleep.hears(Answer(True, Snapshot.of("10:20:10,14")), 0.1)
    assert sleep.hears(Answer(True, Snapshot.of("14:30:14,20,25")), 0.2)
    assert not sleep.hears(Answer(True, Snapshot.of("14:31:14,20")), 0.3)  # 25 began later: it rings
    assert sleep.hears(Answer(True, Snapshot.of("14:32:14")), 0.4)
    assert sleep.hears(Answer(True, Snapshot.of("33:33:")), 0.5)
    assert sleep.asks_in(0.5) == KEEP_ALIVE_S


def test_a_transaction_that_lasts_is_asked_for_less_and_less() -> None:
    sleep = asleep(Snapshot.of("10:20:10"))
    pauses: list[float] = []
    at = 0.0
    for _ in range(12):
        pauses.append(round(sleep.asks_in(at), 6))
        at += pauses[-1]
        sleep.hears(Answer(True, Snapshot.of("10:40:10")), at)
    assert pauses == sorted(pauses)
    assert pauses[0] < 0.01
    assert pauses[-1] == LAST_LOOK_S


def test_a_mark_that_is_gone_is_noticed() -> None:
    sleep = asleep()
    sleep.hears(Answer(False, NOBODY), KEEP_ALIVE_S)
    assert not sleep.is_marked
    sleep = asleep()
    sleep.is_notified()
    assert not sleep.is_marked


def test_only_so_many_sleeps_begin() -> None:
    sleep = Sleep(0.0)
    assert sum(sleep.may_begin(0.0) for _ in range(100)) == SLEEPS_AT_ONCE
    assert sum(sleep.may_begin(each / 100) for each in range(1, 1001)) in (round(10 * SLEEPS_PER_S) - 1, 100)
    assert sum(sleep.may_begin(1_000.0) for _ in range(100)) == SLEEPS_AT_ONCE


def test_naps_are_short_after_work_and_grow_without() -> None:
    sleep = Sleep(0.0)
    sleep.wakes(0.0)
    assert {sleep.nap(0.0) for _ in range(5)} == {FIRST_NAP_S}
    soon, later = 2 * BUSY_S, 2 * ACTIVE_S
    assert [sleep.nap(soon) for _ in range(4)] == [FIRST_NAP_S, 0.002, SHORT_NAP_S, SHORT_NAP_S]
    assert [sleep.nap(later) for _ in range(10)][-1] == LONG_NAP_S
    sleep.wakes(later)
    assert sleep.nap(later) == FIRST_NAP_S
