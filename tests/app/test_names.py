"""What users see of the package and of what they hold, name by name: a new one here is a decision."""

from __future__ import annotations

import inspect
from typing import Any, get_args, get_type_hints

import pytest

import perdure
from perdure import Job, JobContext, Perdure, Planned, Run, RunState, State
from perdure.aio import AsyncSchedules
from perdure.config import Config, Settings
from perdure.job.states import FINAL, EndName, RunStateName, StateName
from perdure.kind import Bound, Kind
from perdure.schedules import Schedules
from perdure.testing import Kit
from perdure.worker.worker import Worker
from tests.app import by_hand

PACKAGE = """
    Cancel ConfigError DatabaseBusy DatabaseUnavailable Done Draft Fail Flow FlowNotFound FlowState InvalidInput
    InvalidOption InvalidPayload Job JobContext JobFailed JobNotFound KeyConflict Kind KindError Limit LimitReached
    LockNotHeld Outcome Perdure PerdureError Planned Priority Rate ReservationBusy ReservationExpired Retention
    Retry RetryAfter Run RunState ScheduleError SchemaError Secret Skip Snooze State StoreError TemplateError
    TransactionError TransactionTooLong TransitionRefused Unique WaitTimeout current each previous principal
"""
VERBS = """
    archive archived archived_jobs batch cancel cancel_all chain delete edit enqueue enqueue_many explain flows get
    group jobs limits logs move pause pause_all purge queues reservations reserve resume resume_all retry retry_all
    run_direct runs schedules set_priority supersede templates trigger wait workflow
"""
APP = f"{VERBS} aio close config job kinds lock middleware owner schedule store testing transaction url worker"
BOUND = "aenqueue aenqueue_many enqueue enqueue_many new options"
KIND = f"{BOUND} aliases app await_ function isolation name result version wait"
JOB = """
    attempts business_key cancel_requested crashes created_at deduplicated error error_type finished_at flow_id id
    idempotency_key is_final kind kind_version life max_attempts node_id owner params parent_id park_reason payload
    position principal priority queue queued_at result retry_of root_id run_at run_id schedule_id scheduled_for
    started_at state successor superseded_by tags template_id template_version unreadable version waits_for
"""
RUN = """
    artifacts attempt duration_ms error error_type exit_code finished_at id job_id kind life log_path metrics node_id
    started_at state traceback unreadable wait_ms
"""
CONTEXT = """
    artifact attempt checkpoint data_interval enqueue flow job job_id kind log metric next_scheduled_for outcomes params
    principal progress results run run_id scheduled_for should_stop state transaction
"""
WORKER = "exit_code health hurry run running stop"
KIT = """
    aadvance aassert_enqueued aassert_not_enqueued adrain advance aenqueued app assert_enqueued assert_not_enqueued
    context drain enqueued now
"""
FLOW = """
    added at_once attempt attempts cancel_requested cancelled completed created_at deduplicated ended eta failed
    filled_by finished_at id is_final is_open key name on_failure owner parent_id paused_at principal progress
    properties run_ms running sealed_at skipped sort state success_rate summary total wait_ms waiting
"""
PLANNING = "add batch chain choose group id map name summary"
RESERVATION = "by check expires_at id keep queue release renew"


def shown(what: object) -> list[str]:
    """Without those that Python itself gives to everything."""
    return [name for name in dir(what) if not (name.startswith("__") and name.endswith("__"))]


def names(text: str) -> list[str]:
    return sorted(text.split())


def test_of_the_package() -> None:
    assert sorted(shown(perdure)) == names(PACKAGE)


def test_of_an_app(app: Perdure, send: Any) -> None:
    app.get(send.enqueue("a"))
    assert shown(app) == names(APP)
    assert shown(app.aio) == names(VERBS)


def test_of_a_part_of_an_app_and_of_its_coroutines(app: Perdure) -> None:
    def offered(what: object) -> list[str]:
        return [name for name in shown(what) if not name.startswith("_")]

    assert offered(app.queues) == offered(app.aio.queues) == ["limit", "list", "pause", "resume"]
    limits = names("declare hold list pause reset resume set show")
    assert offered(app.limits) == offered(app.aio.limits) == limits
    templates = names("archive enqueue get list of put rename restore versions")
    assert offered(app.templates) == offered(app.aio.templates) == templates
    schedules = names("backfill describe disable enable get list missed preview put remove rename slots trigger")
    assert offered(app.schedules) == offered(app.aio.schedules) == schedules
    assert offered(app.reserve("a")) == offered(app.aio.reserve("a")) == names(RESERVATION)
    assert offered(app.flows) == offered(app.aio.flows) == names("get graph jobs list seal")
    assert offered(app.lock("a", ttl=1)) == names("acquire held name owner release renew")


