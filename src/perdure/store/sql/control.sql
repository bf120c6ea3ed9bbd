-- name: begin_operation
-- Around a whole operation, by another name: one that breaks off may leave savepoints of its own open.
SAVEPOINT perdure_operation

-- name: end_operation
RELEASE SAVEPOINT perdure_operation

-- name: undo_operation
ROLLBACK TO SAVEPOINT perdure_operation

-- name: begin_part
SAVEPOINT perdure_part

-- name: end_part
RELEASE SAVEPOINT perdure_part

-- name: undo_part
ROLLBACK TO SAVEPOINT perdure_part

-- name: savepoint
SAVEPOINT perdure_op

-- name: release
RELEASE SAVEPOINT perdure_op

-- name: rollback_to
ROLLBACK TO SAVEPOINT perdure_op

-- name: begin_writing
SELECT 1
