-- fragment: job_view
SELECT {job_view_columns}

-- fragment: job_state
-- The live row, else the newest outcome.
LEFT JOIN {ready} AS r ON r.job_id = j.id
LEFT JOIN {outcome} AS o ON r.job_id IS NULL
    AND o.job_id = j.id
    AND o.life = (SELECT MAX(x.life) FROM {outcome} AS x WHERE x.job_id = j.id)

-- name: read_job
{job_view}
FROM {job} AS j
{job_state}
WHERE j.id = :job_id

-- name: read_job_row
SELECT {job_columns}
FROM {job}
WHERE id = :job_id
{for_update}

-- Listings. A filter can be served in several ways, each by an index of its own. `list_x` finds the ids of one page, newest
-- first, and shows those jobs; `reach_x` tells the id that comes :scan entries further on in its index, or nothing where
-- there are no more. `store/read.py` lists no further than that at a time, so no statement reads more, whatever is asked
-- for. What all `list_x` have in common stands around that which differs: `find_jobs … page_of_jobs` for jobs found in
-- their own table, `find_rows … page_of_rows` for those found in another one, d, and `find_runs … page_of_runs`.

-- Conditions on other tables are scalar subqueries, not joins or EXISTS: of those PostgreSQL makes joins as it sees fit,
-- and with a wrong guess of how many rows there are it would read one of the tables from its beginning to its end.

-- fragment: row_filter
-- What the job's own row settles. With types, which PostgreSQL must know of a parameter where it first sees it.
(CAST(:queue AS {text}) IS NULL OR j.queue = :queue)
    AND (CAST(:kind AS {text}) IS NULL OR j.kind = :kind)
    AND (CAST(:owner AS {text}) IS NULL OR j.owner = :owner)
    AND (CAST(:business_key AS {text}) IS NULL OR j.business_key = :business_key)
    AND (CAST(:idempotency_key AS {text}) IS NULL OR j.idempotency_key = :idempotency_key)
    AND (
        CAST(:tag AS {text}) IS NULL
        OR COALESCE((SELECT TRUE FROM {tag} AS t WHERE t.job_id = j.id AND t.tag = :tag), FALSE)
    )

-- fragment: row_fits
COALESCE((SELECT TRUE FROM {job} AS j WHERE j.id = d.job_id AND {row_filter}), FALSE)

-- fragment: job_filter
{row_filter}
    AND (
        CAST(:state AS {text}) IS NULL
        OR :state = COALESCE(
            (SELECT r.state FROM {ready} AS r WHERE r.job_id = j.id),
            (SELECT o.state FROM {outcome} AS o WHERE o.job_id = j.id ORDER BY o.life DESC LIMIT 1)
        )
    )

-- fragment: job_fits
COALESCE((SELECT TRUE FROM {job} AS j WHERE j.id = d.job_id AND {job_filter}), FALSE)

-- fragment: still_ended
-- A job that was retried since is live again, or has ended another time.
COALESCE(
    (SELECT FALSE FROM {ready} AS r WHERE r.job_id = d.job_id),
    (SELECT MAX(x.life) FROM {outcome} AS x WHERE x.job_id = d.job_id) = d.life
)

-- fragment: find_jobs
{job_view}
FROM (
    SELECT j.id
    FROM

-- fragment: page_of_jobs
        j.id < :below AND j.id >= :from_id
        AND {job_filter}
    ORDER BY j.id DESC
    LIMIT :page
) {found_jobs}

-- fragment: find_rows
{job_view}
FROM (
    SELECT d.job_id AS id
    FROM

-- fragment: page_of_rows
        d.job_id < :below AND d.job_id >= :from_id
    ORDER BY d.job_id DESC
    LIMIT :page
) {found_jobs}

-- fragment: found_jobs
AS f
JOIN {job} AS j ON j.id = f.id
{job_state}
ORDER BY j.id DESC

-- fragment: reach
id < :below AND id >= :from_id
ORDER BY id DESC
LIMIT 1 OFFSET :scan

-- fragment: reach_of_rows
job_id < :below AND job_id >= :from_id
ORDER BY job_id DESC
LIMIT 1 OFFSET :scan

