-- name: lock_order
-- verb: move
-- Until the end of the transaction nobody else moves jobs of the queue. Where there is one writer at a time, nobody does.
SELECT :queue

-- name: first_in_rank
-- verb: move
SELECT MIN(position)
FROM {ready}
WHERE queue = :queue AND state = 'queued' AND rank = :rank AND job_id <> :job_id

-- name: neighbours_before
-- verb: move
-- The queued jobs just in front of a place, nearest first.
SELECT job_id, position, version
FROM {ready}
WHERE queue = :queue AND state = 'queued' AND rank = :rank AND job_id <> :job_id
    AND (position, job_id) < (:position, :other)
ORDER BY position DESC, job_id DESC
LIMIT :room

-- name: neighbours_after
-- verb: move
-- The queued jobs just behind a place, nearest first.
SELECT job_id, position, version
FROM {ready}
WHERE queue = :queue AND state = 'queued' AND rank = :rank AND job_id <> :job_id
    AND (position, job_id) > (:position, :other)
ORDER BY position, job_id
LIMIT :room

-- name: keep_counter_ahead
-- verb: move
UPDATE {queue}
SET next_position = :position
WHERE name = :queue AND next_position < :position
