-- The whole schema of an SQLite file, as all migrations together make it. To read, and to compare with them in a test.
-- {x} is the table perdure_x, {id:x} and {time:x} are the text of an id and of a time.

CREATE TABLE {schema_version} (
    revision        INTEGER NOT NULL PRIMARY KEY,
    name            TEXT    NOT NULL,
    checksum        TEXT    NOT NULL,
    applied_at      INTEGER NOT NULL,
    perdure_version TEXT    NOT NULL
);

-- What a job is. Insert-only after the first claim. A rowid table: payloads are large, and rows of this size in a
-- WITHOUT ROWID tree take three times the space and half the speed.
CREATE TABLE {job} (
    id              BLOB    NOT NULL PRIMARY KEY,
    kind            TEXT    NOT NULL,
    kind_version    INTEGER NOT NULL,
    owner           TEXT    NOT NULL,
    queue           TEXT    NOT NULL,
    payload         TEXT    NOT NULL,
    secrets         TEXT,
    params          TEXT,
    options         TEXT,
    principal       TEXT,
    idempotency_key TEXT,
    business_key    TEXT,
    template_id     BLOB,
    schedule_id     BLOB,
    scheduled_for   INTEGER,
    batch_id        BLOB,
    group_id        BLOB,
    sequence        INTEGER,
    workflow_id     BLOB,
    parent_id       BLOB,
    root_id         BLOB,
    retry_of        BLOB,
    auto_retry_of   BLOB,
    chain_attempt   INTEGER NOT NULL,
    created_at      INTEGER NOT NULL
);

CREATE INDEX {job}_by_kind_and_queue ON {job} (kind, queue, id);
CREATE INDEX {job}_by_business_key ON {job} (business_key, id) WHERE business_key IS NOT NULL;
CREATE INDEX {job}_by_idempotency_key ON {job} (idempotency_key, id) WHERE idempotency_key IS NOT NULL;
CREATE INDEX {job}_by_retry_of ON {job} (retry_of) WHERE retry_of IS NOT NULL;
CREATE UNIQUE INDEX {job}_one_successor ON {job} (auto_retry_of) WHERE auto_retry_of IS NOT NULL;

-- How a live job stands. Small rows, gone at the end.
CREATE TABLE {ready} (
    job_id           BLOB    NOT NULL PRIMARY KEY,
    queue            TEXT    NOT NULL,
    kind             TEXT    NOT NULL,
    kind_version     INTEGER NOT NULL,
    state            TEXT    NOT NULL,
    rank             INTEGER NOT NULL,
    position         INTEGER NOT NULL,
    run_at           INTEGER NOT NULL,
    queued_at        INTEGER NOT NULL,
    started_at       INTEGER,
    attempts         INTEGER NOT NULL,
    crashes          INTEGER NOT NULL,
    life             INTEGER NOT NULL,
    max_attempts     INTEGER NOT NULL,
    as_new_job       INTEGER NOT NULL,
    timeout_ms       INTEGER,
    node_id          BLOB,
    run_id           BLOB,
    claimed_at       INTEGER,
    deadline_at      INTEGER,
    waits_for        INTEGER NOT NULL,
    limit_key        TEXT,
    business_key     TEXT,
    superseded_by    BLOB,
    paused           INTEGER NOT NULL,
    cancel_requested INTEGER NOT NULL,
    park_reason      TEXT,
    last_error       TEXT,
    updated_at       INTEGER NOT NULL,
    version          INTEGER NOT NULL
) WITHOUT ROWID;

-- Predicates without IN: SQLite makes a table of the list of an IN for every row it writes, at 2 µs each.
-- Only jobs that may start now are in the claim index: a claim costs the same with a thousand or ten million others.
-- `state` is the same in all of its entries, but if it is not among the columns SQLite 3.40 looks it up in the table,
-- and counting takes fifteen times as long.
CREATE INDEX {ready}_claim ON {ready} (queue, rank, position, job_id, state) WHERE state = 'queued';
CREATE INDEX {ready}_due ON {ready} (run_at, job_id, queue, state) WHERE state = 'scheduled';
CREATE INDEX {ready}_running ON {ready} (node_id, claimed_at) WHERE state = 'running';
CREATE INDEX {ready}_deadline ON {ready} (deadline_at) WHERE state = 'running' AND deadline_at IS NOT NULL;
CREATE INDEX {ready}_parked ON {ready} (queue, kind, kind_version, rank, position, job_id)
    WHERE state = 'parked' AND (park_reason = 'unknown_kind' OR park_reason = 'newer_version');
