"""How much at once: permits, lines, queues with a limit, rates. Protocol `LimitOperations`."""

from __future__ import annotations

from collections import Counter

from perdure.clock import Micros
from perdure.ids import JobId, NodeId
from perdure.job.model import Claim
from perdure.job.reports import Completed, Failed, Report, Snoozed
from perdure.job.states import State
from perdure.limit.key import Need, key_of, written
from perdure.ops import doctor, repairs
from perdure.store.rows import Edit, Lane, LimitRule, Place, Turn
from perdure.testing.contract.case import each
from perdure.testing.contract.rig import BROKEN, HOPELESS, NONE, Rig


def needs(rig: Rig, *pairs: tuple[str, int]) -> str:
    """What a job carries that needs these keys of the rig."""
    text = written([Need(rig.key(name), weight) for name, weight in pairs])
    assert text is not None
    return text


def declare(rig: Rig, **most: int) -> None:
    """Limits of the rig, as a worker declares them at its start."""
    rules = [LimitRule(rig.key(name), "at_once", number) for name, number in most.items()]
    rig.store.declare_limits(rules, [rig.kind], rig.now)


def turn(rig: Rig, *done: Claim, room: int = 10, queue: str | None = None, node: NodeId | None = None) -> list[Claim]:
    """A turn that completes these and claims as many as it gets."""
    finishes = [rig.report(claim, Completed()) for claim in done]
    lanes = [Lane(queue or rig.queue, room)] if room else []
    claimer = rig.claimer(room, node) if room else None
    return rig.store.turn(Turn(finishes, lanes=lanes, claimer=claimer), rig.now).claims


def settle(rig: Rig) -> None:
    rig.store.turn(Turn(settle=True), rig.now)


def ids(claims: list[Claim]) -> list[JobId]:
    return [claim.job_id for claim in claims]


def state_of(rig: Rig, job_id: JobId) -> str:
    return rig.live(job_id).state


# -- one key ---------------------------------------------------------------------------------------------------------


def test_no_more_jobs_of_a_key_run_at_once_than_its_limit(rig: Rig) -> None:
    declare(rig, api=2)
    jobs = rig.enqueue_many(5, limit_key=needs(rig, ("api", 1)))

    assert ids(rig.claim(10)) == jobs[:2]
    assert rig.claim(10) == []
    assert [state_of(rig, job) for job in jobs] == [State.RUNNING] * 2 + [State.HELD] * 3


def test_a_permit_that_becomes_free_is_taken_in_the_same_transaction(rig: Rig) -> None:
    declare(rig, api=2)
    jobs = rig.enqueue_many(5, limit_key=needs(rig, ("api", 1)))
    first, second = rig.claim(10)

    assert ids(turn(rig, first)) == [jobs[2]]
    assert ids(turn(rig, second)) == [jobs[3]]


def test_jobs_behind_those_that_wait_for_a_permit_start(rig: Rig) -> None:
    declare(rig, api=1)
    limited = rig.enqueue_many(3, limit_key=needs(rig, ("api", 1)))
    others = rig.enqueue_many(2)

    assert ids(rig.claim(3)) == [limited[0], *others]


def test_a_job_that_starts_without_a_limit_of_that_name_holds_its_permit_all_the_same(rig: Rig) -> None:
    limited = needs(rig, ("api", 1))
    rig.enqueue_many(2, limit_key=limited)
    running = rig.claim(10)
    declare(rig, api=2)
    rig.enqueue(limit_key=limited)

    assert len(running) == 2
    assert rig.claim(10) == []


@each(1, 6)
def test_a_job_in_line_that_a_node_cannot_run_is_set_aside_and_the_next_goes(rig: Rig, values: int) -> None:
    """Found by the simulator: it was claimed, and the worker that did not know its kind died of it. Few lines are read
    one by one, more of them together."""
    declare(rig, tenant=1)
    texts = [written([Need(key_of(rig.key("tenant"), value), 1)]) or "" for value in range(values)]
    kinds = {rig.kind: 1}
    for text in texts:
        rig.enqueue(limit_key=text)
    strange = [rig.enqueue(limit_key=text, kind="strange") for text in texts]
    last = [rig.enqueue(limit_key=text) for text in texts]
    finishes = [rig.report(claim, Completed()) for claim in rig.claim(100)]
    assert rig.claim(100) == []
    claimer = rig.claimer(100, kinds=kinds)

    claims = rig.store.turn(Turn(finishes, lanes=[Lane(rig.queue, 100)], claimer=claimer), rig.now).claims
    claims += rig.claim(100, kinds=kinds)
    settle(rig)
    claims += rig.claim(100, kinds=kinds)

    assert sorted(ids(claims)) == sorted(last)
    assert {state_of(rig, job) for job in strange} == {State.PARKED}


def test_every_value_of_a_limit_is_a_key_of_its_own(rig: Rig) -> None:
    declare(rig, tenant=1)
    text = [written([Need(key_of(rig.key("tenant"), value), 1)]) or "" for value in (1, 2, 1, 2)]
    jobs = [rig.enqueue(limit_key=one) for one in text]

    assert ids(rig.claim(10)) == jobs[:2]


def test_a_heavy_job_takes_as_many_places_as_it_weighs(rig: Rig) -> None:
    declare(rig, gpu=4)
    jobs = [rig.enqueue(limit_key=needs(rig, ("gpu", weight))) for weight in (3, 1, 1)]

    assert ids(rig.claim(10)) == jobs[:2]


def test_a_heavy_job_is_not_overtaken_by_light_ones_of_its_key(rig: Rig) -> None:
    declare(rig, gpu=4)
    first, heavy, light = (rig.enqueue(limit_key=needs(rig, ("gpu", weight))) for weight in (2, 3, 1))
    [running] = rig.claim(10)
    later = rig.enqueue(limit_key=needs(rig, ("gpu", 1)))

    assert running.job_id == first
    assert rig.claim(10) == []
    assert ids(turn(rig, running)) == [heavy, light]
    assert state_of(rig, later) == State.HELD


