"""`perdure retry`, `cancel`, `pause`, `resume`, `delete`, `move`, `priority`: for jobs named, or for all that fit."""

from __future__ import annotations

import io
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from perdure import Job, State
from perdure import Perdure as App
from perdure.cli import control
from perdure.clock import ManualClock, Micros, SystemClock
from perdure.ids import IdFactory
from perdure.listing import TAKEN
from perdure.ops import lookup
from tests.cli.terminal import Perdure, Ran, at_a_keyboard, in_a_terminal, refusal

URL = {"PERDURE_URL": "shop.db"}


@pytest.fixture
def waiting(here: App) -> list[Job]:
    return [here.enqueue("resize", {"width": n}) for n in range(3)]


@pytest.fixture
def failed(here: App) -> list[Job]:
    """Two mails that could not be sent."""
    jobs = [here.enqueue("send", {"to": "nobody"}) for _ in range(2)]
    here.worker(poll_s=0.02).run(until_idle=True)
    return jobs


def states(app: App, jobs: list[Job]) -> list[State]:
    return [app.existing(job).state for job in jobs]


def told(ran: Ran) -> list[str]:
    assert (ran.status, ran.err) == (0, ""), ran
    return ran.out.splitlines()


def test_jobs_are_paused_resumed_and_cancelled_by_name(
    perdure: Perdure, here: App, waiting: list[Job], folder: Path
) -> None:
    first, second, third = waiting
    names = (first.id.hex[-8:], str(second.id))

    assert told(perdure("pause", *names, cwd=folder, **URL)) == [
        f"{first.id} resize: queued → paused",
        f"{second.id} resize: queued → paused",
    ]
    assert told(perdure("pause", names[0], cwd=folder, **URL)) == [f"{first.id} resize: is paused already"]
    assert told(perdure("resume", names[0], cwd=folder, **URL)) == [f"{first.id} resize: paused → queued"]
    assert told(perdure("cancel", names[1], cwd=folder, **URL)) == [f"{second.id} resize: paused → cancelled"]
    assert states(here, waiting) == [State.QUEUED, State.CANCELLED, State.QUEUED]
    assert third.id != second.id


def test_a_verb_answers_with_the_jobs_as_they_now_are(
    perdure: Perdure, here: App, waiting: list[Job], folder: Path
) -> None:
    [job] = perdure("pause", str(waiting[0].id), "--json", cwd=folder, **URL).json()

    assert (job["id"], job["state"]) == (str(waiting[0].id), "paused")


def test_the_impossible_is_one_line(perdure: Perdure, waiting: list[Job], folder: Path) -> None:
    assert "[retry_refused]" in refusal(perdure("retry", str(waiting[0].id), cwd=folder, **URL))


def test_what_is_impossible_is_said_in_commands_not_in_python(
    perdure: Perdure, here: App, failed: list[Job], waiting: list[Job], folder: Path
) -> None:
    done, broken, queued = here.enqueue("resize", {"width": 9}), failed[0], waiting[0]
    here.worker(["default"], poll_s=0.02).run(until_idle=True)
    again = here.enqueue("resize", {"width": 1})

    def said(*command: str) -> str:
        return refusal(perdure(*command, cwd=folder, **URL))

    assert f"it is completed; perdure retry {done.id} --as-new runs it again as a new job" in said(
        "retry", str(done.id)
    )
    assert f"it is failed, which is final; perdure retry {broken.id} runs it again" in said("pause", str(broken.id))
    assert f"cannot set the priority of job {queued.id}" in said("priority", str(queued.id), "3")
    replaced = here.supersede(here.enqueue("resize", {"width": 1}), here.kinds.get("resize").new(width=2))
    assert f"took its place; perdure retry {replaced.id} --as-new runs it anyway" in said("retry", str(replaced.id))
    with_priority = here.enqueue("resize", {"width": 1}, priority=3)
    near = said("move", str(again.id), "--before", str(with_priority.id))
    assert "they have different priorities; perdure priority gives both the same [move_refused]" in near
    elsewhere = said("move", str(again.id), "--before", str(here.enqueue("send", {"to": "a"}).id))
    assert "it waits in queue 'mail', and this one in 'default' [move_refused]" in elsewhere
    with_url = refusal(perdure("retry", str(done.id), "--url=shop.db", cwd=folder))
    assert f"perdure retry {done.id} --as-new --url shop.db runs it again as a new job" in with_url


