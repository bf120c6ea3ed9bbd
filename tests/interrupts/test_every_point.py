"""An interrupt at every single moment of a call: whatever it hits, the next call of any thread works.

Ctrl-C as it comes in practice: raised in the main thread, once. Each moment is followed by somebody else's commit, so
that a snapshot which was left open is noticed.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import sqlite3
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pymysql
import pytest

from perdure.store.engine import Call
from tests.interrupts.conftest import Scene
from tests.interrupts.points import Ctrl, count_points, interrupted_at
from tests.worker.patience import eventually

pytestmark = pytest.mark.filterwarnings(
    # What was interrupted between being opened and being kept is closed by the garbage collector.
    "ignore::ResourceWarning",
    "ignore::pytest.PytestUnraisableExceptionWarning",
    "ignore:coroutine .* was never awaited:RuntimeWarning",
)


def enqueue(scene: Scene) -> None:
    scene.send.enqueue("interrupted")


def enqueue_many(scene: Scene) -> None:
    scene.send.enqueue_many([{"to": "interrupted"}] * 3)


def read(scene: Scene) -> None:
    scene.app.get(next(scene.app.jobs(limit=1)))


def change(scene: Scene) -> None:
    job = next(scene.app.jobs(limit=1))
    scene.app.pause(job)
    scene.app.resume(job)


def block(scene: Scene) -> None:
    with scene.app.transaction() as tx:
        tx.execute("INSERT INTO elsewhere VALUES (2)")
        scene.send.enqueue("interrupted")
        next(scene.app.jobs(limit=1))


def user_transaction(scene: Scene) -> None:
    connection = scene.connect()
    try:
        connection.cursor().execute("INSERT INTO elsewhere VALUES (3)")
        scene.send.options(tx=connection).enqueue("interrupted")
        connection.commit()
    finally:
        connection.close()


def lock(scene: Scene) -> None:
    with scene.app.lock("one", ttl=0.001):
        pass


def awaited(scene: Scene) -> None:
    async def act() -> None:
        await scene.send.aenqueue("interrupted")
        await scene.app.aio.get(await anext(scene.app.aio.jobs(limit=1)))

    asyncio.run(act())


def awaited_block(scene: Scene) -> None:
    async def act() -> None:
        with scene.app.transaction():
            await scene.send.aenqueue("interrupted")

    asyncio.run(act())


EVERYDAY = 60
"""How many of the moments are tried in a small run, spread evenly."""


@pytest.fixture(autouse=True)
def nobody_keeps_the_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pytest keeps what asyncio logs of it, and with its traceback whatever the interrupted code had."""
    monkeypatch.setattr(logging.getLogger("asyncio"), "disabled", True)


@pytest.fixture(autouse=True)
def only_new_garbage_is_looked_for() -> Iterator[None]:
    """A collection after each of a thousand moments passes over the modules that are loaded: 30 ms less each."""
    gc.freeze()
    yield
    gc.unfreeze()


ACTS = [enqueue, enqueue_many, read, change, block, user_transaction, lock, awaited, awaited_block]


@pytest.mark.parametrize("act", ACTS)
def test_an_interrupt_at_any_point_leaves_the_next_call_of_any_thread_alone(
    scene: Scene, act: Callable[[Scene], None], full_size: bool
) -> None:
    act(scene)  # what is worked out once is worked out
    told: list[str] = ["first"]
    moments = count_points(partial(act, scene))
    assert moments > 50
    for point in range(1, moments + 1, 1 if full_size else 1 + moments * scene.thrift // EVERYDAY):
        stopped(point, partial(act, scene))
        scene.commit_elsewhere()
        scene.send.enqueue(f"after {point}")
        told.append(f"after {point}")
        assert in_time(partial(scene.send.enqueue, f"beside {point}")), f"a thread hangs after an interrupt at {point}"
        told.append(f"beside {point}")

    eventually(lambda: not left(scene))  # what was begun in another thread goes on to its end
    there = Counter(scene.sent())
    assert {name: there[name] for name in told} == dict.fromkeys(told, 1)


def stopped(point: int, act: Callable[[], None]) -> None:
    """The number of moments differs a little from call to call: the last ones may not come."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        interrupted_at(point, act)
        gc.collect()


def in_time(act: Callable[[], object]) -> bool:
    """Whether another thread gets it done."""
    done: list[object] = []
    thread = threading.Thread(target=lambda: done.append(act()), daemon=True)
    thread.start()
    thread.join(20)
    return bool(done)


def left(scene: Scene) -> list[str]:
    """What is still held or open of what was interrupted."""
    runner: Any = scene.app.store.runner  # type: ignore[attr-defined]  # beneath the protocol
    if scene.dialect != "sqlite":
        shared = runner._shared
        held = {
            "a place in the line": len(runner.pool.line),
            "a place of those who write alone": len(shared._alone),
            "a shared commit": any(lane.is_busy for lane in shared._lanes.values()),
        }
        return [name for name, is_held in held.items() if is_held]
    database = runner.database
    held = {
        "the turn": len(database._line),
        "the gate": database._gate.inside,
        "a member": len(database._group._waiting),
        "the lead": database._group._led,
        "a transaction": database._at_rest and database._writer.in_transaction,
        "a reader's mark": len(database._reading),
    }
    return [name for name, is_held in held.items() if is_held]


def test_an_interrupted_connection_is_not_used_again(scene: Scene) -> None:
    """Nobody knows which of its rows and answers have been read."""

    def interrupted() -> Iterator[Call]:
        yield Call("list_nodes", {"page": 1})
        raise Ctrl

    runner: Any = scene.app.store.runner  # type: ignore[attr-defined]  # beneath the protocol
    before = connections(runner)
    with pytest.raises(Ctrl):
        runner.write(interrupted)
    scene.send.enqueue("after")

    assert not before & connections(runner)
    assert all(map(is_closed, before))


def connections(runner: Any) -> set[Any]:
    """The connections that the next one to write may get."""
    if hasattr(runner, "database"):
        return {runner.database._writer}
    return {session.connection for session in runner.pool._idle}


def is_closed(connection: Any) -> bool:
    if not isinstance(connection, sqlite3.Connection):
        return not connection.open if isinstance(connection, pymysql.Connection) else bool(connection.closed)
    try:
        connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return True
    return False