def test_a_job_that_is_heavier_than_its_limit_runs_alone(rig: Rig) -> None:
    declare(rig, gpu=2)
    giant = rig.enqueue(limit_key=needs(rig, ("gpu", 9)))
    rig.enqueue(limit_key=needs(rig, ("gpu", 1)))

    assert ids(rig.claim(10)) == [giant]


def test_a_job_in_line_takes_its_old_place_when_its_turn_comes(rig: Rig) -> None:
    declare(rig, api=1)
    first, second = rig.enqueue_many(2, limit_key=needs(rig, ("api", 1)))
    [running] = rig.claim(10)
    plain = rig.enqueue()

    assert running.job_id == first
    assert ids(turn(rig, running, room=1)) == [second]
    assert ids(rig.claim(1)) == [plain]


def test_a_line_is_worked_off_in_queue_order(rig: Rig) -> None:
    declare(rig, api=1)
    limited = needs(rig, ("api", 1))
    [running] = [rig.start(limit_key=limited)]
    slow = rig.enqueue(limit_key=limited)
    rig.claim(10)
    urgent = rig.enqueue(limit_key=limited, priority=5)
    rig.claim(10)

    assert ids(turn(rig, running, room=1)) == [urgent]
    assert state_of(rig, slow) == State.HELD


def test_a_woken_job_that_a_claim_does_not_reach_is_not_overtaken_by_its_line(rig: Rig) -> None:
    """The claim has room for one, and finds one for which there is no permit."""
    declare(rig, api=2, gpu=1)
    rig.start(limit_key=needs(rig, ("gpu", 1)))
    rig.enqueue_many(2, limit_key=needs(rig, ("api", 1)))
    first, second = rig.claim(10)
    woken, behind = rig.enqueue_many(2, limit_key=needs(rig, ("api", 1)))
    assert rig.claim(10) == []
    turn(rig, first, room=0)
    settle(rig)
    rig.enqueue(limit_key=needs(rig, ("gpu", 1)), priority=1)

    assert ids(turn(rig, second, room=1)) == [woken]
    assert state_of(rig, behind) == State.HELD


def test_very_many_jobs_of_a_full_key_do_not_keep_others_waiting(rig: Rig) -> None:
    """A burst of one tenant stopped all others behind it, in more than one queue. Those in front are looked at once,
    hundreds at a time."""
    declare(rig, api=1)
    burst = rig.enqueue_many(1_500, limit_key=needs(rig, ("api", 1)))
    other = rig.enqueue()

    started = [ids(turn(rig)) for _ in range(5)]

    assert [job for jobs in started for job in jobs] == [burst[0], other]


def test_all_that_counts_is_in_the_database(rig: Rig) -> None:
    """DBOS lost a key between two steps, and with it the limit (PR 1272): here no process remembers any."""
    declare(rig, api=2)
    rig.enqueue_many(5, limit_key=needs(rig, ("api", 1)))
    first, _ = rig.claim(10)

    fresh = rig.opener(rig.url)
    try:
        lanes = [Lane(rig.queue, 10)]
        assert fresh.claim(lanes, rig.claimer(10, rig.register()), rig.now) == []
        rig.finish(first, Completed())
        fresh.turn(Turn(settle=True), rig.now)
        assert len(fresh.claim(lanes, rig.claimer(10, rig.register()), rig.now)) == 1
    finally:
        fresh.close()


def test_no_permit_ends_by_the_clock(rig: Rig) -> None:
    """Solid Queue let a lock expire while its job still ran (#735)."""
    declare(rig, api=1)
    running = rig.start(limit_key=needs(rig, ("api", 1)))
    waiting = rig.enqueue(limit_key=needs(rig, ("api", 1)))
    rig.clock.advance(seconds=10 * 365 * 86_400)

    rig.store.promote(rig.now, 10)
    settle(rig)
    rig.store.remove_records(rig.now, 10)

    assert rig.claim(10) == []
    assert ids(turn(rig, running)) == [waiting]


# -- several keys ----------------------------------------------------------------------------------------------------


def test_of_many_jobs_that_come_together_most_stand_in_line_at_once(rig: Rig) -> None:
    """So that the jobs of others behind a burst start soon, however long it is."""
    declare(rig, api=3)
    jobs = rig.enqueue_many(40, limit_key=needs(rig, ("api", 1)))
    other = rig.enqueue(limit_key=needs(rig, ("else", 1)))

    lines = [rig.live(job).held_by for job in jobs]
    assert set(lines[:10]) == {None}
    assert set(lines[10:]) == {rig.key("api")}
    assert [one for one in doctor.examine(rig.store) if one.name == "line_asleep"] == []
    held = [*rig.claim(10), *rig.claim(10)]  # a key that is new may be locked by the second only
    assert ids(held) == [*jobs[:3], other]
    started = ids(held)
    while held:
        held = turn(rig, *held)
        started += ids(held)
    assert started == [*jobs[:3], other, *jobs[3:]]


def test_the_most_urgent_of_many_jobs_that_come_together_start_first(rig: Rig) -> None:
    declare(rig, api=2)
    text = needs(rig, ("api", 1))
    usual = [rig.new(limit_key=text) for _ in range(20)]
    urgent = [rig.new(limit_key=text, priority=5) for _ in range(15)]
    rig.store.enqueue([*usual, *urgent])

    held, started = rig.claim(10), list[JobId]()
    while held:
        started += ids(held)
        held = turn(rig, *held)
    assert started == [job.id for job in (*urgent, *usual)]


def test_a_job_gets_all_of_its_permits_or_none(rig: Rig) -> None:
    """Else a job that waits for one key would keep others from another (hatchet PR 4804)."""
    declare(rig, a=1, b=1)
    holder = rig.start(limit_key=needs(rig, ("b", 1)))
    both = rig.enqueue(limit_key=needs(rig, ("a", 1), ("b", 1)))
    rig.claim(10)
    only_a = rig.enqueue(limit_key=needs(rig, ("a", 1)))

    assert ids(rig.claim(10)) == [only_a]
    assert turn(rig, holder) == []
    assert state_of(rig, both) == State.HELD


