-- How much at once: limits and rates, the permits of running jobs, and the lines of jobs that found a key full.

-- With its limits: which keys the job needs a permit of, and how heavy it is for each; a new life needs them again.
ALTER TABLE {job} ADD COLUMN limit_key text;

-- The key in whose line a held job stands. NULL: it is awake, the next claim looks at it.
ALTER TABLE {ready} ADD COLUMN held_by text COLLATE "C";
CREATE INDEX ready_awake ON {ready} (queue, rank, position, job_id) WHERE state = 'held' AND held_by IS NULL;
CREATE INDEX ready_line ON {ready} (held_by, queue, rank, position, job_id) WHERE held_by IS NOT NULL;

-- What a name means. `most` was declared by the code of workers, `set_most` by hand, which wins. No row: no limit.
CREATE TABLE {limit_rule} (
    name        text    NOT NULL PRIMARY KEY,
    sort        text    NOT NULL,
    most        bigint,
    per_us      bigint,
    burst       bigint,
    declared_by text    NOT NULL,
    declared_at bigint,
    set_most    bigint,
    set_at      bigint,
    paused_at   bigint
);

-- What is particular about one key: set or paused by hand, and how far a rate is spent. On servers also its lock.
-- opens_at: when a job of its line fits again. since_at, spent: the window of a fixed rate; of a bucket the time at which it
-- is full again.
CREATE TABLE {limit_key} (
    key       text    NOT NULL PRIMARY KEY,
    set_most  bigint,
    set_at    bigint,
    paused_at bigint,
    opens_at  bigint,
    since_at  bigint,
    spent     bigint
);

CREATE INDEX limit_key_opens ON {limit_key} (opens_at) WHERE opens_at IS NOT NULL;

-- Held by a running job, until its run ends; or by a block of `app.limits.hold`, which has a lease.
CREATE TABLE {permit} (
    key         text    NOT NULL,
    holder      uuid    NOT NULL,
    weight      bigint  NOT NULL,
    lease_until bigint,
    PRIMARY KEY (key, holder)
);

CREATE INDEX permit_leases ON {permit} (lease_until) WHERE lease_until IS NOT NULL;

-- The starts of a sliding rate, as long as they count.
CREATE TABLE {start} (
    key      text    NOT NULL,
    at       bigint  NOT NULL,
    start_id uuid    NOT NULL,
    weight   bigint  NOT NULL,
    PRIMARY KEY (key, at, start_id)
);

-- Keys whose lines somebody has to look at. whole: all keys of the limit with this name, those up to `after` are done.
CREATE TABLE {limit_look} (
    look_id uuid    NOT NULL,
    key     text    NOT NULL,
    whole   bigint  NOT NULL,
    after   text    NOT NULL,
    PRIMARY KEY (look_id, key)
);
