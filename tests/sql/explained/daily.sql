CREATE SOURCE page_views (url TEXT, user_id TEXT, ts TIMESTAMP, dwell DOUBLE)
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE SINK popular AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-8, privacy_unit_column = user_id, mechanism = 'tree',
           max_rows_contributed = 32, max_rows_per_group = 2, max_selections_contributed = 8)
  url, COUNT(*) AS views, SUM(dwell, contribution_bounds_per_row => (0, 600)) AS seconds,
  COUNT(DISTINCT user_id) AS users
FROM page_views
GROUP BY url, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 2 HOURS ALLOW LATENESS INTERVAL 2 HOURS;