def test_of_several_the_impossible_ones_do_not_keep_the_others(
    perdure: Perdure, here: App, failed: list[Job], waiting: list[Job], folder: Path
) -> None:
    done, again = failed[0], here.enqueue("resize", {"width": 9})

    ran = perdure("retry", str(again.id), str(done.id), cwd=folder, **URL)

    assert ran.status == 2
    assert f"{done.id} send: failed → queued" in ran.out
    assert "[retry_refused]" in ran.err
    assert here.existing(done).state is State.QUEUED


def test_one_wrong_name_and_nothing_is_done(perdure: Perdure, here: App, waiting: list[Job], folder: Path) -> None:
    refusal(perdure("cancel", str(waiting[0].id), "zzzz", cwd=folder, **URL))

    assert states(here, waiting) == [State.QUEUED] * 3


def test_an_ended_job_runs_again_as_a_new_one(perdure: Perdure, here: App, failed: list[Job], folder: Path) -> None:
    [line] = told(perdure("retry", str(failed[0].id), "--as-new", cwd=folder, **URL))

    new = next(here.jobs(limit=1))
    assert line == f"{failed[0].id} send: runs again as {new.id}"
    assert new.retry_of == failed[0].id


def test_many_are_changed_when_the_answer_is_given_beforehand(
    perdure: Perdure, here: App, failed: list[Job], waiting: list[Job], folder: Path
) -> None:
    assert told(perdure("retry", "--kind", "send", "--yes", cwd=folder, **URL)) == ["2 jobs will run again."]
    assert states(here, failed) == [State.QUEUED] * 2
    assert told(perdure("pause", "--queue", "default", "-y", "--limit", "2", cwd=folder, **URL)) == ["2 jobs paused."]
    assert told(perdure("resume", "--state", "paused", "-y", cwd=folder, **URL)) == ["2 jobs resumed."]
    assert perdure("cancel", "--kind", "resize", "-y", "--json", cwd=folder, **URL).json() == {
        "verb": "cancel",
        "changed": 3,
        "skipped": 0,
        "more": False,
    }
    assert states(here, waiting) == [State.CANCELLED] * 3
    assert told(perdure("retry", "--kind", "resize", "-y", cwd=folder, **URL)) == ["No jobs to retry like that."]
    assert told(perdure("retry", "--state", "cancelled", "-y", cwd=folder, **URL)) == ["3 jobs will run again."]


def test_where_nobody_can_be_asked_many_are_refused(
    perdure: Perdure, here: App, waiting: list[Job], folder: Path
) -> None:
    line = refusal(perdure("cancel", "--kind", "resize", cwd=folder, typed="y\n", **URL))

    assert "3 jobs" in line
    assert "--yes" in line
    assert "[not_confirmed]" in line
    assert states(here, waiting) == [State.QUEUED] * 3


@pytest.mark.parametrize("verb", [*TAKEN, "delete"])
def test_a_program_that_reads_json_is_not_taken_for_one_that_agrees(
    perdure: Perdure, here: App, failed: list[Job], waiting: list[Job], folder: Path, verb: str
) -> None:
    here.pause(waiting[0])
    jobs = [*failed, *waiting]
    before = [here.get(job) for job in jobs]
    chosen = ["--since", "1h"] if verb != "delete" else [str(job.id) for job in failed]

    assert "[not_confirmed]" in refusal(perdure(verb, *chosen, "--json", cwd=folder, typed="y\n", **URL))
    assert [here.get(job) for job in jobs] == before


@pytest.mark.parametrize("verb", ["cancel", "delete"])
def test_with_json_nobody_is_asked_even_at_a_keyboard(
    here: App, failed: list[Job], waiting: list[Job], folder: Path, verb: str
) -> None:
    """What is printed is for a program, which would find the question in it."""
    chosen = ["--kind", "resize"] if verb == "cancel" else [str(failed[0].id)]

    assert "[not_confirmed]" in refusal(at_a_keyboard(verb, *chosen, "--json", cwd=folder, typed="y\n", **URL))
    assert states(here, failed + waiting) == [State.FAILED] * 2 + [State.QUEUED] * 3


# -- every filter beside every other verb ----------------------------------------------------------------------------


FILTERS: dict[str, tuple[dict[str, Any], dict[str, Any], tuple[str, ...]]] = {
    "--queue": ({"queue": "one"}, {"queue": "two"}, ("one", "--kind", "work")),
    "--kind": ({"kind": "work"}, {"kind": "toil"}, ("work", "--queue", "default")),
    "--tag": ({"tags": ["one"]}, {"tags": ["two"]}, ("one", "--kind", "work")),
    "--business-key": ({"business_key": "one"}, {"business_key": "two"}, ("one", "--kind", "work")),
    "--owner": ({"owner": "one"}, {"owner": "two"}, ("one", "--kind", "work")),
    "--since": ({"hours_ago": 0}, {"hours_ago": 2}, ("1h", "--kind", "work")),
    "--until": ({"hours_ago": 2}, {"hours_ago": 0}, ("1h", "--kind", "work")),
}
"""A job that fits, one that does not, and what the option is given, with another filter that fits both."""


