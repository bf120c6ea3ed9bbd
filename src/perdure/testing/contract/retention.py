"""What is old goes, and nothing else: removing, archiving, log lines, records. Protocol `RetentionOperations`."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from perdure.clock import Micros
from perdure.errors import TransitionRefused
from perdure.ids import FlowId, JobId, NodeId, to_uuid
from perdure.job.flow import Edge
from perdure.job.reports import Completed, Failed
from perdure.job.states import FINAL, LIVE, State
from perdure.store.rows import LAST_ID, Ended, LimitRule, LogLine, NewNode
from perdure.testing.contract.case import each, raises
from perdure.testing.contract.rig import BROKEN, HOPELESS, Dump, Rig
from perdure.testing.contract.states import in_state

Go = Callable[[Rig, list[Ended]], list[JobId]]


def _remove(rig: Rig, old: list[Ended]) -> list[JobId]:
    return rig.store.remove(old)


def _archive(rig: Rig, old: list[Ended]) -> list[JobId]:
    return rig.store.archive(old, rig.now)


def _write_and_remove(rig: Rig, old: list[Ended]) -> list[JobId]:
    return rig.store.remove(old, {one.job_id: one.document for one in rig.store.documents(old, rig.now)})


WAYS: dict[str, Go] = {"removed": _remove, "archived": _archive, "written and removed": _write_and_remove}
"""The ways in which a job can go."""


def _ends(rig: Rig) -> list[Ended]:
    return rig.store.ended(None, LAST_ID, 1_000)


def _end(rig: Rig, job_id: JobId) -> Ended:
    return next(end for end in reversed(_ends(rig)) if end.job_id == job_id)


def _rich(rig: Rig) -> JobId:
    """A completed job with everything that a job can have: two runs, a log line, tags and keys."""
    key = rig.key("rich")
    job_id = rig.enqueue(
        idempotency_key=key, business_key=key, tags=("b", "a"), secrets='{"pin":"geheim"}', params="{}"
    )
    rig.finish(rig.claim_one(), Failed(BROKEN))
    claim = rig.claim_one()
    rig.store.append_log([LogLine(claim.run_id, 1, job_id, rig.now, "INFO", "half way", '{"n":1}')])
    rig.store.append_artifacts(claim.run_id, ["report.pdf"])
    rig.finish(claim, Completed('{"answer":42}'))
    return job_id


# -- finding ---------------------------------------------------------------------------------------------------------


@each(*sorted(FINAL))
def test_the_ends_of_jobs_are_listed_by_age(rig: Rig, state: State) -> None:
    first, second = in_state(rig, state), in_state(rig, state)

    ends = _ends(rig)

    assert [(end.job_id, end.life, end.state, end.kind, end.live) for end in ends] == [
        (first, 1, state, rig.kind, None),
        (second, 1, state, rig.kind, None),
    ]
    assert ends[0].finished_at == rig.now


@each(*sorted(LIVE))
def test_a_job_that_lives_has_no_end(rig: Rig, state: State) -> None:
    job_id = in_state(rig, state)

    assert job_id not in [end.job_id for end in _ends(rig)]


def test_a_job_has_an_end_for_each_life_and_says_that_it_lives(rig: Rig) -> None:
    job_id = in_state(rig, State.FAILED)
    rig.store.retry(job_id, rig.now)

    assert [(end.life, end.live) for end in _ends(rig)] == [(1, "queued")]

    rig.finish(rig.claim_one(), Completed())

    assert [(end.life, end.state, end.live) for end in _ends(rig)] == [(1, "failed", None), (2, "completed", None)]


def test_pages_of_ends_follow_each_other(rig: Rig) -> None:
    for _ in range(3):
        rig.store.retry(in_state(rig, State.CANCELLED), rig.now)
        rig.finish(rig.claim_one(), Completed())
    whole = _ends(rig)
    paged: list[Ended] = []
    while len(page := rig.store.ended(paged[-1] if paged else None, LAST_ID, 2)) == 2:
        paged += page

    assert len(whole) == 6
    assert [*paged, *page] == whole


def test_only_ends_of_jobs_created_before_are_listed(rig: Rig) -> None:
    old, new = in_state(rig, State.CANCELLED), in_state(rig, State.CANCELLED)

    assert [end.job_id for end in rig.store.ended(None, new, 10)] == [old]


# -- removing and archiving ------------------------------------------------------------------------------------------


@each(*WAYS)
def test_a_job_goes_with_all_that_belongs_to_it(rig: Rig, way: str) -> None:
    empty = rig.everything()
    job_id = _rich(rig)

    assert WAYS[way](rig, [_end(rig, job_id)]) == [job_id]

    left = rig.everything()
    assert rig.store.get(job_id) is None
    assert _without(left, "idempotency_key", "archive", "queue", "node") == _without(
        empty, "idempotency_key", "archive", "queue", "node"
    )


def _without(dump: Dump, *tables: str) -> Dump:
    return {name: rows for name, rows in dump.items() if name not in (*tables, "queues", "nodes")}


@each(*WAYS)
def test_a_slot_goes_with_its_job(rig: Rig, way: str) -> None:
    schedule = to_uuid(rig.ids.new()).hex
    gone, stays = in_state(rig, State.CANCELLED), in_state(rig, State.CANCELLED)
    for instant, job_id in enumerate((gone, stays)):
        _insert(rig, "slot", schedule_id=schedule, scheduled_for=instant, job_id=job_id.hex(), created_at=1)

    WAYS[way](rig, [_end(rig, gone)])

    assert rig.execute("SELECT scheduled_for FROM {slot}") == [(1,)]


@each(*WAYS)
def test_what_a_cancelled_job_waited_for_is_forgotten_with_it(rig: Rig, way: str) -> None:
    blocked = in_state(rig, State.BLOCKED)
    rig.cancel(blocked)

    assert WAYS[way](rig, [_end(rig, blocked)]) == [blocked]
    assert rig.execute("SELECT COUNT(*) FROM {edge}") == [(0,)]


@each(*WAYS)
def test_its_idempotency_key_stays_taken(rig: Rig, way: str) -> None:
    job_id = _rich(rig)
    WAYS[way](rig, [_end(rig, job_id)])

    [again] = rig.store.enqueue([rig.new(idempotency_key=rig.key("rich"))])

    assert again.deduplicated
    assert (again.row.id, again.state) == (job_id, State.COMPLETED)


@each(*WAYS)
def test_a_job_that_lives_again_stays(rig: Rig, way: str) -> None:
    job_id = in_state(rig, State.FAILED)
    end = _end(rig, job_id)
    rig.store.retry(job_id, rig.now)
    before = rig.everything()

    assert WAYS[way](rig, [end]) == []
    assert rig.everything() == before


@each(*WAYS)
def test_a_job_that_ended_once_more_stays(rig: Rig, way: str) -> None:
    job_id = in_state(rig, State.FAILED)
    end = _end(rig, job_id)
    rig.store.retry(job_id, rig.now)
    rig.finish(rig.claim_one(), Completed())
    before = rig.everything()

    assert WAYS[way](rig, [end]) == []
    assert rig.everything() == before


@each(*WAYS)
def test_a_repeat_changes_nothing(rig: Rig, way: str) -> None:
    end = _end(rig, _rich(rig))
    assert WAYS[way](rig, [end])
    before = rig.everything()

    assert WAYS[way](rig, [end]) == []
    assert rig.everything() == before


@each(*((way, state) for way in WAYS for state in sorted(LIVE)))
def test_what_lives_is_not_touched(rig: Rig, way: str, state: State) -> None:
    live = in_state(rig, state)
    old = rig.cancel(rig.enqueue(queue=rig.key("other"))).row.id
    before = rig.job(live), rig.runs(live)
    pretended = Ended(live, 1, "completed", Micros(0), None, rig.kind)

    assert WAYS[way](rig, [*_ends(rig), pretended]) == [old]
    assert (rig.job(live), rig.runs(live)) == before


@each(*WAYS)
def test_more_jobs_than_one_statement_names_go_together(rig: Rig, way: str) -> None:
    ids = rig.enqueue_many(117)
    for job_id in ids:
        rig.cancel(job_id)

    assert sorted(WAYS[way](rig, _ends(rig))) == sorted(ids)
    assert _ends(rig) == []


@each(*WAYS)
def test_nothing_happens_for_no_jobs(rig: Rig, way: str) -> None:
    before = rig.everything()

    assert WAYS[way](rig, []) == []
    assert rig.everything() == before


@each(*WAYS)
def test_a_job_of_a_chain_goes_and_its_successor_stays(rig: Rig, way: str) -> None:
    first = rig.start(as_new_job=True)
    rig.finish(first, Failed(BROKEN))
    successor = rig.job(first.job_id).row.successor
    assert successor is not None

    assert WAYS[way](rig, [_end(rig, first.job_id)]) == [first.job_id]
    assert rig.job(successor).state == State.QUEUED


@each(*WAYS)
def test_a_job_that_someone_holds_is_passed_over(rig: Rig, way: str) -> None:
    """With a single writer there is nobody else."""
    if rig.store.single_writer:
        return
    held, free = in_state(rig, State.FAILED), in_state(rig, State.FAILED)
    ends = _ends(rig)
    with rig.store.transaction() as tx:
        rig.store.within(tx).retry(held, rig.now)
        gone = _elsewhere(WAYS[way], rig, ends)

    assert gone == [free]
    assert rig.job(held).state == State.QUEUED


def _elsewhere(go: Go, rig: Rig, ends: list[Ended]) -> list[JobId]:
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(go, rig, ends).result()


# -- the archive -----------------------------------------------------------------------------------------------------


def test_an_archived_job_is_kept_whole_and_without_its_secrets(rig: Rig) -> None:
    job_id = _rich(rig)
    job, runs = rig.job(job_id), rig.runs(job_id)
    rig.store.archive([_end(rig, job_id)], Micros(rig.now + 5))

    kept = rig.store.archived(job_id)

    assert kept is not None
    assert kept[:8] == (job_id, rig.kind, "contract", rig.queue, "completed", rig.now, rig.now, rig.now + 5)
    document: dict[str, Any] = json.loads(kept.document)
    assert "geheim" not in kept.document
    assert document["job"]["id"] == str(job.id)
    assert document["job"]["payload"] == {"n": 1}
    assert document["job"]["result"] == {"answer": 42}
    assert document["job"]["tags"] == ["a", "b"]
    assert [run["id"] for run in document["runs"]] == [str(run.id) for run in reversed(runs)]
    assert [run["state"] for run in document["runs"]] == ["failed", "completed"]
    assert document["runs"][1]["artifacts"] == ["report.pdf"]
    assert [end["state"] for end in document["outcomes"]] == ["completed"]
    assert [(line["message"], line["fields"]) for line in document["logs"]] == [("half way", {"n": 1})]


def test_a_job_is_not_in_the_archive_before_it_is_moved(rig: Rig) -> None:
    job_id = _rich(rig)

    assert rig.store.archived(job_id) is None
    assert rig.store.archived_jobs(LAST_ID, 10) == []


def test_the_archive_is_listed_newest_first_in_pages(rig: Rig) -> None:
    ids = [in_state(rig, State.CANCELLED) for _ in range(3)]
    rig.store.archive(_ends(rig), rig.now)

    first = rig.store.archived_jobs(LAST_ID, 2)
    rest = rig.store.archived_jobs(first[-1].job_id, 2)

    assert [one.job_id for one in (*first, *rest)] == ids[::-1]


def test_a_job_that_is_in_the_archive_already_replaces_it_there(rig: Rig) -> None:
    """As after a backup was restored."""
    new = rig.new()
    for _ in range(2):
        rig.store.enqueue([new])
        rig.cancel(new.id)
        rig.clock.advance(seconds=1)
        assert rig.store.archive([_end(rig, new.id)], rig.now) == [new.id]

    [kept] = rig.store.archived_jobs(LAST_ID, 10)
    assert kept.archived_at == rig.now


def test_a_document_says_what_is_archived(rig: Rig) -> None:
    job_id = _rich(rig)
    [written] = rig.store.documents([_end(rig, job_id)], rig.now)
    rig.store.archive([_end(rig, job_id)], rig.now)

    assert rig.store.archived(job_id) == written


def test_a_job_that_changed_after_it_was_written_stays(rig: Rig) -> None:
    job_id = _rich(rig)
    end = _end(rig, job_id)
    written = {one.job_id: one.document for one in rig.store.documents([end], rig.now)}
    rig.store.append_artifacts(rig.runs(job_id)[0].row.id, ["late.pdf"])

    assert rig.store.remove([end], written) == []
    assert rig.store.remove([end], {}) == []
    assert rig.job(job_id).state == State.COMPLETED


@each('{"a":1e400}', '{"half":"\\ud800"}', '"\\u0000"', "[" * 500 + "]" * 500)
def test_any_result_can_be_archived(rig: Rig, result: str) -> None:
    claim = rig.start()
    rig.finish(claim, Completed(result))
    rig.store.archive([_end(rig, claim.job_id)], rig.now)

    kept = rig.store.archived(claim.job_id)

    assert kept is not None
    assert "result" in json.loads(kept.document)["job"]


# -- log lines and records -------------------------------------------------------------------------------------------


def test_old_log_lines_go_and_new_ones_stay(rig: Rig) -> None:
    claim = rig.start()
    lines = [
        LogLine(claim.run_id, number, claim.job_id, Micros(rig.now + number), "INFO", "line") for number in range(6)
    ]
    rig.store.append_log(lines)

    assert rig.store.remove_logs(Micros(rig.now + 4), 3) == 3
    assert rig.store.remove_logs(Micros(rig.now + 4), 3) == 1
    assert rig.store.remove_logs(Micros(rig.now + 4), 3) == 0
    assert rig.store.log(claim.job_id, None, 10) == lines[4:]


def test_lines_of_several_runs_go_together(rig: Rig) -> None:
    rig.enqueue_many(3)
    claims = rig.claim(3)
    rig.store.append_log(
        [LogLine(claim.run_id, number, claim.job_id, rig.now, "INFO", "x") for claim in claims for number in (1, 2)]
    )

    assert rig.store.remove_logs(Micros(rig.now + 1), 5) == 5
    assert [len(rig.store.log(claim.job_id, None, 10)) for claim in claims] == [0, 0, 1]


def test_keys_of_limits_go_when_nothing_uses_them(rig: Rig) -> None:
    names = {name: rig.key(name) for name in ("used", "in line", "set", "spent", "unused")}
    rules = [LimitRule(name, "at_once", 1) for name in names.values()]
    rules[3] = LimitRule(names["spent"], "bucket", 1, 1_000_000)
    rig.store.declare_limits(rules, [rig.kind], rig.now)
    for name in ("used", "in line", "in line", "spent", "unused"):
        rig.enqueue(limit_key=f"{names[name]}*1")
    running = {claim.live.limit_key: claim for claim in rig.claim(10)}
    for name in ("in line", "spent", "unused"):  # without a look: the line of the first stays as it is
        rig.finish(running[f"{names[name]}*1"], Completed())
    rig.store.set_limit(names["set"], 3, names["set"], rig.now)

    assert rig.store.remove_records(rig.now, 10)["limit keys"] <= 1
    assert _keys(rig) >= {names["set"], names["spent"]}
    assert names["unused"] not in _keys(rig)

    rig.settle()
    rig.clock.advance(seconds=10)
    rig.store.remove_records(rig.now, 10)
    assert names["spent"] not in _keys(rig)
    assert names["set"] in _keys(rig)
    assert len(rig.claim(10)) == 1


def _keys(rig: Rig) -> set[str]:
    return {str(key) for (key,) in rig.execute("SELECT key FROM {limit_key}")}


def test_expired_locks_go_and_held_ones_stay(rig: Rig) -> None:
    for name, ttl in (("old", 1_000), ("older", 500), ("held", 10_000_000)):
        assert rig.store.take_lock(rig.key(name), "me", rig.now, ttl)
    rig.clock.advance(seconds=1)

    assert rig.store.remove_records(rig.now, 1)["locks"] == 1
    assert rig.store.remove_records(rig.now, 10)["locks"] == 1
    assert rig.store.remove_records(rig.now, 10)["locks"] == 0
    assert rig.store.lock_holder(rig.key("held"), rig.now) == "me"


def _node(rig: Rig) -> NodeId:
    """A node of now by its id, too: the ids of the rig are older than its clock."""
    node_id = NodeId((rig.now // 1_000).to_bytes(6, "big") + rig.ids.new()[6:])
    rig.store.register(NewNode(node_id, rig.now))
    return node_id


def _nodes(rig: Rig) -> set[NodeId]:
    return {node.id for node in rig.store.nodes(100)}


def test_a_node_that_stopped_long_ago_goes(rig: Rig) -> None:
    gone, living, recent = _node(rig), _node(rig), _node(rig)
    rig.store.stop(gone, "signal", rig.now)
    rig.clock.advance(days=1)
    rig.store.stop(recent, "signal", rig.now)

    assert rig.store.remove_nodes(None, rig.now, 10).items == [gone]
    assert _nodes(rig) == {living, recent}


@each(Completed(), None)
def test_a_node_that_a_run_names_stays(rig: Rig, report: Completed | None) -> None:
    rig.clock.step(seconds=_real_time(rig))
    node = _node(rig)
    rig.enqueue()
    claim = rig.claim_one(node=node)
    if report is not None:
        rig.finish(claim, report)
    rig.store.stop(node, "signal", rig.now)

    assert rig.store.remove_nodes(None, Micros(rig.now + 1), 10).items == []
    assert node in _nodes(rig)
    if report is None:
        rig.rescue(node)


def _real_time(rig: Rig) -> float:
    """What is missing from the clock of the rig to that of its ids."""
    return int.from_bytes(rig.ids.new()[:6], "big") / 1_000 - rig.now / 1_000_000


def test_nodes_go_page_by_page(rig: Rig) -> None:
    nodes = [_node(rig) for _ in range(5)]
    for node in nodes:
        rig.store.stop(node, "signal", rig.now)
    gone: list[NodeId] = []
    page = rig.store.remove_nodes(None, Micros(rig.now + 1), 2)
    gone += page.items
    while page.next is not None:
        page = rig.store.remove_nodes(NodeId(page.next.id), Micros(rig.now + 1), 2)
        gone += page.items

    assert sorted(gone) == sorted(nodes)


def test_what_is_left_of_other_things_goes_when_it_is_closed_and_old(rig: Rig) -> None:
    schedule, other, closed = (to_uuid(rig.ids.new()).hex for _ in range(3))
    _insert(rig, "schedule", id=schedule, source="builtin", **_SCHEDULE)
    _insert(rig, "schedule", id=other, source="code", **_SCHEDULE | {"name": "other"})
    for instant in (10, 20, 30):
        _insert(rig, "slot", schedule_id=schedule, scheduled_for=instant, created_at=instant)
        _insert(rig, "slot", schedule_id=other, scheduled_for=instant, created_at=instant)
        _insert(rig, "missed", schedule_id=other, first_at=1, last_at=2, reason="outage", recorded_at=instant)
    _insert(rig, "reservation", id=closed, queue=rig.queue, status="released", **_RESERVATION)
    rig.reserve()

    assert rig.store.remove_records(Micros(25), 1) == {
        "slots": 1,
        "missed": 1,
        "reservations": 1,
        "locks": 0,
        "limit keys": 0,
    }
    assert rig.store.remove_records(Micros(25), 9) == {
        "slots": 1,
        "missed": 1,
        "reservations": 0,
        "locks": 0,
        "limit keys": 0,
    }
    assert rig.execute("SELECT COUNT(*) FROM {slot}") == [(4,)]
    assert rig.execute("SELECT recorded_at FROM {missed}") == [(30,)]
    assert rig.execute("SELECT status FROM {reservation}") == [("active",)]


_SCHEDULE: dict[str, str | int] = {
    "name": "one", "owner": "contract", "kind": "k", "kind_version": 1, "payload": "{}", "plan": "{}", "tz": "UTC",
    "policy": "{}", "enabled": 1, "created_at": 1, "updated_at": 1, "version": 1,
}  # fmt: skip
_RESERVATION: dict[str, str | int] = {
    "reserved_by": "me", "reserved_at": 1, "lasts_us": 1, "expires_at": 2, "expires_boot": 2, "closed_at": 2,
}  # fmt: skip


def _insert(rig: Rig, table: str, **values: str | int) -> None:
    """A row of a table that has no operations in this protocol. Ids are given as hexadecimal digits."""
    written = {
        name: rig.id_of(str(value)) if name in ("id", "schedule_id", "job_id") else f":{name}"
        for name, value in values.items()
    }
    rig.execute(f"INSERT INTO {{{table}}} ({', '.join(written)}) VALUES ({', '.join(written.values())})", **values)  # noqa: S608


def test_a_small_database_has_no_space_to_give_back(rig: Rig) -> None:
    rig.store.remove([_end(rig, _rich(rig))])
    before = rig.everything()

    assert not rig.store.give_back()
    assert rig.everything() == before


# -- flows -----------------------------------------------------------------------------------------------------------


def _ended_flow(rig: Rig) -> tuple[FlowId, list[JobId]]:
    """A flow of two members and a callback, and one inside it, all ended."""
    outer = rig.new_flow()
    inner = rig.new_flow(parent_id=outer.id)
    jobs = [
        *rig.members(outer, 2),
        *rig.members(inner, 2),
        rig.new(flow_id=outer.id, after=(Edge(outer.id, "end"),)),
    ]
    rig.store.start_flows([outer, inner], jobs)
    while claims := rig.claim(10):
        rig.store.finish([rig.report(claim, Completed()) for claim in claims], rig.now)
    return outer.id, [job.id for job in jobs]


def test_a_job_of_a_flow_does_not_go_alone(rig: Rig) -> None:
    _, jobs = _ended_flow(rig)
    alone = [Ended(job_id, 1, "completed", rig.now, None, rig.kind) for job_id in jobs]
    before = rig.everything()

    assert rig.store.remove(alone) == []
    assert rig.store.archive(alone, rig.now) == []
    for job_id in jobs:
        with raises(TransitionRefused, "delete_refused"):
            rig.store.delete(job_id)

    assert rig.everything() == before


@each("remove", "archive")
def test_a_flow_goes_whole(rig: Rig, how: str) -> None:
    flow_id, jobs = _ended_flow(rig)
    rig.clock.advance(seconds=1)
    [old] = rig.store.old_flows(None, rig.now, 10)
    assert (old.id, old.state) == (flow_id, "completed")

    for one in (*(inner.id for inner in rig.store.inner_flows(flow_id)), flow_id):
        assert not rig.store.remove_flow(one)
        while some := rig.store.flow_ends(one, 2):
            assert rig.store.remove(some) if how == "remove" else rig.store.archive(some, rig.now)
        assert rig.store.remove_flow(one)

    assert [rig.store.get(job_id) for job_id in jobs] == [None] * len(jobs)
    assert (rig.store.flow(flow_id), rig.store.old_flows(None, rig.now, 10)) == (None, [])
    assert (rig.store.archived(jobs[0]) is not None) == (how == "archive")
    assert rig.tables()["edge"] == []


def test_jobs_of_a_flow_that_lives_again_stay(rig: Rig) -> None:
    flow_id, _ = rig.start_flow(2)
    rig.finish(rig.claim_one(), Failed(HOPELESS))
    rig.finish(rig.claim_one(), Completed())
    ends = rig.store.flow_ends(flow_id, 10)
    rig.store.retry_flow(flow_id, rig.now)

    assert rig.store.remove(ends) == []
    assert not rig.store.remove_flow(flow_id)


def test_a_flow_is_not_old_before_those_who_waited_for_it_have_ended(rig: Rig) -> None:
    flow = rig.new_flow()
    callback = rig.new(flow_id=flow.id, after=(Edge(flow.id),), max_attempts=1)
    rig.store.start_flows([flow], [*rig.members(flow, 1), callback])
    rig.finish(rig.claim_one(), Completed())
    rig.clock.advance(seconds=1)
    assert rig.store.old_flows(None, rig.now, 10) == []

    rig.finish(rig.claim_one(), Failed(HOPELESS))

    assert [old.state for old in rig.store.old_flows(None, rig.now, 10)] == ["failed"]
