"""Odd values for every option and every argument of every verb: accepted, or refused by an error of ours."""

from __future__ import annotations

import decimal
import fractions
import math
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, time, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure import Perdure, PerdureError, Retry, Unique
from perdure.options import OPTION_NAMES
from tests.app.contents import contents

ODD: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**31, -(2**31), 2**63, -(2**70), 10**400),
    *(0.0, -0.0, 0.5, -1.5, 1e308, math.nan, math.inf, -math.inf),
    *("", " ", "\0", "\ud800", "x", "x" * 300, "final", "payload", "queued", "*", "\x1f"),
    *(b"", b"x", bytearray(b"x"), memoryview(b"x")),
    *([], [1], [""], ["x"], ["\ud800"], (), ("x", "x"), {"x"}, frozenset(), {}, {"x": 1}, {1: 2}, {"x": math.nan}),
    *(object(), object, len, lambda: None, Ellipsis, NotImplemented, range(3), iter(["x"])),
    *(date(2030, 1, 1), time(1), datetime(2030, 1, 1), datetime(2030, 1, 1, tzinfo=UTC), datetime.max),
    *(datetime.min.replace(tzinfo=UTC), timedelta(1), timedelta(-1), timedelta.max),
    *(decimal.Decimal(1), decimal.Decimal("NaN"), fractions.Fraction(1, 3), 1j, uuid.UUID(int=1), Path("x")),
    *(Retry(), Retry(max_attempts=1), Unique(), Unique(by="to"), Unique(by="nope"), Unique(until="ever")),
    *(ValueError("x"), KeyboardInterrupt, Exception),
]

odd_values = st.sampled_from(ODD) | st.text() | st.integers() | st.floats() | st.binary() | st.datetimes()

FIXTURES_TOO = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


def tried(act: Callable[[], object], path: Path) -> None:
    """It works, or it is refused by an error of ours and nothing was written."""
    before = contents(path)
    try:
        act()
    except PerdureError:
        assert contents(path) == before


def _enqueue_with(send: Any, options: dict[str, Any]) -> None:
    send.options(**options).enqueue("a")


@pytest.mark.parametrize("option", OPTION_NAMES)
def test_any_value_of_an_option_is_taken_or_refused(option: str, app: Perdure, send: Any, path: Path) -> None:
    for value in ODD:
        tried(partial(_enqueue_with, send, {option: value}), path)
        tried(partial(app.job, name="other", **{option: value}), path)


@FIXTURES_TOO
@given(options=st.dictionaries(st.sampled_from(OPTION_NAMES), odd_values, max_size=4))
def test_any_mix_of_options_is_taken_or_refused(app: Perdure, send: Any, path: Path, options: dict[str, Any]) -> None:
    tried(partial(_enqueue_with, send, options), path)


