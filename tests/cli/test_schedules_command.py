"""`perdure schedules`, `trigger` and `backfill`: what happens by the clock, seen and decided from the command line."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from perdure import Perdure as App
from perdure.clock import Micros, to_micros
from perdure.store.rows import ScheduleRow
from tests.cli.terminal import Perdure, at_a_keyboard, refusal

URL = {"PERDURE_URL": "shop.db"}
SHOP = {"PERDURE_APP": "shop:app"}
NARROW = {"COLUMNS": "80", **URL}
ANN = {"to": "ann"}
HOUR_US = 3_600_000_000


def changed(app: App, name: str, **columns: object) -> ScheduleRow:
    """The schedule with these columns, as another program could write them."""
    row = app.store.schedule(name)
    assert row is not None
    replaced = row._replace(version=row.version + 1, **columns)  # type: ignore[arg-type]
    assert app.store.save_schedule(replaced, row.version)
    return replaced


def due_for(app: App, name: str, hours: float) -> Micros:
    """Let the next instant of an hourly schedule have come this many hours ago, as if no worker had run since."""
    row = app.store.schedule(name)
    assert row is not None
    assert row.next_trigger_at is not None
    at = Micros(row.next_trigger_at - round((hours + 1) * HOUR_US))
    changed(app, name, next_trigger_at=at)
    return at


def cells(table: str) -> list[list[str]]:
    """The rows of a table; two blanks are between its columns."""
    return [[cell.strip() for cell in line.split("  ") if cell.strip()] for line in table.splitlines()[2:]]


# -- the list --------------------------------------------------------------------------------------------------------


def test_schedules_are_listed_with_their_next_instant_and_their_last_outcome(
    perdure: Perdure, here: App, folder: Path
) -> None:
    here.schedules.put("daily", "0 7 * * *", kind="send", payload=ANN, tz="Europe/Berlin")
    here.schedules.put("hourly", "@hourly", kind="send", payload=ANN)
    job = here.trigger("hourly")
    here.worker(poll_s=0.02, schedules=False).run(until_idle=True)

    daily, hourly = perdure("schedules", "--json", cwd=folder, **URL).json()
    table = perdure("schedules", cwd=folder, TZ="UTC", **NARROW).out

    assert (daily["name"], daily["state"], daily["kind"], daily["payload"]) == ("daily", "on", "send", ANN)
    unbounded = {"at": None, "start": None, "end": None}
    assert daily["trigger"] == {"cron": "0 7 * * *", "every_s": None, "tz": "Europe/Berlin", **unbounded}
    assert (daily["policy"]["catch_up"], daily["policy"]["misfire_grace_s"]) == ("latest", 300)
    assert daily["words"] == "At 07:00 every day (Europe/Berlin)"
    assert daily["last_slot"] is None
    assert hourly["last_slot"]["job_id"] == str(job.id)
    assert hourly["last_slot"]["status"] == "completed"
    assert max(map(len, table.splitlines())) <= 80
    assert table.splitlines()[0].split("  ")[0] == "name"
    planned = datetime.fromisoformat(hourly["next_trigger_at"])
    rows = {row[0]: row[1:] for row in cells(table)}
    assert rows["hourly"][1] == f"{planned:%Y-%m-%d %H:%M}"
    assert rows["hourly"][-2:] == ["completed", "on"]
    assert rows["daily"][-2:] == ["-", "on"]


def test_without_schedules_the_list_says_how_to_make_one(perdure: Perdure, here: App, folder: Path) -> None:
    here.enqueue("send", ANN)

    assert "@app.schedule" in perdure("schedules", cwd=folder, **URL).out
    assert perdure("schedules", "--json", cwd=folder, **URL).json() == []


def test_what_the_code_declares_and_no_worker_has_made_yet_is_named(perdure: Perdure, here: App, folder: Path) -> None:
    here.enqueue("send", ANN)
    with (folder / "shop.py").open("a") as shop:
        shop.write('\n\n@app.schedule("@daily", name="nightly")\n@app.job\ndef tidy() -> None: ...\n')

    listed = perdure("schedules", cwd=folder, **SHOP).out

    assert listed == "Declared in the code, made when a worker starts: nightly.\n"


def test_a_schedule_that_is_off_says_why(perdure: Perdure, here: App, folder: Path) -> None:
    for name in ("dropped", "gone", "stopped"):
        here.schedules.put(name, "@daily", kind="send", payload=ANN)
    here.schedules.disable("stopped")
    here.schedules.remove("gone")
    changed(here, "dropped", enabled=0, disabled_reason="gone_from_code")

    def states(*options: str) -> dict[str, list[str]]:
        return {row[0]: row[-4:] for row in cells(perdure("schedules", *options, cwd=folder, **NARROW).out)}

    assert {name: row[-1] for name, row in states().items()} == {
        "dropped": "off (not in the code)",
        "stopped": "off (by hand)",
    }
    assert states()["stopped"][:2] == ["-", "-"], "a schedule that is off has no next instant"
    assert states("--all")["gone"][-1] == "removed"


def test_an_instant_that_nobody_takes_makes_a_schedule_overdue(perdure: Perdure, here: App, folder: Path) -> None:
    here.schedules.put("hourly", "@hourly", kind="send", payload=ANN)
    assert "Schedules:" not in perdure("status", cwd=folder, **URL).out
    due_for(here, "hourly", 3)

    assert cells(perdure("schedules", cwd=folder, **NARROW).out)[0][-1] == "overdue"
    status = perdure("status", cwd=folder, **URL)
    assert "Schedules: hourly is overdue: no worker takes the instants." in status.out
    assert "perdure schedules" in status.out
    told = perdure("status", "--json", cwd=folder, **URL).json()["schedules"]
    assert [(row["name"], row["problem"]) for row in told] == [("hourly", None)]
    assert told[0]["since"].endswith("Z")

    here.worker(poll_s=0.02).run(until_idle=True)
    assert cells(perdure("schedules", cwd=folder, **NARROW).out)[0][-1] == "on"
    assert "Schedules:" not in perdure("status", cwd=folder, **URL).out


def test_a_schedule_with_a_problem_is_told_with_the_reason(perdure: Perdure, here: App, folder: Path) -> None:
    for name in ("a", "b", "c", "d", "e"):
        here.schedules.put(name, "@hourly", kind="send", payload=ANN)
        due_for(here, name, 1)
        changed(here, name, tz="Nowhere/Else")
    here.worker(poll_s=0.02).run(until_idle=True)

    listed = perdure("schedules", cwd=folder, **NARROW).out

    assert cells(listed)[0][-1] == "problem"
    told = [line for line in listed.splitlines() if line.startswith("a: ")]
    assert len(told) == 1
    assert "Nowhere/Else" in told[0]
    status = perdure("status", cwd=folder, **URL).out
    assert "Schedules: a, b, c and 2 more are at rest with a problem." in status
    assert refusal(perdure("schedules", "preview", "a", cwd=folder, **URL)).endswith("[tz_unknown]")
    assert "Nowhere/Else" in perdure("schedules", "show", "a", cwd=folder, **URL).out


@pytest.mark.parametrize(
    "damage",
    [
        {"payload": "{no"},
        {"payload": "[1]"},
        {"plan": "{no"},
        {"plan": "{}"},
        {"policy": "{no"},
        {"policy": '{"jitter_us":"long"}'},
        {"cron": "a b"},
        {"tz": "\x1b[31mred"},
    ],
    ids=str,
)
def test_a_damaged_row_is_told_as_a_problem_and_hides_no_other(
    perdure: Perdure, here: App, folder: Path, damage: dict[str, str]
) -> None:
    for name in ("broken", "whole"):
        here.schedules.put(name, "@hourly", kind="send", payload=ANN)
    changed(here, "broken", **damage)

    listed = perdure("schedules", cwd=folder, **NARROW)
    shown = perdure("schedules", "show", "broken", cwd=folder, **NARROW)
    told = perdure("schedules", "--json", cwd=folder, **URL).json()

    assert [row[-1] for row in cells(listed.out)[:2]] == ["problem", "on"]
    assert [(one["name"], one["state"]) for one in told] == [("broken", "problem"), ("whole", "on")]
    assert "it cannot be understood: " in listed.out
    assert "it cannot be understood: " in shown.out
    assert "\x1b" not in listed.out + shown.out


# -- one of them -----------------------------------------------------------------------------------------------------


def test_a_schedule_is_shown_with_slots_and_with_what_it_has_missed(perdure: Perdure, here: App, folder: Path) -> None:
    here.schedules.put(
        "hourly",
        "@hourly",
        kind="send",
        payload={"to": "ann", "token": "hush"},
        description="mail to Ann",
        queue="post",
        jitter=30,
        catch_up="none",
        overlap="allow",
        misfire_grace=timedelta(minutes=90),
    )
    due_for(here, "hourly", 5)
    here.worker(poll_s=0.02, queues=["nothing"]).run(until_idle=True)
    taken = here.schedules.slots("hourly")

    shown = perdure("schedules", "show", "hourly", cwd=folder, TZ="UTC", **NARROW).out
    told = perdure("schedules", "show", "hourly", "--json", cwd=folder, **URL).json()

    assert "hush" not in shown
    assert told["payload"] == {"to": "ann", "token": "***"}
    assert [slot["job_id"] for slot in told["slots"]] == [str(slot.job_id) for slot in taken]
    assert [one["reason"] for one in told["missed"]] == ["misfired"]
    assert sum(one["count"] for one in told["missed"]) + len(taken) == 6
    assert len(told["next"]) == 5
    assert max(map(len, shown.splitlines())) <= 80
    fields = dict(line.split("  ", 1) for line in shown.partition("\n\n")[0].splitlines())
    read = {name: value.strip() for name, value in fields.items()}
    assert (read["description"], read["queue"], read["jitter"]) == ("mail to Ann", "post", "30 s")
    assert (read["catch up"], read["misfire grace"], read["overlap"]) == ("none", "90 min", "allow")
    assert read["cron"] == "@hourly"
    for heading in ("next", "last slots", "missed"):
        assert f"\n\n{heading}\n" in shown
    assert f"{taken[0].scheduled_for:%Y-%m-%d %H:%M}" in shown
    assert str(taken[0].job_id).replace("-", "")[-8:] in shown


@pytest.mark.parametrize("command", ["show", "preview", "enable", "disable", "remove"])
def test_a_mistyped_schedule_is_refused_with_what_was_meant(
    perdure: Perdure, here: App, folder: Path, command: str
) -> None:
    here.schedules.put("daily", "@daily", kind="send", payload=ANN)

    line = refusal(perdure("schedules", command, "dialy", cwd=folder, **URL))
    far_off = refusal(perdure("schedules", command, "zzz", "--url", "shop.db", cwd=folder))

    assert line == "perdure: there is no schedule 'dialy'; did you mean 'daily'? [schedule_unknown]"
    assert far_off == (
        "perdure: there is no schedule 'zzz'; perdure schedules --url shop.db lists them [schedule_unknown]"
    )


def test_the_next_instants_are_shown_in_the_zone_and_here(perdure: Perdure, here: App, folder: Path) -> None:
    here.schedules.put("daily", "0 7 * * *", kind="send", payload=ANN, tz="Asia/Tokyo")

    told = perdure("schedules", "preview", "daily", "-n", "3", "--json", cwd=folder, **URL).json()
    shown = perdure("schedules", "preview", "daily", "-n", "3", cwd=folder, **NARROW).out

    assert told["next"] == [f"{at.astimezone(UTC):%Y-%m-%dT%H:%M:%S.%f}Z" for at in here.schedules.preview("daily", 3)]
    assert shown.startswith("At 07:00 every day (Asia/Tokyo)\n\nAsia/Tokyo")
    assert shown.count(" 07:00:00 JST ") == 3


def test_an_expression_is_previewed_without_a_database(perdure: Perdure, folder: Path) -> None:
    once = perdure("schedules", "preview", "30 6 1 JAN *", "--tz", "UTC", "-n", "2", "--json", cwd=folder).json()

    assert once["words"] == "At 06:30 on the first day of January (UTC)" or "06:30" in once["words"]
    assert [at[4:] for at in once["next"]] == ["-01-01T06:30:00.000000Z"] * 2
    assert not (folder / "shop.db").exists()
    assert perdure("schedules", "preview", "@daily", cwd=folder).out.startswith("At 00:00 every day (UTC)\n")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("0 7 * *",), "cron_invalid"),
        (("0 25 * * *",), "cron_invalid"),
        (("@dialy",), "cron_invalid"),
        (("0 7 30 2 *",), "trigger_never"),
        (("@daily", "--tz", "Berlin"), "tz_unknown"),
        (("@daily", "-n", "0"), "usage_error"),
        (("@daily", "-n", "many"), "usage_error"),
        (("hourly", "--tz", "Europe/Berlin"), "option_invalid"),
        ((), "usage_error"),
    ],
)
def test_what_cannot_be_previewed_is_refused(
    perdure: Perdure, here: App, folder: Path, arguments: tuple[str, ...], code: str
) -> None:
    here.schedules.put("hourly", "@hourly", kind="send", payload=ANN)

    assert refusal(perdure("schedules", "preview", *arguments, cwd=folder, **URL)).endswith(f"[{code}]")


# -- make and change -------------------------------------------------------------------------------------------------


def test_a_schedule_is_made_with_arguments_and_options(perdure: Perdure, here: App, folder: Path) -> None:
    options = ("--tz", "Europe/Berlin", "--catch-up", "all", "--overlap", "queue", "--misfire-grace", "10m")
    more = ("--jitter", "30", "--max-runtime", "1h", "--at-most-once", "-q", "post", "--description", "to Ann")
    command = ("schedules", "add", "daily", "0 7 * * *", "-k", "send", "to=ann", "copies=2")

    said = perdure(*command, *options, *more, cwd=folder, TZ="UTC", **SHOP)

    made = here.schedules.get("daily")
    assert made is not None
    assert said.out.startswith("daily is on: At 07:00 every day (Europe/Berlin); next 20")
    assert made.payload == {"to": "ann", "copies": 2}
    assert made.trigger is not None
    assert (made.trigger.cron, made.trigger.tz, made.description) == ("0 7 * * *", "Europe/Berlin", "to Ann")
    policy = made.policy
    assert (policy.catch_up, policy.overlap, policy.at_most_once) == ("all", "queue", True)
    assert (policy.misfire_grace_us, policy.jitter_us, policy.max_runtime_us) == (600e6, 30e6, 3600e6)
    assert here.trigger("daily").queue == "post"


def test_a_schedule_of_a_template_says_only_what_differs(perdure: Perdure, here: App, folder: Path) -> None:
    here.templates.put("welcome", "send", {"to": "ann", "copies": 2}, queue="post")

    perdure("schedules", "add", "daily", "@daily", "--template", "welcome", "copies=3", cwd=folder, **SHOP)

    assert here.trigger("daily").payload == {"to": "ann", "copies": 3}
    shown = perdure("schedules", "show", "daily", cwd=folder, **NARROW).out
    told = perdure("schedules", "show", "daily", "--json", cwd=folder, **URL).json()
    assert (told["template"], told["payload"], told["state"]) == ("welcome", {"copies": 3}, "on")
    assert "\ntemplate     welcome\n" in shown
    both = ("schedules", "add", "x", "@daily", "--template", "welcome", "-k", "send")
    assert refusal(perdure(*both, cwd=folder, **SHOP)).endswith("[usage_error]")
    unknown = ("schedules", "add", "x", "@daily", "--template", "welcom")
    assert refusal(perdure(*unknown, cwd=folder, **SHOP)).endswith("[template_unknown]")


def test_an_interval_and_a_single_instant_are_made_without_an_expression(
    perdure: Perdure, here: App, folder: Path
) -> None:
    often = perdure("schedules", "add", "often", "to=ann", "--every", "5m", "-k", "send", "--json", cwd=folder, **SHOP)
    payload = ("--payload", '{"to": "bob"}')
    once = perdure(
        *("schedules", "add", "once", "--at", "2099-01-01T12:00Z", "-k", "send", *payload, "--json"),
        cwd=folder,
        **SHOP,
    )

    assert (often.json()["trigger"]["every_s"], often.json()["payload"]) == (300, ANN)
    assert (once.json()["next_trigger_at"], once.json()["payload"]) == ("2099-01-01T12:00:00.000000Z", {"to": "bob"})
    assert {one.name for one in here.schedules.list()} == {"often", "once"}


def test_a_schedule_that_is_there_is_changed_only_if_that_is_said(perdure: Perdure, here: App, folder: Path) -> None:
    here.schedules.put("daily", "0 7 * * *", kind="send", payload=ANN)
    command = ("schedules", "add", "daily", "0 8 * * *", "-k", "send", "to=bob")

    line = refusal(perdure(*command, cwd=folder, **SHOP))
    assert "(At 07:00 every day (UTC)); add --replace" in line
    assert line.endswith("[schedule_taken]")
    kept = here.schedules.get("daily")
    assert kept is not None
    assert kept.payload == ANN

    perdure(*command, "--replace", cwd=folder, **SHOP)
    replaced = here.schedules.get("daily")
    assert replaced is not None
    assert (replaced.payload, replaced.id) == ({"to": "bob"}, kept.id)
    here.schedules.remove("daily")
    assert perdure(*command, cwd=folder, **SHOP).out.startswith("daily is on"), "a removed one may be made again"


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("0 7 * *", "-k", "send", "to=ann"), "cron_invalid", "4 fields"),
        (("0 7 30 2 *", "-k", "send", "to=ann"), "trigger_never", "never"),
        (("@daily", "-k", "sned", "to=ann"), "kind_unknown", "did you mean 'send'?"),
        (("@daily", "-k", "send"), "payload_invalid", "to is missing"),
        (("@daily", "-k", "send", "to=ann", "copies=two"), "payload_invalid", "copies must be a whole number"),
        (("@daily", "-k", "send", "--payload", "{"), "payload_invalid", "--payload is no JSON"),
        (("@daily", "-k", "send", "to=ann", "--payload", "{}"), "usage_error", "not both"),
        (("@daily", "to=ann"), "usage_error", "--kind"),
        (("-k", "send", "to=ann"), "trigger_invalid", "exactly one"),
        (("@daily", "--every", "5m", "-k", "send", "to=ann"), "trigger_invalid", "exactly one"),
        (("--every", "often", "-k", "send", "to=ann"), "time_invalid", "--every 'often' is no time span"),
        (("--every", "0.5", "-k", "send", "to=ann"), "every_invalid", "--every must be"),
        (("--at", "noon", "-k", "send", "to=ann"), "time_invalid", "--at 'noon' is no time"),
        (
            ("@daily", "-k", "send", "to=ann", "--tz", "Berlin"),
            "tz_unknown",
            "perdure: there is no time zone 'Berlin'; did you mean 'Europe/Berlin'?",
        ),
        (("@daily", "-k", "send", "to=ann", "--catch-up", "lastest"), "schedule_invalid", "--catch-up must be"),
        (("@daily", "-k", "send", "to=ann", "--overlap", "maybe"), "schedule_invalid", "--overlap must be"),
        (("@daily", "-k", "send", "to=ann", "--jitter", "99999d"), "schedule_invalid", "--jitter must be"),
        (
            ("@daily", "-k", "send", "to=ann", "--start", "2030-01-01T01:00Z", "--end", "2030-01-01T02:00Z"),
            "trigger_never",
            "nothing is planned",
        ),
    ],
)
def test_a_schedule_that_cannot_be_is_refused_and_not_made(
    perdure: Perdure, here: App, folder: Path, arguments: tuple[str, ...], code: str, told: str
) -> None:
    here.enqueue("send", ANN)

    line = refusal(perdure("schedules", "add", "daily", *arguments, cwd=folder, **SHOP))

    assert line.endswith(f"[{code}]")
    assert told in line
    assert here.schedules.list(all=True) == []


def test_a_schedule_needs_an_app_that_knows_its_kind(perdure: Perdure, here: App, folder: Path) -> None:
    here.enqueue("send", ANN)

    line = refusal(perdure("schedules", "add", "daily", "@daily", "-k", "send", "to=ann", cwd=folder, **URL))

    assert "give --app MODULE:APP" in line
    assert line.endswith("[app_not_found]")


def test_a_schedule_is_switched_off_and_on(perdure: Perdure, here: App, folder: Path) -> None:
    here.schedules.put("hourly", "@hourly", kind="send", payload=ANN)
    waiting = here.trigger("hourly")

    assert perdure("schedules", "disable", "hourly", cwd=folder, **URL).out == "hourly is off (by hand)\n"
    assert here.existing(waiting).state == "queued"
    said = perdure("schedules", "disable", "hourly", "--cancel-pending", cwd=folder, **URL).out
    assert said == "hourly is off (by hand); its jobs that waited are cancelled\n"
    assert here.existing(waiting).state == "cancelled"
    on = perdure("schedules", "enable", "hourly", "--json", cwd=folder, **URL).json()
    assert (on["state"], on["enabled"]) == ("on", True)


def test_a_removed_schedule_is_not_listed_and_its_jobs_stay(perdure: Perdure, here: App, folder: Path) -> None:
    here.schedules.put("hourly", "@hourly", kind="send", payload=ANN)
    job = here.trigger("hourly")

    assert perdure("schedules", "remove", "hourly", cwd=folder, **URL).out == "hourly is removed\n"

    assert perdure("schedules", "--json", cwd=folder, **URL).json() == []
    assert [one["name"] for one in perdure("schedules", "--all", "--json", cwd=folder, **URL).json()] == ["hourly"]
    assert [slot.job_id for slot in here.schedules.slots("hourly")] == [job.id]
    assert here.existing(job).state == "queued"


# -- by hand ---------------------------------------------------------------------------------------------------------


def test_a_job_is_made_by_hand_once_for_an_instant(perdure: Perdure, here: App, folder: Path) -> None:
    here.schedules.put("daily", "0 7 * * *", kind="send", payload=ANN)
    command = ("trigger", "daily", "--for", "2026-01-31T07:00Z")

    first = perdure(*command, cwd=folder, **URL).out
    again = perdure(*command, cwd=folder, **URL).out
    told = perdure(*command, "--json", cwd=folder, **URL).json()

    (job,) = here.jobs()
    assert first == f"{job.id} send: queued in mail for 2026-01-31 07:00:00 UTC\n"
    assert again == f"{job.id} send: was made before for 2026-01-31 07:00:00 UTC, queued\n"
    assert (told["id"], told["deduplicated"], told["scheduled_for"]) == (
        str(job.id),
        True,
        "2026-01-31T07:00:00.000000Z",
    )


def test_a_job_by_hand_waits_its_turn_like_any_other(perdure: Perdure, here: App, folder: Path) -> None:
    here.schedules.put("daily", "0 7 * * *", kind="send", payload=ANN)
    job = here.trigger("daily", datetime(2026, 1, 30, 7, tzinfo=UTC))

    line = refusal(perdure("trigger", "daily", "--for", "2026-01-31T07:00Z", cwd=folder, **URL))

    assert str(job.id) in line
    assert line.endswith("[schedule_overlap]")
    assert refusal(perdure("trigger", "daily", "--for", "tomorrow", cwd=folder, **URL)).endswith("[time_invalid]")
    assert refusal(perdure("trigger", "dialy", cwd=folder, **URL)).endswith("did you mean 'daily'? [schedule_unknown]")


def test_a_job_says_which_schedule_and_instant_it_is_from(perdure: Perdure, here: App, folder: Path) -> None:
    here.schedules.put("daily", "0 7 * * *", kind="send", payload=ANN)
    job = here.trigger("daily", datetime(2026, 1, 31, 7, tzinfo=UTC))
    plain = here.enqueue("send", ANN)
    here.schedules.rename("daily", "every-morning")

    shown = perdure("job", str(job.id), cwd=folder, **URL).out
    told = perdure("job", str(job.id), "--json", cwd=folder, **URL).json()
    explained = perdure("explain", str(job.id), cwd=folder, **URL).out

    assert "every-morning, for 2026-01-31 07:00:00 UTC" in shown
    assert (told["schedule"], told["scheduled_for"]) == ("every-morning", "2026-01-31T07:00:00.000000Z")
    assert told["schedule_id"] == str(here.schedules.slots("every-morning") and here.schedules.list()[0].id)
    assert "every-morning, for 2026-01-31 07:00:00 UTC" in explained
    assert perdure("job", str(plain.id), "--json", cwd=folder, **URL).json()["schedule"] is None
    assert "schedule" not in perdure("explain", str(plain.id), cwd=folder, **URL).out


def test_a_stretch_is_filled_and_says_what_was_taken_before(perdure: Perdure, here: App, folder: Path) -> None:
    here.schedules.put("hourly", "@hourly", kind="send", payload=ANN)
    taken = here.trigger("hourly", datetime(2026, 1, 31, 2, tzinfo=UTC))
    stretch = ("--from", "2026-01-31T00:00Z", "--to", "2026-01-31T05:00Z")

    filled = perdure("backfill", "hourly", *stretch, cwd=folder, **URL)
    again = perdure("backfill", "hourly", *stretch, "--json", cwd=folder, **URL).json()

    assert filled.out == "hourly: 4 jobs made; 1 slot had been taken before.\n"
    assert filled.err == ""
    assert (again["made"], again["taken_before"], again["from"]) == (0, 5, "2026-01-31T00:00:00.000000Z")
    slots = here.schedules.slots("hourly")
    assert [slot.scheduled_for.hour for slot in slots] == [4, 3, 2, 1, 0]
    assert slots[2].job_id == taken.id


def test_a_stretch_without_instants_makes_nothing(perdure: Perdure, here: App, folder: Path) -> None:
    here.schedules.put("yearly", "@yearly", kind="send", payload=ANN)
    stretch = ("--from", "2026-01-31T00:00Z", "--to", "2026-02-01T00:00Z")

    assert perdure("backfill", "yearly", *stretch, cwd=folder, **URL).out == "yearly has no planned instant there.\n"


def test_many_jobs_are_made_only_if_someone_wants_them(perdure: Perdure, here: App, folder: Path) -> None:
    here.schedules.put("often", every=60, kind="send", payload=ANN, overlap="allow")
    stretch = ("backfill", "often", "--from", "2026-01-31T00:00Z", "--to", "2026-01-31T01:41Z")

    line = refusal(perdure(*stretch, cwd=folder, **URL))
    assert "up to 101 jobs" in line
    assert line.endswith("[not_confirmed]")
    assert refusal(perdure(*stretch, "--json", cwd=folder, **URL)).endswith("[not_confirmed]")
    asked = at_a_keyboard(*stretch, cwd=folder, typed="n\n", **URL)
    assert asked.out.endswith("Nothing was changed.\n")
    assert next(here.jobs(), None) is None
    assert perdure(*stretch, "--yes", cwd=folder, **URL).out == "often: 101 jobs made.\n"


def test_what_was_made_is_told_when_a_slot_stops_the_rest(perdure: Perdure, here: App, folder: Path) -> None:
    here.schedules.put("hourly", "@hourly", kind="send", payload=ANN)
    here.trigger("hourly", datetime(2026, 1, 31, 2, tzinfo=UTC))
    stretch = ("--from", "2026-01-31T00:00Z", "--to", "2026-01-31T05:00Z")
    with closing(sqlite3.connect(folder / "shop.db", isolation_level=None)) as other_program:
        (job_id,) = other_program.execute("SELECT job_id FROM perdure_slot").fetchone()
        other_program.execute("UPDATE perdure_slot SET job_id = zeroblob(16)")

        stopped = perdure("backfill", "hourly", *stretch, cwd=folder, **URL)

        other_program.execute("UPDATE perdure_slot SET job_id = ? WHERE job_id = zeroblob(16)", [job_id])
    assert stopped.status == 2
    told, why = stopped.err.splitlines()
    assert told.startswith("hourly: 2 jobs made.")
    assert why.endswith("[slot_taken]")


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ((), "usage_error"),
        (("--from", "long ago"), "time_invalid"),
        (("--from", "1d", "--to", "soon"), "time_invalid"),
        (("--from", "1d", "--to", "2d"), "option_invalid"),
    ],
)
def test_a_stretch_that_is_none_is_refused(
    perdure: Perdure, here: App, folder: Path, arguments: tuple[str, ...], code: str
) -> None:
    here.schedules.put("hourly", "@hourly", kind="send", payload=ANN)

    assert refusal(perdure("backfill", "hourly", *arguments, cwd=folder, **URL)).endswith(f"[{code}]")
    assert next(here.jobs(), None) is None


def test_words_of_other_tools_are_understood(perdure: Perdure, here: App, folder: Path) -> None:
    here.enqueue("send", ANN)

    assert "perdure schedules?" in refusal(perdure("schedules", "list", cwd=folder, **URL))
    assert "perdure schedules disable NAME?" in refusal(perdure("schedules", "pause", "x", cwd=folder, **URL))
    assert "perdure schedules?" in refusal(perdure("beat", cwd=folder, **URL))


def test_times_are_utc_wherever_this_machine_is(perdure: Perdure, here: App, folder: Path) -> None:
    from tests.cli.terminal import process

    here.schedules.put("once", at=datetime(2099, 7, 1, 12, tzinfo=UTC), kind="send", payload=ANN)

    shown = process("schedules", cwd=folder, TZ="Asia/Tokyo", **URL).out

    assert "next (UTC)" in shown
    assert " 2099-07-01 12:00 " in shown
    assert to_micros(datetime(2099, 7, 1, 12, tzinfo=UTC)) == here.store.next_trigger()
