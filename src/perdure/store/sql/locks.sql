-- name: take_over_lock
-- Expired, or mine already: then it is mine until :expires_at.
UPDATE {lock}
SET owner = :owner, acquired_at = :now, expires_at = :expires_at
WHERE name = :name AND (expires_at <= :now OR owner = :owner)

-- name: insert_lock
INSERT INTO {lock} (name, owner, acquired_at, expires_at)
VALUES (:name, :owner, :now, :expires_at)
{unless_known}

-- name: renew_lock
UPDATE {lock}
SET expires_at = :expires_at
WHERE name = :name AND owner = :owner AND expires_at > :now

-- name: release_lock
DELETE FROM {lock}
WHERE name = :name AND owner = :owner

-- name: read_mark
-- Why the database is closed, and since when.
SELECT owner, acquired_at
FROM {lock}
WHERE name = :name

-- name: read_lock
SELECT owner, expires_at
FROM {lock}
WHERE name = :name
