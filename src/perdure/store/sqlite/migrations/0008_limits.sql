-- How much at once: limits and rates, the permits of running jobs, and the lines of jobs that found a key full.

-- With its limits: which keys the job needs a permit of, and how heavy it is for each; a new life needs them again.
ALTER TABLE {job} ADD COLUMN limit_key TEXT;

-- The key in whose line a held job stands. NULL: it is awake, the next claim looks at it.
ALTER TABLE {ready} ADD COLUMN held_by TEXT;
CREATE INDEX {ready}_awake ON {ready} (queue, rank, position, job_id) WHERE state = 'held' AND held_by IS NULL;
CREATE INDEX {ready}_line ON {ready} (held_by, queue, rank, position, job_id) WHERE held_by IS NOT NULL;

-- What a name means. `most` was declared by the code of workers, `set_most` by hand, which wins. No row: no limit.
CREATE TABLE {limit_rule} (
    name        TEXT    NOT NULL PRIMARY KEY,
    sort        TEXT    NOT NULL,
    most        INTEGER,
    per_us      INTEGER,
    burst       INTEGER,
    declared_by TEXT    NOT NULL,
    declared_at INTEGER,
    set_most    INTEGER,
    set_at      INTEGER,
    paused_at   INTEGER
) WITHOUT ROWID;

-- What is particular about one key: set or paused by hand, and how far a rate is spent. On servers also its lock.
-- opens_at: when a job of its line fits again. since_at, spent: the window of a fixed rate; of a bucket the time at which it
-- is full again.
CREATE TABLE {limit_key} (
    key       TEXT    NOT NULL PRIMARY KEY,
    set_most  INTEGER,
    set_at    INTEGER,
    paused_at INTEGER,
    opens_at  INTEGER,
    since_at  INTEGER,
    spent     INTEGER
) WITHOUT ROWID;

CREATE INDEX {limit_key}_opens ON {limit_key} (opens_at) WHERE opens_at IS NOT NULL;

-- Held by a running job, until its run ends; or by a block of `app.limits.hold`, which has a lease.
CREATE TABLE {permit} (
    key         TEXT    NOT NULL,
    holder      BLOB    NOT NULL,
    weight      INTEGER NOT NULL,
    lease_until INTEGER,
    PRIMARY KEY (key, holder)
) WITHOUT ROWID;

CREATE INDEX {permit}_leases ON {permit} (lease_until) WHERE lease_until IS NOT NULL;

-- The starts of a sliding rate, as long as they count.
CREATE TABLE {start} (
    key      TEXT    NOT NULL,
    at       INTEGER NOT NULL,
    start_id BLOB    NOT NULL,
    weight   INTEGER NOT NULL,
    PRIMARY KEY (key, at, start_id)
) WITHOUT ROWID;

-- Keys whose lines somebody has to look at. whole: all keys of the limit with this name, those up to `after` are done.
CREATE TABLE {limit_look} (
    look_id BLOB    NOT NULL,
    key     TEXT    NOT NULL,
    whole   INTEGER NOT NULL,
    after   TEXT    NOT NULL,
    PRIMARY KEY (look_id, key)
) WITHOUT ROWID;
