"""Batches, chains and groups."""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from perdure import InvalidInput, JobContext, Perdure, PerdureError, Planned, Retry, RetryAfter, previous
from perdure.job.model import NewJob
from perdure.testing import Kit
from tests.flow.kinds import Kinds


def flow_of(app: Perdure, flow: Any) -> Any:
    found = app.flows.get(flow)
    assert found is not None
    return found


# -- batches ---------------------------------------------------------------------------------------------------------


def test_a_batch_calls_back_when_all_its_members_have_ended(t: Kit, k: Kinds) -> None:
    callbacks = {"on_success": k.note.new("good"), "on_failure": k.note.new("bad"), "on_end": k.note.new("end")}
    with t.app.batch("import", **callbacks, properties={"file": "x.csv"}) as batch:  # type: ignore[arg-type]
        for n in range(5):
            batch.add(k.double.new(n))
    flow = flow_of(t.app, batch)
    assert (flow.sort, flow.name, flow.total, flow.properties) == ("batch", "import", 5, {"file": "x.csv"})
    t.drain()
    assert sorted(k.done) == ["end", "good"]
    assert flow_of(t.app, batch).state == "completed"


def test_a_batch_in_which_something_failed_calls_back_once(t: Kit, k: Kinds) -> None:
    with t.app.batch("b", on_success=k.note.new("good"), on_failure=k.note.new("bad")) as batch:
        batch.add_many([k.fail.new(), k.number.new(1), k.fail.new()])
    t.drain()
    assert k.done == ["bad"]
    flow = flow_of(t.app, batch)
    assert (flow.state, flow.failed, flow.completed) == ("failed", 2, 1)


def test_a_batch_of_any_length_runs_while_it_is_filled(t: Kit, k: Kinds, portion: int) -> None:
    """It holds no more than one portion in memory, and the first run before the last are there."""
    ran: list[int] = []

    def drafts() -> Iterator[Any]:
        for n in range(3 * portion + 100):
            if n == 3 * portion:
                ran.append(len(t.drain(limit=10_000)))
            yield k.number.new(n)

    with t.app.batch("long") as batch:
        batch.add_many(drafts())
        assert flow_of(t.app, batch).is_open
    assert ran == [3 * portion]
    assert flow_of(t.app, batch).total == 3 * portion + 100


def test_a_batch_without_members_ends_when_it_is_sealed(t: Kit, k: Kinds) -> None:
    with t.app.batch("empty", on_success=k.note.new("good")) as batch:
        t.drain()
        assert flow_of(t.app, batch).state == "running"
        assert k.done == [], "nothing ends while it is open"
    t.drain()
    assert flow_of(t.app, batch).state == "completed"
    assert k.done == ["good"]


def test_nothing_ends_while_a_batch_is_open(t: Kit, k: Kinds, portion: int) -> None:
    with t.app.batch("b", on_end=k.note.new("end")) as batch:
        batch.add_many(k.number.new(n) for n in range(portion))
        t.drain(limit=2_000)
        flow = flow_of(t.app, batch)
        assert (flow.state, flow.total, flow.added, flow.completed) == ("running", None, portion, portion)
        assert k.done == []
    t.drain()
    assert k.done == ["end"]


def test_an_exception_cancels_a_batch(t: Kit, k: Kinds) -> None:
    with pytest.raises(ZeroDivisionError), t.app.batch("b", on_end=k.note.new("end")) as batch:
        batch.add_many(k.note.options(delay=60).new(f"{n}") for n in range(1_001))
        raise ZeroDivisionError
    for _ in range(5):
        t.drain()
    assert flow_of(t.app, batch).state == "cancelled"
    assert k.done == ["end"]


def test_an_abandoned_batch_can_be_kept_and_is_shown_as_open(t: Kit, k: Kinds, portion: int) -> None:
    with pytest.raises(ZeroDivisionError), t.app.batch("b", abandon="keep", on_end=k.note.new("end")) as batch:
        batch.add_many(k.number.new(n) for n in range(portion))
        raise ZeroDivisionError
    t.drain(limit=2_000)
    flow = flow_of(t.app, batch)
    assert flow.is_open
    assert "it is open since" in t.app.explain(batch).why
    assert t.app.flows.seal(batch).state == "completed"
    t.drain()
    assert k.done == ["end"]


def test_a_batch_that_is_kept_keeps_all_that_was_added(t: Kit, k: Kinds) -> None:
    """Not only whole portions."""
    with pytest.raises(ZeroDivisionError), t.app.batch("b", abandon="keep") as batch:
        added = batch.add(k.note.new("added"))
        raise ZeroDivisionError
    t.drain()
    assert k.done == ["added"]
    assert flow_of(t.app, batch).added == 1
    assert t.app.get(added) is not None


