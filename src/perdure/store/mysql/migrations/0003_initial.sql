-- What 0001 to 0003 are on the other databases. DDL commits by itself here, and an upgrade may be killed after any
-- statement: so each of them can be repeated, and the next upgrade begins with the first.
--
-- There are no partial indexes. A generated column that is NULL in most rows takes the place of their condition: `aside`,
-- `due_at`, `parked_in`, `odd_state`. A claim, and the end of a job that completes, change none of them, and so none of
-- their indexes.

CREATE TABLE IF NOT EXISTS {schema_version} (
    revision         INTEGER       NOT NULL PRIMARY KEY,
    name             VARCHAR(255)  NOT NULL,
    checksum         LONGTEXT      NOT NULL,
    applied_at       BIGINT        NOT NULL,
    perdure_version  LONGTEXT      NOT NULL
) {table_options};

-- What a job is. Insert-only after the first claim.
CREATE TABLE IF NOT EXISTS {job} (
    id               BINARY(16)    NOT NULL PRIMARY KEY,
    kind             VARCHAR(255)  NOT NULL,
    kind_version     BIGINT        NOT NULL,
    owner            VARCHAR(255)  NOT NULL,
    queue            VARCHAR(255)  NOT NULL,
    payload          LONGTEXT      NOT NULL,
    secrets          LONGTEXT,
    params           LONGTEXT,
    options          LONGTEXT,
    principal        LONGTEXT,
    idempotency_key  VARCHAR(255),
    business_key     VARCHAR(255),
    template_id      BINARY(16),
    schedule_id      BINARY(16),
    scheduled_for    BIGINT,
    batch_id         BINARY(16),
    group_id         BINARY(16),
    sequence         BIGINT,
    workflow_id      BINARY(16),
    parent_id        BINARY(16),
    root_id          BINARY(16),
    retry_of         BINARY(16),
    auto_retry_of    BINARY(16),
    chain_attempt    INTEGER       NOT NULL,
    created_at       BIGINT        NOT NULL,
    template_version BIGINT,
    INDEX job_by_kind_and_queue (kind, queue, id),
    INDEX job_by_business_key (business_key, id),
    INDEX job_by_idempotency_key (idempotency_key, id),
    INDEX job_by_schedule (schedule_id, id),
    UNIQUE INDEX job_one_successor (auto_retry_of)
) {table_options};

-- How a live job stands. Small rows, gone at the end.
CREATE TABLE IF NOT EXISTS {ready} (
    job_id           BINARY(16)    NOT NULL PRIMARY KEY,
    queue            VARCHAR(255)  NOT NULL,
    kind             VARCHAR(255)  NOT NULL,
    kind_version     BIGINT        NOT NULL,
    state            VARCHAR(16)   NOT NULL,
    `rank`           BIGINT        NOT NULL,
    position         BIGINT        NOT NULL,
    run_at           BIGINT        NOT NULL,
    queued_at        BIGINT        NOT NULL,
    started_at       BIGINT,
    attempts         INTEGER       NOT NULL,
    crashes          INTEGER       NOT NULL,
    life             INTEGER       NOT NULL,
    max_attempts     BIGINT        NOT NULL,
    as_new_job       INTEGER       NOT NULL,
    timeout_ms       BIGINT,
    node_id          BINARY(16),
    run_id           BINARY(16),
    claimed_at       BIGINT,
    deadline_at      BIGINT,
    waits_for        INTEGER       NOT NULL,
    limit_key        VARCHAR(255),
    business_key     VARCHAR(255),
    superseded_by    BINARY(16),
    paused           INTEGER       NOT NULL,
    cancel_requested INTEGER       NOT NULL,
    park_reason      VARCHAR(32),
    last_error       LONGTEXT,
    updated_at       BIGINT        NOT NULL,
    version          BIGINT        NOT NULL,
    aside            VARCHAR(16)   AS (CASE WHEN state NOT IN ('queued', 'running') THEN state END) STORED,
    due_at           BIGINT        AS (CASE WHEN state = 'scheduled' THEN run_at END) STORED,
    parked_in        VARCHAR(255)  AS (
        CASE WHEN state = 'parked' AND park_reason IN ('unknown_kind', 'newer_version') THEN queue END
    ) STORED,
    INDEX ready_claim (state, queue, `rank`, position, job_id),
    INDEX ready_aside (aside, due_at, job_id),
    INDEX ready_parked (parked_in, kind, kind_version, `rank`, position, job_id),
    INDEX ready_node (node_id, claimed_at)
) {table_options};

