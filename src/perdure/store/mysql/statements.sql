-- What MariaDB and MySQL need otherwise than in `sql/`. A call may be several statements, with `;` at the end of a line
-- between them: its answer is that of the last.
--
-- aside, odd_run, odd_end: two columns of the same value; what `state` is compared with is looked up in the index of the
-- other. longest_before: a table in FROM cannot refer to the row outside, so the twenty are those from the twentieth on.
-- lock_…: until the end of the transaction; GET_LOCK would outlive it. The rows are those of migration 0009, but for those of
-- single queues: two who wait for a row that is rolled back would be in the way of each other. ready_of_node: in the index of
-- the states, which the server prefers if most jobs run, the jobs of all nodes would be locked. queues_of_kind,
-- kinds_of_queue, lines_of_limit: no index serves `x > (a value of the row outside)`, so there are no steps from one value to
-- the next. rows_aside, rows_running, found_jobs, jobs_of_kind, …_by_id, callbacks_…: where the statistics are old, or the
-- table small, the server would rather read every live job, every job or every run, and look which of them is wanted.

-- fragment: text
CHAR

-- fragment: unless_taken
-- A row with this key is no error, and changes nothing: the driver looks for this mark. Not ON DUPLICATE KEY UPDATE, whose
-- count of rows depends on a flag of the user's connection (FOUND_ROWS); and not INSERT IGNORE, which also swallows values
-- that do not fit.
/* unless taken */

-- fragment: unless_known
/* unless taken */

-- fragment: for_update
FOR UPDATE

-- fragment: todo_known
ON DUPLICATE KEY UPDATE reached = VALUES(reached)

-- fragment: for_share
LOCK IN SHARE MODE

-- fragment: skip_locked
FOR UPDATE SKIP LOCKED

-- fragment: whole_number
SIGNED

-- fragment: in_line
x.held_for = k.key AND x.queue = k.queue

-- fragment: first_queue
SELECT x.queue FROM {ready} AS x FORCE INDEX (ready_line) WHERE x.held_for = k.key ORDER BY x.queue LIMIT 1

-- fragment: awake_jobs
{ready} AS r FORCE INDEX (ready_line)

-- fragment: is_awake
r.held_for = '' AND r.queue = :queue

-- fragment: head_of_line
SELECT x.job_id
    FROM {ready} AS x FORCE INDEX (ready_line)
    WHERE {in_line}
    ORDER BY x.rank, x.position, x.job_id
    LIMIT 1

-- name: lines_of_limit
SELECT x.held_for
FROM {ready} AS x FORCE INDEX (ready_line)
WHERE x.held_for > :after AND x.held_for < :end
GROUP BY x.held_for
ORDER BY x.held_for
LIMIT :room

-- fragment: rows_in_line
{ready} AS w FORCE INDEX (ready_line)
    WHERE w.held_for > ''

-- fragment: rows_of_line
{ready} AS x FORCE INDEX (ready_line)
    WHERE x.held_for = m.of_key AND x.queue = m.queue

-- fragment: rows_awake
{ready} AS a FORCE INDEX (ready_line)
        WHERE a.held_for = '' AND a.queue = m.queue

-- fragment: first_parked_kind
SELECT r.kind, r.kind_version
    FROM {ready} AS r FORCE INDEX (ready_parked)
    WHERE r.parked_in = :queue AND {job_is_there}
    ORDER BY r.kind, r.kind_version
    LIMIT 1

-- fragment: queues_with_awake
SELECT q.name
FROM {queue} AS q
WHERE {lane_free}
    AND EXISTS (
        SELECT 1
        FROM {ready} AS r FORCE INDEX (ready_line)
        WHERE r.held_for = '' AND r.queue = q.name AND {job_is_there}
    )
    AND {lane_has_room}
ORDER BY q.name

-- name: claim_awake
-- verb: claim
{enter};
SELECT {queued_columns}
FROM {ready} AS r FORCE INDEX (ready_line)
STRAIGHT_JOIN {job} AS j FORCE INDEX (PRIMARY) ON j.id = r.job_id
WHERE {is_awake}
    AND {not_too_suspicious}
    AND {lane_open}
ORDER BY r.rank, r.position, r.job_id
LIMIT :room
{claim_lock}

-- name: claim_line
-- verb: claim
{enter};
SELECT {claim_columns}
FROM {ready} AS r FORCE INDEX (ready_line)
STRAIGHT_JOIN {job} AS j FORCE INDEX (PRIMARY) ON j.id = r.job_id
WHERE r.held_for = :key
    AND r.queue = :queue
    AND {not_too_suspicious}
    AND {lane_open}
