"""Every operation of a store that writes, each with the data it needs. Used by `faults`."""

from __future__ import annotations

from collections.abc import Callable

from perdure.clock import Micros
from perdure.ids import FlowId, JobId, NodeId
from perdure.job import transitions
from perdure.job.flow import Edge, FlowVerb, OnFailure
from perdure.job.model import Claim
from perdure.job.reports import (
    Cancelled,
    Completed,
    Failed,
    Released,
    Report,
    Skipped,
    Snoozed,
    TimedOut,
    Unreadable,
)
from perdure.job.states import Verb
from perdure.store.protocols import Store
from perdure.store.rows import Edit, Ended, JobFilter, Lane, LimitRule, LogLine, NewNode, Notes, Place, Turn
from perdure.testing.contract.rig import BROKEN, CRASHED, HOPELESS, NONE, Rig, reserve

Operation = Callable[[Store], object]


def _enqueue_plain(rig: Rig) -> Operation:
    new = rig.new()
    return lambda store: store.enqueue([new])


def _enqueue_several(rig: Rig) -> Operation:
    new = [rig.new(tags=("a", "b"), queue=rig.key(f"q{number % 2}")) for number in range(4)]
    return lambda store: store.enqueue(new)


def _enqueue_keyed(rig: Rig) -> Operation:
    new = rig.new(idempotency_key=rig.key("k"), business_key=rig.key("b"), tags=("a",))
    return lambda store: store.enqueue([new])


def _enqueue_among_duplicates(rig: Rig) -> Operation:
    rig.enqueue(idempotency_key=rig.key("known"))
    new = [rig.new(idempotency_key=rig.key(key)) for key in ("known", "new", "known")]
    return lambda store: store.enqueue(new)


def _edit(rig: Rig) -> Operation:
    job_id = rig.enqueue(tags=("a",))
    row, live = rig.row(job_id), rig.live(job_id)
    edited = live._replace(queue=rig.key("other"), version=live.version + 1)
    edit = Edit(row._replace(payload="{}", queue=edited.queue), edited, ("b",))
    return lambda store: store.edit(edit, live.version)


def _delete(rig: Rig) -> Operation:
    claim = rig.start(idempotency_key=rig.key("k"), tags=("a",))
    rig.store.append_log([LogLine(claim.run_id, 1, claim.job_id, rig.now, "INFO", "hello")])
    rig.finish(claim, Completed())
    return lambda store: store.delete(claim.job_id)


def _cancel_waiting(rig: Rig) -> Operation:
    job_id = rig.enqueue(business_key=rig.key("b"))
    return lambda store: store.change(job_id, Verb.CANCEL, transitions.cancel, rig.now)


def _cancel_running(rig: Rig) -> Operation:
    job_id = rig.start().job_id
    return lambda store: store.change(job_id, Verb.CANCEL, transitions.cancel, rig.now)


def _pause(rig: Rig) -> Operation:
    job_id = rig.enqueue()
    return lambda store: store.change(job_id, Verb.PAUSE, transitions.pause, rig.now)


def _resume(rig: Rig) -> Operation:
    job_id = rig.pause(rig.enqueue()).row.id
    return lambda store: store.change(job_id, Verb.RESUME, transitions.resume, rig.now)


def _retry(rig: Rig) -> Operation:
    job_id = rig.cancel(rig.enqueue(business_key=rig.key("b"))).row.id
    return lambda store: store.retry(job_id, rig.now)


def _retry_as_new(rig: Rig) -> Operation:
    job_id = rig.cancel(rig.enqueue(business_key=rig.key("b"), tags=("a",))).row.id
    new_id = JobId(rig.ids.new())
    return lambda store: store.retry_as_new(job_id, new_id, rig.now)


def _supersede_waiting(rig: Rig) -> Operation:
    job_id, new = rig.enqueue(business_key=rig.key("b")), rig.new(idempotency_key=rig.key("k"), tags=("a",))
    return lambda store: store.supersede(job_id, new, rig.now)


def _supersede_running(rig: Rig) -> Operation:
    job_id, new = rig.start(business_key=rig.key("b")).job_id, rig.new(tags=("a",))
    return lambda store: store.supersede(job_id, new, rig.now)


