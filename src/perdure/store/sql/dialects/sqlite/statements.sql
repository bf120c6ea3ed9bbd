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
