"""Workflows: graphs of jobs, results passed by reference, conditions, flows inside flows, callbacks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest

from perdure import (
    FlowNotFound,
    FlowState,
    InvalidInput,
    KeyConflict,
    Outcome,
    Perdure,
    PerdureError,
    Planned,
    each,
    previous,
)
from perdure.clock import Micros, to_datetime
from perdure.flow.views import Flow
from perdure.testing import Kit
from tests.flow.kinds import Kinds


def states(app: Perdure, flow: Any) -> dict[str, int]:
    """How the jobs of a flow ended, by kind and state."""
    return dict(Counter(f"{job.kind} {job.state}" for job in app.flows.jobs(flow)))


def test_a_graph_runs_in_its_order(t: Kit, k: Kinds) -> None:
    with t.app.workflow("nightly") as wf:
        a = wf.add(k.note.new("a"))
        b, c = wf.add(k.note.new("b"), after=a), wf.add(k.note.new("c"), after=a)
        wf.add(k.note.new("d"), after=[b, c])
    assert wf.flow.state is FlowState.RUNNING
    t.drain()
    assert k.done[0] == "a"
    assert k.done[3] == "d"
    flow = t.app.wait(wf)
    assert (flow.state, flow.total, flow.completed, flow.progress) == ("completed", 4, 4, 1.0)


def test_nothing_exists_before_the_end_of_the_block_and_all_of_it_after(t: Kit, k: Kinds) -> None:
    with t.app.workflow("nightly") as wf:
        wf.add(k.note.new("a"))
        assert list(t.app.jobs()) == []
        assert t.app.flows.get(wf) is None
    assert len(list(t.app.jobs())) == 1
    assert t.app.flows.get(wf) == wf.flow


def test_a_block_that_fails_writes_nothing(t: Kit, k: Kinds) -> None:
    with pytest.raises(ZeroDivisionError), t.app.workflow("nightly") as wf:
        wf.add(k.note.new("a"))
        raise ZeroDivisionError
    assert list(t.app.jobs()) == []
    assert list(t.app.flows.list()) == []


def test_a_member_that_is_refused_leaves_nothing_behind(t: Kit, k: Kinds) -> None:
    with pytest.raises(PerdureError), t.app.workflow("nightly") as wf:
        wf.add(k.note.new("a"))
        wf.add(k.number.new(n="no number"))
    assert list(t.app.jobs()) == []


def test_it_is_part_of_the_users_transaction(t: Kit, k: Kinds) -> None:
    with pytest.raises(ZeroDivisionError), t.app.transaction() as tx:
        with t.app.workflow("nightly", tx=tx) as wf:
            wf.add(k.note.new("a"))
        raise ZeroDivisionError
    assert list(t.app.flows.list()) == []
    with t.app.transaction() as tx, t.app.workflow("nightly", tx=tx) as wf:
        wf.add(k.note.new("a"))
    assert [flow.id for flow in t.app.flows.list()] == [wf.id]


# -- results ---------------------------------------------------------------------------------------------------------


def test_a_result_as_an_argument_makes_an_edge_and_is_read_when_the_job_starts(t: Kit, k: Kinds) -> None:
    with t.app.workflow("w") as wf:
        a = wf.add(k.number.new(4))
        b = wf.add(k.double.new(a.result))
        c = wf.add(k.double.new(n=b.result))
    assert t.app.existing(b).payload == {}
    t.drain()
    assert [t.app.existing(job).result for job in (a, b, c)] == [4, 8, 16]
    assert t.app.existing(c).payload == {}, "results are never copied into payloads"


def test_a_result_that_does_not_fit_fails_the_job_when_it_runs(t: Kit, k: Kinds) -> None:
    with t.app.workflow("w") as wf:
        a = wf.add(k.note.new("no number"))
        b = wf.add(k.double.new(a.result))
    t.drain()
    failed = t.app.existing(b)
    assert (failed.state, failed.error_type) == ("failed", "InvalidPayload")


def test_a_part_of_a_result_and_several_results_in_one_list(t: Kit, k: Kinds) -> None:
    @t.app.job
    def make() -> dict[str, Any]:
        return {"rows": [{"id": 3}, {"id": 4}]}

    @t.app.job
    def total(numbers: list[int], by: dict[str, int]) -> int:
        return sum(numbers) * by["factor"]

    with t.app.workflow("w") as wf:
        made, two = wf.add(make.new()), wf.add(k.number.new(2))
        summed = wf.add(
            total.new([made.result["rows"][0]["id"], made.result["rows"][-1]["id"], 5], {"factor": two.result})
        )
    t.drain()
    assert t.app.existing(summed).result == 24


def test_a_part_that_is_not_there_fails_the_job_and_says_so(t: Kit, k: Kinds) -> None:
    @t.app.job
    def make() -> dict[str, int]:
        return {}

    with t.app.workflow("w") as wf:
        made = wf.add(make.new())
        job = wf.add(k.double.new(made.result["n"]))
    t.drain()
    failed = t.app.existing(job)
    assert failed.state == "failed"
    assert "make.result['n'] is not there" in str(failed.error)


def test_how_a_job_ended_can_be_an_argument(t: Kit, k: Kinds) -> None:
    @t.app.job
    def look(how: Outcome) -> str:
        return f"{how.state}: {how.error_type} {how.error}"

    with t.app.workflow("w") as wf:
        job = wf.add(k.fail.new())
        looked = wf.add(look.new(job.outcome))
    t.drain()
    assert t.app.existing(looked).result == "failed: ValueError broken"


def test_the_rest_of_the_arguments_is_checked_at_once(t: Kit) -> None:
    @t.app.job
    def two(a: int, b: int) -> None: ...

    with pytest.raises(PerdureError, match="'b'"), t.app.workflow("w") as wf:
        first = wf.add(two.new(1, 2))
        wf.add(two.new(a=first.result, b="x"))  # type: ignore[arg-type]
    with pytest.raises(PerdureError, match="'b'"), t.app.workflow("w") as wf:
        first = wf.add(two.new(1, 2))
        wf.add(t.app.draft("two", {"a": first.result}, {}))


def test_more_than_a_thousand_results_are_no_argument(t: Kit, k: Kinds) -> None:
    @t.app.job
    def total(numbers: list[int]) -> None: ...

    with pytest.raises(PerdureError, match=r"ctx\.results"), t.app.workflow("w") as wf:
        one = wf.add(k.number.new(1))
        wf.add(total.new([one.result] * 1_001))


# -- conditions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "ends"), [(5, "skipped"), (15, "completed")])
def test_a_job_runs_when_its_condition_holds(t: Kit, k: Kinds, n: int, ends: str) -> None:
    with t.app.workflow("w") as wf:
        size = wf.add(k.number.new(n))
        job = wf.add(k.note.new("big"), when=size.result > 10)
        after = wf.add(k.note.new("after"), after=job)
    t.drain()
    assert t.app.existing(job).state == t.app.existing(after).state == ends
    assert t.app.wait(wf).state == "completed", "a skipped member counts as done"
    if ends == "skipped":
        assert t.app.existing(job).error == "its condition does not hold: number.result > 10, but it is 5"


@pytest.mark.parametrize(("n", "chosen"), [(200, "big"), (50, "mid"), (5, "small")])
def test_of_several_choices_one_runs(t: Kit, k: Kinds, n: int, chosen: str) -> None:
    with t.app.workflow("w") as wf:
        size = wf.add(k.number.new(n))
        made = wf.choose(
            (size.result > 100, k.note.new("big")), (size.result > 10, k.note.new("mid")), otherwise=k.note.new("small")
        )
    assert len(made) == 3
    t.drain()
    assert k.done == [chosen]
    assert t.app.wait(wf).skipped == 2


def test_a_condition_on_the_counts_of_a_flow(t: Kit, k: Kinds) -> None:
    with t.app.workflow("w") as wf:
        parts = wf.group([k.number.new(1), k.number.new(2), k.fail.new()])
        wf.add(k.note.new("most"), after=parts, on="end", when=parts.summary.success_rate > 0.5)
        wf.add(k.note.new("all"), after=parts, on="end", when=parts.summary.failed == 0)
    t.drain()
    assert k.done == ["most"]


# -- flows inside ----------------------------------------------------------------------------------------------------


def test_a_flow_inside_a_flow_does_not_change_the_outer_count(t: Kit, k: Kinds) -> None:
    with t.app.workflow("outer") as wf:
        wf.add(k.note.new("a"))
        parts = wf.map(k.double.new(each), over=range(5))
        wf.add(k.note.new("b"), after=parts)
    assert wf.flow.total == 3
    t.drain()
    assert t.app.wait(wf).completed == 3
    inner = t.app.flows.get(parts)
    assert inner is not None
    assert (inner.total, inner.completed, inner.parent_id) == (5, 5, wf.id)


def test_map_makes_one_job_for_each_value_and_a_join_reads_their_results_in_order(t: Kit, k: Kinds) -> None:
    with t.app.workflow("w") as wf:
        parts = wf.map(k.double.new(n=each["n"]), over=({"n": n} for n in range(20)), name="parts")
        by_name = wf.add(k.join.new("parts"), after=parts)
        by_id = wf.add(k.join.new(str(parts.id)), after=parts)
    t.drain()
    assert t.app.existing(by_name).result == t.app.existing(by_id).result == [2 * n for n in range(20)]


def test_a_long_map_is_read_lazily_and_complete(t: Kit, k: Kinds) -> None:
    with t.app.workflow("w") as wf:
        parts = wf.map(k.number.new(each), over=range(2_345))
        wf.add(k.note.new("joined"), after=parts)
    inner = t.app.flows.get(parts)
    assert inner is not None
    assert (inner.total, inner.is_open) == (2_345, False)
    assert sum(1 for _ in t.app.flows.jobs(parts)) == 2_345


def test_a_long_map_whose_values_run_out_badly_cancels_the_workflow(t: Kit, k: Kinds) -> None:
    def values() -> Iterator[int]:
        yield from range(1_500)
        raise ZeroDivisionError

    wf = t.app.workflow("w")
    with pytest.raises(ZeroDivisionError), wf:
        wf.map(k.number.new(each), over=values())
    for _ in range(3):
        t.drain(limit=5_000)
    flow = t.app.flows.get(wf)
    assert flow is not None
    assert flow.state == "cancelled"


def test_a_batch_that_a_job_fills_is_sealed_by_its_end(t: Kit, k: Kinds) -> None:
    with t.app.workflow("w") as wf:
        found = wf.add(k.fill.new(7))
        more = wf.batch("more", filled_by=found)
        joined = wf.add(k.join.new("more"), after=more)
    inner = t.app.flows.get(more)
    assert inner is not None
    assert inner.is_open
    t.drain()
    assert t.app.existing(joined).result == [2 * n for n in range(7)]


def test_a_batch_whose_filler_fails_has_failed(t: Kit, k: Kinds) -> None:
    with t.app.workflow("w") as wf:
        found = wf.add(k.fail.new())
        more = wf.batch("more", filled_by=found)
        wf.add(k.note.new("joined"), after=more)
        wf.add(k.note.new("tidied"), after=more, on="end")
    t.drain()
    assert k.done == ["tidied"]
    assert t.app.wait(wf).state == "failed"


def test_chains_and_groups_can_be_inside(t: Kit, k: Kinds) -> None:
    with t.app.workflow("w") as wf:
        steps = wf.chain(k.number.new(3), k.double.new(previous), k.double.new(previous))
        parts = wf.group([k.note.new("x"), k.note.new("y")], mode="sequential")
        joined = wf.add(k.join.new(str(steps.id)), after=[steps, parts])
    t.drain()
    assert t.app.existing(joined).result == [3, 6, 12]
    assert k.done == ["x", "y"]


# -- callbacks -------------------------------------------------------------------------------------------------------


def test_a_callback_is_a_job_that_waits_for_the_flow(t: Kit, k: Kinds) -> None:
    with t.app.workflow("w") as wf:
        wf.add(k.note.new("a"))
        wf.add(k.note.new("good"), after=wf)
        wf.add(k.note.new("bad"), after=wf, on="failure")
        wf.add(k.note.new("always"), after=wf, on="end")
    assert wf.flow.total == 1, "the flow does not wait for its callbacks"
    t.drain()
    assert sorted(k.done) == ["a", "always", "good"]


def test_on_failure_runs_once_per_flow_also_with_nested_flows_in_it(t: Kit, k: Kinds) -> None:
    with t.app.workflow("w") as wf:
        inner = wf.group([k.fail.new(), k.fail.new()])
        wf.group([k.fail.new(), k.note.new("x")])
        wf.add(k.fail.new())
        wf.add(k.note.new("inner failed"), after=inner, on="failure")
        wf.add(k.note.new("failed"), after=wf, on="failure")
    t.drain()
    assert sorted(k.done) == ["failed", "inner failed", "x"]


def test_callbacks_of_an_inner_flow_are_members_of_the_outer_one(t: Kit, k: Kinds) -> None:
    with t.app.workflow("w") as wf:
        inner = wf.group([k.note.new("member")])
        late = inner.add(k.note.options(delay=60).new("inner callback"), after=inner)
        wf.add(k.note.new("outer callback"), after=wf)
    assert t.app.existing(late).flow_id == wf.id
    t.drain()
    assert k.done == ["member"]
    t.advance(seconds=60)
    t.drain()
    assert k.done == ["member", "inner callback", "outer callback"]


def test_a_callback_reads_the_results_of_its_flow(t: Kit, k: Kinds) -> None:
    with t.app.workflow("w") as wf:
        for n in range(5):
            wf.add(k.double.new(n))
        joined = wf.add(k.join.new(), after=wf)
    t.drain()
    assert t.app.existing(joined).result == [0, 2, 4, 6, 8]


def test_a_flows_callbacks_take_the_place_of_its_first_member(t: Kit, k: Kinds) -> None:
    with t.app.workflow("w") as wf:
        wf.add(k.note.new("member"))
        wf.add(k.note.new("callback"), after=wf)
    for n in range(5):
        k.note.enqueue(f"other {n}")
    t.drain()
    assert k.done[:3] == ["member", "callback", "other 0"]


def test_what_would_wait_for_itself_is_refused(t: Kit, k: Kinds) -> None:
    with pytest.raises(InvalidInput, match="wait for each other") as caught, t.app.workflow("w") as wf:
        callback = wf.add(k.note.new("callback"), after=wf)
        wf.add(k.note.new("member"), after=callback)
    assert caught.value.code == "flow_cycle"
    assert list(t.app.jobs()) == []


def test_a_member_that_would_wait_for_its_own_flow_by_way_of_another_job_is_refused(t: Kit, k: Kinds) -> None:
    with pytest.raises(InvalidInput, match="wait for each other") as caught, t.app.workflow("w") as wf:
        inner = wf.batch("inner")
        behind = wf.add(k.note.new("behind"), after=inner)
        inner.add(k.note.new("member"), after=behind)
    assert caught.value.code == "flow_cycle"
    assert list(t.app.jobs()) == []


# -- one live workflow per key ---------------------------------------------------------------------------------------


def test_one_live_workflow_has_a_key(t: Kit, k: Kinds) -> None:
    def nightly(**options: Any) -> Any:
        with t.app.workflow("nightly", key="monday", **options) as wf:
            wf.add(k.note.new("a"))
        return wf

    first = nightly()
    with pytest.raises(KeyConflict):
        nightly()
    again = nightly(conflict="return")
    assert again.id == first.id
    assert again.flow.deduplicated
    t.drain()
    assert k.done == ["a"]
    assert nightly().id != first.id, "it has ended, so the key is free"


# -- whole flows -----------------------------------------------------------------------------------------------------


def waiting_flow(t: Kit, k: Kinds) -> Any:
    with t.app.workflow("w") as wf:
        a = wf.add(k.note.options(delay=60).new("a"))
        parts = wf.map(k.number.options(delay=60).new(each), over=range(3))
        wf.add(k.note.new("b"), after=[a, parts])
        wf.add(k.note.new("ended"), after=wf, on="end")
    return wf


def by_itself(t: Kit, wf: Any) -> Any:
    return wf


def by_id(t: Kit, wf: Any) -> Any:
    return wf.id


@pytest.mark.parametrize("named", [by_itself, by_id])
def test_a_whole_flow_can_be_cancelled(t: Kit, k: Kinds, named: Any) -> None:
    wf = waiting_flow(t, k)
    assert t.app.cancel(named(t, wf)).cancel_requested
    t.drain()
    flow = t.app.wait(wf)
    assert flow.state == "cancelled"
    assert k.done == ["ended"]


def test_a_whole_flow_can_be_paused_and_resumed(t: Kit, k: Kinds) -> None:
    wf = waiting_flow(t, k)
    assert t.app.pause(wf).paused_at is not None
    t.advance(seconds=60)
    t.drain()
    assert k.done == []
    assert "paused since" in t.app.explain(wf).why
    assert t.app.resume(wf.id).paused_at is None
    t.drain()
    assert sorted(k.done) == ["a", "b", "ended"]


def test_a_retry_runs_again_what_failed_and_what_was_skipped_because_of_it(t: Kit, k: Kinds) -> None:
    with t.app.workflow("w") as wf:
        a = wf.add(k.note.new("a"))
        b = wf.add(k.fail.new("b"), after=a)
        wf.add(k.note.new("c"), after=b)
    t.drain()
    assert states(t.app, wf) == {"note completed": 1, "fail failed": 1, "note skipped": 1}
    assert "1 member failed" in t.app.explain(wf).why
    k.mended.append("yes")
    assert t.app.retry(wf).state == "running"
    t.drain()
    assert t.app.wait(wf).state == "completed"
    assert k.done == ["a", "b", "c"]


def test_a_retry_is_refused_where_a_callback_already_ran_unless_it_may_run_again(t: Kit, k: Kinds) -> None:
    with t.app.workflow("w") as wf:
        wf.add(k.fail.new("b"))
        wf.add(k.note.new("ended"), after=wf, on="end")
    t.drain()
    k.mended.append("yes")
    with pytest.raises(PerdureError):
        t.app.retry(wf)
    t.app.retry(wf, again=True)
    t.drain()
    assert k.done == ["ended", "b", "ended"]


def test_a_flow_that_is_not_there(t: Kit) -> None:
    nobody = t.app.workflow("never written")
    assert t.app.flows.get(nobody) is None
    for verb in (t.app.cancel, t.app.explain, t.app.flows.seal, t.app.flows.graph):
        with pytest.raises(PerdureError) as caught:
            verb(nobody)
        assert caught.value.code == "flow_not_found"


def test_a_job_of_a_flow_says_so(t: Kit, k: Kinds) -> None:
    with t.app.workflow("w") as wf:
        job = wf.add(k.note.new("a"))
    assert t.app.existing(job).flow_id == wf.id
    assert isinstance(job, Planned)


def test_flows_are_listed_by_state_and_name(t: Kit, k: Kinds) -> None:
    for name in ("x", "y"):
        with t.app.workflow(name) as wf:
            wf.add(k.note.new(name))
            wf.map(k.number.new(each), over=[1])
    t.drain()
    with t.app.workflow("x") as live:
        live.add(k.note.options(delay=60).new("later"))
    assert [flow.name for flow in t.app.flows.list()] == ["x", "y", "x"]
    assert [flow.id for flow in t.app.flows.list(state="running")] == [live.id]
    assert [flow.name for flow in t.app.flows.list(name="y", limit=1)] == ["y"]


def test_when_it_ends_is_said_only_once_that_can_be_known(t: Kit, k: Kinds) -> None:
    row = t.app.group([k.double.new(n) for n in range(20)]).row

    def eta(**changes: Any) -> object:
        return Flow(row._replace(**changes), Micros(row.created_at + 60_000_000)).eta

    assert eta(completed=10, running=1) == to_datetime(Micros(row.created_at + 120_000_000))
    assert eta(completed=9, running=1) is None, "too few have ended"
    assert eta(completed=10, running=0) is None, "none runs: the others may wait until tomorrow"
    assert eta(completed=10, running=1, paused_at=row.created_at) is None
    assert eta(completed=10, running=1, cancel_requested_at=row.created_at) is None
    assert eta(completed=10, running=1, sealed_at=None) is None, "more may come"


def test_jobs_are_listed_by_flow_with_the_other_filters(t: Kit, k: Kinds) -> None:
    k.note.enqueue("outside")
    drafts = [k.note.options(tags=["odd"] if n % 2 else []).new(str(n)) for n in range(450)]
    group = t.app.group([*drafts, k.number.new(7)])
    t.app.cancel(next(t.app.jobs(flow=group, kind="number")))

    def numbers(**filters: Any) -> list[int]:
        return [int((job.payload or {})["text"]) for job in t.app.jobs(flow=group, kind="note", **filters)]

    assert numbers() == list(range(450)), "in their order, over several pages"
    assert numbers(tag="odd") == list(range(1, 450, 2))
    assert numbers(tag="odd", limit=3) == [1, 3, 5]
    assert [job.kind for job in t.app.jobs(flow=group.id, state=["cancelled", "failed"])] == ["number"]
    assert not numbers(queue="other")
    assert not numbers(until=group.created_at - timedelta(days=1))
    assert len(list(t.app.jobs(flow=str(group.id)))) == 451
    with pytest.raises(FlowNotFound):
        t.app.jobs(flow="00000000-0000-7000-8000-000000000000")


def test_the_graph_shows_what_waits_for_what_also_when_it_is_over(t: Kit, k: Kinds) -> None:
    with t.app.workflow("w") as wf:
        a = wf.add(k.note.new("a"))
        b = wf.add(k.note.new("b"), after=(a, "end"))
        parts = wf.map(k.number.new(each), over=[1, 2])
    t.drain()
    graph = t.app.flows.graph(wf)
    assert [edge[:] for edge in graph.edges] == [(a.id, b.id, "end", "met")]
    assert [inner.flow.id for inner in graph.inner] == [parts.id]
    assert {job.id for job in graph.jobs} == {a.id, b.id}


# -- wrong use -------------------------------------------------------------------------------------------------------


def test_it_takes_jobs_inside_its_block_alone_and_has_one_block(t: Kit, k: Kinds) -> None:
    wf = t.app.workflow("nightly")
    with pytest.raises(InvalidInput, match="takes jobs inside its block alone") as refused:
        wf.add(k.note.new("a"))
    assert refused.value.code == "flow_sealed"
    with wf:
        wf.add(k.note.new("a"))
        with pytest.raises(InvalidInput, match="was begun before"):
            wf.__enter__()
    with pytest.raises(InvalidInput, match="was begun before"), wf:
        pass
    assert [(flow.id, flow.total) for flow in t.app.flows.list()] == [(wf.id, 1)]


@pytest.mark.parametrize(
    "compute",
    [
        lambda n: n + 1,
        lambda n: 1 + n,
        lambda n: -n,
        lambda n: n // 2,
        lambda n: n % 2,
        int,
        float,
        round,
        range,
        len,
        str,
        lambda n: f"{n:>3}",
        lambda n: 3 in n,
    ],
)
@pytest.mark.parametrize("result", [previous, each, Planned(bytes(16), "number").result])
def test_nothing_is_computed_with_a_result_that_is_not_known(compute: Any, result: Any) -> None:
    with pytest.raises(InvalidInput, match="is not known yet, so it cannot be") as refused:
        compute(result)
    assert refused.value.code == "reference_invalid"


def test_what_stands_in_the_place_of_a_planned_job_is_named_with_what_was_meant(t: Kit, k: Kinds) -> None:
    def says(text: str) -> Any:
        return pytest.raises(InvalidInput, match=text)

    drafts = [k.note.new("a"), k.note.new("b")]
    with t.app.workflow("nightly") as wf:
        with says(r"write note\.new\(…\)"):
            wf.map(k.note, ["a"])  # type: ignore[arg-type]
        with says(r"write note\.new\(…\)"):
            wf.add(k.note)  # type: ignore[arg-type]
        with says("give the jobs one by one"):
            wf.chain(drafts)  # type: ignore[arg-type]
        with says(r"as one list; write app\.group\(\[note\.new\(…\), note\.new\(…\)\]\)"):
            wf.group(*drafts)  # type: ignore[arg-type]
        with says("nothing to choose from"):
            wf.choose(otherwise=drafts[0])
        with says("after the first job"):
            wf.chain(k.note.new(previous), k.note.new("b"))
        with says("not <Draft of note>"):
            wf.add(drafts[0], after=drafts[1])  # type: ignore[arg-type]
