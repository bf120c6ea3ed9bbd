-- fragment: live_columns
-- In the order of LiveJob.
job_id, queue, kind, kind_version, rank, position, run_at, queued_at, crashes, life, max_attempts, as_new_job,
    timeout_ms, waits_for, limit_key, business_key, superseded_by, paused, cancel_requested, last_error, state,
    started_at, attempts, node_id, run_id, claimed_at, deadline_at, park_reason, updated_at, version

-- name: read_live
SELECT {live_columns}
FROM {ready}
WHERE job_id = :job_id
{for_update}

-- name: read_live_if_free
-- Nothing where somebody has it locked: that one may take his time.
SELECT {live_columns}
FROM {ready}
WHERE job_id = :job_id
{skip_locked}

-- name: look_at_live
-- As it was last committed, whoever is changing it.
SELECT {live_columns}
FROM {ready}
WHERE job_id = :job_id

-- name: update_ready
-- The one guarded write of a live row: nothing happens unless it is still at the version it was decided on.
UPDATE {ready}
SET queue = :queue, kind = :kind, kind_version = :kind_version, rank = :rank, position = :position, run_at = :run_at,
    queued_at = :queued_at, crashes = :crashes, life = :life, max_attempts = :max_attempts, as_new_job = :as_new_job,
    timeout_ms = :timeout_ms, waits_for = :waits_for, limit_key = :limit_key, business_key = :business_key,
    superseded_by = :superseded_by, paused = :paused, cancel_requested = :cancel_requested, last_error = :last_error,
    state = :state, started_at = :started_at, attempts = :attempts, node_id = :node_id, run_id = :run_id, claimed_at =
    :claimed_at, deadline_at = :deadline_at, park_reason = :park_reason, updated_at = :updated_at, version = :version
WHERE job_id = :job_id AND version = :expected

-- name: delete_ready
DELETE FROM {ready}
WHERE job_id = :job_id AND version = :expected

-- name: delete_ready_of_run
-- The fence: only the run that holds the job can end it, and only as it was decided on (superseded meanwhile: anew).
DELETE FROM {ready}
WHERE job_id = :job_id AND run_id = :run_id AND version = :expected

-- name: close_run
-- A run closes once.
UPDATE {run}
SET state = :state, finished_at = :finished_at, duration_ms = :duration_ms, exit_code = :exit_code,
    error_type = :error_type, error_message = :error_message, traceback = :traceback, log_path = :log_path,
    metrics = :metrics
WHERE id = :run_id AND state = 'running'

-- name: close_run_plainly
-- The same where there is nothing to tell but how long it took.
UPDATE {run}
SET state = :state, finished_at = :finished_at, duration_ms = :duration_ms
WHERE id = :run_id AND state = 'running'

-- name: insert_plain_outcome
-- An end with no error and nobody to take over.
INSERT INTO {outcome} (
    job_id, life, state, finished_at, rank, position, run_at, queued_at, started_at, attempts, crashes, max_attempts,
    result, version
)
VALUES (
    :job_id, :life, :state, :finished_at, :rank, :position, :run_at, :queued_at, :started_at, :attempts, :crashes,
    :max_attempts, :result, :version
)

-- name: insert_outcome
INSERT INTO {outcome} (
    job_id, life, state, finished_at, rank, position, run_at, queued_at, started_at, attempts, crashes, max_attempts,
    result, error_type, error, superseded_by, successor, version
)
VALUES (
    :job_id, :life, :state, :finished_at, :rank, :position, :run_at, :queued_at, :started_at, :attempts, :crashes,
    :max_attempts, :result, :error_type, :error, :superseded_by, :successor, :version
)

-- name: any_edge
SELECT 1
FROM {edge}
LIMIT 1

-- name: read_dependents
-- Locked before anyone looks at the dependents themselves: a retry that has counted this edge, and is not committed yet,
-- is waited for, and its job found afterwards.
SELECT job_id
FROM {edge}
WHERE depends_on = :job_id
ORDER BY job_id
{for_update}

-- name: delete_edges
DELETE FROM {edge}
WHERE depends_on = :job_id

-- name: delete_waits
DELETE FROM {edge}
WHERE job_id = :job_id

-- name: read_waits
-- Locked, and so still there when whoever counts them commits.
SELECT depends_on
FROM {edge}
WHERE job_id = :job_id
ORDER BY depends_on
{for_update}

-- name: move_edges
-- Whoever waited for a job waits for its successor now.
UPDATE {edge}
SET depends_on = :new_owner
WHERE depends_on = :job_id

-- name: read_last_outcome
SELECT job_id, life, state, finished_at, rank, position, run_at, queued_at, started_at, attempts, crashes,
    max_attempts, result, error_type, error, superseded_by, successor, version
FROM {outcome}
WHERE job_id = :job_id
ORDER BY life DESC
LIMIT 1

-- name: read_run_state
SELECT state, node_id
FROM {run}
WHERE id = :run_id