def test_of_a_flow_and_what_plans_it(app: Perdure, send: Any) -> None:
    with app.workflow("w") as wf:
        planned: Planned[Any] = wf.add(send.new("a"))
        inner = wf.batch("parts")
    assert shown(wf) == names(f"{PLANNING} flow")
    assert shown(inner) == names(PLANNING)
    assert shown(planned) == names("id kind outcome result")
    assert shown(wf.flow) == names(FLOW)
    assert shown(wf.summary) == names(
        "attempts cancelled completed failed run_ms skipped success_rate total wait_ms",
    )
    with app.batch("b") as batch:
        assert shown(batch) == names("add add_many deduplicated id name summary")
    assert shown(app.aio.batch("c")) == names("add add_many deduplicated id name summary")


def test_of_a_kind(send: Any) -> None:
    send.enqueue("a")
    assert shown(send) == names(KIND)
    assert shown(send.options(delay=1)) == names(BOUND)


def test_a_kind_shows_the_attributes_of_its_function(app: Perdure) -> None:
    def marked() -> None: ...

    vars(marked)["colour"] = "red"
    assert "colour" in shown(app.job(marked))


def test_of_a_job_and_a_run(app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    by_hand.fail(app)
    assert shown(job) == shown(app.get(job)) == names(JOB)
    assert shown(next(app.runs(job))) == names(RUN)


def test_of_a_context(app: Perdure) -> None:
    seen: list[list[str]] = []

    @app.job
    def look(ctx: JobContext) -> None:
        ctx.log.info("looking")
        seen.append(shown(ctx))

    look.enqueue()
    app.worker().run(until_idle=True)
    assert seen == [names(CONTEXT)]


def test_of_a_worker(app: Perdure) -> None:
    worker = app.worker()
    worker.run(until_idle=True)
    assert shown(worker) == names(WORKER)


def test_of_a_test_kit(app: Perdure) -> None:
    with app.testing() as t:
        assert shown(t) == names(KIT)


def test_what_is_not_shown_is_there_all_the_same(app: Perdure, send: Any) -> None:
    job = send.enqueue("a")
    assert "row" not in shown(job)
    assert app.existing(job).row.kind == "send"


@pytest.mark.parametrize("owner", [Perdure, Job, Run, JobContext, Kind, Kit, Worker])
def test_nothing_is_hidden_that_is_not_there(owner: type) -> None:
    """A name that was renamed has to be renamed in INNER, too."""
    inner: frozenset[str] = vars(inspect.getmodule(owner))["INNER"]
    of_objects = {"defaults", "is_async", "kit", "middlewares", "upgrades"}  # set by __init__
    both = set(dir(owner)) | (set(dir(Job)) | set(dir(Run)) if owner in (Job, Run) else set())
    assert inner - of_objects - both == set()


# -- one way of async names ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("owner", [Bound, Kind, Kit])
def test_a_coroutine_beside_its_plain_verb_has_an_a_in_front(owner: type) -> None:
    names = {name for name in dir(owner) if not name.startswith("_")} - vars(inspect.getmodule(owner))["INNER"]
    coroutines = {name for name in names if inspect.iscoroutinefunction(getattr(owner, name))}
    assert all(name[0] == "a" and hasattr(owner, name[1:].rstrip("_")) for name in coroutines)


def test_a_kind_can_do_everything_in_a_coroutine_that_asks_the_database() -> None:
    pairs = {"enqueue": "aenqueue", "enqueue_many": "aenqueue_many", "wait": "await_"}
    asks_nobody = {"new", "options", "result"}
    verbs = {name for name in KIND.split() if inspect.isfunction(getattr(Kind, name, None))}
    assert verbs == {*pairs, *pairs.values(), *asks_nobody}


def test_schedules_have_all_their_coroutines() -> None:
    def verbs(owner: type) -> set[str]:
        return {name for name in vars(owner) if not name.startswith("_")}

    assert verbs(AsyncSchedules) == verbs(Schedules)


# -- what type checkers are told, and what is true -------------------------------------------------------------------


def test_the_states_are_the_same_for_type_checkers() -> None:
    assert set(get_args(StateName)) == set(State)
    assert set(get_args(RunStateName)) == set(RunState)
    assert set(get_args(EndName)) == FINAL


def test_the_settings_are_the_same_for_type_checkers() -> None:
    assert get_type_hints(Settings) == get_type_hints(Config)