CREATE INDEX {ready}_aside ON {ready} (state, job_id, queue)
    WHERE state <> 'queued' AND state <> 'running' AND state <> 'scheduled';

-- One row per attempt; closed once.
CREATE TABLE {run} (
    id            BLOB    NOT NULL PRIMARY KEY,
    job_id        BLOB    NOT NULL,
    state         TEXT    NOT NULL,
    node_id       BLOB    NOT NULL,
    attempt       INTEGER NOT NULL,
    life          INTEGER NOT NULL,
    started_at    INTEGER NOT NULL,
    finished_at   INTEGER,
    wait_ms       INTEGER NOT NULL,
    duration_ms   INTEGER,
    exit_code     INTEGER,
    error_type    TEXT,
    error_message TEXT,
    traceback     TEXT,
    artifacts     TEXT,
    log_path      TEXT,
    metrics       TEXT
) WITHOUT ROWID;

CREATE INDEX {run}_by_job ON {run} (job_id, id);
CREATE INDEX {run}_by_state ON {run} (state, id) WHERE state <> 'running' AND state <> 'completed';

-- How each life of a job ended. Insert-only.
CREATE TABLE {outcome} (
    job_id        BLOB    NOT NULL,
    life          INTEGER NOT NULL,
    state         TEXT    NOT NULL,
    finished_at   INTEGER NOT NULL,
    rank          INTEGER NOT NULL,
    position      INTEGER NOT NULL,
    run_at        INTEGER NOT NULL,
    queued_at     INTEGER NOT NULL,
    started_at    INTEGER,
    attempts      INTEGER NOT NULL,
    crashes       INTEGER NOT NULL,
    max_attempts  INTEGER NOT NULL,
    result        TEXT,
    error_type    TEXT,
    error         TEXT,
    superseded_by BLOB,
    successor     BLOB,
    version       INTEGER NOT NULL,
    PRIMARY KEY (job_id, life)
) WITHOUT ROWID;

CREATE INDEX {outcome}_by_state ON {outcome} (state, job_id) WHERE state <> 'completed';
CREATE INDEX {outcome}_failed ON {outcome} (finished_at, job_id) WHERE state = 'failed';

CREATE TABLE {queue} (
    name           TEXT    NOT NULL PRIMARY KEY,
    next_position  INTEGER NOT NULL,
    paused_at      INTEGER,
    concurrency    INTEGER,
    reserved_until INTEGER
) WITHOUT ROWID;

CREATE TABLE {tag} (
    job_id BLOB NOT NULL,
    tag    TEXT NOT NULL,
    PRIMARY KEY (job_id, tag)
) WITHOUT ROWID;

CREATE INDEX {tag}_by_tag ON {tag} (tag, job_id);

CREATE TABLE {job_log} (
    run_id  BLOB    NOT NULL,
    line    INTEGER NOT NULL,
    job_id  BLOB    NOT NULL,
    at      INTEGER NOT NULL,
    level   TEXT    NOT NULL,
    message TEXT    NOT NULL,
    fields  TEXT,
    PRIMARY KEY (run_id, line)
) WITHOUT ROWID;

CREATE INDEX {job_log}_by_job ON {job_log} (job_id, run_id, line);

-- For ever: outlives the job it names.
CREATE TABLE {idempotency_key} (
    kind         TEXT    NOT NULL,
    key          TEXT    NOT NULL,
    job_id       BLOB    NOT NULL,
    kind_version INTEGER NOT NULL,
    fingerprint  TEXT    NOT NULL,
    created_at   INTEGER NOT NULL,
    final_state  TEXT,
    PRIMARY KEY (kind, key)
) WITHOUT ROWID;

-- While the job is live.
CREATE TABLE {business_key} (
    key    TEXT NOT NULL PRIMARY KEY,
    job_id BLOB NOT NULL
) WITHOUT ROWID;