ORDER BY r.rank, r.position, r.job_id
LIMIT :room
{claim_lock}

-- name: next_queue_of_line
SELECT MIN(x.queue)
FROM {ready} AS x FORCE INDEX (ready_line)
WHERE x.held_for = :key AND x.queue > :queue

-- name: count_line
SELECT COUNT(*)
FROM (
    SELECT 1 AS one
    FROM {ready} AS x FORCE INDEX (ready_line)
    WHERE x.held_for = :key
    LIMIT :cap
) AS c

-- fragment: line_of_key
{ready} AS x FORCE INDEX (ready_line)
    WHERE x.held_for = :key AND x.queue = :queue

-- name: lock_keys
-- In the order of the keys. Each of these rows is locked, whether it was there or not.
INSERT INTO {limit_key} (key)
SELECT k.key
FROM {each_key} AS k
ORDER BY k.key
ON DUPLICATE KEY UPDATE set_at = {limit_key}.set_at;
SELECT k.key
FROM {each_key} AS k

-- name: share_rules
SELECT l.name, l.sort, l.most, l.per_us, l.burst, l.set_most, l.paused_at
FROM {each_key} AS k
STRAIGHT_JOIN {limit_rule} AS l ON l.name = k.key
{rule_lock}

-- name: try_keys
SELECT y.key
FROM {each_key} AS k
STRAIGHT_JOIN {limit_key} AS y ON y.key = k.key
{key_lock}

-- fragment: row_of_queue
-- The row of {mutex} that is locked before the row of a queue is made. A queue shares it with one in 64 others.
CONCAT('queue ', MOD(CRC32(:queue), 64))

-- name: lock_rooms
INSERT INTO {mutex} (name)
VALUES ('rooms of queues')
ON DUPLICATE KEY UPDATE name = name

-- fragment: is_of_limit
m.of_key = l.name OR substr(m.of_key, 1, CHAR_LENGTH(l.name) + 1) = CONCAT(l.name, CHAR(31 USING utf8mb4))

-- fragment: needs_limit
(INSTR(CONCAT(CHAR(30 USING utf8mb4), r.limit_key), CONCAT(CHAR(30 USING utf8mb4), l.name, '*')) > 0
        OR INSTR(CONCAT(CHAR(30 USING utf8mb4), r.limit_key), CONCAT(CHAR(30 USING utf8mb4), l.name, CHAR(31 USING utf8mb4))) > 0)

-- fragment: needs_key
INSTR(CONCAT(CHAR(30 USING utf8mb4), a.limit_key), CONCAT(CHAR(30 USING utf8mb4), m.of_key, '*')) > 0

-- fragment: tags_of_job
(SELECT GROUP_CONCAT(t.tag ORDER BY t.tag SEPARATOR 0x1F) FROM {tag} AS t WHERE t.job_id = j.id)

-- fragment: aside
aside = state AND due_at IS NULL

-- fragment: rows_aside
{ready} AS d FORCE INDEX (ready_aside)

-- fragment: jobs_of_kind
{job} AS j FORCE INDEX (job_by_kind_and_queue)

-- fragment: rows_running
{ready} FORCE INDEX (ready_claim)

-- fragment: runs_by_id
{run} FORCE INDEX (PRIMARY)

-- fragment: flows_by_id
{flow} AS f FORCE INDEX (PRIMARY)

-- fragment: callbacks_ended
{job} AS j FORCE INDEX (job_by_flow)
            STRAIGHT_JOIN {outcome} AS o FORCE INDEX (PRIMARY) ON o.job_id = j.id

-- fragment: callbacks_live
{job} AS j FORCE INDEX (job_by_flow)
        STRAIGHT_JOIN {ready} AS r FORCE INDEX (PRIMARY) ON r.job_id = j.id

-- fragment: found_jobs
AS f
STRAIGHT_JOIN {job} AS j FORCE INDEX (PRIMARY) ON j.id = f.id
{job_state}
ORDER BY j.id DESC

-- fragment: odd_run
odd_state = state

-- fragment: odd_end
odd_state = state

-- fragment: failed
odd_state = 'failed'

-- fragment: queues_of_kind
SELECT n.name
FROM {queue} AS n
WHERE (
        SELECT TRUE
        FROM {job} AS x FORCE INDEX (job_by_kind_and_queue)
        WHERE x.kind = :kind AND x.queue = n.name
        LIMIT 1
    )
ORDER BY n.name
LIMIT :groups

