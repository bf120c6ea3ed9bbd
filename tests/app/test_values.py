"""Legal but nasty values come back as they were given."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from perdure import Job, Perdure, principal

NASTY = {
    "empty": "",
    "blank": " \t\n",
    "NUL": "a\0b",
    "controls": "".join(map(chr, range(32))) + "\x7f\x80\x9f",
    "quotes": "'\"`; DROP TABLE perdure_job; --",
    "braces": "{job} {0} %s %(x)s :name ?1 \\u0041 \\",
    "right to left": "\u202eabc\u202c שלום مرحبا",
    "emoji": "👩‍👩‍👧‍👦🏴‍☠️é\u0301",
    "outside the basic plane": "\U0010ffff𝕏",
    "separators": "\x1f\x1e\u2028\u2029\ufeff",
    "long": "x" * 100_000,
    "long and wide": "🦔" * 100_000,
}

KEEPABLE = {name: text for name, text in NASTY.items() if text.strip() and "\0" not in text and len(text) <= 128}
"""What may be a name or a key."""


@pytest.fixture
def put(app: Perdure) -> Any:
    @app.job
    def put(value: Any = None) -> Any:
        return value

    return put


def stored(app: Perdure, job: Job) -> Job:
    found = app.get(job)
    assert found is not None
    return found


@pytest.mark.parametrize("name", NASTY)
def test_a_text_comes_back_in_the_payload(name: str, app: Perdure, send: Any) -> None:
    job = send.enqueue(NASTY[name], subject=NASTY[name])
    assert stored(app, job).payload == job.payload == {"to": NASTY[name], "subject": NASTY[name]}


@pytest.mark.parametrize("name", NASTY)
def test_a_text_reaches_the_function(name: str, app: Perdure, send: Any) -> None:
    row = app.store.row(send.enqueue(NASTY[name]).row.id)
    assert row is not None
    assert send.load(row.payload, row.secrets, row.kind_version) == ((), {"to": NASTY[name]})


@pytest.mark.parametrize("name", [name for name in NASTY if "long" not in name])
def test_a_text_comes_back_in_params(name: str, app: Perdure, send: Any) -> None:
    params = {"key " + NASTY[name]: [NASTY[name], {"deep": NASTY[name]}]}
    assert stored(app, send.options(params=params).enqueue("a")).params == params


@pytest.mark.parametrize("name", KEEPABLE)
def test_a_text_comes_back_as_queue_principal_and_keys(name: str, app: Perdure, send: Any) -> None:
    text = KEEPABLE[name]
    job = send.options(queue=text, principal=text, business_key=text, idempotency_key=text).enqueue("a")
    found = stored(app, job)
    assert {found.queue, found.principal, found.business_key, found.idempotency_key} == {text}
    assert list(app.jobs(queue=text)) == list(app.jobs(business_key=text)) == list(app.jobs(idempotency_key=text))
    assert list(app.jobs(queue=text)) == list(app.jobs(queue=text, state="queued")) == [job]
    assert text in [queue.name for queue in app.queues.list()]


@pytest.mark.parametrize("name", [name for name in KEEPABLE if "\x1f" not in KEEPABLE[name]])
def test_a_text_comes_back_as_a_tag(name: str, app: Perdure, send: Any) -> None:
    job = send.options(tags=[KEEPABLE[name], "other"]).enqueue("a")
    assert set(stored(app, job).tags) == set(job.tags) == {KEEPABLE[name], "other"}
    assert list(app.jobs(tag=KEEPABLE[name])) == [job]


def test_the_longest_names_come_back(app: Perdure, send: Any) -> None:
    job = send.options(queue="🦔" * 128, tags=["🦔" * 128], principal="🦔" * 255, business_key="🦔" * 255).enqueue("a")
    found = stored(app, job)
    assert (found.queue, found.tags) == ("🦔" * 128, ("🦔" * 128,))
    assert (found.principal, found.business_key) == ("🦔" * 255, "🦔" * 255)


def test_names_that_differ_only_in_case_or_accents_are_different(app: Perdure, send: Any) -> None:
    names = ["key", "KEY", "ke\u0301y", "k\u00e9y", "key "]
    for name in names:
        send.options(queue=name, business_key=name, idempotency_key=name, tags=[name]).enqueue("a")
    for name in names:
        assert len(list(app.jobs(queue=name))) == len(list(app.jobs(tag=name))) == 1


def test_tags_may_repeat_and_come_back_once_and_sorted(app: Perdure, send: Any) -> None:
    job = send.options(tags=["b", "a", "b"]).enqueue("x")
    assert stored(app, job).tags == job.tags == ("a", "b")


@pytest.mark.parametrize(
    "moment",
    [
        datetime.min.replace(tzinfo=UTC),
        datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC),
        datetime.max.replace(tzinfo=UTC),
    ],
)
def test_any_moment_may_be_a_start(moment: datetime, app: Perdure, send: Any) -> None:
    assert stored(app, send.options(run_at=moment).enqueue("a")).run_at == moment


@pytest.mark.parametrize("priority", [-(2**31) + 1, -1, 0, 1, 2**31 - 1])
def test_any_priority_comes_back(priority: int, app: Perdure, send: Any) -> None:
    assert stored(app, send.options(priority=priority).enqueue("a")).priority == priority


@pytest.mark.parametrize("delay", [0, 0.000_001, 10**9, timedelta(days=36_500)])
def test_any_delay_is_kept_to_the_microsecond(delay: Any, app: Perdure, send: Any) -> None:
    job = stored(app, send.options(delay=delay).enqueue("a"))
    seconds = delay if isinstance(delay, timedelta) else timedelta(seconds=delay)
    assert job.run_at - job.created_at == seconds


def test_a_payload_of_exactly_the_limit_is_kept(app: Perdure, send: Any) -> None:
    text = "x" * (1024**2 - len('{"to":""}'))
    assert stored(app, send.enqueue(text)).payload == {"to": text}


def test_a_context_variable_may_hold_a_nasty_principal(app: Perdure, send: Any) -> None:
    token = principal.set(NASTY["right to left"])
    try:
        assert stored(app, send.enqueue("a")).principal == NASTY["right to left"]
    finally:
        principal.reset(token)


numbers = st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False)
json_values = st.recursive(
    st.none() | st.booleans() | numbers | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(), inner, max_size=5),
    max_leaves=20,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(value=json_values)
def test_any_json_comes_back_in_the_payload(app: Perdure, put: Any, value: Any) -> None:
    job = put.enqueue(value)
    assert stored(app, job).payload == {"value": value}
    row = app.store.row(job.row.id)
    assert row is not None
    assert put.load(row.payload, row.secrets, 1) == ((), {"value": value})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(params=st.dictionaries(st.text(), json_values, max_size=5))
def test_any_json_comes_back_in_params(app: Perdure, put: Any, params: dict[str, Any]) -> None:
    assert stored(app, put.options(params=params).enqueue()).params == params