-- name: list_all
{find_jobs} {job} AS j
WHERE {page_of_jobs}

-- name: reach_all
SELECT id FROM {job} WHERE {reach}

-- fragment: jobs_of_kind
{job} AS j

-- name: list_by_kind_and_queue
{find_jobs} {jobs_of_kind}
WHERE j.kind = :kind AND j.queue = :queue AND {page_of_jobs}

-- name: reach_by_kind_and_queue
SELECT j.id FROM {jobs_of_kind} WHERE j.kind = :kind AND j.queue = :queue AND {reach}

-- fragment: queues_of_kind
-- From one queue to the next in the index, without reading the jobs between them.
WITH RECURSIVE g (name, number) AS (
    SELECT MIN(x.queue), 1 FROM {job} AS x WHERE x.kind = :kind
    UNION ALL
    SELECT (SELECT MIN(x.queue) FROM {job} AS x WHERE x.kind = :kind AND x.queue > g.name), g.number + 1
    FROM g
    WHERE g.name IS NOT NULL AND g.number < :groups
)
SELECT g.name
FROM g
WHERE g.name IS NOT NULL

-- name: queues_of_kind
SELECT q.name
FROM ({queues_of_kind}) AS q

-- name: list_by_kind
{find_jobs} ({queues_of_kind}) AS q
CROSS JOIN {jobs_of_kind}
WHERE j.kind = :kind AND j.queue = q.name AND {page_of_jobs}

-- name: reach_by_kind
-- The newest of the ids that each queue reaches: so far all of them are read.
SELECT e.id
FROM (
    SELECT (
        SELECT j.id
        FROM {jobs_of_kind}
        WHERE j.kind = :kind AND j.queue = q.name AND {reach}
    ) AS id
    FROM ({queues_of_kind}) AS q
) AS e
WHERE e.id IS NOT NULL
ORDER BY e.id DESC
LIMIT 1

-- fragment: kinds_of_queue
WITH RECURSIVE g (name, number) AS (
    SELECT MIN(x.kind), 1 FROM {job} AS x
    UNION ALL
    SELECT (SELECT MIN(x.kind) FROM {job} AS x WHERE x.kind > g.name), g.number + 1
    FROM g
    WHERE g.name IS NOT NULL AND g.number < :groups
)
SELECT g.name
FROM g
WHERE g.name IS NOT NULL

-- name: kinds_of_queue
SELECT k.name
FROM ({kinds_of_queue}) AS k

-- name: list_by_queue
{find_jobs} ({kinds_of_queue}) AS k
CROSS JOIN {jobs_of_kind}
WHERE j.kind = k.name AND j.queue = :queue AND {page_of_jobs}

-- name: reach_by_queue
SELECT e.id
FROM (
    SELECT (
        SELECT j.id
        FROM {jobs_of_kind}
        WHERE j.kind = k.name AND j.queue = :queue AND {reach}
    ) AS id
    FROM ({kinds_of_queue}) AS k
) AS e
WHERE e.id IS NOT NULL
ORDER BY e.id DESC
LIMIT 1

-- name: list_by_tag
{find_rows} {tag} AS d
WHERE d.tag = :tag AND {job_fits} AND {page_of_rows}

-- name: reach_by_tag
SELECT job_id FROM {tag} WHERE tag = :tag AND {reach_of_rows}

-- name: list_by_business_key
{find_jobs} {job} AS j
WHERE j.business_key = :business_key AND {page_of_jobs}

-- name: reach_by_business_key
SELECT id FROM {job} WHERE business_key = :business_key AND {reach}

-- name: list_by_idempotency_key
{find_jobs} {job} AS j
WHERE j.idempotency_key = :idempotency_key AND {page_of_jobs}

-- name: reach_by_idempotency_key
SELECT id FROM {job} WHERE idempotency_key = :idempotency_key AND {reach}

-- name: list_live
{find_rows} {ready} AS d
WHERE d.state = :state AND {row_fits} AND {page_of_rows}

-- name: reach_live
SELECT job_id FROM {ready} WHERE {reach_of_rows}

-- The states few jobs are in have an index of their own, and so have the rarer ends of runs and jobs.

