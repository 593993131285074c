CREATE SOURCE page_views (url TEXT, user_id TEXT, country TEXT, ts TIMESTAMPTZ, dwell DOUBLE, tags TEXT[])
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE SINK popular AS
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 8)
  url, DATE_TRUNC('quarter', ts AT TIME ZONE 'America/New_York') AS quarter, COUNT(*) AS views
FROM page_views
GROUP BY url, quarter
EMIT EVERY INTERVAL 1 DAY ALLOW LATENESS INTERVAL 3 DAYS ON EVENT TIME FROM TIMESTAMP '2024-01-01' TO TIMESTAMP '2026-01-01';
