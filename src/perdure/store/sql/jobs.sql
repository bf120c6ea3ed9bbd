-- name: take_places
-- Take :room worth of places at the back of a queue. Changes nothing where the queue is not known yet. A dialect may
-- answer the first place after each, here and where it makes the queue. An upsert with RETURNING takes SQLite four times
-- as long as this and the two statements below.
UPDATE {queue}
SET next_position = next_position + :room
WHERE name = :queue

-- name: make_queue_with_room
INSERT INTO {queue} (name, next_position)
VALUES (:queue, 100 + :room)

-- name: read_next_position
SELECT next_position
FROM {queue}
WHERE name = :queue

-- name: insert_job
INSERT INTO {job} ({new_job_columns})
VALUES ({new_job_values})

-- name: insert_plain_job
-- The same where all else is empty.
INSERT INTO {job} ({plain_job_columns})
VALUES ({plain_job_values})

-- name: insert_member_job
-- The same for most members of flows.
INSERT INTO {job} ({member_job_columns})
VALUES ({member_job_values})

-- name: insert_tag
INSERT INTO {tag} (job_id, tag)
VALUES (:job_id, :tag)
{unless_taken}

-- name: copy_job
-- A new cold row with the shape of :source, for a successor (auto_retry_of given) or a retry as a new job.
INSERT INTO {job} ({job_columns})
SELECT {job_copied}
FROM {job}
WHERE id = :source

-- name: copy_tags
INSERT INTO {tag} (job_id, tag)
SELECT :id, tag
FROM {tag}
WHERE job_id = :source

-- name: edit_job
-- Only before the first claim: the live row has been checked in the same transaction.
UPDATE {job}
SET payload = :payload, secrets = :secrets, params = :params, options = :options, principal = :principal,
    queue = :queue, kind_version = :kind_version, limit_key = :limit_key
WHERE id = :job_id

-- name: delete_tags
DELETE FROM {tag}
WHERE job_id = :job_id
