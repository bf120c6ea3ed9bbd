"""`perdure templates`: jobs to be enqueued under a name."""

from __future__ import annotations

from pathlib import Path

import pytest

from perdure import Perdure as App
from tests.cli.terminal import Perdure, refusal

URL = {"PERDURE_URL": "shop.db"}
APP = {"PERDURE_APP": "shop:app"}


def news(here: App) -> None:
    here.templates.put("news", "send", {"copies": 3, "token": "hunter2"}, description="to all", queue="bulk")


def test_templates_are_listed(perdure: Perdure, here: App, folder: Path) -> None:
    here.enqueue("send", {"to": "ann"})
    assert perdure("templates", cwd=folder, **URL).out == (
        "No templates yet: perdure templates put NAME KIND makes one.\n"
    )
    assert perdure("templates", "--json", cwd=folder, **URL).json() == []
    news(here)
    here.templates.put("small", "resize")
    here.templates.archive("small")

    listed = perdure("templates", "--json", cwd=folder, **URL).json()
    head, _, row = perdure("templates", cwd=folder, **URL).out.splitlines()

    assert [(each["name"], each["version"], each["kind"], each["queue"]) for each in listed] == [
        ("news", 1, "send", "bulk")
    ]
    assert listed[0]["payload"] == {"copies": 3, "token": "***"}
    assert (listed[0]["timeout_s"], listed[0]["max_attempts"], listed[0]["archived_at"]) == (30.0, 2, None)
    assert head.split() == ["template", "version", "kind", "queue", "written", "description"]
    assert row.split()[:4] == ["news", "1", "send", "bulk"]
    assert "small (archived)" in perdure("templates", "--archived", cwd=folder, **URL).out
    assert len(perdure("templates", "--archived", "--json", cwd=folder, **URL).json()) == 2
    here.templates.archive("news")
    assert perdure("templates", cwd=folder, **URL).out == "All templates are archived; --archived lists them.\n"


def test_a_template_is_shown_with_its_versions_and_without_its_secrets(
    perdure: Perdure, here: App, folder: Path
) -> None:
    news(here)
    here.templates.put("news", "send", {"to": "ann"}, priority=2, params={"a": 1}, tags=["x"])

    now = perdure("templates", "show", "news", cwd=folder, **URL).out
    before = perdure("templates", "show", "news", "--version", "1", cwd=folder, **URL).out
    read = perdure("templates", "show", "news", "--version", "1", "--json", cwd=folder, **URL).json()

    said = [tuple(line.split()) for line in now.splitlines()]
    for pair in (("priority", "2"), ("to", "ann"), ("tags", "x"), ("a", "1"), ("version", "2", "of", "2")):
        assert pair in said
    assert ("copies", "3") in [tuple(line.split()) for line in before.splitlines()]
    assert ("token", "***") in [tuple(line.split()) for line in before.splitlines()]
    assert [each["version"] for each in read["versions"]] == [2, 1]
    assert (read["version"], read["latest"], read["description"]) == (1, 2, "to all")
    assert "hunter2" not in now + before + str(read)


def test_a_template_is_put_from_typed_arguments(perdure: Perdure, here: App, folder: Path) -> None:
    options = ("--queue", "bulk", "--priority", "2", "--tag", "x", "--retry", "4", "--timeout", "10m")
    said = ("--description", "to all")

    made = perdure("templates", "put", "news", "send", "token=hunter2", "copies=3", *options, *said, cwd=folder, **APP)
    again = perdure(
        "templates", "put", "news", "send", "--payload", '{"to": "ann"}', "--expect-version", "1", "--json",
        cwd=folder, **APP,
    )  # fmt: skip

    assert made.out == "template news (send): version 1\n"
    first, now = here.templates.get("news", 1), here.templates.get("news")
    assert (first.payload, first.secrets, first.queue) == ({"copies": 3}, ("token",), "bulk")
    assert (first.priority, first.tags, first.max_attempts, first.description) == (2, ("x",), 4, "to all")
    assert first.timeout is not None
    assert first.timeout.total_seconds() == 600
    assert (again.json()["version"], now.payload, now.queue) == (2, {"to": "ann"}, "mail")