def _move_into_a_spent_gap(rig: Rig) -> Operation:
    ids = rig.enqueue_many(6)
    rig.execute("UPDATE {ready} SET position = position / 100 WHERE queue = :queue", queue=rig.queue)
    return lambda store: store.move(ids[5], Place(after=ids[0]), rig.now)


def _set_priority(rig: Rig) -> Operation:
    job_id = rig.enqueue()
    return lambda store: store.set_priority(job_id, -5, rig.now)


def _claim(rig: Rig) -> Operation:
    rig.enqueue_many(3)
    return _claims(rig)


def _claim_with_parking(rig: Rig) -> Operation:
    rig.enqueue_many(2)
    rig.claim(5, kinds=NONE)
    rig.enqueue(kind=rig.key("strange"))
    rig.enqueue_many(2)
    return _claims(rig)


def _claims(rig: Rig) -> Operation:
    claimer, lanes = rig.claimer(5, kinds={rig.kind: 1}), [Lane(rig.key("none"), 1), Lane(rig.queue, 4)]
    return lambda store: store.claim(lanes, claimer, rig.now)


def _finish(report: Report, *, as_new_job: bool = False) -> Callable[[Rig], Operation]:
    def prepare(rig: Rig) -> Operation:
        claim = rig.start(as_new_job=as_new_job, business_key=rig.key("b"), tags=("a",))
        finish = rig.report(claim, report)
        return lambda store: store.finish([finish], rig.now)

    return prepare


def _finish_and_unblock(rig: Rig) -> Operation:
    claim = rig.start(business_key=rig.key("b"))
    rig.store.supersede(claim.job_id, rig.new(), rig.now)
    finish = rig.report(claim, Completed())
    return lambda store: store.finish([finish], rig.now)


def _finish_with_one_lost(rig: Rig) -> Operation:
    rig.enqueue_many(3)
    claims = rig.claim(3)
    rig.finish(claims[1], Cancelled())
    reports: list[Report] = [Completed(), Completed(), Failed(BROKEN)]
    batch = [rig.report(claim, report) for claim, report in zip(claims, reports, strict=True)]
    return lambda store: store.finish(batch, rig.now)


def _complete_with_children(rig: Rig) -> Operation:
    claim = rig.start()
    children = (
        rig.new(tags=("a",), idempotency_key=rig.key("k"))._replace(parent_id=claim.job_id),
        rig.new(queue=rig.key("other"), delay_s=5),
    )
    finish = rig.report(claim, Completed())._replace(children=children)
    return lambda store: store.finish([finish], rig.now)


def _claim_beside_suspects(rig: Rig) -> Operation:
    rig.suspects(3)
    rig.enqueue_many(2)
    return _claims(rig)


def _turn(rig: Rig) -> Operation:
    """All that a turn can do: two finishes, one with a child, one of them lost; all kinds of notes; promote; claim."""
    rig.enqueue_many(4)
    done, lost, running = rig.claim(3)
    rig.enqueue_many(2, delay_s=1)
    rig.finish(lost, Cancelled())
    rig.store.append_log([_line(rig, running, number) for number in range(3)])
    rig.clock.advance(seconds=1)
    wanted = Turn(
        [
            rig.report(done, Completed())._replace(children=(rig.new(queue=rig.key("other")),)),
            rig.report(lost, Completed()),
        ],
        Notes(
            [_line(rig, running, 3), _line(rig, done, 1)],
            [(running.run_id, ("a",)), (done.run_id, ("b",))],
            [(running.run_id, '{"n":1}')],
            [_line(rig, running, 2)],
        ),
        promote=5,
        lanes=[Lane(rig.queue, 2)],
        claimer=rig.claimer(2, kinds={rig.kind: 1}),
    )
    return lambda store: store.turn(wanted, rig.now)


def _line(rig: Rig, claim: Claim, number: int) -> LogLine:
    return LogLine(claim.run_id, number, claim.job_id, rig.now, "INFO", f"line {number}")


def _promote(rig: Rig) -> Operation:
    rig.enqueue_many(3, delay_s=1)
    rig.clock.advance(seconds=1)
    return lambda store: store.promote(rig.now, 10)


