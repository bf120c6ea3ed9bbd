-- fragment: payload_suspect
-- Which rows are worth reading to see whether they hold JSON: all, unless the database can tell by itself.
1 = 1

-- fragment: result_suspect
1 = 1

-- name: business_key_without_job
SELECT b.job_id, COUNT(*) OVER ()
FROM {business_key} AS b
WHERE NOT EXISTS (SELECT 1 FROM {job} AS j WHERE j.id = b.job_id)
{shown}

-- name: business_key_of_ended_job
SELECT b.job_id, COUNT(*) OVER ()
FROM {business_key} AS b
WHERE EXISTS (SELECT 1 FROM {job} AS j WHERE j.id = b.job_id)
    AND NOT EXISTS (SELECT 1 FROM {ready} AS r WHERE r.job_id = b.job_id)
{shown}

-- name: business_key_not_its_own
SELECT b.job_id, COUNT(*) OVER ()
FROM {business_key} AS b
JOIN {ready} AS r ON r.job_id = b.job_id
WHERE r.business_key IS NULL OR r.business_key <> b.key
{shown}

-- name: business_key_not_reserved
-- The key of a running job that is being superseded already belongs to its replacement.
SELECT r.job_id, COUNT(*) OVER (), r.business_key
FROM {ready} AS r
WHERE r.business_key IS NOT NULL
    AND r.superseded_by IS NULL
    AND NOT EXISTS (SELECT 1 FROM {business_key} AS b WHERE b.key = r.business_key AND b.job_id = r.job_id)
{shown}

-- name: ledger_without_job
SELECT k.job_id, COUNT(*) OVER ()
FROM {idempotency_key} AS k
WHERE k.final_state IS NULL
    AND NOT EXISTS (SELECT 1 FROM {job} AS j WHERE j.id = k.job_id)
{shown}

-- name: key_not_in_ledger
SELECT j.id, COUNT(*) OVER ()
FROM {job} AS j
WHERE j.idempotency_key IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM {idempotency_key} AS k WHERE k.kind = j.kind AND k.key = j.idempotency_key)
{shown}

-- name: queue_missing
SELECT r.queue, COUNT(*) OVER ()
FROM {ready} AS r
WHERE NOT EXISTS (SELECT 1 FROM {queue} AS q WHERE q.name = r.queue)
GROUP BY r.queue
{shown}

-- name: queue_counter_behind
SELECT q.name, COUNT(*) OVER ()
FROM {queue} AS q
WHERE q.next_position <= (SELECT MAX(r.position) FROM {ready} AS r WHERE r.queue = q.name)
{shown}

-- name: order_tie
SELECT a.job_id, COUNT(*) OVER ()
FROM {ready} AS a
JOIN (
    SELECT queue, rank, position
    FROM {ready}
    GROUP BY queue, rank, position
    HAVING COUNT(*) > 1
) AS tie ON tie.queue = a.queue AND tie.rank = a.rank AND tie.position = a.position
{shown}

-- name: edge_without_job
SELECT e.job_id, COUNT(*) OVER ()
FROM {edge} AS e
WHERE NOT EXISTS (SELECT 1 FROM {job} AS j WHERE j.id = e.job_id)
    OR (
        e.state = 'waiting'
        AND NOT EXISTS (SELECT 1 FROM {job} AS j WHERE j.id = e.depends_on)
        AND NOT EXISTS (SELECT 1 FROM {flow} AS f WHERE f.id = e.depends_on)
    )
{shown}

-- name: edge_on_ended_job
SELECT e.job_id, COUNT(*) OVER (), e.depends_on
FROM {edge} AS e
WHERE e.state = 'waiting'
    AND EXISTS (SELECT 1 FROM {ready} AS r WHERE r.job_id = e.job_id)
    AND NOT EXISTS (SELECT 1 FROM {ready} AS r WHERE r.job_id = e.depends_on)
    AND (
        EXISTS (SELECT 1 FROM {job} AS j WHERE j.id = e.depends_on)
        OR EXISTS (SELECT 1 FROM {flow} AS f WHERE f.id = e.depends_on AND f.finished_at IS NOT NULL)
    )
    AND NOT EXISTS (SELECT 1 FROM {todo} AS d WHERE d.what = 'unblock' AND d.subject = e.depends_on)
{shown}

