-- What waits for what: the needs of edges, which are kept when they are decided; flows, which count their members; and a
-- list of work that is too wide for one transaction.

-- `flow_id`: the flow that counts it. `traits`: bits, see `Trait`; most jobs have none.
ALTER TABLE {ready} ADD COLUMN flow_id uuid;
ALTER TABLE {ready} ADD COLUMN traits integer NOT NULL DEFAULT 0;

-- `flow_id`: the flow it belongs to; one without a `sequence` is not counted. `refs`: which results it needs, and when.
ALTER TABLE {job} ADD COLUMN flow_id uuid;
ALTER TABLE {job} ADD COLUMN refs text;
CREATE INDEX job_by_flow ON {job} (flow_id, sequence, id) WHERE flow_id IS NOT NULL;

-- Edges from before wait for any end.
ALTER TABLE {edge} ADD COLUMN needs text COLLATE "C" NOT NULL DEFAULT 'end';
ALTER TABLE {edge} ADD COLUMN state text COLLATE "C" NOT NULL DEFAULT 'waiting';
UPDATE {ready} SET traits = 1, version = version + 1
WHERE traits = 0 AND job_id IN (SELECT depends_on FROM {edge});

-- A chain, group, batch or workflow. `sealed_at` NULL: open, more members may come. The counts are complete at its end; until
-- then those of its tallies are added. `live_key`: its key while it has not ended.
CREATE TABLE {flow} (
    id                  uuid             NOT NULL PRIMARY KEY,
    sort                text COLLATE "C" NOT NULL,
    name                text COLLATE "C" NOT NULL,
    owner               text COLLATE "C" NOT NULL,
    key                 text COLLATE "C",
    live_key            text COLLATE "C",
    parent_id           uuid,
    filled_by           uuid,
    on_failure          text COLLATE "C" NOT NULL,
    at_once             bigint,
    properties          text,
    principal           text,
    state               text COLLATE "C" NOT NULL,
    attempt             integer          NOT NULL,
    total               bigint           NOT NULL,
    completed           bigint           NOT NULL,
    failed              bigint           NOT NULL,
    cancelled           bigint           NOT NULL,
    skipped             bigint           NOT NULL,
    run_ms              bigint           NOT NULL,
    wait_ms             bigint           NOT NULL,
    attempts            bigint           NOT NULL,
    created_at          bigint           NOT NULL,
    sealed_at           bigint,
    paused_at           bigint,
    cancel_requested_at bigint,
    finished_at         bigint
);

CREATE UNIQUE INDEX flow_live_key ON {flow} (live_key) WHERE live_key IS NOT NULL;
CREATE INDEX flow_inside ON {flow} (parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX flow_filled_by ON {flow} (filled_by) WHERE filled_by IS NOT NULL;
CREATE INDEX flow_by_state ON {flow} (state, id) WHERE state <> 'completed';

-- How the members of a flow ended, counted by each node for itself: no two of them write the same row.
CREATE TABLE {tally} (
    flow_id   uuid   NOT NULL,
    node_id   uuid   NOT NULL,
    added     bigint NOT NULL,
    completed bigint NOT NULL,
    failed    bigint NOT NULL,
    cancelled bigint NOT NULL,
    skipped   bigint NOT NULL,
    run_ms    bigint NOT NULL,
    wait_ms   bigint NOT NULL,
    attempts  bigint NOT NULL,
    PRIMARY KEY (flow_id, node_id)
);

CREATE INDEX tally_by_node ON {tally} (node_id);

-- Work that is done in portions, by whoever has a turn. `reached`: how far it has come. `cause`: keeps two who ask for
-- the same from waiting for each other.
CREATE TABLE {todo} (
    what       text COLLATE "C" NOT NULL,
    subject    uuid             NOT NULL,
    cause      uuid             NOT NULL,
    reached    text,
    created_at bigint           NOT NULL,
    PRIMARY KEY (what, subject, cause)
);

-- Rows that are changed in every turn stay on their page.
ALTER TABLE {tally} SET (fillfactor = 50);

CREATE OR REPLACE VIEW {jobs} AS
SELECT
    {id:j.id} AS id,
    j.kind,
    j.kind_version,
    CASE
        WHEN j.schedule_id IS NOT NULL THEN 'scheduled'
        WHEN f.sort = 'batch' THEN 'batch_child'
        WHEN f.sort IS NOT NULL THEN f.sort COLLATE "default"
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
    CASE WHEN r.job_id IS NULL THEN {time:o.finished_at} END AS finished_at,
    {id:j.flow_id} AS flow_id,
    j.sequence,
    r.waits_for
FROM {job} AS j
LEFT JOIN {flow} AS f ON f.id = j.flow_id
LEFT JOIN {ready} AS r ON r.job_id = j.id
LEFT JOIN {outcome} AS o ON r.job_id IS NULL
    AND o.job_id = j.id
    AND o.life = (SELECT MAX(x.life) FROM {outcome} AS x WHERE x.job_id = j.id);
