"""Asking what was enqueued."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any
from unittest.mock import ANY
from uuid import UUID

import pytest
from pydantic import BaseModel

from perdure import InvalidInput, InvalidPayload, JobContext, KindError, Perdure, Secret
from perdure.testing import Kit


class Order(BaseModel):
    number: int
    gift: bool = False


@pytest.fixture
def send(app: Perdure) -> Any:
    @app.job(aliases=["mail"], queue="mail")
    def send(to: str, subject: str = "hi") -> None: ...

    return send


def test_by_kind_by_name_by_alias_and_by_arguments(t: Kit, send: Any) -> None:
    job = send.enqueue(to="a@x.org")
    assert t.assert_enqueued(send) == job
    assert t.assert_enqueued("send", to="a@x.org") == job
    assert t.assert_enqueued("mail", to="a@x.org") == job


def test_a_default_counts_as_if_it_had_been_passed(t: Kit, send: Any) -> None:
    send.enqueue(to="a@x.org")
    t.assert_enqueued(send, subject="hi")
    t.assert_not_enqueued(send, subject="ho")


def test_the_job_is_there_to_look_at(t: Kit, send: Any) -> None:
    send.options(tags=["x"], priority=3).enqueue(to="a@x.org")
    job = t.assert_enqueued(send)
    assert (job.queue, job.tags, job.priority) == ("mail", ("x",), 3)


def test_all_that_were_enqueued_in_their_order_whatever_became_of_them(t: Kit, send: Any) -> None:
    send.enqueue("a")
    t.drain()
    send.enqueue("b")
    send.enqueue("b", "ho")
    assert [job.payload["to"] for job in t.enqueued(send) if job.payload] == ["a", "b", "b"]
    assert len(t.enqueued()) == 3
    assert len(t.enqueued(send, to="b")) == 2
    assert len(t.enqueued(send, to="b", subject="ho")) == 1


def test_arguments_are_compared_as_the_handler_gets_them_or_as_they_are_stored(app: Perdure, t: Kit) -> None:
    @app.job
    def ship(ctx: JobContext, order: Order, at: datetime, number: UUID) -> None: ...

    at, number = datetime(2030, 1, 1, tzinfo=UTC), UUID(int=7)
    ship.enqueue(Order(number=1), at, number)
    t.assert_enqueued(ship, order=Order(number=1), at=at, number=number)
    t.assert_enqueued(ship, order={"number": 1, "gift": False}, at="2030-01-01T00:00:00Z", number=str(number))
    t.assert_enqueued(ship, order=ANY)
    t.assert_not_enqueued(ship, order=Order(number=2))


def test_arguments_may_be_called_like_anything(app: Perdure, t: Kit) -> None:
    @app.job
    def odd(self: int, kind: str, times: int, queue: str) -> None: ...

    arguments: dict[str, Any] = {"self": 1, "kind": "k", "times": 2, "queue": "q"}
    app.enqueue("odd", arguments)
    t.assert_enqueued(odd, **arguments)
    t.assert_not_enqueued(odd, **{**arguments, "self": 2})


def test_a_secret_can_be_asked_for_and_is_not_shown(app: Perdure, t: Kit) -> None:
    @app.job
    def login(user: str, password: Annotated[str, Secret]) -> None: ...

    login.enqueue("me", "hunter2")
    t.assert_enqueued(login, password="hunter2")
    with pytest.raises(AssertionError) as failed:
        t.assert_enqueued(login, user="you")
    assert "user='me'" in str(failed.value)
    assert "hunter2" not in str(failed.value)


def test_a_failure_lists_what_was_enqueued_instead(t: Kit, send: Any) -> None:
    send.enqueue("a@x.org")
    send.enqueue("b@x.org", subject="ho")
    t.drain()
    with pytest.raises(AssertionError) as failed:
        t.assert_enqueued(send, to="c@x.org")
    assert str(failed.value) == (
        "no send job was enqueued with to='c@x.org'; these were:\n"
        "  send(to='a@x.org')  completed\n"
        "  send(to='b@x.org', subject='ho')  completed"
    )


def test_a_failure_names_other_kinds_or_says_that_there_was_nothing(app: Perdure, t: Kit, send: Any) -> None:
    @app.job
    def other() -> None: ...

    with pytest.raises(AssertionError, match="no send job was enqueued; nothing was at all"):
        t.assert_enqueued(send)
    other.enqueue()
    with pytest.raises(AssertionError, match=r"no send job was enqueued; others were: other \(1\)"):
        t.assert_enqueued(send)


def test_a_long_list_is_cut(t: Kit, send: Any) -> None:
    send.enqueue_many([{"to": str(n)} for n in range(50)])
    with pytest.raises(AssertionError, match="… and 30 more"):
        t.assert_enqueued(send, to="x")


def test_what_should_not_be_there_is_listed(t: Kit, send: Any) -> None:
    t.assert_not_enqueued(send)
    t.assert_not_enqueued()
    send.enqueue("a@x.org")
    with pytest.raises(AssertionError, match=r"send was enqueued with to='a@x.org':\n  send\(to='a@x.org'\)  queued"):
        t.assert_not_enqueued(send, to="a@x.org")
    with pytest.raises(AssertionError, match="jobs were enqueued"):
        t.assert_not_enqueued()
    t.assert_not_enqueued(send, to="b@x.org")


def test_a_mistyped_name_is_an_error_and_no_passed_test(t: Kit, send: Any) -> None:
    with pytest.raises(KindError):
        t.assert_not_enqueued("sned")
    with pytest.raises(InvalidPayload, match="'too' is not a parameter"):
        t.assert_not_enqueued(send, too="a@x.org")
    with pytest.raises(InvalidInput, match="name it first"):
        t.assert_not_enqueued(to="a@x.org")


def test_only_kinds_of_this_app_can_be_asked_for(app: Perdure, t: Kit) -> None:
    other = Perdure("never-made.db")

    @other.job
    def elsewhere() -> None: ...

    def plain() -> None: ...

    with pytest.raises(InvalidInput, match="no kind of this app"):
        t.assert_not_enqueued(elsewhere)
    with pytest.raises(InvalidInput, match=r"@app\.job"):
        t.assert_not_enqueued(plain)  # type: ignore[arg-type]


def test_a_job_that_a_key_made_one_is_one(t: Kit, send: Any) -> None:
    for _ in range(2):
        send.options(idempotency_key="k").enqueue("a")
    assert len(t.enqueued(send)) == 1