def test_every_key_of_a_job_counts_at_once(rig: Rig) -> None:
    declare(rig, a=9, b=1)
    jobs = rig.enqueue_many(3, limit_key=needs(rig, ("a", 1), ("b", 1)))

    assert ids(rig.claim(10)) == jobs[:1]


def test_four_limits_with_room_start_a_job_as_soon_as_none(rig: Rig) -> None:
    """In Hatchet two rules on one job cost seconds, although there was room (#2866)."""
    declare(rig, a=1, b=1, c=1, d=1)
    job = rig.enqueue(limit_key=needs(rig, *((name, 1) for name in "abcd")))

    assert ids(turn(rig)) == [job]


def test_a_job_that_joins_another_line_wakes_the_next_of_its_first_one(rig: Rig) -> None:
    declare(rig, a=1, b=1)
    a = rig.start(limit_key=needs(rig, ("a", 1)))
    b = rig.start(limit_key=needs(rig, ("b", 1)))
    both = rig.enqueue(limit_key=needs(rig, ("a", 1), ("b", 1)))
    next_of_a = rig.enqueue(limit_key=needs(rig, ("a", 1)))
    assert rig.claim(10) == []

    [started] = turn(rig, a)

    assert started.job_id == next_of_a
    assert ids(turn(rig, started, b)) == [both]


def test_a_job_with_two_limits_that_ends_without_a_claim_wakes_both_lines(rig: Rig) -> None:
    declare(rig, a=1, b=1)
    running = rig.start(limit_key=needs(rig, ("a", 1), ("b", 1)))
    waiting = [rig.enqueue(limit_key=needs(rig, (name, 1))) for name in "ab"]
    assert rig.claim(10) == []

    rig.finish(running, Completed())
    settle(rig)

    assert ids(rig.claim(10)) == waiting


# -- every way out of running gives permits back ---------------------------------------------------------------------


@each(Completed(), Failed(BROKEN, 1_000_000), Failed(HOPELESS), Snoozed(1_000_000))
def test_every_end_of_a_run_gives_its_permit_back(rig: Rig, report: Report) -> None:
    declare(rig, api=1)
    running = rig.start(limit_key=needs(rig, ("api", 1)))
    waiting = rig.enqueue(limit_key=needs(rig, ("api", 1)))
    assert rig.claim(10) == []

    rig.finish(running, report)
    settle(rig)

    assert ids(rig.claim(10)) == [waiting]


def test_a_rescue_gives_permits_back_once(rig: Rig) -> None:
    """A worker that was presumed dead and comes back frees nothing (solid_queue PR 761)."""
    declare(rig, api=1)
    dead = rig.register()
    rig.enqueue(limit_key=needs(rig, ("api", 1)))
    lost = rig.claim_one(node=dead)
    waiting = rig.enqueue(limit_key=needs(rig, ("api", 1)))
    assert rig.claim(10) == []
    rig.crash(dead)
    settle(rig)
    [again] = rig.claim(10)

    rig.finish(lost, Completed())
    settle(rig)

    assert again.job_id == lost.job_id
    assert rig.claim(10) == []
    assert ids(turn(rig, again)) == [waiting]


@each("failed", "snoozed", "lost")
def test_a_jobs_own_permit_never_blocks_it(rig: Rig, how: str) -> None:
    """Dagster's step waited for the slot that it had itself (#31243). Here it has the only place of three limits."""
    declare(rig, a=1, b=1)
    rig.store.limit_queue(rig.queue, 1)
    node = rig.register()
    job = rig.enqueue(limit_key=needs(rig, ("a", 1), ("b", 1)), max_attempts=5)
    [claim] = rig.claim(10, node=node)

    if how == "lost":
        rig.crash(node)
    else:
        report: Report = Failed(BROKEN, 0) if how == "failed" else Snoozed(0)
        rig.finish(claim, report)
    settle(rig)

    assert ids(rig.claim(10)) == [job]


@each(1, 20)
def test_a_job_that_has_crashed_is_not_overtaken_in_its_line(rig: Rig, keys: int) -> None:
    """Lines are read one by one, or the first of each: neither leaves out those that have crashed."""
    names = [f"api{number}" for number in range(keys)]
    declare(rig, **dict.fromkeys(names, 1))
    dead = rig.register()
    crashed = [rig.enqueue(limit_key=needs(rig, (name, 1))) for name in names]
    assert ids(rig.claim(keys, node=dead)) == crashed
    urgent = [rig.enqueue(limit_key=needs(rig, (name, 1)), priority=1) for name in names]
    behind = [rig.enqueue(limit_key=needs(rig, (name, 1))) for name in names]
    rig.crash(dead)
    running = rig.claim(3 * keys)
    assert ids(running) == urgent

    started = turn(rig, *running, room=2 * keys)
    settle(rig)
    started += rig.claim(2 * keys)

    assert ids(started) == crashed
    assert {state_of(rig, job) for job in behind} == {State.HELD}


def test_a_retry_by_hand_needs_its_permit_again(rig: Rig) -> None:
    declare(rig, api=1)
    limited = needs(rig, ("api", 1))
    first = rig.start(limit_key=limited)
    rig.finish(first, Failed(HOPELESS))
    rig.start(limit_key=limited)
    rig.store.retry(first.job_id, rig.now)

    assert rig.claim(10) == []


def test_a_successor_needs_the_permits_of_the_job_it_continues(rig: Rig) -> None:
    declare(rig, api=1)
    first = rig.start(limit_key=needs(rig, ("api", 1)), as_new_job=True)
    rig.finish(first, Failed(BROKEN))
    settle(rig)
    [following] = rig.claim(10)
    rig.enqueue(limit_key=needs(rig, ("api", 1)))

    assert following.live.limit_key == first.live.limit_key
    assert rig.claim(10) == []


# -- leaving a line --------------------------------------------------------------------------------------------------


def _cancel(rig: Rig, job_id: JobId) -> None:
    rig.cancel(job_id)


def _pause(rig: Rig, job_id: JobId) -> None:
    rig.pause(job_id)


def _edit(rig: Rig, job_id: JobId) -> None:
    live = rig.live(job_id)
    edited = live._replace(limit_key=None, held_by=None, state="queued", version=live.version + 1)
    rig.store.edit(Edit(rig.row(job_id)._replace(limit_key=None), edited, ()), live.version)


