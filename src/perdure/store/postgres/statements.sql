-- fragment: for_update
FOR UPDATE

-- fragment: claim_lock
FOR UPDATE OF r SKIP LOCKED

-- fragment: for_share
FOR SHARE

-- fragment: share_rule
FOR SHARE OF l SKIP LOCKED

-- fragment: front_lock
-- Whoever has it locked may take the job out of the line, or leave it there: it is looked at again.
FOR UPDATE OF r SKIP LOCKED

-- fragment: each_key
(
    SELECT e.value AS key
    FROM json_array_elements_text(CAST(:keys AS json)) AS e
)

-- fragment: each_line
(
    SELECT e.value ->> 0 AS key, e.value ->> 1 AS queue
    FROM json_array_elements(CAST(:lines AS json)) AS e
)

-- name: lock_keys
-- In the order of the keys, and those that had no row before any other. A row that somebody else has just made is not
-- among them: whoever called asks again.
WITH made AS (
    INSERT INTO {limit_key} (key)
    SELECT k.key
    FROM {each_key} AS k
    ORDER BY k.key
    ON CONFLICT (key) DO NOTHING
    RETURNING key
), known AS MATERIALIZED (
    SELECT y.key
    FROM {limit_key} AS y
    WHERE y.key IN (SELECT k.key FROM {each_key} AS k) AND (SELECT COUNT(*) FROM made) >= 0
    ORDER BY y.key
    FOR UPDATE
)
SELECT m.key FROM made AS m
UNION ALL
SELECT n.key FROM known AS n

-- name: try_keys
SELECT y.key
FROM {limit_key} AS y
WHERE y.key IN (SELECT k.key FROM {each_key} AS k)
FOR UPDATE SKIP LOCKED

-- name: list_rules
-- Names and keys of limits have the order of the database: here they are put in that of their bytes, as everywhere else.
SELECT name, sort, most, per_us, burst, set_most, paused_at, declared_by
FROM {limit_rule}
ORDER BY name COLLATE "C"

-- name: keys_in_use
SELECT p.key
FROM {permit} AS p
WHERE p.key = :name OR (p.key COLLATE "C" > :after AND p.key COLLATE "C" < :end)
GROUP BY p.key
ORDER BY p.key COLLATE "C"
LIMIT :room

-- name: keys_noted
SELECT y.key
FROM {limit_key} AS y
WHERE (y.key = :name OR (y.key COLLATE "C" > :after AND y.key COLLATE "C" < :end))
    AND (y.set_most IS NOT NULL OR y.paused_at IS NOT NULL OR y.opens_at IS NOT NULL)
ORDER BY y.key COLLATE "C"
LIMIT :room

-- name: lock_rooms
-- Not the rows of the queues: every claim has a shared lock on those, and two that want more would wait for each other.
-- Its number is "room" in ASCII.
SELECT pg_advisory_xact_lock(1919905645)

-- fragment: skip_locked
FOR UPDATE SKIP LOCKED

-- name: lock_order
-- An advisory lock, for the queue's row would keep claims waiting. Its first number is "ordr" in ASCII.
SELECT pg_advisory_xact_lock(1869767794, hashtext(:queue))

-- fragment: odd_run
-- What `state` is compared with is looked up in the index of `odd_state`: an index of `state` itself would be written by
-- the end of every run.
odd_state = state

-- fragment: is_of_limit
m.of_key = l.name OR substr(m.of_key, 1, length(l.name) + 1) = l.name || chr(31)

-- fragment: needs_limit
(strpos(chr(30) || r.limit_key, chr(30) || l.name || '*') > 0
        OR strpos(chr(30) || r.limit_key, chr(30) || l.name || chr(31)) > 0)

-- fragment: needs_key
strpos(chr(30) || a.limit_key, chr(30) || m.of_key || '*') > 0

-- fragment: tags_of_job
(SELECT string_agg(t.tag, chr(31) ORDER BY t.tag) FROM {tag} AS t WHERE t.job_id = j.id)

