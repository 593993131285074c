CREATE SOURCE page_views (url TEXT, user_id TEXT, ts TIMESTAMP, dwell DOUBLE)
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE SINK popular WITH (connector = 'parquet', path = 'out/') AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 6, delta = 1e-9, privacy_unit_column = user_id,
           max_rows_contributed = 32, max_rows_per_group = 2, max_selections_contributed = 8)
  url, COUNT(*) AS views, SUM(dwell, contribution_bounds_per_row => (0, 600)) AS seconds
FROM page_views
GROUP BY url, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 15 MINUTES ALLOW LATENESS INTERVAL 1 HOUR;
