"""The retry policy: which failures are worth another run, and how late it comes."""

from __future__ import annotations

import json
import math
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perdure.errors import InvalidOption
from perdure.job.retry import Backoff, Retry

MIDDLE = 0.5

backoffs: st.SearchStrategy[Backoff] = st.sampled_from(get_args(Backoff))
units = st.floats(0, 1, exclude_max=True)
attempts = st.integers(1, 2**31 - 1)


@st.composite
def policies(draw: st.DrawFn) -> Retry:
    return Retry(
        draw(attempts),
        backoff=draw(backoffs),
        base=draw(st.floats(0, 1e6)),
        factor=draw(st.one_of(st.floats(1, 10), st.floats(1, 1e308))),
        cap=draw(st.floats(0, 1e6)),
        jitter=draw(st.floats(0, 1)),
        as_new_job=draw(st.booleans()),
    )


def delays(policy: Retry, unit: float = MIDDLE) -> list[float]:
    return [policy.delay(attempt, unit) for attempt in (1, 2, 3, 4)]


def test_the_defaults_are_three_attempts_doubling_from_ten_seconds_up_to_an_hour_with_a_fifth_of_jitter() -> None:
    assert Retry() == Retry(3, backoff="exponential", base=10, factor=2, cap=3600, jitter=0.2)
    assert delays(Retry()) == [10, 20, 40, 80]


@pytest.mark.parametrize(
    ("backoff", "expected"),
    [("none", [0, 0, 0, 0]), ("fixed", [5, 5, 5, 5]), ("linear", [5, 10, 15, 20]), ("exponential", [5, 15, 45, 135])],
)
def test_each_backoff_grows_in_its_own_way(backoff: Backoff, expected: list[float]) -> None:
    assert delays(Retry(backoff=backoff, base=5, factor=3)) == expected


@given(policies(), attempts, units)
def test_a_delay_is_never_negative_and_never_above_the_cap(policy: Retry, attempt: int, unit: float) -> None:
    assert 0 <= policy.delay(attempt, unit) <= policy.cap


@given(policies(), st.integers(1, 10_000))
def test_without_jitter_a_later_attempt_never_waits_less(policy: Retry, attempt: int) -> None:
    assert policy.delay(attempt, MIDDLE) <= policy.delay(attempt + 1, MIDDLE)


@given(units)
def test_jitter_keeps_a_delay_within_its_share_on_either_side(unit: float) -> None:
    assert 8 <= Retry().delay(1, unit) <= 12


def test_jitter_reaches_both_ends_of_its_spread() -> None:
    assert Retry().delay(1, 0.0) == 8
    assert Retry().delay(1, math.nextafter(1, 0)) == pytest.approx(12)


@given(units)
def test_with_no_jitter_the_unit_changes_nothing(unit: float) -> None:
    assert Retry(jitter=0).delay(2, unit) == 20


def test_jitter_does_not_lift_a_delay_above_the_cap() -> None:
    assert Retry(backoff="fixed", base=100, cap=100).delay(1, 0.99) == 100


def test_jitter_spreads_capped_delays_below_the_cap() -> None:
    assert Retry(base=1e6, cap=100).delay(5, 0.0) == 80


def test_the_ten_thousandth_attempt_waits_for_the_cap() -> None:
    assert Retry().delay(10_000, MIDDLE) == 3600
    assert Retry(factor=1e308).delay(10_000, MIDDLE) == 3600


def test_a_base_of_zero_never_waits_however_many_attempts_there_were() -> None:
    assert Retry(base=0).delay(10_000, MIDDLE) == 0


def test_a_delay_is_a_float_also_when_the_policy_is_written_in_integers() -> None:
    assert isinstance(Retry(base=10, factor=2, cap=5, jitter=0).delay(3, MIDDLE), float)


