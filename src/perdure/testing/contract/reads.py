"""Reading jobs. Protocol `ReadOperations`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from perdure.ids import JobId
from perdure.job.reports import Cancelled, Completed, Failed, Finish, Report, Skipped
from perdure.job.states import FINAL, LIVE, State
from perdure.job.views import Job
from perdure.store.rows import FIRST_ID, LAST_ID, JobFilter, Spot
from perdure.testing.contract.case import each
from perdure.testing.contract.rig import BROKEN, HOPELESS, Rig, Wish
from perdure.testing.contract.states import in_state


def test_what_is_not_there_is_none(rig: Rig) -> None:
    nobody = JobId(rig.ids.new())

    assert (rig.store.get(nobody), rig.store.row(nobody), rig.store.live(nobody)) == (None, None, None)


@each(*sorted(LIVE))
def test_a_live_job_is_read_with_its_live_row(rig: Rig, state: State) -> None:
    job_id = in_state(rig, state, params='{"p":1}', priority=3)
    job, live = rig.job(job_id), rig.live(job_id)

    assert (job.state, job.row.finished_at, job.result) == (state, None, None)
    assert (job.row.rank, job.row.position, job.row.run_at) == (live.rank, live.position, live.run_at)
    assert (job.row.run_id, job.row.node_id) == (live.run_id, live.node_id)
    assert (job.attempts, job.version, job.waits_for) == (live.attempts, live.version, live.waits_for)


@each(*sorted(FINAL))
def test_an_ended_job_is_read_from_its_outcome(rig: Rig, state: State) -> None:
    job_id = in_state(rig, state, priority=3)
    job = rig.job(job_id)

    assert (job.state, job.row.finished_at, job.priority) == (state, rig.now, 3)
    assert (job.run_id, job.node_id) == (None, None)
    assert rig.store.live(job_id) is None
    assert rig.row(job_id).id == job_id


def test_a_job_in_a_later_life_shows_that_life(rig: Rig) -> None:
    claim = rig.start()
    rig.finish(claim, Failed(HOPELESS))
    rig.store.retry(claim.job_id, rig.now)
    rig.finish(rig.claim_one(), Completed('"second"'))

    job = rig.job(claim.job_id)
    assert (job.state, job.life, job.result, job.error) == (State.COMPLETED, 2, "second", None)


# -- listings --------------------------------------------------------------------------------------------------------


@each(*sorted(State))
def test_jobs_are_found_by_state(rig: Rig, state: State) -> None:
    found = {other: in_state(rig, other) for other in _after_others(state)}

    assert rig.jobs(JobFilter(state=state, kind=rig.kind)) == [found[state]]
    assert rig.jobs(JobFilter(state=state, queue=rig.queue)) == [found[state]]


def _after_others(wanted: State) -> list[State]:
    """Some other states and this one, in an order that one queue allows."""
    others = [State.COMPLETED, State.FAILED, State.SKIPPED, State.CANCELLED, State.SCHEDULED, State.PAUSED]
    return [state for state in others if state != wanted] + [wanted]


def test_jobs_are_listed_newest_first(rig: Rig) -> None:
    ids = rig.enqueue_many(3)
    rig.store.set_priority(ids[0], -9, rig.now)

    assert rig.jobs(JobFilter(kind=rig.kind)) == ids[::-1]
    assert rig.jobs(JobFilter(), 3) == ids[::-1]


def test_the_queued_jobs_of_a_queue_are_listed_in_queue_order(rig: Rig) -> None:
    ids = rig.enqueue_many(3)
    rig.store.set_priority(ids[2], -9, rig.now)
    rig.enqueue(delay_s=5)

    assert rig.in_order() == [ids[2], ids[0], ids[1]]


def test_all_filters_have_to_fit(rig: Rig) -> None:
    job_id = rig.enqueue(owner="shop", tags=("t",), business_key=rig.key("b"), idempotency_key=rig.key("k"))
    rig.enqueue(owner="shop", tags=("t",))
    fits = JobFilter(
        state="queued",
        queue=rig.queue,
        kind=rig.kind,
        owner="shop",
        tag="t",
        business_key=rig.key("b"),
        idempotency_key=rig.key("k"),
    )

    assert rig.jobs(fits) == [job_id]
    misfits = [_with(fits, name, "other") for name in fits._fields if name not in ("from_id", "below")]
    assert [rig.jobs(misfit) for misfit in misfits] == [[]] * len(misfits)


@each("state", "queue", "kind", "owner", "tag", "business_key", "idempotency_key")
def test_each_filter_narrows_every_listing(rig: Rig, driving: str) -> None:
    """Whichever filter chooses the index, the others apply too."""
    job_id = rig.enqueue(owner="shop", tags=("t",), business_key=rig.key("b"), idempotency_key=rig.key("k"))
    own = {"state": "queued", "queue": rig.queue, "kind": rig.kind, "owner": "shop", "tag": "t"}
    own |= {"business_key": rig.key("b"), "idempotency_key": rig.key("k")}
    wanted = _with(JobFilter(), driving, own[driving])

    assert job_id in rig.jobs(wanted)
    for name in ("owner", "kind", "queue", "tag", "state"):
        if name != driving:
            assert rig.jobs(_with(wanted, name, "other")) == []
            assert job_id in rig.jobs(_with(wanted, name, own[name]))


def _with(wanted: JobFilter, name: str, value: str) -> JobFilter:
    changes: dict[str, Any] = {name: value}
    return wanted._replace(**changes)


def test_jobs_are_found_by_the_time_they_were_made(rig: Rig) -> None:
    ids = rig.enqueue_many(4)
    between = JobFilter(kind=rig.kind, from_id=ids[1], below=ids[3])

    assert rig.jobs(between) == [ids[2], ids[1]]
    assert rig.jobs(between._replace(state="queued", queue=rig.queue)) == [ids[1], ids[2]]


@each(
    JobFilter(),
    JobFilter(state="queued"),
    JobFilter(state="completed"),
    JobFilter(tag="t"),
    JobFilter(owner="contract"),
)
def test_pages_follow_each_other_without_gap_or_overlap(rig: Rig, wanted: JobFilter) -> None:
    wanted = wanted._replace(kind=rig.kind)
    rig.enqueue_many(4, tags=("t",))
    for claim in rig.claim(4):
        rig.finish(claim, Completed())
    rig.enqueue_many(5, tags=("t",))

    assert _paged(rig, wanted) == rig.jobs(wanted)


def test_pages_of_a_queue_follow_each_other_in_queue_order(rig: Rig) -> None:
    for priority in (0, 2, 0, -1, 2, 0, 1):
        rig.enqueue(priority=priority)

    assert _paged(rig, JobFilter(state="queued", queue=rig.queue)) == rig.in_order()


def _paged(rig: Rig, wanted: JobFilter) -> list[JobId]:
    return [job.row.id for job in _by_pages(rig, wanted, 2)]


def test_a_job_that_was_retried_is_not_listed_with_its_old_end(rig: Rig) -> None:
    claim = rig.start()
    rig.finish(claim, Failed(HOPELESS))
    rig.store.retry(claim.job_id, rig.now)
    assert rig.jobs(JobFilter(state="failed", kind=rig.kind)) == []

    rig.cancel(claim.job_id)
    assert rig.jobs(JobFilter(state="failed", kind=rig.kind)) == []
    assert rig.jobs(JobFilter(state="cancelled", kind=rig.kind)) == [claim.job_id]


def test_a_job_that_failed_in_two_lives_is_listed_once(rig: Rig) -> None:
    claim = rig.start()
    rig.finish(claim, Failed(HOPELESS))
    rig.store.retry(claim.job_id, rig.now)
    rig.finish(rig.claim_one(), Failed(HOPELESS))

    assert rig.jobs(JobFilter(state="failed", kind=rig.kind)) == [claim.job_id]


# -- every filter, against a look at every job -----------------------------------------------------------------------


@each(1, 2, 3)
def test_every_combination_of_filters_gives_what_a_look_at_every_job_gives(rig: Rig, seed: int) -> None:
    rng = random.Random(seed)
    ids = _varied_jobs(rig, rng)
    jobs = [rig.job(job_id) for job_id in ids]

    for wanted in rng.sample(_combinations(rig, ids), 60):
        expected = sorted((job for job in jobs if _fits(job, wanted)), key=_order_of(wanted))
        for size in (1, 3, 100):
            found = [job for job in _by_pages(rig, wanted, size) if job.row.id in ids]
            assert found == expected, (wanted, size)


@each(1, 2, 3)
def test_a_job_that_fits_all_the_while_is_listed_once_whatever_happens_to_others_between_pages(
    rig: Rig, seed: int
) -> None:
    rng = random.Random(seed)
    ids = _varied_jobs(rig, rng)

    for wanted in rng.sample(_combinations(rig, ids), 20):
        ever = always = {job_id for job_id in ids if _fits(rig.job(job_id), wanted)}
        found: list[JobId] = []
        for job in _by_pages(rig, wanted, 2):
            found.append(job.row.id)
            _change_one(rig, rng, ids)
            now = {job_id for job_id in ids if _fits(rig.job(job_id), wanted)}
            ever, always = ever | now, always & now
        mine = [job_id for job_id in found if job_id in ids]
        assert len(mine) == len(set(mine)), wanted
        assert always <= set(mine) <= ever, wanted


def _varied_jobs(rig: Rig, rng: random.Random) -> list[JobId]:
    """Jobs in various states, of several queues, kinds, owners and tags; some have a second life."""
    queues, kinds = ([rig.key(f"{sort}{number}") for number in range(3)] for sort in ("queue", "kind"))
    ids: list[JobId] = []
    for number in range(30):
        wish = Wish(
            queue=rng.choice(queues),
            kind=rng.choice(kinds),
            owner=rng.choice(["shop", "mill"]),
            tags=rng.choice([(), ("t",), ("t", "u")]),
            priority=rng.choice([0, 0, 2]),
            delay_s=rng.choice([0, 0, 0, 60]),
        )
        if number % 2:
            wish["business_key"] = rig.key(f"business{number}")
        ids.append(rig.enqueue(**wish))
    for _ in range(60):
        _change_one(rig, rng, ids)
    return ids


def _change_one(rig: Rig, rng: random.Random, ids: list[JobId]) -> None:
    """Change a job by one step, if possible. No job is moved: places in the queue do not change."""
    job = rig.job(rng.choice(ids))
    match job.state:
        case State.QUEUED:
            steps: list[Callable[[], object]] = [
                lambda: rig.pause(job.row.id),
                lambda: rig.cancel(job.row.id),
                lambda: rig.claim(2, queue=job.queue),
            ]
            rng.choice(steps)()
        case State.RUNNING:
            live = rig.live(job.row.id)
            reports: list[Report] = [Completed(), Completed(), Failed(HOPELESS), Skipped(), Cancelled()]
            report = rng.choice(reports)
            rig.store.finish([Finish(live, report, JobId(rig.ids.new()))], rig.now)
        case State.PAUSED:
            rig.resume(job.row.id)
        case _:
            pass


def _combinations(rig: Rig, ids: list[JobId]) -> list[JobFilter]:
    keys = [key for job_id in ids if (key := rig.job(job_id).business_key)]
    bounds = [(FIRST_ID, LAST_ID), (ids[10], LAST_ID), (FIRST_ID, ids[20]), (ids[5], ids[25])]
    return [
        JobFilter(state, queue, kind, owner, tag, key, None, *bound)
        for state in (None, *State)
        for queue in (None, rig.key("queue0"), rig.key("nowhere"))
        for kind in (None, rig.key("kind1"))
        for owner in (None, "shop")
        for tag in (None, "u")
        for key in (None, None, None, keys[0])
        for bound in bounds
    ]


def _fits(job: Job, wanted: JobFilter) -> bool:
    row = job.row
    given = {name: getattr(wanted, name) for name in ("state", "queue", "kind", "owner", "business_key")}
    return (
        all(value is None or getattr(row, name) == value for name, value in given.items())
        and (wanted.tag is None or wanted.tag in job.tags)
        and wanted.from_id <= row.id < wanted.below
    )


def _order_of(wanted: JobFilter) -> Callable[[Job], Any]:
    if wanted.state == State.QUEUED and wanted.queue is not None:
        return lambda job: (job.row.rank, job.row.position, job.row.id)
    return lambda job: -int.from_bytes(job.row.id)


def _by_pages(rig: Rig, wanted: JobFilter, size: int) -> Iterator[Job]:
    spot: Spot | None = None
    while True:
        page = rig.store.jobs(wanted, spot, size)
        yield from page.items
        if page.next is None:
            return
        assert page.next != spot, "the next page would be this one again"
        spot = page.next


# -- the place of a job ----------------------------------------------------------------------------------------------


def test_the_jobs_ahead_of_a_job_are_counted(rig: Rig) -> None:
    first, second = rig.enqueue_many(2)
    high = rig.enqueue(priority=1)
    rig.enqueue(queue=rig.key("other"), priority=9)
    rig.enqueue(delay_s=9, priority=9)

    assert [rig.store.count_ahead(rig.job(job_id), 9) for job_id in (high, first, second)] == [0, 1, 2]


def test_the_jobs_ahead_are_counted_no_further_than_asked(rig: Rig) -> None:
    last = rig.enqueue_many(5)[-1]

    assert [rig.store.count_ahead(rig.job(last), cap) for cap in (3, 4, 5)] == [3, 4, 4]


def test_what_a_job_waits_for_is_listed(rig: Rig) -> None:
    running = rig.start()
    replacement = rig.new()
    rig.store.supersede(running.job_id, replacement, rig.now)

    assert rig.store.waited_for(replacement.id, 5) == [(running.job_id, replacement.id, "end", "waiting")]
    rig.finish(running, Cancelled())
    assert rig.store.waited_for(replacement.id, 5) == [(running.job_id, replacement.id, "end", "met")]


def test_a_read_sees_what_was_written_before_it(rig: Rig) -> None:
    for _ in range(20):
        claim = rig.start()
        assert rig.job(claim.job_id).state == State.RUNNING
        rig.finish(claim, Failed(BROKEN))
        assert rig.job(claim.job_id).state == State.QUEUED
        rig.cancel(claim.job_id)
        assert rig.job(claim.job_id).state == State.CANCELLED