def test_a_batch_never_holds_more_than_a_portion_in_memory(t: Kit, k: Kinds, portion: int) -> None:
    """Celery read a whole generator, and copied the graph into every message (#3021, #5000)."""
    most = 0
    with t.app.batch("long") as batch:
        for n in range(5 * portion + portion // 2):
            batch.add(k.number.new(n))
            if n % (portion // 2) == 0:
                gc.collect()
                most = max(most, sum(isinstance(one, (NewJob, Planned)) for one in gc.get_objects()))
    assert flow_of(t.app, batch).added == 5 * portion + portion // 2
    assert 0 < most <= portion + 100


def test_a_batch_takes_no_kind_of_another_file(tmp_path: Path) -> None:
    app, other = Perdure(f"{tmp_path}/a.db"), Perdure(f"{tmp_path}/b.db")

    @other.job
    def elsewhere() -> None: ...

    with app.batch("b") as batch, pytest.raises(PerdureError) as refused:
        batch.add(elsewhere.new())
    assert refused.value.code == "kind_elsewhere"
    assert list(app.flows.jobs(batch)) == []
    app.close()


def test_a_sealed_batch_takes_no_more(t: Kit, k: Kinds) -> None:
    with t.app.batch("b") as batch:
        pass
    with pytest.raises(InvalidInput) as caught:
        batch.add(k.number.new(1))
    assert caught.value.code == "flow_sealed"


def test_members_of_a_batch_may_wait_for_each_other(t: Kit, k: Kinds) -> None:
    with t.app.batch("b") as batch:
        first = batch.add(k.number.new(4))
        second = batch.add(k.double.new(first.result))
        batch.add(k.note.new("never"), after=second, on="failure")
    t.drain()
    assert t.app.existing(second).result == 8
    assert flow_of(t.app, batch).skipped == 1


def test_a_batch_has_a_key_of_its_own(t: Kit, k: Kinds) -> None:
    with t.app.batch("b", key="x") as first:
        first.add(k.note.options(delay=60).new("first"))
    with t.app.batch("b", key="x", conflict="return") as second:
        second.add(k.note.new("second"))
    assert second.deduplicated
    assert second.id == first.id
    assert flow_of(t.app, first).total == 1


def test_a_retry_is_not_an_end(t: Kit, k: Kinds) -> None:
    tries: list[int] = []

    @t.app.job(retry=3)
    def flaky(ctx: JobContext) -> None:
        tries.append(ctx.attempt)
        if ctx.attempt == 1:
            raise RetryAfter(60)

    with t.app.batch("b", on_success=k.note.new("good"), on_failure=k.note.new("bad")) as batch:
        batch.add(flaky.new())
    t.drain()
    assert flow_of(t.app, batch).ended == 0
    t.advance(seconds=60)
    t.drain()
    assert tries == [1, 2]
    assert k.done == ["good"]


@pytest.mark.parametrize(
    ("how", "ends"),
    [
        ("completes", "completed"),
        ("fails", "failed"),
        ("Fail", "failed"),
        ("Cancel", "cancelled"),
        ("Skip", "completed"),
        ("is cancelled by hand", "cancelled"),
        ("is superseded", "completed"),
    ],
)
def test_every_ending_of_a_member_counts_by_whomever(t: Kit, k: Kinds, how: str, ends: str) -> None:
    draft: Any = {
        "completes": k.number.new(1),
        "fails": k.fail.new(),
        "is cancelled by hand": k.number.options(delay=60).new(1),
        "is superseded": k.number.options(delay=60).new(1),
    }.get(how) or k.stop.new(how)
    with t.app.batch("b", on_end=k.note.new("end")) as batch:
        member: Planned[Any] = batch.add(draft)
    if how == "is cancelled by hand":
        t.app.cancel(member)
    if how == "is superseded":
        t.app.supersede(member, k.number.new(2))
    t.drain()
    assert flow_of(t.app, batch).state == ends
    assert k.done == ["end"]


# -- chains ----------------------------------------------------------------------------------------------------------


def test_each_job_of_a_chain_takes_the_result_of_the_one_before(t: Kit, k: Kinds) -> None:
    flow = t.app.chain(k.number.new(3), k.double.new(previous), k.double.new(previous))
    assert flow.name == "number → double → double"
    t.drain()
    assert [job.result for job in t.app.flows.jobs(flow)] == [3, 6, 12]


def test_a_chain_that_breaks_skips_the_rest(t: Kit, k: Kinds) -> None:
    flow = t.app.chain(k.note.new("a"), k.fail.new(), k.note.new("b"), k.note.new("c"))
    t.drain()
    assert [job.state.value for job in t.app.flows.jobs(flow)] == ["completed", "failed", "skipped", "skipped"]
    assert flow_of(t.app, flow).state == "failed"


def test_a_long_chain_does_not_grow_slower_or_deeper(t: Kit, k: Kinds) -> None:
    flow = t.app.chain(k.number.new(0), *(k.number.new(previous) for _ in range(300)))
    t.drain()
    assert flow_of(t.app, flow).completed == 301


# -- groups ----------------------------------------------------------------------------------------------------------


def group_of(t: Kit, k: Kinds, **options: Any) -> dict[str, str]:
    """How each member of a group ends whose first one fails, long before the others may start; and the group itself."""
    drafts = [k.fail.new(), k.note.options(delay=60).new("b"), k.note.options(delay=60).new("c")]
    flow = t.app.group(drafts, **options)
    t.drain()
    t.advance(seconds=60)
    t.drain()
    ends = {name: job.state.value for name, job in zip("abc", t.app.flows.jobs(flow), strict=True)}
    return ends | {"group": flow_of(t.app, flow).state.value}


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
@pytest.mark.parametrize(
    ("on_failure", "others", "group"),
    [
        ("continue", {"completed"}, "failed"),
        ("skip", {"completed"}, "completed"),
        ("stop", {"skipped"}, "failed"),
        ("cancel", {"skipped", "cancelled"}, "failed"),
        ("pause", {"paused"}, "running"),
    ],
)
def test_what_a_failed_member_does_to_its_group(
    t: Kit, k: Kinds, mode: str, on_failure: str, others: set[str], group: str
) -> None:
    ends = group_of(t, k, mode=mode, on_failure=on_failure)
    assert ends["a"] == "failed"
    assert {ends["b"], ends["c"]} <= others
    assert ends["group"] == group


def test_a_group_that_was_paused_by_a_failure_goes_on_when_someone_decides(t: Kit, k: Kinds) -> None:
    group_of(t, k, mode="sequential", on_failure="pause")
    (flow,) = t.app.flows.list()
    t.app.resume(flow)
    t.drain()
    assert k.done == ["b", "c"]


def test_a_sequential_group_keeps_its_order(t: Kit, k: Kinds) -> None:
    t.app.group([k.note.options(priority=n).new(f"{n}") for n in range(6)], mode="sequential")
    t.drain()
    assert k.done == [f"{n}" for n in range(6)]


# -- growth ----------------------------------------------------------------------------------------------------------


def test_growth_three_levels_deep_and_the_join_waits_for_the_last_of_them(t: Kit, k: Kinds) -> None:
    with t.app.workflow("w") as wf:
        parts = wf.batch("parts")
        parts.add(k.grow.new(3))
        wf.add(k.note.new("joined"), after=parts)
        wf.add(k.note.new("over"), after=wf)
    t.drain()
    assert k.done == ["level 3", "level 2", "level 1", "level 0", "joined", "over"]
    assert flow_of(t.app, parts).total == 4


@pytest.mark.parametrize("as_new_job", [False, True])
def test_another_attempt_adds_nothing_twice(t: Kit, k: Kinds, portion: int, as_new_job: bool) -> None:
    """Found by review: it did where every attempt is a job of its own."""
    before, after = portion + 100, portion + 200

    @t.app.job(retry=Retry(3, as_new_job=as_new_job))
    def find(ctx: JobContext) -> int:
        added = ctx.flow["more"].add_many(k.double.new(n) for n in range(after if ctx.attempt > 1 else before))
        more = ctx.flow["more"].add(k.note.new("keyed"), key="x")
        assert more.id == ctx.flow["more"].add(k.note.new("keyed"), key="x").id
        if ctx.attempt == 1:
            raise RetryAfter(0)
        results.append(added)
        return added

    results: list[int] = []
    with t.app.workflow("w") as wf:
        found = wf.add(find.new())
        more = wf.batch("more", filled_by=found)
        joined = wf.add(k.join.new("more"), after=more)
    t.drain(limit=5_000)
    assert results == [100]
    assert k.done == ["keyed"]
    assert [n for n in t.app.existing(joined).result if n != "keyed"] == [2 * n for n in range(after)]


def test_members_can_be_told_apart_by_an_argument(t: Kit, k: Kinds) -> None:
    @t.app.job(retry=2)
    def find(ctx: JobContext) -> int:
        names = ["b", "a", "c"] if ctx.attempt > 1 else ["a", "b"]
        added = ctx.flow["more"].add_many((k.note.new(name) for name in names), key="text")
        if ctx.attempt == 1:
            raise RetryAfter(0)
        return added

    with t.app.workflow("w") as wf:
        found = wf.add(find.new())
        wf.batch("more", filled_by=found)
    t.drain()
    assert t.app.existing(found).result == 1
    assert sorted(k.done) == ["a", "b", "c"]


def test_what_a_failed_attempt_wanted_to_add_at_its_end_is_not_there(t: Kit, k: Kinds) -> None:
    @t.app.job(retry=2)
    def extend(ctx: JobContext) -> None:
        ctx.flow.add(k.note.new(f"attempt {ctx.attempt}"))
        if ctx.attempt == 1:
            raise RetryAfter(0)

    with t.app.workflow("w") as wf:
        wf.add(extend.new())
        wf.add(k.note.new("over"), after=wf)
    t.drain()
    assert k.done == ["attempt 2", "over"]


def test_a_job_that_waits_for_the_end_of_a_flow_adds_nothing_to_it(t: Kit, k: Kinds) -> None:
    @t.app.job(retry=1)
    def report(ctx: JobContext) -> None:
        ctx.flow.add(k.note.new("too late"))

    with t.app.workflow("w") as wf:
        wf.add(k.note.new("first"))
        late = wf.add(report.new(), after=wf)
    t.drain()
    assert k.done == ["first"]
    assert "no member that the flow counts" in (t.app.existing(late).error or "")


def test_a_job_outside_of_flows_has_none(t: Kit) -> None:
    @t.app.job(retry=1)
    def look(ctx: JobContext) -> None:
        _ = ctx.flow

    job = look.enqueue()
    t.drain()
    assert "belongs to no flow" in str(t.app.existing(job).error)


def test_a_flow_that_is_not_inside(t: Kit, k: Kinds) -> None:
    with t.app.workflow("w") as wf:
        job = wf.add(k.fill.options(retry=1).new(1, into="nowhere"))
    t.drain()
    assert "there is no flow 'nowhere' inside workflow 'w'" in str(t.app.existing(job).error)


# -- coroutines ------------------------------------------------------------------------------------------------------


def test_the_same_in_coroutines(t: Kit, k: Kinds, portion: int) -> None:
    async def drafts() -> AsyncIterator[Any]:
        for n in range(portion + 1):
            yield k.number.new(n)

    async def work() -> None:
        app = t.app.aio
        async with app.workflow("w") as wf:
            a = wf.add(k.number.new(2))
            wf.add(k.double.new(a.result))
        async with app.batch("b", on_end=k.note.new("end")) as batch:
            await batch.add(k.number.new(1))
            await batch.add_many(drafts())
        chain = await app.chain(k.number.new(1), k.double.new(previous))
        group = await app.group([k.number.new(1)])
        await t.adrain(limit=5_000)
        assert (await app.wait(wf)).state == "completed"
        assert (await app.wait(batch, timeout=0)).total == portion + 2
        assert {flow.id async for flow in app.flows.list()} == {wf.id, batch.id, chain.id, group.id}
        assert len([job async for job in app.flows.jobs(chain)]) == 2
        assert (await app.flows.graph(wf)).flow.id == wf.id
        with pytest.raises(ZeroDivisionError):
            async with app.batch("b") as bad:
                await bad.add(k.note.options(delay=60).new("x"))
                raise ZeroDivisionError
        found = await app.flows.get(bad)
        assert found is not None
        assert found.cancel_requested
        with pytest.raises(PerdureError):
            await app.retry(wf)

    asyncio.run(work())


def test_only_so_many_members_of_a_flow_run_at_once(app: Perdure, url: str) -> None:
    """In threads of a worker, which would take ten; the highest number seen side by side is what was asked for."""
    gate = threading.Barrier(3, timeout=30)
    lock = threading.Lock()
    now, most = [0], [0]

    @app.job
    def beside() -> None:
        with lock:
            now[0] += 1
            most[0] = max(most[0], now[0])
        gate.wait()
        with lock:
            now[0] -= 1

    if not url.startswith("sqlite"):
        app.store.upgrade()
    flow = app.group([beside.new() for _ in range(9)], at_once=3)
    app.worker(concurrency=10).run(until_idle=True)

    assert most == [3]
    assert app.wait(flow, timeout=0).completed == 9
    assert not list(app.limits.list())


@pytest.mark.parametrize("mode", ["sequential", "parallel"])
@pytest.mark.parametrize("on_failure", ["stop", "cancel", "pause"])
def test_after_a_failure_no_member_starts(app: Perdure, url: str, mode: Any, on_failure: Any) -> None:
    """Though the others are due, and the worker that ends the failed one has room for them."""
    started: list[int] = []

    @app.job(retry=1)
    def work(number: int) -> None:
        started.append(number)
        if number == 0:
            raise ValueError("broken")

    if not url.startswith("sqlite"):
        app.store.upgrade()
    app.group([work.new(number) for number in range(5)], mode=mode, on_failure=on_failure)
    app.worker(concurrency=1).run(until_idle=True)

    assert started == [0]
