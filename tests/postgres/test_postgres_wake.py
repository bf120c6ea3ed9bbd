"""Workers on PostgreSQL are woken: by whom, how often, and what happens when the connection they listen on is lost."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from perdure import Limit, Perdure
from perdure.store.postgres import bell as bells
from perdure.store.postgres.bell import PostgresBell
from tests.app import by_hand
from tests.postgres.conftest import declare
from tests.postgres.processes import at_once, enqueue_many_times
from tests.postgres.proxy import Proxy, proxy_to
from tests.worker.patience import eventually

pytestmark = pytest.mark.postgres

LONG_S = 60.0
"""Nobody waits for so long: a wait that ends with False was not woken."""


@pytest.fixture
def bell(app: Perdure) -> Iterator[PostgresBell]:
    """The bell of a worker that serves all queues, listening."""
    bell = listening(app.store.bell())
    yield bell
    bell.close()


@pytest.fixture
def heard(app: Perdure, postgres_url: str) -> Iterator[Callable[[], int]]:
    """How many notifications there were so far."""
    app.store.upgrade()
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute("LISTEN perdure")
        counts = [0]

        def count() -> int:
            counts[0] += sum(1 for _ in connection.notifies(timeout=0))
            return counts[0]

        yield count


@pytest.fixture
def proxied(app: Perdure, postgres_url: str) -> Iterator[tuple[Perdure, Proxy]]:
    """An app whose way to the server is in our hands."""
    app.store.upgrade()
    with proxy_to(postgres_url) as proxy:
        far = Perdure(proxy.url)
        yield far, proxy
        far.close()


def is_listening(bell: object) -> bool:
    return isinstance(bell, PostgresBell) and bell.listens


def listening(bell: Any) -> PostgresBell:
    eventually(lambda: bell.listens)
    assert isinstance(bell, PostgresBell)
    return bell


def fall_asleep(bell: PostgresBell) -> None:
    """Until it has marked itself, and every transaction that was under way then has ended."""
    line = bell._line
    assert line is not None
    while not line.sleep.is_marked or line.sleep._under_way:
        bell.wait(LONG_S)


# -- who wakes -------------------------------------------------------------------------------------------------------


def enqueue(app: Perdure, send: Any) -> Callable[[], object]:
    return lambda: send.enqueue("a")


def enqueue_many(app: Perdure, send: Any) -> Callable[[], object]:
    return lambda: send.enqueue_many([{"to": "a"}, {"to": "b"}])


def the_first_of_a_queue(app: Perdure, send: Any) -> Callable[[], object]:
    return lambda: send.options(queue="new").enqueue("a")


def with_a_key(app: Perdure, send: Any) -> Callable[[], object]:
    return lambda: send.options(business_key="b").enqueue("a")


def within_a_transaction(app: Perdure, send: Any) -> Callable[[], object]:
    def act() -> None:
        with app.transaction():
            send.enqueue("a")

    return act


def retry(app: Perdure, send: Any) -> Callable[[], object]:
    job = send.enqueue("a")
    by_hand.fail(app, queue="mail")
    return lambda: app.retry(job)


def resume(app: Perdure, send: Any) -> Callable[[], object]:
    job = send.enqueue("a")
    app.pause(job)
    return lambda: app.resume(job)


def resume_a_queue(app: Perdure, send: Any) -> Callable[[], object]:
    app.queues.pause("mail")
    return lambda: app.queues.resume("mail")


def resume_all_queues(app: Perdure, send: Any) -> Callable[[], object]:
    app.queues.pause("*")
    return lambda: app.queues.resume("*")


def release_a_reservation(app: Perdure, send: Any) -> Callable[[], object]:
    reservation = app.reserve("mail")
    reservation.__enter__()
    return lambda: reservation.__exit__(None, None, None)


def promote(app: Perdure, send: Any) -> Callable[[], object]:
    send.options(delay=0.000_001).enqueue("a")
    return lambda: app.store.promote(app.clock.now(), 10)


def cancel_a_run(app: Perdure, send: Any) -> Callable[[], object]:
    job = send.enqueue("a")
    assert by_hand.claim(app, "mail")
    return lambda: app.cancel(job)


def release_a_run(app: Perdure, send: Any) -> Callable[[], object]:
    send.enqueue("a")
    claims = by_hand.claim(app, "mail")
    return lambda: by_hand.finish(app, claims, by_hand.Released())


def end_in_a_limited_queue(app: Perdure, send: Any) -> Callable[[], object]:
    app.queues.limit("mail", 1)
    send.enqueue_many([{"to": "a"}, {"to": "b"}])
    claims = by_hand.claim(app, "mail")
    return lambda: by_hand.finish(app, claims, by_hand.Completed())


def end_while_all_queues_have_a_limit(app: Perdure, send: Any) -> Callable[[], object]:
    app.queues.limit("*", 1)
    send.enqueue_many([{"to": "a"}, {"to": "b"}])
    claims = by_hand.claim(app, "mail")
    return lambda: by_hand.finish(app, claims, by_hand.Completed())


def more_room_in_a_limited_queue_than_one_claim_takes(app: Perdure, send: Any) -> Callable[[], object]:
    app.queues.limit("mail", 2)
    send.enqueue_many([{"to": "a"}, {"to": "b"}])
    return lambda: by_hand.claim(app, "mail", room=1)


def end_of_a_limited_job(app: Perdure, send: Any) -> Callable[[], object]:
    app.limits.declare(Limit("api", 1))
    send.options(limit=Limit("api", 1)).enqueue_many([{"to": "a"}, {"to": "b"}])
    claims = by_hand.claim(app, "mail")
    return lambda: by_hand.finish(app, claims, by_hand.Completed())


def set_a_limit(app: Perdure, send: Any) -> Callable[[], object]:
    return lambda: app.limits.set("api", 3, new=True)


@pytest.mark.parametrize("queues", [None, ["other", "mail", "new"]], ids=["all queues", "some queues"])
@pytest.mark.parametrize(
    "prepare",
    [
        enqueue,
        enqueue_many,
        the_first_of_a_queue,
        with_a_key,
        within_a_transaction,
        retry,
        resume,
        resume_a_queue,
        resume_all_queues,
        release_a_reservation,
        promote,
        cancel_a_run,
        release_a_run,
        end_in_a_limited_queue,
        end_while_all_queues_have_a_limit,
        more_room_in_a_limited_queue_than_one_claim_takes,
        end_of_a_limited_job,
        set_a_limit,
    ],
)
def test_a_sleeper_is_woken(
    app: Perdure, send: Any, prepare: Callable[[Perdure, Any], Callable[[], object]], queues: list[str] | None
) -> None:
    act = prepare(app, send)
    bell = listening(app.store.bell(queues))
    fall_asleep(bell)
    act()
    assert bell.wait(LONG_S)
    bell.close()


def test_a_users_own_transaction_wakes_when_it_commits(
    app: Perdure, send: Any, bell: PostgresBell, postgres_url: str
) -> None:
    with psycopg.connect(postgres_url) as own:
        fall_asleep(bell)
        send.options(tx=own).enqueue("a")
        own.commit()
        assert bell.wait(LONG_S)


def test_what_was_under_way_when_the_worker_fell_asleep_wakes_it_too(
    app: Perdure, send: Any, bell: PostgresBell, postgres_url: str, heard: Callable[[], int]
) -> None:
    """It looked at the marks before there was one, so it notifies nobody."""
    send.enqueue("a")
    with psycopg.connect(postgres_url) as own:
        send.options(tx=own).enqueue("a")
        assert bell.wait(LONG_S)  # marked, and to look once more
        own.commit()
        assert bell.wait(LONG_S)
    assert heard() == 0


def test_a_mark_that_was_taken_down_in_vain_is_set_again(
    app: Perdure, send: Any, bell: PostgresBell, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bells, "KEEP_ALIVE_S", 0.05)
    line = bell._line
    assert line is not None
    assert bell.wait(LONG_S)
    with psycopg.connect(postgres_url) as own:
        send.options(tx=own).enqueue("a")
        own.rollback()
    while line.sleep.is_marked:  # it asks, and hears that the mark is gone
        bell.wait(0.1)
    fall_asleep(bell)
    send.enqueue("b")
    assert bell.wait(LONG_S)


# -- how often -------------------------------------------------------------------------------------------------------


def test_nobody_is_notified_while_nobody_sleeps(send: Any, heard: Callable[[], int]) -> None:
    for number in range(20):
        send.enqueue(str(number))
    assert heard() == 0


def test_a_sleep_is_notified_once_however_much_is_enqueued(
    send: Any, bell: PostgresBell, heard: Callable[[], int]
) -> None:
    fall_asleep(bell)
    for number in range(20):
        send.enqueue(str(number))
    assert heard() == 1
    assert bell.wait(LONG_S)


def test_a_worker_of_other_queues_sleeps_on(app: Perdure, send: Any, heard: Callable[[], int]) -> None:
    bell = listening(app.store.bell(["other"]))
    fall_asleep(bell)
    send.enqueue("a")
    assert heard() == 0
    assert not bell.wait(0.01)
    bell.close()


def test_many_enqueues_beside_a_worker_are_no_storm(app: Perdure, postgres_url: str, heard: Callable[[], int]) -> None:
    """At most one notification for each sleep, and a worker begins only so many sleeps."""
    declare(app)
    clock = app.clock
    with app.worker().running() as worker:
        eventually(lambda: is_listening(worker._bell))
        began = clock.boottime()
        ids = [job for share in at_once(enqueue_many_times, postgres_url, 300, processes=4) for job in share]
        eventually(lambda: sum(1 for _ in app.jobs(state="completed")) == len(ids))
        took_s = clock.boottime() - began
    assert heard() <= bells.SLEEPS_AT_ONCE + bells.SLEEPS_PER_S * took_s + 1


def test_an_idle_worker_sends_fewer_than_two_statements_a_second(proxied: tuple[Perdure, Proxy]) -> None:
    far, proxy = proxied
    declare(far)
    with far.worker().running() as worker:
        eventually(lambda: is_listening(worker._bell))
        threading.Event().wait(2)  # it settles
        before, began = proxy.statements, far.clock.boottime()
        threading.Event().wait(10)
        sent, took_s = proxy.statements - before, far.clock.boottime() - began
    assert 0 < sent < 2 * took_s


# -- when the connection is lost -------------------------------------------------------------------------------------


def test_a_worker_listens_again_when_its_backend_was_ended(app: Perdure, send: Any, bell: PostgresBell) -> None:
    fall_asleep(bell)
    lost = bell._line
    with app.transaction() as tx:
        tx.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'perdure listen'")
    assert bell.wait(LONG_S)  # something may have been missed
    eventually(lambda: bell.listens and bell._line is not lost)
    fall_asleep(bell)
    send.enqueue("a")
    assert bell.wait(LONG_S)


def test_a_line_that_is_silent_is_given_up_and_made_anew(
    proxied: tuple[Perdure, Proxy], monkeypatch: pytest.MonkeyPatch, send: Any
) -> None:
    assert bells.KEEP_ALIVE_S + bells.ANSWER_S <= 30
    monkeypatch.setattr(bells, "KEEP_ALIVE_S", 0.1)
    monkeypatch.setattr(bells, "ANSWER_S", 0.2)
    far, proxy = proxied
    bell = listening(far.store.bell())
    assert bell.wait(LONG_S)
    lost = bell._line
    proxy.freeze()
    while bell._line is lost:
        bell.wait(0.5)
    listening(bell)
    while not (bell._line and bell._line.sleep.is_marked):
        bell.wait(0.5)
    send.enqueue("a")
    assert bell.wait(LONG_S)
    bell.close()


def test_without_a_single_notification_everything_is_found_by_polling(
    proxied: tuple[Perdure, Proxy], send: Any
) -> None:
    far, proxy = proxied
    proxy.loses_notifications = True
    declare(far)
    with far.worker(poll_s=0.02).running() as worker:
        eventually(lambda: is_listening(worker._bell))
        for number in range(5):
            job = send.enqueue(str(number))
            eventually(lambda job=job: far.existing(job).state == "completed")  # type: ignore[misc]


# -- where it cannot listen ------------------------------------------------------------------------------------------


def test_a_url_of_another_database_is_refused_with_the_remedy(
    app: Perdure, postgres_server: Any, postgres_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app.store.upgrade()
    other_url = postgres_server.new_database()
    Perdure(other_url, auto_migrate=True).store.upgrade()
    wrong = Perdure(postgres_url, listen_url=other_url)
    with caplog.at_level(logging.WARNING, "perdure.worker"):
        bell = wrong.store.bell()
        eventually(lambda: "listen_url=" in caplog.text)
    assert not is_listening(bell)
    assert bell.wait(LONG_S)  # it polls
    bell.close()
    wrong.close()


# -- the end ---------------------------------------------------------------------------------------------------------


def test_a_worker_that_has_ended_leaves_no_thread_and_no_connection(app: Perdure) -> None:
    declare(app)
    with app.worker().running() as worker:
        eventually(lambda: is_listening(worker._bell))
    assert "perdure-listen" not in [thread.name for thread in threading.enumerate()]
    app.close()
    eventually(lambda: _listeners(app) == 0)


def _listeners(app: Perdure) -> int:
    with app.transaction() as tx:
        query = "SELECT COUNT(*) FROM pg_stat_activity WHERE application_name = 'perdure listen'"
        count: int = tx.execute(query).fetchone()[0]
        return count


def test_a_forked_child_leaves_the_parents_line_alone(app: Perdure, send: Any, bell: PostgresBell) -> None:
    fall_asleep(bell)
    if (child := os.fork()) == 0:
        bell.ring()
        bell.close()
        os._exit(0 if not bell.listens else 1)
    assert os.waitpid(child, 0)[1] == 0
    send.enqueue("a")
    assert bell.wait(LONG_S)
