CREATE SOURCE page_views (url TEXT, user_id TEXT, country TEXT, ts TIMESTAMP, dwell DOUBLE, tags TEXT[])
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE SINK popular AS
WITH t AS (SELECT user_id, ts, UNNEST(tags) AS tag FROM page_views)
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 8)
  tag, COUNT(*) AS uses
FROM t
GROUP BY tag, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 1 HOUR;
