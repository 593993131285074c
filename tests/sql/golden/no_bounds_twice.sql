CREATE SOURCE page_views (url TEXT, user_id TEXT, country TEXT, ts TIMESTAMP, dwell DOUBLE, tags TEXT[])
  WITH (connector = 'files', path = 'events/*.parquet');
CREATE PUBLIC TABLE pages AS SELECT * FROM (VALUES ('/a', TIMESTAMP '2024-01-01'), ('/b', TIMESTAMP '2024-01-02')) AS t(page, published);

CREATE SINK popular AS
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 8)
  url, SUM(dwell, contribution_bounds_per_row => (0, 1), contribution_bounds_per_row => (0, 60)) AS n
FROM page_views
GROUP BY url, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 1 HOUR;
