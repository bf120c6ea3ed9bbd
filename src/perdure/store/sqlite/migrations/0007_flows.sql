-- What waits for what: the needs of edges, which are kept when they are decided; flows, which count their members; and a
-- list of work that is too wide for one transaction.

-- `flow_id`: the flow that counts it. `traits`: bits, see `Trait`; most jobs have none.
ALTER TABLE {ready} ADD COLUMN flow_id BLOB;
ALTER TABLE {ready} ADD COLUMN traits INTEGER NOT NULL DEFAULT 0;

-- `flow_id`: the flow it belongs to; one without a `sequence` is not counted. `refs`: which results it needs, and when.
ALTER TABLE {job} ADD COLUMN flow_id BLOB;
ALTER TABLE {job} ADD COLUMN refs TEXT;
CREATE INDEX {job}_by_flow ON {job} (flow_id, sequence, id) WHERE flow_id IS NOT NULL;

-- Edges from before wait for any end.
ALTER TABLE {edge} ADD COLUMN needs TEXT NOT NULL DEFAULT 'end';
ALTER TABLE {edge} ADD COLUMN state TEXT NOT NULL DEFAULT 'waiting';
UPDATE {ready} SET traits = 1, version = version + 1
WHERE traits = 0 AND job_id IN (SELECT depends_on FROM {edge});

-- A chain, group, batch or workflow. `sealed_at` NULL: open, more members may come. The counts are complete at its end; until
-- then those of its tallies are added. `live_key`: its key while it has not ended.
CREATE TABLE {flow} (
    id                  BLOB    NOT NULL PRIMARY KEY,
    sort                TEXT    NOT NULL,
    name                TEXT    NOT NULL,
    owner               TEXT    NOT NULL,
    key                 TEXT,
    live_key            TEXT,
    parent_id           BLOB,
    filled_by           BLOB,
    on_failure          TEXT    NOT NULL,
    at_once             INTEGER,
    properties          TEXT,
    principal           TEXT,
    state               TEXT    NOT NULL,
    attempt             INTEGER NOT NULL,
    total               INTEGER NOT NULL,
    completed           INTEGER NOT NULL,
    failed              INTEGER NOT NULL,
    cancelled           INTEGER NOT NULL,
    skipped             INTEGER NOT NULL,
    run_ms              INTEGER NOT NULL,
    wait_ms             INTEGER NOT NULL,
    attempts            INTEGER NOT NULL,
    created_at          INTEGER NOT NULL,
    sealed_at           INTEGER,
    paused_at           INTEGER,
    cancel_requested_at INTEGER,
    finished_at         INTEGER
) WITHOUT ROWID;

CREATE UNIQUE INDEX {flow}_live_key ON {flow} (live_key) WHERE live_key IS NOT NULL;
CREATE INDEX {flow}_inside ON {flow} (parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX {flow}_filled_by ON {flow} (filled_by) WHERE filled_by IS NOT NULL;
CREATE INDEX {flow}_by_state ON {flow} (state, id) WHERE state <> 'completed';

-- How the members of a flow ended, counted by each node for itself: no two of them write the same row.
CREATE TABLE {tally} (
    flow_id   BLOB    NOT NULL,
    node_id   BLOB    NOT NULL,
    added     INTEGER NOT NULL,
    completed INTEGER NOT NULL,
    failed    INTEGER NOT NULL,
    cancelled INTEGER NOT NULL,
    skipped   INTEGER NOT NULL,
    run_ms    INTEGER NOT NULL,
    wait_ms   INTEGER NOT NULL,
    attempts  INTEGER NOT NULL,
    PRIMARY KEY (flow_id, node_id)
) WITHOUT ROWID;

CREATE INDEX {tally}_by_node ON {tally} (node_id);

-- Work that is done in portions, by whoever has a turn. `reached`: how far it has come. `cause`: keeps two who ask for
-- the same from waiting for each other.
CREATE TABLE {todo} (
    what       TEXT    NOT NULL,
    subject    BLOB    NOT NULL,
    cause      BLOB    NOT NULL,
    reached    TEXT,
    created_at INTEGER NOT NULL,
    PRIMARY KEY (what, subject, cause)
) WITHOUT ROWID;

DROP VIEW {jobs};

CREATE VIEW {jobs} AS
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
