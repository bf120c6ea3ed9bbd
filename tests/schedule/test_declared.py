"""Schedules that the code declares: kept by every worker that starts, never doubled, not flapping between releases."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure
from perdure.clock import ManualClock
from perdure.errors import InvalidOption, InvalidPayload, ScheduleError
from perdure.schedules import Schedule
from tests.schedule.conftest import Firer


@pytest.fixture
def release(path: Path, clock: ManualClock) -> Callable[..., Perdure]:
    """An app on the same file, as one release of a program declares it."""

    def make(cron: str | None = "0 7 * * *", *, name: str = "perdure", also: str | None = None) -> Perdure:
        app = Perdure(path, durability="normal", clock=clock, name=name)

        @app.job
        def send(to: str) -> None: ...

        if cron is not None:
            app.schedule(cron, name="daily", payload={"to": "a"})(send)
        if also is not None:
            app.schedule(also, name="also", payload={"to": "b"})(send)
        return app

    return make


def started(app: Perdure, clock: ManualClock) -> Firer:
    clock.advance(seconds=1)
    worker = Firer(app)
    worker.look()
    return worker


def daily(app: Perdure) -> Schedule:
    found = app.schedules.get("daily")
    assert found is not None
    return found


def cron_of(app: Perdure) -> str | None:
    trigger = daily(app).trigger
    assert trigger is not None
    return trigger.cron


def test_however_many_workers_start_there_is_one(release: Any, clock: ManualClock) -> None:
    app = release()
    for _ in range(5):
        started(app, clock)

    [schedule] = app.schedules.list()
    assert (schedule.name, schedule.kind, schedule.payload, schedule.source) == ("daily", "send", {"to": "a"}, "code")
    assert schedule.version == 1


def test_a_newer_release_changes_it_and_the_older_one_does_not_change_it_back(release: Any, clock: ManualClock) -> None:
    old, new = release("0 7 * * *"), release("0 8 * * *")
    started(old, clock)
    started(new, clock)
    assert cron_of(new) == "0 8 * * *"

    started(old, clock)  # restarts in the middle of the deploy
    assert cron_of(new) == "0 8 * * *"


def test_a_release_that_was_rolled_back_changes_it_again_once_the_newer_one_is_gone(
    release: Any, clock: ManualClock
) -> None:
    old, new = release("0 7 * * *"), release("0 8 * * *")
    started(old, clock)
    newer = started(new, clock)
    newer.end()

    started(old, clock)
    assert cron_of(old) == "0 7 * * *"


def test_what_is_gone_from_the_code_is_switched_off_once_no_worker_declares_it(
    release: Any, clock: ManualClock
) -> None:
    old, new = release(also="0 9 * * *"), release(None, also="0 9 * * *")
    older = started(old, clock)
    newer = started(new, clock)
    assert daily(new).enabled  # the older release is at work yet

    older.end()
    clock.advance(minutes=2)
    newer.look()
    assert (daily(new).enabled, daily(new).disabled_reason) == (False, "gone_from_code")
    assert [schedule.name for schedule in new.schedules.list() if schedule.enabled] == ["also"]


def test_an_older_worker_switches_nothing_off(release: Any, clock: ManualClock) -> None:
    old, new = release(None), release("0 7 * * *")
    older = started(old, clock)
    newer = started(new, clock)
    newer.end()
    clock.advance(minutes=2)
    older.look()

    assert daily(new).enabled


def test_what_comes_back_to_the_code_is_switched_on_again_and_makes_up_for_the_time(
    release: Any, clock: ManualClock
) -> None:
    with_it, without = release("0 * * * *"), release(None)
    started(with_it, clock).end()
    worker = started(without, clock)
    assert not daily(without).enabled
    worker.end()
    clock.advance(hours=3)

    started(with_it, clock)
    assert daily(with_it).enabled
    assert [slot.status for slot in with_it.schedules.slots("daily")] == ["queued"]
    assert [(missed.count, missed.reason) for missed in with_it.schedules.missed("daily")] == [(2, "misfired")]


def test_what_a_person_switched_off_stays_off(release: Any, clock: ManualClock) -> None:
    app = release()
    started(app, clock)
    app.schedules.disable("daily")
    started(app, clock)
    started(release("0 8 * * *"), clock)

    assert (daily(app).enabled, daily(app).disabled_reason) == (False, "by_hand")


def test_what_a_person_changed_stays_until_the_code_changes(release: Any, clock: ManualClock) -> None:
    app = release()
    started(app, clock)
    app.schedules.put("daily", "30 6 * * *", kind="send", payload={"to": "c"})
    started(app, clock)
    assert cron_of(app) == "30 6 * * *"

    started(release("0 8 * * *"), clock)
    assert cron_of(app) == "0 8 * * *"


def test_two_apps_on_one_database_leave_each_others_schedules_alone(release: Any, clock: ManualClock) -> None:
    shop, office = release(name="shop"), release(None, name="office")
    started(shop, clock).end()
    clock.advance(minutes=2)
    started(office, clock)

    assert daily(shop).enabled


def test_a_name_that_belongs_to_another_app_is_not_taken_over(
    release: Any, clock: ManualClock, caplog: pytest.LogCaptureFixture
) -> None:
    shop, office = release(name="shop"), release("0 9 * * *", name="office")
    started(shop, clock)
    started(office, clock)

    assert (cron_of(shop), daily(shop).owner) == ("0 7 * * *", "shop")
    assert "belongs to the app 'shop'" in caplog.text


# -- wrong declarations ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "error", "says"),
    [
        ({"cron": "0 7 * *"}, InvalidOption, "cron"),
        ({"cron": "0 7 * * *", "every": 5}, InvalidOption, "exactly one"),
        ({}, InvalidOption, "exactly one"),
        ({"every": timedelta(0)}, InvalidOption, "every"),
        ({"cron": "0 7 * * *", "tz": "Berlin"}, InvalidOption, "Europe/Berlin"),
        ({"cron": "0 7 * * *", "payload": {"t": 1}}, InvalidPayload, "'t' is not a parameter"),
        ({"cron": "0 7 * * *", "payload": {}}, InvalidPayload, "'to' is missing"),
        ({"cron": "0 7 * * *", "payload": {"to": 1}}, InvalidPayload, "to"),
        ({"cron": "0 7 * * *", "overlapp": "skip"}, InvalidOption, "did you mean 'overlap'"),
        ({"cron": "0 7 * * *", "queue": "*"}, InvalidOption, "all queues"),
        ({"cron": "0 7 * * *", "name": ""}, InvalidOption, "empty"),
    ],
)
def test_a_wrong_declaration_is_an_error_at_definition(
    app: Perdure, send: Any, said: dict[str, Any], error: type[Exception], says: str
) -> None:
    options: dict[str, Any] = {"payload": {"to": "a"}, **said}
    with pytest.raises(error, match=says):
        app.schedule(options.pop("cron", None), **options)(send)
    assert app.parts().declared() == []


def test_a_schedule_stands_above_a_job(app: Perdure) -> None:
    def plain() -> None: ...

    with pytest.raises(ScheduleError, match=r"above @app\.job"):
        app.schedule("0 7 * * *")(plain)  # type: ignore[type-var]


def test_two_schedules_need_two_names(app: Perdure, send: Any) -> None:
    app.schedule("0 7 * * *", payload={"to": "a"})(send)
    with pytest.raises(ScheduleError, match="name= of its own"):
        app.schedule("0 8 * * *", payload={"to": "a"})(send)
    app.schedule("0 8 * * *", name="later", payload={"to": "a"})(send)

    assert [definition.name for definition in app.parts().declared()] == ["send", "later"]


def test_annotations_that_come_later_are_read_later(app: Perdure) -> None:
    @app.schedule("0 7 * * *", payload={"to": "a"})
    @app.job
    def mail(to: Later) -> None: ...  # type: ignore[name-defined]  # noqa: F821

    with pytest.raises(Exception, match="Later"):
        app.parts().declared()
    globals()["Later"] = str
    assert [definition.payload for definition in app.parts().declared()] == ['{"to":"a"}']
    del globals()["Later"]
