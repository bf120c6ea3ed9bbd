"""A database with a job in every situation, and the ways to break it by hand. Used by the doctor's tests."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from perdure import Perdure, Retry
from perdure.ids import JobId, NodeId, RunId
from perdure.job.model import Claim, Failure
from perdure.job.reports import Completed, Failed, Finish, Report
from perdure.store.answers import Claimer, Lane, LogLine, Process

MISSING = b"\xee" * 16
LEASE_US = 60_000_000


class Patient(NamedTuple):
    """A database file and the ids of what is in it: one job (or node) per situation, by name."""

    path: Path
    ids: dict[str, bytes]

    def suffer(self, *statements: str) -> None:
        """Do something to the database that Perdure never would. `:queued` and so on stand for the ids."""
        with closing(sqlite3.connect(self.path)) as connection, connection:
            for statement in statements:
                connection.execute(statement, self.ids)

    def rows(self, query: str) -> list[tuple[object, ...]]:
        with closing(sqlite3.connect(self.path)) as connection:
            return connection.execute(query, self.ids).fetchall()

    def copy(self, path: Path) -> Patient:
        shutil.copy(self.path, path)
        return Patient(path, self.ids)

    def app(self) -> Perdure:
        return Perdure(self.path)


def healthy(path: Path) -> Patient:
    """A new database file in which nothing is wrong."""
    app = Perdure(path)
    ids = populate(app)
    app.close()
    return Patient(path, ids)


def populate(app: Perdure) -> dict[str, bytes]:
    """Bring a job into every situation; answers their ids by name."""

    @app.job(retry=Retry(max_attempts=3))
    def work(n: int = 0) -> int:
        return n

    @app.job(retry=Retry(max_attempts=3, as_new_job=True))
    def chain() -> None: ...

    node = NodeId(app.ids.new())
    app.store.register(node, None, Process(), app.clock.now())
    ids = {"missing": MISSING, "node": node}

    ids["completed"] = work.options(tags=["done"]).enqueue(1).row.id
    [taken] = _claim(app, node)
    app.store.append_log([LogLine(taken.run_id, 1, taken.job_id, app.clock.now(), "INFO", "working")])
    _finish(app, Completed("1"), taken)
    ids["failed"] = work.enqueue(2).row.id
    _finish(app, Failed(Failure("RuntimeError", "no", permanent=True)), *_claim(app, node))
    ids["reborn"] = work.enqueue(3).row.id
    _finish(app, Failed(Failure("RuntimeError", "no", permanent=True)), *_claim(app, node))
    app.pause(app.retry(_text(ids["reborn"])))
    ids["chained"] = chain.enqueue().row.id
    _finish(app, Failed(Failure("RuntimeError", "once more")), *_claim(app, node))
    [successor] = app.jobs(state="queued", kind="chain")
    ids["successor"] = app.pause(successor).row.id

    ids["running"] = work.options(timeout=60).enqueue(4).row.id
    _claim(app, node)
    ids["superseded"] = work.enqueue(5).row.id
    _claim(app, node)
    replaced = app.supersede(_text(ids["superseded"]), work.new(6))
    assert replaced.superseded_by is not None
    ids["blocked"] = replaced.superseded_by.bytes
    ids["parked"] = work.enqueue(7).row.id
    _claim(app, node, kinds={"chain": 1})
    ids["paused"] = app.pause(work.enqueue(8)).row.id
    ids["scheduled"] = work.options(delay=3600).enqueue(9).row.id
    ids["keyed"] = work.options(business_key="order-1", idempotency_key="once").enqueue(10).row.id
    ids["aside"] = work.options(queue="side").enqueue(11).row.id
    ids["queued"] = work.options(tags=["x"]).enqueue(12).row.id
    return ids


def _claim(app: Perdure, node: NodeId, kinds: dict[str, int] | None = None) -> Sequence[Claim]:
    """The job at the head of the default queue; with kinds that do not fit, it is parked."""
    runs = [RunId(run) for run in app.ids.new_many(1)]
    return app.store.claim([Lane("default", 1)], Claimer(node, kinds, runs, LEASE_US), app.clock.now())


def _finish(app: Perdure, report: Report, taken: Claim) -> None:
    app.store.finish([Finish(taken.live, report, JobId(app.ids.new()))], app.clock.now())


def _text(job_id: bytes) -> str:
    return job_id.hex()


_RUN = "INSERT INTO perdure_run (id, job_id, state, node_id, attempt, life, started_at, finished_at, wait_ms)"
_COLUMNS = "job_id, state, node_id, attempt, life, started_at, finished_at, wait_ms"
_SECOND_RUN = (
    f"INSERT INTO perdure_run (id, {_COLUMNS}) SELECT :missing, {_COLUMNS} FROM perdure_run WHERE job_id = :completed"
)
_OUTCOME = (
    "INSERT INTO perdure_outcome SELECT {}, 1, 'cancelled', finished_at + 3600000000, rank, position, run_at,"
    " queued_at, started_at, attempts, crashes, max_attempts, NULL, NULL, NULL, NULL, NULL, 1 FROM perdure_outcome"
    " WHERE job_id = :failed"
)
_NOW = "(SELECT MAX(created_at) + 1 FROM perdure_job)"

INJURIES: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("job_without_state", ("DELETE FROM perdure_ready WHERE job_id = :scheduled",)),
    ("live_without_job", ("DELETE FROM perdure_job WHERE id = :scheduled",)),
    ("ended_and_live", (_OUTCOME.format(":scheduled"),)),
    ("life_missing", ("UPDATE perdure_ready SET life = 3 WHERE job_id = :scheduled",)),
    ("life_missing", ("UPDATE perdure_outcome SET life = 2 WHERE job_id = :failed",
                      "UPDATE perdure_run SET life = 2 WHERE job_id = :failed")),
    ("unknown_state", ("UPDATE perdure_ready SET state = 'dreaming' WHERE job_id = :scheduled",)),
    ("unknown_state", ("UPDATE perdure_outcome SET state = 'vanished' WHERE job_id = :failed",)),
    ("unknown_state", ("UPDATE perdure_run SET state = 'vanished' WHERE job_id = :failed",)),
    ("live_copy_differs", ("UPDATE perdure_ready SET kind_version = 7 WHERE job_id = :queued",)),
    ("live_copy_differs", ("UPDATE perdure_job SET queue = 'elsewhere' WHERE id = :queued",)),
    ("running_without_run", ("DELETE FROM perdure_run WHERE job_id = :running",)),
    ("running_without_run", ("DELETE FROM perdure_run WHERE job_id = :superseded",)),
    ("running_without_run", (f"UPDATE perdure_run SET state = 'lost', finished_at = {_NOW} WHERE job_id = :running",)),
    ("running_without_run", ("UPDATE perdure_run SET job_id = :reborn WHERE job_id = :running",
                             f"UPDATE perdure_run SET state = 'lost', finished_at = {_NOW} WHERE job_id = :reborn")),
    ("open_run_without_running_job", (f"{_RUN} VALUES (:missing, :queued, 'running', :node, 1, 1, {_NOW}, NULL, 0)",)),
    ("second_open_run", (f"{_RUN} VALUES (:missing, :running, 'running', :node, 1, 1, {_NOW}, NULL, 0)",)),
    ("run_without_job", (f"{_RUN} VALUES (:missing, :missing, 'failed', :node, 1, 1, {_NOW}, {_NOW}, 0)",)),
    ("run_without_job", (f"{_RUN} VALUES (:missing, :missing, 'running', :node, 1, 1, {_NOW}, NULL, 0)",)),
    ("run_of_no_life", ("UPDATE perdure_run SET life = 9 WHERE job_id = :failed",)),
    ("run_end_disagrees", ("UPDATE perdure_run SET finished_at = NULL WHERE job_id = :failed",)),
    ("run_end_disagrees", (f"UPDATE perdure_run SET finished_at = {_NOW} WHERE job_id = :running",)),
    ("completed_without_run", ("DELETE FROM perdure_run WHERE job_id = :completed",)),
    ("completed_twice", (_SECOND_RUN,)),
    ("completed_run_not_ended", ("UPDATE perdure_outcome SET state = 'failed' WHERE job_id = :completed",)),
    ("attempts_beyond_budget", ("UPDATE perdure_ready SET attempts = 99 WHERE job_id = :queued",)),
    ("attempts_beyond_budget", ("UPDATE perdure_outcome SET attempts = 99 WHERE job_id = :failed",)),
    ("attempts_beyond_budget", ("UPDATE perdure_run SET attempt = 99 WHERE job_id = :failed",)),
    ("running_without_node", ("UPDATE perdure_ready SET node_id = NULL WHERE job_id = :running",)),
    ("running_on_unknown_node", ("UPDATE perdure_ready SET node_id = :missing WHERE job_id = :running",)),
    ("running_on_stopped_node", (f"UPDATE perdure_node SET stopped_at = {_NOW}, stop_reason = 'crash'",)),
    ("running_half_claimed", ("UPDATE perdure_ready SET claimed_at = NULL WHERE job_id = :running",)),
    ("running_half_claimed", ("UPDATE perdure_ready SET deadline_at = NULL WHERE job_id = :running",)),
    ("waiting_but_held", ("UPDATE perdure_ready SET node_id = :node WHERE job_id = :queued",)),
    ("waiting_but_held", ("UPDATE perdure_ready SET cancel_requested = 1 WHERE job_id = :queued",)),
    ("pause_disagrees", ("UPDATE perdure_ready SET paused = 0 WHERE job_id = :paused",)),
    ("pause_disagrees", ("UPDATE perdure_ready SET paused = 1 WHERE job_id = :queued",)),
    ("pause_disagrees", ("UPDATE perdure_ready SET paused = 1 WHERE job_id = :running",)),
    ("block_disagrees", ("UPDATE perdure_ready SET state = 'queued' WHERE job_id = :blocked",)),
    ("block_disagrees", ("UPDATE perdure_ready SET state = 'blocked' WHERE job_id = :queued",)),
    ("block_disagrees", ("UPDATE perdure_ready SET waits_for = 1 WHERE job_id = :running",)),
    ("queued_too_early", ("UPDATE perdure_ready SET run_at = updated_at + 3600000000 WHERE job_id = :queued",)),
    ("overdue", ("UPDATE perdure_ready SET run_at = 1 WHERE job_id = :scheduled",)),
    ("held_without_limit", ("UPDATE perdure_ready SET state = 'held' WHERE job_id = :queued",)),
    ("park_reason_disagrees", ("UPDATE perdure_ready SET park_reason = NULL WHERE job_id = :parked",)),
    ("park_reason_disagrees", ("UPDATE perdure_ready SET park_reason = 'boredom' WHERE job_id = :parked",)),
    ("park_reason_disagrees", ("UPDATE perdure_ready SET park_reason = 'unreadable' WHERE job_id = :queued",)),
    ("business_key_without_job", ("INSERT INTO perdure_business_key VALUES ('ghost', :missing)",)),
    ("business_key_of_ended_job", ("INSERT INTO perdure_business_key VALUES ('old', :failed)",)),
    ("business_key_not_its_own", ("INSERT INTO perdure_business_key VALUES ('other', :queued)",)),
    ("business_key_not_reserved", ("DELETE FROM perdure_business_key WHERE job_id = :keyed",)),
    ("ledger_without_job", ("INSERT INTO perdure_idempotency_key VALUES ('work', 'k', :missing, 1, 'f', 1, NULL)",)),
    ("key_not_in_ledger", ("DELETE FROM perdure_idempotency_key WHERE job_id = :keyed",)),
    ("queue_missing", ("DELETE FROM perdure_queue WHERE name = 'side'",)),
    ("queue_counter_behind", ("UPDATE perdure_queue SET next_position = 1 WHERE name = 'default'",)),
    ("order_tie", ("UPDATE perdure_ready SET position = 100 WHERE job_id IN (:scheduled, :queued)",)),
    ("edge_without_job", ("INSERT INTO perdure_edge VALUES (:queued, :missing)",)),
    ("edge_without_job", ("UPDATE perdure_edge SET depends_on = :missing WHERE job_id = :blocked",)),
    ("edge_on_ended_job", ("UPDATE perdure_edge SET depends_on = :failed WHERE job_id = :blocked",)),
    ("waits_for_differs", ("UPDATE perdure_ready SET waits_for = 2 WHERE job_id = :blocked",)),
    ("superseded_by_missing", ("UPDATE perdure_outcome SET superseded_by = :missing WHERE job_id = :failed",)),
    ("successor_missing", ("UPDATE perdure_outcome SET successor = :missing WHERE job_id = :failed",)),
    ("successor_not_linked", ("UPDATE perdure_job SET auto_retry_of = NULL WHERE id = :successor",)),
    ("successor_not_linked", ("UPDATE perdure_outcome SET successor = NULL WHERE job_id = :chained",)),
    ("two_successors", ("DROP INDEX perdure_job_one_successor",
                        "UPDATE perdure_job SET auto_retry_of = :chained WHERE id = :queued")),
    ("ancestor_missing", ("UPDATE perdure_job SET parent_id = :missing WHERE id = :queued",)),
    ("ancestor_missing", ("UPDATE perdure_job SET retry_of = :missing WHERE id = :queued",)),
    ("impossible_number", ("UPDATE perdure_ready SET crashes = -1 WHERE job_id = :queued",)),
    ("impossible_number", ("UPDATE perdure_run SET attempt = 0 WHERE job_id = :failed",)),
    ("impossible_number", ("UPDATE perdure_job SET chain_attempt = 0 WHERE id = :queued",)),
    ("time_backwards", ("UPDATE perdure_outcome SET finished_at = 1 WHERE job_id = :failed",)),
    ("time_backwards", ("UPDATE perdure_run SET finished_at = 1 WHERE job_id = :failed",)),
    ("unreadable_payload", ("UPDATE perdure_job SET payload = '{' WHERE id = :queued",)),
    ("unreadable_payload", ("UPDATE perdure_job SET options = 'NaN' WHERE id = :queued",)),
    ("unreadable_result", ("UPDATE perdure_outcome SET result = 'nope' WHERE job_id = :completed",)),
    ("outcome_without_job", (_OUTCOME.format(":missing"),)),
    ("tag_without_job", ("INSERT INTO perdure_tag VALUES (:missing, 'x')",)),
    ("log_without_job", ("INSERT INTO perdure_job_log VALUES (:missing, 1, :missing, 1, 'INFO', 'x', NULL)",)),
)  # fmt: skip
"""What can be done to a healthy database, and the one finding it must lead to."""
