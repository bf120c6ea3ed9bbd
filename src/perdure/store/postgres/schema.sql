-- Texts that are compared or indexed are COLLATE "C": the same order as on every other database, whatever the server's
-- locale, and no index that a new C library would break.
DO $$BEGIN IF to_regnamespace('perdure') IS NULL THEN CREATE SCHEMA perdure; END IF; END$$;

CREATE TABLE {schema_version} (
    revision        integer          NOT NULL PRIMARY KEY,
    name            text COLLATE "C" NOT NULL,
    checksum        text             NOT NULL,
    applied_at      bigint           NOT NULL,
    perdure_version text             NOT NULL
);

-- What a job is. Insert-only after the first claim.
CREATE TABLE {job} (
    id              uuid             NOT NULL PRIMARY KEY,
    kind            text COLLATE "C" NOT NULL,
    kind_version    bigint           NOT NULL,
    owner           text COLLATE "C" NOT NULL,
    queue           text COLLATE "C" NOT NULL,
    payload         text             NOT NULL,
    secrets         text,
    params          text,
    options         text,
    principal       text,
    idempotency_key text COLLATE "C",
    business_key    text COLLATE "C",
    template_id     uuid,
    schedule_id     uuid,
    scheduled_for   bigint,
    batch_id        uuid,
    group_id        uuid,
    sequence        bigint,
    workflow_id     uuid,
    parent_id       uuid,
    root_id         uuid,
    retry_of        uuid,
    auto_retry_of   uuid,
    chain_attempt   integer          NOT NULL,
    created_at      bigint           NOT NULL
);

CREATE INDEX job_by_kind_and_queue ON {job} (kind, queue, id);
CREATE INDEX job_by_business_key ON {job} (business_key, id) WHERE business_key IS NOT NULL;
CREATE INDEX job_by_idempotency_key ON {job} (idempotency_key, id) WHERE idempotency_key IS NOT NULL;
CREATE INDEX job_by_retry_of ON {job} (retry_of) WHERE retry_of IS NOT NULL;
CREATE UNIQUE INDEX job_one_successor ON {job} (auto_retry_of) WHERE auto_retry_of IS NOT NULL;

-- How a live job stands. Small rows, gone at the end.
CREATE TABLE {ready} (
    job_id           uuid             NOT NULL PRIMARY KEY,
    queue            text COLLATE "C" NOT NULL,
    kind             text COLLATE "C" NOT NULL,
    kind_version     bigint           NOT NULL,
    state            text COLLATE "C" NOT NULL,
    rank             bigint           NOT NULL,
    position         bigint           NOT NULL,
    run_at           bigint           NOT NULL,
    queued_at        bigint           NOT NULL,
    started_at       bigint,
    attempts         integer          NOT NULL,
    crashes          integer          NOT NULL,
    life             integer          NOT NULL,
    max_attempts     bigint           NOT NULL,
    as_new_job       integer          NOT NULL,
    timeout_ms       bigint,
    node_id          uuid,
    run_id           uuid,
    claimed_at       bigint,
    deadline_at      bigint,
    waits_for        integer          NOT NULL,
    limit_key        text COLLATE "C",
    business_key     text COLLATE "C",
    superseded_by    uuid,
    paused           integer          NOT NULL,
    cancel_requested integer          NOT NULL,
    park_reason      text COLLATE "C",
    last_error       text,
    updated_at       bigint           NOT NULL,
    version          bigint           NOT NULL
);

-- Only jobs that may start now are in the claim index: a claim costs the same with a thousand or ten million others.
CREATE INDEX ready_claim ON {ready} (queue, rank, position, job_id) WHERE state = 'queued';
CREATE INDEX ready_due ON {ready} (run_at, job_id, queue) WHERE state = 'scheduled';
CREATE INDEX ready_running ON {ready} (node_id, claimed_at) WHERE state = 'running';
CREATE INDEX ready_deadline ON {ready} (deadline_at) WHERE state = 'running' AND deadline_at IS NOT NULL;
CREATE INDEX ready_parked ON {ready} (queue, kind, kind_version, rank, position, job_id)
    WHERE state = 'parked' AND (park_reason = 'unknown_kind' OR park_reason = 'newer_version');
CREATE INDEX ready_aside ON {ready} (state, job_id, queue)
    WHERE state <> 'queued' AND state <> 'running' AND state <> 'scheduled';

