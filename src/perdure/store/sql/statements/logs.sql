-- name: append_log
INSERT INTO {job_log} (run_id, line, job_id, at, level, message, fields)
VALUES (:run_id, :line, :job_id, :at, :level, :message, :fields)
ON CONFLICT (run_id, line) DO NOTHING

-- name: list_log
SELECT run_id, line, job_id, at, level, message, fields
FROM {job_log}
WHERE job_id = :job_id AND (run_id, line) > (:after_run, :after_line)
ORDER BY run_id, line
LIMIT :page
