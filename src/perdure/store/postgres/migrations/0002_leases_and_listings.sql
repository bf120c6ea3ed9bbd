-- For how long the node may be silent before others take its jobs. NULL: an older Perdure registered it.
ALTER TABLE {node} ADD COLUMN lease_us bigint;

-- Also by queue: the jobs of a queue are found kind by kind, and an insert writes no more than before.
DROP INDEX {job_by_kind};
CREATE INDEX job_by_kind_and_queue ON {job} (kind, queue, id);

-- So that jobs are counted in the index alone.
DROP INDEX {ready_due};
CREATE INDEX ready_due ON {ready} (run_at, job_id, queue) WHERE state = 'scheduled';
DROP INDEX {ready_aside};
CREATE INDEX ready_aside ON {ready} (state, job_id, queue)
    WHERE state <> 'queued' AND state <> 'running' AND state <> 'scheduled';
