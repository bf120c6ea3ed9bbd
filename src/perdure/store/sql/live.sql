-- name: read_live
SELECT {ready_columns}
FROM {ready}
WHERE job_id = :job_id
{for_update}

-- name: read_live_if_free
-- Nothing where somebody has it locked: that one may take his time.
SELECT {ready_columns}
FROM {ready}
WHERE job_id = :job_id
{skip_locked}

-- name: look_at_live
-- As it was last committed, whoever is changing it.
SELECT {ready_columns}
FROM {ready}
WHERE job_id = :job_id

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
INSERT INTO {outcome} ({plain_outcome_columns})
VALUES ({plain_outcome_values})

-- name: insert_outcome
INSERT INTO {outcome} ({outcome_columns})
VALUES ({outcome_values})

-- name: read_last_outcome
SELECT {outcome_columns}
FROM {outcome}
WHERE job_id = :job_id
ORDER BY life DESC
LIMIT 1

-- name: read_run_state
SELECT state, node_id
FROM {run}
WHERE id = :run_id