def _move(rig: Rig, job_id: JobId) -> None:
    rig.store.move(job_id, Place(), rig.now)


def _supersede(rig: Rig, job_id: JobId) -> None:
    rig.store.supersede(job_id, rig.new(queue=rig.key("elsewhere")), rig.now)


_LEAVE = {"cancelled": _cancel, "paused": _pause, "edited": _edit, "moved": _move, "superseded": _supersede}


@each("cancelled", "paused", "edited", "moved", "superseded")
def test_a_heavy_job_that_leaves_the_front_of_a_line_lets_the_next_go(rig: Rig, left: str) -> None:
    """Dagster PR 17690: who waited behind a job that vanished waited for ever."""
    declare(rig, gpu=4)
    settle(rig)  # else the look that a declaration leaves would let the next go
    rig.start(limit_key=needs(rig, ("gpu", 2)))
    heavy, light = (rig.enqueue(limit_key=needs(rig, ("gpu", weight))) for weight in (3, 1))
    assert rig.claim(10) == []

    _LEAVE[left](rig, heavy)
    settle(rig)

    assert light in ids(rig.claim(10))


def test_an_edit_of_what_a_job_needs_lasts_for_its_later_lives(rig: Rig) -> None:
    """Found by review: a retry took the old key again."""
    declare(rig, old=1, new=1)
    job = rig.enqueue(limit_key=needs(rig, ("old", 1)))
    live, new = rig.live(job), needs(rig, ("new", 1))
    edited = Edit(rig.row(job)._replace(limit_key=new), live._replace(limit_key=new, version=live.version + 1), ())
    rig.store.edit(edited, live.version)
    rig.finish(rig.claim_one(), Failed(HOPELESS))
    settle(rig)

    rig.store.retry(job, rig.now)

    assert (rig.live(job).limit_key, rig.row(job).limit_key) == (new, new)
    rig.start(limit_key=needs(rig, ("old", 1)), priority=1)
    assert ids(rig.claim(10)) == [job]


@each("cancelled", "paused", "edited", "superseded")
def test_a_woken_job_that_leaves_wakes_the_next(rig: Rig, left: str) -> None:
    declare(rig, api=1)
    running = rig.start(limit_key=needs(rig, ("api", 1)))
    woken, following = rig.enqueue_many(2, limit_key=needs(rig, ("api", 1)))
    assert rig.claim(10) == []
    turn(rig, running, room=0)
    settle(rig)

    _LEAVE[left](rig, woken)
    settle(rig)

    assert following in ids(rig.claim(10))


def test_a_node_that_does_not_know_the_kind_parks_it_and_the_next_goes(rig: Rig) -> None:
    declare(rig, api=1)
    limited = needs(rig, ("api", 1))
    running = rig.start(limit_key=limited)
    strange, known = rig.enqueue(limit_key=limited, kind=rig.key("strange")), rig.enqueue(limit_key=limited)
    assert rig.claim(10) == []
    turn(rig, running, room=0)
    settle(rig)

    rig.claim(10, kinds={rig.kind: 1})
    settle(rig)
    rig.claim(10, kinds={rig.kind: 1})

    assert state_of(rig, known) == State.RUNNING
    assert state_of(rig, strange) == State.PARKED


def test_a_parked_job_that_a_node_knows_needs_its_permit(rig: Rig) -> None:
    declare(rig, api=1)
    limited = needs(rig, ("api", 1))
    parked = rig.enqueue(limit_key=limited)
    rig.claim(10, kinds=NONE)
    assert state_of(rig, parked) == State.PARKED
    running = rig.start(limit_key=limited, priority=1)

    assert rig.claim(10) == []
    assert ids(turn(rig, running)) == [parked]


# -- lines in several queues -----------------------------------------------------------------------------------------


def test_a_paused_queue_does_not_keep_the_permits_of_others(rig: Rig) -> None:
    declare(rig, api=1)
    limited, other = needs(rig, ("api", 1)), rig.key("other")
    running = rig.start(limit_key=limited)
    stuck = rig.enqueue(limit_key=limited, queue=other)
    here = rig.enqueue(limit_key=limited)
    assert rig.claim(10) == []
    assert rig.claim(10, queue=other) == []
    rig.store.pause_queue(other, rig.now)

    assert ids(turn(rig, running)) == [here]
    assert state_of(rig, stuck) == State.HELD


def test_a_permit_wakes_the_line_of_a_queue_that_the_node_does_not_serve(rig: Rig) -> None:
    declare(rig, api=1)
    limited, other = needs(rig, ("api", 1)), rig.key("other")
    running = rig.start(limit_key=limited)
    elsewhere = rig.enqueue(limit_key=limited, queue=other)
    assert rig.claim(10, queue=other) == []

    assert turn(rig, running) == []
    assert other in rig.store.glance(rig.node, None).queues
    assert ids(rig.claim(10, queue=other)) == [elsewhere]


# -- changes while jobs wait -----------------------------------------------------------------------------------------


def test_a_limit_that_is_raised_lets_as_many_go(rig: Rig) -> None:
    declare(rig, api=1)
    jobs = rig.enqueue_many(6, limit_key=needs(rig, ("api", 1)))
    rig.claim(10)

    declare(rig, api=4)
    settle(rig)

    assert ids(rig.claim(10)) == jobs[1:4]


def test_a_limit_that_nobody_declares_any_more_lets_its_line_go(rig: Rig) -> None:
    """Solid Queue kept 390,000 jobs blocked (#478)."""
    declare(rig, api=1)
    jobs = rig.enqueue_many(6, limit_key=needs(rig, ("api", 1)))
    rig.claim(10)

    declare(rig)
    settle(rig)

    assert ids(rig.claim(10)) == jobs[1:]


def test_a_limit_that_has_another_name_now_lets_its_line_go(rig: Rig) -> None:
    """Those that wait carry the old name, which nobody declares any more; new jobs carry the new one."""
    declare(rig, api=1)
    old = rig.enqueue_many(4, limit_key=needs(rig, ("api", 1)))
    [running] = rig.claim(10)

    declare(rig, service=1)
    new = rig.enqueue_many(2, limit_key=needs(rig, ("service", 1)))
    settle(rig)

    assert ids(rig.claim(10)) == [*old[1:], new[0]]
    assert running.job_id == old[0]