-- One row per attempt; closed once.
CREATE TABLE IF NOT EXISTS {run} (
    id               BINARY(16)    NOT NULL PRIMARY KEY,
    job_id           BINARY(16)    NOT NULL,
    state            VARCHAR(16)   NOT NULL,
    node_id          BINARY(16)    NOT NULL,
    attempt          INTEGER       NOT NULL,
    life             INTEGER       NOT NULL,
    started_at       BIGINT        NOT NULL,
    finished_at      BIGINT,
    wait_ms          BIGINT        NOT NULL,
    duration_ms      BIGINT,
    exit_code        BIGINT,
    error_type       LONGTEXT,
    error_message    LONGTEXT,
    traceback        LONGTEXT,
    artifacts        LONGTEXT,
    log_path         LONGTEXT,
    metrics          LONGTEXT,
    odd_state        VARCHAR(16)   AS (CASE WHEN state NOT IN ('running', 'completed') THEN state END) STORED,
    INDEX run_by_job (job_id, id),
    INDEX run_by_state (odd_state, id)
) {table_options};

-- How each life of a job ended. Insert-only.
CREATE TABLE IF NOT EXISTS {outcome} (
    job_id           BINARY(16)    NOT NULL,
    life             INTEGER       NOT NULL,
    state            VARCHAR(16)   NOT NULL,
    finished_at      BIGINT        NOT NULL,
    `rank`           BIGINT        NOT NULL,
    position         BIGINT        NOT NULL,
    run_at           BIGINT        NOT NULL,
    queued_at        BIGINT        NOT NULL,
    started_at       BIGINT,
    attempts         INTEGER       NOT NULL,
    crashes          INTEGER       NOT NULL,
    max_attempts     BIGINT        NOT NULL,
    result           LONGTEXT,
    error_type       LONGTEXT,
    error            LONGTEXT,
    superseded_by    BINARY(16),
    successor        BINARY(16),
    version          BIGINT        NOT NULL,
    PRIMARY KEY (job_id, life),
    odd_state        VARCHAR(16)   AS (CASE WHEN state <> 'completed' THEN state END) STORED,
    INDEX outcome_by_state (odd_state, job_id),
    INDEX outcome_by_end (odd_state, finished_at, job_id)
) {table_options};

-- Places at the back of queues. It belongs to no transaction: whoever takes one keeps nobody waiting.
CREATE {position_counter};

-- next_position is unused here.
CREATE TABLE IF NOT EXISTS {queue} (
    name             VARCHAR(255)  NOT NULL PRIMARY KEY,
    next_position    BIGINT        NOT NULL,
    paused_at        BIGINT,
    concurrency      BIGINT,
    reserved_until   BIGINT
) {table_options};

CREATE TABLE IF NOT EXISTS {tag} (
    job_id           BINARY(16)    NOT NULL,
    tag              VARCHAR(255)  NOT NULL,
    PRIMARY KEY (job_id, tag),
    INDEX tag_by_tag (tag, job_id)
) {table_options};

CREATE TABLE IF NOT EXISTS {job_log} (
    run_id           BINARY(16)    NOT NULL,
    line             BIGINT        NOT NULL,
    job_id           BINARY(16)    NOT NULL,
    at               BIGINT        NOT NULL,
    level            VARCHAR(16)   NOT NULL,
    message          LONGTEXT      NOT NULL,
    fields           LONGTEXT,
    PRIMARY KEY (run_id, line),
    INDEX job_log_by_job (job_id, run_id, line)
) {table_options};

-- For ever: outlives the job it names.
CREATE TABLE IF NOT EXISTS {idempotency_key} (
    kind             VARCHAR(255)  NOT NULL,
    `key`            VARCHAR(255)  NOT NULL,
    job_id           BINARY(16)    NOT NULL,
    kind_version     BIGINT        NOT NULL,
    fingerprint      LONGTEXT      NOT NULL,
    created_at       BIGINT        NOT NULL,
    final_state      VARCHAR(16),
    PRIMARY KEY (kind, `key`),
    INDEX idempotency_key_by_job (job_id)
) {table_options};

-- While the job is live.
CREATE TABLE IF NOT EXISTS {business_key} (
    `key`            VARCHAR(255)  NOT NULL PRIMARY KEY,
    job_id           BINARY(16)    NOT NULL
) {table_options};

-- job_id waits for depends_on to end.
CREATE TABLE IF NOT EXISTS {edge} (
    depends_on       BINARY(16)    NOT NULL,
    job_id           BINARY(16)    NOT NULL,
    PRIMARY KEY (depends_on, job_id),
    INDEX edge_by_job (job_id)
) {table_options};