def enqueued(
    folder: Path, verb: str, *, kind: str = "work", owner: str = "app", hours_ago: int = 0, **wish: Any
) -> Job:
    """A job of an app of this name, as it was made some hours ago, in a state that the verb takes."""
    then = ManualClock(Micros(SystemClock().now() - hours_ago * 3_600_000_000))
    ids = IdFactory(lambda: then.now() // 1_000)  # which say when a job was made
    app = App(folder / "shop.db", name=owner, durability="normal", clock=then, ids=ids)

    @app.job(name=kind, retry=1)
    async def fails() -> None:
        raise ValueError

    job = fails.options(**wish).enqueue()
    if verb in ("retry", "delete", "runs"):
        app.worker(poll_s=0.02).run(until_idle=True)
    elif verb == "resume":
        app.pause(job)
    found = app.existing(job)
    app.close()
    return found


@pytest.mark.parametrize("verb", [*TAKEN, "jobs"])
@pytest.mark.parametrize("option", FILTERS)
def test_each_filter_counts_beside_another_one(
    perdure: Perdure, here: App, folder: Path, verb: str, option: str
) -> None:
    fitting, other, value = FILTERS[option]
    fits = enqueued(folder, verb, **fitting)
    does_not = enqueued(folder, verb, **other)

    if verb == "jobs":
        listed = perdure("jobs", option, *value, "--json", cwd=folder, **URL).json()
        assert [job["id"] for job in listed] == [str(fits.id)]
        return
    done = perdure(verb, option, *value, "-y", "--json", cwd=folder, **URL).json()
    assert (done["changed"], done["skipped"]) == (1, 0)
    assert here.existing(fits).version > fits.version
    assert here.get(does_not) == does_not


@pytest.mark.parametrize("option", ["--kind", "--owner"])
def test_each_filter_of_runs_counts_beside_another_one(perdure: Perdure, here: App, folder: Path, option: str) -> None:
    fitting, other, (value, *_) = FILTERS[option]
    fits = enqueued(folder, "runs", **fitting)
    enqueued(folder, "runs", **other)

    listed = perdure("runs", option, value, "--state", "failed", "--json", cwd=folder, **URL).json()
    assert [run["job_id"] for run in listed] == [str(fits.id)]


@pytest.mark.parametrize("option", ["--since", "--until"])
def test_the_times_of_runs_count_beside_another_filter(perdure: Perdure, here: App, folder: Path, option: str) -> None:
    early, late = enqueued(folder, "runs", hours_ago=2), enqueued(folder, "runs")

    listed = perdure("runs", option, "1h", "--kind", "work", "--json", cwd=folder, **URL).json()
    assert [run["job_id"] for run in listed] == [str(late.id if option == "--since" else early.id)]


@pytest.mark.parametrize(
    ("verb", "state", "other"),
    [("cancel", "paused", "queued"), ("pause", "scheduled", "queued"), ("retry", "cancelled", "failed")],
)
def test_the_state_counts_beside_another_filter(
    perdure: Perdure, here: App, folder: Path, verb: str, state: str, other: str
) -> None:
    def job(wanted: str) -> Job:
        wish: dict[str, Any] = {"delay": timedelta(days=1)} if wanted == "scheduled" else {}
        made = enqueued(folder, "retry" if wanted == "failed" else "cancel", **wish)
        change = {"paused": here.pause, "cancelled": here.cancel}.get(wanted, here.existing)
        return change(made)

    does_not, fits = job(other), job(state)
    assert (does_not.state, fits.state) == (other, state)

    done = perdure(verb, "--state", state, "--kind", "work", "-y", "--json", cwd=folder, **URL).json()
    assert (done["changed"], done["skipped"]) == (1, 0)
    assert here.existing(fits).version > fits.version
    assert here.get(does_not) == does_not


@pytest.mark.parametrize(("answer", "after"), [("y", State.CANCELLED), ("n", State.QUEUED), ("", State.QUEUED)])
def test_at_a_keyboard_it_shows_what_it_would_touch_and_asks(
    here: App, waiting: list[Job], folder: Path, answer: str, after: State
) -> None:
    more = [here.enqueue("resize", {"width": n}) for n in range(4)]

    ran = at_a_keyboard("cancel", "--kind", "resize", cwd=folder, typed=f"{answer}\n", **URL)

    assert (ran.status, ran.err) == (0, "")
    assert ran.out.count("queued") == 5
    assert "… and 2 more jobs\n" in ran.out
    assert "Cancel 7 jobs? [y/N]" in ran.out
    assert ("Nothing was changed." in ran.out) is (after is State.QUEUED)
    assert states(here, waiting + more) == [after] * 7


def test_only_what_was_shown_is_touched_and_what_has_moved_on_is_skipped(
    here: App, waiting: list[Job], folder: Path
) -> None:
    come_later: list[Job] = []

    def answer() -> str:
        come_later.extend(here.enqueue("resize", {"width": n}) for n in range(9))
        here.cancel(waiting[0])
        here.pause(waiting[1])
        return "y\n"

    ran = in_a_terminal("pause", "--kind", "resize", cwd=folder, prompt="Pause 3 jobs? [y/N]", typed=answer, **URL)

    assert ran.status == 0
    assert "1 job paused." in ran.out
    assert "2 jobs skipped: changed meanwhile" in ran.out
    assert states(here, waiting) == [State.CANCELLED, State.PAUSED, State.PAUSED]
    assert states(here, come_later) == [State.QUEUED] * 9


def test_a_job_that_left_the_state_asked_for_is_skipped_though_the_verb_could_be_used(
    here: App, waiting: list[Job], folder: Path
) -> None:
    def answer() -> str:
        here.pause(waiting[0])
        return "y\n"

    ran = in_a_terminal("cancel", "--state", "queued", cwd=folder, prompt="Cancel 3 jobs?", typed=answer, **URL)

    assert "2 jobs cancelled" in ran.out
    assert "1 job skipped" in ran.out
    assert states(here, waiting) == [State.PAUSED, State.CANCELLED, State.CANCELLED]


@pytest.mark.parametrize(("limit", "more"), [([], True), (["--limit", "9"], True), (["--limit", "2"], False)])
def test_of_very_many_the_first_are_taken_and_the_command_can_be_repeated(
    perdure: Perdure,
    here: App,
    waiting: list[Job],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    limit: list[str],
    more: bool,
) -> None:
    monkeypatch.setattr(lookup, "AT_ONCE", 2)
    command = ("cancel", "--kind", "resize", "-y", *limit)

    lines = ["2 jobs cancelled, or asked to stop."]
    assert told(perdure(*command, cwd=folder, **URL)) == [
        *lines,
        *(["There are more; the same command takes the next ones."] if more else []),
    ]
    assert perdure(*command, "--json", cwd=folder, **URL).json() == {
        "verb": "cancel",
        "changed": 1,
        "skipped": 0,
        "more": False,
    }
    assert states(here, waiting) == [State.CANCELLED] * 3


def test_the_question_says_that_there_are_more(
    waiting: list[Job], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Keyboard(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Keyboard("y\n"))
    control.confirm("cancel", waiting, 10_000, yes=False, json=False, more=True)

    out = capsys.readouterr().out
    assert "… and 9,997 more jobs\n" in out
    assert "There are more, but only 10,000 are changed at once; repeat the command" in out
    assert "Cancel 10,000 jobs?" in out


@pytest.mark.parametrize("verb", list(TAKEN))
def test_the_command_takes_the_states_that_the_front_door_takes(
    perdure: Perdure, here: App, folder: Path, verb: str
) -> None:
    """One job in each state that is easily made; whatever the command leaves, `…_all` leaves too."""
    queued, paused, cancelled = (here.enqueue("resize", {"width": n}) for n in range(3))
    failed = here.enqueue("send", {"to": "nobody"})
    here.pause(paused)
    here.cancel(cancelled)
    here.worker(queues=["mail"], poll_s=0.02).run(until_idle=True)
    assert states(here, [queued, paused, cancelled, failed]) == ["queued", "paused", "cancelled", "failed"]

    done = perdure(verb, "--since", "1h", "-y", "--json", cwd=folder, **URL).json()

    assert done["changed"] == {"cancel": 2, "pause": 1, "resume": 1, "retry": 1}[verb]
    assert done["skipped"] == 0
    if verb != "retry":
        assert getattr(here, f"{verb}_all")() == 0


@pytest.mark.parametrize(("key", "status"), [("\x03", 130), ("\x04", 1)])
def test_ctrl_c_or_the_end_of_input_instead_of_an_answer_changes_nothing(
    here: App, waiting: list[Job], folder: Path, key: str, status: int
) -> None:
    ran = in_a_terminal("cancel", "--kind", "resize", cwd=folder, prompt="[y/N]", typed=key, **URL)

    assert ran.status == status
    assert "Traceback" not in ran.out
    assert states(here, waiting) == [State.QUEUED] * 3


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["cancel"], "by id, or choose them with a filter"),
        (["cancel", "--yes"], "by id, or choose them with a filter"),
        (["retry", "abcd", "--kind", "send"], "not both"),
        (["retry", "--kind", "send", "--as-new"], "--as-new takes jobs by id"),
        (["retry", "--state", "completed", "-y"], "retry takes failed, cancelled jobs"),
        (["pause", "--state", "running", "-y"], "nothing to pause there"),
        (["delete"], "by their ids"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    perdure: Perdure, arguments: list[str], part: str, waiting: list[Job], folder: Path
) -> None:
    assert part in refusal(perdure(*arguments, cwd=folder, **URL))


def test_a_job_is_moved(perdure: Perdure, here: App, waiting: list[Job], folder: Path) -> None:
    first, second, third = waiting

    assert told(perdure("move", str(third.id), "--to", "front", cwd=folder, **URL)) == [
        f"{third.id} resize: moved, 0 jobs of queue default before it"
    ]
    perdure("move", str(first.id), "--after", str(second.id), cwd=folder, **URL)
    assert list(here.jobs(state="queued", queue="default")) == [here.get(job) for job in (third, second, first)]
    perdure("move", str(first.id), "--before", third.id.hex[-8:], cwd=folder, **URL)
    perdure("move", str(third.id), "--to", "back", cwd=folder, **URL)
    assert list(here.jobs(state="queued", queue="default")) == [here.get(job) for job in (first, second, third)]


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ([], "usage_error"),
        (["--to", "front", "--before", "abcd"], "usage_error"),
        (["--to", "top"], "option_invalid"),
        (["--before", "zzzz"], "id_invalid"),
    ],
)
def test_a_move_to_nowhere_is_refused(
    perdure: Perdure, options: list[str], code: str, waiting: list[Job], folder: Path
) -> None:
    assert f"[{code}]" in refusal(perdure("move", str(waiting[0].id), *options, cwd=folder, **URL))


