-- fragment: for_update
-- Writers begin IMMEDIATE: nobody else writes until they commit.

-- fragment: for_share

-- fragment: share_rule

-- fragment: claim_lock

-- fragment: front_lock

-- fragment: each_key
(SELECT e.value AS key FROM json_each(:keys) AS e)

-- fragment: each_line
(SELECT json_extract(e.value, '$[0]') AS key, json_extract(e.value, '$[1]') AS queue FROM json_each(:lines) AS e)

-- fragment: skip_locked

-- fragment: is_of_limit
m.of_key = l.name OR substr(m.of_key, 1, length(l.name) + 1) = l.name || char(31)

-- fragment: needs_limit
(instr(char(30) || r.limit_key, char(30) || l.name || '*') > 0
        OR instr(char(30) || r.limit_key, char(30) || l.name || char(31)) > 0)

-- fragment: needs_key
instr(char(30) || a.limit_key, char(30) || m.of_key || '*') > 0

-- fragment: tags_of_job
(SELECT GROUP_CONCAT(t.tag, CHAR(31)) FROM {tag} AS t WHERE t.job_id = j.id)

-- fragment: payload_suspect
-- CASE, because json_type fails on what is not JSON.
CASE WHEN json_valid(payload) THEN json_type(payload) <> 'object' ELSE 1 END
    OR CASE WHEN json_valid(COALESCE(secrets, '{}')) THEN json_type(secrets) <> 'object' ELSE 1 END
    OR CASE WHEN json_valid(COALESCE(params, '{}')) THEN json_type(params) <> 'object' ELSE 1 END
    OR CASE WHEN json_valid(COALESCE(options, '{}')) THEN json_type(options) <> 'object' ELSE 1 END
    OR CASE WHEN json_valid(COALESCE(refs, '{}')) THEN json_type(refs) <> 'object' ELSE 1 END

-- fragment: result_suspect
NOT json_valid(result)

-- fragment: crashes_at_most
-- A comparison with what is no number would keep the job from every claim.
(r.crashes <= :most_crashes OR typeof(r.crashes) <> 'integer')

-- fragment: impossible_ready
-- SQLite keeps a value of any type in any column. An id is 16 bytes, and NULL <> 'blob16' is no finding.
{impossible_live_numbers}
        OR typeof(job_id) || length(job_id) <> 'blob16' OR typeof(queue) <> 'text' OR typeof(kind) <> 'text'
        OR typeof(state) <> 'text' OR typeof(kind_version) <> 'integer' OR typeof(rank) <> 'integer'
        OR typeof(position) <> 'integer' OR typeof(run_at) <> 'integer' OR typeof(queued_at) <> 'integer'
        OR typeof(attempts) <> 'integer' OR typeof(crashes) <> 'integer' OR typeof(life) <> 'integer'
        OR typeof(max_attempts) <> 'integer' OR typeof(waits_for) <> 'integer' OR typeof(updated_at) <> 'integer'
        OR typeof(version) <> 'integer' OR typeof(started_at) NOT IN ('integer', 'null')
        OR typeof(timeout_ms) NOT IN ('integer', 'null') OR typeof(claimed_at) NOT IN ('integer', 'null')
        OR typeof(deadline_at) NOT IN ('integer', 'null') OR typeof(node_id) || length(node_id) <> 'blob16'
        OR typeof(run_id) || length(run_id) <> 'blob16' OR typeof(superseded_by) || length(superseded_by) <> 'blob16'
        OR typeof(limit_key) NOT IN ('text', 'null') OR typeof(business_key) NOT IN ('text', 'null')
        OR typeof(park_reason) NOT IN ('text', 'null') OR typeof(held_by) NOT IN ('text', 'null')
        OR typeof(last_error) NOT IN ('text', 'null')

-- fragment: impossible_outcome
{impossible_outcome_numbers}
        OR typeof(job_id) || length(job_id) <> 'blob16' OR typeof(life) <> 'integer'
        OR typeof(finished_at) <> 'integer' OR typeof(rank) <> 'integer' OR typeof(position) <> 'integer'
        OR typeof(run_at) <> 'integer' OR typeof(queued_at) <> 'integer' OR typeof(attempts) <> 'integer'
        OR typeof(crashes) <> 'integer' OR typeof(max_attempts) <> 'integer' OR typeof(version) <> 'integer'
        OR typeof(state) <> 'text' OR typeof(started_at) NOT IN ('integer', 'null')
        OR typeof(result) NOT IN ('text', 'null') OR typeof(error_type) NOT IN ('text', 'null')
        OR typeof(error) NOT IN ('text', 'null') OR typeof(superseded_by) || length(superseded_by) <> 'blob16'
        OR typeof(successor) || length(successor) <> 'blob16'

