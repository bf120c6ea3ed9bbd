-- name: append_log
-- Not of a run that is gone: a node that was taken for dead may still talk of a job deleted meanwhile.
INSERT INTO {job_log} (run_id, line, job_id, at, level, message, fields)
SELECT :run_id, :line, :job_id, :at, :level, :message, :fields
FROM {run} AS u
WHERE u.id = :run_id
{unless_taken}

-- name: list_log
SELECT run_id, line, job_id, at, level, message, fields
FROM {job_log}
WHERE job_id = :job_id AND (run_id, line) > (:after_run, :after_line)
ORDER BY run_id, line
LIMIT :page