def _rescue(rig: Rig) -> Operation:
    node, next_ids = rig.register(), [JobId(job_id) for job_id in rig.ids.new_many(3)]
    rig.enqueue(max_attempts=1)
    rig.enqueue(as_new_job=True)
    rig.enqueue(business_key=rig.key("b"))
    rig.claim(3, node=node)
    rig.store.stop(node, "crash", rig.now)
    return lambda store: store.rescue(node, CRASHED, 3, next_ids, rig.now)


def _append_artifacts(rig: Rig) -> Operation:
    run_id = rig.start().run_id
    return lambda store: store.append_artifacts(run_id, ["a"])


def _append_log(rig: Rig) -> Operation:
    claim = rig.start()
    lines = [LogLine(claim.run_id, number, claim.job_id, rig.now, "INFO", "x") for number in range(3)]
    return lambda store: store.append_log(lines)


def _pause_queue(rig: Rig) -> Operation:
    return lambda store: store.pause_queue(rig.queue, rig.now)


def _register(rig: Rig) -> Operation:
    node = NodeId(rig.ids.new())
    return lambda store: store.register(NewNode(node, rig.now))


def _beat(rig: Rig) -> Operation:
    node = rig.register()
    return lambda store: store.beat(node, rig.now)


def _stop(rig: Rig) -> Operation:
    node = rig.register()
    return lambda store: store.stop(node, "crash", rig.now)


def _take_lock(rig: Rig) -> Operation:
    return lambda store: store.take_lock(rig.key("lock"), "ann", rig.now, 10**7)


def _release_lock(rig: Rig) -> Operation:
    rig.store.take_lock(rig.key("lock"), "ann", rig.now, 10**7)
    return lambda store: store.release_lock(rig.key("lock"), "ann")


def _put_template(rig: Rig) -> Operation:
    new = rig.new_template(rig.key("template"))
    return lambda store: store.put_template(new, rig.now)


def _put_template_again(rig: Rig) -> Operation:
    name = rig.key("template")
    rig.store.put_template(rig.new_template(name), rig.now)
    changed = rig.new_template(name, '{"n":2}')
    return lambda store: store.put_template(changed, rig.now, 1)


def _archive_template(rig: Rig) -> Operation:
    name = rig.key("template")
    rig.store.put_template(rig.new_template(name), rig.now)
    return lambda store: store.archive_template(name, rig.now, rig.now)


def _rename_template(rig: Rig) -> Operation:
    name = rig.key("template")
    rig.store.put_template(rig.new_template(name), rig.now)
    return lambda store: store.rename_template(name, rig.key("other"), rig.now)


def _reserve(rig: Rig) -> Operation:
    new = rig.reservation()
    return lambda store: reserve(store, new)


def _enter_reservation(rig: Rig) -> Operation:
    held, until = rig.reserve(), rig.until(20)
    return lambda store: store.enter_reservation(held.id, until, rig.now)


def _renew_reservation(rig: Rig) -> Operation:
    held, until = rig.reserve(), rig.until(20)
    return lambda store: store.renew_reservation(held.id, until)


def _close_reservation(rig: Rig) -> Operation:
    held = rig.reserve()
    return lambda store: store.close_reservation(held.id, "released", rig.now)


def _start_reserved(rig: Rig) -> Operation:
    held, claimer = rig.reserve(), rig.claimer(1)
    new = rig.new(idempotency_key=rig.key("k"), business_key=rig.key("b"), tags=("a",))
    return lambda store: store.start_reserved(new, held.id, claimer, rig.now)


def _ended_job(rig: Rig) -> Ended:
    claim = rig.start(idempotency_key=rig.key("k"), tags=("a",))
    rig.store.append_log([LogLine(claim.run_id, 1, claim.job_id, rig.now, "INFO", "hello")])
    rig.finish(claim, Completed())
    return Ended(claim.job_id, 1, "completed", rig.now, None, rig.kind)


def _remove(rig: Rig) -> Operation:
    old = [_ended_job(rig)]
    return lambda store: store.remove(old)


def _archive(rig: Rig) -> Operation:
    old = [_ended_job(rig)]
    return lambda store: store.archive(old, rig.now)


def _remove_logs(rig: Rig) -> Operation:
    _ended_job(rig)
    return lambda store: store.remove_logs(Micros(rig.now + 1), 10)