-- name: waits_for_differs
SELECT r.job_id, COUNT(*) OVER (), (SELECT COUNT(*) FROM {edge} AS e WHERE e.job_id = r.job_id AND e.state = 'waiting')
FROM {ready} AS r
WHERE r.state <> 'running'
    AND r.waits_for <> (SELECT COUNT(*) FROM {edge} AS e WHERE e.job_id = r.job_id AND e.state = 'waiting')
{shown}

-- name: dependents_not_flagged
SELECT r.job_id, COUNT(*) OVER ()
FROM {ready} AS r
WHERE (r.traits & 1) = 0
    AND EXISTS (SELECT 1 FROM {edge} AS e WHERE e.depends_on = r.job_id AND e.state = 'waiting')
{shown}

-- fragment: counts_of_flows
-- Flows that have not ended: how many members they have, how many of them have ended, and how many have not. A job that
-- was superseded while it ran is none any more: its replacement is.
SELECT
    f.id, f.sealed_at,
    f.total + COALESCE(t.added, 0) AS members,
    f.completed + f.failed + f.cancelled + f.skipped + COALESCE(t.ended, 0) AS ended,
    COALESCE(l.jobs, 0) + COALESCE(i.flows, 0) AS live
FROM {flow} AS f
LEFT JOIN (
    SELECT flow_id, SUM(added) AS added, SUM(completed + failed + cancelled + skipped) AS ended
    FROM {tally}
    GROUP BY flow_id
) AS t ON t.flow_id = f.id
LEFT JOIN (
    SELECT flow_id, COUNT(*) AS jobs FROM {ready} WHERE flow_id IS NOT NULL AND superseded_by IS NULL GROUP BY flow_id
) AS l ON l.flow_id = f.id
LEFT JOIN (
    SELECT parent_id, COUNT(*) AS flows FROM {flow} WHERE finished_at IS NULL GROUP BY parent_id
) AS i ON i.parent_id = f.id
WHERE f.finished_at IS NULL

-- name: flow_sum_differs
-- And how many members more there are than it has counted.
SELECT c.id, COUNT(*) OVER (), c.ended + c.live - c.members
FROM (
{counts_of_flows}
) AS c
WHERE c.members <> c.ended + c.live
{shown}

-- name: flow_not_ended
SELECT c.id, COUNT(*) OVER ()
FROM (
{counts_of_flows}
) AS c
WHERE c.sealed_at IS NOT NULL AND c.members = c.ended
    AND NOT EXISTS (SELECT 1 FROM {todo} AS d WHERE d.what = 'look' AND d.subject = c.id)
{shown}

-- name: flow_ended_too_early
SELECT f.id, COUNT(*) OVER ()
FROM {flow} AS f
WHERE f.finished_at IS NOT NULL
    AND (
        EXISTS (SELECT 1 FROM {ready} AS r WHERE r.flow_id = f.id AND r.superseded_by IS NULL)
        OR EXISTS (SELECT 1 FROM {flow} AS i WHERE i.parent_id = f.id AND i.finished_at IS NULL)
    )
{shown}

-- name: flow_open_long
-- Open flows that nobody has added a job to for a day.
SELECT f.id, COUNT(*) OVER ()
FROM {flow} AS f
WHERE f.finished_at IS NULL
    AND f.sealed_at IS NULL
    AND COALESCE(
        (SELECT j.created_at FROM {job} AS j WHERE j.flow_id = f.id ORDER BY j.id DESC LIMIT 1), f.created_at
    ) < :day_ago
{shown}

-- name: todo_stuck
SELECT d.subject, COUNT(*) OVER ()
FROM {todo} AS d
WHERE d.created_at < :long_ago
{shown}