-- fragment: lane_open
-- The node and the lane are locked until the claim commits, and read as they are then: a pause, a reservation or a
-- declared death that commits first is obeyed, one that comes later waits. (Only a pause that makes the row it is
-- written in, as the first ever of '*' does, can be outrun by claims under way; a reservation cannot: see
-- lock_out_claims.) A lane that somebody is pausing or
-- resuming is passed over until he commits: he may take his time. MATERIALIZED: lock first, look afterwards.
EXISTS (SELECT 1 FROM {node} AS n WHERE n.id = :node_id AND n.stopped_at IS NULL FOR SHARE)
    AND (SELECT COUNT(*) FROM {queue} AS q WHERE q.name IN (:queue, '*')) = (
        WITH lane AS MATERIALIZED (
            SELECT q.paused_at, q.reserved_until
            FROM {queue} AS q
            WHERE q.name IN (:queue, '*')
            ORDER BY q.name
            FOR SHARE SKIP LOCKED
        )
        SELECT COUNT(*)
        FROM lane
        WHERE lane.paused_at IS NULL AND lane.reserved_until IS NULL
    )

-- name: lock_reservations
-- Its number is "rsvn" in ASCII.
SELECT pg_advisory_xact_lock(1920169582)

-- name: lock_out_claims
-- Every claim locks its node's row, so it locks the table before its snapshot is taken: one that has it has committed
-- when this returns, and one that comes later sees what is committed here, even a queue's row that is new. A lock on that
-- row alone could be outrun, and claims that overlap all the time could keep it waiting for ever. Nobody else holds the
-- table for long: only workers write it.
LOCK TABLE {node} IN EXCLUSIVE MODE

-- fragment: bell_bit
(1 + (hashtext(:queue) & 2147483647) % 62)

-- fragment: bell_bits
CASE WHEN :queue = '*' THEN 9223372036854775807 ELSE 1::bigint << {bell_bit} | 1 END

-- fragment: rung
-- Nothing, as a number; but if a worker that serves this queue ('*': any worker) sleeps, it is woken when the transaction
-- commits. Bit 0 of the marks is for workers that serve all queues, each other bit for some of the queues. Whoever rings
-- takes the marks down: one NOTIFY for each sleep, however much is enqueued. The transaction gets its number before it
-- looks at the marks: so a worker that marks itself later sees it under way, and looks again when it has ended.
CASE
        WHEN pg_current_xact_id() IS NULL THEN 0
        WHEN pg_sequence_last_value('{asleep}') & ({bell_bits}) <> 0 THEN
            0 * setval('{asleep}', pg_sequence_last_value('{asleep}') & ~({bell_bits}))
            + length(pg_notify('perdure', CASE WHEN :queue = '*' THEN '*' ELSE {bell_bit}::text END)::text)
        ELSE 0
    END

-- name: ring
SELECT
    {rung}

-- name: ring_if_limited
SELECT
    {rung}
FROM {queue} AS q
WHERE q.name = :queue AND q.concurrency IS NOT NULL

-- name: read_bell_bit
SELECT {bell_bit}

-- name: take_places
-- A sequence, not the counter in the queue's row: that row would be locked until the enqueuer commits, and a caller's
-- long transaction (tx=) would keep out everyone else. One sequence serves all queues, and each place is answered by
-- itself: those of transactions that run side by side may interleave.
SELECT nextval('{position}') + 100
FROM generate_series(
    1,
    :room / 100 +
    {rung}
)
CROSS JOIN {queue} AS q
WHERE q.name = :queue

-- name: make_queue_with_room
-- For the very first job of a queue. Others do not wait for that one's commit: whoever does not get the advisory lock
-- (its first number is "newq" in ASCII) goes on without the row. If the first is rolled back, the next job makes it; until
-- then the queue is found by its jobs.
WITH made AS (
    INSERT INTO {queue} (name, next_position)
    SELECT :queue, 0
    WHERE pg_try_advisory_xact_lock(1852143473, hashtext(:queue))
    ON CONFLICT (name) DO NOTHING
)
SELECT nextval('{position}') + 100
FROM generate_series(
    1,
    :room / 100 +
    {rung}
)

-- name: ensure_queue
-- Under the lock of whoever makes a queue's row: enqueuers must not come to wait for a pause.
INSERT INTO {queue} (name, next_position)
SELECT :queue, 100
FROM pg_advisory_xact_lock(1852143473, hashtext(:queue))
ON CONFLICT (name) DO NOTHING

