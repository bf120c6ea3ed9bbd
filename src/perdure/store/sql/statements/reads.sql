-- fragment: job_view
SELECT
    j.id, j.kind, j.kind_version, j.owner, COALESCE(r.queue, j.queue), j.payload, j.params, j.options, j.principal,
    j.idempotency_key, j.business_key, j.scheduled_for, j.parent_id, j.root_id, j.retry_of, j.chain_attempt,
    j.created_at, COALESCE(r.state, o.state), COALESCE(r.rank, o.rank), COALESCE(r.position, o.position),
    COALESCE(r.run_at, o.run_at), COALESCE(r.queued_at, o.queued_at), COALESCE(r.started_at, o.started_at),
    o.finished_at, COALESCE(r.attempts, o.attempts), COALESCE(r.crashes, o.crashes), COALESCE(r.life, o.life),
    COALESCE(r.max_attempts, o.max_attempts), r.node_id, r.run_id, COALESCE(r.waits_for, 0),
    COALESCE(r.cancel_requested, 0), r.park_reason, COALESCE(r.last_error, o.error), o.error_type, o.result,
    COALESCE(r.superseded_by, o.superseded_by), o.successor, COALESCE(r.version, o.version), {tags_of_job}

-- fragment: job_state
-- The live row, else the newest outcome.
LEFT JOIN {ready} AS r ON r.job_id = j.id
LEFT JOIN {outcome} AS o ON r.job_id IS NULL
    AND o.job_id = j.id
    AND o.life = (SELECT MAX(x.life) FROM {outcome} AS x WHERE x.job_id = j.id)

-- fragment: job_filter
-- What the driving index of a listing did not already settle.
(:state IS NULL OR COALESCE(r.state, o.state) = :state)
    AND (:queue IS NULL OR COALESCE(r.queue, j.queue) = :queue)
    AND (:kind IS NULL OR j.kind = :kind)
    AND (:owner IS NULL OR j.owner = :owner)
    AND (:tag IS NULL OR EXISTS (SELECT 1 FROM {tag} AS t WHERE t.job_id = j.id AND t.tag = :tag))
    AND (:business_key IS NULL OR j.business_key = :business_key)
    AND (:idempotency_key IS NULL OR j.idempotency_key = :idempotency_key)

-- name: read_job
{job_view}
FROM {job} AS j
{job_state}
WHERE j.id = :job_id

-- name: read_job_row
SELECT
    id, kind, kind_version, owner, queue, payload, secrets, params, options, principal, idempotency_key, business_key,
    template_id, schedule_id, scheduled_for, batch_id, group_id, sequence, workflow_id, parent_id, root_id, retry_of,
    auto_retry_of, chain_attempt, created_at
FROM {job}
WHERE id = :job_id
{for_update}

-- name: list_all
{job_view}
FROM {job} AS j
{job_state}
WHERE j.id < :below AND j.id >= :from_id
    AND {job_filter}
ORDER BY j.id DESC
LIMIT :page

-- name: list_by_kind
{job_view}
FROM {job} AS j
{job_state}
WHERE j.kind = :kind AND j.id < :below AND j.id >= :from_id
    AND {job_filter}
ORDER BY j.id DESC
LIMIT :page

-- name: list_by_tag
{job_view}
FROM {tag} AS d
JOIN {job} AS j ON j.id = d.job_id
{job_state}
WHERE d.tag = :tag AND d.job_id < :below AND d.job_id >= :from_id
    AND {job_filter}
ORDER BY d.job_id DESC
LIMIT :page

-- name: list_by_business_key
{job_view}
FROM {job} AS j
{job_state}
WHERE j.business_key = :business_key AND j.id < :below AND j.id >= :from_id
    AND {job_filter}
ORDER BY j.id DESC
LIMIT :page

-- name: list_by_idempotency_key
{job_view}
FROM {job} AS j
{job_state}
WHERE j.idempotency_key = :idempotency_key AND j.id < :below AND j.id >= :from_id
    AND {job_filter}
ORDER BY j.id DESC
LIMIT :page

