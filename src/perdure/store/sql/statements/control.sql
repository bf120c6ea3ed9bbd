-- name: savepoint
SAVEPOINT perdure_op

-- name: release
RELEASE SAVEPOINT perdure_op

-- name: rollback_to
ROLLBACK TO SAVEPOINT perdure_op
