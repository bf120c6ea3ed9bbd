"""Why a job is where it is: every state, and everything that can keep a queued job from being claimed."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from perdure import Perdure
from perdure.clock import Micros
from perdure.ids import JobId, NodeId, to_uuid
from perdure.job.model import Failure
from perdure.job.reports import Completed, Failed, Skipped, Unreadable
from perdure.job.states import State
from perdure.limit.key import Need, flow_key, key_of, written
from perdure.limit.key import shown as shown_key
from perdure.ops import doctor
from perdure.ops.explain import Explanation, explain
from perdure.ops.workers import has_kind, serves
from perdure.store.rows import LimitRule, NewNode, NodeRow, Process
from perdure.testing.contract.rig import BROKEN, HOPELESS, Rig
from perdure.testing.contract.states import in_state
from perdure.text import short_id
from perdure.worker.liveness import ProcLiveness

ELSEWHERE = Process("web-1", 42)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    rig = Rig(f"sqlite:///{tmp_path}/jobs.db")
    yield rig
    findings = doctor.examine(rig.store, rig.now)
    rig.close()
    assert doctor.is_healthy(findings), findings


def why(rig: Rig, job_id: JobId) -> Explanation:
    return explain(rig.store, rig.job(job_id), rig.now)


def fact(found: Explanation, name: str) -> str:
    [text] = [text for known, text in found.facts if known == name]
    return text


def worker(
    rig: Rig,
    *,
    kinds: dict[str, int] | None = None,
    queues: list[str] | None = None,
    process: Process = ELSEWHERE,
    lease_us: int | None = None,
) -> NodeId:
    node = NodeId(rig.ids.new())
    named = [None if names is None else json.dumps(names) for names in (kinds, queues)]
    rig.store.register(NewNode(node, rig.now, process, kinds=named[0], queues=named[1], lease_us=lease_us))
    return node


def ended_process() -> Process:
    """One of this machine that has ended."""
    with subprocess.Popen(["/bin/true"]) as ended:
        own = ProcLiveness().own()
    return own._replace(pid=ended.pid, process_start="1")


# -- queued ----------------------------------------------------------------------------------------------------------


def test_jobs_ahead_are_counted(rig: Rig) -> None:
    first, second, third = rig.enqueue_many(3)
    worker(rig)

    assert [fact(why(rig, job_id), "jobs ahead") for job_id in (first, second, third)] == ["0", "1", "2"]
    assert fact(why(rig, third), "place in queue") == "3"
    assert why(rig, first).why == f"it is the next of queue {rig.queue!r}, for 1 live worker"
    assert why(rig, second).why == f"1 job of queue {rig.queue!r} goes first"
    assert str(why(rig, third)).startswith(f"queued: 2 jobs of queue {rig.queue!r} go first. A worker")
    assert why(rig, third).remedy is None


def test_a_paused_queue_is_named(rig: Rig) -> None:
    job_id = rig.enqueue(queue="night shift")
    worker(rig)
    rig.store.pause_queue("night shift", rig.now)

    found = why(rig, job_id)
    assert found.why == "queue 'night shift' is paused since 2030-01-01 00:00:00 UTC"
    assert found.remedy == "perdure queues resume 'night shift'"
    assert fact(found, "closed") == found.why


def test_a_pause_of_every_queue_is_named(rig: Rig) -> None:
    job_id = rig.enqueue()
    rig.store.pause_queue("*", rig.now)

    assert why(rig, job_id).why.startswith("every queue is paused since")
    assert why(rig, job_id).remedy == "perdure queues resume '*'"


def test_a_reserved_queue_is_named(rig: Rig) -> None:
    job_id = rig.enqueue()
    worker(rig)
    held = rig.reserve(lasts_s=60)

    found = why(rig, job_id)
    since = "since 2030-01-01 00:00:00 UTC, until 2030-01-01 00:01:00 UTC unless it is renewed"
    assert found.why == f"queue {rig.queue!r} is reserved by ann {since}"
    assert found.next == "It continues when the reservation ends"
    assert fact(found, "closed") == found.why
    rig.clock.advance(seconds=60)
    assert why(rig, job_id).next == "A worker opens it soon, if its time is over"
    rig.store.close_reservation(held.id, "expired", rig.now)
    assert why(rig, job_id).why.startswith("it is the next")


def test_a_reservation_of_every_queue_is_named(rig: Rig) -> None:
    job_id = rig.enqueue()
    rig.reserve("*")

    assert why(rig, job_id).why.startswith("every queue is reserved by ann since")
    assert why(rig, job_id).remedy == "perdure reservations"


def test_no_worker_at_all(rig: Rig) -> None:
    job_id = rig.enqueue()
    rig.store.stop(worker(rig), "clean_shutdown", rig.now)

    assert why(rig, job_id).why == "no worker is registered"
    assert fact(why(rig, job_id), "who could run it") == "no worker is live"


def test_no_live_worker_for_that_queue(rig: Rig) -> None:
    job_id = rig.enqueue(queue="mail")
    worker(rig, queues=["print", "mail,ing"])

    found = why(rig, job_id)
    assert found.why == "no live worker serves queue 'mail'"
    assert found.remedy == "perdure worker MODULE:APP --queue mail"
    assert fact(found, "who could run it").endswith("last beat 0 s ago: for other queues only")
    worker(rig, queues=["print", "mail"])
    assert why(rig, job_id).remedy is None


def test_no_live_worker_with_that_kind(rig: Rig) -> None:
    job_id = rig.enqueue(kind="send")
    worker(rig, kinds={"report": 1, "sender": 1})

    assert why(rig, job_id).why == f"no live worker of queue {rig.queue!r} has kind 'send'"
    worker(rig, kinds={"report": 1, "send": 1})
    assert why(rig, job_id).remedy is None


def test_a_silent_worker_is_told_by_its_last_beat_and_not_declared_dead(rig: Rig) -> None:
    job_id = rig.enqueue()
    node = worker(rig)
    rig.clock.advance(seconds=40)

    named = f"node {to_uuid(node).hex[-8:]} on web-1 pid 42"
    assert fact(why(rig, job_id), "who could run it") == f"{named}, last beat 40 s ago"


def test_a_job_whose_only_worker_is_silent_says_for_how_long(rig: Rig) -> None:
    job_id = rig.enqueue()
    node = worker(rig)
    rig.clock.advance(seconds=60)
    assert why(rig, job_id).why.startswith("it is the next")

    rig.clock.advance(seconds=60)
    found = why(rig, job_id)
    assert found.why == "the only worker for it was last heard of 2 min ago"
    assert found.next == "If it is dead, another worker takes over: start one"
    assert found.remedy == "perdure worker MODULE:APP"
    rig.store.beat(node, rig.now)
    assert why(rig, job_id).remedy is None


def test_a_worker_is_silent_by_its_own_lease(rig: Rig) -> None:
    job_id = rig.enqueue()
    worker(rig, lease_us=600_000_000)
    rig.clock.advance(seconds=600)
    assert why(rig, job_id).why.startswith("it is the next")

    rig.clock.advance(seconds=1)
    assert why(rig, job_id).why == "the only worker for it was last heard of 10 min ago"


def test_a_job_whose_workers_are_all_silent_names_the_last_sign_of_them(rig: Rig) -> None:
    job_id = rig.enqueue(queue="mail")
    worker(rig, queues=["mail"])
    rig.clock.advance(seconds=30)
    worker(rig, queues=["mail"])
    rig.clock.advance(seconds=90)
    worker(rig, queues=["print"])

    found = why(rig, job_id)
    assert found.why == "none of the 2 workers for it was heard of lately, the last one 90 s ago"
    assert found.remedy == "perdure worker MODULE:APP --queue mail"
    worker(rig)
    assert why(rig, job_id).why == "it is the next of queue 'mail', for 1 live worker"


def test_a_job_whose_only_worker_was_killed_here_says_so_at_once(rig: Rig) -> None:
    job_id = rig.enqueue()
    worker(rig, process=ended_process())

    found = why(rig, job_id)
    assert found.why == "the process of the only worker for it has ended; it was last heard of 0 s ago"
    assert found.next == "Another worker takes over: start one"
    assert found.remedy == "perdure worker MODULE:APP"


@pytest.mark.parametrize(
    ("kinds", "has"),
    [
        (None, True),
        ('{"send": 3}', True),
        ('{"a": 1, "send": 2}', True),
        ('{"a": 2, "send": 1}', False),
        ('{"send v2": 2, "a,send": 2}', False),
        ("{}", False),
        ("send,resend v2", True),
    ],
)
def test_a_node_has_a_kind_in_its_version_or_an_earlier_one(kinds: str | None, has: bool) -> None:
    """One that says nothing, or not in a way that is understood, may have it."""
    never = Micros(0)
    node = NodeRow(NodeId(b"n" * 16), kinds, 0, never, never, None, None, None, None, None, None, None)
    assert has_kind(node, "send", 2) is has


def test_a_worker_makes_known_what_it_serves_and_what_it_can_run(tmp_path: Path) -> None:
    app = Perdure(tmp_path / "shop.db")

    @app.job
    def send() -> None: ...

    @app.job(version=2)
    def report() -> None: ...

    @app.job(name="a,b v2")
    def odd() -> None: ...

    with app.worker(["mail", "a,b"]).running():
        [node] = app.store.live_nodes()
    with app.worker().running():
        [other] = app.store.live_nodes()
    findings = doctor.examine(app.store)
    app.close()
    assert (node.kinds, node.queues, other.queues) == (
        '{"a,b v2": 1, "report": 2, "send": 1}',
        '["mail", "a,b"]',
        None,
    )
    assert has_kind(node, "report", 2)
    assert has_kind(node, "a,b v2", 1)
    assert [has_kind(node, name, 1) for name in ("a", "b", "a,b")] == [False] * 3
    assert [serves(node, queue) for queue in ("a,b", "a", "b")] == [True, False, False]
    assert findings == []


# -- other waits -----------------------------------------------------------------------------------------------------


def test_a_job_for_later_names_its_time(rig: Rig) -> None:
    job_id = rig.enqueue(delay_s=300)

    found = why(rig, job_id)
    assert found.why == "it may not start before 2030-01-01 00:05:00 UTC"
    assert fact(found, "run_at") == "2030-01-01 00:05:00 UTC (in 5 min)"


def test_a_retry_names_the_attempt_and_its_error(rig: Rig) -> None:
    claim = rig.start(max_attempts=5)
    rig.finish(claim, Failed(BROKEN, 60_000_000))

    found = why(rig, claim.job_id)
    ended = "attempt 1 of 5 ended with ValueError: it broke"
    assert found.why == f"{ended}, and the next one may not start before 2030-01-01 00:01:00 UTC"
    assert fact(found, "last error") == "ValueError: it broke"


def test_a_job_whose_time_has_come_waits_for_a_worker_to_queue_it(rig: Rig) -> None:
    job_id = rig.enqueue(delay_s=1)
    rig.clock.advance(seconds=1)
    assert "no worker is registered" in why(rig, job_id).why
    assert why(rig, job_id).remedy == "perdure worker MODULE:APP"

    worker(rig)
    assert why(rig, job_id).next == "A worker queues it at its next turn"
    rig.clock.advance(seconds=90)
    assert why(rig, job_id).why.endswith("but the only worker for it was last heard of 90 s ago")
    assert why(rig, job_id).remedy == "perdure worker MODULE:APP"


def test_a_blocked_job_names_what_it_waits_for(rig: Rig) -> None:
    running = rig.start()
    replacement = rig.new()
    rig.store.supersede(running.job_id, replacement, rig.now)

    found = why(rig, replacement.id)
    assert found.why == f"it waits for {rig.kind} {short_id(running.job_id)}"
    assert fact(found, "waits for") == f"{rig.kind} {to_uuid(running.job_id)} (running): its end"


def test_a_blocked_job_for_later_names_its_time_as_well(rig: Rig) -> None:
    running = rig.start()
    replacement = rig.new(delay_s=300)
    rig.store.supersede(running.job_id, replacement, rig.now)

    found = why(rig, replacement.id)
    assert found.next == "It is queued when it has ended; not before 2030-01-01 00:05:00 UTC"
    assert fact(found, "run_at") == "2030-01-01 00:05:00 UTC (in 5 min)"


def test_a_held_job_that_nobody_has_looked_at_names_its_limit_and_needs_a_worker(rig: Rig) -> None:
    job_id = in_state(rig, State.HELD)
    rig.store.stop(rig.node, "clean_shutdown", rig.now)

    assert why(rig, job_id).why == "it needs a permit of printer, and no worker has looked for one yet"
    assert why(rig, job_id).remedy == "perdure worker MODULE:APP"
    worker(rig)
    assert (why(rig, job_id).next, why(rig, job_id).remedy) == ("The next worker with room does", None)


def limited(rig: Rig, rule: LimitRule, count: int, most: int | None = None) -> list[JobId]:
    """Jobs with a limit, the first of which is claimed."""
    rig.store.declare_limits([rule], [rig.kind], rig.now)
    jobs = rig.enqueue_many(count, limit_key=written([Need(key_of("tenant", "acme"), 1)]) or "")
    assert [claim.job_id for claim in rig.claim(most or count)] == jobs[:1]
    return jobs


def test_a_job_in_line_names_who_has_the_permits_and_how_many_are_before_it(rig: Rig) -> None:
    first, _, last = limited(rig, LimitRule("tenant", "at_once", 1), 3)

    found = why(rig, last)
    assert found.why == f"it waits for a permit of tenant=acme: 1 of 1 in use by jobs {short_id(first)}, 1 before it"
    assert found.next == "It starts when enough of them have ended"
    assert fact(found, "in line") == "1 before it"


def test_a_job_in_line_tells_jobs_from_blocks_that_hold_a_place(rig: Rig) -> None:
    first, second = limited(rig, LimitRule("tenant", "at_once", 2), 2, most=1)
    assert rig.store.take_hold(key_of("tenant", "acme"), 1, rig.ids.new(), rig.now, 30_000_000)
    assert rig.claim(1) == []

    found = why(rig, second)
    block = "1 block of code (app.limits.hold)"
    assert f"2 of 2 in use by jobs {short_id(first)} and {block}, 0 before it" in found.why
    assert found.next == "It starts when enough of them have ended"


def test_a_member_that_waits_for_others_of_its_flow_names_the_flow(rig: Rig) -> None:
    flow = rig.new_flow()._replace(at_once=1)
    members = rig.members(flow, 2)
    rig.store.start_flows([flow], members)
    assert len(rig.claim(2)) == 1

    told = why(rig, members[1].id).why
    assert f"a permit of workflow nightly {to_uuid(flow.id)} (at_once): 1 of 1 in use" in told
    assert shown_key(flow_key(flow.id)) == f"flow={to_uuid(flow.id)}"


def test_a_job_of_a_queue_that_is_full_names_its_limit(rig: Rig) -> None:
    running, waiting = rig.enqueue_many(2)
    held = rig.enqueue(limit_key="printer*1")
    worker(rig)
    rig.store.limit_queue(rig.queue, 1)
    assert why(rig, running).why.startswith("it is the next")
    rig.claim_one()

    found = why(rig, waiting)
    assert found.why == f"queue {rig.queue!r} is limited to 1 job at once, and 1 runs"
    assert f"app.queues.limit({rig.queue!r}, NUMBER) lets more run" in found.next
    assert found.remedy == f"perdure queues limit {rig.queue} none"
    assert (why(rig, held).state, why(rig, held).why) == (State.HELD, found.why)


def test_a_job_that_a_limit_of_all_queues_keeps_waiting_names_it(rig: Rig) -> None:
    waiting = rig.enqueue()
    rig.enqueue(queue="other")
    worker(rig)
    rig.store.limit_queue("*", 1)
    rig.claim(1, queue="other")

    assert why(rig, waiting).why == "all queues together are limited to 1 job at once, and 1 runs"
    assert why(rig, waiting).remedy == "perdure queues limit '*' none"


def test_a_job_in_line_of_a_rate_says_when_it_opens(rig: Rig) -> None:
    _, second = limited(rig, LimitRule("tenant", "sliding", 1, 60_000_000), 2)

    assert why(rig, second).next == "The next opening is in 60 s"


@pytest.mark.parametrize(
    ("paused", "call", "command"),
    [
        ([key_of("tenant", "acme")], "app.limits.resume('tenant', key='acme')", "limits resume tenant --key acme"),
        ([None], "app.limits.resume('tenant')", "limits resume tenant"),
        ([None, key_of("tenant", "acme")], "app.limits.resume('tenant')", "limits resume tenant"),  # and then the key
    ],
)
def test_a_job_in_line_of_a_paused_limit_names_the_way_out(
    rig: Rig, paused: list[str | None], call: str, command: str
) -> None:
    _, second = limited(rig, LimitRule("tenant", "at_once", 1), 2)
    for key in paused:
        rig.store.pause_limit("tenant", key, rig.now)

    found = why(rig, second)
    assert found.why == "it waits for a permit of tenant=acme, which is paused since 2030-01-01 00:00:00 UTC"
    assert found.next == f"{call} lets it continue"
    assert found.remedy == f"perdure {command}"


def test_a_paused_job_names_the_way_out(rig: Rig) -> None:
    job_id = in_state(rig, State.PAUSED)

    assert why(rig, job_id).why == "it was paused by hand"
    assert why(rig, job_id).remedy == f"perdure resume {to_uuid(job_id)}"
    assert fact(why(rig, job_id), "paused since") == "2030-01-01 00:00:00 UTC"


def test_a_parked_job_names_who_could_run_it(rig: Rig) -> None:
    job_id = in_state(rig, State.PARKED, kind="send")
    rig.store.stop(rig.node, "clean_shutdown", rig.now)
    worker(rig, kinds={"report": 1})

    assert fact(why(rig, job_id), "who could run it") == "no live worker has kind 'send'"
    worker(rig, kinds={"send": 1}, queues=["elsewhere"], process=Process("far", 42))
    assert fact(why(rig, job_id), "who could run it").endswith("last beat 0 s ago: for other queues only")
    assert why(rig, job_id).remedy == "perdure worker MODULE:APP"
    worker(rig, kinds={"send": 1}, process=Process("near", 42))
    assert "on near" in fact(why(rig, job_id), "who could run it")
    assert why(rig, job_id).remedy is None


def test_a_job_parked_for_newer_code_names_the_version(rig: Rig) -> None:
    job_id = rig.enqueue(kind="send", kind_version=3)
    rig.claim(kinds={"send": 2})
    rig.store.stop(rig.node, "clean_shutdown", rig.now)
    worker(rig, kinds={"send": 2})

    found = why(rig, job_id)
    assert fact(found, "parked because") == "newer version"
    assert fact(found, "who could run it") == "no live worker has kind 'send' in version 3 or later"
    worker(rig, kinds={"send": 3})
    assert why(rig, job_id).remedy is None


def test_an_unreadable_job_waits_for_a_person(rig: Rig) -> None:
    claim = rig.start()
    rig.finish(claim, Unreadable("no such field"))

    found = why(rig, claim.job_id)
    assert found.why == "its payload cannot be decoded"
    assert fact(found, "last error") == "no such field"
    assert found.remedy == f"perdure resume {to_uuid(claim.job_id)}"


# -- running and ended -----------------------------------------------------------------------------------------------


def test_a_running_job_names_its_holder(rig: Rig) -> None:
    node = worker(rig)
    rig.enqueue(timeout_ms=30_000)
    claim = rig.claim_one(node=node)
    rig.clock.advance(seconds=12)

    found = why(rig, claim.job_id)
    assert found.why == f"node {to_uuid(node)} runs attempt 1 of 3"
    assert fact(found, "running for") == "12 s, since 2030-01-01 00:00:00 UTC"
    assert fact(found, "time-out") == "30 s"
    assert fact(found, "held by").endswith("on web-1 pid 42, last beat 12 s ago")

    rig.store.stop(node, "crash", rig.now)
    assert why(rig, claim.job_id).why.endswith("but that node has stopped")
    assert fact(why(rig, claim.job_id), "held by").endswith("stopped 0 s ago (crash)")
    rig.rescue(node)


def test_a_running_job_whose_worker_is_silent_says_for_how_long(rig: Rig) -> None:
    node = worker(rig)
    rig.enqueue()
    claim = rig.claim_one(node=node)
    rig.clock.advance(seconds=61)

    found = why(rig, claim.job_id)
    assert found.why.endswith("runs attempt 1 of 3, but that node was last heard of 61 s ago")
    assert found.next == "If it is dead, another worker takes the job back: start one"
    assert found.remedy == "perdure worker MODULE:APP"

    worker(rig, queues=["another"])
    assert why(rig, claim.job_id).next == "If it is dead, another worker takes the job back"
    assert why(rig, claim.job_id).remedy is None


def test_a_running_job_whose_worker_was_killed_here_says_so_at_once(rig: Rig) -> None:
    node = worker(rig, process=ended_process())
    rig.enqueue()
    claim = rig.claim_one(node=node)

    found = why(rig, claim.job_id)
    assert found.why.endswith("but the process of that node has ended")
    assert found.next == "Another worker takes the job back: start one"
    assert found.remedy == "perdure worker MODULE:APP"


def test_a_cancel_that_was_asked_for_is_told(rig: Rig) -> None:
    claim = rig.start()
    rig.cancel(claim.job_id)

    assert why(rig, claim.job_id).why.endswith("; a cancel was asked for")


def test_an_ended_job_says_how(rig: Rig) -> None:
    done = rig.start()
    rig.finish(done, Completed())
    failed = rig.start()
    rig.finish(failed, Failed(HOPELESS))

    assert str(why(rig, done.job_id)) == "completed: it completed after 1 attempt. Nothing more happens."
    assert why(rig, failed.job_id).why == "it failed after 1 attempt with ValueError: it will never work"
    assert why(rig, failed.job_id).remedy == f"perdure retry {to_uuid(failed.job_id)}"
    assert fact(why(rig, failed.job_id), "ended") == "2030-01-01 00:00:00 UTC"


def test_a_skipped_job_can_only_be_run_as_a_new_one(rig: Rig) -> None:
    skipped = rig.start()
    rig.finish(skipped, Skipped("nothing to do"))

    assert why(rig, skipped.job_id).remedy == f"perdure retry {to_uuid(skipped.job_id)} --as-new"


def test_a_job_whose_place_was_taken_says_by_whom(rig: Rig) -> None:
    job_id, replacement = rig.enqueue(), rig.new()
    rig.store.supersede(job_id, replacement, rig.now)

    assert str(why(rig, job_id)) == f"cancelled: job {to_uuid(replacement.id)} took its place. That one continues."


def test_a_job_that_completed_although_another_one_takes_its_place_says_both(rig: Rig) -> None:
    claim = rig.start()
    replacement = rig.new()
    rig.store.supersede(claim.job_id, replacement, rig.now)
    rig.finish(claim, Completed())

    found = why(rig, claim.job_id)
    assert found.state == State.COMPLETED
    assert found.why == f"it completed after 1 attempt, and job {to_uuid(replacement.id)} takes its place"


def test_only_the_first_line_of_an_error_is_in_the_sentence(rig: Rig) -> None:
    claim = rig.start()
    rig.finish(claim, Failed(Failure("ValueError", "one\ntwo\nthree", permanent=True)))

    assert str(why(rig, claim.job_id)).startswith("failed: it failed after 1 attempt with ValueError: one. app.retry")


@pytest.mark.parametrize("state", sorted(State))
def test_every_state_is_explained_with_kind_queue_and_attempts(rig: Rig, state: State) -> None:
    found = why(rig, in_state(rig, state))

    assert found.state == state
    assert [name for name, _ in found.facts[:3]] == ["kind", "queue", "attempts"]
    assert found.why
    assert found.next
    assert str(found) == f"{state}: {found.why}. {found.next}."
