CREATE SOURCE page_views (url TEXT, user_id TEXT, ts TIMESTAMP, dwell DOUBLE)
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE SINK trends AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-8, privacy_unit_column = (user_id, url), mechanism = 'tree',
           max_rows_contributed = 4, release = 'threshold', min_privacy_units_per_group = 10)
  url
FROM page_views
GROUP BY url, HOP(ts, INTERVAL 6 HOURS, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 6 HOURS;
