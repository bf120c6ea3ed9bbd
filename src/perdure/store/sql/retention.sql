-- What is removed when it is old enough: see `store/retention.py`. Jobs go in groups: {these} are as many ids as a group
-- may have; a smaller group repeats one of its ids.

-- name: list_ends
-- The next ends by job and life; also those of jobs that live again, which the caller leaves out.
-- An end without its job is counted, so that a page is not taken for the last one.
SELECT
    e.job_id, e.life, e.state, e.finished_at, e.successor,
    COALESCE((SELECT j.kind FROM {job} AS j WHERE j.id = e.job_id), ''),
    (SELECT r.state FROM {ready} AS r WHERE r.job_id = e.job_id),
    (SELECT j.flow_id FROM {job} AS j WHERE j.id = e.job_id)
FROM (
    SELECT job_id, life, state, finished_at, successor
    FROM {outcome}
    WHERE (job_id, life) > (:after_id, :after_life) AND job_id < :below
    ORDER BY job_id, life
    LIMIT :page
) AS e
ORDER BY e.job_id, e.life

-- name: lock_these_jobs
-- Before looking at them again: nobody revives or deletes them until we commit. Whoever does so just now is left alone.
SELECT id
FROM {job}
WHERE id IN ({these})
ORDER BY id
{skip_locked}

-- name: known_jobs
SELECT id
FROM {job}
WHERE id IN ({these})

-- name: these_ended
-- Those that have ended, as they are now: the newest life.
SELECT j.id, o.life, o.state, j.idempotency_key, j.flow_id
FROM {job} AS j
{job_state}
WHERE j.id IN ({these}) AND r.job_id IS NULL AND o.job_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM {flow} AS f WHERE f.id = j.flow_id AND f.finished_at IS NULL)

-- fragment: flows_by_id
{flow} AS f

-- fragment: callbacks_ended
{job} AS j
            JOIN {outcome} AS o ON o.job_id = j.id

-- fragment: callbacks_live
{job} AS j
        JOIN {ready} AS r ON r.job_id = j.id

-- name: old_flows
-- Those inside others go with them. Whoever waited for the end of one is a part of it, and has to have ended too.
SELECT
    f.id,
    CASE
        WHEN EXISTS (
            SELECT 1
            FROM {callbacks_ended}
            WHERE j.flow_id = f.id AND j.sequence IS NULL AND o.state = 'failed'
        ) THEN 'failed'
        ELSE f.state
    END,
    f.finished_at
FROM {flows_by_id}
WHERE f.id > :after AND f.finished_at < :before AND f.parent_id IS NULL
    AND (
        SELECT 1
        FROM {callbacks_live}
        WHERE j.flow_id = f.id AND j.sequence IS NULL
        LIMIT 1
    ) IS NULL
ORDER BY f.id
LIMIT :page

-- name: flow_ends
SELECT j.id, o.life, o.state, o.finished_at, o.successor, j.kind, NULL, j.flow_id
FROM {job} AS j
JOIN {outcome} AS o ON o.job_id = j.id
WHERE j.flow_id = :flow_id
    AND o.life = (SELECT MAX(x.life) FROM {outcome} AS x WHERE x.job_id = j.id)
ORDER BY j.sequence, j.id
LIMIT :page

-- name: delete_flow
DELETE FROM {flow}
WHERE id = :id AND finished_at IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM {job} AS j WHERE j.flow_id = :id)

-- name: remove_waits_of_flow
DELETE FROM {edge}
WHERE depends_on = :id

-- name: these_jobs
-- The same with all that is shown of a job.
{job_view}
FROM {job} AS j
{job_state}
WHERE j.id IN ({these}) AND r.job_id IS NULL AND o.job_id IS NOT NULL
ORDER BY j.id

-- name: these_runs
{run_view}
FROM {run} AS u
JOIN {job} AS j ON j.id = u.job_id
WHERE u.job_id IN ({these})
ORDER BY u.job_id, u.id

-- name: these_outcomes
SELECT {outcome_columns}
FROM {outcome}
WHERE job_id IN ({these})
ORDER BY job_id, life

-- name: these_logs
SELECT run_id, line, job_id, at, level, message, fields
FROM {job_log}
WHERE job_id IN ({these})
ORDER BY job_id, run_id, line

-- name: remove_logs
DELETE FROM {job_log}
WHERE job_id IN ({these})