@pytest.mark.parametrize(
    ("typed", "code", "said"),
    [
        (("put", "news", "send", "copies=x"), "payload_invalid", "copies must be a whole number"),
        (("put", "news", "send", "color=1"), "payload_invalid", "color is none of its arguments"),
        (("put", "news", "sned"), "kind_unknown", "did you mean 'send'?"),
        (("put", "news", "send", "--expect-version", "7"), "version_changed", "is at version 1, not 7"),
        (("enqueue", "news"), "payload_invalid", "send: to is missing; it takes to: str"),
        (("enqueue", "nwes"), "template_unknown", "did you mean 'news'?"),
        (("enqueue", "old"), "template_archived", "perdure templates restore uses it again"),
        (("show", "nothing"), "template_unknown", "perdure templates put makes one"),
        (("rename", "news", "old"), "template_taken", "there is one called 'old'"),
        (("list",), "usage_error", "did you mean perdure templates?"),
        (("delete", "news"), "usage_error", "did you mean perdure templates archive?"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_is_refused_in_one_line(
    perdure: Perdure, here: App, folder: Path, typed: tuple[str, ...], code: str, said: str
) -> None:
    news(here)
    here.templates.put("old", "resize")
    here.templates.archive("old")
    before = here.templates.versions("news")

    line = refusal(perdure("templates", *typed, cwd=folder, **APP))

    assert said in line
    assert f"[{code}]" in line
    assert here.templates.versions("news") == before
    assert list(here.jobs()) == []


def test_a_job_is_enqueued_from_a_template_and_names_it(perdure: Perdure, here: App, folder: Path) -> None:
    news(here)

    said = perdure("templates", "enqueue", "news", "to=ann", "copies=5", "--tag", "x", cwd=folder, **APP).out
    read = perdure(
        "templates", "enqueue", "news", "--payload", '{"to": "bob"}', "--delay", "5m", "--json", cwd=folder, **APP
    ).json()

    later, job = here.jobs()
    assert said == f"{job.id} send: queued in bulk\n"
    assert (job.payload, job.tags, job.template_version) == ({"copies": 5, "to": "ann"}, ("x",), 1)
    assert (read["id"], read["state"], read["deduplicated"]) == (str(later.id), "scheduled", False)
    assert read["template_id"] == str(here.templates.get("news").id)
    assert "template  news (version 1)" in perdure("job", str(job.id), cwd=folder, **URL).out
    shown = perdure("job", str(job.id), "--json", cwd=folder, **URL).json()
    assert (shown["template"], shown["template_version"]) == ("news", 1)
    assert "hunter2" not in said + str(read) + str(shown)


def test_a_template_is_archived_restored_and_renamed(perdure: Perdure, here: App, folder: Path) -> None:
    news(here)

    assert perdure("templates", "archive", "news", cwd=folder, **URL).out.startswith("template news (send): archived ")
    assert here.templates.get("news").archived
    assert perdure("templates", "restore", "news", cwd=folder, **URL).out == "template news (send): in use, version 1\n"
    assert perdure("templates", "rename", "news", "olds", "--json", cwd=folder, **URL).json()["name"] == "olds"
    assert [each.name for each in here.templates.list()] == ["olds"]


def test_kinds_come_from_an_app(perdure: Perdure, here: App, folder: Path) -> None:
    news(here)

    for typed in (("put", "news", "send"), ("enqueue", "news", "to=ann")):
        line = refusal(perdure("templates", *typed, cwd=folder, **URL))
        assert "this needs the app that declares it; give --app MODULE:APP" in line
        assert "[app_not_found]" in line