-- fragment: queued_queues
-- The queues with jobs that may start, each found by one step down the claim index.
WITH RECURSIVE found (name) AS (
    SELECT MIN(r.queue)
    FROM {ready} AS r
    WHERE r.state = 'queued'
    UNION ALL
    SELECT (SELECT MIN(r.queue) FROM {ready} AS r WHERE r.state = 'queued' AND r.queue > f.name)
    FROM found AS f
    WHERE f.name IS NOT NULL
)

-- fragment: parked_queues
WITH RECURSIVE found (name) AS (
    SELECT MIN(r.queue)
    FROM {ready} AS r
    WHERE r.state = 'parked' AND (r.park_reason = 'unknown_kind' OR r.park_reason = 'newer_version')
    UNION ALL
    SELECT (
        SELECT MIN(r.queue)
        FROM {ready} AS r
        WHERE r.state = 'parked'
            AND (r.park_reason = 'unknown_kind' OR r.park_reason = 'newer_version')
            AND r.queue > f.name
    )
    FROM found AS f
    WHERE f.name IS NOT NULL
)

-- fragment: lanes_free
SELECT f.name
FROM found AS f
WHERE f.name IS NOT NULL
    AND NOT EXISTS (
        SELECT 1
        FROM {queue} AS q
        WHERE q.name IN (f.name, '*') AND (q.paused_at IS NOT NULL OR q.reserved_until IS NOT NULL)
    )

-- fragment: queues_with_work
-- A queue may have no row yet: see make_queue_with_room. In order, so that it is one step down the claim index: without
-- that the planner takes any queue for a common one, and reads the table until it meets one of its jobs.
{queued_queues}
{lanes_free}
    AND (
        SELECT r.job_id
        FROM {ready} AS r
        WHERE r.queue = f.name AND r.state = 'queued' AND {job_is_there}
        ORDER BY r.rank, r.position, r.job_id
        LIMIT 1
    ) IS NOT NULL
    AND {lane_has_room}
ORDER BY f.name

-- fragment: lane_has_room
NOT EXISTS (
        SELECT 1
        FROM {queue} AS l
        WHERE l.name IN (f.name, '*')
            AND l.concurrency IS NOT NULL
            AND l.concurrency <= (
                SELECT COUNT(*)
                FROM {ready} AS u
                WHERE u.state = 'running' AND (l.name = '*' OR u.queue = l.name)
            )
    )

-- fragment: queues_with_awake
WITH RECURSIVE found (name) AS (
    SELECT MIN(r.queue)
    FROM {ready} AS r
    WHERE r.state = 'held' AND r.held_by IS NULL
    UNION ALL
    SELECT (SELECT MIN(r.queue) FROM {ready} AS r WHERE r.state = 'held' AND r.held_by IS NULL AND r.queue > f.name)
    FROM found AS f
    WHERE f.name IS NOT NULL
)
{lanes_free}
    AND {lane_has_room}
ORDER BY f.name

-- fragment: queues_with_parked
{parked_queues}
{lanes_free}
ORDER BY f.name

-- name: list_queues
-- Also those that have no row yet: see make_queue_with_room.
{queued_queues}
SELECT n.name, q.paused_at, q.concurrency, q.reserved_until
FROM (
    SELECT f.name FROM found AS f WHERE f.name IS NOT NULL
    UNION
    SELECT q.name FROM {queue} AS q
) AS n
LEFT JOIN {queue} AS q ON q.name = n.name
ORDER BY n.name

-- name: count_queued
-- How many jobs of each queue may start now; no further than :cap.
{queued_queues}
SELECT
    f.name,
    (SELECT COUNT(*) FROM (SELECT 1 AS one FROM {ready} AS r WHERE r.queue = f.name AND r.state = 'queued' LIMIT :cap) AS c)
FROM found AS f
WHERE f.name IS NOT NULL

-- name: queue_missing
-- Nothing is wrong with that here: see make_queue_with_room.
SELECT r.queue, COUNT(*) OVER ()
FROM {ready} AS r
WHERE FALSE
{shown}

