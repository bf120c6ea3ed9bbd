-- Edges, flows, their counts, and the work list: see `store/follow.py` and `store/flow.py`. {these} are as many ids as a
-- group may have; a smaller group repeats one of its ids.

-- name: insert_edge
INSERT INTO {edge} (depends_on, job_id, needs, state)
VALUES (:depends_on, :job_id, :needs, :state)

-- name: waiting_edges
-- Locked before anyone looks at the dependents themselves: a retry that has counted an edge, and is not committed yet, is
-- waited for, and its job found afterwards.
SELECT depends_on, job_id, needs
FROM {edge}
WHERE depends_on IN ({these}) AND state = 'waiting'
ORDER BY depends_on, job_id
LIMIT :room
{for_update}

-- name: waiting_edges_from
SELECT depends_on, job_id, needs
FROM {edge}
WHERE depends_on = :subject AND job_id > :after AND state = 'waiting'
ORDER BY job_id
LIMIT :room
{for_update}

-- name: settle_edge
UPDATE {edge}
SET state = :state
WHERE depends_on = :depends_on AND job_id = :job_id AND state = 'waiting'

-- name: open_edge
-- What it depends on lives again.
UPDATE {edge}
SET state = 'waiting'
WHERE depends_on = :depends_on AND job_id = :job_id

-- name: settled_edges
-- What waited for this one, and how it was decided.
SELECT depends_on, job_id, needs, state
FROM {edge}
WHERE depends_on = :depends_on AND job_id > :after AND state <> 'waiting'
ORDER BY job_id
LIMIT :room
{for_update}

-- name: with_settled_edges
SELECT DISTINCT depends_on
FROM {edge}
WHERE depends_on IN ({these}) AND state <> 'waiting'

-- name: read_waits
-- Locked, and so still there when whoever counts them commits.
SELECT depends_on
FROM {edge}
WHERE job_id = :job_id AND state = 'waiting'
ORDER BY depends_on
{for_update}

-- name: move_edges
-- Whoever waited for a job waits for the one that continues its work; that one itself waits for no more than its end.
UPDATE {edge}
SET depends_on = :new_owner
WHERE depends_on = :depends_on AND state = 'waiting' AND job_id <> :new_owner

-- name: wait_instead
-- Of another job.
UPDATE {edge}
SET job_id = :new_owner
WHERE depends_on = :depends_on AND job_id = :job_id AND state = 'waiting'

-- name: lock_these_live
SELECT {ready_columns}
FROM {ready}
WHERE job_id IN ({these})
ORDER BY job_id
{for_update}

-- name: lock_these_waiters
SELECT {waiter_columns}
FROM {ready}
WHERE job_id IN ({these})
ORDER BY job_id
{for_update}

-- name: these_live
SELECT job_id
FROM {ready}
WHERE job_id IN ({these})

-- name: jobs_there
SELECT id
FROM {job}
WHERE id IN ({these})

-- name: these_refs
SELECT id, refs
FROM {job}
WHERE id IN ({these})

-- name: these_ends
-- How each of their lives ended. Without a subquery: MySQL would answer that as it was when a user's transaction began.
SELECT job_id, state, result, error_type, error, successor, superseded_by
FROM {outcome}
WHERE job_id IN ({these})
ORDER BY job_id, life

-- name: insert_flow
INSERT INTO {flow} ({flow_columns}, live_key)
VALUES ({flow_values}, :live_key)

-- name: read_flow
-- With what its tallies say, which is to be added: every turn that has counted in a flow asks for both.
SELECT {flow_columns}, more, more_completed, more_failed, more_cancelled, more_skipped, more_run_ms, more_wait_ms,
    more_attempts
FROM {flow}
LEFT JOIN (
    SELECT SUM(added) AS more, SUM(completed) AS more_completed, SUM(failed) AS more_failed,
        SUM(cancelled) AS more_cancelled, SUM(skipped) AS more_skipped, SUM(run_ms) AS more_run_ms,
        SUM(wait_ms) AS more_wait_ms, SUM(attempts) AS more_attempts
    FROM {tally}
    WHERE flow_id = :id
) AS t ON 1 = 1
WHERE id = :id

-- name: lock_flow
SELECT {flow_columns}
FROM {flow}
WHERE id = :id
{for_update}

-- name: lock_flow_if_free
SELECT {flow_columns}
FROM {flow}
WHERE id = :id
{skip_locked}

-- name: these_flows
SELECT {flow_columns}
FROM {flow}
WHERE id IN ({these})

-- name: share_these_flows
-- Nobody decides about them until we commit.
SELECT {flow_columns}
FROM {flow}
WHERE id IN ({these})
ORDER BY id
{for_share}

-- name: lock_these_flows
SELECT {flow_columns}
FROM {flow}
WHERE id IN ({these})
ORDER BY id
{for_update}

-- name: flow_with_key
SELECT id
FROM {flow}
WHERE live_key = :live_key

-- name: list_flows
SELECT {flow_columns}
FROM {flow}
WHERE id < :below AND parent_id IS NULL
    AND state = COALESCE(:state, state) AND name = COALESCE(:name, name)
ORDER BY id DESC
LIMIT :page

-- name: list_flows_in_state
-- Of any state but completed, of which there may be very many: found by an index that holds few.
SELECT {flow_columns}
FROM {flow}
WHERE state = :state AND state <> 'completed' AND id < :below AND parent_id IS NULL AND name = COALESCE(:name, name)
ORDER BY id DESC
LIMIT :page

-- name: list_inner_flows
SELECT {flow_columns}
FROM {flow}
WHERE parent_id = :parent_id
ORDER BY id

