-- name: insert_schedule
INSERT INTO {schedule} ({schedule_columns})
VALUES ({schedule_values})

-- name: update_schedule
-- Nothing happens unless it is still at the version that the change was made from.
UPDATE {schedule}
SET {schedule_changes}
WHERE id = :id AND version = :expected

-- name: read_schedule
SELECT {schedule_columns}
FROM {schedule}
WHERE name = :name

-- name: read_schedule_by_id
SELECT {schedule_columns}
FROM {schedule}
WHERE id = :id

-- name: lock_schedule
SELECT {schedule_columns}
FROM {schedule}
WHERE id = :id
{for_update}

-- name: list_schedules
SELECT {schedule_columns}
FROM {schedule}
WHERE name > :after_name
ORDER BY name
LIMIT :page

-- name: list_declared_schedules
SELECT {schedule_columns}
FROM {schedule}
WHERE source = 'code' AND enabled = 1 AND owner = :owner
ORDER BY name

-- name: due_schedules
SELECT {schedule_columns}
FROM {schedule}
WHERE enabled = 1 AND next_trigger_at IS NOT NULL AND next_trigger_at <= :now
ORDER BY next_trigger_at, id
LIMIT :page

-- name: schedules_in_trouble
SELECT {schedule_columns}
FROM {schedule}
WHERE enabled = 1 AND (problem IS NOT NULL OR next_trigger_at <= :late)
ORDER BY name
LIMIT :page

-- name: next_trigger
SELECT MIN(next_trigger_at)
FROM {schedule}
WHERE enabled = 1 AND next_trigger_at IS NOT NULL

-- name: advance_schedule
-- Whoever does this first has the instants up to :next_at; nobody else finds the schedule as it was.
UPDATE {schedule}
SET next_trigger_at = :next_at, last_trigger_at = COALESCE(:last_at, last_trigger_at), problem = :problem,
    version = version + 1
WHERE id = :id AND version = :expected AND enabled = 1 AND next_trigger_at = :seen

-- name: insert_slot
INSERT INTO {slot} (schedule_id, scheduled_for, previous_at, following_at, job_id, node_id, status, created_at)
VALUES (:schedule_id, :scheduled_for, :previous_at, :following_at, :job_id, :node_id, :status, :now)

-- name: note_slot
UPDATE {slot}
SET status = :status, note = :note
WHERE schedule_id = :schedule_id AND scheduled_for = :scheduled_for AND job_id IS NULL

-- name: insert_missed
INSERT INTO {missed} (schedule_id, first_at, last_at, instants, reason, recorded_at)
VALUES (:schedule_id, :first_at, :last_at, :instants, :reason, :recorded_at)

-- name: newest_missed
SELECT first_at, last_at, instants, reason, recorded_at
FROM {missed}
WHERE schedule_id = :schedule_id
ORDER BY first_at DESC, recorded_at DESC
LIMIT 1

-- name: lengthen_missed
UPDATE {missed}
SET last_at = :last_at, instants = instants + 1
WHERE schedule_id = :schedule_id AND first_at = :first_at AND recorded_at = :recorded_at

-- name: note_trigger
UPDATE {schedule}
SET last_trigger_at = :at
WHERE id = :id AND (last_trigger_at IS NULL OR last_trigger_at < :at)

-- fragment: slot_columns
-- A job that was stopped because its slot took too long is told apart from one that failed.
s.schedule_id, s.scheduled_for, s.previous_at, s.following_at, s.job_id, s.node_id, s.note, s.created_at,
    COALESCE(
        s.status,
        r.state,
        CASE WHEN o.error_type = 'MaxRuntime' THEN 'skipped_timeout' ELSE o.state END
    ),
    o.successor

-- fragment: slots_and_jobs
{slot} AS s
LEFT JOIN {ready} AS r ON r.job_id = s.job_id
LEFT JOIN {outcome} AS o ON r.job_id IS NULL
    AND o.job_id = s.job_id
    AND o.life = (SELECT MAX(x.life) FROM {outcome} AS x WHERE x.job_id = s.job_id)

-- name: read_slot
SELECT {slot_columns}
FROM {slots_and_jobs}
WHERE s.schedule_id = :schedule_id AND s.scheduled_for = :scheduled_for

-- name: list_slots
SELECT {slot_columns}
FROM {slots_and_jobs}
WHERE s.schedule_id = :schedule_id AND s.scheduled_for < :before
ORDER BY s.scheduled_for DESC
LIMIT :page

-- name: list_missed
SELECT first_at, last_at, instants, reason, recorded_at
FROM {missed}
WHERE schedule_id = :schedule_id AND first_at < :before
ORDER BY first_at DESC, recorded_at DESC
LIMIT :page

-- name: live_of_schedule
-- The newest live job of a schedule, among its newest hundred: one that was opened again by hand after a hundred others
-- is not seen.
SELECT j.id
FROM (SELECT id FROM {job} WHERE schedule_id = :schedule_id ORDER BY id DESC LIMIT 100) AS j
JOIN {ready} AS r ON r.job_id = j.id
ORDER BY j.id DESC
LIMIT 1

-- name: pending_of_schedule
-- Jobs of a schedule that have not started.
SELECT j.id
FROM {job} AS j
JOIN {ready} AS r ON r.job_id = j.id
WHERE j.schedule_id = :schedule_id AND r.state <> 'running'
ORDER BY j.id
LIMIT :page

-- name: forget_declarations
-- Those of workers that have ended.
DELETE FROM {declaration}
WHERE NOT EXISTS (SELECT 1 FROM {node} AS n WHERE n.id = {declaration}.node_id AND n.stopped_at IS NULL)
    OR node_id = :node_id

-- name: insert_declaration
INSERT INTO {declaration} (name, node_id, digest, declared_at)
VALUES (:name, :node_id, :digest, :now)

-- name: list_declarations
SELECT d.name, d.digest
FROM {declaration} AS d
JOIN {node} AS n ON n.id = d.node_id AND n.stopped_at IS NULL
WHERE d.node_id <> :node_id