-- name: list_live
{job_view}
FROM {ready} AS d
JOIN {job} AS j ON j.id = d.job_id
{job_state}
WHERE d.state = :state AND d.job_id < :below AND d.job_id >= :from_id
    AND {job_filter}
ORDER BY d.job_id DESC
LIMIT :page

-- name: list_aside
-- The states few jobs are in have an index of their own.
{job_view}
FROM {ready} AS d
JOIN {job} AS j ON j.id = d.job_id
{job_state}
WHERE d.state = :state
    AND d.state <> 'queued' AND d.state <> 'running' AND d.state <> 'scheduled'
    AND d.job_id < :below AND d.job_id >= :from_id
    AND {job_filter}
ORDER BY d.job_id DESC
LIMIT :page

-- name: list_running
{job_view}
FROM {ready} AS d
JOIN {job} AS j ON j.id = d.job_id
{job_state}
WHERE d.state = 'running' AND d.job_id < :below AND d.job_id >= :from_id
    AND {job_filter}
ORDER BY d.job_id DESC
LIMIT :page

-- name: list_ended
-- Ended other than by success; a job that was retried since is live again and filtered out.
{job_view}
FROM {outcome} AS d
JOIN {job} AS j ON j.id = d.job_id
{job_state}
WHERE d.state = :state AND d.state <> 'completed' AND d.job_id < :below AND d.job_id >= :from_id
    AND d.life = o.life
    AND {job_filter}
ORDER BY d.job_id DESC
LIMIT :page

-- name: list_queue
-- verb: claim
-- One queue in the order in which its jobs will start.
{job_view}
FROM {ready} AS d
JOIN {job} AS j ON j.id = d.job_id
{job_state}
WHERE d.queue = :queue AND d.state = 'queued' AND (d.rank, d.position, d.job_id) > (:rank, :position, :after)
    AND d.job_id < :below AND d.job_id >= :from_id
    AND {job_filter}
ORDER BY d.rank, d.position, d.job_id
LIMIT :page

-- fragment: run_view
SELECT
    u.id, u.job_id, u.state, u.node_id, u.attempt, u.life, u.started_at, u.finished_at, u.wait_ms, u.duration_ms,
    u.exit_code, u.error_type, u.error_message, u.traceback, u.artifacts, u.log_path, u.metrics, j.kind
FROM {run} AS u
JOIN {job} AS j ON j.id = u.job_id

-- fragment: run_filter
u.id < :below AND u.id >= :from_id
    AND (:state IS NULL OR u.state = :state)
    AND (:kind IS NULL OR j.kind = :kind)
    AND (:owner IS NULL OR j.owner = :owner)
ORDER BY u.id DESC
LIMIT :page

-- name: list_runs
{run_view}
WHERE {run_filter}

-- name: list_runs_by_state
-- Runs that neither run nor completed are few, and have an index of their own.
{run_view}
WHERE u.state = :state AND u.state <> 'running' AND u.state <> 'completed' AND {run_filter}

-- name: list_runs_of_job
{run_view}
WHERE u.job_id = :job_id AND {run_filter}

-- name: append_artifact
-- The one write a closed run takes.
UPDATE {run}
SET artifacts = :artifacts
WHERE id = :run_id

-- name: read_artifacts
SELECT artifacts
FROM {run}
WHERE id = :run_id
{for_update}

-- name: list_queues
SELECT
    q.name, q.paused_at, q.concurrency, q.reserved_until,
    (SELECT COUNT(*) FROM {ready} AS r WHERE r.queue = q.name AND r.state = 'queued'),
    (SELECT COUNT(*) FROM {ready} AS r WHERE r.queue = q.name AND r.state = 'running'),
    (SELECT COUNT(*) FROM {ready} AS r WHERE r.queue = q.name)
FROM {queue} AS q
ORDER BY q.name

-- name: count_ahead
-- verb: claim
-- How many jobs of the queue start before this one.
SELECT COUNT(*)
FROM {ready}
WHERE queue = :queue AND state = 'queued' AND (rank, position, job_id) < (:rank, :position, :job_id)

-- name: list_waited_for
-- The jobs that have to end before this one may start.
SELECT depends_on
FROM {edge}
WHERE job_id = :job_id
ORDER BY depends_on
LIMIT :page