CREATE TABLE IF NOT EXISTS {node} (
    id               BINARY(16)    NOT NULL PRIMARY KEY,
    kinds            LONGTEXT,
    queues           LONGTEXT,
    beat             BIGINT        NOT NULL,
    started_at       BIGINT        NOT NULL,
    beat_at          BIGINT        NOT NULL,
    stopped_at       BIGINT,
    stop_reason      LONGTEXT,
    host             LONGTEXT,
    pid              BIGINT,
    process_start    LONGTEXT,
    boot_id          LONGTEXT,
    pid_namespace    LONGTEXT,
    lease_us         BIGINT,
    INDEX node_alive (stopped_at, id)
) {table_options};

CREATE TABLE IF NOT EXISTS {lock} (
    name             VARCHAR(255)  NOT NULL PRIMARY KEY,
    owner            VARCHAR(255)  NOT NULL,
    acquired_at      BIGINT        NOT NULL,
    expires_at       BIGINT        NOT NULL
) {table_options};

CREATE TABLE IF NOT EXISTS {template} (
    id               BINARY(16)    NOT NULL PRIMARY KEY,
    name             VARCHAR(255)  NOT NULL UNIQUE,
    version          BIGINT        NOT NULL,
    created_at       BIGINT        NOT NULL,
    updated_at       BIGINT        NOT NULL,
    archived_at      BIGINT
) {table_options};

-- Every version that a template ever had. Insert-only: a job's template can be seen as it was.
CREATE TABLE IF NOT EXISTS {template_version} (
    template_id      BINARY(16)    NOT NULL,
    version          BIGINT        NOT NULL,
    kind             VARCHAR(255)  NOT NULL,
    kind_version     BIGINT        NOT NULL,
    payload          LONGTEXT      NOT NULL,
    secrets          LONGTEXT,
    plan             LONGTEXT      NOT NULL,
    description      LONGTEXT,
    created_at       BIGINT        NOT NULL,
    PRIMARY KEY (template_id, version)
) {table_options};

-- When jobs are to be made, and which. `enabled = 0` keeps it, with the reason.
CREATE TABLE IF NOT EXISTS {schedule} (
    id               BINARY(16)    NOT NULL PRIMARY KEY,
    name             VARCHAR(255)  NOT NULL,
    owner            VARCHAR(255)  NOT NULL,
    source           VARCHAR(16)   NOT NULL,
    template_id      BINARY(16),
    kind             VARCHAR(255)  NOT NULL,
    kind_version     BIGINT        NOT NULL,
    payload          LONGTEXT      NOT NULL,
    secrets          LONGTEXT,
    plan             LONGTEXT      NOT NULL,
    cron             LONGTEXT,
    every_us         BIGINT,
    at               BIGINT,
    tz               VARCHAR(64)   NOT NULL,
    starts_at        BIGINT,
    ends_at          BIGINT,
    policy           LONGTEXT      NOT NULL,
    description      LONGTEXT,
    digests          LONGTEXT,
    declared_at      BIGINT,
    enabled          INTEGER       NOT NULL,
    disabled_reason  VARCHAR(64),
    disabled_at      BIGINT,
    problem          LONGTEXT,
    last_trigger_at  BIGINT,
    next_trigger_at  BIGINT,
    created_at       BIGINT        NOT NULL,
    updated_at       BIGINT        NOT NULL,
    version          BIGINT        NOT NULL,
    UNIQUE INDEX schedule_by_name (name),
    INDEX schedule_declared (source, enabled, owner, name),
    INDEX schedule_due (enabled, next_trigger_at, id)
) {table_options};

-- One planned instant that was taken: by a job, or by the upkeep of a worker (then without a job).
CREATE TABLE IF NOT EXISTS {slot} (
    schedule_id      BINARY(16)    NOT NULL,
    scheduled_for    BIGINT        NOT NULL,
    previous_at      BIGINT,
    following_at     BIGINT,
    job_id           BINARY(16),
    node_id          BINARY(16),
    status           VARCHAR(32),
    note             LONGTEXT,
    created_at       BIGINT        NOT NULL,
    PRIMARY KEY (schedule_id, scheduled_for),
    INDEX slot_by_job (job_id)
) {table_options};

-- Planned instants that nobody took, with the reason, as stretches. `instants` NULL: too many to count.
CREATE TABLE IF NOT EXISTS {missed} (
    schedule_id      BINARY(16)    NOT NULL,
    first_at         BIGINT        NOT NULL,
    recorded_at      BIGINT        NOT NULL,
    last_at          BIGINT        NOT NULL,
    instants         BIGINT,
    reason           VARCHAR(32)   NOT NULL,
    PRIMARY KEY (schedule_id, first_at, recorded_at)
) {table_options};

