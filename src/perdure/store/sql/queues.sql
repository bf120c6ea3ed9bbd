-- name: ring
-- Wake the workers that serve this queue and sleep ('*': all of them). For databases where a statement does that; others
-- have nothing to do here.
SELECT :queue

-- name: ring_if_limited
-- The same if so many jobs of the queue may run at once: one that ends makes room for another.
SELECT :queue

-- name: ensure_queue
INSERT INTO {queue} (name, next_position)
VALUES (:queue, 100)
{unless_known}

-- name: set_queue_pause
UPDATE {queue}
SET paused_at = :paused_at
WHERE name = :queue

-- name: read_queue
SELECT name, paused_at, concurrency, reserved_until, 0, 0, 0
FROM {queue}
WHERE name = :queue
{for_update}
