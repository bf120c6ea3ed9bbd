-- fragment: lane_free
q.paused_at IS NULL
    AND q.reserved_until IS NULL
    AND NOT EXISTS (
        SELECT 1
        FROM {queue} AS x
        WHERE x.name = '*' AND (x.paused_at IS NOT NULL OR x.reserved_until IS NOT NULL)
    )

-- fragment: job_is_there
-- A live row without its job is nobody's work: no claim takes it, so no worker may wait for it.
EXISTS (SELECT 1 FROM {job} AS j WHERE j.id = r.job_id)

-- fragment: queues_with_work
SELECT q.name
FROM {queue} AS q
WHERE {lane_free}
    AND EXISTS (SELECT 1 FROM {ready} AS r WHERE r.queue = q.name AND r.state = 'queued' AND {job_is_there})
    AND {lane_has_room}
ORDER BY q.name

-- fragment: lane_has_room
-- Fewer jobs of the queue run than may at once, and fewer of all queues.
NOT EXISTS (
        SELECT 1
        FROM {queue} AS l
        WHERE l.name IN (q.name, '*')
            AND l.concurrency IS NOT NULL
            AND l.concurrency <= (
                SELECT COUNT(*)
                FROM {ready} AS u
                WHERE u.state = 'running' AND (l.name = '*' OR u.queue = l.name)
            )
    )

-- fragment: queues_with_awake
SELECT q.name
FROM {queue} AS q
WHERE {lane_free}
    AND EXISTS (
        SELECT 1
        FROM {ready} AS r
        WHERE r.queue = q.name AND r.state = 'held' AND r.held_by IS NULL AND {job_is_there}
    )
    AND {lane_has_room}
ORDER BY q.name

-- fragment: queues_with_parked
SELECT q.name
FROM {queue} AS q
WHERE {lane_free}
    AND EXISTS (
        SELECT 1
        FROM {ready} AS r
        WHERE r.queue = q.name
            AND r.state = 'parked'
            AND (r.park_reason = 'unknown_kind' OR r.park_reason = 'newer_version')
    )
ORDER BY q.name

-- fragment: next_due
SELECT 'due' AS sort, NULL AS queue, MIN(run_at) AS due, NULL AS run_id
FROM {ready}
WHERE state = 'scheduled'

-- name: glance
-- What a node would find to do, in one statement: when the next job is due, which of its runs are to stop, and the queues
-- with jobs that may start, or that were set aside for want of a node that knows them.
{next_due}
UNION ALL
SELECT 'cancelled', NULL, NULL, run_id
FROM {ready}
WHERE state = 'running' AND node_id = :node_id AND cancel_requested = 1
UNION ALL
SELECT 'work', w.name, NULL, NULL
FROM (
{queues_with_work}
) AS w
UNION ALL
SELECT 'parked', p.name, NULL, NULL
FROM (
{queues_with_parked}
) AS p
UNION ALL
SELECT 'todo', d.what, NULL, NULL
FROM (SELECT what FROM {todo} LIMIT 1) AS d
UNION ALL
SELECT 'awake', a.name, NULL, NULL
FROM (
{queues_with_awake}
) AS a
UNION ALL
SELECT 'opens', NULL, MIN(opens_at), NULL
FROM {limit_key}
WHERE opens_at IS NOT NULL
UNION ALL
SELECT 'todo', l.key, NULL, NULL
FROM (SELECT key FROM {limit_look} LIMIT 1) AS l

-- name: held_by_node
SELECT {ready_columns}
FROM {ready}
WHERE state = 'running' AND node_id = :node_id
ORDER BY claimed_at, job_id

-- name: overdue_jobs
SELECT {ready_columns}
FROM {ready}
WHERE state = 'running' AND deadline_at <= :now
ORDER BY deadline_at
LIMIT :room

-- name: note_metrics
-- What a run has measured so far.
UPDATE {run}
SET metrics = :metrics
WHERE id = :run_id AND state = 'running'

-- name: trim_log
DELETE FROM {job_log}
WHERE run_id = :run_id AND line <= :line

-- name: live_nodes
SELECT {node_columns}
FROM {node}
WHERE stopped_at IS NULL
ORDER BY id

-- name: nodes_left_behind
-- Nodes that are gone, or were never known, but still hold jobs.
SELECT DISTINCT r.node_id
FROM {ready} AS r
WHERE r.state = 'running'
    AND r.node_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM {node} AS n WHERE n.id = r.node_id AND n.stopped_at IS NULL)
