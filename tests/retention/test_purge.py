"""`app.purge`: ended jobs of one state go at once, because somebody says so."""

from __future__ import annotations

import asyncio
import getpass
import logging
import socket
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import InvalidOption, Perdure
from perdure.clock import SystemClock
from perdure.ids import JobId
from perdure.job.reports import Completed, Failed
from perdure.job.states import FINAL, LIVE, State
from perdure.testing.contract.rig import HOPELESS, Rig
from perdure.testing.contract.states import in_state

DAY = timedelta(days=1)


@pytest.fixture
def app(rig: Rig) -> Iterator[Perdure]:
    app = Perdure(rig.url, clock=rig.clock, store=rig.store)
    yield app
    app.close()


def failed(rig: Rig, **wish: Any) -> JobId:
    rig.enqueue(**wish)
    [claim] = rig.claim(queue=wish.get("queue"))
    rig.finish(claim, Failed(HOPELESS))
    return claim.job_id


@pytest.mark.parametrize("state", sorted(FINAL))
def test_the_jobs_of_the_state_go_and_no_others(rig: Rig, app: Perdure, state: State) -> None:
    jobs = {each: in_state(rig, each) for each in sorted(FINAL)}

    assert app.purge(state=state) == 1
    assert {each for each, job_id in jobs.items() if rig.store.get(job_id) is None} == {state}


@pytest.mark.parametrize("state", sorted(LIVE))
def test_jobs_that_live_cannot_be_purged(rig: Rig, app: Perdure, state: State) -> None:
    job_id = in_state(rig, state)

    with pytest.raises(InvalidOption, match="state"):
        app.purge(state=state)
    assert rig.job(job_id).state == state


def test_the_state_must_be_named(app: Perdure) -> None:
    with pytest.raises(InvalidOption, match="state"):
        app.purge(older_than=DAY)  # type: ignore[call-arg]


@pytest.mark.parametrize("wrong", [{"kind": None}, {"state": None}])
def test_a_filter_that_is_none_is_refused(app: Perdure, wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidOption) as caught:
        app.purge(**{"state": "failed"} | wrong)
    assert caught.value.code == "filter_none"


@pytest.mark.parametrize("wrong", [30, -DAY, None, "30d"])
def test_an_age_that_is_none_is_refused(app: Perdure, wrong: Any) -> None:
    with pytest.raises(InvalidOption) as caught:
        app.purge(state="failed", older_than=wrong)
    assert caught.value.code == "older_than_invalid"


def test_only_those_that_ended_that_long_ago_go(rig: Rig, app: Perdure) -> None:
    old = failed(rig)
    rig.clock.advance(days=2)
    new = failed(rig)

    assert app.purge(state="failed", older_than=DAY) == 1
    assert rig.store.get(old) is None
    assert rig.job(new).state == State.FAILED


def test_the_filters_choose_among_them(rig: Rig, app: Perdure) -> None:
    failed(rig, queue="mail")
    other = failed(rig, queue="other")

    assert app.purge(state="failed", queue="mail") == 1
    assert app.purge(state="failed", kind="nothing") == 0
    assert rig.job(other).state == State.FAILED


def test_no_more_than_the_limit_go(rig: Rig, app: Perdure) -> None:
    for _ in range(5):
        failed(rig)

    assert app.purge(state="failed", limit=3) == 3
    assert app.purge(state="failed", limit=3) == 2


def test_more_than_fit_into_one_transaction_go(rig: Rig, app: Perdure) -> None:
    rig.enqueue_many(450)
    while claims := rig.claim(450):
        rig.store.finish([rig.report(claim, Completed()) for claim in claims], rig.now)

    assert app.purge(state="completed") == 450
    assert list(app.jobs()) == []


def test_what_was_purged_is_logged_in_one_line(rig: Rig, app: Perdure, caplog: pytest.LogCaptureFixture) -> None:
    failed(rig)
    failed(rig)

    with caplog.at_level(logging.INFO, "perdure"):
        app.purge(state="failed")
        app.purge(state="failed")

    told = {"event": "by_hand", "verb": "purge", "jobs": 2, "principal": f"{getpass.getuser()}@{socket.gethostname()}"}
    assert [vars(record)["perdure"] for record in caplog.records] == [told]


def test_coroutines_can_purge(rig: Rig, app: Perdure) -> None:
    failed(rig)

    assert asyncio.run(app.aio.purge(state="failed")) == 1


def test_a_job_of_this_very_moment_can_be_purged(tmp_path: Path) -> None:
    app = Perdure(tmp_path / "jobs.db", clock=SystemClock())

    @app.job
    def send() -> None: ...

    app.cancel(send.enqueue())

    assert app.purge(state="cancelled") == 1
    app.close()
