CREATE SOURCE s (unit TEXT, k TEXT, ts TIMESTAMP);

CREATE SINK t AS
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = unit, max_rows_contributed = 8)
  REGEXP_FULL_MATCH(k, 'a', '🙂') AS key, COUNT(*) AS n
FROM s GROUP BY key, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 1 HOUR;