def test_a_limit_that_another_kind_still_has_stays(rig: Rig) -> None:
    rule = LimitRule(rig.key("api"), "at_once", 1)
    rig.store.declare_limits([rule], [rig.kind], rig.now)
    rig.store.declare_limits([rule], [rig.key("other")], rig.now)
    rig.enqueue_many(2, limit_key=needs(rig, ("api", 1)))
    rig.store.declare_limits([], [rig.kind], rig.now)

    assert len(rig.claim(10)) == 1


def test_a_limit_may_fall_below_what_runs(rig: Rig) -> None:
    declare(rig, api=3)
    jobs = rig.enqueue_many(5, limit_key=needs(rig, ("api", 1)))
    first, second, third = rig.claim(10)

    declare(rig, api=1)

    assert turn(rig, first) == []
    assert turn(rig, second) == []
    assert ids(turn(rig, third)) == [jobs[3]]


def test_what_is_set_by_hand_wins_over_the_code_until_it_is_reset(rig: Rig) -> None:
    declare(rig, api=1)
    name = rig.key("api")
    jobs = rig.enqueue_many(6, limit_key=needs(rig, ("api", 1)))
    rig.claim(10)

    rig.store.set_limit(name, 3, None, rig.now)
    declare(rig, api=1)
    settle(rig)
    assert ids(rig.claim(10)) == jobs[1:3]
    rig.store.reset_limit(name, None)
    settle(rig)

    assert rig.claim(10) == []


def test_one_key_of_a_limit_may_have_its_own_number(rig: Rig) -> None:
    declare(rig, tenant=1)
    acme, other = (key_of(rig.key("tenant"), value) for value in ("acme", "other"))
    of_acme = rig.enqueue_many(3, limit_key=f"{acme}*1")
    of_other = rig.enqueue_many(3, limit_key=f"{other}*1")
    rig.store.set_limit(rig.key("tenant"), 2, acme, rig.now)

    assert set(ids(rig.claim(10))) == {*of_acme[:2], of_other[0]}


def test_a_paused_limit_starts_nothing_until_it_is_resumed(rig: Rig) -> None:
    declare(rig, api=5)
    [job] = rig.enqueue_many(1, limit_key=needs(rig, ("api", 1)))
    rig.store.pause_limit(rig.key("api"), None, rig.now)
    assert rig.claim(10) == []

    rig.store.pause_limit(rig.key("api"), None, None)
    settle(rig)

    assert ids(rig.claim(10)) == [job]


def test_an_empty_value_is_a_key_like_any_other(rig: Rig) -> None:
    """Found by review: its line was not shown, and slept when its limit was raised, or lifted."""
    declare(rig, tenant=1)
    empty, other = key_of(rig.key("tenant"), ""), key_of(rig.key("tenant"), "a")
    jobs = [rig.enqueue(limit_key=f"{key}*1") for key in (empty, other) * 2]
    assert ids(rig.claim(10)) == jobs[:2]
    assert rig.claim(10) == []
    assert [(key.key, key.in_use, key.in_line) for key in rig.store.limit_keys(rig.key("tenant"), rig.now)] == [
        (empty, 1, 1),
        (other, 1, 1),
    ]

    declare(rig, tenant=2)
    settle(rig)

    assert ids(rig.claim(10)) == jobs[2:]


def test_a_limit_with_very_many_keys_in_line_is_looked_at_in_portions(rig: Rig) -> None:
    declare(rig, tenant=1)
    keys = [key_of(rig.key("tenant"), number) for number in range(1_100)]
    rig.store.enqueue([rig.new(limit_key=f"{key}*1") for key in keys for _ in (1, 2)])
    assert len([claim for _ in range(40) for claim in rig.claim(100)]) == 1_100

    declare(rig, tenant=2)
    for _ in range(3):
        settle(rig)

    assert len([claim for _ in range(40) for claim in rig.claim(100)]) == 1_100


LONG = 2_500
"""Jobs in one line: more than anything that is done in portions does at once."""
WIDE = 700
"""More than a claim starts, and more than a portion."""


def _raise(rig: Rig) -> None:
    declare(rig, api=WIDE)


def _set_by_hand(rig: Rig) -> None:
    rig.store.set_limit(rig.key("api"), WIDE, None, rig.now)


def _lift(rig: Rig) -> None:
    declare(rig)


def _rename(rig: Rig) -> None:
    declare(rig, service=1)


def _pause_and_resume(rig: Rig) -> None:
    rig.store.pause_limit(rig.key("api"), None, rig.now)
    settle(rig)
    assert rig.claim(100) == []
    _set_by_hand(rig)
    settle(rig)
    assert rig.claim(100) == []
    rig.store.pause_limit(rig.key("api"), None, None)


_CHANGES = {
    "raised": (_raise, WIDE),
    "set by hand": (_set_by_hand, WIDE),
    "lifted": (_lift, LONG),
    "renamed": (_rename, LONG),
    "paused and resumed": (_pause_and_resume, WIDE),
}


@each(*_CHANGES)
def test_a_limit_may_change_while_thousands_stand_in_one_line(rig: Rig, how: str) -> None:
    """All of them start, in order, as many at once as it then allows."""
    change, most = _CHANGES[how]
    declare(rig, api=1)
    jobs = rig.enqueue_many(LONG, limit_key=needs(rig, ("api", 1)))
    held = rig.claim(10)
    assert ids(held) == jobs[:1]
    assert rig.store.key_state(rig.key("api"), rig.now).in_line > 0

    change(rig)
    settle(rig)

    while claims := rig.claim(500):
        held += claims
    assert len(held) == most
    started: list[JobId] = []
    while held:
        started += ids(held)
        held = turn(rig, *held, room=500)
    assert started == jobs


# -- queues ----------------------------------------------------------------------------------------------------------


