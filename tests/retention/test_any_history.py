"""Whatever happened to the jobs before: a sweep takes those that the setting names, and no others."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from perdure import Retention
from perdure.ids import JobId
from perdure.job.reports import Completed, Failed
from perdure.job.states import FINAL, State
from perdure.ops.doctor import examine
from perdure.store.rows import JobFilter
from perdure.testing.contract.rig import HOPELESS, Rig
from perdure.testing.contract.states import in_state
from perdure.upkeep.retention import Archive, Prune
from tests.retention.test_sweeps import done

KINDS = ("send", "resize")
ENDS = ("completed", "cancelled", "skipped", "failed")
STATES = sorted(FINAL | {State.PAUSED, State.SCHEDULED, State.HELD})
"""Those in which no claim takes a job."""

ages = st.none() | st.integers(0, 6)
events = st.tuples(st.sampled_from(STATES), st.sampled_from(KINDS), st.integers(0, 2), st.booleans())
settings_of = st.fixed_dictionaries(
    {
        **dict.fromkeys(("completed", "cancelled", "skipped", "failed"), ages),
        "kinds": st.dictionaries(st.sampled_from(KINDS), ages),
        "archive": st.sampled_from([None, "table"]),
    }
)


def stays(job: dict[str, Any], wish: dict[str, Any], today: int) -> bool:
    """The rule once more, in other words."""
    if not job["over"]:
        return True
    limit = wish[job["state"]]
    if job["state"] != "failed" and job["kind"] in wish["kinds"]:
        limit = wish["kinds"][job["kind"]]
    return limit is None or today - job["ended"] < limit


@given(st.lists(events, max_size=12), settings_of)
def test_a_sweep_takes_what_the_setting_names(
    tmp_path_factory: Any, history: list[tuple[State, str, int, bool]], wish: dict[str, Any]
) -> None:
    folder: Path = tmp_path_factory.mktemp("any")
    rig = Rig(str(folder / "jobs.db"))
    rig.store.pause_limit("printer", None, rig.now)  # so that who is held stays so
    today, jobs = 0, dict[JobId, dict[str, Any]]()
    for state, kind, days, again in history:
        job_id = in_state(rig, state, kind=kind)
        jobs[job_id] = {"state": str(state), "kind": kind, "ended": today, "over": state in ENDS}
        rig.clock.advance(days=days)
        today += days
        if again and state in (State.FAILED, State.CANCELLED):
            rig.store.retry(job_id, rig.now)
            claim = rig.claim_one()
            assert claim.job_id == job_id
            rig.finish(claim, Completed() if kind == "send" else Failed(HOPELESS))
            jobs[job_id] |= {"state": "completed" if kind == "send" else "failed", "ended": today}
    before = {job_id: rig.job(job_id) for job_id in jobs}
    rig.clock.advance(milliseconds=1)  # a whole number of days has passed, then, not only been reached
    spans = {name: None if wish[name] is None else timedelta(days=wish[name]) for name in ENDS}
    kinds = {name: None if age is None else timedelta(days=age) for name, age in wish["kinds"].items()}
    retention = Retention(**spans, kinds=kinds, archive=wish["archive"])
    for work in (Prune, Archive):
        done(work(rig.store, rig.clock, retention), rig.now)

    expected = {job_id: before[job_id] for job_id, job in jobs.items() if stays(job, wish, today)}
    assert {job.row.id: job for job in rig.listed(JobFilter(), 100)} == expected
    assert len(rig.store.archived_jobs(b"\xff" * 16, 100)) == (len(jobs) - len(expected)) * (wish["archive"] == "table")
    assert [found for found in examine(rig.store, rig.now) if found.name != "overdue"] == []
    rig.close()
