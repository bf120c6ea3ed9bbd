-- Rows to lock that are always there, an index of the lines, and room for the name of a limit.
-- Each statement can be repeated.

-- Who waits for a row that somebody has inserted, and not committed, waits for nothing any more when that is rolled back; of
-- two who waited, each is then in the way of the other's INSERT. So whoever makes a queue's row locks one of these first,
-- chosen by the queue's name, and likewise whoever makes a lock of the table itself.
INSERT INTO {mutex} (name)
SELECT CONCAT(what.sort, ' ', eights.number * 8 + ones.number)
FROM (SELECT 'queue' AS sort UNION ALL SELECT 'order') AS what
CROSS JOIN (
    SELECT 0 AS number UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
    UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7
) AS eights
CROSS JOIN (
    SELECT 0 AS number UNION ALL SELECT 1 UNION ALL SELECT 2 UNION ALL SELECT 3
    UNION ALL SELECT 4 UNION ALL SELECT 5 UNION ALL SELECT 6 UNION ALL SELECT 7
) AS ones
WHERE TRUE
ON DUPLICATE KEY UPDATE name = {mutex}.name;

INSERT INTO {mutex} (name)
VALUES ('reservations'), ('rooms of queues')
ON DUPLICATE KEY UPDATE name = name;

-- The key in whose line a held job stands, '' for one that is awake, NULL for all others. Each queue of a line, and the first
-- job in it, is one step down this index. held_in and its index stay for programs of the version before.
SET @perdure_step = (
    SELECT IF(
        COUNT(*) = 0,
        'ALTER TABLE {ready} ADD COLUMN held_for VARCHAR(255) AS (CASE WHEN state = ''held'' THEN COALESCE(held_by, '''') END) STORED, ADD INDEX ready_line (held_for, queue, `rank`, position, job_id)',
        'DO 0'
    )
    FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = '{ready}' AND column_name = 'held_for'
);
PREPARE perdure_step FROM @perdure_step;
EXECUTE perdure_step;
DEALLOCATE PREPARE perdure_step;

-- As long as every other name: that of a kind's rate is longer than 128.
ALTER TABLE {limit_rule} MODIFY COLUMN name VARCHAR(255) NOT NULL;
