-- Every statement that writes {ready}. Called by `write.py` only; the columns come from `columns.py`.

-- name: insert_ready
-- A job that nothing has happened to yet.
INSERT INTO {ready} ({new_ready_columns})
VALUES ({new_ready_values})

-- name: insert_plain_ready
-- The same where all else is empty: binding a NULL takes the driver as long as writing a column.
INSERT INTO {ready} ({plain_ready_columns})
VALUES ({plain_ready_values})

-- name: insert_member_ready
-- The same for most members of flows.
INSERT INTO {ready} ({member_ready_columns})
VALUES ({member_ready_values})

-- name: insert_limited_ready
-- The same for jobs that have nothing but a limit.
INSERT INTO {ready} ({limited_ready_columns})
VALUES ({limited_ready_values})

-- name: insert_live
-- A live row as it stands: a new life, an edited job, or the successor of an ended one.
INSERT INTO {ready} ({ready_columns})
VALUES ({ready_values})

-- name: claim_ready
-- verb: claim
UPDATE {ready}
SET state = 'running', attempts = attempts + 1, started_at = :started_at, node_id = :node_id, run_id = :run_id,
    claimed_at = :now, deadline_at = :deadline_at, park_reason = NULL, held_by = NULL, updated_at = :now,
    version = version + 1
WHERE job_id = :job_id AND version = :expected AND (state = 'queued' OR state = 'held' OR state = 'parked')

-- name: stand_in_line
-- verb: admit
-- A job that found this key full.
UPDATE {ready}
SET state = 'held', held_by = :held_by, park_reason = NULL, updated_at = :now, version = version + 1
WHERE job_id = :job_id AND version = :expected

-- name: wake
-- The first of a line: the next claim looks at it.
UPDATE {ready}
SET held_by = NULL, updated_at = :now, version = version + 1
WHERE job_id = :job_id AND version = :expected

-- name: update_ready
-- The one guarded write of a live row: nothing happens unless it is still at the version it was decided on.
UPDATE {ready}
SET {ready_changes}
WHERE job_id = :job_id AND version = :expected

-- name: unblock_ready
-- verb: unblock
-- The same where nothing else changes: of a graph every job is written so, once or more.
UPDATE {ready}
SET waits_for = :waits_for, state = :state, queued_at = :queued_at, updated_at = :now, version = version + 1
WHERE job_id = :job_id AND version = :expected

-- name: delete_ready
DELETE FROM {ready}
WHERE job_id = :job_id AND version = :expected

-- name: delete_ready_of_run
-- The fence: only the run that holds the job can end it, and only as it was decided on (superseded meanwhile: anew).
DELETE FROM {ready}
WHERE job_id = :job_id AND run_id = :run_id AND version = :expected

-- name: flag_ready
-- The end of the job has more to look after. Whoever decided about it before decides again.
UPDATE {ready}
SET traits = :traits, updated_at = :now, version = version + 1
WHERE job_id = :job_id AND version = :expected

-- name: respace
UPDATE {ready}
SET position = :position, updated_at = :now, version = version + 1
WHERE job_id = :job_id AND version = :expected

-- name: set_aside_damaged
-- verb: park
-- What no worker can handle, because of what somebody else has written into the row. It stays as it is otherwise; but
-- a version that cannot be counted on starts anew.
UPDATE {ready}
SET state = 'parked', park_reason = 'unreadable', last_error = :reason, node_id = NULL, run_id = NULL,
    claimed_at = NULL, deadline_at = NULL, cancel_requested = 0, updated_at = :now,
    version = CASE WHEN version BETWEEN 1 AND 4611686018427387902 THEN version + 1 ELSE 1 END
WHERE (state = 'queued' OR state = 'scheduled' OR state = 'running')
    AND ({impossible_ready})

-- name: delete_ended_ready
DELETE FROM {ready}
WHERE EXISTS (SELECT 1 FROM {outcome} AS o WHERE o.job_id = {ready}.job_id AND o.life >= {ready}.life)