VERBS: dict[str, Callable[[Perdure, Any, Any, Any], object]] = {
    "enqueue": lambda app, send, job, odd: send.enqueue(odd),
    "enqueue positionally": lambda app, send, job, odd: send.enqueue("a", odd, odd),
    "enqueue by name": lambda app, send, job, odd: app.enqueue(odd),
    "enqueue arguments": lambda app, send, job, odd: app.enqueue("send", odd),
    "enqueue an argument": lambda app, send, job, odd: app.enqueue("send", {"to": odd}),
    "enqueue anything": lambda app, send, job, odd: app.enqueue("put", {"value": odd}),
    "enqueue many": lambda app, send, job, odd: send.enqueue_many(odd),
    "enqueue one of many": lambda app, send, job, odd: send.enqueue_many([{"to": "a"}, odd]),
    "enqueue drafts": lambda app, send, job, odd: app.enqueue_many(odd),
    "enqueue one draft": lambda app, send, job, odd: app.enqueue_many([odd]),
    "get": lambda app, send, job, odd: app.get(odd),
    "cancel": lambda app, send, job, odd: app.cancel(odd),
    "cancel at a version": lambda app, send, job, odd: app.cancel(job, expect_version=odd),
    "pause": lambda app, send, job, odd: app.pause(odd),
    "resume": lambda app, send, job, odd: app.resume(odd),
    "retry": lambda app, send, job, odd: app.retry(odd),
    "delete": lambda app, send, job, odd: app.delete(odd),
    "move": lambda app, send, job, odd: app.move(odd, to="front"),
    "move before": lambda app, send, job, odd: app.move(job, before=odd),
    "move to": lambda app, send, job, odd: app.move(job, to=odd),
    "set_priority": lambda app, send, job, odd: app.set_priority(job, odd),
    "supersede": lambda app, send, job, odd: app.supersede(job, odd),
    "edit payload": lambda app, send, job, odd: app.edit(job, payload=odd),
    "edit queue": lambda app, send, job, odd: app.edit(job, queue=odd),
    "edit params": lambda app, send, job, odd: app.edit(job, params=odd),
    "edit tags": lambda app, send, job, odd: app.edit(job, tags=odd),
    "edit run_at": lambda app, send, job, odd: app.edit(job, run_at=odd),
    "edit delay": lambda app, send, job, odd: app.edit(job, delay=odd),
    "edit timeout": lambda app, send, job, odd: app.edit(job, timeout=odd),
    "wait": lambda app, send, job, odd: app.wait(odd, 0),
    "jobs of a state": lambda app, send, job, odd: list(app.jobs(state=odd)),
    "jobs of a queue": lambda app, send, job, odd: list(app.jobs(queue=odd, state="queued")),
    "jobs of a tag": lambda app, send, job, odd: list(app.jobs(tag=odd)),
    "jobs since": lambda app, send, job, odd: list(app.jobs(since=odd, until=odd)),
    "jobs up to": lambda app, send, job, odd: list(app.jobs(limit=odd)),
    "runs of": lambda app, send, job, odd: list(app.runs(odd)),
    "runs of a state": lambda app, send, job, odd: list(app.runs(state=odd)),
    "pause_all": lambda app, send, job, odd: app.pause_all(queue=odd),
    "pause_all up to": lambda app, send, job, odd: app.pause_all(limit=odd),
    "pause a queue": lambda app, send, job, odd: app.queues.pause(odd),
    "lock": lambda app, send, job, odd: app.lock(odd, ttl=1).acquire(),
    "lock for": lambda app, send, job, odd: app.lock("x", ttl=odd).acquire(),
    "declare": lambda app, send, job, odd: app.job(odd),
    "declare a name": lambda app, send, job, odd: app.job(name=odd)(print),
    "declare aliases": lambda app, send, job, odd: app.job(name="k", aliases=odd)(print),
    "declare a version": lambda app, send, job, odd: app.job(name="k", version=odd)(print),
    "declare upgrades": lambda app, send, job, odd: app.job(name="k", upgrades=odd)(print),
    "declare isolation": lambda app, send, job, odd: app.job(name="k", isolation=odd)(print),
}


@pytest.mark.parametrize("verb", VERBS)
def test_any_value_for_a_verb_is_taken_or_refused(verb: str, app: Perdure, send: Any, path: Path) -> None:
    @app.job
    def put(value: Any) -> None: ...

    send.enqueue("first")
    job = send.enqueue("a")
    for odd in ODD:
        tried(partial(VERBS[verb], app, send, job, odd), path)


@pytest.mark.parametrize(
    "knob", ["name", "durability", "auto_migrate", "busy_timeout_s", "max_payload_bytes", "queue", "imports", "lease_s"]
)
def test_any_value_of_a_setting_is_taken_or_refused(knob: str, path: Path) -> None:
    for value in ODD:
        tried(partial(Perdure, path, **{knob: value}), path)


def test_any_value_of_a_url_is_taken_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for value in ODD:
        app = Perdure(value)
        with suppress(PerdureError):
            app.queues.list()
            app.close()