-- fragment: aside
state <> 'queued' AND state <> 'running' AND state <> 'scheduled'

-- fragment: odd_run
state <> 'running' AND state <> 'completed'

-- fragment: odd_end
state <> 'completed'

-- fragment: failed
state = 'failed'

-- fragment: rows_aside
{ready} AS d

-- fragment: rows_running
{ready}

-- name: list_aside
{find_rows} {rows_aside}
WHERE d.state = :state
    AND {aside}
    AND {row_fits} AND {page_of_rows}

-- name: reach_aside
SELECT job_id
FROM {rows_aside}
WHERE state = :state
    AND {aside}
    AND {reach_of_rows}

-- name: list_ended
-- Ended other than by success.
{find_rows} {outcome} AS d
WHERE d.state = :state AND {odd_end} AND {still_ended} AND {row_fits} AND {page_of_rows}

-- name: reach_ended
SELECT job_id FROM {outcome} WHERE state = :state AND {odd_end} AND {reach_of_rows}

-- name: list_completed
-- Most outcomes are of this sort, and none has to be skipped that is still waiting.
{find_rows} {outcome} AS d
WHERE d.state = 'completed' AND {still_ended} AND {row_fits} AND {page_of_rows}

-- name: reach_completed
SELECT job_id FROM {outcome} WHERE {reach_of_rows}

-- The indexes of the next three are not in the order of ids. They are used if they hold no more than :scan entries: all
-- are read, and sorted.

-- name: list_queued
{find_rows} (
    SELECT job_id FROM {ready} WHERE state = 'queued' ORDER BY queue, rank, position, job_id LIMIT :scan
) AS d
WHERE {row_fits} AND {page_of_rows}

-- name: reach_queued
SELECT job_id
FROM {ready}
WHERE state = 'queued'
ORDER BY queue, rank, position, job_id
LIMIT 1 OFFSET :scan

-- name: list_scheduled
{find_rows} (SELECT job_id FROM {ready} WHERE state = 'scheduled' ORDER BY run_at, job_id LIMIT :scan) AS d
WHERE {row_fits} AND {page_of_rows}

-- name: reach_scheduled
SELECT job_id
FROM {ready}
WHERE state = 'scheduled'
ORDER BY run_at, job_id
LIMIT 1 OFFSET :scan

-- name: list_running
{find_rows} (SELECT job_id FROM {rows_running} WHERE state = 'running' ORDER BY node_id, claimed_at LIMIT :scan) AS d
WHERE {row_fits} AND {page_of_rows}

-- name: reach_running
SELECT job_id
FROM {rows_running}
WHERE state = 'running'
ORDER BY node_id, claimed_at
LIMIT 1 OFFSET :scan

-- name: list_queue
-- verb: claim
-- One queue in the order in which its jobs will start.
{job_view}
FROM (
    SELECT d.job_id AS id, d.rank, d.position
    FROM {ready} AS d
    WHERE d.queue = :queue AND d.state = 'queued'
        AND (d.rank, d.position, d.job_id) > (:rank, :position, :after)
        AND (d.rank, d.position, d.job_id) <= (:to_rank, :to_position, :to_id)
        AND d.job_id < :below AND d.job_id >= :from_id
        AND {row_fits}
    ORDER BY d.rank, d.position, d.job_id
    LIMIT :page
) AS f
JOIN {job} AS j ON j.id = f.id
{job_state}
ORDER BY f.rank, f.position, f.id

-- name: reach_queue
SELECT rank, position, job_id
FROM {ready}
WHERE queue = :queue AND state = 'queued' AND (rank, position, job_id) > (:rank, :position, :after)
ORDER BY rank, position, job_id
LIMIT 1 OFFSET :scan

-- fragment: run_view
SELECT
    u.id, u.job_id, u.state, u.node_id, u.attempt, u.life, u.started_at, u.finished_at, u.wait_ms, u.duration_ms,
    u.exit_code, u.error_type, u.error_message, u.traceback, u.artifacts, u.log_path, u.metrics, j.kind