-- name: remove_runs
DELETE FROM {run}
WHERE job_id IN ({these})

-- name: remove_outcomes
DELETE FROM {outcome}
WHERE job_id IN ({these})

-- name: remove_tags
DELETE FROM {tag}
WHERE job_id IN ({these})

-- name: remove_waits
DELETE FROM {edge}
WHERE job_id IN ({these})

-- name: remove_slots
DELETE FROM {slot}
WHERE job_id IN ({these})

-- name: remove_jobs
DELETE FROM {job}
WHERE id IN ({these})

-- name: old_logs
-- The oldest lines: ids of runs rise with time, and a run that began before :below may have logged after :before.
SELECT run_id, line
FROM {job_log}
WHERE run_id < :below AND at < :before
ORDER BY run_id, line
LIMIT :page

-- name: delete_old_logs
DELETE FROM {job_log}
WHERE run_id = :run_id AND line <= :line AND at < :before

-- name: old_nodes
SELECT n.id, n.started_at, n.stopped_at
FROM {node} AS n
WHERE n.id > :after AND n.stopped_at < :before
    AND NOT EXISTS (SELECT 1 FROM {ready} AS r WHERE r.node_id = n.id AND r.state = 'running')
    AND NOT EXISTS (SELECT 1 FROM {declaration} AS d WHERE d.node_id = n.id)
ORDER BY n.id
LIMIT :page

-- name: nodes_of_runs
-- Which nodes began the first :scan runs of a time.
SELECT node_id
FROM {run}
WHERE id >= :from_id AND id < :below
ORDER BY id
LIMIT :scan

-- name: delete_node
DELETE FROM {node}
WHERE id = :node_id

-- name: old_reservations
SELECT id
FROM {reservation}
WHERE status <> 'active' AND closed_at < :before
LIMIT :page

-- name: delete_reservation
DELETE FROM {reservation}
WHERE id = :id

-- name: old_missed
SELECT schedule_id, first_at, recorded_at
FROM {missed}
WHERE recorded_at < :before
LIMIT :page

-- name: delete_missed
DELETE FROM {missed}
WHERE (schedule_id, first_at, recorded_at) = (:schedule_id, :first_at, :recorded_at)

-- name: old_slots
-- Of the built-in work, which makes no jobs. The slot of a job goes with the job. CROSS JOIN: SQLite would read all slots.
SELECT x.schedule_id, x.scheduled_for
FROM {schedule} AS s
CROSS JOIN {slot} AS x
WHERE s.source = 'builtin' AND x.schedule_id = s.id AND x.scheduled_for < :before AND x.job_id IS NULL
ORDER BY s.id, x.scheduled_for
LIMIT :page

-- name: delete_old_slots
DELETE FROM {slot}
WHERE schedule_id = :schedule_id AND scheduled_for <= :scheduled_for AND job_id IS NULL

-- name: old_locks
SELECT name
FROM {lock}
WHERE expires_at < :before
LIMIT :page

-- name: delete_old_lock
DELETE FROM {lock}
WHERE name = :name AND expires_at < :before

-- name: unused_keys
-- Keys of limits that nobody has set, whose rate was last spent before then, and that nothing holds or waits for. A row
-- that is locked is in use; whoever wants a key whose row has gone makes it again.
SELECT k.key
FROM {limit_key} AS k
WHERE k.set_most IS NULL
    AND k.paused_at IS NULL
    AND k.opens_at IS NULL
    AND (k.since_at IS NULL OR k.since_at < :before)
    AND NOT EXISTS (SELECT 1 FROM {permit} AS p WHERE p.key = k.key)
    AND ({first_queue}) IS NULL
LIMIT :page
{skip_locked}

-- name: insert_archived
INSERT INTO {archive} ({archive_columns})
VALUES ({archive_values})

-- name: remove_archived
DELETE FROM {archive}
WHERE job_id IN ({these})

-- name: read_archived
SELECT {archive_columns}
FROM {archive}
WHERE job_id = :job_id

-- name: list_archived
SELECT {archive_columns}
FROM {archive}
WHERE job_id < :below
ORDER BY job_id DESC
LIMIT :page

-- name: count_pages
-- Nothing, where the database itself gives space back.
SELECT next_position
FROM {queue}
WHERE 1 = 0

-- name: free_page
SELECT next_position
FROM {queue}
WHERE 1 = 0
