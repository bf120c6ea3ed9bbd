-- What happens by the clock: templates, schedules and their slots, reservations of queues, and the archive.

-- Which version of its template a job was made from.
ALTER TABLE {job} ADD COLUMN template_version bigint;
CREATE INDEX job_by_schedule ON {job} (schedule_id, id) WHERE schedule_id IS NOT NULL;

CREATE TABLE {template} (
    id          uuid             NOT NULL PRIMARY KEY,
    name        text COLLATE "C" NOT NULL UNIQUE,
    version     bigint           NOT NULL,
    created_at  bigint           NOT NULL,
    updated_at  bigint           NOT NULL,
    archived_at bigint
);

-- Every version that a template ever had. Insert-only: a job's template can be seen as it was.
CREATE TABLE {template_version} (
    template_id  uuid             NOT NULL,
    version      bigint           NOT NULL,
    kind         text COLLATE "C" NOT NULL,
    kind_version bigint           NOT NULL,
    payload      text             NOT NULL,
    secrets      text,
    plan         text             NOT NULL,
    description  text,
    created_at   bigint           NOT NULL,
    PRIMARY KEY (template_id, version)
);

-- When jobs are to be made, and which. `enabled = 0` keeps it, with the reason.
CREATE TABLE {schedule} (
    id              uuid             NOT NULL PRIMARY KEY,
    name            text COLLATE "C" NOT NULL,
    owner           text COLLATE "C" NOT NULL,
    source          text COLLATE "C" NOT NULL,
    template_id     uuid,
    kind            text COLLATE "C" NOT NULL,
    kind_version    bigint           NOT NULL,
    payload         text             NOT NULL,
    secrets         text,
    plan            text             NOT NULL,
    cron            text COLLATE "C",
    every_us        bigint,
    at              bigint,
    tz              text COLLATE "C" NOT NULL,
    starts_at       bigint,
    ends_at         bigint,
    policy          text             NOT NULL,
    description     text,
    digests         text,
    declared_at     bigint,
    enabled         integer          NOT NULL,
    disabled_reason text COLLATE "C",
    disabled_at     bigint,
    problem         text,
    last_trigger_at bigint,
    next_trigger_at bigint,
    created_at      bigint           NOT NULL,
    updated_at      bigint           NOT NULL,
    version         bigint           NOT NULL
);

CREATE UNIQUE INDEX schedule_by_name ON {schedule} (name);
CREATE INDEX schedule_declared ON {schedule} (owner, name) WHERE source = 'code' AND enabled = 1;
CREATE INDEX schedule_due ON {schedule} (next_trigger_at, id) WHERE enabled = 1 AND next_trigger_at IS NOT NULL;

-- One planned instant that was taken: by a job, or by the upkeep of a worker (then without a job).
CREATE TABLE {slot} (
    schedule_id   uuid             NOT NULL,
    scheduled_for bigint           NOT NULL,
    previous_at   bigint,
    following_at  bigint,
    job_id        uuid,
    node_id       uuid,
    status        text COLLATE "C",
    note          text,
    created_at    bigint           NOT NULL,
    PRIMARY KEY (schedule_id, scheduled_for)
);

CREATE INDEX slot_by_job ON {slot} (job_id) WHERE job_id IS NOT NULL;

-- Planned instants that nobody took, with the reason, as stretches. `instants` NULL: too many to count.
CREATE TABLE {missed} (
    schedule_id uuid             NOT NULL,
    first_at    bigint           NOT NULL,
    recorded_at bigint           NOT NULL,
    last_at     bigint           NOT NULL,
    instants    bigint,
    reason      text COLLATE "C" NOT NULL,
    PRIMARY KEY (schedule_id, first_at, recorded_at)
);

-- Which live worker declares which schedule in its code.
CREATE TABLE {declaration} (
    name        text COLLATE "C" NOT NULL,
    node_id     uuid             NOT NULL,
    digest      text COLLATE "C" NOT NULL,
    declared_at bigint           NOT NULL,
    PRIMARY KEY (name, node_id)
);

-- Who holds, or held, a queue for direct work. `expires_boot`: by the boot clock of the machine with this boot_id;
-- `lasts_us`: for how long it was taken or last renewed, for observers on other machines.
CREATE TABLE {reservation} (
    id            uuid             NOT NULL PRIMARY KEY,
    queue         text COLLATE "C" NOT NULL,
    reserved_by   text COLLATE "C" NOT NULL,
    status        text COLLATE "C" NOT NULL,
    reserved_at   bigint           NOT NULL,
    entered_at    bigint,
    expires_at    bigint           NOT NULL,
    expires_boot  bigint           NOT NULL,
    lasts_us      bigint           NOT NULL,
    closed_at     bigint,
    host          text,
    pid           integer,
    process_start text,
    boot_id       text COLLATE "C",
    pid_namespace text
);

CREATE UNIQUE INDEX reservation_one_active ON {reservation} (queue) WHERE status = 'active';

-- Ended jobs that were moved out of the way, each as one JSON document with its runs, tags and log lines.
CREATE TABLE {archive} (
    job_id      uuid             NOT NULL PRIMARY KEY,
    kind        text COLLATE "C" NOT NULL,
    owner       text COLLATE "C" NOT NULL,
    queue       text COLLATE "C" NOT NULL,
    state       text COLLATE "C" NOT NULL,
    created_at  bigint           NOT NULL,
    finished_at bigint           NOT NULL,
    archived_at bigint           NOT NULL,
    document    text             NOT NULL
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
