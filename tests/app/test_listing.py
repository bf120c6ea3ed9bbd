"""Listings: filters, order, and pages that are read only when they are wanted."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from perdure import Perdure, RunState, State
from tests.app import by_hand

MANY = 450


@pytest.fixture
def many(app: Perdure, send: Any) -> list[UUID]:
    """More jobs than two pages hold, oldest first; every third one in another queue."""
    drafts = [send.options(queue="mail" if n % 3 == 0 else "default", tags=["t"]).new(str(n)) for n in range(MANY)]
    return [job.id for job in app.enqueue_many(drafts)]


def ids(jobs: Any) -> list[UUID]:
    return [job.id for job in jobs]


def test_all_jobs_come_newest_first_over_all_pages(app: Perdure, many: list[UUID]) -> None:
    assert ids(app.jobs()) == many[::-1]


@pytest.mark.parametrize("limit", [0, 1, 199, 200, 201, 400, 449, 450, 451, 10_000])
def test_a_limit_is_kept_across_pages(limit: int, app: Perdure, many: list[UUID]) -> None:
    assert ids(app.jobs(limit=limit)) == many[::-1][:limit]


FILTERS: dict[str, dict[str, Any]] = {
    "queue": {"queue": "mail"},
    "queue in queue order": {"queue": "mail", "state": "queued"},
    "state": {"state": "queued"},
    "tag": {"tag": "t"},
    "kind": {"kind": "send"},
    "owner": {"owner": "perdure"},
    "all of them": {"queue": "mail", "tag": "t", "kind": "send", "owner": "perdure", "state": "queued"},
}


@pytest.mark.parametrize("name", FILTERS)
def test_a_filter_gives_each_job_once_over_all_pages(name: str, app: Perdure, many: list[UUID]) -> None:
    wanted = many[::3] if "queue" in FILTERS[name] else many
    in_queue_order = {"queue", "state"} <= FILTERS[name].keys()
    assert ids(app.jobs(**FILTERS[name])) == (wanted if in_queue_order else wanted[::-1])


def test_queue_order_is_priority_then_place(app: Perdure, send: Any) -> None:
    low, high, mid = (send.options(priority=p).enqueue(str(p)) for p in (-1, 7, 0))
    moved = app.move(send.enqueue("first of zero"), before=mid)
    assert ids(app.jobs(state="queued", queue="default")) == ids([high, moved, mid, low])


def test_pages_are_read_when_they_are_wanted(app: Perdure, send: Any, many: list[UUID]) -> None:
    listing = app.jobs(tag="t")
    first = next(listing)
    app.cancel_all(tag="t")
    rest = list(listing)
    assert (first.state, rest[0].state, rest[-1].state) == (State.QUEUED, State.QUEUED, State.CANCELLED)
    assert ids([first, *rest]) == many[::-1]


def test_jobs_that_come_during_a_listing_do_not_shift_its_pages(app: Perdure, send: Any, many: list[UUID]) -> None:
    listing = app.jobs()
    first = next(listing)
    send.enqueue_many([{"to": "late"}] * 50)
    assert ids([first, *listing]) == many[::-1]


@pytest.mark.parametrize("state", list(State))
def test_jobs_are_found_by_every_state(state: State, app: Perdure, send: Any) -> None:
    jobs = {
        State.QUEUED: send.enqueue("queued"),
        State.SCHEDULED: send.options(delay=60).enqueue("scheduled"),
        State.PAUSED: app.pause(send.enqueue("paused")),
        State.CANCELLED: app.cancel(send.enqueue("cancelled")),
    }
    for name, end in (("c", by_hand.complete), ("f", by_hand.fail)):
        jobs[State.COMPLETED if name == "c" else State.FAILED] = send.options(queue=name, retry=1).enqueue(name)
        end(app, queue=name)
    jobs[State.RUNNING] = send.options(queue="r").enqueue("r")
    by_hand.claim(app, "r")
    jobs[State.SKIPPED] = send.options(queue="s").enqueue("s")
    by_hand.finish(app, by_hand.claim(app, "s"), by_hand.Skipped("nothing to do"))
    jobs[State.BLOCKED] = _blocked(app, send)
    expected = [jobs[state].id] if state in jobs else []
    found = [job for job in app.jobs(state=state) if (job.payload or {})["to"] != "supersede"]
    assert ids(found) == expected
    assert {job.state for job in found} <= {state}


def _blocked(app: Perdure, send: Any) -> Any:
    running = send.options(queue="b").enqueue("supersede")
    by_hand.claim(app, "b")
    replaced = app.supersede(running, send.new("blocked"))
    assert replaced.superseded_by is not None
    return app.existing(replaced.superseded_by)


def test_a_retried_job_is_not_listed_as_failed(app: Perdure, send: Any) -> None:
    job = send.options(retry=1).enqueue("a")
    by_hand.fail(app)
    assert ids(app.jobs(state="failed")) == [job.id]
    app.retry(job)
    assert ids(app.jobs(state="failed")) == []
    by_hand.fail(app)
    assert ids(app.jobs(state="failed")) == [job.id]


def test_jobs_are_found_by_their_keys(app: Perdure, send: Any) -> None:
    job = send.options(business_key="b", idempotency_key="i").enqueue("a")
    app.cancel(job)
    newer = send.options(business_key="b").enqueue("b")
    assert ids(app.jobs(business_key="b")) == [newer.id, job.id]
    assert ids(app.jobs(business_key="b", state="cancelled")) == [job.id]
    assert ids(app.jobs(idempotency_key="i")) == [job.id]


def test_jobs_are_found_by_the_time_they_came(app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    before, after = job.created_at - timedelta(seconds=1), job.created_at + timedelta(seconds=1)
    assert ids(app.jobs(since=before, until=after)) == [job.id]
    assert ids(app.jobs(since=after)) == ids(app.jobs(until=before)) == []
    assert ids(app.jobs(since=datetime.min.replace(tzinfo=UTC), until=datetime.max.replace(tzinfo=UTC))) == [job.id]


def test_owners_tell_the_jobs_of_apps_on_one_file_apart(path: Path) -> None:
    shop, bank = Perdure(path, name="shop"), Perdure(path, name="bank")
    jobs = [app.job(name="work")(_work).enqueue() for app in (shop, bank)]
    assert [ids(shop.jobs(owner=owner)) for owner in ("shop", "bank")] == [[jobs[0].id], [jobs[1].id]]
    shop.close()


def _work() -> None: ...


def test_runs_are_listed_newest_first_with_filters(app: Perdure, send: Any) -> None:
    job, other = send.options(retry=1).enqueue("a"), send.options(queue="mail").enqueue("b")
    by_hand.fail(app)
    app.retry(job)
    by_hand.complete(app)
    by_hand.claim(app, "mail")
    runs = list(app.runs(job))
    assert [(run.state, run.life, run.attempt) for run in runs] == [("completed", 2, 1), ("failed", 1, 1)]
    assert len(list(app.runs())) == 3
    assert [run.job_id for run in app.runs(state="running")] == [other.id]
    assert [run.error_message for run in app.runs(state=RunState.FAILED)] == ["no luck"]
    assert list(app.runs(kind="other")) == []
    assert len(list(app.runs(limit=2))) == 2


def test_runs_are_listed_over_all_pages(app: Perdure, many: list[UUID]) -> None:
    for claims in iter(lambda: by_hand.claim(app), []):
        by_hand.finish(app, claims, by_hand.Completed())
    assert len({run.id for run in app.runs()}) == len(many[1::3]) + len(many[2::3])
