CREATE SOURCE page_views (url TEXT, user_id TEXT, country TEXT, ts TIMESTAMP, dwell DOUBLE, tags TEXT[])
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE SINK popular AS
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = u, max_rows_contributed = 8)
  page, COUNT(*) AS views
FROM (SELECT upper(url) AS page, user_id AS u, ts AS at FROM page_views) AS t
GROUP BY page, TUMBLE(at, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 1 HOUR;
