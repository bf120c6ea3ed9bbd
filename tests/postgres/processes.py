"""What other processes do in these tests; started with `spawn`, so that each is a program of its own."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from perdure import Perdure
from perdure.job.reports import Completed
from tests.app import by_hand
from tests.postgres.conftest import declare

spawn = multiprocessing.get_context("spawn")


def at_once(work: Callable[..., Any], *args: object, processes: int) -> list[Any]:
    """The answers of so many processes that all begin at the same moment."""
    with spawn.Manager() as manager, spawn.Pool(processes) as pool:
        start = manager.Barrier(processes)
        return pool.starmap(work, [(start, *args)] * processes, chunksize=1)


def threads_at_once(work: Callable[[], Any], threads: int) -> list[Any]:
    """The same for threads."""
    start = threading.Barrier(threads)

    def begin(_: int) -> Any:
        start.wait()
        return work()

    with ThreadPoolExecutor(threads) as pool:
        return list(pool.map(begin, range(threads)))


def claim_all(start: Any, url: str) -> list[bytes]:
    """Claim and finish until nothing is queued any more; answers the ids of the jobs."""
    app = Perdure(url)
    done: list[bytes] = []
    start.wait()
    while list(app.jobs(state="queued", queue="mail", limit=1)):
        taken = by_hand.claim(app, "mail", room=7)
        by_hand.finish(app, taken, Completed())
        done += [claim.job_id for claim in taken]
    app.close()
    return done


def open_and_enqueue(start: Any, url: str) -> str:
    """The first use of a database."""
    app = Perdure(url, auto_migrate=True)
    send = declare(app)
    start.wait()
    job = send.enqueue("a")
    app.close()
    return str(job.id)


def enqueue_many_times(start: Any, url: str, times: int) -> list[str]:
    """One job after the other; answers their ids."""
    app = Perdure(url)
    send = declare(app)
    start.wait()
    ids = [str(send.enqueue(str(n)).id) for n in range(times)]
    app.close()
    return ids
