-- Which workers sleep, one bit for each (see bell.py): whoever queues work looks here, and rings only if one does. A
-- sequence, because its value changes at once and without a lock, whatever becomes of the transaction.
CREATE SEQUENCE {asleep} AS bigint MINVALUE 0 START 0;
SELECT setval('{asleep}', 0);
