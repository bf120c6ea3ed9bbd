-- Where MariaDB and MySQL differ: MySQL's part.

-- fragment: share_skip_locked
FOR SHARE SKIP LOCKED

-- fragment: claim_lock
-- MySQL refuses a lock on the lists that come as JSON (error 3569), so each names its tables. The job's row is one of them:
-- it is then read as it is now, as the live row is, and not as it was when the statement began.
FOR UPDATE OF r, j SKIP LOCKED

-- fragment: front_lock
-- Whoever has it locked may take the job out of the line, or leave it there: it is looked at again.
FOR UPDATE OF r SKIP LOCKED

-- fragment: rule_lock
FOR SHARE OF l SKIP LOCKED

-- fragment: key_lock
FOR UPDATE OF y SKIP LOCKED

-- fragment: each_key
JSON_TABLE(:keys, '$[*]' COLUMNS (key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin PATH '$'))

-- fragment: each_line
JSON_TABLE(:lines, '$[*]' COLUMNS (
    key VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin PATH '$[0]',
    queue VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_0900_bin PATH '$[1]'
))

-- fragment: numbers
-- MySQL has no sequences, but AUTO_INCREMENT belongs to no transaction either. A number stands for room for 10,000 jobs;
-- a call that needs more takes several.
WITH RECURSIVE wanted (number) AS (
    SELECT 1
    UNION ALL
    SELECT number + 1
    FROM wanted
    WHERE number < :room / 1000000
)

-- fragment: forget_number
-- By its key alone: in a user's transaction, which is REPEATABLE READ by default, a range would keep every other enqueuer
-- waiting for its commit. So of several numbers those after the first stay: one row for each 10,000 jobs more.
DELETE FROM {position}
WHERE id = LAST_INSERT_ID()

-- fragment: first_place_after
-- Behind the last of these numbers.
SELECT CAST((LAST_INSERT_ID() + CEIL(:room / 1000000)) * 1000000 AS SIGNED)

-- name: take_places
-- Not the counter in the queue's row: that row would be locked until the enqueuer commits, and a caller's long transaction
-- (tx=) would keep out everyone else; nor is it read by the INSERT, which would lock it too.
INSERT INTO {position} (room)
{numbers}
SELECT :room
FROM wanted;
{forget_number};
{first_place_after}
FROM {queue} AS q
WHERE q.name = :queue

-- name: make_queue_with_room
-- For the very first job of a queue. Others who want to be the first wait for that one's commit. To lock a row is to change it:
-- MySQL wants the right to that for SELECT … FOR UPDATE too, and not of one column.
UPDATE {mutex}
SET name = name
WHERE name = {row_of_queue};
INSERT INTO {queue} (name, next_position)
VALUES (:queue, 0)
{unless_taken};
INSERT INTO {position} (room)
{numbers}
SELECT :room
FROM wanted;
{forget_number};
{first_place_after}

-- name: keep_counter_ahead
-- A number given by hand moves the counter behind it.
INSERT INTO {position} (id, room)
VALUES (:position DIV 1000000 + 1, 0)
ON DUPLICATE KEY UPDATE room = 0;
DELETE FROM {position}
WHERE id = :position DIV 1000000 + 1

-- name: queue_counter_behind
-- Only what the next place would come before: the counter itself cannot be read.
SELECT r.queue, COUNT(*) OVER ()
FROM {ready} AS r
WHERE FALSE
{shown}

-- name: raise_queue_counters
INSERT INTO {position} (id, room)
SELECT MAX(r.position) DIV 1000000 + 1, 0
FROM {ready} AS r
HAVING MAX(r.position) IS NOT NULL
ON DUPLICATE KEY UPDATE room = 0
