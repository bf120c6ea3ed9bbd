-- fragment: shown
-- Every check answers (example, how many there are in all, what a repair needs…), a few rows of it.
ORDER BY 1
LIMIT :examples

-- name: job_without_state
SELECT j.id, COUNT(*) OVER ()
FROM {job} AS j
WHERE NOT EXISTS (SELECT 1 FROM {ready} AS r WHERE r.job_id = j.id)
    AND NOT EXISTS (SELECT 1 FROM {outcome} AS o WHERE o.job_id = j.id)
{shown}

-- name: live_without_job
SELECT r.job_id, COUNT(*) OVER ()
FROM {ready} AS r
WHERE NOT EXISTS (SELECT 1 FROM {job} AS j WHERE j.id = r.job_id)
{shown}

-- name: ended_and_live
SELECT r.job_id, COUNT(*) OVER ()
FROM {ready} AS r
WHERE EXISTS (SELECT 1 FROM {outcome} AS o WHERE o.job_id = r.job_id AND o.life >= r.life)
{shown}

-- name: life_missing
SELECT job_id, COUNT(*) OVER ()
FROM (
    SELECT job_id, life FROM {ready}
    UNION
    SELECT job_id, life FROM {outcome}
) AS lives
WHERE life > 1
    AND NOT EXISTS (SELECT 1 FROM {outcome} AS o WHERE o.job_id = lives.job_id AND o.life = lives.life - 1)
{shown}

-- name: unknown_state
SELECT job_id, COUNT(*) OVER ()
FROM (
    SELECT job_id FROM {ready}
    WHERE state NOT IN ('paused', 'blocked', 'scheduled', 'held', 'queued', 'running', 'parked')
    UNION ALL
    SELECT job_id FROM {outcome}
    WHERE state NOT IN ('completed', 'failed', 'cancelled', 'skipped')
    UNION ALL
    SELECT job_id FROM {run}
    WHERE state NOT IN
        ('running', 'completed', 'failed', 'cancelled', 'skipped', 'timed_out', 'lost', 'released')
) AS found
{shown}

-- name: live_copy_differs
SELECT r.job_id, COUNT(*) OVER ()
FROM {ready} AS r
JOIN {job} AS j ON j.id = r.job_id
WHERE r.kind <> j.kind
    OR r.kind_version <> j.kind_version
    OR r.queue <> j.queue
    OR COALESCE(r.business_key, '') <> COALESCE(j.business_key, '')
{shown}

-- name: running_without_run
SELECT r.job_id, COUNT(*) OVER ()
FROM {ready} AS r
WHERE r.state = 'running'
    AND NOT EXISTS (
        SELECT 1 FROM {run} AS u WHERE u.id = r.run_id AND u.job_id = r.job_id AND u.state = 'running'
    )
{shown}

-- name: open_run_without_running_job
SELECT u.job_id, COUNT(*) OVER ()
FROM {run} AS u
WHERE u.state = 'running'
    AND EXISTS (SELECT 1 FROM {job} AS j WHERE j.id = u.job_id)
    AND NOT EXISTS (SELECT 1 FROM {ready} AS r WHERE r.job_id = u.job_id AND r.state = 'running')
{shown}

-- name: second_open_run
SELECT u.job_id, COUNT(*) OVER ()
FROM {run} AS u
JOIN {ready} AS r ON r.job_id = u.job_id AND r.state = 'running'
WHERE u.state = 'running'
    AND (r.run_id IS NULL OR r.run_id <> u.id)
{shown}

-- name: run_without_job
SELECT u.job_id, COUNT(*) OVER ()
FROM {run} AS u
WHERE NOT EXISTS (SELECT 1 FROM {job} AS j WHERE j.id = u.job_id)
{shown}

-- name: run_of_no_life
SELECT u.job_id, COUNT(*) OVER ()
FROM {run} AS u
WHERE EXISTS (SELECT 1 FROM {job} AS j WHERE j.id = u.job_id)
    AND (
        EXISTS (SELECT 1 FROM {ready} AS r WHERE r.job_id = u.job_id)
        OR EXISTS (SELECT 1 FROM {outcome} AS o WHERE o.job_id = u.job_id)
    )
    AND NOT EXISTS (SELECT 1 FROM {ready} AS r WHERE r.job_id = u.job_id AND r.life = u.life)
    AND NOT EXISTS (SELECT 1 FROM {outcome} AS o WHERE o.job_id = u.job_id AND o.life = u.life)
{shown}

-- name: run_end_disagrees
SELECT job_id, COUNT(*) OVER ()
FROM {run}
WHERE (state = 'running' AND finished_at IS NOT NULL)
    OR (state <> 'running' AND finished_at IS NULL)
{shown}

-- name: completed_without_run
SELECT o.job_id, COUNT(*) OVER ()
FROM {outcome} AS o
WHERE o.state = 'completed'
    AND EXISTS (SELECT 1 FROM {job} AS j WHERE j.id = o.job_id)
    AND NOT EXISTS (
        SELECT 1 FROM {run} AS u WHERE u.job_id = o.job_id AND u.life = o.life AND u.state = 'completed'
    )
{shown}

