-- name: lock_reservations
-- Until the end of the transaction nobody else reserves a queue. Where there is one writer at a time, nobody does.
SELECT 1

-- name: lock_out_claims
-- Waits for claims that are under way, and keeps others waiting until the end of the transaction. Where there is one
-- writer at a time, there are none.
SELECT 1

-- name: reservation_in_the_way
SELECT {reservation_columns}
FROM {reservation}
WHERE status = 'active' AND (queue = :queue OR queue = '*' OR :queue = '*')
ORDER BY id
LIMIT 1

-- name: insert_reservation
INSERT INTO {reservation} ({reservation_columns})
VALUES ({reservation_values})

-- name: set_queue_reservation
UPDATE {queue}
SET reserved_until = :reserved_until
WHERE name = :queue

-- name: read_reservation
SELECT {reservation_columns}
FROM {reservation}
WHERE id = :id
{for_update}

-- name: any_running
SELECT job_id
FROM {ready}
WHERE state = 'running' AND (queue = :queue OR :queue = '*')
LIMIT 1

-- name: enter_reservation
UPDATE {reservation}
SET entered_at = :entered_at
WHERE id = :id

-- name: extend_reservation
UPDATE {reservation}
SET expires_at = :expires_at, expires_boot = :expires_boot, lasts_us = :lasts_us
WHERE id = :id

-- name: close_reservation
UPDATE {reservation}
SET status = :status, closed_at = :closed_at
WHERE id = :id

-- name: active_reservations
SELECT {reservation_columns}
FROM {reservation}
WHERE status = 'active'
ORDER BY id

-- name: list_reservations
SELECT {reservation_columns}
FROM {reservation}
ORDER BY id DESC
LIMIT :page