-- fragment: find_runs
{run_view}
FROM (
    SELECT u.id
    FROM

-- fragment: page_of_runs
        u.id < :below AND u.id >= :from_id
        AND (CAST(:state AS {text}) IS NULL OR u.state = :state)
        AND COALESCE(
            (
                SELECT (CAST(:kind AS {text}) IS NULL OR j.kind = :kind) AND (CAST(:owner AS {text}) IS NULL OR j.owner = :owner)
                FROM {job} AS j
                WHERE j.id = u.job_id
            ),
            FALSE
        )
    ORDER BY u.id DESC
    LIMIT :page
) AS f
JOIN {run} AS u ON u.id = f.id
JOIN {job} AS j ON j.id = u.job_id
ORDER BY u.id DESC

-- name: list_runs
{find_runs} {run} AS u
WHERE {page_of_runs}

-- name: reach_runs
SELECT id FROM {run} WHERE {reach}

-- name: list_runs_of_job
{find_runs} {run} AS u
WHERE u.job_id = :job_id AND {page_of_runs}

-- name: reach_runs_of_job
SELECT id FROM {run} WHERE job_id = :job_id AND {reach}

-- name: list_runs_by_state
-- Runs that neither run nor completed are few, and have an index of their own.
{find_runs} {run} AS u
WHERE u.state = :state AND {odd_run} AND {page_of_runs}

-- name: reach_runs_by_state
SELECT id FROM {run} WHERE state = :state AND {odd_run} AND {reach}

-- name: list_runs_running
-- Those that hold their job; used if not more than :scan jobs run.
{find_runs} (SELECT run_id FROM {rows_running} WHERE state = 'running' ORDER BY node_id, claimed_at LIMIT :scan) AS d
CROSS JOIN {run} AS u
WHERE u.id = d.run_id AND {page_of_runs}

-- name: list_runs_of_kind
-- Used if neither the jobs of the kind nor their runs are more than :scan.
{find_runs} (SELECT id FROM {job} WHERE kind = :kind ORDER BY kind, queue, id LIMIT :scan) AS d
CROSS JOIN {run} AS u
WHERE u.job_id = d.id AND {page_of_runs}

-- name: reach_jobs_of_kind
SELECT id
FROM {job}
WHERE kind = :kind
ORDER BY kind, queue, id
LIMIT 1 OFFSET :scan

-- name: reach_runs_of_kind
SELECT u.id
FROM (SELECT id FROM {job} WHERE kind = :kind ORDER BY kind, queue, id LIMIT :scan) AS d
CROSS JOIN {run} AS u
WHERE u.job_id = d.id
LIMIT 1 OFFSET :scan

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
SELECT name, paused_at, concurrency, reserved_until
FROM {queue}
ORDER BY name

-- name: count_not_queued
-- What else each queue has: jobs that run, which are few, and of those that are due later, and of those set aside, the
-- first :cap.
SELECT w.sort, w.queue, COUNT(*)
FROM (
    SELECT 'running' AS sort, r.queue
    FROM {ready} AS r
    WHERE r.state = 'running'
    UNION ALL
    SELECT 'scheduled', s.queue
    FROM (SELECT queue FROM {ready} WHERE state = 'scheduled' ORDER BY run_at, job_id LIMIT :cap) AS s
    UNION ALL
    SELECT 'aside', a.queue
    FROM (
        SELECT queue
        FROM {ready}
        WHERE {aside}
        ORDER BY state, job_id
        LIMIT :cap
    ) AS a
) AS w
GROUP BY w.sort, w.queue

-- name: count_ahead
-- verb: claim
-- How many jobs of the queue start before this one; no further than :cap.
SELECT COUNT(*)
FROM (
    SELECT 1 AS one
    FROM {ready}
    WHERE queue = :queue AND state = 'queued' AND (rank, position, job_id) < (:rank, :position, :job_id)
    LIMIT :cap
) AS a

-- name: list_waited_for
-- What this job waits for, or waited for; what it still waits for comes first.
SELECT depends_on, job_id, needs, state
FROM {edge}
WHERE job_id = :job_id
ORDER BY CASE state WHEN 'waiting' THEN 0 ELSE 1 END, depends_on
LIMIT :page
