"""Loads the named SQL statements, once per dialect, for its driver. The texts are in `sql/*.sql`.

A statement file holds `-- name: x` blocks, and `-- fragment: x` blocks that other blocks include as `{x}`; any other
`{x}` is the table x. Parameters are written `:name` and converted to the driver's style here. A dialect's own fragments
and statements win by name. The lists of columns are fragments too, made from the row types of `job/model` and `rows`,
which are the only such lists.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from textwrap import fill
from typing import TypeVar

from perdure.job.flow import FlowRow, TallyRow
from perdure.job.model import QUEUED, Claim, JobRow, JobView, LiveJob, OutcomeRow, Waiter
from perdure.store.engine import Blob, Statement, Statements
from perdure.store.rows import Archived, NodeRow, ReservationRow, ScheduleRow
from perdure.store.tables import whole_table

T = TypeVar("T")

PLAIN_READY = (
    *("job_id", "queue", "kind", "kind_version", "state", "rank", "position", "run_at", "queued_at"),
    *("max_attempts", "as_new_job"),
)
PLAIN_JOB = ("id", "kind", "kind_version", "owner", "queue", "payload", "created_at")
BROUGHT = {
    "plain_ready": PLAIN_READY,
    "member_ready": (*PLAIN_READY, "waits_for", "flow_id", "traits"),
    "limited_ready": (*PLAIN_READY, "limit_key", "held_by"),
    "new_ready": (
        *PLAIN_READY,
        *("timeout_ms", "waits_for", "limit_key", "business_key", "flow_id", "traits", "held_by"),
    ),
    "plain_job": PLAIN_JOB,
    "member_job": (*PLAIN_JOB, "flow_id", "sequence"),
    "limited_job": (*PLAIN_JOB, "limit_key"),
    "new_job": (
        *("id", "kind", "kind_version", "owner", "queue", "payload", "secrets", "params", "options", "principal"),
        *("idempotency_key", "business_key", "parent_id", "created_at"),
        *("template_id", "template_version", "schedule_id", "scheduled_for", "flow_id", "sequence", "refs"),
        "limit_key",
    ),
}
"""The columns of a new job, in the order in which `write` gives them. The others are NULL, or start as below."""

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
    "limit_key": ":limit_key",
    "flow_id": "CASE WHEN :chain_step = 1 THEN flow_id END",
    "sequence": "CASE WHEN :chain_step = 1 THEN sequence END",
}
"""The columns that differ in a job that continues or repeats the work of another one."""

SHOWN = {
    "queue": "COALESCE(r.queue, j.queue)",
    "waits_for": "COALESCE(r.waits_for, 0)",
    "cancel_requested": "COALESCE(r.cancel_requested, 0)",
    "error": "COALESCE(r.last_error, o.error)",
    "tags": "{tags_of_job}",
}
"""The columns of a job's view that are not simply a column of its row, its live row, or its last outcome."""

GROUP = 50
"""How many jobs a statement about several of them names."""


def groups(items: Sequence[T]) -> Iterator[Sequence[T]]:
    return (items[first : first + GROUP] for first in range(0, len(items), GROUP))


def whole_group(ids: Iterable[bytes]) -> tuple[Blob, ...]:
    """As many ids as a statement about a group takes; not for none."""
    given = tuple(map(Blob, ids))
    return given + given[-1:] * (GROUP - len(given))


_GROUP = tuple(f"id_{first}{second}" for first in "abcdefghij" for second in "abcde")

FLOW = FlowRow._fields[:-1]
"""The columns of a flow: all but the last field, which is counted when it is asked for."""

PLAIN_OUTCOME = (*OutcomeRow._fields[:13], "version")
"""The columns of an outcome without error and successor."""


