-- How much at once: limits and rates, the permits of running jobs, and the lines of jobs that found a key full.
-- MySQL cannot add a column only if it is missing, so each of these is prepared from a text that does nothing if it is there.

-- With its limits: which keys the job needs a permit of, and how heavy it is for each; a new life needs them again.
SET @perdure_step = (
    SELECT IF(COUNT(*) = 0, 'ALTER TABLE {job} ADD COLUMN limit_key VARCHAR(1000)', 'DO 0')
    FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = '{job}' AND column_name = 'limit_key'
);
PREPARE perdure_step FROM @perdure_step;
EXECUTE perdure_step;
DEALLOCATE PREPARE perdure_step;

-- The key in whose line a held job stands. NULL: it is awake, the next claim looks at it. held_in: where it waits, for one
-- index of the awake jobs of a queue and of every line.
ALTER TABLE {ready} MODIFY COLUMN limit_key VARCHAR(1000);
SET @perdure_step = (
    SELECT IF(
        COUNT(*) = 0,
        'ALTER TABLE {ready} ADD COLUMN held_by VARCHAR(255), ADD COLUMN held_in VARCHAR(400) AS (CASE WHEN state = ''held'' THEN CONCAT(COALESCE(held_by, ''''), CHAR(30 USING utf8mb4), queue) END) STORED, ADD INDEX ready_held (held_in, `rank`, position, job_id)',
        'DO 0'
    )
    FROM information_schema.columns
    WHERE table_schema = DATABASE() AND table_name = '{ready}' AND column_name = 'held_by'
);
PREPARE perdure_step FROM @perdure_step;
EXECUTE perdure_step;
DEALLOCATE PREPARE perdure_step;

-- What a name means. `most` was declared by the code of workers, `set_most` by hand, which wins. No row: no limit.
CREATE TABLE IF NOT EXISTS {limit_rule} (
    name        VARCHAR(128)  NOT NULL PRIMARY KEY,
    sort        VARCHAR(16)   NOT NULL,
    most        BIGINT,
    per_us      BIGINT,
    burst       BIGINT,
    declared_by LONGTEXT      NOT NULL,
    declared_at BIGINT,
    set_most    BIGINT,
    set_at      BIGINT,
    paused_at   BIGINT
) {table_options};

-- What is particular about one key: set or paused by hand, and how far a rate is spent. Also its lock.
-- opens_at: when a job of its line fits again. since_at, spent: the window of a fixed rate; of a bucket the time at which it
-- is full again.
CREATE TABLE IF NOT EXISTS {limit_key} (
    `key`     VARCHAR(255)  NOT NULL PRIMARY KEY,
    set_most  BIGINT,
    set_at    BIGINT,
    paused_at BIGINT,
    opens_at  BIGINT,
    since_at  BIGINT,
    spent     BIGINT,
    INDEX limit_key_opens (opens_at)
) {table_options};

-- Held by a running job, until its run ends; or by a block of `app.limits.hold`, which has a lease.
CREATE TABLE IF NOT EXISTS {permit} (
    `key`       VARCHAR(255)  NOT NULL,
    holder      BINARY(16)    NOT NULL,
    weight      BIGINT        NOT NULL,
    lease_until BIGINT,
    PRIMARY KEY (`key`, holder),
    INDEX permit_leases (lease_until)
) {table_options};

-- The starts of a sliding rate, as long as they count.
CREATE TABLE IF NOT EXISTS {start} (
    `key`    VARCHAR(255)  NOT NULL,
    at       BIGINT        NOT NULL,
    start_id BINARY(16)    NOT NULL,
    weight   BIGINT        NOT NULL,
    PRIMARY KEY (`key`, at, start_id)
) {table_options};

-- Keys whose lines somebody has to look at. whole: all keys of the limit with this name, those up to `after` are done.
CREATE TABLE IF NOT EXISTS {limit_look} (
    look_id BINARY(16)    NOT NULL,
    `key`   VARCHAR(255)  NOT NULL,
    whole   INTEGER       NOT NULL,
    after   VARCHAR(255)  NOT NULL,
    PRIMARY KEY (look_id, `key`)
) {table_options};
