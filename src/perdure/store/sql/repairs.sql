-- name: close_open_runs
-- Closed once, like every run: only those that hold no running job.
UPDATE {run}
SET state = 'lost', finished_at = :now, error_type = :error_type, error_message = :error_message
WHERE state = 'running'
    AND NOT EXISTS (
        SELECT 1
        FROM {ready} AS r
        WHERE r.job_id = {run}.job_id AND r.run_id = {run}.id AND r.state = 'running'
    )

-- name: insert_lost_run
INSERT INTO {run} (
    id, job_id, state, node_id, attempt, life, started_at, finished_at, wait_ms, error_type, error_message
)
VALUES (
    :id, :job_id, 'lost', :node_id, :attempt, :life, :started_at, :now, 0, :error_type, :error_message
)

-- name: read_run_of_job
SELECT state
FROM {run}
WHERE id = :run_id AND job_id = :job_id

-- name: read_newest_life
SELECT MAX(life)
FROM {run}
WHERE job_id = :job_id

-- name: remove_dead_edges
-- Of what is not there.
DELETE FROM {edge}
WHERE job_id NOT IN (SELECT id FROM {job})
    OR (
        state = 'waiting'
        AND depends_on NOT IN (SELECT id FROM {job})
        AND depends_on NOT IN (SELECT id FROM {flow})
    )

-- name: free_unowned_business_keys
DELETE FROM {business_key}
WHERE NOT EXISTS (
    SELECT 1
    FROM {ready} AS r
    WHERE r.job_id = {business_key}.job_id AND r.business_key = {business_key}.key
)

-- name: add_missing_queues
INSERT INTO {queue} (name, next_position)
SELECT queue, MAX(position) + 100
FROM {ready}
WHERE queue NOT IN (SELECT name FROM {queue})
GROUP BY queue
{unless_known}

-- name: raise_queue_counters
UPDATE {queue}
SET next_position = (SELECT MAX(r.position) + 100 FROM {ready} AS r WHERE r.queue = {queue}.name)
WHERE next_position <= (SELECT MAX(r.position) FROM {ready} AS r WHERE r.queue = {queue}.name)

-- name: remove_orphan_runs
DELETE FROM {run}
WHERE job_id NOT IN (SELECT id FROM {job})

-- name: remove_orphan_outcomes
DELETE FROM {outcome}
WHERE job_id NOT IN (SELECT id FROM {job})

-- name: remove_orphan_tags
DELETE FROM {tag}
WHERE job_id NOT IN (SELECT id FROM {job})

-- name: remove_orphan_logs
DELETE FROM {job_log}
WHERE job_id NOT IN (SELECT id FROM {job})

-- name: add_reserved_queues
INSERT INTO {queue} (name, next_position, reserved_until)
SELECT v.queue, 100, v.expires_at
FROM {reservation} AS v
WHERE v.status = 'active' AND NOT EXISTS (SELECT 1 FROM {queue} AS q WHERE q.name = v.queue)
{unless_known}

-- name: close_reserved_queues
UPDATE {queue}
SET reserved_until = (
    SELECT MAX(v.expires_at) FROM {reservation} AS v WHERE v.queue = {queue}.name AND v.status = 'active'
)
WHERE reserved_until IS NULL
    AND EXISTS (SELECT 1 FROM {reservation} AS v WHERE v.queue = {queue}.name AND v.status = 'active')

-- name: open_unreserved_queues
UPDATE {queue}
SET reserved_until = NULL
WHERE reserved_until IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM {reservation} AS v WHERE v.queue = {queue}.name AND v.status = 'active')

-- name: free_stray_permits
DELETE FROM {permit}
WHERE lease_until IS NULL
    AND NOT EXISTS (SELECT 1 FROM {ready} AS r WHERE r.job_id = {permit}.holder AND r.state = 'running')