def _remove_records(rig: Rig) -> Operation:
    rig.store.take_lock("old", "me", rig.now, 1)
    return lambda store: store.remove_records(Micros(rig.now + 2), 10)


def _remove_nodes(rig: Rig) -> Operation:
    rig.store.stop(rig.register(), "signal", rig.now)
    return lambda store: store.remove_nodes(None, Micros(rig.now + 1), 10)


# -- flows -----------------------------------------------------------------------------------------------------------


def _enqueue_after(rig: Rig) -> Operation:
    ended = rig.start()
    rig.finish(ended, Completed())
    flow_id, [member, _] = rig.start_flow(2)
    edges = (Edge(ended.job_id), Edge(member, "failure"), Edge(flow_id, "end"))
    new = [rig.new(after=edges), rig.new(after=(Edge(ended.job_id, "failure"),))]
    return lambda store: store.enqueue(new)


def _start_flows(rig: Rig) -> Operation:
    """A workflow with a flow inside, edges, a callback, and a key."""
    outer = rig.new_flow(key=rig.key("k"))
    inner = rig.new_flow(parent_id=outer.id)
    first, second = rig.members(outer, 2)
    members = [first, second._replace(after=(Edge(first.id), Edge(inner.id))), *rig.members(inner, 2)]
    callback = rig.new(after=(Edge(outer.id, "end"),))._replace(flow_id=outer.id)
    return lambda store: store.start_flows([outer, inner], [callback, *members])


def _add_members(rig: Rig) -> Operation:
    flow = rig.new_flow(open=True)
    rig.store.start_flows([flow], rig.members(flow, 1))
    more = rig.members(flow, 3, first=1)
    return lambda store: store.add_members(flow.id, more, rig.now)


def _seal_flow(rig: Rig) -> Operation:
    """It ends with that: a flow inside another one, whose callback may run then."""
    outer = rig.new_flow()
    inner = rig.new_flow(parent_id=outer.id, open=True)
    rig.store.start_flows([outer, inner], [rig.new(after=(Edge(outer.id),))._replace(flow_id=outer.id)])
    return lambda store: store.seal_flow(inner.id, rig.now)


def _whole_flow(rig: Rig) -> FlowId:
    """A flow of which one member runs, one waits for it, and one waits in a flow inside."""
    outer = rig.new_flow()
    inner = rig.new_flow(parent_id=outer.id)
    first, second = rig.members(outer, 2)
    waiting = second._replace(after=(Edge(first.id),))
    rig.store.start_flows([outer, inner], [first, waiting, *rig.members(inner, 1)])
    rig.claim_one()
    return outer.id


def _change_flow(verb: FlowVerb) -> Callable[[Rig], Operation]:
    def prepare(rig: Rig) -> Operation:
        flow_id = _whole_flow(rig)
        if verb == "resume":
            rig.store.change_flow(flow_id, "pause", rig.now)
        return lambda store: store.change_flow(flow_id, verb, rig.now)

    return prepare


def _retry_flow(rig: Rig) -> Operation:
    flow = rig.new_flow()
    first, second = rig.members(flow, 2, max_attempts=1)
    rig.store.start_flows([flow], [first, second._replace(after=(Edge(first.id),))])
    rig.finish(rig.claim_one(), Failed(HOPELESS))
    return lambda store: store.retry_flow(flow.id, rig.now)


def _end_of_a_flow(report: Report, on_failure: OnFailure) -> Callable[[Rig], Operation]:
    """The last two members end in one turn, or one fails and decides about the other; somebody waits for the flow."""

    def prepare(rig: Rig) -> Operation:
        flow = rig.new_flow(on_failure=on_failure)
        callback = rig.new(after=(Edge(flow.id, "end"),))._replace(flow_id=flow.id)
        rig.store.start_flows([flow], [callback, *rig.members(flow, 3, max_attempts=1)])
        finishes = [rig.report(claim, report) for claim in rig.claim(3 if on_failure == "continue" else 1)]
        return lambda store: store.turn(Turn(finishes, settle=True), rig.now)

    return prepare