def test_no_more_jobs_of_a_queue_run_at_once_than_its_limit(rig: Rig) -> None:
    jobs = rig.enqueue_many(5)
    rig.store.limit_queue(rig.queue, 2)

    first, second = rig.claim(10)
    assert ids([first, second]) == jobs[:2]
    assert rig.claim(10) == []
    assert rig.queue not in rig.store.glance(rig.node, None).queues
    assert ids(turn(rig, first)) == [jobs[2]]


def test_a_limit_of_all_queues_counts_all_running_jobs(rig: Rig) -> None:
    other = rig.key("other")
    here, there = rig.enqueue_many(2), rig.enqueue_many(2, queue=other)
    rig.store.limit_queue("*", 3)
    lanes = [Lane(rig.queue, 10), Lane(other, 10)]

    assert ids(rig.store.claim(lanes, rig.claimer(10), rig.now)) == [*here, there[0]]
    rig.store.limit_queue("*", None)
    assert ids(rig.claim(10, queue=other)) == [there[1]]


def test_a_limit_of_all_queues_is_used_up_by_jobs_that_need_permits(rig: Rig) -> None:
    """There are as many of them as may run, in two queues, and more in line."""
    declare(rig, api=9)
    other = rig.key("other")
    here, there = (rig.enqueue_many(20, limit_key=needs(rig, ("api", 1)), queue=name) for name in (rig.queue, other))
    rig.store.limit_queue("*", 3)
    lanes = [Lane(rig.queue, 10), Lane(other, 10)]

    claims = rig.store.claim(lanes, rig.claimer(10), rig.now)
    assert ids(claims) == here[:3]
    rig.store.limit_queue("*", 5)
    assert ids(rig.claim(10, queue=other)) == there[:2]


def test_a_limited_queue_with_limited_jobs_keeps_both(rig: Rig) -> None:
    declare(rig, api=2)
    rig.enqueue_many(5, limit_key=needs(rig, ("api", 1)))
    plain = rig.enqueue_many(5)
    rig.store.limit_queue(rig.queue, 3)

    claims = rig.claim(10)

    assert Counter(claim.live.limit_key is None for claim in claims) == Counter({False: 2, True: 1})
    assert plain[0] in ids(claims)


# -- rates -----------------------------------------------------------------------------------------------------------

SECOND = 1_000_000


def declare_rate(rig: Rig, sort: str, most: int, per_s: float = 10, burst: int | None = None) -> str:
    """A rate of the rig; what a job carries that it counts."""
    rule = LimitRule(rig.key("rate"), sort, most, round(per_s * SECOND), burst)
    rig.store.declare_limits([rule], [rig.kind], rig.now)
    return needs(rig, ("rate", 1))


def reopen(rig: Rig) -> None:
    """As every worker does once in a while."""
    rig.store.repair("reopen_keys", rig.now, rig.ids, 100)


def started(rig: Rig) -> int:
    """Claim whatever may start, as a worker does that promotes first, and end it at once."""
    rig.store.promote(rig.now, 100)
    claims = rig.claim(100)
    rig.store.finish([rig.report(claim, Completed()) for claim in claims], rig.now)
    return len(claims)


@each("sliding", "fixed", "bucket")
def test_no_more_jobs_start_than_a_rate_allows(rig: Rig, sort: str) -> None:
    limited = declare_rate(rig, sort, 3)
    rig.enqueue_many(5, limit_key=limited)

    assert started(rig) == 3
    assert started(rig) == 0


@each("sliding", "fixed", "bucket")
def test_the_next_opening_of_a_rate_is_seen_and_wakes_exactly_then(rig: Rig, sort: str) -> None:
    """BullMQ slowed a rate of 2 s down to 10 s (#3325)."""
    limited = declare_rate(rig, sort, 2)
    rig.enqueue_many(4, limit_key=limited)
    assert started(rig) == 2

    due = rig.store.glance(rig.node, None).next_due
    assert due is not None
    rig.clock.advance(seconds=(due - rig.now - 1) / SECOND)
    assert started(rig) == 0
    rig.clock.advance(seconds=1 / SECOND)

    assert started(rig) >= 1


def test_a_sliding_rate_is_exact_in_every_window(rig: Rig) -> None:
    limited = declare_rate(rig, "sliding", 5, per_s=10)
    rig.enqueue_many(60, limit_key=limited)
    starts: list[int] = []
    for _ in range(120):
        starts += [rig.now] * started(rig)
        rig.clock.advance(seconds=0.7)

    assert len(starts) >= 0.95 * 5 * 8
    assert all(sum(at <= other < at + 10 * SECOND for other in starts) <= 5 for at in starts)


def test_a_bucket_spreads_its_starts_but_for_the_burst(rig: Rig) -> None:
    limited = declare_rate(rig, "bucket", 10, per_s=10, burst=3)
    rig.enqueue_many(30, limit_key=limited)

    counts: list[int] = []
    for _ in range(6):
        counts.append(started(rig))
        rig.clock.advance(seconds=1)

    assert counts == [3, 1, 1, 1, 1, 1]


@each((3, 10, 1), (7, 10, 1), (3, 1, 2), (7, 60, 5), (9, 1, 9))
def test_a_bucket_gives_all_of_its_burst_and_not_one_more(rig: Rig, most: int, per_s: int, burst: int) -> None:
    """Found by review: where the time of a start is no whole number of microseconds, the last one of a burst was
    refused, and with burst=1 every one. Here they start one by one."""
    limited = declare_rate(rig, "bucket", most, per_s, burst)
    rig.enqueue_many(3 * burst, limit_key=limited)

    assert len([claim for _ in range(2 * burst) for claim in rig.claim(1)]) == burst
    assert rig.store.key_state(rig.key("rate"), rig.now).in_use == burst


def test_a_bucket_gives_as_many_starts_in_the_long_run_as_it_says(rig: Rig) -> None:
    """What is left of a microsecond at each start is kept: it adds up. Seven starts in ten seconds, after the burst."""
    limited = declare_rate(rig, "bucket", 7, 10, 2)
    rig.enqueue_many(72, limit_key=limited)
    begun, count = rig.now, started(rig)
    while count < 72:
        due = rig.store.glance(rig.node, None).next_due
        assert due is not None
        rig.clock.advance(seconds=(due - rig.now) / SECOND)
        count += started(rig)

    assert rig.now - begun == 100 * SECOND


