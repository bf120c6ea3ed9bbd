-- What is going on: one statement per question. None of them reads a whole table: each takes the newest (or oldest)
-- :cap rows of an index and what belongs to them, so it costs the same with a million jobs as with a hundred thousand.
-- Pairs of COUNT and ROW_NUMBER instead of GROUP BY where an example is wanted: PostgreSQL has no MAX of a uuid.
-- A list of `state <> …` is the condition of a partial index: SQLite uses one only if it is there word for word.

-- fragment: runs_by_id
{run}

-- name: read_queue_holds
-- A queue and the row that stands for all of them, which comes last.
SELECT q.name, q.paused_at, q.reserved_until, v.reserved_by, v.reserved_at, q.concurrency,
    CASE
        WHEN q.concurrency IS NULL THEN 0
        ELSE (
            SELECT COUNT(*)
            FROM {ready} AS r
            WHERE r.state = 'running' AND (q.name = '*' OR r.queue = q.name)
        )
    END
FROM {queue} AS q
LEFT JOIN {reservation} AS v ON v.queue = q.name AND v.status = 'active'
WHERE q.name IN (:queue, '*')
ORDER BY CASE WHEN q.name = '*' THEN 1 ELSE 0 END

-- fragment: oldest_live
{ready} AS r
WHERE r.job_id < COALESCE((SELECT x.job_id FROM {ready} AS x ORDER BY x.job_id LIMIT 1 OFFSET :cap), :last_id)

-- name: ask_outstanding
-- 1. What is outstanding? The oldest :cap live jobs: those before the first that is too many. (With a LIMIT inside FROM
-- it takes SQLite half as long again.)
SELECT r.kind, r.queue, r.state, COUNT(*), MIN(r.queued_at)
FROM {oldest_live}
GROUP BY r.kind, r.queue, r.state
ORDER BY r.kind, r.queue, r.state

-- name: ask_failures
-- 2. What failed, and why? Of the last :cap lives that failed since :since those that are still the end of their job.
SELECT f.kind, f.error_type, f.number, f.finished_at, f.job_id, f.error
FROM (
    SELECT
        j.kind, o.error_type, o.finished_at, o.job_id, o.error,
        COUNT(*) OVER (PARTITION BY j.kind, o.error_type) AS number,
        ROW_NUMBER() OVER (PARTITION BY j.kind, o.error_type ORDER BY o.finished_at DESC, o.job_id DESC) AS place
    FROM (
        SELECT job_id, life, finished_at, error_type, error, successor
        FROM {outcome}
        WHERE {failed} AND finished_at >= :since
        ORDER BY finished_at DESC, job_id DESC
        LIMIT :cap
    ) AS o
    JOIN {job} AS j ON j.id = o.job_id
    WHERE o.successor IS NULL
        AND NOT EXISTS (SELECT 1 FROM {ready} AS r WHERE r.job_id = o.job_id)
        AND NOT EXISTS (SELECT 1 FROM {outcome} AS x WHERE x.job_id = o.job_id AND x.life > o.life)
) AS f
WHERE f.place = 1
ORDER BY f.number DESC, f.finished_at DESC, f.job_id DESC

-- name: count_failed
-- Whether ask_failures saw them all.
SELECT COUNT(*)
FROM (SELECT 1 AS one FROM {outcome} WHERE {failed} AND finished_at >= :since LIMIT :cap) AS o

-- fragment: silent
-- Nothing was heard of the node since before :stale, nor for its lease.
(n.beat_at <= :stale AND n.beat_at <= :now - COALESCE(n.lease_us, :usual_lease))

-- fragment: due_before
SELECT kind, queue, run_at, job_id
            FROM {ready}
            WHERE state = 'scheduled' AND run_at <= :stale
            ORDER BY run_at, job_id
            LIMIT :cap