-- fragment: kinds_of_queue
SELECT x.kind AS name
FROM {job} AS x FORCE INDEX (job_by_kind_and_queue)
GROUP BY x.kind
ORDER BY x.kind
LIMIT :groups

-- fragment: oldest_live
(
    SELECT job_id, kind, queue, state, queued_at
    FROM {ready} FORCE INDEX (PRIMARY)
    WHERE job_id <= :last_id
    ORDER BY job_id
    LIMIT :cap
) AS r

-- name: first_in_rank
-- verb: move
SELECT (
    SELECT r.position
    FROM {ready} AS r FORCE INDEX (ready_claim)
    WHERE r.state = 'queued' AND r.queue = :queue AND r.rank = :rank AND r.job_id <> :job_id
    ORDER BY r.position, r.job_id
    LIMIT 1
)

-- fragment: longest_before
SELECT MAX(u.duration_ms)
                    FROM {jobs_of_kind}
                    STRAIGHT_JOIN {run} AS u FORCE INDEX (run_by_job) ON u.job_id = j.id
                    WHERE j.kind = r.kind AND j.queue = r.queue AND j.id < r.job_id AND u.state = 'completed'
                        AND j.id >= COALESCE((
                            SELECT x.id
                            FROM {job} AS x FORCE INDEX (job_by_kind_and_queue)
                            WHERE x.kind = r.kind AND x.queue = r.queue AND x.id < r.job_id
                            ORDER BY x.id DESC
                            LIMIT 1 OFFSET 19
                        ), x'00')

-- name: lock_order
-- The row of the queue itself is for programs of before migration 0009.
SELECT m.name
FROM {mutex} AS m
WHERE m.name = CONCAT('order ', MOD(CRC32(:queue), 64))
FOR UPDATE;
INSERT INTO {mutex} (name)
VALUES (CONCAT('order of ', :queue))
ON DUPLICATE KEY UPDATE name = name

-- name: lock_reservations
INSERT INTO {mutex} (name)
VALUES ('reservations')
ON DUPLICATE KEY UPDATE name = name

-- name: count_in_tally
INSERT INTO {tally} ({tally_columns})
VALUES ({tally_values})
ON DUPLICATE KEY UPDATE {tally_given_sums}

-- name: lock_out_claims
-- Every claim locks this row first: one that has it has committed when this returns, and one that comes later sees what is
-- committed here, even a queue's row that is new. Whoever waits for it keeps later ones behind it, so it is not kept
-- waiting for ever by claims that overlap.
INSERT INTO {mutex} (name)
VALUES ('claims')
ON DUPLICATE KEY UPDATE name = name

-- fragment: enter
-- Before the claim itself, whose snapshot must be newer than these locks.
SELECT n.id
FROM {mutex} AS m
CROSS JOIN {node} AS n
WHERE m.name = 'claims' AND n.id = :node_id
LOCK IN SHARE MODE

-- fragment: lane_open
-- The node and the lane are locked until the claim commits, and read as they are then: a pause, a reservation or a
-- declared death that commits first is obeyed, one that comes later waits. (Only a pause that makes the row it is
-- written in, as the first ever of '*' does, can be outrun by claims under way.) A lane that somebody is pausing or
-- resuming is passed over until he commits: he may take his time.
EXISTS (SELECT 1 FROM {node} AS n WHERE n.id = :node_id AND n.stopped_at IS NULL)
    AND (SELECT COUNT(*) FROM {queue} AS q WHERE q.name IN (:queue, '*')) = (
        SELECT COUNT(*)
        FROM {queue} AS q
        WHERE q.name IN (:queue, '*') AND q.paused_at IS NULL AND q.reserved_until IS NULL
        {share_skip_locked}
    )

-- name: claim_head
-- verb: claim
-- In the order of the index: a sort would lock the whole lane. And each job by its key: a table of a few rows would
-- otherwise be read, and locked, as a whole first, and the lane sorted afterwards.
{enter};
SELECT {queued_columns}
FROM {ready} AS r FORCE INDEX (ready_claim)
STRAIGHT_JOIN {job} AS j FORCE INDEX (PRIMARY) ON j.id = r.job_id
WHERE r.state = 'queued'
    AND r.queue = :queue
    AND {not_too_suspicious}
    AND {lane_open}
ORDER BY r.rank, r.position, r.job_id
LIMIT :room
{claim_lock}

-- name: next_parked_kind
-- verb: claim
SELECT r.kind, r.kind_version
FROM {ready} AS r FORCE INDEX (ready_parked)
WHERE r.parked_in = :queue
    AND (r.kind, r.kind_version) > (:kind, :kind_version)
    AND {job_is_there}