-- One row per attempt; closed once.
CREATE TABLE {run} (
    id            uuid             NOT NULL PRIMARY KEY,
    job_id        uuid             NOT NULL,
    state         text COLLATE "C" NOT NULL,
    node_id       uuid             NOT NULL,
    attempt       integer          NOT NULL,
    life          integer          NOT NULL,
    started_at    bigint           NOT NULL,
    finished_at   bigint,
    wait_ms       bigint           NOT NULL,
    duration_ms   bigint,
    exit_code     bigint,
    error_type    text,
    error_message text,
    traceback     text,
    artifacts     text,
    log_path      text,
    metrics       text
);

CREATE INDEX run_by_job ON {run} (job_id, id);
CREATE INDEX run_by_state ON {run} (state, id) WHERE state <> 'running' AND state <> 'completed';

-- How each life of a job ended. Insert-only.
CREATE TABLE {outcome} (
    job_id        uuid             NOT NULL,
    life          integer          NOT NULL,
    state         text COLLATE "C" NOT NULL,
    finished_at   bigint           NOT NULL,
    rank          bigint           NOT NULL,
    position      bigint           NOT NULL,
    run_at        bigint           NOT NULL,
    queued_at     bigint           NOT NULL,
    started_at    bigint,
    attempts      integer          NOT NULL,
    crashes       integer          NOT NULL,
    max_attempts  bigint           NOT NULL,
    result        text,
    error_type    text,
    error         text,
    superseded_by uuid,
    successor     uuid,
    version       bigint           NOT NULL,
    PRIMARY KEY (job_id, life)
);

CREATE INDEX outcome_by_state ON {outcome} (state, job_id) WHERE state <> 'completed';
CREATE INDEX outcome_failed ON {outcome} (finished_at, job_id) WHERE state = 'failed';

-- next_position is unused here: places come from the sequence, which locks nobody out.
CREATE TABLE {queue} (
    name           text COLLATE "C" NOT NULL PRIMARY KEY,
    next_position  bigint           NOT NULL,
    paused_at      bigint,
    concurrency    bigint,
    reserved_until bigint
);

CREATE SEQUENCE {position} AS bigint INCREMENT BY 100 MINVALUE 100;

CREATE TABLE {tag} (
    job_id uuid             NOT NULL,
    tag    text COLLATE "C" NOT NULL,
    PRIMARY KEY (job_id, tag)
);

CREATE INDEX tag_by_tag ON {tag} (tag, job_id);

CREATE TABLE {job_log} (
    run_id  uuid             NOT NULL,
    line    bigint           NOT NULL,
    job_id  uuid             NOT NULL,
    at      bigint           NOT NULL,
    level   text COLLATE "C" NOT NULL,
    message text             NOT NULL,
    fields  text,
    PRIMARY KEY (run_id, line)
);

CREATE INDEX job_log_by_job ON {job_log} (job_id, run_id, line);

-- For ever: outlives the job it names.
CREATE TABLE {idempotency_key} (
    kind         text COLLATE "C" NOT NULL,
    key          text COLLATE "C" NOT NULL,
    job_id       uuid             NOT NULL,
    kind_version bigint           NOT NULL,
    fingerprint  text             NOT NULL,
    created_at   bigint           NOT NULL,
    final_state  text COLLATE "C",
    PRIMARY KEY (kind, key)
);

-- While the job is live.
CREATE TABLE {business_key} (
    key    text COLLATE "C" NOT NULL PRIMARY KEY,
    job_id uuid             NOT NULL
);

-- job_id waits for depends_on to end.
CREATE TABLE {edge} (
    depends_on uuid NOT NULL,
    job_id     uuid NOT NULL,
    PRIMARY KEY (depends_on, job_id)
);

CREATE INDEX edge_by_job ON {edge} (job_id);

CREATE TABLE {node} (
    id            uuid   NOT NULL PRIMARY KEY,
    kinds         text,
    queues        text,
    beat          bigint NOT NULL,
    started_at    bigint NOT NULL,
    beat_at       bigint NOT NULL,
    stopped_at    bigint,
    stop_reason   text,
    host          text,
    pid           bigint,
    process_start text,
    boot_id       text,
    pid_namespace text,
    -- For how long the node may be silent before others take its jobs. NULL: an older Perdure registered it.
    lease_us      bigint
);

CREATE INDEX node_alive ON {node} (id) WHERE stopped_at IS NULL;

CREATE TABLE {lock} (
    name        text COLLATE "C" NOT NULL PRIMARY KEY,
    owner       text COLLATE "C" NOT NULL,
    acquired_at bigint           NOT NULL,
    expires_at  bigint           NOT NULL
);

-- For people: ISO times, no secrets.
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