-- job_id waits for depends_on to end.
CREATE TABLE {edge} (
    depends_on BLOB NOT NULL,
    job_id     BLOB NOT NULL,
    PRIMARY KEY (depends_on, job_id)
) WITHOUT ROWID;

CREATE INDEX {edge}_by_job ON {edge} (job_id);

CREATE TABLE {node} (
    id            BLOB    NOT NULL PRIMARY KEY,
    kinds         TEXT,
    queues        TEXT,
    beat          INTEGER NOT NULL,
    started_at    INTEGER NOT NULL,
    beat_at       INTEGER NOT NULL,
    stopped_at    INTEGER,
    stop_reason   TEXT,
    host          TEXT,
    pid           INTEGER,
    process_start TEXT,
    boot_id       TEXT,
    pid_namespace TEXT
    -- For how long the node may be silent before others take its jobs. NULL: an older Perdure registered it.
    , lease_us INTEGER) WITHOUT ROWID;

CREATE INDEX {node}_alive ON {node} (id) WHERE stopped_at IS NULL;

CREATE TABLE {lock} (
    name        TEXT    NOT NULL PRIMARY KEY,
    owner       TEXT    NOT NULL,
    acquired_at INTEGER NOT NULL,
    expires_at  INTEGER NOT NULL
) WITHOUT ROWID;

-- For people: text ids, ISO times, no secrets.
CREATE VIEW {jobs} AS
SELECT
    {id:j.id} AS id,
    j.kind,
    j.kind_version,
    CASE
        WHEN j.schedule_id IS NOT NULL THEN 'scheduled'
        WHEN j.batch_id IS NOT NULL THEN 'batch_child'
        WHEN j.workflow_id IS NOT NULL THEN 'workflow'
        WHEN j.group_id IS NOT NULL THEN 'group'
        ELSE 'single'
    END AS job_type,
    j.owner,
    COALESCE(r.queue, j.queue) AS queue,
    COALESCE(r.state, o.state) AS state,
    -COALESCE(r.rank, o.rank) AS priority,
    COALESCE(r.position, o.position) AS position,
    COALESCE(r.attempts, o.attempts) AS attempts,
    COALESCE(r.max_attempts, o.max_attempts) AS max_attempts,
    j.payload,
    j.params,
    o.result,
    COALESCE(r.last_error, o.error) AS error,
    r.park_reason,
    j.principal,
    j.idempotency_key,
    j.business_key,
    {id:j.retry_of} AS retry_of,
    {id:COALESCE(r.superseded_by, o.superseded_by)} AS superseded_by,
    {id:o.successor} AS successor,
    {id:r.node_id} AS node_id,
    {time:j.created_at} AS created_at,
    {time:COALESCE(r.queued_at, o.queued_at)} AS queued_at,
    {time:COALESCE(r.run_at, o.run_at)} AS run_at,
    {time:COALESCE(r.started_at, o.started_at)} AS started_at,
    {time:r.claimed_at} AS claimed_at,
    CASE WHEN r.job_id IS NULL THEN {time:o.finished_at} END AS finished_at
FROM {job} AS j
LEFT JOIN {ready} AS r ON r.job_id = j.id
LEFT JOIN {outcome} AS o ON r.job_id IS NULL
    AND o.job_id = j.id
    AND o.life = (SELECT MAX(x.life) FROM {outcome} AS x WHERE x.job_id = j.id);

CREATE VIEW {runs} AS
SELECT
    {id:u.id} AS run_id,
    {id:u.job_id} AS job_id,
    j.kind,
    j.owner,
    u.state,
    u.attempt,
    u.life,
    {id:u.node_id} AS node_id,
    {id:j.template_id} AS template_id,
    j.payload AS params_snapshot,
    {time:u.started_at} AS started_at,
    {time:u.finished_at} AS finished_at,
    u.wait_ms,
    u.duration_ms,
    u.exit_code,
    u.error_type,
    u.error_message,
    u.traceback,
    u.artifacts,
    u.log_path,
    u.metrics
FROM {run} AS u
LEFT JOIN {job} AS j ON j.id = u.job_id;
