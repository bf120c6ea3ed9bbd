"""What becomes of instants that are due: three days of outage under each policy, grace, limits. Pure."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from perdure.clock import Micros, to_micros
from perdure.errors import InvalidOption
from perdure.schedule.policy import COUNTED, Decision, Policy, Reason, decide
from perdure.schedule.trigger import Trigger

HOUR = 3_600_000_000
NOON = to_micros(datetime(2030, 1, 4, 12, 0, tzinfo=UTC))
HOURLY = Trigger.of("0 * * * *")
THREE_DAYS_AGO = Micros(NOON - 72 * HOUR)


def decided(trigger: Trigger = HOURLY, since: Micros = THREE_DAYS_AGO, now: Micros = NOON, **policy: Any) -> Decision:
    return decide(trigger, Policy.of(**policy), since, now)


def instants(decision: Decision) -> list[int]:
    return [planned.at for planned in decision.take]


def test_nothing_is_due_before_its_time() -> None:
    assert decided(since=Micros(NOON + HOUR)) == Decision((), (), Micros(NOON + HOUR))


def test_an_instant_on_time_is_taken_with_its_neighbours() -> None:
    decision = decided(since=NOON)

    [planned] = decision.take
    assert (planned.at, planned.previous, planned.following) == (NOON, NOON - HOUR, NOON + HOUR)
    assert (decision.missed, decision.next_at) == ((), NOON + HOUR)


def test_after_an_outage_latest_takes_the_newest_and_records_the_others_as_one_stretch() -> None:
    decision = decided(now=Micros(NOON + 50 * 60_000_000))

    assert instants(decision) == [NOON]
    [missed] = decision.missed
    assert (missed.first_at, missed.last_at, missed.instants) == (THREE_DAYS_AGO, NOON - HOUR, 72)
    assert missed.reason == Reason.MISFIRED
    assert decision.next_at == NOON + HOUR


def test_latest_takes_the_newest_whatever_its_age() -> None:
    yearly = Trigger.of("@yearly")
    first = to_micros(datetime(2029, 1, 1, tzinfo=UTC))
    decision = decided(yearly, first, to_micros(datetime(2030, 12, 30, tzinfo=UTC)))

    assert instants(decision) == [to_micros(datetime(2030, 1, 1, tzinfo=UTC))]


def test_after_an_outage_none_records_all_that_are_too_late() -> None:
    decision = decided(catch_up="none", now=Micros(NOON + 301_000_000))

    assert instants(decision) == []
    assert [(missed.instants, missed.reason) for missed in decision.missed] == [(73, Reason.MISFIRED)]


def test_none_still_takes_what_is_within_its_grace() -> None:
    decision = decided(catch_up="none", misfire_grace=timedelta(hours=2, minutes=10), now=Micros(NOON + 300_000_000))

    assert instants(decision) == [NOON - 2 * HOUR, NOON - HOUR, NOON]
    assert [(missed.last_at, missed.instants) for missed in decision.missed] == [(NOON - 3 * HOUR, 70)]


def test_the_grace_ends_exactly_after_its_span() -> None:
    for late_us, taken in ((300_000_000, [NOON]), (300_000_001, [])):
        assert instants(decided(catch_up="none", since=NOON, now=Micros(NOON + late_us))) == taken


def test_after_an_outage_all_takes_every_instant_in_order() -> None:
    decision = decided(catch_up="all")

    assert instants(decision) == [THREE_DAYS_AGO + n * HOUR for n in range(73)]
    assert decision.missed == ()
    assert {planned.overlap for planned in decision.take} == {"queue"}


def test_all_stops_at_its_limit_and_its_window_and_records_the_rest() -> None:
    by_limit = decided(catch_up="all", catch_up_limit=5)
    by_window = decided(catch_up="all", catch_up_window=timedelta(hours=10))

    assert instants(by_limit) == [NOON - n * HOUR for n in (4, 3, 2, 1, 0)]
    assert instants(by_window) == [NOON - n * HOUR for n in range(10, -1, -1)]
    for decision, left in ((by_limit, 68), (by_window, 62)):
        assert [(missed.instants, missed.reason) for missed in decision.missed] == [(left, Reason.OUTAGE)]


def test_a_stretch_too_long_to_count_is_recorded_without_a_number() -> None:
    every_second = Trigger.of(every=1)
    decision = decided(every_second, THREE_DAYS_AGO, NOON)
    shorter = decided(every_second, Micros(NOON - COUNTED * 1_000_000), NOON)

    assert [missed.instants for missed in decision.missed] == [None]
    assert [missed.instants for missed in shorter.missed] == [COUNTED]


def test_the_last_instant_leaves_nothing_planned() -> None:
    once = Trigger.of(at=datetime(2030, 1, 4, 12, 0, tzinfo=UTC))

    assert decided(once, NOON) == Decision(decided(once, NOON).take, (), None)
    assert instants(decided(once, NOON)) == [NOON]


@pytest.mark.parametrize("overlap", ["queue", "allow"])
def test_caught_up_instants_keep_a_stated_overlap(overlap: Any) -> None:
    assert {planned.overlap for planned in decided(catch_up="all", overlap=overlap).take} == {overlap}


def test_jitter_is_the_same_in_every_process_and_stays_below_its_span() -> None:
    policy = Policy.of(jitter=10)
    delays = {policy.delay_us(b"a" * 16, Micros(n)) for n in range(1_000)}

    assert policy.delay_us(b"a" * 16, NOON) == policy.delay_us(b"a" * 16, NOON)
    assert len(delays) > 900
    assert 0 <= min(delays) < max(delays) < 10_000_000
    assert Policy().delay_us(b"a" * 16, NOON) == 0


def test_a_policy_is_read_as_it_was_stored() -> None:
    policy = Policy.of(catch_up="all", overlap="allow", jitter=1.5, max_runtime=60, at_most_once=True)

    assert Policy.read(policy.stored()) == policy
    assert Policy().stored() == "{}"
    assert Policy.read('{"jitter_us":5,"of_a_newer_release":1}') == Policy(jitter_us=5)


@pytest.mark.parametrize("text", ["", "[]", "no", '{"catch_up":"maybe"}', '{"overlap":null}'])
def test_a_policy_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"policy|Expecting"):
        Policy.read(text)


@pytest.mark.parametrize(
    "wrong",
    [
        {"catch_up": "lates"},
        {"overlap": "skipp"},
        {"misfire_grace": -1},
        {"misfire_grace": "5m"},
        {"jitter": float("nan")},
        {"jitter": True},
        {"catch_up_limit": 0},
        {"catch_up_limit": 10**9},
        {"catch_up_window": 0},
        {"max_runtime": 0},
        {"at_most_once": "yes"},
    ],
)
def test_an_impossible_policy_is_refused_by_name(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(wrong))) as refused:
        Policy.of(**wrong)
    assert refused.value.code == "schedule_invalid"
