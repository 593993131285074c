CREATE SOURCE page_views (url TEXT, user_id TEXT, country TEXT, ts TIMESTAMP, dwell DOUBLE, tags TEXT[])
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE SINK popular AS
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 8, privacy_unit_period = INTERVAL 1 MONTH)
  url, COUNT(*) AS views
FROM page_views
GROUP BY url, TUMBLE(ts, INTERVAL 1 HOUR)
EMIT EVERY INTERVAL 15 MINUTES ON EVENT TIME FROM TIMESTAMP '2024-01-01' TO TIMESTAMP '2026-01-01';
