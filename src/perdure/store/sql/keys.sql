-- name: reserve_idempotency_key
INSERT INTO {idempotency_key} (kind, key, job_id, kind_version, fingerprint, created_at)
VALUES (:kind, :key, :job_id, :kind_version, :fingerprint, :created_at)
{unless_taken}

-- name: read_idempotency_key
SELECT job_id, kind_version, fingerprint, final_state
FROM {idempotency_key}
WHERE kind = :kind AND key = :key

-- name: settle_idempotency_key
-- Before a job is deleted: what is left to say of it, under every name that its kind had. One step per kind that has
-- keys, not one per key.
UPDATE {idempotency_key}
SET final_state = :final_state
WHERE key = :key AND job_id = :job_id
    AND kind IN (
        WITH RECURSIVE known (kind) AS (
            SELECT MIN(kind)
            FROM {idempotency_key}
            UNION ALL
            SELECT (SELECT MIN(k.kind) FROM {idempotency_key} AS k WHERE k.kind > known.kind)
            FROM known
            WHERE known.kind IS NOT NULL
        )
        SELECT known.kind
        FROM known
    )

-- name: reserve_business_key
INSERT INTO {business_key} (key, job_id)
VALUES (:key, :job_id)
{unless_taken}

-- name: read_business_key
SELECT job_id
FROM {business_key}
WHERE key = :key

-- name: free_business_key
-- Only where this job still owns it: a replacement may have it by now.
DELETE FROM {business_key}
WHERE key = :key AND job_id = :job_id

-- name: free_orphaned_business_key
-- A key is held by a live job or by nobody: after a deletion by hand, say, it is free for whoever wants it.
DELETE FROM {business_key}
WHERE key = :key AND job_id = :job_id
    AND NOT EXISTS (SELECT 1 FROM {ready} AS r WHERE r.job_id = :job_id)

-- name: move_business_key
UPDATE {business_key}
SET job_id = :new_owner
WHERE key = :key AND job_id = :job_id
