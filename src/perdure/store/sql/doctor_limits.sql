-- The doctor's checks of limits: see `doctor.sql`. {is_of_limit}: the key m.of_key belongs to the limit l. {needs_limit}: the
-- job r needs a permit of it. {needs_key}: the job a needs one of the key m.of_key.

-- name: permit_without_run
-- A permit of a block that somebody holds has a lease.
SELECT p.key, COUNT(*) OVER ()
FROM {permit} AS p
WHERE p.lease_until IS NULL
    AND NOT EXISTS (SELECT 1 FROM {ready} AS r WHERE r.job_id = p.holder AND r.state = 'running')
{shown}

-- name: run_without_permit
-- Not of jobs that started before the limit was what it is now.
SELECT r.job_id, COUNT(*) OVER ()
FROM {ready} AS r
JOIN {limit_rule} AS l ON {needs_limit}
WHERE r.state = 'running'
    AND l.sort = 'at_once'
    AND r.claimed_at > l.declared_at
    AND NOT EXISTS (
        SELECT 1
        FROM (SELECT p.holder, p.key AS of_key FROM {permit} AS p) AS m
        WHERE m.holder = r.job_id AND ({is_of_limit})
    )
{shown}

-- name: over_limit
SELECT m.of_key, COUNT(*) OVER ()
FROM (SELECT p.key AS of_key, SUM(p.weight) AS in_use FROM {permit} AS p GROUP BY p.key) AS m
JOIN {limit_rule} AS l ON ({is_of_limit})
LEFT JOIN {limit_key} AS y ON y.key = m.of_key
WHERE l.sort = 'at_once' AND m.in_use > COALESCE(y.set_most, l.set_most, l.most)
{shown}

-- fragment: rows_in_line
{ready} AS w
    WHERE w.held_by IS NOT NULL

-- fragment: rows_of_line
{ready} AS x
    WHERE x.held_by = m.of_key AND x.queue = m.queue

-- fragment: rows_awake
{ready} AS a
        WHERE a.queue = m.queue AND a.state = 'held' AND a.held_by IS NULL

-- name: line_asleep
-- Lines with room in which nobody is awake, that nobody has left word of, and that do not open by the clock. Whether their
-- first job fits is seen from what it needs.
SELECT m.of_key, COUNT(*) OVER (), m.of_key, h.limit_key, COALESCE(m.in_use, 0), COALESCE(y.set_most, l.set_most, l.most),
    l.sort
FROM (
    SELECT w.held_by AS of_key, w.queue, (SELECT SUM(p.weight) FROM {permit} AS p WHERE p.key = w.held_by) AS in_use
    FROM {rows_in_line}
    GROUP BY w.held_by, w.queue
) AS m
JOIN {ready} AS h ON h.job_id = (
    SELECT x.job_id
    FROM {rows_of_line}
    ORDER BY x.rank, x.position, x.job_id
    LIMIT 1
)
LEFT JOIN {limit_rule} AS l ON ({is_of_limit})
LEFT JOIN {limit_key} AS y ON y.key = m.of_key
WHERE l.paused_at IS NULL
    AND y.paused_at IS NULL
    AND y.opens_at IS NULL
    AND (
        COALESCE(y.set_most, l.set_most, l.most) IS NULL
        OR COALESCE(m.in_use, 0) < COALESCE(y.set_most, l.set_most, l.most)
    )
    AND NOT EXISTS (SELECT 1 FROM {limit_look} AS k WHERE k.key = m.of_key OR (k.whole = 1 AND k.key = l.name))
    AND NOT EXISTS (
        SELECT 1
        FROM {rows_awake} AND ({needs_key})
    )
{shown}

-- name: key_opens_never
-- Keys that open further away than a whole window from now, or than a block may hold a place.
SELECT m.of_key, COUNT(*) OVER ()
FROM (SELECT y.key AS of_key, y.opens_at FROM {limit_key} AS y WHERE y.opens_at IS NOT NULL) AS m
LEFT JOIN {limit_rule} AS l ON ({is_of_limit})
WHERE m.opens_at - COALESCE(l.per_us, :lease) > :late
{shown}

-- name: in_line_not_held
SELECT r.job_id, COUNT(*) OVER ()
FROM {ready} AS r
WHERE r.held_by IS NOT NULL AND r.state <> 'held'
{shown}
