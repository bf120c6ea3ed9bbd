-- Limits and rates: see `store/limit.py`. {each_key} are the texts of the parameter :keys, a JSON list; {each_line} the
-- pairs of :lines, a JSON list of lists: a key and a queue.

-- fragment: in_line
-- The job x stands in the line of the key k in the queue k.queue.
x.held_by = k.key AND x.queue = k.queue

-- fragment: first_queue
SELECT MIN(x.queue) FROM {ready} AS x WHERE x.held_by = k.key

-- fragment: is_awake
r.queue = :queue AND r.state = 'held' AND r.held_by IS NULL

-- fragment: awake_jobs
{ready} AS r

-- fragment: head_of_line
SELECT x.job_id
    FROM {ready} AS x
    WHERE {in_line}
    ORDER BY x.rank, x.position, x.job_id
    LIMIT 1

-- fragment: counts
-- A permit counts until its run ends; that of a block that somebody holds, until its lease does.
(p.lease_until IS NULL OR p.lease_until > :now)

-- name: claim_awake
-- verb: claim
-- The jobs of a lane that wait for a permit and have not found their keys full yet; columns as in `claim_head`.
SELECT {queued_columns}
{jobs_of_lane}
WHERE {is_awake}
    AND {not_too_suspicious}
    AND {lane_open}
ORDER BY r.rank, r.position, r.job_id
LIMIT :room
{claim_lock}

-- name: claim_line_heads
-- verb: claim
-- The first of each of these lines.
SELECT {claim_columns}
FROM {each_line} AS k
JOIN {ready} AS r ON r.job_id = (
    {head_of_line}
)
JOIN {job} AS j ON j.id = r.job_id
WHERE {not_too_suspicious}
    AND {lane_open}
{claim_lock}

-- name: claim_line
-- verb: claim
-- The front of one line.
{claimable}
WHERE r.held_by = :key
    AND r.queue = :queue
    AND {not_too_suspicious}
    AND {lane_open}
ORDER BY r.rank, r.position, r.job_id
LIMIT :room
{claim_lock}

-- name: fronts_of_lines
-- The first of each of these lines, to be woken.
SELECT k.key, k.queue, r.job_id, r.version, r.limit_key
FROM {each_line} AS k
JOIN {ready} AS r ON r.job_id = (
    {head_of_line}
)
{front_lock}

-- name: next_queue_of_line
-- The queues in which a key has a line, one after the other.
SELECT MIN(x.queue)
FROM {ready} AS x
WHERE x.held_by = :key AND x.queue > :queue

-- name: lock_keys
-- Nobody else decides about these keys until we commit. Returns those that are locked now; '*': all of them, where nobody
-- else writes.
SELECT '*' WHERE :keys <> ''

-- name: try_keys
-- The same for those that nobody else has locked.
SELECT '*' WHERE :keys <> ''

-- fragment: state_of_key
SELECT k.key, y.set_most, y.paused_at, y.opens_at, y.since_at, y.spent,
    CAST((SELECT SUM(p.weight) FROM {permit} AS p WHERE p.key = k.key AND {counts}) AS {whole_number}),
    ({first_queue})
FROM {each_key} AS k
LEFT JOIN {limit_key} AS y ON y.key = k.key

-- name: read_keys
{state_of_key}

-- name: read_keys_in_line
-- Of those of these keys that have a line somewhere.
{state_of_key}
WHERE ({first_queue}) IS NOT NULL

-- name: read_rules
SELECT l.name, l.sort, l.most, l.per_us, l.burst, l.set_most, l.paused_at
FROM {each_key} AS k
JOIN {limit_rule} AS l ON l.name = k.key

-- name: share_rules
-- The same, and nobody changes them until we commit. Without those that somebody is just changing.
SELECT l.name, l.sort, l.most, l.per_us, l.burst, l.set_most, l.paused_at
FROM {each_key} AS k
JOIN {limit_rule} AS l ON l.name = k.key
{share_rule}

-- name: count_starts
-- Of a sliding rate.
SELECT CAST(SUM(s.weight) AS {whole_number})
FROM {start} AS s
WHERE s.key = :key AND s.at > :since AND s.at <= :until

-- name: insert_permit
INSERT INTO {permit} (key, holder, weight)
VALUES (:key, :holder, :weight)

-- name: free_permit
DELETE FROM {permit}
WHERE key = :key AND holder = :holder

-- name: insert_hold
INSERT INTO {permit} (key, holder, weight, lease_until)
VALUES (:key, :holder, :weight, :lease_until)

-- name: renew_hold
UPDATE {permit}
SET lease_until = :lease_until
WHERE key = :key AND holder = :holder AND lease_until > :now

-- name: drop_expired_holds
DELETE FROM {permit}
WHERE key = :key AND lease_until <= :now

-- name: shorten_holds
UPDATE {permit}
SET lease_until = :lease_until
WHERE key = :key AND lease_until > :lease_until

-- name: note_leases
-- A key that is held by blocks opens when the first of their leases ends, unless it is renewed.
UPDATE {limit_key}
SET opens_at = (SELECT MIN(p.lease_until) FROM {permit} AS p WHERE p.key = :key)
WHERE key = :key

-- name: insert_start
INSERT INTO {start} (key, at, start_id, weight)
VALUES (:key, :at, :start_id, :weight)

-- name: first_starts
SELECT s.at, s.weight
FROM {start} AS s
WHERE s.key = :key AND s.at > :since AND s.at <= :until
ORDER BY s.at, s.start_id
LIMIT :room

