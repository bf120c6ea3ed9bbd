"""Jobs and runs in Django's admin, as a browser sees them, on every database."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from perdure import Perdure
from tests.contrib_django import jobs

ON_EVERY_DATABASE = True

JOBS, RUNS = "/admin/perdure/job/", "/admin/perdure/run/"


@pytest.fixture
def staff(app: Perdure) -> Client:
    """Somebody who may see jobs, but not steer them."""
    user = User.objects.create(username="ann", is_staff=True)
    user.user_permissions.add(*Permission.objects.filter(codename__in=["view_job", "view_run"]))
    client = Client()
    client.force_login(user)
    return client


@pytest.fixture
def controller(staff: Client) -> Client:
    """Somebody who may steer them too."""
    user = User.objects.get()
    user.user_permissions.add(Permission.objects.get(codename="control_job"))
    staff.force_login(User.objects.get())
    return staff


def page(client: Client, path: str) -> str:
    reply = client.get(path)
    assert reply.status_code == 200
    return reply.content.decode()


def shown(client: Client, path: str = JOBS) -> list[str]:
    """The ids of the jobs on a page."""
    return re.findall(r'href="/admin/perdure/job/([0-9a-f-]{36})/change/', page(client, path))


def act(client: Client, action: str, *ids: Any) -> str:
    """What the admin says to an action on these jobs."""
    reply = client.post(JOBS, {"action": action, "_selected_action": ids, "index": 0}, follow=True)
    return "".join(re.findall(r'<li class="\w+">(.*?)</li>', reply.content.decode(), re.DOTALL))


def test_jobs_are_listed_the_newest_first(staff: Client) -> None:
    ids = [jobs.double.enqueue(n).id for n in range(3)]
    assert shown(staff) == ids[::-1]


def test_the_log_names_the_user_who_acts(controller: Client, caplog: pytest.LogCaptureFixture) -> None:
    result = jobs.double.enqueue(1)
    caplog.set_level(logging.INFO, "perdure")
    act(controller, "pause", result.id)
    [told] = [vars(record)["perdure"] for record in caplog.records if "by hand" in record.getMessage()]
    assert (told["verb"], told["principal"]) == ("pause", "ann")


def test_no_page_counts_or_asks_django_s_tables_for_jobs(staff: Client) -> None:
    jobs.double.enqueue(1)
    with CaptureQueriesContext(connection) as asked:
        page(staff, JOBS)
    assert not [query for query in asked if "perdure" in query["sql"] and "auth_" not in query["sql"]]
    assert not [query for query in asked if "COUNT" in query["sql"]]


def test_a_list_goes_on_on_the_next_page(staff: Client, app: Perdure) -> None:
    made = app.enqueue_many([app.draft(jobs.double.module_path, {"args": [n]}, {}) for n in range(101)])
    assert len(shown(staff)) == 100
    assert '"?p=2"' in page(staff, JOBS)
    assert shown(staff, f"{JOBS}?p=2") == [str(made[0].id)]
    assert shown(staff, f"{JOBS}?p=7") == []


def test_filters_and_search(staff: Client, app: Perdure) -> None:
    waiting, ended = jobs.double.enqueue(1), jobs.many_ends.enqueue("ok")
    app.cancel(ended.id)
    assert shown(staff, f"{JOBS}?state=cancelled") == [ended.id]
    assert shown(staff, f"{JOBS}?kind={jobs.double.module_path}") == [waiting.id]
    assert shown(staff, f"{JOBS}?q={waiting.id}") == [waiting.id]
    assert shown(staff, f"{JOBS}?q=nonsense") == []


def test_a_job_has_a_page_with_its_runs(staff: Client, app: Perdure) -> None:
    failed = jobs.unlucky.using(retry=1).enqueue()
    app.worker().run(until_idle=True)
    text = page(staff, f"{JOBS}{failed.id}/change/")
    assert "ValueError: never" in text
    assert 'name="_save"' not in text
    runs = page(staff, RUNS)
    assert re.search(r'<td class="field-error[ "][^>]*>never</td>', runs), "as it is called on a run"
    assert staff.get(f"{JOBS}00000000-0000-7000-8000-000000000000/change/").status_code == 302
    assert staff.get(f"{JOBS}nonsense/change/").status_code == 302


def test_nothing_can_be_added_changed_or_deleted(controller: Client) -> None:
    result = jobs.double.enqueue(1)
    assert controller.get(f"{JOBS}add/").status_code == 403
    assert controller.post(f"{JOBS}{result.id}/change/", {"kind": "x"}).status_code == 403
    assert controller.get(f"{JOBS}{result.id}/delete/").status_code == 403


def test_who_may_control_jobs_can(controller: Client, app: Perdure) -> None:
    one, other = jobs.double.enqueue(1).id, jobs.double.enqueue(2).id

    def states() -> list[str]:
        return [app.existing(job).state.value for job in (one, other)]

    assert "Pause: 2 jobs" in act(controller, "pause", one, other)
    assert states() == ["paused", "paused"]
    act(controller, "resume", one)
    act(controller, "cancel", other)
    assert states() == ["queued", "cancelled"]
    said = act(controller, "retry", one, other)  # one cannot be, the other is
    assert (states(), "Retry: 1 job" in said, one in said) == (["queued", "queued"], True, True)


def test_who_may_only_look_cannot(staff: Client, app: Perdure) -> None:
    result = jobs.double.enqueue(1)
    assert 'value="cancel"' not in page(staff, JOBS)
    act(staff, "cancel", result.id)
    assert app.existing(result.id).state == "queued"


def test_who_may_not_look_cannot(app: Perdure) -> None:
    client = Client()
    client.force_login(User.objects.create(username="bob", is_staff=True))
    assert client.get(JOBS).status_code == 403
