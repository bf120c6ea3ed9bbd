"""The shop in examples/django as real processes, driven over HTTP, while web and worker are killed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import Perdure
from perdure.ops.doctor import examine, is_healthy
from tests.conftest import SIZE
from tests.contrib_django.project import Project, Web
from tests.customers import Customers, free_port

KILLS = 20 if SIZE == "full" else 2
"""Of the web server, and as many of the worker."""
BETWEEN_KILLS = 30
"""Replies that clients have had since the kill before."""


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=[pytest.mark.mariadb, pytest.mark.full]),
    ]
)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Project]:
    server = None if request.param == "sqlite" else request.getfixturevalue(f"{request.param}_server")
    url = None if server is None else server.new_database()
    project = Project(tmp_path, url)
    project.manage("migrate")
    yield project
    project.stop()


def orders(project: Project) -> dict[int, str]:
    """All that are in the database, which are packed: by id, their number."""
    code = "from orders.models import Order\nfor o in Order.objects.all(): print(o.pk, o.packed_at, o.number, sep='|')"
    lines = [line.split("|") for line in project.manage("shell", "--no-imports", "-c", code).splitlines()]
    assert all(packed != "None" for _, packed, _ in lines)
    return {int(pk): number for pk, _, number in lines}


def test_every_committed_order_has_its_job_whoever_is_killed(shop: Project) -> None:
    web = Web(shop, free_port())
    worker = shop.start("perdure_worker", log="worker.log")
    customers = Customers(web.order)
    try:
        for kill in range(2 * KILLS):
            for _ in range(BETWEEN_KILLS):
                assert customers.replied.acquire(timeout=90), shop.said("web.log")
            if kill % 2:
                web.kill()
            else:
                worker.kill()
                worker.wait()
                worker = shop.start("perdure_worker", log="worker.log")
    finally:
        customers.leave()
    app = Perdure(shop.environment["DATABASE_URL"] or shop.file)
    for job in app.jobs():
        if app.wait(job, timeout=90).state == "failed":
            # it ran in three workers that were killed, which says nothing about itself: tried again, it succeeds
            assert "NodeLost" in app.explain(job).why
            app.wait(app.retry(job), timeout=90)
    worker.terminate()
    assert worker.wait() == 0

    jobs = list(app.jobs())
    assert {job.state for job in jobs} == {"completed"}, [app.explain(job) for job in jobs if job.state != "completed"]
    placed = orders(shop)
    assert Counter(job.payload["args"][0] for job in jobs if job.payload) == Counter([*placed])  # one for each
    customers.check(set(placed.values()))
    assert is_healthy(examine(app.store))
    app.close()