-- name: superseded_by_missing
SELECT job_id, COUNT(*) OVER ()
FROM (
    SELECT job_id, superseded_by FROM {ready} WHERE superseded_by IS NOT NULL
    UNION ALL
    SELECT job_id, superseded_by FROM {outcome} WHERE superseded_by IS NOT NULL
) AS replaced
WHERE NOT EXISTS (SELECT 1 FROM {job} AS j WHERE j.id = replaced.superseded_by)
{shown}

-- name: successor_missing
SELECT o.job_id, COUNT(*) OVER ()
FROM {outcome} AS o
WHERE o.successor IS NOT NULL
    AND NOT EXISTS (SELECT 1 FROM {job} AS j WHERE j.id = o.successor)
{shown}

-- name: successor_not_linked
SELECT job_id, COUNT(*) OVER ()
FROM (
    SELECT o.job_id FROM {outcome} AS o JOIN {job} AS s ON s.id = o.successor
    WHERE s.auto_retry_of IS NULL OR s.auto_retry_of <> o.job_id
    UNION
    SELECT s.auto_retry_of FROM {job} AS s
    WHERE s.auto_retry_of IS NOT NULL
        AND EXISTS (SELECT 1 FROM {job} AS j WHERE j.id = s.auto_retry_of)
        AND NOT EXISTS (
            SELECT 1 FROM {outcome} AS o WHERE o.job_id = s.auto_retry_of AND o.successor IS NOT NULL
        )
) AS found
{shown}

-- name: two_successors
SELECT auto_retry_of, COUNT(*) OVER ()
FROM {job}
WHERE auto_retry_of IS NOT NULL
GROUP BY auto_retry_of
HAVING COUNT(*) > 1
{shown}

-- name: ancestor_missing
SELECT j.id, COUNT(*) OVER ()
FROM {job} AS j
WHERE (j.retry_of IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {job} AS a WHERE a.id = j.retry_of))
    OR (j.parent_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {job} AS a WHERE a.id = j.parent_id))
    OR (j.root_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {job} AS a WHERE a.id = j.root_id))
{shown}

-- fragment: impossible_live_numbers
-- Times are between the years 1 and 9999.
attempts NOT BETWEEN 0 AND 2147483646 OR crashes NOT BETWEEN 0 AND 2147483646
        OR waits_for NOT BETWEEN 0 AND 2147483647 OR life NOT BETWEEN 1 AND 2147483646
        OR max_attempts NOT BETWEEN 1 AND 4611686018427387903 OR version NOT BETWEEN 1 AND 4611686018427387903
        OR rank NOT BETWEEN -4611686018427387903 AND 4611686018427387903
        OR position NOT BETWEEN -4611686018427387903 AND 4611686018427387903
        OR kind_version NOT BETWEEN 1 AND 4611686018427387903 OR timeout_ms NOT BETWEEN 0 AND 100000000000000
        OR as_new_job NOT IN (0, 1) OR paused NOT IN (0, 1) OR cancel_requested NOT IN (0, 1)
        OR run_at NOT BETWEEN -62135596800000000 AND 253402300799999999
        OR queued_at NOT BETWEEN -62135596800000000 AND 253402300799999999
        OR started_at NOT BETWEEN -62135596800000000 AND 253402300799999999
        OR claimed_at NOT BETWEEN -62135596800000000 AND 253402300799999999
        OR deadline_at NOT BETWEEN -62135596800000000 AND 253402300799999999
        OR updated_at NOT BETWEEN -62135596800000000 AND 253402300799999999

-- fragment: impossible_outcome_numbers
attempts NOT BETWEEN 0 AND 2147483647 OR crashes NOT BETWEEN 0 AND 2147483647 OR life NOT BETWEEN 1 AND 2147483647
        OR max_attempts NOT BETWEEN 1 AND 4611686018427387903 OR version NOT BETWEEN 1 AND 4611686018427387903
        OR rank NOT BETWEEN -4611686018427387903 AND 4611686018427387903
        OR position NOT BETWEEN -4611686018427387903 AND 4611686018427387903
        OR finished_at NOT BETWEEN -62135596800000000 AND 253402300799999999
        OR run_at NOT BETWEEN -62135596800000000 AND 253402300799999999
        OR queued_at NOT BETWEEN -62135596800000000 AND 253402300799999999
        OR started_at NOT BETWEEN -62135596800000000 AND 253402300799999999

