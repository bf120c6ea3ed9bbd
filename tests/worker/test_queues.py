"""Which queues a worker serves, in what order, and how many jobs of each at once."""

from __future__ import annotations

import threading
from collections import Counter

from perdure import JobContext, Perdure, State


def test_without_names_every_queue_is_served(app: Perdure) -> None:
    ran: list[str] = []

    @app.job
    def note(ctx: JobContext) -> None:
        ran.append(ctx.job.queue)

    for queue in ("a", "b", "c"):
        note.options(queue=queue).enqueue()
    app.worker().run(until_idle=True)

    assert sorted(ran) == ["a", "b", "c"]


def test_a_queue_that_is_not_named_is_left_alone(app: Perdure) -> None:
    @app.job
    def note() -> None: ...

    served, other = note.options(queue="a").enqueue(), note.options(queue="b").enqueue()
    app.worker(["a"]).run(until_idle=True)

    assert app.existing(served).state is State.COMPLETED
    assert app.existing(other).state is State.QUEUED


def test_work_for_others_does_not_keep_a_worker_from_being_idle(app: Perdure) -> None:
    """Whether it looks before or after the job ends: one of the rounds has it so that the look sees the new job."""

    @app.job(queue="a")
    def passed_on() -> None:
        passed_on.options(queue="b").enqueue()

    for _ in range(30):
        passed_on.enqueue()
        app.worker(["a"], poll_s=3600).run(until_idle=True)

    assert {job.queue for job in app.jobs(state="queued")} == {"b"}


def ran_in_order(app: Perdure, order: str) -> list[str]:
    ran: list[str] = []

    @app.job
    def note(ctx: JobContext) -> None:
        ran.append(ctx.job.queue)

    for queue in ("low", "high"):
        note.options(queue=queue).enqueue_many([{}] * 3)
    app.worker(["high", "low"], concurrency=1, order=order).run(until_idle=True)  # type: ignore[arg-type]
    return ran


def test_in_strict_order_the_first_queue_is_emptied_first(app: Perdure) -> None:
    assert ran_in_order(app, "strict") == ["high"] * 3 + ["low"] * 3


def test_in_turn_no_queue_waits_for_the_other_to_be_empty(app: Perdure) -> None:
    ran = ran_in_order(app, "round_robin")

    assert sorted(ran) == ["high"] * 3 + ["low"] * 3
    assert ran not in (["high"] * 3 + ["low"] * 3, ["low"] * 3 + ["high"] * 3)


def test_a_queue_has_no_more_jobs_at_once_than_it_may(app: Perdure) -> None:
    entered, go = threading.Semaphore(0), threading.Event()

    @app.job
    def hold() -> None:
        entered.release()
        go.wait(60)

    for queue in ("narrow", "wide"):
        hold.options(queue=queue).enqueue_many([{}] * 5)
    with app.worker({"narrow": 1, "wide": 3}).running():
        for _ in range(4):
            entered.acquire()
        running = Counter(job.queue for job in app.jobs(state="running"))
        go.set()

    assert running == {"narrow": 1, "wide": 3}


def test_what_already_runs_counts_towards_the_limit_of_its_queue(app: Perdure) -> None:
    entered, go = threading.Semaphore(0), threading.Event()

    @app.job
    def hold() -> None:
        entered.release()
        go.wait(60)

    narrow, wide = hold.options(queue="narrow"), hold.options(queue="wide")
    narrow.enqueue()
    with app.worker({"narrow": 1, "wide": 3}).running():
        entered.acquire()
        app.enqueue_many([narrow.new(), wide.new()])  # at once: a claim that takes the second sees the first
        entered.acquire()
        running = Counter(job.queue for job in app.jobs(state="running"))
        go.set()

    assert running == {"narrow": 1, "wide": 1}
    assert {job.state for job in app.jobs()} <= {State.COMPLETED, State.QUEUED}


def test_no_more_jobs_are_claimed_than_can_start(app: Perdure) -> None:
    entered, go = threading.Semaphore(0), threading.Event()

    @app.job
    def hold() -> None:
        entered.release()
        go.wait(60)

    hold.enqueue_many([{}] * 5)
    with app.worker(concurrency=2).running() as worker:
        entered.acquire()
        entered.acquire()
        running = sum(job.state is State.RUNNING for job in app.jobs())
        assert (running, worker.health().running) == (2, 2)
        go.set()


def test_a_paused_queue_waits_and_goes_on(app: Perdure) -> None:
    @app.job
    def note() -> None: ...

    app.queues.pause("default")
    job = note.enqueue()
    app.worker().run(until_idle=True)
    assert app.existing(job).state is State.QUEUED

    app.queues.resume("default")
    app.worker().run(until_idle=True)
    assert app.existing(job).state is State.COMPLETED