-- name: completed_twice
SELECT job_id, COUNT(*) OVER ()
FROM (SELECT job_id FROM {run} WHERE state = 'completed' GROUP BY job_id, life HAVING COUNT(*) > 1) AS found
{shown}

-- name: completed_run_not_ended
SELECT u.job_id, COUNT(*) OVER ()
FROM {run} AS u
WHERE u.state = 'completed'
    AND EXISTS (SELECT 1 FROM {job} AS j WHERE j.id = u.job_id)
    AND NOT EXISTS (
        SELECT 1 FROM {outcome} AS o WHERE o.job_id = u.job_id AND o.life = u.life AND o.state = 'completed'
    )
    AND NOT EXISTS (SELECT 1 FROM {ready} AS r WHERE r.job_id = u.job_id AND r.run_id = u.id)
{shown}

-- name: attempts_beyond_budget
SELECT job_id, COUNT(*) OVER ()
FROM (
    SELECT job_id FROM {ready} WHERE attempts > max_attempts
    UNION
    SELECT job_id FROM {outcome} WHERE attempts > max_attempts
    UNION
    SELECT u.job_id FROM {run} AS u JOIN {ready} AS r ON r.job_id = u.job_id AND r.life = u.life
    WHERE u.attempt > r.max_attempts
    UNION
    SELECT u.job_id FROM {run} AS u JOIN {outcome} AS o ON o.job_id = u.job_id AND o.life = u.life
    WHERE u.attempt > o.max_attempts
) AS found
{shown}

-- name: running_without_node
SELECT job_id, COUNT(*) OVER ()
FROM {ready}
WHERE state = 'running' AND node_id IS NULL
{shown}

-- name: running_on_unknown_node
SELECT r.job_id, COUNT(*) OVER ()
FROM {ready} AS r
WHERE r.state = 'running'
    AND r.node_id IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM {node} AS n WHERE n.id = r.node_id)
{shown}

-- name: running_on_stopped_node
SELECT r.job_id, COUNT(*) OVER ()
FROM {ready} AS r
WHERE r.state = 'running'
    AND EXISTS (SELECT 1 FROM {node} AS n WHERE n.id = r.node_id AND n.stopped_at IS NOT NULL)
{shown}

-- name: running_half_claimed
SELECT job_id, COUNT(*) OVER ()
FROM {ready}
WHERE state = 'running'
    AND (
        claimed_at IS NULL
        OR started_at IS NULL
        OR attempts = 0
        OR (timeout_ms IS NULL AND deadline_at IS NOT NULL)
        OR (timeout_ms IS NOT NULL AND deadline_at IS NULL)
    )
{shown}

-- name: waiting_but_held
SELECT job_id, COUNT(*) OVER ()
FROM {ready}
WHERE state <> 'running'
    AND (
        node_id IS NOT NULL
        OR run_id IS NOT NULL
        OR claimed_at IS NOT NULL
        OR deadline_at IS NOT NULL
        OR cancel_requested <> 0
    )
{shown}

-- name: pause_disagrees
SELECT job_id, COUNT(*) OVER ()
FROM {ready}
WHERE (paused <> 0 AND state <> 'paused')
    OR (paused = 0 AND state = 'paused')
{shown}

-- name: block_disagrees
SELECT job_id, COUNT(*) OVER ()
FROM {ready}
WHERE (waits_for > 0 AND state NOT IN ('blocked', 'paused'))
    OR (waits_for <= 0 AND state = 'blocked')
{shown}

-- name: queued_too_early
SELECT job_id, COUNT(*) OVER ()
FROM {ready}
WHERE state = 'queued' AND run_at > updated_at
{shown}

-- name: overdue
SELECT job_id, COUNT(*) OVER ()
FROM {ready}
WHERE state = 'scheduled' AND run_at < :long_ago
{shown}

-- name: held_without_limit
SELECT job_id, COUNT(*) OVER ()
FROM {ready}
WHERE state = 'held' AND limit_key IS NULL
{shown}

-- name: park_reason_disagrees
SELECT job_id, COUNT(*) OVER ()
FROM {ready}
WHERE (state <> 'parked' AND park_reason IS NOT NULL)
    OR (
        state = 'parked'
        AND (park_reason IS NULL OR park_reason NOT IN ('unknown_kind', 'newer_version', 'unreadable'))
    )
{shown}

-- name: read_revision
SELECT MAX(revision)
FROM {schema_version}

-- name: reserved_for_nobody
SELECT q.name, COUNT(*) OVER ()
FROM {queue} AS q
WHERE q.reserved_until IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM {reservation} AS v WHERE v.queue = q.name AND v.status = 'active')
{shown}

-- name: reserved_but_open
SELECT v.queue, COUNT(*) OVER ()
FROM {reservation} AS v
WHERE v.status = 'active'
    AND NOT EXISTS (SELECT 1 FROM {queue} AS q WHERE q.name = v.queue AND q.reserved_until IS NOT NULL)
{shown}
