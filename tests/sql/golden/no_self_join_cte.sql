CREATE SOURCE page_views (url TEXT, user_id TEXT, country TEXT, ts TIMESTAMP, dwell DOUBLE, tags TEXT[])
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE SINK popular AS
WITH t AS (SELECT * FROM page_views)
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = t.user_id, max_rows_contributed = 8)
  t.url AS url, COUNT(*) AS n
FROM t, t AS u
GROUP BY t.url, TUMBLE(t.ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 1 HOUR;