-- name: forget_starts
-- Those that count no more, and those of a clock that was set back since.
DELETE FROM {start}
WHERE key = :key AND (at <= :since OR at > :until)

-- name: make_key
INSERT INTO {limit_key} (key)
VALUES (:key)
{unless_known}

-- name: make_keys
-- Only of those that are not there: whoever has locked one that is there is not waited for.
INSERT INTO {limit_key} (key)
SELECT k.key
FROM {each_key} AS k
WHERE NOT EXISTS (SELECT 1 FROM {limit_key} AS y WHERE y.key = k.key)
ORDER BY k.key
{unless_known}

-- name: drop_key
DELETE FROM {limit_key}
WHERE key = :key

-- name: note_spent
UPDATE {limit_key}
SET since_at = :since_at, spent = :spent
WHERE key = :key

-- name: note_opening
UPDATE {limit_key}
SET opens_at = :opens_at
WHERE key = :key

-- name: due_keys
-- Keys with a line that may have room from now on, and those whose permits were held by a block that is gone.
SELECT y.key
FROM {limit_key} AS y
WHERE y.opens_at <= :now
ORDER BY y.opens_at
LIMIT :room

-- name: insert_look
INSERT INTO {limit_look} (look_id, key, whole, after)
VALUES (:look_id, :key, :whole, :after)
{unless_known}

-- name: take_looks
SELECT look_id, key, whole, after
FROM {limit_look}
LIMIT :room
{skip_locked}

-- name: drop_look
DELETE FROM {limit_look}
WHERE look_id = :look_id AND key = :key

-- name: note_look
UPDATE {limit_look}
SET after = :after
WHERE look_id = :look_id AND key = :key

-- fragment: next_line
SELECT MIN(x.held_by) FROM {ready} AS x WHERE x.held_by >

-- name: lines_of_limit
-- The keys of a limit that have lines, after this one: each found by one step down the index.
WITH RECURSIVE found (key, number) AS (
    SELECT ({next_line} :after AND x.held_by < :end), 1
    UNION ALL
    SELECT ({next_line} f.key AND x.held_by < :end), f.number + 1
    FROM found AS f
    WHERE f.key IS NOT NULL AND f.number < :room
)
SELECT f.key
FROM found AS f
WHERE f.key IS NOT NULL

-- name: list_rules
SELECT name, sort, most, per_us, burst, set_most, paused_at, declared_by
FROM {limit_rule}
ORDER BY name

-- name: read_rule
SELECT name, sort, most, per_us, burst, set_most, paused_at, declared_by
FROM {limit_rule}
WHERE name = :name
{for_update}

-- name: make_rule
INSERT INTO {limit_rule} (name, sort, declared_by)
VALUES (:name, :sort, :declared_by)
{unless_known}

-- name: declare_rule
UPDATE {limit_rule}
SET sort = :sort, most = :most, per_us = :per_us, burst = :burst, declared_by = :declared_by, declared_at = :now
WHERE name = :name

-- name: set_rule
UPDATE {limit_rule}
SET set_most = :set_most, set_at = :set_at, paused_at = :paused_at
WHERE name = :name

-- name: drop_rule
DELETE FROM {limit_rule}
WHERE name = :name

-- name: read_key
SELECT key, set_most, set_at, paused_at
FROM {limit_key}
WHERE key = :key
{for_update}

-- name: set_key
UPDATE {limit_key}
SET set_most = :set_most, set_at = :set_at, paused_at = :paused_at
WHERE key = :key

-- name: keys_in_use
SELECT p.key
FROM {permit} AS p
WHERE p.key = :name OR (p.key > :after AND p.key < :end)
GROUP BY p.key
ORDER BY p.key
LIMIT :room

-- name: keys_noted
SELECT y.key
FROM {limit_key} AS y
WHERE (y.key = :name OR (y.key > :after AND y.key < :end))
    AND (y.set_most IS NOT NULL OR y.paused_at IS NOT NULL OR y.opens_at IS NOT NULL)
ORDER BY y.key
LIMIT :room

-- name: holders_of_key
-- The jobs that hold it.
SELECT holder
FROM {permit}
WHERE key = :key AND lease_until IS NULL
ORDER BY holder
LIMIT :room

-- name: count_blocks_of_key
-- The blocks of code that hold it.
SELECT COUNT(*)
FROM {permit}
WHERE key = :key AND lease_until > :now

-- name: count_line
SELECT COUNT(*)
FROM (SELECT 1 AS one FROM {ready} AS x WHERE x.held_by = :key LIMIT :cap) AS c

-- name: count_line_ahead
-- Of the jobs in a line those before this one.
SELECT COUNT(*)
FROM (
    SELECT 1 AS one
    FROM {line_of_key}
        AND (x.rank, x.position, x.job_id) < (:rank, :position, :job_id)
    LIMIT :cap
) AS c

-- fragment: line_of_key
{ready} AS x
    WHERE x.held_by = :key AND x.queue = :queue

-- name: set_queue_limit
UPDATE {queue}
SET concurrency = :concurrency
WHERE name = :queue

-- name: lock_rooms
-- Before the running jobs of queues with a limit are counted. For databases where claims run side by side.
SELECT 1

-- name: count_rooms
-- What is free of every queue that has a limit.
SELECT q.name, q.concurrency - (
        SELECT COUNT(*)
        FROM {ready} AS r
        WHERE r.state = 'running' AND (q.name = '*' OR r.queue = q.name)
    )
FROM {queue} AS q
WHERE q.concurrency IS NOT NULL
