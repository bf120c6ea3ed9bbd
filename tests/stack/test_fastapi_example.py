"""The shop in examples/fastapi as real processes, driven over HTTP, while web and worker are killed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest
from sqlalchemy import create_engine, text

from perdure import Perdure
from perdure.ops.doctor import examine, is_healthy
from tests.conftest import SIZE
from tests.customers import PATIENCE_S, Customers, free_port, post
from tests.mariadb_server import mariadb_server
from tests.postgres_server import postgres_server

__all__ = ["mariadb_server", "postgres_server"]

ROOT = Path(__file__).parents[2]
KILLS = 20 if SIZE == "full" else 2
"""Of the web server, and as many of the worker."""
BETWEEN_KILLS = 30
"""Replies that customers have had since the kill before."""


class Shop:
    """A copy of it, on a database of its own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.url = url
        self.port = free_port()
        self._place = Path(shutil.copytree(ROOT / "examples" / "fastapi", folder / "shop"))
        self._log = folder / "log"
        self._environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PERDURE_")},
            "PYTHONPATH": str(ROOT / "src"),
            "DATABASE_URL": url,
        }
        self.web, self.worker = self._web(), self._worker()

    def _web(self) -> subprocess.Popen[bytes]:
        return self._started("-m", "uvicorn", "shop:api", "--port", str(self.port), "--log-level", "warning")

    def _worker(self) -> subprocess.Popen[bytes]:
        return self._started("-m", "perdure", "worker", "jobs:app")

    def _started(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, *arguments], cwd=self._place, env=self._environment, stdout=file, stderr=file
            )

    def order(self, number: str, article: str) -> int | None:
        return post(self.port, f"/orders/?{urlencode({'number': number, 'article': article})}")

    def kill_worker(self) -> None:
        self.worker.kill()
        self.worker.wait()
        self.worker = self._worker()

    def kill_web(self) -> None:
        self.web.kill()
        self.web.wait()
        self.web = self._web()

    def said(self) -> str:
        return self._log.read_text("utf-8", "replace")

    def stop(self) -> None:
        for process in (self.web, self.worker):
            process.kill()
            process.wait()


DRIVERS = {"sqlite": "aiosqlite", "postgres": "psycopg", "mariadb": "aiomysql"}


@pytest.fixture(
    params=[
        "sqlite",
        pytest.param("postgres", marks=pytest.mark.postgres),
        pytest.param("mariadb", marks=[pytest.mark.mariadb, pytest.mark.full]),
    ]
)
def shop(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Shop]:
    url = f"sqlite:///{tmp_path}/shop.db"
    if request.param != "sqlite":
        url = request.getfixturevalue(f"{request.param}_server").new_database()
    url = url.replace("://", f"+{DRIVERS[request.param]}://", 1)
    shop = Shop(tmp_path, url)
    yield shop
    shop.stop()


def orders(url: str) -> dict[str, bool]:
    """By number, whether it is packed."""
    engine = create_engine(url.replace("+aiosqlite", "").replace("+aiomysql", "+pymysql"))
    with engine.connect() as connection:
        found = {
            number: bool(packed) for number, packed in connection.execute(text("SELECT number, packed FROM orders"))
        }
    engine.dispose()
    return found


def test_every_committed_order_has_its_job_whoever_is_killed(shop: Shop) -> None:
    customers = Customers(shop.order)
    try:
        for kill in range(2 * KILLS):
            for _ in range(BETWEEN_KILLS):
                assert customers.replied.acquire(timeout=PATIENCE_S), shop.said()
            if kill % 2:
                shop.kill_web()
            else:
                shop.kill_worker()
    finally:
        customers.leave()
    app = Perdure(shop.url)
    for job in app.jobs():
        app.wait(job, timeout=PATIENCE_S)
    shop.worker.terminate()
    assert shop.worker.wait() == 0, shop.said()

    placed, jobs = orders(shop.url), list(app.jobs())
    assert Counter(job.payload["number"] for job in jobs if job.payload) == Counter([*placed])  # one for each
    assert {job.state for job in jobs} == {"completed"}
    assert all(placed.values())
    customers.check(set(placed))
    assert is_healthy(examine(app.store))
    app.close()
