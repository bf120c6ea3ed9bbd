-- The end of a run that completes changes no column of an index, and its page has room for the second version of its rows:
-- it then writes no index (HOT), and the indexes of this table stay half as large. Adding the column writes the table anew;
-- workers wait meanwhile.
ALTER TABLE {run} ADD COLUMN odd_state text COLLATE "C"
    GENERATED ALWAYS AS (CASE WHEN state NOT IN ('running', 'completed') THEN state END) STORED;
ALTER TABLE {run} SET (fillfactor = 50);
DROP INDEX {run_by_state};
CREATE INDEX run_by_state ON {run} (odd_state, id) WHERE odd_state IS NOT NULL;
