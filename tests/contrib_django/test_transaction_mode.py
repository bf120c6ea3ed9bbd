"""Why `perdure.E004` insists on `transaction_mode`: what a worker's write does to a request that has only read so far.
How often it happens is measured by `python -m bench locked`."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError

from perdure import Perdure
from tests.app.doors import DjangoAtomic


@pytest.fixture
def worker(tmp_path: Path) -> Any:
    """Whoever writes jobs to the same file."""
    worker = Perdure(tmp_path / "shop.db")
    worker.job(name="pack")(lambda: None)
    worker.enqueue("pack")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.execute("CREATE TABLE orders (item TEXT)")
    yield worker
    worker.close()


def test_in_djangos_default_mode_it_fails_at_once_whatever_the_timeout(worker: Perdure, tmp_path: Path) -> None:
    with closing(DjangoAtomic(tmp_path / "shop.db", timeout=3600)) as request:
        request.execute("SELECT * FROM orders")
        worker.enqueue("pack")
        with pytest.raises(OperationalError, match="database is locked"):
            request.execute("INSERT INTO orders VALUES ('chair')")
        request.rollback()


def test_in_immediate_mode_the_worker_waits_and_both_are_written(worker: Perdure, tmp_path: Path) -> None:
    with closing(DjangoAtomic(tmp_path / "shop.db", transaction_mode="IMMEDIATE")) as request:
        request.execute("SELECT * FROM orders")
        other = threading.Thread(target=worker.enqueue, args=["pack"])
        other.start()
        request.execute("INSERT INTO orders VALUES ('chair')")
        request.commit()
        other.join()
    with worker.transaction() as tx:
        assert tx.execute("SELECT item FROM orders").fetchall() == [("chair",)]
    assert len(list(worker.jobs())) == 2
