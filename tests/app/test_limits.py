"""Limits and rates as users write them: `limit=`, `rate=`, `app.limits`, `app.queues.limit`."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from perdure import InvalidOption, KindError, Limit, LimitReached, Perdure, Rate
from perdure.clock import Micros
from perdure.limit.key import keys_of, needs_of
from perdure.store.rows import HOLD_LEASE_US


def keys(app: Perdure, job: Any) -> list[tuple[str, int]]:
    live = app.store.live(job.row.id)
    assert live is not None
    return [(need.key.replace("\x1f", "="), need.weight) for need in needs_of(live.limit_key)]


def test_a_limit_without_a_name_is_that_of_its_kind(app: Perdure) -> None:
    @app.job(limit=Limit(5), rate=Rate(100, per=60))
    def crunch() -> None: ...

    job = crunch.enqueue()

    assert job.state == "held"
    assert keys(app, job) == [("crunch", 1), ("crunch:rate", 1)]


def test_by_and_weight_come_from_the_arguments(app: Perdure) -> None:
    @app.job(limit=[Limit("tenant", 3, by="order.tenant"), Limit("gpu", 8, weight="gpus")])
    def render(order: dict[str, Any], gpus: int) -> None: ...

    assert keys(app, render.enqueue({"tenant": 42}, 2)) == [("tenant=42", 1), ("gpu", 2)]


def test_by_and_weight_may_be_functions_of_the_arguments(app: Perdure) -> None:
    @app.job(limit=Limit("size", 100, by=lambda it: it["name"][0], weight=lambda it: len(it["name"])))
    def store(name: str) -> None: ...

    assert keys(app, store.enqueue("abc")) == [("size=a", 3)]


def test_an_argument_that_is_missing_is_refused_and_nothing_is_written(app: Perdure) -> None:
    @app.job(limit=Limit("tenant", 3, by="customer"))
    def send(to: str) -> None: ...

    with pytest.raises(InvalidOption, match="without that argument") as refused:
        send.enqueue("ann")

    assert refused.value.code == "limit_argument_missing"
    assert list(app.jobs()) == []


@pytest.mark.parametrize("option", ["by", "weight"])
def test_a_function_that_raises_is_named_and_nothing_is_written(app: Perdure, option: str) -> None:
    def pick(arguments: Any) -> Any:
        return arguments["customer"]

    rule: Any = Limit("tenant", 3, **{option: pick})

    @app.job(name="send", limit=rule)
    def send(to: str) -> None: ...

    with pytest.raises(InvalidOption, match=f"'tenant' of kind 'send': {option}=.*pick raised KeyError") as refused:
        send.enqueue("ann")

    assert refused.value.code == "limit_function_failed"
    assert isinstance(refused.value.__cause__, KeyError)
    assert list(app.jobs()) == []


@pytest.mark.parametrize("weight", [0, -1, 1.5, "two", True])
def test_a_weight_is_a_whole_number(app: Perdure, weight: Any) -> None:
    @app.job(limit=Limit("gpu", 8, weight="gpus"))
    def render(gpus: object) -> None: ...

    with pytest.raises(InvalidOption, match="weight"):
        render.enqueue_many([{"gpus": weight}])


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Limit(0),
        lambda: Limit("api", 0),
        lambda: Limit("", 3),
        lambda: Limit("a*b", 3),
        lambda: Limit("x" * 101, 3),
        lambda: Limit("api", 3, by=5),  # type: ignore[call-overload]
        lambda: Limit("api", 3, weight=0),
        lambda: Rate("api", 5, per=0),
        lambda: Rate("api", 5, per=1, algorithm="leaky"),  # type: ignore[call-overload]
        lambda: Rate("api", 5, per=1, burst=3),
    ],
)
def test_what_no_limit_can_be_is_refused(wrong: Any) -> None:
    with pytest.raises(InvalidOption):
        wrong()


def test_a_job_has_four_limits_at_most_and_none_twice(app: Perdure) -> None:
    with pytest.raises(InvalidOption, match="at most 4"):
        app.job(limit=[Limit(f"l{number}", 1) for number in range(5)])(lambda: None)
    with pytest.raises(InvalidOption, match="two limits"):
        app.job(limit=[Limit("a", 1), Limit("a", 1, by="x")])(lambda: None)


def test_a_number_is_no_limit_and_the_error_says_what_to_write(app: Perdure) -> None:
    with pytest.raises(InvalidOption, match=r"limit=Limit\(5\)"):
        app.job(limit=5)(lambda: None)  # type: ignore[call-overload]


def test_one_name_means_one_limit(app: Perdure) -> None:
    @app.job(limit=Limit("api", 5))
    def first() -> None: ...

    with pytest.raises(KindError, match="declared twice") as refused:

        @app.job(limit=Limit("api", 6))
        def second() -> None: ...

    assert refused.value.code == "limit_conflict"


def test_a_limit_of_a_single_job_must_be_known_to_workers(app: Perdure, send: Any) -> None:
    gpu = Limit("gpu", 2, weight=2)
    with pytest.raises(InvalidOption) as refused:
        send.options(limit=gpu)
    assert refused.value.code == "limit_undeclared"

    app.limits.declare(gpu)

    assert keys(app, send.options(limit=gpu).enqueue("a")) == [("gpu", 2)]


def test_a_worker_keeps_the_limit_of_a_kind(app: Perdure) -> None:
    now, most = Counter[str](), Counter[str]()
    lock = threading.Lock()

    @app.job(limit=Limit("tenant", 2, by="tenant"))
    def crunch(tenant: str) -> None:
        with lock:
            now[tenant] += 1
            most[tenant] = max(most[tenant], now[tenant])
        threading.Event().wait(0.002)
        with lock:
            now[tenant] -= 1

    crunch.enqueue_many({"tenant": "ab"[number % 2]} for number in range(60))
    app.worker(concurrency=8).run(until_idle=True)

    assert {job.state for job in app.jobs()} == {"completed"}
    assert most == {"a": 2, "b": 2}


def test_nothing_is_claimed_that_cannot_start_now(app: Perdure) -> None:
    """graphile-worker fetched jobs ahead, and "one at a time" was so no more (#621). Here a permit is a run."""
    began, go_on = threading.Semaphore(0), threading.Event()

    @app.job(limit=Limit("api", 5))
    def call() -> None:
        began.release()
        go_on.wait(60)

    call.enqueue_many({} for _ in range(5))
    with app.worker(concurrency=2).running():
        for _ in range(2):
            assert began.acquire(timeout=60)
        [key] = app.limits.show("api")
        running = [job.id for job in app.jobs(state="running")]
        go_on.set()

    assert (key.in_use, sorted(key.jobs)) == (2, sorted(running))


def test_the_test_kit_drains_jobs_with_limits(app: Perdure) -> None:
    @app.job(limit=Limit(1), rate=Rate(50, per=60))
    def crunch(number: int) -> int:
        return number

    with app.testing() as t:
        for number in range(5):
            crunch.enqueue(number)
        assert [job.result for job in t.drain()] == [0, 1, 2, 3, 4]


def test_a_rate_in_the_test_kit_needs_the_clock_to_move(app: Perdure) -> None:
    @app.job(rate=Rate(2, per=60))
    def call(number: int) -> None: ...

    with app.testing() as t:
        for number in range(3):
            call.enqueue(number)
        assert len(t.drain()) == 2
        t.advance(seconds=60)
        assert len(t.drain()) == 1


def test_a_worker_opens_a_rate_that_would_open_in_a_year(app: Perdure, path: Path) -> None:
    @app.job(rate=Rate(1, per=60))
    def call(number: int) -> None: ...

    for number in range(2):
        call.enqueue(number)
    app.worker(concurrency=2).run(until_idle=True)
    assert {job.state for job in app.jobs()} == {"completed", "held"}
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE perdure_limit_key SET opens_at = opens_at + 31536000000000")
        connection.execute("DELETE FROM perdure_start")

    app.worker(concurrency=2).run(until_idle=True)

    assert [job.state for job in app.jobs()] == ["completed", "completed"]


def test_limits_are_set_paused_and_shown_by_hand(app: Perdure) -> None:
    @app.job(limit=Limit("tenant", 1, by="tenant"))
    def crunch(tenant: str) -> None: ...

    crunch.enqueue("acme")
    app.limits.pause("tenant", key="acme")
    app.worker(concurrency=2).run(until_idle=True)
    [key] = app.limits.show("tenant")
    assert (key.key, key.in_line, key.in_use, key.paused) == ("acme", 1, 0, True)

    app.limits.resume("tenant", key="acme")
    app.limits.set("tenant", 7)
    app.limits.set("tenant", 9, key="acme")
    app.worker(concurrency=2).run(until_idle=True)

    assert [job.state for job in app.jobs()] == ["completed"]
    [limit] = app.limits.list()
    assert (limit.most, limit.declared, limit.set_by_hand, limit.kinds) == (7, 1, True, ("crunch",))
    [key] = app.limits.show("tenant")
    assert (key.most, key.set_by_hand) == (9, True)
    app.limits.reset("tenant", key="acme")
    app.limits.reset("tenant")
    assert app.limits.show("tenant") == []


def test_a_queue_has_a_limit_over_all_workers(app: Perdure, send: Any) -> None:
    app.queues.limit("default", 1)
    send.enqueue("a")

    assert [(queue.name, queue.concurrency) for queue in app.queues.list()] == [("default", 1)]
    app.worker(concurrency=4).run(until_idle=True)
    app.queues.limit("default", None)
    assert app.queues.list()[0].concurrency is None


def test_a_block_holds_a_place(app: Perdure) -> None:
    app.limits.set("gpu", 2, new=True)
    with app.limits.hold("gpu", weight=2):
        with pytest.raises(LimitReached) as reached, app.limits.hold("gpu", wait=0):
            pass
        [key] = app.limits.show("gpu")
        assert (key.in_use, key.jobs, key.blocks, key.opens_at) == (2, (), 1, None)

    assert reached.value.code == "limit_reached"
    assert app.limits.show("gpu") == []


@pytest.mark.parametrize("verb", ["set", "reset", "pause", "resume", "hold"])
def test_a_mistyped_limit_is_refused_and_nothing_is_written(app: Perdure, verb: str) -> None:
    """As by the command line; `resume` left a row behind, and `hold` held nothing."""

    @app.job(limit=Limit("tenant", 3, by="tenant"))
    def crunch(tenant: str) -> None: ...

    with pytest.raises(InvalidOption, match="did you mean 'tenant'") as refused:
        with_name(app, "tennant", "acme")[verb]()

    assert refused.value.code == "limit_unknown"
    assert app.limits.list() == []
    assert app.store.limit_keys("tennant", app.clock.now()) == []


def with_name(app: Perdure, name: str, key: object) -> dict[str, Any]:
    """Everything that names a limit."""
    return {
        "set": lambda: app.limits.set(name, 5, key=key),
        "reset": lambda: app.limits.reset(name, key=key),
        "pause": lambda: app.limits.pause(name, key=key),
        "resume": lambda: app.limits.resume(name, key=key),
        "hold": lambda: app.limits.hold(name, key=key, wait=0).__enter__(),
    }


@pytest.mark.parametrize("verb", ["set", "reset", "pause", "resume", "hold"])
def test_a_limit_of_another_program_is_known_by_the_database(app: Perdure, path: Path, verb: str) -> None:
    other = Perdure(path)
    other.limits.set("tenant", 2, new=True)
    other.close()

    with_name(app, "tenant", "acme")[verb]()


@pytest.mark.parametrize(("name", "key"), [("tenant", None), ("gpu", "acme")])
def test_a_block_holds_a_key_that_jobs_have(app: Perdure, name: str, key: object) -> None:
    @app.job(limit=[Limit("tenant", 3, by="tenant"), Limit("gpu", 1)])
    def crunch(tenant: str) -> None: ...

    with pytest.raises(InvalidOption, match=f"limit '{name}'") as refused:
        app.limits.hold(name, key=key)

    assert refused.value.code == "limit_key_invalid"


def test_a_block_that_lost_its_place_is_told(
    app: Perdure, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Another process has taken it, whose clock is ahead."""
    monkeypatch.setattr("perdure.limits.RENEW_EVERY_S", 0.001)
    app.limits.set("gpu", 1, new=True)
    with app.limits.hold("gpu") as held:
        later = Micros(app.clock.now() + 2 * HOLD_LEASE_US)
        assert app.store.take_hold("gpu", 1, app.ids.new(), later, HOLD_LEASE_US)
        told = threading.Event()
        while not held.lost:
            told.wait(0.001)
    [key] = app.limits.show("gpu")

    assert (key.in_use, key.blocks) == (1, 1)
    assert "holds its place of limit gpu no longer" in caplog.text


def test_a_coroutine_holds_a_place(app: Perdure) -> None:
    app.limits.set("gpu", 1, new=True)

    async def hold() -> None:
        async with app.aio.limits.hold("gpu"):
            with pytest.raises(LimitReached):
                async with app.aio.limits.hold("gpu", wait=0):
                    pass

    asyncio.run(hold())


def test_a_schedule_makes_jobs_with_their_limits(app: Perdure) -> None:
    @app.job(limit=Limit("tenant", 1, by="tenant"))
    def crunch(tenant: str) -> None: ...

    app.schedules.put("nightly", "0 3 * * *", kind=crunch, payload={"tenant": "acme"})
    job = app.schedules.trigger("nightly")

    assert [key.replace("\x1f", "=") for key in keys_of(app.store.live(job.row.id).limit_key)] == ["tenant=acme"]  # type: ignore[union-attr]


def test_an_edited_job_needs_the_keys_of_its_new_arguments(app: Perdure) -> None:
    @app.job(limit=Limit("tenant", 1, by="tenant"))
    def crunch(tenant: str) -> None: ...

    job = app.edit(crunch.enqueue("a"), payload={"tenant": "b"})

    assert keys(app, job) == [("tenant=b", 1)]


def test_an_edited_job_keeps_the_keys_that_its_arguments_do_not_change(app: Perdure) -> None:
    """Found by review: what its kind does not give it was dropped, as the key of its flow, or stayed."""
    gpu = Limit("gpu", 8, by="gpu")
    app.limits.declare(gpu)

    @app.job(limit=Limit("tenant", 1, by="tenant"))
    def crunch(tenant: str) -> None: ...

    @app.job
    def render(gpu: str) -> None: ...

    flow = app.group([crunch.new("a"), crunch.new("b")], at_once=1)
    _, member = app.flows.jobs(flow.id)
    tenant, of_flow = keys(app, app.edit(member, payload={"tenant": "c"}))
    rendered = app.edit(render.options(limit=gpu).enqueue("old"), payload={"gpu": "new"})

    assert (tenant, of_flow) == (("tenant=c", 1), (f"={flow.id.hex}", 1))
    assert keys(app, rendered) == [("gpu=new", 1)]
    assert app.store.row(rendered.row.id).limit_key == app.store.live(rendered.row.id).limit_key  # type: ignore[union-attr]
