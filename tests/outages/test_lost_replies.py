"""The reply to any one exchange with the server is lost, that to COMMIT among them: one job, one end.

Enumerated, not sampled, at full size: every exchange of an enqueue, and every one in the life of a worker that runs a
job that fails once, asks for a child and completes.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import pytest

from perdure import JobContext, Perdure, Retry, StoreError
from tests import history
from tests.outages.company import Company
from tests.outages.proxy import Proxy
from tests.outages.server import Server

FAR = 10**6


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    proxy = Proxy(server.connect)
    yield proxy
    proxy.close()


@pytest.fixture
def behind(company: Company, server: Server, proxy: Proxy) -> Iterator[Perdure]:
    """An app whose connections go through the proxy."""
    app = Perdure(server.url_at(proxy.port))
    yield app
    app.close()


def declare_twice(app: Perdure, company: Company) -> None:
    @app.job(retry=Retry(4, backoff="none"))
    def twice(ctx: JobContext, n: int) -> int:
        history.started(company.notes, ctx)
        if ctx.attempt == 1:
            raise OSError("not the first time")
        ctx.enqueue(app.draft("child", {}, {}))
        history.ended(company.notes, ctx)
        return ctx.attempt

    @app.job
    def child(ctx: JobContext) -> None:
        history.started(company.notes, ctx)
        history.ended(company.notes, ctx)


@pytest.mark.parametrize("keyed", [True, False])
@pytest.mark.parametrize("lost", ["reply", "request"])
def test_an_enqueue_whose_exchange_is_lost_makes_one_job(
    company: Company, proxy: Proxy, behind: Perdure, lost: str, keyed: bool
) -> None:
    """With a key the caller repeats it until it is told of a job; without one an error means that it must look."""
    declare_twice(behind, company)
    behind.enqueue("child")
    told: list[str] = []
    for nth in count(1):
        key: dict[str, Any] = {"idempotency_key": f"{lost} {nth}", "conflict": "return"} if keyed else {}
        proxy.arm(nth, on_the_way=lost == "request")
        try:
            behind.enqueue("twice", {"n": nth}, **key)
        except StoreError as error:
            told.append(error.code)
            if keyed:
                behind.enqueue("twice", {"n": nth}, **key)
        made = [job for job in company.app.jobs(kind="twice") if job.payload == {"n": nth}]
        assert len(made) == 1 or (told and not keyed and lost == "request"), f"exchange {nth}"
        for job in made:
            history.note(company.notes, "enqueued", job=job.id)
        if not proxy.cut:
            break
    proxy.arm(FAR)
    assert nth > 1, "nothing was lost"
    assert told == ["connection_lost"], "only that of a commit is told to the caller: all else is done again"
    assert behind.worker().run(until_idle=True) == 0
    company.check()


@pytest.mark.parametrize("lost", ["reply", "request"])
def test_a_worker_that_loses_any_exchange_ends_every_job_once(
    company: Company, proxy: Proxy, behind: Perdure, lost: str, full_size: bool
) -> None:
    declare_twice(behind, company)
    proxy.arm(FAR)
    assert behind.worker(concurrency=1).run(until_idle=True) == 0  # it has registered before, and has a connection
    for nth in count(1, 1 if full_size else 7):
        [job] = company.app.enqueue_many([behind.draft("twice", {"n": nth}, {})])
        history.note(company.notes, "enqueued", job=job.id)
        proxy.arm(nth, on_the_way=lost == "request")
        while True:
            try:
                behind.worker(concurrency=1).run(until_idle=True)
                break
            except StoreError:  # it could not even register: whoever starts it starts it again
                assert proxy.cut
        is_over = not proxy.cut
        proxy.arm(FAR)
        if company.app.existing(job).state != "completed":
            assert behind.worker(concurrency=1).run(until_idle=True) == 0
        done = company.app.existing(job)
        assert (done.state, done.attempts) == ("completed", 2), f"exchange {nth}"
        children = [child for child in company.app.jobs(kind="child") if child.parent_id == job.id]
        assert len(children) == 1, f"exchange {nth}"
        if is_over:
            break
    assert nth > 1, "nothing was lost"
    company.check()