ORDER BY r.kind, r.kind_version
LIMIT 1

-- name: claim_parked
-- verb: claim
{enter};
SELECT {claim_columns}
FROM {ready} AS r FORCE INDEX (ready_parked)
STRAIGHT_JOIN {job} AS j FORCE INDEX (PRIMARY) ON j.id = r.job_id
WHERE r.parked_in = :queue
    AND r.kind = :kind
    AND r.kind_version = :kind_version
    AND {not_too_suspicious}
    AND {lane_open}
ORDER BY r.rank, r.position, r.job_id
LIMIT :room
{claim_lock}

-- fragment: queues_with_parked
SELECT q.name
FROM {queue} AS q
WHERE {lane_free}
    AND EXISTS (SELECT 1 FROM {ready} AS r WHERE r.parked_in = q.name)
ORDER BY q.name

-- name: due_jobs
-- verb: promote
SELECT {ready_columns}
FROM {ready} FORCE INDEX (ready_aside)
WHERE aside = 'scheduled' AND due_at <= :now
ORDER BY due_at, job_id
LIMIT :room
{skip_locked}

-- fragment: ready_of_node
{ready} FORCE INDEX (ready_node)

-- fragment: next_due
SELECT 'due' AS sort, NULL AS queue, MIN(due_at) AS due, NULL AS run_id
FROM {ready}
WHERE aside = 'scheduled'

-- fragment: due_before
SELECT kind, queue, run_at, job_id
            FROM {ready}
            WHERE aside = 'scheduled' AND due_at <= :stale
            ORDER BY due_at, job_id
            LIMIT :cap

-- name: list_scheduled
{find_rows} (SELECT job_id FROM {ready} WHERE aside = 'scheduled' ORDER BY due_at, job_id LIMIT :scan) AS d
WHERE {row_fits} AND {page_of_rows}

-- name: reach_scheduled
SELECT job_id
FROM {ready}
WHERE aside = 'scheduled'
ORDER BY due_at, job_id
LIMIT 1 OFFSET :scan

-- name: count_not_queued
SELECT w.sort, w.queue, COUNT(*)
FROM (
    SELECT 'running' AS sort, r.queue
    FROM {ready} AS r
    WHERE r.state = 'running'
    UNION ALL
    SELECT 'scheduled', s.queue
    FROM (SELECT queue FROM {ready} WHERE aside = 'scheduled' ORDER BY due_at, job_id LIMIT :cap) AS s
    UNION ALL
    SELECT 'aside', a.queue
    FROM (SELECT queue FROM {ready} WHERE aside <> 'scheduled' LIMIT :cap) AS a
) AS w
GROUP BY w.sort, w.queue

-- name: count_queued
-- How many jobs of each queue may start now; no further than :cap.
SELECT
    q.name,
    CASE
        WHEN (
            SELECT 1 FROM {ready} AS r WHERE r.state = 'queued' AND r.queue = q.name LIMIT 1 OFFSET :cap
        ) IS NULL THEN (SELECT COUNT(*) FROM {ready} AS r WHERE r.state = 'queued' AND r.queue = q.name)
        ELSE :cap
    END
FROM {queue} AS q

-- name: insert_tag
-- A job has no tag twice, and ON DUPLICATE KEY UPDATE would need the right to change them.
INSERT INTO {tag} (job_id, tag)
VALUES (:job_id, :tag)

-- name: append_log
INSERT INTO {job_log} (run_id, line, job_id, at, level, message, fields)
SELECT :run_id, :line, :job_id, :at, :level, :message, :fields
FROM {run} AS u
WHERE u.id = :run_id
ON DUPLICATE KEY UPDATE job_id = {job_log}.job_id

-- name: ensure_queue
SELECT m.name
FROM {mutex} AS m
WHERE m.name = {row_of_queue} AND NOT EXISTS (SELECT 1 FROM {queue} AS q WHERE q.name = :queue)
FOR UPDATE;
INSERT INTO {queue} (name, next_position)
VALUES (:queue, 100)
ON DUPLICATE KEY UPDATE name = name

-- name: settle_idempotency_key
UPDATE {idempotency_key}
SET final_state = :final_state
WHERE key = :key AND job_id = :job_id

-- name: read_time
-- The server's wall clock, without a time zone in between: its hours may come twice.
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))

-- name: read_identity
-- Which database this is, among those of one server and its copies.
SELECT DATABASE(), v.applied_at
FROM {schema_version} AS v
ORDER BY v.revision
LIMIT 1
