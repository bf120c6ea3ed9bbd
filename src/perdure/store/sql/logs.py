"""Captured log lines and artifacts of runs. Written by the worker, read by `app.logs`, through `store`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast

from perdure.ids import JobId, RunId
from perdure.job.model import json_of, readable
from perdure.store.answers import LogLine
from perdure.store.sql.engine import Call, Op


def append(lines: Sequence[LogLine]) -> Op[None]:
    """Keep these lines. A line that is already there is left as it is, so a repeat after a lost answer is harmless."""
    if lines:
        yield Call("append_log", list(lines))


def page(job_id: JobId, after: LogLine | None, size: int) -> Op[list[LogLine]]:
    """The lines of all runs of a job in the order they were written, after `after`."""
    place = (after.run_id, after.line) if after else (b"\x00" * 16, -1)
    params = {"job_id": job_id, "after_run": place[0], "after_line": place[1], "page": size}
    rows = (yield Call("list_log", params)).rows
    return [readable(LogLine, row)[0] for row in rows]


def append_artifacts(run_id: RunId, artifacts: Sequence[str]) -> Op[bool]:
    """Add to a run's artifacts, also after it closed: the one thing a closed run still takes. False: no such run.

    What is there already is not added again, so a repeat after a lost answer is harmless.
    """
    rows = (yield Call("read_artifacts", {"run_id": run_id})).rows
    if not rows:
        return False
    known = cast("str | None", rows[0][0])
    joined: list[str] = list(dict.fromkeys([*_listed(known), *artifacts]))
    yield Call("append_artifact", {"run_id": run_id, "artifacts": json.dumps(joined)})
    return True


def _listed(known: str | None) -> list[str]:
    """What is there already; nothing where that is no list any more."""
    try:
        paths = json_of(known)
    except (TypeError, ValueError):
        return []
    return [path for path in cast("list[object]", paths) if isinstance(path, str)] if isinstance(paths, list) else []