-- name: ask_stuck
-- 3. What is stuck? Running jobs whose node has stopped or is silent, that are past their time-out, or that run since
-- before :stale and three times as long as any of the twenty jobs of their kind and queue before them took, or with none
-- to compare; parked ones; ones that were due before :stale and nobody queued; and queues whose first job waits
-- since before :stale while none of theirs runs on a node that beats, and no run that began after :from_id was theirs.
-- With :cap such runs or more that is not known, and no queue is said to wait.
SELECT s.reason, s.kind, s.queue, s.number, s.since, s.job_id
FROM (
    SELECT
        w.reason, w.kind, w.queue, w.since, w.job_id,
        COUNT(*) OVER (PARTITION BY w.reason, w.kind, w.queue) AS number,
        ROW_NUMBER() OVER (PARTITION BY w.reason, w.kind, w.queue ORDER BY w.since, w.job_id) AS place
    FROM (
        SELECT
            CASE
                WHEN n.id IS NULL OR n.stopped_at IS NOT NULL THEN 'lost'
                WHEN {silent} THEN 'silent'
                WHEN r.claimed_at + r.timeout_ms * 1000 <= :now THEN 'overtime'
                WHEN r.timeout_ms IS NOT NULL OR r.claimed_at > :stale THEN NULL
                ELSE CASE :now - r.claimed_at > 3000 * (
                    {longest_before}
                ) WHEN TRUE THEN 'slow' WHEN FALSE THEN NULL ELSE 'long' END
            END AS reason,
            r.kind, r.queue, r.claimed_at AS since, r.job_id
        FROM {ready} AS r
        LEFT JOIN {node} AS n ON n.id = r.node_id
        WHERE r.state = 'running'
        UNION ALL
        SELECT 'parked', p.kind, p.queue, p.updated_at, p.job_id
        FROM (
            SELECT kind, queue, updated_at, job_id
            FROM {ready}
            WHERE state = 'parked' AND {aside}
            ORDER BY job_id
            LIMIT :cap
        ) AS p
        UNION ALL
        SELECT 'due', d.kind, d.queue, d.run_at, d.job_id
        FROM (
            {due_before}
        ) AS d
        UNION ALL
        SELECT
            CASE
                WHEN EXISTS (
                    SELECT 1 FROM {queue} AS c WHERE c.name IN (q.name, '*') AND c.paused_at IS NOT NULL
                ) THEN 'paused'
                WHEN NOT EXISTS (
                    SELECT 1 FROM {queue} AS c WHERE c.name IN (q.name, '*') AND c.reserved_until IS NOT NULL
                ) AND NOT EXISTS (
                    SELECT 1
                    FROM {ready} AS r
                    JOIN {node} AS n ON n.id = r.node_id
                    WHERE r.state = 'running' AND r.queue = q.name AND n.stopped_at IS NULL AND NOT {silent}
                ) AND (
                    SELECT COUNT(*) FROM (
                        SELECT 1 AS one FROM {runs_by_id} WHERE id >= :from_id ORDER BY id LIMIT :cap
                    ) AS begun
                ) < :cap THEN 'waiting'
            END,
            h.kind, h.queue, h.updated_at, h.job_id
        FROM {queue} AS q
        JOIN {ready} AS h ON h.job_id = (
            SELECT r.job_id
            FROM {ready} AS r
            WHERE r.queue = q.name AND r.state = 'queued'
            ORDER BY r.rank, r.position, r.job_id
            LIMIT 1
        )
        WHERE h.updated_at <= :stale
            AND q.name NOT IN (
                SELECT j.queue
                FROM (SELECT job_id FROM {runs_by_id} WHERE id >= :from_id ORDER BY id DESC LIMIT :cap) AS u
                JOIN {job} AS j ON j.id = u.job_id
            )
    ) AS w
    WHERE w.reason IS NOT NULL
) AS s
WHERE s.place = 1
ORDER BY s.reason, s.number DESC, s.since, s.job_id

-- name: ask_durations
-- 4. How long do jobs take? Of the newest :cap runs since :from_id those that completed; the nearest-rank percentiles:
-- the place that times 100 is the next multiple of 100. Without a division, since not every database has one of integers.
SELECT
    t.kind, MAX(t.number),
    MAX(CASE WHEN t.by_duration * 100 BETWEEN t.number * 50 AND t.number * 50 + 99 THEN t.duration_ms END),
    MAX(CASE WHEN t.by_duration * 100 BETWEEN t.number * 95 AND t.number * 95 + 99 THEN t.duration_ms END),
    MAX(CASE WHEN t.by_duration * 100 BETWEEN t.number * 99 AND t.number * 99 + 99 THEN t.duration_ms END),
    MAX(CASE WHEN t.by_wait * 100 BETWEEN t.number * 50 AND t.number * 50 + 99 THEN t.wait_ms END),
    MAX(CASE WHEN t.by_wait * 100 BETWEEN t.number * 95 AND t.number * 95 + 99 THEN t.wait_ms END),
    MAX(CASE WHEN t.by_wait * 100 BETWEEN t.number * 99 AND t.number * 99 + 99 THEN t.wait_ms END)
FROM (
    SELECT
        j.kind, u.duration_ms, u.wait_ms,
        COUNT(*) OVER (PARTITION BY j.kind) AS number,
        ROW_NUMBER() OVER (PARTITION BY j.kind ORDER BY u.duration_ms) AS by_duration,
        ROW_NUMBER() OVER (PARTITION BY j.kind ORDER BY u.wait_ms) AS by_wait
    FROM (
        SELECT job_id, state, duration_ms, wait_ms FROM {runs_by_id} WHERE id >= :from_id ORDER BY id DESC LIMIT :cap
    ) AS u
    JOIN {job} AS j ON j.id = u.job_id
    WHERE u.state = 'completed' AND u.duration_ms IS NOT NULL
) AS t
GROUP BY t.kind
ORDER BY t.kind

