-- name: live_kinds
-- Which kinds, in which versions, the live jobs are of.
SELECT kind, kind_version, COUNT(*)
FROM {ready}
GROUP BY kind, kind_version
ORDER BY kind, kind_version
