"""The columns of the tables as SQL, made from the row types: the only list of them. Filled in by `statements`.

A new column of `ready` or `job` is a migration and a field of `LiveJob` or `JobRow`. Where every new job has a value
for it, it is named in `BROUGHT` or `AT_FIRST` too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from textwrap import fill

from perdure.job.model import Claim, JobRow, JobView, LiveJob, OutcomeRow
from perdure.store.rows import NodeRow

PLAIN_READY = (
    *("job_id", "queue", "kind", "kind_version", "state", "rank", "position", "run_at", "queued_at"),
    *("max_attempts", "as_new_job"),
)
BROUGHT = {
    "plain_ready": PLAIN_READY,
    "new_ready": (*PLAIN_READY, "timeout_ms", "waits_for", "limit_key", "business_key"),
    "plain_job": ("id", "kind", "kind_version", "owner", "queue", "payload", "created_at"),
    "new_job": (
        *("id", "kind", "kind_version", "owner", "queue", "payload", "secrets", "params", "options", "principal"),
        *("idempotency_key", "business_key", "parent_id", "created_at"),
    ),
}
"""What a new job brings along, in the order in which `write` gives it. All else is empty, or begins as below."""

AT_FIRST: Mapping[str, Mapping[str, str]] = {
    "ready": {
        "attempts": "0",
        "crashes": "0",
        "life": "1",
        "waits_for": "0",
        "paused": "0",
        "cancel_requested": "0",
        "updated_at": ":queued_at",
        "version": "1",
    },
    "job": {"chain_attempt": "1"},
}

COPIED = {
    "id": ":id",
    "root_id": "COALESCE(root_id, id)",
    "retry_of": "id",
    "auto_retry_of": ":auto_retry_of",
    "chain_attempt": "chain_attempt + :chain_step",
    "created_at": ":created_at",
}
"""What is not the same in a job that continues another one's work, or does it again."""

SHOWN = {
    "queue": "COALESCE(r.queue, j.queue)",
    "waits_for": "COALESCE(r.waits_for, 0)",
    "cancel_requested": "COALESCE(r.cancel_requested, 0)",
    "error": "COALESCE(r.last_error, o.error)",
    "tags": "{tags_of_job}",
}
"""What of the view of a job is not simply a column of its row, of its live row, or of its last outcome."""

PLAIN_OUTCOME = (*OutcomeRow._fields[:13], "version")
"""An end with no error and nobody to take over."""


def fragments() -> dict[str, str]:
    """By the name that statements include them under."""
    claimed = [*(f"r.{name}" for name in LiveJob._fields), *(f"j.{name}" for name in Claim._fields[1:])]
    made = {
        "ready_columns": _listed(LiveJob._fields),
        "ready_values": _values(LiveJob._fields),
        "ready_changes": _listed(f"{name} = :{name}" for name in LiveJob._fields[1:]),
        "claim_columns": _listed(claimed),
        "job_columns": _listed(JobRow._fields),
        "job_copied": _listed(COPIED.get(name, name) for name in JobRow._fields),
        "job_view_columns": _listed(map(_shown, JobView._fields)),
        "outcome_columns": _listed(OutcomeRow._fields),
        "outcome_values": _values(OutcomeRow._fields),
        "plain_outcome_columns": _listed(PLAIN_OUTCOME),
        "plain_outcome_values": _values(PLAIN_OUTCOME),
        "node_columns": _listed(NodeRow._fields),
    }
    for sort, brought in BROUGHT.items():
        rest = {name: value for name, value in AT_FIRST[sort.split("_")[1]].items() if name not in brought}
        made[f"{sort}_columns"] = _listed([*brought, *rest])
        made[f"{sort}_values"] = _listed([*(f":{name}" for name in brought), *rest.values()])
    return made


def _shown(name: str) -> str:
    if name in SHOWN:
        return SHOWN[name]
    if name in JobRow._fields:
        return f"j.{name}"
    if name not in OutcomeRow._fields:
        return f"r.{name}"
    return f"COALESCE(r.{name}, o.{name})" if name in LiveJob._fields else f"o.{name}"


def _values(names: Iterable[str]) -> str:
    return _listed(f":{name}" for name in names)


def _listed(parts: Iterable[str]) -> str:
    return fill(", ".join(parts), 112, subsequent_indent="    ", break_long_words=False, break_on_hyphens=False)
