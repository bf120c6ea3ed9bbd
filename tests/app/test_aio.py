"""`app.aio` and the awaitable verbs of kinds: the same answers, without holding up the loop."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure import InvalidPayload, JobFailed, KeyConflict, KindError, Perdure, State, TransactionError, WaitTimeout
from perdure.aio import AsyncPerdure, AsyncQueues, AsyncTemplates
from perdure.app import INNER
from perdure.queues import Queues
from perdure.templates import Templates
from tests.app import by_hand
from tests.app.contents import jobs_in


def run(main: Callable[[], Awaitable[Any]]) -> Any:
    async def started() -> Any:
        return await main()

    return asyncio.run(started())


def verbs_of(cls: type) -> set[str]:
    return {name for name, value in vars(cls).items() if not name.startswith("_") and inspect.isfunction(value)}


DECLARATIONS = {"job", "schedule", "middleware", "worker", "testing", "close"}
"""What opens nothing or is called once. For a worker there is `async with app.worker().running()`."""

NOT_ASYNC = {"lock", "transaction"}
"""Context managers; a transaction on SQLite keeps all other writers out and should not be awaited in."""


def test_every_verb_has_its_coroutine() -> None:
    assert verbs_of(AsyncPerdure) == verbs_of(Perdure) - DECLARATIONS - INNER - NOT_ASYNC
    assert verbs_of(AsyncQueues) == verbs_of(Queues)
    assert verbs_of(AsyncTemplates) == verbs_of(Templates)


def test_coroutines_take_what_the_verbs_take() -> None:
    for name in verbs_of(AsyncPerdure):
        lifted = list(inspect.signature(getattr(AsyncPerdure, name)).parameters)
        plain = [p for p in inspect.signature(getattr(Perdure, name)).parameters if p != "tx" or "tx" in lifted]
        assert lifted == plain, name


def test_enqueue_and_look(app: Perdure, send: Any) -> None:
    async def main() -> None:
        job = await send.aenqueue("a")
        named = await app.aio.enqueue("send", {"to": "b"}, priority=5, tags=["x"])
        many = await app.aio.enqueue_many([send.new("c"), send.options(queue="mail").new("d")])
        bound = await send.options(delay=60).aenqueue("e")
        assert await app.aio.get(job) == job
        assert await app.aio.get("00000000-0000-7000-8000-000000000000") is None
        assert [found async for found in app.aio.jobs()] == [bound, *many[::-1], named, job]
        assert [found async for found in app.aio.jobs(tag="x", limit=3)] == [named]
        assert [run async for run in app.aio.runs(job)] == []
        assert await app.aio.enqueue_many([]) == []

    run(main)


def test_many_of_a_kind(app: Perdure, send: Any) -> None:
    async def main() -> None:
        jobs = await send.aenqueue_many([{"to": "a"}, {"to": "b"}])
        later = await send.options(delay=60).aenqueue_many([{"to": "c"}])
        assert [job.payload["to"] for job in (*jobs, *later)] == ["a", "b", "c"]
        assert [found async for found in app.aio.jobs()] == [*later, *jobs[::-1]]
        with pytest.raises(InvalidPayload):
            await send.aenqueue_many([{"to": "d"}, {"colour": "red"}])
        assert len(list(app.jobs())) == 3

    run(main)


def test_every_decision(app: Perdure, send: Any) -> None:
    async def main() -> None:
        job = await send.aenqueue("a")
        assert (await app.aio.pause(job)).state == State.PAUSED
        assert (await app.aio.resume(job)).state == State.QUEUED
        assert (await app.aio.set_priority(job, 4)).priority == 4
        assert (await app.aio.move(job, to="front")).id == job.id
        assert (await app.aio.edit(job, payload={"to": "b"})).payload == {"to": "b"}
        assert (await app.aio.cancel(job)).state == State.CANCELLED
        assert (await app.aio.retry(job)).life == 2
        old = await app.aio.supersede(job, send.new("c"))
        assert old.superseded_by is not None
        again = await app.aio.retry(old, as_new=True)
        assert again.retry_of == old.id
        assert (await app.aio.explain(again)) == app.explain(again)
        assert [line async for line in app.aio.logs(again)] == []
        assert (await app.aio.delete(old)).id == old.id

    run(main)


def test_bulk_verbs_and_queues(app: Perdure, send: Any) -> None:
    async def main() -> None:
        await app.aio.enqueue_many([send.new(str(n)) for n in range(5)])
        assert await app.aio.pause_all(limit=2) == 2
        assert await app.aio.resume_all() == 2
        assert await app.aio.cancel_all(queue="default") == 5
        assert await app.aio.retry_all(state="cancelled") == 5
        await app.aio.queues.pause("mail")
        assert [(queue.name, queue.paused) for queue in await app.aio.queues.list()] == [
            ("default", False),
            ("mail", True),
        ]
        await app.aio.queues.resume("mail")
        assert not any(queue.paused for queue in await app.aio.queues.list())

    run(main)


def test_waiting(app: Perdure, send: Any) -> None:
    async def main() -> None:
        job, doomed = await send.aenqueue("a"), await send.options(queue="doomed", retry=1).aenqueue("b")
        with pytest.raises(WaitTimeout):
            await app.aio.wait(job, 0.01)
        waiting = asyncio.create_task(send.await_(job, 30))
        await asyncio.to_thread(by_hand.complete, app, '"done"')
        await asyncio.to_thread(by_hand.fail, app, "no", "doomed")
        assert await waiting == "done"
        assert (await app.aio.wait(job)).result == "done"
        with pytest.raises(JobFailed):
            await send.await_(doomed, 1)

    run(main)


def test_refusals_are_raised_where_they_are_awaited(app: Perdure, send: Any) -> None:
    async def main() -> None:
        with pytest.raises(KindError):
            await app.aio.enqueue("sned")
        await send.options(business_key="b").aenqueue("a")
        with pytest.raises(KeyConflict):
            await send.options(business_key="b").aenqueue("b")

    run(main)


def test_two_hundred_at_once_share_commits(app: Perdure, send: Any, path: Path) -> None:
    commits: list[str] = []
    app.store.upgrade()
    runner: Any = app.store.runner  # type: ignore[attr-defined]  # beneath the protocol
    runner.database._writer.set_trace_callback(lambda sql: commits.append(sql) if sql == "COMMIT" else None)

    async def main() -> list[Any]:
        return await asyncio.gather(*[send.aenqueue(str(n)) for n in range(200)])

    jobs = run(main)
    assert len({job.id for job in jobs}) == len(jobs_in(path)) == 200
    assert len(commits) <= 20


def test_the_loop_goes_on_while_a_verb_waits(app: Perdure, send: Any) -> None:
    async def main() -> int:
        ticks = 0
        with closing(sqlite3.connect(_path_of(app), isolation_level=None)) as writer:
            writer.execute("BEGIN IMMEDIATE")
            enqueueing = asyncio.create_task(send.aenqueue("a"))
            for _ in range(50):
                await asyncio.sleep(0.001)
                ticks += 1
            assert not enqueueing.done()
            writer.execute("ROLLBACK")
        await enqueueing
        return ticks

    app.store.upgrade()
    assert run(main) == 50


def _path_of(app: Perdure) -> Path:
    runner: Any = app.store.runner  # type: ignore[attr-defined]  # beneath the protocol
    found: Path = runner.path
    return found


def test_a_borrowed_connection_is_used_in_the_callers_thread(app: Perdure, send: Any, path: Path) -> None:
    async def main() -> None:
        with closing(sqlite3.connect(path)) as connection:
            await send.options(tx=connection).aenqueue("a")
            await app.aio.enqueue_many([send.new("b")], tx=connection)
            await app.aio.enqueue("send", {"to": "c"}, tx=connection)
            connection.rollback()
        with pytest.raises(TransactionError):
            await send.options(tx=connection).aenqueue("d")

    app.store.upgrade()
    run(main)
    assert jobs_in(path) == []


def test_a_verb_on_a_borrowed_connection_too(app: Perdure, send: Any, path: Path) -> None:
    job = send.enqueue("a")

    async def main() -> None:
        with closing(sqlite3.connect(path)) as connection:
            assert (await app.aio.cancel(job, tx=connection)).state == State.CANCELLED
            connection.rollback()

    run(main)
    assert app.existing(job).state == State.QUEUED


def test_loop_after_loop_can_use_the_same_app(app: Perdure, send: Any, path: Path) -> None:
    async def main() -> None:
        await asyncio.gather(*[send.aenqueue(str(n)) for n in range(20)])

    for _ in range(5):
        run(main)
    assert len(jobs_in(path)) == 100


def test_a_loop_that_ends_with_enqueues_under_way_stops_nobody(app: Perdure, send: Any) -> None:
    async def hasty() -> None:
        for n in range(50):
            asyncio.ensure_future(send.aenqueue(str(n)))  # noqa: RUF006 - dropped on purpose
        await asyncio.sleep(0)

    for _ in range(5):
        run(hasty)
    assert app.get(send.enqueue("next")) is not None
    assert run(lambda: send.aenqueue("last")).state == State.QUEUED