def test_a_fixed_window_begins_by_the_clock(rig: Rig) -> None:
    limited = declare_rate(rig, "fixed", 2, per_s=10)
    rig.clock.advance(seconds=9)
    rig.enqueue_many(6, limit_key=limited)

    assert started(rig) == 2
    rig.clock.advance(seconds=1)
    assert started(rig) == 2
    rig.clock.advance(seconds=9)
    assert started(rig) == 0


@each("sliding", "fixed", "bucket")
def test_a_clock_that_was_set_back_closes_a_rate_for_one_window_at_most(rig: Rig, sort: str) -> None:
    """Though nobody enqueues anything: a worker looks at keys that open later than they can."""
    limited = declare_rate(rig, sort, 2)
    rig.enqueue_many(10, limit_key=limited)
    assert started(rig) == 2
    assert started(rig) == 0
    rig.clock.step(seconds=-3_600)
    assert "key_opens_never" in _named(rig)

    reopen(rig)

    assert "key_opens_never" not in _named(rig)
    due = rig.store.glance(rig.node, None).next_due
    assert due is None or due <= rig.now + 10 * SECOND
    count = started(rig)
    rig.clock.advance(seconds=10)
    assert count + started(rig) >= 2


def test_a_rate_opens_also_where_a_clock_behind_others_noted_when(rig: Rig) -> None:
    """Found by the simulator: the key was full when it was due, and nobody was to look again."""
    limited = declare_rate(rig, "sliding", 2, per_s=10)
    rig.enqueue_many(2, limit_key=limited)
    assert started(rig) == 2
    rig.clock.step(seconds=-2)
    rig.enqueue(limit_key=limited)
    assert started(rig) == 0
    rig.clock.advance(seconds=10)
    assert started(rig) == 0, "the two of before still count"
    rig.clock.advance(seconds=2)

    assert started(rig) == 1


@each("sliding", "fixed", "bucket")
def test_a_clock_that_was_set_back_by_less_than_a_window_leaves_no_line_asleep(rig: Rig, sort: str) -> None:
    """What has started since then still counts, so that the key may be full."""
    limited = declare_rate(rig, sort, 2, per_s=60)
    rig.enqueue_many(10, limit_key=limited)
    assert started(rig) == 2
    assert started(rig) == 0
    rig.clock.step(seconds=-40)

    reopen(rig)

    assert "line_asleep" not in _named(rig)
    count = started(rig)
    for _ in range(2):
        rig.clock.advance(seconds=60)
        count += started(rig)
    assert count >= 2


def test_a_key_that_opens_in_a_year_by_a_mistake_opens_within_its_window(rig: Rig) -> None:
    limited = declare_rate(rig, "sliding", 1)
    rig.enqueue_many(3, limit_key=limited)
    assert started(rig) == 1
    assert started(rig) == 0
    rig.execute("UPDATE {limit_key} SET opens_at = opens_at + 31536000000000")
    [key] = rig.store.limit_keys(rig.key("rate"), rig.now)
    assert key.opens_at is not None
    assert key.opens_at <= rig.now + 10 * SECOND

    assert repairs.repair(rig.store, "reopen_keys") == 1

    rig.clock.advance(seconds=10)
    assert started(rig) == 1


def test_a_place_that_is_held_beyond_any_lease_is_free_one_lease_from_now(rig: Rig) -> None:
    """As that of a block whose process died before the clock was set back."""
    declare(rig, gpu=1)
    rig.store.take_hold(rig.key("gpu"), 1, rig.ids.new(), rig.now, 30 * SECOND)
    job = rig.enqueue(limit_key=needs(rig, ("gpu", 1)))
    assert rig.claim(10) == []
    rig.clock.step(seconds=-3_600)

    reopen(rig)

    assert rig.store.glance(rig.node, None).next_due == rig.now + 30 * SECOND
    rig.clock.advance(seconds=30)
    rig.store.promote(rig.now, 10)
    assert ids(rig.claim(10)) == [job]


@each("sliding", "fixed", "bucket")
def test_a_job_that_starts_twice_at_one_instant_counts_twice(rig: Rig, sort: str) -> None:
    """As with a clock that was set back, or one that stands still in a test."""
    limited = declare_rate(rig, sort, 2)
    job = rig.enqueue(limit_key=limited)
    rig.enqueue(limit_key=limited)
    dead = rig.register()
    assert ids(rig.claim(1, node=dead)) == [job]
    rig.crash(dead)

    assert ids(rig.claim(1)) == [job]
    assert rig.claim(10) == []


@each("sliding", "fixed", "bucket")
def test_a_heavy_job_spends_more_of_a_rate(rig: Rig, sort: str) -> None:
    declare_rate(rig, sort, 4)
    rig.enqueue_many(3, limit_key=needs(rig, ("rate", 2)))

    assert started(rig) == 2
    assert rig.store.key_state(rig.key("rate"), rig.now).in_use == 4


def test_a_job_that_is_held_up_by_its_rate_holds_no_permit(rig: Rig) -> None:
    """All permits of a job or none, whatever their sort (hatchet PR 4804)."""
    rate = LimitRule(rig.key("rate"), "sliding", 1, 10 * SECOND)
    rig.store.declare_limits([rate, LimitRule(rig.key("gpu"), "at_once", 1)], [rig.kind], rig.now)
    both = needs(rig, ("gpu", 1), ("rate", 1))
    first = rig.start(limit_key=both)
    second = rig.enqueue(limit_key=both)
    gpu = rig.enqueue(limit_key=needs(rig, ("gpu", 1)))
    assert rig.claim(10) == []

    assert ids(turn(rig, first)) == [gpu]
    assert state_of(rig, second) == State.HELD


