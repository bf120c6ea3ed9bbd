-- What waits for what: the needs of edges, which are kept when they are decided; flows, which count their members; and a
-- list of work that is too wide for one transaction.
-- Each statement can be repeated.

-- `flow_id`: the flow that counts it. `traits`: bits, see `Trait`; most jobs have none.
ALTER TABLE {ready} ADD COLUMN flow_id BINARY(16);
ALTER TABLE {ready} ADD COLUMN traits INTEGER NOT NULL DEFAULT 0;

-- `flow_id`: the flow it belongs to; one without a `sequence` is not counted. `refs`: which results it needs, and when.
ALTER TABLE {job} ADD COLUMN flow_id BINARY(16);
ALTER TABLE {job} ADD COLUMN refs LONGTEXT;
CREATE INDEX job_by_flow ON {job} (flow_id, sequence, id);

-- Edges from before wait for any end.
ALTER TABLE {edge} ADD COLUMN needs VARCHAR(16) NOT NULL DEFAULT 'end';
ALTER TABLE {edge} ADD COLUMN state VARCHAR(16) NOT NULL DEFAULT 'waiting';
UPDATE {ready} SET traits = 1, version = version + 1
WHERE traits = 0 AND job_id IN (SELECT depends_on FROM {edge});

-- A chain, group, batch or workflow. `sealed_at` NULL: open, more members may come. The counts are complete at its end; until
-- then those of its tallies are added. `live_key`: its key while it has not ended.
CREATE TABLE IF NOT EXISTS {flow} (
    id                  BINARY(16)   NOT NULL PRIMARY KEY,
    sort                VARCHAR(16)  NOT NULL,
    name                VARCHAR(255) NOT NULL,
    owner               VARCHAR(255) NOT NULL,
    `key`               VARCHAR(255),
    live_key            VARCHAR(255),
    parent_id           BINARY(16),
    filled_by           BINARY(16),
    on_failure          VARCHAR(16)  NOT NULL,
    at_once             BIGINT,
    properties          LONGTEXT,
    principal           LONGTEXT,
    state               VARCHAR(16)  NOT NULL,
    attempt             INTEGER      NOT NULL,
    total               BIGINT       NOT NULL,
    completed           BIGINT       NOT NULL,
    failed              BIGINT       NOT NULL,
    cancelled           BIGINT       NOT NULL,
    skipped             BIGINT       NOT NULL,
    run_ms              BIGINT       NOT NULL,
    wait_ms             BIGINT       NOT NULL,
    attempts            BIGINT       NOT NULL,
    created_at          BIGINT       NOT NULL,
    sealed_at           BIGINT,
    paused_at           BIGINT,
    cancel_requested_at BIGINT,
    finished_at         BIGINT,
    UNIQUE INDEX flow_live_key (live_key),
    INDEX flow_inside (parent_id, id),
    INDEX flow_filled_by (filled_by),
    INDEX flow_by_state (state, id)
) {table_options};

-- How the members of a flow ended, counted by each node for itself: no two of them write the same row.
CREATE TABLE IF NOT EXISTS {tally} (
    flow_id   BINARY(16) NOT NULL,
    node_id   BINARY(16) NOT NULL,
    added     BIGINT     NOT NULL,
    completed BIGINT     NOT NULL,
    failed    BIGINT     NOT NULL,
    cancelled BIGINT     NOT NULL,
    skipped   BIGINT     NOT NULL,
    run_ms    BIGINT     NOT NULL,
    wait_ms   BIGINT     NOT NULL,
    attempts  BIGINT     NOT NULL,
    PRIMARY KEY (flow_id, node_id),
    INDEX tally_by_node (node_id)
) {table_options};

-- Work that is done in portions, by whoever has a turn. `reached`: how far it has come. `cause`: keeps two who ask for
-- the same from waiting for each other.
CREATE TABLE IF NOT EXISTS {todo} (
    what       VARCHAR(16) NOT NULL,
    subject    BINARY(16)  NOT NULL,
    cause      BINARY(16)  NOT NULL,
    reached    LONGTEXT,
    created_at BIGINT      NOT NULL,
    PRIMARY KEY (what, subject, cause)
) {table_options};

CREATE OR REPLACE VIEW {jobs} AS
SELECT
    {id:j.id} AS id,
    j.kind,
    j.kind_version,
    CASE
        WHEN j.schedule_id IS NOT NULL THEN 'scheduled'
        WHEN f.sort = 'batch' THEN 'batch_child'
        WHEN f.sort IS NOT NULL THEN f.sort
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
