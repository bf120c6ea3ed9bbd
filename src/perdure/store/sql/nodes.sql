-- name: register_node
INSERT INTO {node} (
    id, kinds, queues, beat, started_at, beat_at, host, pid, process_start, boot_id, pid_namespace, lease_us
)
VALUES (:id, :kinds, :queues, 0, :started_at, :started_at, :host, :pid, :process_start, :boot_id, :pid_namespace, :lease_us)

-- name: beat_node
UPDATE {node}
SET beat = beat + 1, beat_at = :now
WHERE id = :node_id AND stopped_at IS NULL

-- name: stop_node
-- Stops once, whoever says so first; :beat is given by who saw it unchanged.
UPDATE {node}
SET stopped_at = :now, stop_reason = :reason
WHERE id = :node_id AND stopped_at IS NULL AND (:beat IS NULL OR beat = :beat)

-- name: list_nodes
SELECT {node_columns}
FROM {node}
ORDER BY id DESC
LIMIT :page