@pytest.mark.parametrize("priority", [9, -9])
def test_a_job_gets_another_priority(
    perdure: Perdure, here: App, waiting: list[Job], folder: Path, priority: int
) -> None:
    assert told(perdure("priority", str(waiting[0].id), str(priority), cwd=folder, **URL)) == [
        f"{waiting[0].id} resize: priority {priority}"
    ]
    assert here.existing(waiting[0]).priority == priority


@pytest.mark.parametrize("priority", ["high", "9999999999999", "--kind"])
def test_what_is_no_priority_is_refused(perdure: Perdure, waiting: list[Job], folder: Path, priority: str) -> None:
    refusal(perdure("priority", str(waiting[0].id), priority, cwd=folder, **URL))


def test_ended_jobs_are_deleted_when_that_is_meant(
    perdure: Perdure, here: App, failed: list[Job], waiting: list[Job], folder: Path
) -> None:
    assert "[not_confirmed]" in refusal(perdure("delete", str(failed[0].id), cwd=folder, **URL))
    assert told(perdure("delete", str(failed[0].id), "-y", cwd=folder, **URL)) == [f"{failed[0].id} send: deleted"]
    assert here.get(failed[0]) is None
    assert here.get(failed[1]) is not None
    paused = here.enqueue("resize", {"width": 1})
    assert "[delete_refused]" in refusal(perdure("delete", str(paused.id), "-y", cwd=folder, **URL))


def test_nobody_is_asked_about_a_job_that_cannot_be_deleted(here: App, waiting: list[Job], folder: Path) -> None:
    ran = at_a_keyboard("delete", str(waiting[0].id), cwd=folder, typed="y\n", **URL)

    assert "it is queued; cancel it first [delete_refused]" in refusal(ran)


def test_of_several_only_those_that_can_be_deleted_are_asked_about(
    here: App, failed: list[Job], waiting: list[Job], folder: Path
) -> None:
    ran = at_a_keyboard("delete", str(waiting[0].id), str(failed[0].id), cwd=folder, typed="y\n", **URL)

    assert ran.status == 2
    assert "Delete 1 job? [y/N]" in ran.out
    assert "[delete_refused]" in ran.err
    assert here.get(failed[0]) is None
    assert here.get(waiting[0]) is not None


def test_where_none_can_be_deleted_all_are_named(perdure: Perdure, here: App, waiting: list[Job], folder: Path) -> None:
    ran = perdure("delete", *(str(job.id) for job in waiting), cwd=folder, **URL)

    assert (ran.status, ran.out) == (2, "")
    assert ran.err.count("[delete_refused]") == 3
