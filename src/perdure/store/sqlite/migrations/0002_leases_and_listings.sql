-- For how long the node may be silent before others take its jobs. NULL: an older Perdure registered it.
ALTER TABLE {node} ADD COLUMN lease_us INTEGER;

-- Also by queue: the jobs of a queue are found kind by kind, and an insert writes no more than before.
DROP INDEX {job}_by_kind;
CREATE INDEX {job}_by_kind_and_queue ON {job} (kind, queue, id);

-- So that jobs are counted in the index alone. `state` is the same in all entries, but SQLite 3.40 looks it up in the
-- table if it is not among the columns.
DROP INDEX {ready}_claim;
CREATE INDEX {ready}_claim ON {ready} (queue, rank, position, job_id, state) WHERE state = 'queued';
DROP INDEX {ready}_due;
CREATE INDEX {ready}_due ON {ready} (run_at, job_id, queue, state) WHERE state = 'scheduled';
DROP INDEX {ready}_aside;
CREATE INDEX {ready}_aside ON {ready} (state, job_id, queue)
    WHERE state <> 'queued' AND state <> 'running' AND state <> 'scheduled';
