-- What SQLite and PostgreSQL have in common and others do not; both load it after `sql/`. A database without these gives
-- its own.

-- fragment: text
text

-- fragment: whole_number
bigint

-- fragment: unless_taken
-- Nothing happens where there is a row with this key already. For the tables that have a job_id.
ON CONFLICT DO NOTHING

-- fragment: unless_known
-- The same for tables whose rows have a name.
ON CONFLICT DO NOTHING

-- fragment: todo_known
ON CONFLICT (what, subject, cause) DO UPDATE
SET reached = excluded.reached

-- fragment: longest_before
-- How long the longest of the twenty jobs of this kind and queue before this one took. A table in FROM that refers to the
-- row outside.
SELECT MAX(u.duration_ms)
                    FROM (
                        SELECT j.id
                        FROM {job} AS j
                        WHERE j.kind = r.kind AND j.queue = r.queue AND j.id < r.job_id
                        ORDER BY j.id DESC
                        LIMIT 20
                    ) AS earlier
                    JOIN {run} AS u ON u.job_id = earlier.id
                    WHERE u.state = 'completed'

-- name: count_in_tally
INSERT INTO {tally} AS t ({tally_columns})
VALUES ({tally_values})
ON CONFLICT (flow_id, node_id) DO UPDATE
SET {tally_sums}
