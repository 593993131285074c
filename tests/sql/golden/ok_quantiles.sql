CREATE SOURCE page_views (url TEXT, user_id TEXT, country TEXT, ts TIMESTAMP, dwell DOUBLE, tags TEXT[])
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE SINK popular AS
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 8)
  url, APPROX_QUANTILE(dwell, 0.99, contribution_bounds_per_row => (0, 600)) AS q, MEDIAN(dwell, contribution_bounds_per_row => (0, 600)), APPROX_QUANTILE(dwell, 0.25, contribution_bounds_per_row => (0, 600), bins => 8) AS r
FROM page_views
GROUP BY url, TUMBLE(ts, INTERVAL 1 DAY)
HAVING APPROX_QUANTILE(dwell, 0.01, contribution_bounds_per_row => (0, 600)) > 3 AND q_sd < 10
ORDER BY median_dwell
EMIT EVERY INTERVAL 1 HOUR;
