CREATE SOURCE s (unit TEXT, c TEXT, ts TIMESTAMP) WITH (connector = 'files', path = 'x');
CREATE SINK t AS SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 1, delta = 1e-6, privacy_unit_column = unit, max_rows_contributed = 4)
  c, COUNT(*) AS n FROM s GROUP BY c, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 1 HOUR ON EVENT TIME FROM TIMESTAMP '2024-01-01';