def column_lists() -> dict[str, str]:
    """The lists of columns, by fragment name."""
    claimed = [*(f"r.{name}" for name in LiveJob._fields), *(f"j.{name}" for name in Claim._fields[1:])]
    known = {f"r.{name}" for name in ("queue", *QUEUED)}
    made = {
        "ready_columns": _listed(LiveJob._fields),
        "waiter_columns": _listed(Waiter._fields),
        "ready_values": _values(LiveJob._fields),
        "ready_changes": _listed(f"{name} = :{name}" for name in LiveJob._fields[1:]),
        "claim_columns": _listed(claimed),
        "queued_columns": _listed(name for name in claimed if name not in known),
        "job_columns": _listed(JobRow._fields),
        "job_copied": _listed(COPIED.get(name, name) for name in JobRow._fields),
        "job_view_columns": _listed(map(_shown, JobView._fields)),
        "outcome_columns": _listed(OutcomeRow._fields),
        "outcome_values": _values(OutcomeRow._fields),
        "plain_outcome_columns": _listed(PLAIN_OUTCOME),
        "plain_outcome_values": _values(PLAIN_OUTCOME),
        "node_columns": _listed(NodeRow._fields),
        "schedule_columns": _listed(ScheduleRow._fields),
        "schedule_values": _values(ScheduleRow._fields),
        "schedule_changes": _listed(f"{name} = :{name}" for name in ScheduleRow._fields[1:]),
        "reservation_columns": _listed(ReservationRow._fields),
        "reservation_values": _values(ReservationRow._fields),
        "archive_columns": _listed(Archived._fields),
        "archive_values": _values(Archived._fields),
        "flow_columns": _listed(FLOW),
        "flow_values": _values(FLOW),
        "tally_columns": _listed(TallyRow._fields),
        "tally_values": _values(TallyRow._fields),
        "tally_given_sums": _listed(f"{name} = {name} + VALUES({name})" for name in TallyRow._fields[2:]),
        "tally_sums": _listed(f"{name} = t.{name} + excluded.{name}" for name in TallyRow._fields[2:]),
        "these": _values(_GROUP),
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


_BLOCK = re.compile(r"^-- (name|fragment): (\w+)\n", re.MULTILINE)
_REFERENCE = re.compile(r"\{(\w+)\}")
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_VERB = re.compile(r"^-- verb: (\w+)\n", re.MULTILINE)
_COMMENT = re.compile(r"^\s*--.*\n?", re.MULTILINE)


def statement_texts() -> dict[str, str]:
    """The files shared by all databases, by name."""
    folder = Path(__file__).parent / "sql"
    return {file.name: file.read_text("utf-8") for file in folder.glob("*.sql")}


def of_sqlite_and_postgres() -> str:
    """The overrides that both share."""
    return (Path(__file__).parent / "sqlite_and_postgres.sql").read_text("utf-8") + "\n"


def load(
    own: str, table: Callable[[str], str], marker: str, written: Callable[[str], str] = lambda sql: sql
) -> Statements:
    """All statements of a dialect: `own` are its overrides, `table` names a table.

    `marker` is the driver's form of a parameter: `?{}` and `${}` with its number, `%s` by position. `written` turns a
    statement into words that the database understands.
    """
    fragments = column_lists()
    bodies: dict[str, str] = {}
    for text in (*statement_texts().values(), own):
        for sort, name, body in _blocks(text):
            if sort == "fragment":  # it may stand in the middle of a line, of which a comment would cut off the rest
                fragments[name] = _COMMENT.sub("", body).strip()
            else:
                bodies[name] = body
    listed = {name: _compile(name, body, fragments, table, marker, written) for name, body in bodies.items()}

    @cache
    def about_table(name: str) -> Statement:
        return _compile(name, whole_table(name), {}, table, marker, written)

    return _Statements(listed, about_table)


class _Statements(dict[str, Statement]):
    """The statements of a dialect by name, and besides them one for each name that `tables.whole_table` knows, such as
    `fill:job`. Those are for `perdure db copy` alone, and each is made when it is first asked for: all 160 would add
    6 ms to the start of every program. They are not counted or listed, only found by their names.
    """

    def __init__(self, listed: Mapping[str, Statement], about_table: Callable[[str], Statement]) -> None:
        super().__init__(listed)
        self._about_table = about_table

    def __missing__(self, name: str) -> Statement:
        """What `statements[name]` gives for a name that is not listed; Python calls it."""
        if ":" not in name:
            raise KeyError(name)
        return self._about_table(name)


def expand(text: str, fragments: Mapping[str, str], table: Callable[[str], str]) -> str:
    """Replace `{x}` by fragments and table names; fragments may include others."""

    def reference(match: re.Match[str]) -> str:
        name = match[1]
        return expand(fragments[name], fragments, table) if name in fragments else table(name)

    return _REFERENCE.sub(reference, text)


def _blocks(text: str) -> list[tuple[str, str, str]]:
    marks = list(_BLOCK.finditer(text))
    ends = [*(mark.start() for mark in marks), len(text)][1:]
    return [(mark[1], mark[2], text[mark.end() : end].strip()) for mark, end in zip(marks, ends, strict=True)]


def _compile(
    name: str,
    body: str,
    fragments: Mapping[str, str],
    table: Callable[[str], str],
    marker: str,
    written: Callable[[str], str],
) -> Statement:
    verb = _VERB.search(body + "\n")
    text = written(_COMMENT.sub("", expand(body, fragments, table)).strip())
    names: list[str] = []
    numbered = "{}" in marker

    def parameter(match: re.Match[str]) -> str:
        if match[1] not in names or not numbered:
            names.append(match[1])
        return marker.format(names.index(match[1]) + 1)

    sql = _PARAMETER.sub(parameter, text)
    reads = sql.startswith(("SELECT", "PRAGMA")) or (sql.startswith("WITH") and "\nSELECT" in sql)
    returns_rows = reads or "RETURNING" in sql
    return Statement(name, sql, tuple(names), returns_rows, verb[1] if verb else None)
