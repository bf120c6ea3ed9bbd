-- fragment: for_update
-- Writers begin IMMEDIATE: nobody else writes until they commit.

-- fragment: claim_lock

-- fragment: skip_locked

-- fragment: tags_of_job
(SELECT GROUP_CONCAT(t.tag, CHAR(31)) FROM {tag} AS t WHERE t.job_id = j.id)

-- fragment: payload_suspect
NOT json_valid(payload) OR NOT json_valid(COALESCE(params, 'null')) OR NOT json_valid(COALESCE(options, 'null'))

-- fragment: result_suspect
NOT json_valid(result)

-- fragment: crashes_at_most
-- A comparison with what is no number would keep the job from every claim.
(r.crashes <= :most_crashes OR typeof(r.crashes) <> 'integer')

-- fragment: impossible_ready
-- SQLite keeps a value of any type in any column.
attempts NOT BETWEEN 0 AND 2147483646 OR crashes NOT BETWEEN 0 AND 2147483646
        OR waits_for NOT BETWEEN 0 AND 2147483647 OR life NOT BETWEEN 1 AND 2147483646
        OR max_attempts NOT BETWEEN 1 AND 4611686018427387903 OR version NOT BETWEEN 1 AND 4611686018427387903
        OR rank NOT BETWEEN -4611686018427387903 AND 4611686018427387903
        OR position NOT BETWEEN -4611686018427387903 AND 4611686018427387903
        OR kind_version NOT BETWEEN 1 AND 4611686018427387903 OR timeout_ms NOT BETWEEN 0 AND 100000000000000
        OR as_new_job NOT IN (0, 1) OR paused NOT IN (0, 1) OR cancel_requested NOT IN (0, 1)
        OR {impossible_times}
        OR typeof(job_id) <> 'blob' OR typeof(queue) <> 'text' OR typeof(kind) <> 'text'
        OR typeof(state) <> 'text' OR typeof(kind_version) <> 'integer' OR typeof(rank) <> 'integer'
        OR typeof(position) <> 'integer' OR typeof(run_at) <> 'integer' OR typeof(queued_at) <> 'integer'
        OR typeof(attempts) <> 'integer' OR typeof(crashes) <> 'integer' OR typeof(life) <> 'integer'
        OR typeof(max_attempts) <> 'integer' OR typeof(waits_for) <> 'integer' OR typeof(updated_at) <> 'integer'
        OR typeof(version) <> 'integer' OR typeof(started_at) NOT IN ('integer', 'null')
        OR typeof(timeout_ms) NOT IN ('integer', 'null') OR typeof(claimed_at) NOT IN ('integer', 'null')
        OR typeof(deadline_at) NOT IN ('integer', 'null') OR typeof(node_id) NOT IN ('blob', 'null')
        OR typeof(run_id) NOT IN ('blob', 'null') OR typeof(superseded_by) NOT IN ('blob', 'null')
        OR typeof(limit_key) NOT IN ('text', 'null') OR typeof(business_key) NOT IN ('text', 'null')
        OR typeof(park_reason) NOT IN ('text', 'null') OR typeof(last_error) NOT IN ('text', 'null')

-- fragment: impossible_outcome
attempts < 0 OR crashes < 0 OR life < 1 OR max_attempts < 1 OR version < 1
        OR typeof(job_id) <> 'blob' OR typeof(life) <> 'integer' OR typeof(finished_at) <> 'integer'
        OR typeof(rank) <> 'integer' OR typeof(position) <> 'integer' OR typeof(run_at) <> 'integer'
        OR typeof(queued_at) <> 'integer' OR typeof(attempts) <> 'integer' OR typeof(crashes) <> 'integer'
        OR typeof(max_attempts) <> 'integer' OR typeof(version) <> 'integer' OR typeof(state) <> 'text'
        OR typeof(started_at) NOT IN ('integer', 'null') OR typeof(result) NOT IN ('text', 'null')
        OR typeof(error_type) NOT IN ('text', 'null') OR typeof(error) NOT IN ('text', 'null')
        OR typeof(superseded_by) NOT IN ('blob', 'null') OR typeof(successor) NOT IN ('blob', 'null')

-- fragment: impossible_run
attempt < 1 OR life < 1
        OR typeof(id) <> 'blob' OR typeof(job_id) <> 'blob' OR typeof(node_id) <> 'blob'
        OR typeof(state) <> 'text' OR typeof(attempt) <> 'integer' OR typeof(life) <> 'integer'
        OR typeof(started_at) <> 'integer' OR typeof(wait_ms) <> 'integer'
        OR typeof(finished_at) NOT IN ('integer', 'null') OR typeof(duration_ms) NOT IN ('integer', 'null')
        OR typeof(exit_code) NOT IN ('integer', 'null') OR typeof(error_type) NOT IN ('text', 'null')
        OR typeof(error_message) NOT IN ('text', 'null') OR typeof(traceback) NOT IN ('text', 'null')
        OR typeof(artifacts) NOT IN ('text', 'null') OR typeof(log_path) NOT IN ('text', 'null')
        OR typeof(metrics) NOT IN ('text', 'null')

-- fragment: impossible_job
chain_attempt < 1 OR kind_version < 1
        OR typeof(id) <> 'blob' OR typeof(kind) <> 'text' OR typeof(owner) <> 'text' OR typeof(queue) <> 'text'
        OR typeof(payload) <> 'text' OR typeof(kind_version) <> 'integer' OR typeof(chain_attempt) <> 'integer'
        OR typeof(created_at) <> 'integer' OR typeof(secrets) NOT IN ('text', 'null')
        OR typeof(params) NOT IN ('text', 'null') OR typeof(options) NOT IN ('text', 'null')
        OR typeof(principal) NOT IN ('text', 'null') OR typeof(idempotency_key) NOT IN ('text', 'null')
        OR typeof(business_key) NOT IN ('text', 'null') OR typeof(template_id) NOT IN ('blob', 'null')
        OR typeof(schedule_id) NOT IN ('blob', 'null') OR typeof(batch_id) NOT IN ('blob', 'null')
        OR typeof(group_id) NOT IN ('blob', 'null') OR typeof(workflow_id) NOT IN ('blob', 'null')
        OR typeof(parent_id) NOT IN ('blob', 'null') OR typeof(root_id) NOT IN ('blob', 'null')
        OR typeof(retry_of) NOT IN ('blob', 'null') OR typeof(auto_retry_of) NOT IN ('blob', 'null')
        OR typeof(scheduled_for) NOT IN ('integer', 'null') OR typeof(sequence) NOT IN ('integer', 'null')