-- name: stop_node
UPDATE {node}
SET stopped_at = :now, stop_reason = :reason
WHERE id = :node_id AND stopped_at IS NULL AND (:beat::bigint IS NULL OR beat = :beat)

-- name: read_time
-- The server's wall clock as it is at this moment, not when the transaction began.
SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint

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
{find_runs} (SELECT id FROM {job} WHERE kind = :kind ORDER BY kind, queue, id LIMIT :scan) AS d
CROSS JOIN LATERAL (SELECT x.* FROM {run} AS x WHERE x.job_id = d.id ORDER BY x.id LIMIT :scan) AS u
WHERE {page_of_runs}

-- name: reach_runs_of_kind
SELECT u.id
FROM (SELECT id FROM {job} WHERE kind = :kind ORDER BY kind, queue, id LIMIT :scan) AS d
CROSS JOIN LATERAL (SELECT x.id FROM {run} AS x WHERE x.job_id = d.id ORDER BY x.id LIMIT :scan) AS u
LIMIT 1 OFFSET :scan

-- name: read_hindrances
-- A transaction counts if it has a snapshot or has written: rows that died after it began are kept for it.
-- A standby says for which transaction on it rows are kept (hot_standby_feedback), not since when: it counts if it does not
-- know yet a run that ended so long ago. One that is held up by a transaction of this server is not to blame.
WITH standby AS (
    SELECT r.application_name AS name, age(COALESCE(s.xmin, r.backend_xmin)) AS age,
        concat_ws(', ', host(r.client_addr), 'slot ' || s.slot_name) AS detail
    FROM pg_catalog.pg_stat_replication AS r
    LEFT JOIN pg_catalog.pg_replication_slots AS s ON s.active_pid = r.pid
),
ended AS (
    SELECT MIN(age(u.xmin)) AS age
    FROM (
        SELECT x.xmin, x.finished_at
        FROM {run} AS x
        WHERE x.id < CAST(
            lpad(to_hex((EXTRACT(EPOCH FROM now() - make_interval(secs => :long_s)) * 1000)::bigint), 12, '0')
            || repeat('0', 20) AS uuid
        )
        ORDER BY x.id DESC
        LIMIT 1000
    ) AS u
    WHERE u.finished_at <= EXTRACT(EPOCH FROM now() - make_interval(secs => :long_s)) * 1000000
)
SELECT h.sort, h.who, h.seconds, h.detail
FROM (
    SELECT 'transaction' AS sort, a.pid::text AS who, EXTRACT(EPOCH FROM now() - a.xact_start)::bigint AS seconds,
        concat_ws(', ', a.state, NULLIF(a.application_name, ''), host(a.client_addr)) AS detail
    FROM pg_catalog.pg_stat_activity AS a
    WHERE a.backend_xmin IS NOT NULL OR a.backend_xid IS NOT NULL
    UNION ALL
    SELECT 'prepared', p.gid, EXTRACT(EPOCH FROM now() - p.prepared)::bigint, p.owner::text
    FROM pg_catalog.pg_prepared_xacts AS p
    WHERE p.database = current_database()
    UNION ALL
    SELECT 'slot', s.slot_name::text, :long_s, s.slot_type::text
    FROM pg_catalog.pg_replication_slots AS s
    WHERE NOT s.active AND s.xmin IS NOT NULL
    UNION ALL
    SELECT 'standby', b.name, :long_s, b.detail
    FROM standby AS b
    JOIN ended AS e ON b.age >= e.age
    WHERE b.age > ALL (
        SELECT age(a.backend_xid) FROM pg_catalog.pg_stat_activity AS a WHERE a.backend_xid IS NOT NULL
        UNION ALL
        SELECT age(p.transaction) FROM pg_catalog.pg_prepared_xacts AS p
    )
    UNION ALL
    SELECT 'dead_rows', t.relname::text, :long_s, t.n_dead_tup::text
    FROM pg_catalog.pg_stat_user_tables AS t
    WHERE t.schemaname = 'perdure' AND t.n_dead_tup > :most_dead AND t.n_dead_tup > t.n_live_tup
) AS h
WHERE h.seconds >= :long_s
ORDER BY h.seconds DESC, h.sort, h.who