-- Which live worker declares which schedule in its code.
CREATE TABLE IF NOT EXISTS {declaration} (
    name             VARCHAR(255)  NOT NULL,
    node_id          BINARY(16)    NOT NULL,
    digest           VARCHAR(255)  NOT NULL,
    declared_at      BIGINT        NOT NULL,
    PRIMARY KEY (name, node_id)
) {table_options};

-- Who holds, or held, a queue for direct work. `expires_boot`: by the boot clock of the machine with this boot_id;
-- `lasts_us`: for how long it was taken or last renewed, for observers on other machines.
CREATE TABLE IF NOT EXISTS {reservation} (
    id               BINARY(16)    NOT NULL PRIMARY KEY,
    queue            VARCHAR(255)  NOT NULL,
    reserved_by      VARCHAR(255)  NOT NULL,
    status           VARCHAR(32)   NOT NULL,
    reserved_at      BIGINT        NOT NULL,
    entered_at       BIGINT,
    expires_at       BIGINT        NOT NULL,
    expires_boot     BIGINT        NOT NULL,
    lasts_us         BIGINT        NOT NULL,
    closed_at        BIGINT,
    host             LONGTEXT,
    pid              INTEGER,
    process_start    LONGTEXT,
    boot_id          VARCHAR(64),
    pid_namespace    LONGTEXT,
    active_queue     VARCHAR(255)  AS (CASE WHEN status = 'active' THEN queue END) STORED,
    UNIQUE INDEX reservation_one_active (active_queue)
) {table_options};

-- Ended jobs that were moved out of the way, each as one JSON document with its runs, tags and log lines.
CREATE TABLE IF NOT EXISTS {archive} (
    job_id           BINARY(16)    NOT NULL PRIMARY KEY,
    kind             VARCHAR(255)  NOT NULL,
    owner            VARCHAR(255)  NOT NULL,
    queue            VARCHAR(255)  NOT NULL,
    state            VARCHAR(16)   NOT NULL,
    created_at       BIGINT        NOT NULL,
    finished_at      BIGINT        NOT NULL,
    archived_at      BIGINT        NOT NULL,
    document         LONGTEXT      NOT NULL
) {table_options};

-- Rows to lock: until the end of a transaction nobody else has the lock of this name.
CREATE TABLE IF NOT EXISTS {mutex} (
    name             VARCHAR(255)  NOT NULL PRIMARY KEY
) {table_options};

INSERT INTO {mutex} (name) VALUES ('claims') ON DUPLICATE KEY UPDATE name = name;

-- For people: ids as text, ISO times, no secrets.
CREATE OR REPLACE VIEW {jobs} AS
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
    -COALESCE(r.`rank`, o.`rank`) AS priority,
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

CREATE OR REPLACE VIEW {runs} AS
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
    u.metrics,
    j.template_version
FROM {run} AS u
LEFT JOIN {job} AS j ON j.id = u.job_id;

CREATE OR REPLACE VIEW {templates} AS
SELECT
    {id:t.id} AS id,
    t.name,
    v.version,
    t.version AS latest,
    v.kind,
    v.kind_version,
    v.payload,
    v.plan,
    v.description,
    {time:t.archived_at} AS archived_at,
    {time:t.created_at} AS created_at,
    {time:v.created_at} AS written_at
FROM {template} AS t
JOIN {template_version} AS v ON v.template_id = t.id;

CREATE OR REPLACE VIEW {schedules} AS
SELECT
    {id:s.id} AS id,
    s.name,
    s.kind,
    t.name AS template,
    s.cron,
    s.every_us,
    {time:s.at} AS at,
    s.tz,
    s.enabled,
    s.disabled_reason,
    s.problem,
    s.payload,
    s.policy,
    s.source,
    s.owner,
    {time:s.last_trigger_at} AS last_trigger_at,
    {time:s.next_trigger_at} AS next_trigger_at,
    {time:s.created_at} AS created_at
FROM {schedule} AS s
LEFT JOIN {template} AS t ON t.id = s.template_id;

CREATE OR REPLACE VIEW {slots} AS
SELECT
    s.name AS schedule,
    {time:x.scheduled_for} AS scheduled_for,
    {id:x.job_id} AS job_id,
    {id:x.node_id} AS node_id,
    COALESCE(x.status, r.state, o.state) AS status,
    x.note,
    {time:x.created_at} AS created_at
FROM {slot} AS x
JOIN {schedule} AS s ON s.id = x.schedule_id
LEFT JOIN {ready} AS r ON r.job_id = x.job_id
LEFT JOIN {outcome} AS o ON r.job_id IS NULL
    AND o.job_id = x.job_id
    AND o.life = (SELECT MAX(y.life) FROM {outcome} AS y WHERE y.job_id = x.job_id);
