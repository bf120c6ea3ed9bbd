-- How PostgreSQL keeps the tables that change most. No column differs, so older workers go on beside it.

-- A page of these small tables keeps half of its room for new versions of its rows: a beat, a pause or a renewed lock then
-- stays on its page and writes no index (HOT).
ALTER TABLE {node} SET (fillfactor = 50);
ALTER TABLE {queue} SET (fillfactor = 50);
ALTER TABLE {lock} SET (fillfactor = 50);

-- Every job leaves two dead rows here. They are removed after so many of them, not after a fifth of a table that was large
-- once, and without pauses: until then every claim walks past them.
ALTER TABLE {ready} SET (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0,
    autovacuum_analyze_scale_factor = 0.02,
    autovacuum_analyze_threshold = 10000
);
ALTER TABLE {business_key} SET (
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_cost_delay = 0
);

-- One dead row for each run, in a table that only grows.
ALTER TABLE {run} SET (autovacuum_vacuum_scale_factor = 0.02);