-- fragment: impossible_run
{impossible_run_numbers}
        OR typeof(id) || length(id) <> 'blob16' OR typeof(job_id) || length(job_id) <> 'blob16'
        OR typeof(node_id) || length(node_id) <> 'blob16'
        OR typeof(state) <> 'text' OR typeof(attempt) <> 'integer' OR typeof(life) <> 'integer'
        OR typeof(started_at) <> 'integer' OR typeof(wait_ms) <> 'integer'
        OR typeof(finished_at) NOT IN ('integer', 'null') OR typeof(duration_ms) NOT IN ('integer', 'null')
        OR typeof(exit_code) NOT IN ('integer', 'null') OR typeof(error_type) NOT IN ('text', 'null')
        OR typeof(error_message) NOT IN ('text', 'null') OR typeof(traceback) NOT IN ('text', 'null')
        OR typeof(artifacts) NOT IN ('text', 'null') OR typeof(log_path) NOT IN ('text', 'null')
        OR typeof(metrics) NOT IN ('text', 'null')

-- fragment: impossible_job
{impossible_job_numbers}
        OR typeof(id) || length(id) <> 'blob16' OR typeof(kind) <> 'text' OR typeof(owner) <> 'text'
        OR typeof(queue) <> 'text' OR typeof(payload) <> 'text' OR typeof(kind_version) <> 'integer'
        OR typeof(chain_attempt) <> 'integer' OR typeof(created_at) <> 'integer'
        OR typeof(secrets) NOT IN ('text', 'null')
        OR typeof(params) NOT IN ('text', 'null') OR typeof(options) NOT IN ('text', 'null')
        OR typeof(principal) NOT IN ('text', 'null') OR typeof(idempotency_key) NOT IN ('text', 'null')
        OR typeof(business_key) NOT IN ('text', 'null') OR typeof(template_id) || length(template_id) <> 'blob16'
        OR typeof(schedule_id) || length(schedule_id) <> 'blob16' OR typeof(batch_id) || length(batch_id) <> 'blob16'
        OR typeof(group_id) || length(group_id) <> 'blob16' OR typeof(workflow_id) || length(workflow_id) <> 'blob16'
        OR typeof(parent_id) || length(parent_id) <> 'blob16' OR typeof(root_id) || length(root_id) <> 'blob16'
        OR typeof(retry_of) || length(retry_of) <> 'blob16'
        OR typeof(auto_retry_of) || length(auto_retry_of) <> 'blob16'
        OR typeof(scheduled_for) NOT IN ('integer', 'null') OR typeof(sequence) NOT IN ('integer', 'null')
        OR typeof(template_version) NOT IN ('integer', 'null') OR typeof(limit_key) NOT IN ('text', 'null')
        OR typeof(flow_id) || length(flow_id) <> 'blob16' OR typeof(refs) NOT IN ('text', 'null')

-- name: count_queued
-- How many jobs of each queue may start now; no further than :cap.
SELECT
    q.name,
    (SELECT COUNT(*) FROM (SELECT 1 AS one FROM {ready} AS r WHERE r.queue = q.name AND r.state = 'queued' LIMIT :cap) AS c)
FROM {queue} AS q

-- name: count_pages
-- Only of a file that can give single pages back: one that was made so, or by perdure db vacuum.
SELECT f.freelist_count, p.page_count
FROM pragma_auto_vacuum AS a
JOIN pragma_freelist_count AS f
JOIN pragma_page_count AS p
WHERE a.auto_vacuum = 2

-- name: free_page
-- One: Python's driver takes only the first step of such a statement.
PRAGMA incremental_vacuum(1)

-- name: begin_writing
-- Takes the write lock: a transaction that has only read so far loses it to whoever writes first.
UPDATE {schema_version}
SET revision = revision
WHERE FALSE
