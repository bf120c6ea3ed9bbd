"""`perdure flows`, `perdure flow`, and the verbs of jobs with the id of a flow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from perdure import Perdure as App
from perdure import each
from tests.cli.terminal import Perdure, refusal

DATABASE = {"PERDURE_URL": "shop.db"}


def nightly(app: App, **options: Any) -> Any:
    """A workflow: a mail that cannot be sent, one that waits for it, and twenty pictures."""
    send, resize = app.kinds.get("send"), app.kinds.get("resize")
    with app.workflow("nightly", key="monday", properties={"day": 1}) as wf:
        bad = wf.add(send.options(**options).new(to="nobody"))
        wf.add(send.new(to="ann"), after=bad)
        wf.map(resize.new(width=each), over=range(1, 21), name="pictures")
        wf.add(send.new(to="boss"), after=wf, on="failure")
    return wf


@pytest.fixture
def ended(here: App) -> Any:
    wf = nightly(here)
    here.worker(poll_s=0.02).run(until_idle=True)
    return wf


def test_flows_are_listed_the_newest_first(perdure: Perdure, here: App, ended: Any, folder: Path) -> None:
    here.chain(here.kinds.get("resize").options(delay=60).new(width=3), name="later")
    ran = perdure("flows", cwd=folder, **DATABASE)
    assert ran.out.index("later") < ran.out.index("nightly")
    assert "3 of 3, 1 failed, 1 skipped" in ran.out
    assert "pictures" not in ran.out, "those inside others are left out"

    (found,) = perdure("flows", "--state", "failed", "--json", cwd=folder, **DATABASE).json()
    assert (found["id"], found["name"], found["total"]) == (str(ended.id), "nightly", 3)
    assert "No flows like that." in perdure("flows", "--name", "other", cwd=folder, **DATABASE).out


def test_no_flows_yet(perdure: Perdure, here: App, folder: Path) -> None:
    here.store.upgrade()
    assert "No flows yet" in perdure("flows", cwd=folder, **DATABASE).out


def test_a_flow_is_drawn(perdure: Perdure, ended: Any, folder: Path) -> None:
    out = perdure("flow", str(ended.id), cwd=folder, **DATABASE).out
    lines = [line.rstrip() for line in out.splitlines()]
    assert any(line.startswith("├─✗ send") and "failed: there is no such address" in line for line in lines)
    assert any(line.startswith("│ – send") and "skipped: it needs the success of job" in line for line in lines)
    inner = next(line for line in lines if line.startswith("└─✓ pictures "))
    assert inner.endswith(" (batch) completed: 20 members (20 completed)")
    assert '"name": "pictures"' in perdure("flow", inner.split()[2], "--json", cwd=folder, **DATABASE).out
    assert any(line.startswith("after it, on failure: ✓ send") for line in lines)
    assert "day=1" in out


def test_a_flow_is_named_by_the_tail_of_its_id(perdure: Perdure, ended: Any, folder: Path) -> None:
    found = perdure("flow", ended.id.hex[-8:], "--json", cwd=folder, **DATABASE).json()
    assert found["flow"]["id"] == str(ended.id)
    assert [job["state"] for job in found["jobs"]] == ["completed", "failed", "skipped"]
    assert [inner["flow"]["name"] for inner in found["inner"]] == ["pictures"]
    assert {edge["state"] for edge in found["edges"]} == {"met", "unmet"}


def test_many_alike_are_one_line(perdure: Perdure, here: App, folder: Path) -> None:
    resize = here.kinds.get("resize")
    group = here.group([resize.options(delay=60).new(width=n) for n in range(30)])
    assert "○ resize × 30: 30 scheduled" in perdure("flow", str(group.id), cwd=folder, **DATABASE).out


def test_a_flow_that_nobody_knows(perdure: Perdure, here: App, folder: Path) -> None:
    here.store.upgrade()
    nobody = "01890000-0000-7000-8000-000000000000"
    assert refusal(perdure("flow", nobody, cwd=folder, **DATABASE)).endswith("[flow_not_found]")
    assert refusal(perdure("cancel", nobody, cwd=folder, **DATABASE)).endswith("[job_not_found]")


def test_the_verbs_of_jobs_take_flows(perdure: Perdure, here: App, folder: Path) -> None:
    wf = nightly(here, delay=3600)
    assert "paused" in perdure("pause", str(wf.id), cwd=folder, **DATABASE).out
    assert "is paused since" in perdure("explain", str(wf.id), cwd=folder, **DATABASE).out
    assert "resumed" in perdure("resume", wf.id.hex[-8:], cwd=folder, **DATABASE).out
    (cancelled,) = perdure("cancel", str(wf.id), "--json", cwd=folder, **DATABASE).json()
    assert cancelled["cancel_requested"] is True
    here.worker(poll_s=0.02).run(until_idle=True)
    assert here.wait(wf).state == "cancelled"
    assert "runs again" in perdure("retry", str(wf.id), cwd=folder, **DATABASE).out


def test_a_flow_whose_callback_has_run_is_retried_with_again(perdure: Perdure, ended: Any, folder: Path) -> None:
    said = refusal(perdure("retry", str(ended.id), cwd=folder, **DATABASE))
    assert f"perdure retry {ended.id} --again" in said
    assert "runs again" in perdure("retry", str(ended.id), "--again", cwd=folder, **DATABASE).out


def test_the_first_that_failed_in_a_long_batch_are_drawn(perdure: Perdure, here: App, folder: Path) -> None:
    send = here.kinds.get("send")
    with here.workflow("mails") as wf:
        wf.map(send.new(to=each), over=["nobody"] * 5 + ["ann"] * 5, name="mails")
    here.worker(poll_s=0.02).run(until_idle=True)
    lines = perdure("flow", str(wf.id), cwd=folder, **DATABASE).out.splitlines()
    assert sum("┊ ✗ send" in line and "there is no such address" in line for line in lines) == 3
    assert any("┊ … and 2 more that failed" in line for line in lines)


def test_an_open_batch_is_sealed(perdure: Perdure, here: App, folder: Path) -> None:
    with pytest.raises(ZeroDivisionError), here.batch("import", abandon="keep") as batch:
        raise ZeroDivisionError
    seal = f"perdure seal {batch.id}"
    assert seal in perdure("explain", str(batch.id), cwd=folder, **DATABASE).out

    assert " is sealed: completed" in perdure(*seal.split()[1:], cwd=folder, **DATABASE).out
    again = perdure("seal", str(batch.id), "--json", cwd=folder, **DATABASE).json()
    assert (again["id"], again["state"]) == (str(batch.id), "completed")
    assert "flow_not_found" in refusal(perdure("seal", "ffffffff", cwd=folder, **DATABASE))


def test_explain_of_a_flow(perdure: Perdure, ended: Any, folder: Path) -> None:
    out = perdure("explain", str(ended.id), cwd=folder, **DATABASE).out
    assert out.startswith("workflow nightly is failed: 1 member failed.")
    assert f"perdure retry {ended.id}" in out


def test_a_job_says_which_flow_it_belongs_to(perdure: Perdure, here: App, ended: Any, folder: Path) -> None:
    job = next(here.flows.jobs(ended, state="failed"))
    assert perdure("job", str(job.id), "--json", cwd=folder, **DATABASE).json()["flow_id"] == str(ended.id)
    assert str(ended.id) in perdure("job", str(job.id), cwd=folder, **DATABASE).out


def test_a_flow_is_found_by_a_name_that_no_other_has(perdure: Perdure, here: App, folder: Path) -> None:
    resize = here.kinds.get("resize")
    only = here.group([resize.new(width=1)], name="once")
    first, second = (here.group([resize.new(width=1)], name="twice") for _ in range(2))
    assert str(only.id) in perdure("flow", "once", cwd=folder, **DATABASE).out

    assert refusal(perdure("flow", "twice", cwd=folder, **DATABASE)) == (
        f"perdure: 2 flows are called 'twice', the newest first: {second.id} (group twice, running), {first.id}"
        " (group twice, running); give an id, or the end of one [flow_ambiguous]"
    )
    assert refusal(perdure("seal", "never", cwd=folder, **DATABASE)) == (
        "perdure: no flow is called 'never', or has an id that ends so; perdure flows lists them [flow_not_found]"
    )


def test_a_flow_of_which_nothing_has_started_waits(perdure: Perdure, here: App, folder: Path) -> None:
    resize = here.kinds.get("resize")
    with here.workflow("later") as wf:
        wf.add(resize.options(delay=3600).new(width=1))
        wf.map(resize.options(delay=3600).new(width=each), over=[1, 2], name="pictures")
    out = perdure("flow", "later", cwd=folder, **DATABASE).out
    assert "state     waiting: 0 of 2 ended" in out
    assert "○ pictures " in out
    assert "(batch) waiting: 0 of 2 ended" in out
    why = perdure("explain", str(wf.id), cwd=folder, **DATABASE).out
    assert "2 of 2 members have not ended; none runs now, and resize is scheduled." in why


def test_why_a_flow_halts_after_a_failure(perdure: Perdure, here: App, folder: Path) -> None:
    send = here.kinds.get("send")
    drafts = [send.new(to="nobody"), send.new(to="ann")]
    group = here.group(drafts, mode="sequential", on_failure="pause", name="mails")
    here.worker(poll_s=0.02).run(until_idle=True)
    assert ", because 1 member failed." in perdure("explain", str(group.id), cwd=folder, **DATABASE).out
    assert "paused: 1 of 2 ended (1 failed)" in perdure("flow", "mails", cwd=folder, **DATABASE).out
    assert "1 of 2, 1 failed, paused" in perdure("flows", cwd=folder, **DATABASE).out
    assert "1 of 2, 1 failed, paused" in perdure("status", cwd=folder, **DATABASE).out


def test_the_jobs_of_a_flow_are_listed(perdure: Perdure, here: App, ended: Any, folder: Path) -> None:
    here.kinds.get("resize").enqueue(width=1)
    jobs = perdure("jobs", "--flow", "nightly", "--json", cwd=folder, **DATABASE).json()
    assert {job["flow_id"] for job in jobs} == {str(ended.id)}
    assert [job["state"] for job in jobs] == ["completed", "failed", "skipped"]
    tail = ended.id.hex[-8:]
    (failed,) = perdure("jobs", "--flow", tail, "--state", "failed", "--json", cwd=folder, **DATABASE).json()
    assert failed["id"] == jobs[1]["id"]
    assert "[flow_not_found]" in refusal(perdure("jobs", "--flow", "nobody", cwd=folder, **DATABASE))
    assert "perdure flow ID shows" in refusal(perdure("jobs", "--flow", tail, "--follow", cwd=folder, **DATABASE))
