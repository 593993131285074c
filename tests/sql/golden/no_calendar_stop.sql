CREATE SOURCE page_views (url TEXT, user_id TEXT, country TEXT, ts TIMESTAMP, dwell DOUBLE, tags TEXT[])
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE SINK popular AS
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 8)
  url, COUNT(*) AS views
FROM page_views
GROUP BY url, DATE_TRUNC('month', ts)
EMIT EVERY INTERVAL 1 HOUR ON EVENT TIME FROM TIMESTAMP '2024-01-01' TO TIMESTAMP '2026-01-01 00:10:00';
