-- fragment: for_update
FOR UPDATE

-- fragment: claim_lock
FOR UPDATE OF r SKIP LOCKED

-- fragment: skip_locked
FOR UPDATE SKIP LOCKED

-- fragment: tags_of_job
(SELECT string_agg(t.tag, chr(31) ORDER BY t.tag) FROM {tag} AS t WHERE t.job_id = j.id)

-- fragment: lane_open
-- The node and the lane are locked until the claim commits, and read as they are then: a pause, a reservation or a
-- declared death that commits first is obeyed, one that comes later waits. (Only the first pause ever of '*', which
-- makes that row, can be outrun by claims under way.) MATERIALIZED: lock first, look afterwards.
EXISTS (SELECT 1 FROM {node} AS n WHERE n.id = :node_id AND n.stopped_at IS NULL FOR SHARE)
    AND NOT EXISTS (
        WITH lane AS MATERIALIZED (
            SELECT q.paused_at, q.reserved_until
            FROM {queue} AS q
            WHERE q.name IN (:queue, '*')
            ORDER BY q.name
            FOR SHARE
        )
        SELECT 1
        FROM lane
        WHERE lane.paused_at IS NOT NULL OR lane.reserved_until > :now
    )

-- name: take_places
-- A sequence, not the counter in the queue's row: that row would be locked until the enqueuer commits, and a caller's
-- long transaction (tx=) would keep out everyone else. One sequence serves all queues, and each place is answered by
-- itself: those of transactions that run side by side may interleave. Only the very first job of a queue makes others
-- wait for its commit, with the queue's row.
WITH place AS (
    SELECT nextval('{position}') + 100 AS following
    FROM generate_series(1, :room / 100)
),
made AS (
    INSERT INTO {queue} (name, next_position)
    VALUES (:queue, 0)
    ON CONFLICT (name) DO NOTHING
)
SELECT place.following
FROM place

-- name: stop_node
UPDATE {node}
SET stopped_at = :now, stop_reason = :reason
WHERE id = :node_id AND stopped_at IS NULL AND (:beat::bigint IS NULL OR beat = :beat)

-- name: read_identity
-- Tells this database from every other, also from one that was restored from its backup.
SELECT d.oid::bigint, v.applied_at
FROM pg_catalog.pg_database AS d
CROSS JOIN {schema_version} AS v
WHERE d.datname = current_database() AND v.revision = 1

-- name: keep_counter_ahead
-- Step by step, at most as many as there are neighbours: setting the sequence could put it back behind places that others
-- are just taking.
SELECT MAX(nextval('{position}'))
FROM generate_series(1, (:position - (SELECT last_value FROM {position}) + 99) / 100)

-- name: queue_counter_behind
SELECT r.queue, COUNT(*) OVER ()
FROM {ready} AS r
GROUP BY r.queue
HAVING MAX(r.position) > (SELECT last_value FROM {position})
{shown}

-- name: raise_queue_counters
SELECT setval('{position}', MAX(r.position))
FROM {ready} AS r
HAVING MAX(r.position) > (SELECT last_value FROM {position})

-- name: list_runs_of_kind
-- As shared, but job by job, so that the planner does not join with all runs.
{run_view}
FROM (
    SELECT u.id
    FROM (SELECT id FROM {job} WHERE kind = :kind ORDER BY kind, queue, id LIMIT :scan) AS d
    CROSS JOIN LATERAL (SELECT x.* FROM {run} AS x WHERE x.job_id = d.id ORDER BY x.id LIMIT :scan) AS u
    WHERE {run_filter}
) {found_runs}

-- name: reach_runs_of_kind
SELECT u.id
FROM (SELECT id FROM {job} WHERE kind = :kind ORDER BY kind, queue, id LIMIT :scan) AS d
CROSS JOIN LATERAL (SELECT x.id FROM {run} AS x WHERE x.job_id = d.id ORDER BY x.id LIMIT :scan) AS u
LIMIT 1 OFFSET :scan
