-- fragment: claimable
SELECT {claim_columns}
{jobs_of_lane}

-- fragment: jobs_of_lane
FROM {ready} AS r
JOIN {job} AS j ON j.id = r.job_id

-- fragment: lane_open
-- Nothing while the queue (or everything, '*') is paused or reserved, or when the node has stopped or was declared dead.
NOT EXISTS (
        SELECT 1
        FROM {queue} AS q
        WHERE q.name IN (:queue, '*') AND (q.paused_at IS NOT NULL OR q.reserved_until IS NOT NULL)
    )
    AND EXISTS (SELECT 1 FROM {node} AS n WHERE n.id = :node_id AND n.stopped_at IS NULL)

-- fragment: crashes_at_most
r.crashes <= :most_crashes

-- fragment: not_too_suspicious
-- Jobs that no node died of; and of the others those that crashed at most so often, and that this would not be the last
-- run of, unless :last_attempts is 1.
(r.crashes = 0 OR ({crashes_at_most} AND (:last_attempts = 1 OR r.attempts + 1 < r.max_attempts)))

-- name: claim_head
-- verb: claim
-- The head of a lane, without a look at the kinds, and without the columns that are the same in all queued jobs.
SELECT {queued_columns}
{jobs_of_lane}
WHERE r.queue = :queue
    AND r.state = 'queued'
    AND {not_too_suspicious}
    AND {lane_open}
ORDER BY r.rank, r.position, r.job_id
LIMIT :room
{claim_lock}

-- name: aside_of_lane
-- verb: claim
-- What a lane has besides queued jobs: the first parked kind, whether a job waits for a permit and has not been looked at,
-- and how many jobs of it, or of all queues, may run at once.
SELECT 'parked' AS sort, p.kind AS name, p.kind_version AS number
FROM (
    {first_parked_kind}
) AS p
UNION ALL
SELECT 'awake', a.kind, a.kind_version
FROM (SELECT r.kind, r.kind_version FROM {awake_jobs} WHERE {is_awake} LIMIT 1) AS a
UNION ALL
SELECT 'at_most', q.name, q.concurrency
FROM {queue} AS q
WHERE q.name IN (:queue, '*') AND q.concurrency IS NOT NULL

-- fragment: first_parked_kind
SELECT r.kind, r.kind_version
    FROM {ready} AS r
    WHERE r.queue = :queue
        AND r.state = 'parked'
        AND (r.park_reason = 'unknown_kind' OR r.park_reason = 'newer_version')
        AND {job_is_there}
    ORDER BY r.kind, r.kind_version
    LIMIT 1

-- name: next_parked_kind
-- verb: claim
-- The parked kinds of a queue one after the other, each found by one step down the index.
SELECT r.kind, r.kind_version
FROM {ready} AS r
WHERE r.queue = :queue
    AND r.state = 'parked'
    AND (r.park_reason = 'unknown_kind' OR r.park_reason = 'newer_version')
    AND (r.kind, r.kind_version) > (:kind, :kind_version)
    AND {job_is_there}
ORDER BY r.kind, r.kind_version
LIMIT 1

-- name: claim_parked
-- verb: claim
-- Parked jobs of one kind and version that this node can run after all.
{claimable}
WHERE r.queue = :queue
    AND r.state = 'parked'
    AND (r.park_reason = 'unknown_kind' OR r.park_reason = 'newer_version')
    AND r.kind = :kind
    AND r.kind_version = :kind_version
    AND {not_too_suspicious}
    AND {lane_open}
ORDER BY r.rank, r.position, r.job_id
LIMIT :room
{claim_lock}

-- name: insert_run
INSERT INTO {run} (id, job_id, state, node_id, attempt, life, started_at, wait_ms)
VALUES (:id, :job_id, 'running', :node_id, :attempt, :life, :started_at, :wait_ms)

-- name: due_jobs
-- verb: promote
SELECT {ready_columns}
FROM {ready}
WHERE state = 'scheduled' AND run_at <= :now
ORDER BY run_at, job_id
LIMIT :room
{skip_locked}

-- fragment: ready_of_node
{ready}

-- name: running_of_node
-- verb: rescue
-- What a node left behind; nothing of one that is alive, whoever asks.
SELECT {ready_columns}
FROM {ready_of_node}
WHERE state = 'running' AND node_id = :node_id
    AND job_id = COALESCE(:job_id, job_id)
    AND NOT EXISTS (SELECT 1 FROM {node} AS n WHERE n.id = :node_id AND n.stopped_at IS NULL)
ORDER BY claimed_at, job_id
LIMIT :room
{skip_locked}
