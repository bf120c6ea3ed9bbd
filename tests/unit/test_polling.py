"""The bell of stores that cannot ring from outside."""

from __future__ import annotations

import signal
import threading
import time
from itertools import pairwise

import pytest

from perdure.store import server
from perdure.store.server import FIRST_LOOK_S, LAST_LOOK_S, PART_OF_REST, PollingBell, Rest, heard


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> PollingBell:
    """One that would look for itself only after an hour."""
    monkeypatch.setattr(server, "FIRST_LOOK_S", 3_600)
    return PollingBell()


def test_who_rang_before_the_sleep_is_heard_once(patient: PollingBell) -> None:
    patient.ring()
    patient.ring()

    assert patient.wait(60)
    assert not patient.wait(0)


def test_a_sleeper_is_woken(patient: PollingBell) -> None:
    answers: list[bool] = []
    sleeper = threading.Thread(target=lambda: answers.append(patient.wait(60)))
    sleeper.start()
    patient.ring()
    sleeper.join()

    assert answers == [True]


def test_a_short_sleep_that_nobody_ends_says_that_nothing_happened() -> None:
    assert not PollingBell().wait(0)
    assert not PollingBell().wait(0.001)


def test_a_long_sleep_ends_with_perhaps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "FIRST_LOOK_S", 0.001)

    assert PollingBell().wait(3_600)


def test_a_signal_handler_may_ring_while_its_thread_rings_or_sleeps(patient: PollingBell) -> None:
    before = signal.signal(signal.SIGALRM, lambda *_: patient.ring())
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.0001, 0.0001)
        for _ in range(20_000):
            patient.ring()
        signal.setitimer(signal.ITIMER_REAL, 0)
        patient.wait(0)
        signal.setitimer(signal.ITIMER_REAL, 0.01)
        assert patient.wait(60)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_it_may_be_closed_more_than_once(patient: PollingBell) -> None:
    patient.close()
    patient.close()


def looks(rest: Rest, since: float, until: float) -> list[float]:
    """When a worker looks that nobody rings for."""
    found, at = [], since
    while (at := at + rest.look_in(at)) < until:
        rest.looks(at)
        found.append(at)
    return found


def test_a_worker_at_rest_looks_less_and_less_often() -> None:
    found = looks(Rest(0.0), 0.0, 3_600.0)

    assert sum(at < 10 for at in found) >= 4.5 * 10
    assert sum(at > 3_540 for at in found) <= 60 / LAST_LOOK_S + 1
    waits = [(after, after - before) for before, after in pairwise(found)]
    assert all(wait <= max(FIRST_LOOK_S, PART_OF_REST * at) + 1e-9 for at, wait in waits)


def test_who_is_rung_looks_often_again() -> None:
    rest = Rest(0.0)
    rest.looks(3_600)
    assert rest.look_in(3_600) == LAST_LOOK_S

    rest.wakes(3_600)
    rest.looks(3_600)

    assert rest.look_in(3_600) == pytest.approx(FIRST_LOOK_S)


def test_short_sleeps_one_after_the_other_put_no_look_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "FIRST_LOOK_S", 0.003)
    bell = PollingBell()

    assert any(bell.wait(0.001) for _ in range(100))


@pytest.mark.parametrize("rung", [True, False])
def test_who_is_rung_begins_to_rest_anew(rung: bool) -> None:
    rest = Rest(time.monotonic() - 3_600)

    assert heard(rest, rung=rung, or_look=True)

    assert (rest.look_in(time.monotonic()) > FIRST_LOOK_S) == (not rung)