def test_a_key_that_is_new_is_not_passed_over_in_a_turn_in_which_a_rate_opens(rig: Rig) -> None:
    """Found by random sequences on three databases: servers had no row of it to lock."""
    limited = declare_rate(rig, "sliding", 1)
    declare(rig, api=1)
    declare_rate(rig, "sliding", 1)
    rig.enqueue_many(2, limit_key=limited)
    assert started(rig) == 1
    assert started(rig) == 0
    rig.clock.advance(seconds=10)
    jobs = [rig.enqueue(limit_key=needs(rig, (name, 1))) for name in ("new", "api")]
    wanted = Turn(promote=10, lanes=[Lane(rig.queue, 10)], claimer=rig.claimer(10))

    assert set(ids(rig.store.turn(wanted, rig.now).claims)) >= set(jobs)


def test_a_rate_that_is_raised_lets_more_go_at_once(rig: Rig) -> None:
    limited = declare_rate(rig, "sliding", 1)
    rig.enqueue_many(5, limit_key=limited)
    assert started(rig) == 1

    rig.store.set_limit(rig.key("rate"), 3, None, rig.now)
    settle(rig)

    assert started(rig) == 2


# -- blocks of code --------------------------------------------------------------------------------------------------


def test_a_block_holds_a_place_until_it_gives_it_back(rig: Rig) -> None:
    declare(rig, gpu=2)
    key, holder = rig.key("gpu"), rig.ids.new()
    assert rig.store.take_hold(key, 2, holder, rig.now, 30 * SECOND)
    job = rig.enqueue(limit_key=needs(rig, ("gpu", 1)))
    assert not rig.store.take_hold(key, 1, rig.ids.new(), rig.now, 30 * SECOND)
    assert rig.claim(10) == []

    rig.store.drop_hold(key, holder)
    settle(rig)

    assert ids(rig.claim(10)) == [job]


def test_the_place_of_a_block_whose_process_died_is_free_when_its_lease_ends(rig: Rig) -> None:
    declare(rig, gpu=1)
    key, holder = rig.key("gpu"), rig.ids.new()
    rig.store.take_hold(key, 1, holder, rig.now, 30 * SECOND)
    job = rig.enqueue(limit_key=needs(rig, ("gpu", 1)))
    assert rig.claim(10) == []
    rig.clock.advance(seconds=20)
    assert rig.store.renew_hold(key, holder, rig.now, 30 * SECOND)
    rig.clock.advance(seconds=20)
    rig.store.promote(rig.now, 10)
    assert rig.claim(10) == []

    assert rig.store.glance(rig.node, None).next_due == rig.now + 10 * SECOND
    rig.clock.advance(seconds=10)
    rig.store.promote(rig.now, 10)

    assert ids(rig.claim(10)) == [job]


def test_a_place_whose_lease_has_ended_is_not_renewed(rig: Rig) -> None:
    """Found by review: a block that had stood still for longer than its lease took back what another had by then."""
    declare(rig, gpu=1)
    key, first, second = rig.key("gpu"), rig.ids.new(), rig.ids.new()
    assert rig.store.take_hold(key, 1, first, rig.now, 30 * SECOND)
    read_before = Micros(rig.now + 29 * SECOND)
    rig.clock.advance(seconds=30)
    assert not rig.store.renew_hold(key, first, rig.now, 30 * SECOND), "nobody has taken it yet"

    assert rig.store.take_hold(key, 1, second, rig.now, 30 * SECOND)

    assert not rig.store.renew_hold(key, first, read_before, 30 * SECOND)
    rig.store.drop_hold(key, first)
    assert rig.store.key_state(key, rig.now).in_use == 1
    assert rig.store.renew_hold(key, second, rig.now, 30 * SECOND)


def test_a_place_that_a_job_has_after_a_lease_is_not_renewed(rig: Rig) -> None:
    declare(rig, gpu=1)
    key, holder = rig.key("gpu"), rig.ids.new()
    assert rig.store.take_hold(key, 1, holder, rig.now, 30 * SECOND)
    read_before = Micros(rig.now + 29 * SECOND)
    rig.clock.advance(seconds=30)
    rig.start(limit_key=needs(rig, ("gpu", 1)))

    assert not rig.store.renew_hold(key, holder, read_before, 30 * SECOND)
    assert rig.store.key_state(key, rig.now).in_use == 1


def test_what_a_block_has_spent_of_a_rate_needs_no_renewal(rig: Rig) -> None:
    declare_rate(rig, "sliding", 2)
    holder = rig.ids.new()
    assert rig.store.take_hold(rig.key("rate"), 1, holder, rig.now, 30 * SECOND)
    rig.clock.advance(seconds=60)

    assert rig.store.renew_hold(rig.key("rate"), holder, rig.now, 30 * SECOND)


# -- the doctor ------------------------------------------------------------------------------------------------------


def _named(rig: Rig) -> set[str]:
    return {finding.name for finding in doctor.examine(rig.store, rig.now)}


def test_the_doctor_finds_a_line_that_nobody_looks_at_and_wakes_it(rig: Rig) -> None:
    declare(rig, api=1)
    jobs = rig.enqueue_many(2, limit_key=needs(rig, ("api", 1)))
    [running] = rig.claim(10)
    turn(rig, running, room=0)
    rig.execute("DELETE FROM {limit_look}")
    assert "line_asleep" in _named(rig)

    repairs.repair(rig.store, "wake_lines")

    assert "line_asleep" not in _named(rig)
    assert ids(rig.claim(10)) == jobs[1:]


def test_the_doctor_finds_a_permit_that_no_job_holds_and_frees_it(rig: Rig) -> None:
    declare(rig, api=1)
    jobs = rig.enqueue_many(2, limit_key=needs(rig, ("api", 1)))
    [running] = rig.claim(10)
    rig.execute(f"UPDATE {{permit}} SET holder = {rig.id_of('00' * 15 + '07')}")  # noqa: S608
    assert "permit_without_run" in _named(rig)
    rig.finish(running, Completed())
    settle(rig)
    assert rig.claim(10) == []

    repairs.repair(rig.store, "free_permits")

    assert ids(rig.claim(10)) == jobs[1:]


def test_the_doctor_says_that_a_limit_fell_below_what_runs(rig: Rig) -> None:
    declare(rig, api=2)
    rig.enqueue_many(2, limit_key=needs(rig, ("api", 1)))
    rig.claim(10)
    declare(rig, api=1)

    assert "over_limit" in _named(rig)