def test_every_exception_is_retried_by_default_but_no_exit_or_interrupt() -> None:
    assert Retry().retries(ValueError())
    assert not Retry().retries(KeyboardInterrupt())
    assert not Retry().retries(SystemExit())


def test_on_limits_retries_to_its_classes_and_their_subclasses() -> None:
    policy = Retry(on=(OSError, KeyError))

    assert policy.retries(OSError())
    assert policy.retries(ConnectionResetError())
    assert not policy.retries(IndexError())


def test_an_empty_on_retries_nothing() -> None:
    assert not Retry(on=()).retries(ValueError())


def test_never_keeps_its_classes_and_their_subclasses_from_being_retried() -> None:
    policy = Retry(never=(LookupError,))

    assert not policy.retries(KeyError())
    assert policy.retries(ValueError())


def test_never_wins_over_on() -> None:
    policy = Retry(on=(OSError,), never=(FileNotFoundError,))

    assert policy.retries(PermissionError())
    assert not policy.retries(FileNotFoundError())


def test_a_policy_of_a_policy_is_itself() -> None:
    policy = Retry(7)

    assert Retry.of(policy) is policy


def test_a_policy_of_a_number_allows_that_many_attempts() -> None:
    assert Retry.of(5) == Retry(max_attempts=5)


def test_a_policy_of_none_is_the_default() -> None:
    assert Retry.of(None) == Retry()


@pytest.mark.parametrize("value", [0, -1, True, 2.0, "3", 2**31])
def test_a_policy_of_an_impossible_number_of_attempts_is_refused(value: Any) -> None:
    with pytest.raises(InvalidOption, match=r"max_attempts|the number of attempts"):
        Retry.of(value)


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("max_attempts", 0),
        ("max_attempts", 2.5),
        ("max_attempts", None),
        ("backoff", "cubic"),
        ("backoff", None),
        ("base", -0.1),
        ("base", math.nan),
        ("base", math.inf),
        ("base", "10"),
        ("base", True),
        ("base", 10**400),
        ("factor", 0.99),
        ("factor", math.inf),
        ("cap", -1),
        ("cap", math.inf),
        ("cap", 1e12),
        ("jitter", -0.01),
        ("jitter", 1.01),
        ("jitter", math.nan),
        ("on", OSError),
        ("on", [OSError]),
        ("on", ("OSError",)),
        ("on", (KeyboardInterrupt,)),
        ("never", None),
        ("never", (OSError(),)),
        ("as_new_job", 1),
    ],
)
def test_an_impossible_value_is_refused_by_an_error_that_names_the_knob(knob: str, value: Any) -> None:
    with pytest.raises(InvalidOption, match=f"Retry: {knob} must") as refused:
        Retry(**{knob: value})

    assert refused.value.code == "retry_invalid"


@given(policies())
def test_a_stored_policy_comes_back_equal(policy: Retry) -> None:
    assert Retry.from_json(json.loads(json.dumps(policy.to_json()))) == policy


def test_a_stored_policy_leaves_the_exception_classes_out() -> None:
    stored = Retry(5, on=(OSError,), never=(KeyError,)).to_json()

    assert Retry.from_json(stored) == Retry(5)


def test_a_stored_policy_counts_the_exceptions_of_another() -> None:
    other = Retry(7, on=(OSError,), never=(KeyError,))

    assert Retry(5).counting(other) == Retry(5, on=(OSError,), never=(KeyError,))


def test_what_a_newer_version_stored_beside_the_policy_is_left_out() -> None:
    assert Retry.from_json({"max_attempts": 4, "moon_phase": "full"}) == Retry(4)


def test_a_stored_policy_is_checked_when_it_comes_back() -> None:
    with pytest.raises(InvalidOption, match="jitter"):
        Retry.from_json({"jitter": 2})


def test_a_policy_can_be_compared_and_hashed() -> None:
    assert {Retry(5), Retry(5), Retry(6)} == {Retry(5), Retry(6)}
