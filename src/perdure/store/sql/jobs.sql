-- name: take_places
-- Take :room worth of places at the back of a queue. Changes nothing where the queue is not known yet. A dialect may
-- answer the first place after each, here and where it makes the queue. An upsert with RETURNING takes SQLite four times
-- as long as this and the two statements below.
UPDATE {queue}
SET next_position = next_position + :room
WHERE name = :queue

-- name: make_queue_with_room
INSERT INTO {queue} (name, next_position)
VALUES (:queue, 100 + :room)

-- name: read_next_position
SELECT next_position
FROM {queue}
WHERE name = :queue

-- name: insert_job
INSERT INTO {job} (
    id, kind, kind_version, owner, queue, payload, secrets, params, options, principal, idempotency_key, business_key,
    parent_id, chain_attempt, created_at
)
VALUES (
    :id, :kind, :kind_version, :owner, :queue, :payload, :secrets, :params, :options, :principal, :idempotency_key,
    :business_key, :parent_id, 1, :created_at
)

-- name: insert_plain_job
-- The same where all else is empty: binding a NULL takes the driver as long as writing a column.
INSERT INTO {job} (id, kind, kind_version, owner, queue, payload, chain_attempt, created_at)
VALUES (:id, :kind, :kind_version, :owner, :queue, :payload, 1, :created_at)

-- name: insert_ready
-- A job that nothing has happened to yet.
INSERT INTO {ready} (
    job_id, queue, kind, kind_version, state, rank, position, run_at, queued_at, attempts, crashes, life, max_attempts,
    as_new_job, timeout_ms, waits_for, limit_key, business_key, paused, cancel_requested, updated_at, version
)
VALUES (
    :job_id, :queue, :kind, :kind_version, :state, :rank, :position, :run_at, :queued_at, 0, 0, 1, :max_attempts,
    :as_new_job, :timeout_ms, :waits_for, :limit_key, :business_key, 0, 0, :queued_at, 1
)

-- name: insert_plain_ready
INSERT INTO {ready} (
    job_id, queue, kind, kind_version, state, rank, position, run_at, queued_at, attempts, crashes, life, max_attempts,
    as_new_job, waits_for, paused, cancel_requested, updated_at, version
)
VALUES (
    :job_id, :queue, :kind, :kind_version, :state, :rank, :position, :run_at, :queued_at, 0, 0, 1, :max_attempts,
    :as_new_job, 0, 0, 0, :queued_at, 1
)

-- name: insert_live
-- A live row as it stands: a new life, or the successor of an ended job.
INSERT INTO {ready} ({live_columns})
VALUES (
    :job_id, :queue, :kind, :kind_version, :rank, :position, :run_at, :queued_at, :crashes, :life, :max_attempts,
    :as_new_job, :timeout_ms, :waits_for, :limit_key, :business_key, :superseded_by, :paused, :cancel_requested,
    :last_error, :state, :started_at, :attempts, :node_id, :run_id, :claimed_at, :deadline_at, :park_reason,
    :updated_at, :version
)

-- name: insert_tag
INSERT INTO {tag} (job_id, tag)
VALUES (:job_id, :tag)
{unless_taken}

-- name: insert_edge
INSERT INTO {edge} (depends_on, job_id)
VALUES (:depends_on, :job_id)

-- name: copy_job
-- A new cold row with the shape of :source, for a successor (auto_retry_of given) or a retry as a new job.
INSERT INTO {job} (
    id, kind, kind_version, owner, queue, payload, secrets, params, options, principal, idempotency_key, business_key,
    template_id, schedule_id, scheduled_for, batch_id, group_id, sequence, workflow_id, parent_id, root_id, retry_of,
    auto_retry_of, chain_attempt, created_at
)
SELECT
    :id, kind, kind_version, owner, queue, payload, secrets, params, options, principal, idempotency_key, business_key,
    template_id, schedule_id, scheduled_for, batch_id, group_id, sequence, workflow_id, parent_id,
    COALESCE(root_id, id), id, :auto_retry_of, chain_attempt + :chain_step, :created_at
FROM {job}
WHERE id = :source

-- name: copy_tags
INSERT INTO {tag} (job_id, tag)
SELECT :id, tag
FROM {tag}
WHERE job_id = :source

-- name: edit_job
-- Only before the first claim: the live row has been checked in the same transaction.
UPDATE {job}
SET payload = :payload, secrets = :secrets, params = :params, options = :options, principal = :principal,
    queue = :queue, kind_version = :kind_version
WHERE id = :job_id

-- name: delete_job
DELETE FROM {job}
WHERE id = :job_id

-- name: delete_runs
DELETE FROM {run}
WHERE job_id = :job_id

-- name: delete_outcomes
DELETE FROM {outcome}
WHERE job_id = :job_id

-- name: delete_tags
DELETE FROM {tag}
WHERE job_id = :job_id

-- name: delete_logs
DELETE FROM {job_log}
WHERE job_id = :job_id