def _settle(rig: Rig) -> Operation:
    """A part of what an end has left over, because so many waited for it."""
    parent = rig.start()
    rig.store.enqueue([rig.new(after=(Edge(parent.job_id),)) for _ in range(510)])
    rig.finish(parent, Completed())
    return lambda store: store.turn(Turn(settle=True), rig.now)


def _remove_flow(rig: Rig) -> Operation:
    flow_id, _ = rig.start_flow(1)
    rig.finish(rig.claim_one(), Completed())
    rig.store.remove(rig.store.flow_ends(flow_id, 10))
    return lambda store: store.remove_flow(flow_id)


# -- limits ----------------------------------------------------------------------------------------------------------


def _limited(rig: Rig, *, first: int = 1) -> list[Claim]:
    """Six jobs with limits and rates: so many `first` ones are claimed, as far as there is room."""
    limits = [LimitRule(rig.key("a"), "at_once", 2), LimitRule(rig.key("b"), "at_once", 3)]
    rates = [LimitRule(rig.key("rate"), "sliding", 4, 10_000_000), LimitRule(rig.key("even"), "bucket", 9, 10_000_000)]
    rig.store.declare_limits([*limits, *rates], [rig.kind], rig.now)
    needs = "\x1e".join(f"{rig.key(name)}*1" for name in ("a", "b", "rate", "even"))
    rig.enqueue_many(6, limit_key=needs, max_attempts=1)
    return rig.claim(first) if first else []


def _claim_limited(rig: Rig) -> Operation:
    _limited(rig, first=0)
    rig.enqueue_many(2)
    return _claims(rig)


def _turn_limited(rig: Rig) -> Operation:
    """Permits are given back and taken again, and the next in line is woken."""
    claims = _limited(rig, first=2)
    rig.store.limit_queue(rig.queue, 5)
    reports: list[Report] = [Completed(), Failed(HOPELESS)]
    finishes = [rig.report(claim, report) for claim, report in zip(claims, reports, strict=True)]
    wanted = Turn(finishes, settle=True, promote=5, lanes=[Lane(rig.queue, 1)], claimer=rig.claimer(1))
    return lambda store: store.turn(wanted, rig.now)


def _finish_limited(rig: Rig) -> Operation:
    [claim] = _limited(rig)
    finish = rig.report(claim, Completed())
    return lambda store: store.finish([finish], rig.now)


def _cancel_in_line(rig: Rig) -> Operation:
    _limited(rig, first=6)
    [job_id] = rig.jobs(JobFilter(state="held"), 1)
    return lambda store: store.change(job_id, Verb.CANCEL, transitions.cancel, rig.now)


def _rescue_limited(rig: Rig) -> Operation:
    _limited(rig, first=0)
    node, next_ids = rig.register(), [JobId(job_id) for job_id in rig.ids.new_many(3)]
    rig.claim(2, node=node)
    rig.store.stop(node, "crash", rig.now)
    return lambda store: store.rescue(node, CRASHED, 3, next_ids, rig.now)


def _open_a_rate(rig: Rig) -> Operation:
    for _ in range(3):
        for claim in rig.claim(6) or _limited(rig, first=6):
            rig.finish(claim, Completed())
    rig.clock.advance(seconds=10)
    return lambda store: store.promote(rig.now, 10)


def _declare_limits(rig: Rig) -> Operation:
    _limited(rig, first=6)
    rules = [LimitRule(rig.key("a"), "at_once", 3), LimitRule(rig.key("c"), "at_once", 1)]
    return lambda store: store.declare_limits(rules, [rig.kind], rig.now)


def _set_limit(rig: Rig) -> Operation:
    _limited(rig, first=6)
    return lambda store: store.set_limit(rig.key("a"), 4, None, rig.now)


def _set_key(rig: Rig) -> Operation:
    _limited(rig, first=6)
    return lambda store: store.set_limit(rig.key("a"), 4, rig.key("a"), rig.now)


def _reset_limit(rig: Rig) -> Operation:
    _limited(rig, first=6)
    rig.store.set_limit(rig.key("a"), 1, None, rig.now)
    return lambda store: store.reset_limit(rig.key("a"), None)


def _resume_limit(rig: Rig) -> Operation:
    _limited(rig, first=0)
    rig.store.pause_limit(rig.key("a"), None, rig.now)
    rig.claim(6)
    return lambda store: store.pause_limit(rig.key("a"), None, None)


