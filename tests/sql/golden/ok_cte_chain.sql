CREATE SOURCE page_views (url TEXT, user_id TEXT, country TEXT, ts TIMESTAMP, dwell DOUBLE, tags TEXT[])
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE SINK popular AS
WITH clean AS (SELECT lower(url) AS page, user_id, ts FROM page_views WHERE dwell > 0),
  short AS (SELECT * EXCLUDE (page), split_part(page, '?', 1) AS page FROM clean)
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 8)
  page, COUNT(*) AS views
FROM short
GROUP BY page, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 1 HOUR;
