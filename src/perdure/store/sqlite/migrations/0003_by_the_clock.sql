-- What happens by the clock: templates, schedules and their slots, reservations of queues, and the archive.

-- Which version of its template a job was made from.
ALTER TABLE {job} ADD COLUMN template_version INTEGER;
CREATE INDEX {job}_by_schedule ON {job} (schedule_id, id) WHERE schedule_id IS NOT NULL;

CREATE TABLE {template} (
    id          BLOB    NOT NULL PRIMARY KEY,
    name        TEXT    NOT NULL UNIQUE,
    version     INTEGER NOT NULL,
    created_at  INTEGER NOT NULL,
    updated_at  INTEGER NOT NULL,
    archived_at INTEGER
) WITHOUT ROWID;

-- Every version that a template ever had. Insert-only: a job's template can be seen as it was.
CREATE TABLE {template_version} (
    template_id  BLOB    NOT NULL,
    version      INTEGER NOT NULL,
    kind         TEXT    NOT NULL,
    kind_version INTEGER NOT NULL,
    payload      TEXT    NOT NULL,
    secrets      TEXT,
    plan         TEXT    NOT NULL,
    description  TEXT,
    created_at   INTEGER NOT NULL,
    PRIMARY KEY (template_id, version)
);

-- When jobs are to be made, and which. `enabled = 0` keeps it, with the reason.
CREATE TABLE {schedule} (
    id              BLOB    NOT NULL PRIMARY KEY,
    name            TEXT    NOT NULL,
    owner           TEXT    NOT NULL,
    source          TEXT    NOT NULL,
    template_id     BLOB,
    kind            TEXT    NOT NULL,
    kind_version    INTEGER NOT NULL,
    payload         TEXT    NOT NULL,
    secrets         TEXT,
    plan            TEXT    NOT NULL,
    cron            TEXT,
    every_us        INTEGER,
    at              INTEGER,
    tz              TEXT    NOT NULL,
    starts_at       INTEGER,
    ends_at         INTEGER,
    policy          TEXT    NOT NULL,
    description     TEXT,
    digests         TEXT,
    declared_at     INTEGER,
    enabled         INTEGER NOT NULL,
    disabled_reason TEXT,
    disabled_at     INTEGER,
    problem         TEXT,
    last_trigger_at INTEGER,
    next_trigger_at INTEGER,
    created_at      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    version         INTEGER NOT NULL
) WITHOUT ROWID;

CREATE UNIQUE INDEX {schedule}_by_name ON {schedule} (name);
CREATE INDEX {schedule}_declared ON {schedule} (owner, name) WHERE source = 'code' AND enabled = 1;
CREATE INDEX {schedule}_due ON {schedule} (next_trigger_at, id) WHERE enabled = 1 AND next_trigger_at IS NOT NULL;

-- One planned instant that was taken: by a job, or by the upkeep of a worker (then without a job).
CREATE TABLE {slot} (
    schedule_id   BLOB    NOT NULL,
    scheduled_for INTEGER NOT NULL,
    previous_at   INTEGER,
    following_at  INTEGER,
    job_id        BLOB,
    node_id       BLOB,
    status        TEXT,
    note          TEXT,
    created_at    INTEGER NOT NULL,
    PRIMARY KEY (schedule_id, scheduled_for)
) WITHOUT ROWID;

CREATE INDEX {slot}_by_job ON {slot} (job_id) WHERE job_id IS NOT NULL;

-- Planned instants that nobody took, with the reason, as stretches. `instants` NULL: too many to count. The columns of the
-- key come first: quick_check of SQLite 3.40 sees NULLs elsewhere, if they do not.
CREATE TABLE {missed} (
    schedule_id BLOB    NOT NULL,
    first_at    INTEGER NOT NULL,
    recorded_at INTEGER NOT NULL,
    last_at     INTEGER NOT NULL,
    instants    INTEGER,
    reason      TEXT    NOT NULL,
    PRIMARY KEY (schedule_id, first_at, recorded_at)
) WITHOUT ROWID;

-- Which live worker declares which schedule in its code.
CREATE TABLE {declaration} (
    name        TEXT    NOT NULL,
    node_id     BLOB    NOT NULL,
    digest      TEXT    NOT NULL,
    declared_at INTEGER NOT NULL,
    PRIMARY KEY (name, node_id)
) WITHOUT ROWID;

-- Who holds, or held, a queue for direct work. `expires_boot`: by the boot clock of the machine with this boot_id;
-- `lasts_us`: for how long it was taken or last renewed, for observers on other machines.
CREATE TABLE {reservation} (
    id            BLOB    NOT NULL PRIMARY KEY,
    queue         TEXT    NOT NULL,
    reserved_by   TEXT    NOT NULL,
    status        TEXT    NOT NULL,
    reserved_at   INTEGER NOT NULL,
    entered_at    INTEGER,
    expires_at    INTEGER NOT NULL,
    expires_boot  INTEGER NOT NULL,
    lasts_us      INTEGER NOT NULL,
    closed_at     INTEGER,
    host          TEXT,
    pid           INTEGER,
    process_start TEXT,
    boot_id       TEXT,
    pid_namespace TEXT
) WITHOUT ROWID;

CREATE UNIQUE INDEX {reservation}_one_active ON {reservation} (queue) WHERE status = 'active';

-- Ended jobs that were moved out of the way, each as one JSON document with its runs, tags and log lines.
CREATE TABLE {archive} (
    job_id      BLOB    NOT NULL PRIMARY KEY,
    kind        TEXT    NOT NULL,
    owner       TEXT    NOT NULL,
    queue       TEXT    NOT NULL,
    state       TEXT    NOT NULL,
    created_at  INTEGER NOT NULL,
    finished_at INTEGER NOT NULL,
    archived_at INTEGER NOT NULL,
    document    TEXT    NOT NULL
);

-- For people.
CREATE VIEW {templates} AS
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

CREATE VIEW {schedules} AS
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

CREATE VIEW {slots} AS
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

-- As before, and which version of its template the job was made from.
DROP VIEW {runs};

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
    u.metrics,
    j.template_version
FROM {run} AS u
LEFT JOIN {job} AS j ON j.id = u.job_id;