-- fragment: impossible_run_numbers
attempt NOT BETWEEN 1 AND 2147483647 OR life NOT BETWEEN 1 AND 2147483647
        OR started_at NOT BETWEEN -62135596800000000 AND 253402300799999999
        OR finished_at NOT BETWEEN -62135596800000000 AND 253402300799999999

-- fragment: impossible_job_numbers
chain_attempt NOT BETWEEN 1 AND 2147483647 OR kind_version NOT BETWEEN 1 AND 4611686018427387903
        OR created_at NOT BETWEEN -62135596800000000 AND 253402300799999999
        OR template_version NOT BETWEEN 1 AND 4611686018427387903
        OR scheduled_for NOT BETWEEN -62135596800000000 AND 253402300799999999

-- fragment: impossible_ready
{impossible_live_numbers}

-- fragment: impossible_outcome
{impossible_outcome_numbers}

-- fragment: impossible_run
{impossible_run_numbers}

-- fragment: impossible_job
{impossible_job_numbers}

-- name: impossible_number
SELECT job_id, COUNT(*) OVER ()
FROM (
    SELECT job_id FROM {ready} WHERE {impossible_ready}
    UNION
    SELECT job_id FROM {outcome} WHERE {impossible_outcome}
    UNION
    SELECT job_id FROM {run} WHERE {impossible_run}
    UNION
    SELECT id FROM {job} WHERE {impossible_job}
) AS found
{shown}

-- name: time_backwards
-- By more than a minute: a process reads the clock, and then waits for its turn to write.
SELECT job_id, COUNT(*) OVER ()
FROM (
    SELECT o.job_id FROM {outcome} AS o JOIN {job} AS j ON j.id = o.job_id
    WHERE o.finished_at < j.created_at - 60000000 OR o.finished_at < o.started_at - 60000000
    UNION
    SELECT u.job_id FROM {run} AS u JOIN {job} AS j ON j.id = u.job_id
    WHERE u.started_at < j.created_at - 60000000 OR u.finished_at < u.started_at - 60000000
) AS found
{shown}

-- name: unreadable_payload
SELECT id, 0, payload, secrets, params, options, refs
FROM {job}
WHERE {payload_suspect}
ORDER BY id DESC
LIMIT :sample

-- name: unreadable_result
SELECT job_id, 0, result
FROM {outcome}
WHERE result IS NOT NULL AND ({result_suspect})
ORDER BY job_id DESC
LIMIT :sample

-- name: outcome_without_job
SELECT o.job_id, COUNT(*) OVER ()
FROM {outcome} AS o
WHERE NOT EXISTS (SELECT 1 FROM {job} AS j WHERE j.id = o.job_id)
{shown}

-- name: tag_without_job
SELECT t.job_id, COUNT(*) OVER ()
FROM {tag} AS t
WHERE NOT EXISTS (SELECT 1 FROM {job} AS j WHERE j.id = t.job_id)
{shown}

-- name: log_without_job
SELECT l.job_id, COUNT(*) OVER ()
FROM {job_log} AS l
WHERE NOT EXISTS (SELECT 1 FROM {job} AS j WHERE j.id = l.job_id)
{shown}

-- name: template_without_version
SELECT t.name, COUNT(*) OVER ()
FROM {template} AS t
WHERE NOT EXISTS (SELECT 1 FROM {template_version} AS v WHERE v.template_id = t.id AND v.version = t.version)
{shown}

-- name: template_missing
SELECT j.id, COUNT(*) OVER ()
FROM {job} AS j
WHERE j.template_id IS NOT NULL
    AND NOT EXISTS (
        SELECT 1
        FROM {template_version} AS v
        WHERE v.template_id = j.template_id AND v.version = j.template_version
    )
{shown}

-- name: slot_without_job
SELECT s.job_id, COUNT(*) OVER ()
FROM {slot} AS s
WHERE s.job_id IS NOT NULL AND NOT EXISTS (SELECT 1 FROM {job} AS j WHERE j.id = s.job_id)
{shown}