-- name: ask_duplicates
-- 5. Are there duplicates? Of the newest :cap jobs since :from_id those that share kind and key, without retries and
-- jobs that another one took the place of; and jobs that began again after the node of a run died, which may have done
-- their work twice.
SELECT d.sort, d.kind, d.value, d.number, d.job_id
FROM (
    SELECT
        k.sort, k.kind, k.value, k.job_id,
        COUNT(*) OVER (PARTITION BY k.sort, k.kind, k.value) AS number,
        ROW_NUMBER() OVER (PARTITION BY k.sort, k.kind, k.value ORDER BY k.job_id DESC) AS place
    FROM (
        WITH newest AS (
            SELECT id, kind, business_key, idempotency_key, retry_of, auto_retry_of
            FROM {job}
            WHERE id >= :from_id
            ORDER BY id DESC
            LIMIT :cap
        ),
        own AS (
            SELECT id, kind, business_key, idempotency_key
            FROM newest
            WHERE (business_key IS NOT NULL OR idempotency_key IS NOT NULL)
                AND retry_of IS NULL
                AND auto_retry_of IS NULL
                AND NOT EXISTS (SELECT 1 FROM {ready} AS r WHERE r.job_id = newest.id AND r.superseded_by IS NOT NULL)
                AND NOT EXISTS (SELECT 1 FROM {outcome} AS o WHERE o.job_id = newest.id AND o.superseded_by IS NOT NULL)
        )
        SELECT 'business_key' AS sort, kind, business_key AS value, id AS job_id
        FROM own
        WHERE business_key IS NOT NULL
        UNION ALL
        SELECT 'idempotency_key', kind, idempotency_key, id
        FROM own
        WHERE idempotency_key IS NOT NULL
        UNION ALL
        SELECT 'begun_again', j.kind, NULL, u.job_id
        FROM (
            SELECT id, job_id
            FROM {run}
            WHERE state = 'lost' AND {odd_run} AND id >= :from_id
            ORDER BY id DESC
            LIMIT :cap
        ) AS u
        JOIN {job} AS j ON j.id = u.job_id
        WHERE EXISTS (SELECT 1 FROM {run} AS v WHERE v.job_id = u.job_id AND v.id > u.id)
    ) AS k
) AS d
WHERE d.place = 1 AND (d.number > 1 OR d.sort = 'begun_again')
ORDER BY d.number DESC, d.job_id DESC
LIMIT :page

-- name: ask_ran
-- 6. What ran in the last hour? The newest :cap runs that began since :from_id, by how they stand. `failed` is for good:
-- the last run of a life that ended so.
SELECT
    e.kind, COUNT(*),
    SUM(CASE WHEN e.state = 'running' THEN 1 ELSE 0 END),
    SUM(CASE WHEN e.state = 'completed' THEN 1 ELSE 0 END),
    SUM(e.for_good),
    SUM(CASE WHEN e.for_good = 0 AND e.state IN ('failed', 'timed_out') THEN 1 ELSE 0 END),
    SUM(CASE WHEN e.for_good = 0 AND e.state = 'lost' THEN 1 ELSE 0 END),
    SUM(CASE WHEN e.for_good = 0 AND e.state IN ('cancelled', 'skipped', 'released') THEN 1 ELSE 0 END)
FROM (
    SELECT
        j.kind, u.state,
        CASE
            WHEN u.state IN ('failed', 'timed_out', 'lost', 'released')
                AND EXISTS (
                    SELECT 1
                    FROM {outcome} AS o
                    WHERE o.job_id = u.job_id AND o.life = u.life AND o.state = 'failed' AND o.successor IS NULL
                )
                AND NOT EXISTS (
                    SELECT 1 FROM {run} AS v WHERE v.job_id = u.job_id AND v.id > u.id AND v.life = u.life
                )
            THEN 1
            ELSE 0
        END AS for_good
    FROM (SELECT id, job_id, life, state FROM {runs_by_id} WHERE id >= :from_id ORDER BY id DESC LIMIT :cap) AS u
    JOIN {job} AS j ON j.id = u.job_id
) AS e
GROUP BY e.kind
ORDER BY e.kind

-- name: read_hindrances
-- What keeps a server from removing dead rows. A dialect may know more.
SELECT '', '', :long_s, :most_dead
FROM {schema_version}
WHERE 1 = 0
