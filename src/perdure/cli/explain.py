"""`perdure explain`: why a job is where it is. Asks `ops/explain`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from perdure.cli.show import Json, one_line, print_json, sentence
from perdure.cli.tables import print_fields
from perdure.cli.target import App, JobName, Url, existing, find_job
from perdure.cli.typed import as_typed

if TYPE_CHECKING:
    from perdure.job.views import Job


def explain(id: JobName, *, url: Url = None, app: App = None, json: Json = False) -> None:
    """Say why a job is not running, or how it ended: in one sentence, with what that rests on and what to do."""
    from perdure.clock import SystemClock
    from perdure.ops.explain import explain as asked

    with existing(url, app) as store:
        job = find_job(store, id)
        found = asked(store, job, SystemClock().now())
    remedy = None if found.remedy is None else as_typed(found.remedy, url, app)
    if json:
        print_json(
            {
                "id": str(job.id),
                "state": found.state.value,
                "why": found.why,
                "next": found.next,
                "command": remedy,
                "facts": [{"name": name, "text": text} for name, text in found.facts],
            }
        )
        return
    print(one_line(_sentence(job, found.why)) + "\n")
    print_fields([("job", str(job.id)), *found.facts, ("next", remedy or f"{found.next}.")])


def _sentence(job: Job, why: str) -> str:
    """`why` of an ended job says its state by itself: "it failed after 3 attempts with …"."""
    is_told = job.is_final and why.startswith("it ")
    told = f"{job.kind} {why.removeprefix('it ')}" if is_told else f"{job.kind} is {job.state}: {why}"
    return sentence(told)