def _limit_queue(rig: Rig) -> Operation:
    return lambda store: store.limit_queue(rig.queue, 3)


def _take_hold(rig: Rig) -> Operation:
    _limited(rig)
    holder = rig.ids.new()
    return lambda store: store.take_hold(rig.key("a"), 1, holder, rig.now, 10**7)


def _drop_hold(rig: Rig) -> Operation:
    holder = rig.ids.new()
    rig.store.take_hold(rig.key("a"), 2, holder, rig.now, 10**7)
    _limited(rig)
    return lambda store: store.drop_hold(rig.key("a"), holder)


OPERATIONS: dict[str, Callable[[Rig], Operation]] = {
    "enqueue": _enqueue_plain,
    "enqueue several": _enqueue_several,
    "enqueue with keys": _enqueue_keyed,
    "enqueue among duplicates": _enqueue_among_duplicates,
    "edit": _edit,
    "delete": _delete,
    "cancel a waiting job": _cancel_waiting,
    "cancel a running job": _cancel_running,
    "pause": _pause,
    "resume": _resume,
    "retry": _retry,
    "retry as new": _retry_as_new,
    "supersede a waiting job": _supersede_waiting,
    "supersede a running job": _supersede_running,
    "move into a spent gap": _move_into_a_spent_gap,
    "set priority": _set_priority,
    "claim": _claim,
    "claim with parking": _claim_with_parking,
    "complete": _finish(Completed()),
    "fail": _finish(Failed(BROKEN, 5)),
    "fail for good": _finish(Failed(HOPELESS)),
    "time out": _finish(TimedOut(BROKEN)),
    "snooze": _finish(Snoozed(5)),
    "release": _finish(Released()),
    "let go": _finish(Cancelled()),
    "skip": _finish(Skipped()),
    "park": _finish(Unreadable("?")),
    "fail with a successor": _finish(Failed(BROKEN), as_new_job=True),
    "snooze with a successor": _finish(Snoozed(5), as_new_job=True),
    "complete and unblock": _finish_and_unblock,
    "finish a batch with one lost": _finish_with_one_lost,
    "complete with children": _complete_with_children,
    "claim beside suspects": _claim_beside_suspects,
    "turn": _turn,
    "promote": _promote,
    "rescue": _rescue,
    "append artifacts": _append_artifacts,
    "append log": _append_log,
    "pause a queue": _pause_queue,
    "register": _register,
    "beat": _beat,
    "stop": _stop,
    "take a lock": _take_lock,
    "release a lock": _release_lock,
    "put a template": _put_template,
    "put a template again": _put_template_again,
    "archive a template": _archive_template,
    "rename a template": _rename_template,
    "reserve a queue": _reserve,
    "enter a reservation": _enter_reservation,
    "renew a reservation": _renew_reservation,
    "close a reservation": _close_reservation,
    "start the holder's job": _start_reserved,
    "remove": _remove,
    "archive": _archive,
    "remove log lines": _remove_logs,
    "remove records": _remove_records,
    "remove nodes": _remove_nodes,
    "enqueue after others": _enqueue_after,
    "start a flow": _start_flows,
    "add members to a flow": _add_members,
    "seal a flow": _seal_flow,
    "cancel a flow": _change_flow("cancel"),
    "pause a flow": _change_flow("pause"),
    "resume a flow": _change_flow("resume"),
    "retry a flow": _retry_flow,
    "end a flow": _end_of_a_flow(Completed(), "continue"),
    "stop a flow": _end_of_a_flow(Failed(HOPELESS), "stop"),
    "settle what was left over": _settle,
    "remove a flow": _remove_flow,
    "claim with limits": _claim_limited,
    "turn with limits": _turn_limited,
    "finish with limits": _finish_limited,
    "cancel a job in line": _cancel_in_line,
    "rescue with limits": _rescue_limited,
    "open a rate": _open_a_rate,
    "declare limits": _declare_limits,
    "set a limit": _set_limit,
    "set a key of a limit": _set_key,
    "reset a limit": _reset_limit,
    "resume a limit": _resume_limit,
    "limit a queue": _limit_queue,
    "hold a place": _take_hold,
    "give a place back": _drop_hold,
}
