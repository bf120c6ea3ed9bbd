-- Where MariaDB and MySQL differ: MariaDB's part.

-- fragment: share_skip_locked
LOCK IN SHARE MODE SKIP LOCKED

-- fragment: claim_lock
-- MariaDB cannot lock only one of the joined tables. Nobody else locks the row of a live job for long.
FOR UPDATE SKIP LOCKED

-- fragment: front_lock
-- Whoever has it locked may take the job out of the line, or leave it there: it is looked at again.
FOR UPDATE SKIP LOCKED

-- fragment: rule_lock
LOCK IN SHARE MODE SKIP LOCKED

-- fragment: key_lock
FOR UPDATE SKIP LOCKED

-- fragment: each_key
JSON_TABLE(:keys, '$[*]' COLUMNS (key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin PATH '$'))

-- fragment: each_line
JSON_TABLE(:lines, '$[*]' COLUMNS (
    key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin PATH '$[0]',
    queue VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_nopad_bin PATH '$[1]'
))

-- name: take_places
-- A sequence, not the counter in the queue's row: that row would be locked until the enqueuer commits, and a caller's
-- long transaction (tx=) would keep out everyone else. One sequence serves all queues, and each place is answered by
-- itself: those of transactions that run side by side may interleave.
SET STATEMENT max_recursive_iterations = 4294967295 FOR
WITH RECURSIVE wanted (number) AS (
    SELECT 1
    UNION ALL
    SELECT number + 1
    FROM wanted
    WHERE number < :room / 100
)
SELECT NEXTVAL({position}) + 100
FROM {queue} AS q
CROSS JOIN wanted
WHERE q.name = :queue

-- name: make_queue_with_room
-- For the very first job of a queue. Others who want to be the first wait for that one's commit.
SELECT m.name
FROM {mutex} AS m
WHERE m.name = {row_of_queue}
FOR UPDATE;
INSERT INTO {queue} (name, next_position)
VALUES (:queue, 0)
{unless_taken};
SET STATEMENT max_recursive_iterations = 4294967295 FOR
WITH RECURSIVE wanted (number) AS (
    SELECT 1
    UNION ALL
    SELECT number + 1
    FROM wanted
    WHERE number < :room / 100
)
SELECT NEXTVAL({position}) + 100
FROM wanted

-- name: keep_counter_ahead
-- SETVAL never goes back. It is the value before the next one.
SELECT SETVAL({position}, :position)

-- name: queue_counter_behind
SELECT r.queue, COUNT(*) OVER ()
FROM {ready} AS r
GROUP BY r.queue
HAVING MAX(r.position) > (SELECT next_not_cached_value FROM {position})
{shown}

-- name: raise_queue_counters
-- SETVAL takes no expression.
SET @perdure_place = (SELECT COALESCE(MAX(r.position), 0) FROM {ready} AS r);
EXECUTE IMMEDIATE CONCAT('DO SETVAL({position}, ', @perdure_place, ')')