-- name: flows_filled_by
SELECT id
FROM {flow}
WHERE filled_by = :filled_by

-- name: correct_total
UPDATE {flow}
SET total = total + :missing
WHERE id = :id AND finished_at IS NULL

-- name: seal_flow
UPDATE {flow}
SET sealed_at = :now
WHERE id = :id AND sealed_at IS NULL

-- name: fill_again
-- The job that fills it lives again.
UPDATE {flow}
SET sealed_at = NULL
WHERE id = :id AND finished_at IS NULL

-- name: fill_by_another
UPDATE {flow}
SET filled_by = :new_owner
WHERE filled_by = :filled_by

-- name: mark_flow
UPDATE {flow}
SET paused_at = :paused_at, cancel_requested_at = :cancel_requested_at, sealed_at = :sealed_at
WHERE id = :id

-- name: take_cancel_back
UPDATE {flow}
SET cancel_requested_at = NULL
WHERE id = :id AND cancel_requested_at IS NOT NULL

-- name: end_flow
UPDATE {flow}
SET state = :state, finished_at = :finished_at, live_key = NULL, total = :total, completed = :completed,
    failed = :failed, cancelled = :cancelled, skipped = :skipped, run_ms = :run_ms, wait_ms = :wait_ms,
    attempts = :attempts
WHERE id = :id AND finished_at IS NULL

-- name: reopen_flow
UPDATE {flow}
SET state = 'running', finished_at = NULL, live_key = :live_key, attempt = attempt + 1, cancel_requested_at = NULL
WHERE id = :id

-- name: tallies_of_flow
SELECT SUM(added), SUM(completed), SUM(failed), SUM(cancelled), SUM(skipped), SUM(run_ms), SUM(wait_ms), SUM(attempts)
FROM {tally}
WHERE flow_id = :flow_id
GROUP BY flow_id

-- name: delete_tallies
DELETE FROM {tally}
WHERE flow_id = :flow_id

-- name: count_running_of_flow
-- No further than :cap.
SELECT COUNT(*)
FROM (SELECT 1 AS one FROM {ready} WHERE state = 'running' AND flow_id = :flow_id LIMIT :cap) AS c

-- name: list_callbacks
-- The jobs of a flow that it does not count.
SELECT id
FROM {job}
WHERE flow_id = :flow_id AND sequence IS NULL
ORDER BY id
LIMIT :page

-- name: list_members
SELECT sequence, id
FROM {job}
WHERE flow_id = :flow_id AND (sequence, id) > (:sequence, :id)
ORDER BY sequence, id
LIMIT :page

-- name: these_shown
{job_view}
FROM {job} AS j
{job_state}
WHERE j.id IN ({these})

-- name: edges_of_jobs
SELECT depends_on, job_id, needs, state
FROM {edge}
WHERE job_id IN ({these})
ORDER BY job_id, depends_on

-- name: insert_todo
-- An entry that is there already starts anew: what is left now may lie behind the place that it has reached. Whoever works
-- on it has it locked, and may have passed what we have not committed yet: he is waited for.
INSERT INTO {todo} (what, subject, cause, reached, created_at)
VALUES (:what, :subject, :cause, :reached, :created_at)
{todo_known}

-- name: next_looks
-- Those that found their flow locked come last.
SELECT what, subject, cause, reached
FROM {todo}
WHERE what = 'look'
ORDER BY CASE WHEN reached IS NULL THEN 0 ELSE 1 END, subject, cause
LIMIT :room
{skip_locked}

-- name: next_wide_todo
SELECT what, subject, cause, reached
FROM {todo}
WHERE what <> 'look'
ORDER BY what, subject, cause
LIMIT :room
{skip_locked}

-- name: next_decisions
-- What was decided about flows, and nobody has begun with.
SELECT what, subject, cause, reached
FROM {todo}
WHERE what IN ('cancel', 'pause', 'resume', 'stop') AND reached IS NULL
ORDER BY what, subject, cause
LIMIT :room
{skip_locked}

-- name: next_unblocks
-- Of those that nobody has begun with.
SELECT what, subject, cause
FROM {todo}
WHERE what = 'unblock' AND reached IS NULL
ORDER BY subject, cause
LIMIT :room
{skip_locked}

-- name: note_todo
UPDATE {todo}
SET reached = :reached
WHERE what = :what AND subject = :subject AND cause = :cause

-- name: delete_todo
DELETE FROM {todo}
WHERE what = :what AND subject = :subject AND cause = :cause

-- name: forget_todo
DELETE FROM {todo}
WHERE what = :what AND subject = :subject

-- name: look_for_node
-- The flows in which a node that is gone has counted: it may have owed them a second look.
INSERT INTO {todo} (what, subject, cause, reached, created_at)
SELECT 'look', flow_id, node_id, NULL, :now
FROM {tally}
WHERE node_id = :node_id
{todo_known}

-- name: look_for_complete
-- Flows whose members have all ended: whoever owed them a second look is gone.
INSERT INTO {todo} (what, subject, cause, reached, created_at)
SELECT 'look', f.id, f.id, NULL, :now
FROM (
    SELECT flow_id, SUM(added) AS added, SUM(completed + failed + cancelled + skipped) AS ended
    FROM {tally}
    GROUP BY flow_id
) AS t
INNER JOIN {flow} AS f ON f.id = t.flow_id
WHERE f.finished_at IS NULL AND f.sealed_at IS NOT NULL
    AND f.completed + f.failed + f.cancelled + f.skipped + t.ended >= f.total + t.added
{todo_known}
