"""The bell of stores that cannot ring from outside."""

from __future__ import annotations

import signal
import threading

import pytest

from perdure.store import server
from perdure.store.server import PollingBell


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> PollingBell:
    """One that would look for itself only after an hour."""
    monkeypatch.setattr(server, "LOOK_S", 3_600)
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
    monkeypatch.setattr(server, "LOOK_S", 0.001)

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
