CREATE SOURCE page_views (url TEXT, user_id TEXT, ts TIMESTAMP, dwell DOUBLE)
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE SINK views AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-8, privacy_unit_column = user_id, mechanism = 'tree',
           max_rows_contributed = 4)
  url, COUNT(*) AS views
FROM page_views
GROUP BY url, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 12 HOURS;

CREATE SINK seconds AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-8, privacy_unit_column = user_id, mechanism = 'tree',
           max_rows_contributed = 4)
  url, SUM(dwell, contribution_bounds_per_row => (0, 60)) AS s
FROM page_views
GROUP BY url, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 1 DAY;

CREATE SINK per_day AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-8, privacy_unit_column = user_id, mechanism = 'tree',
           max_rows_contributed = 4, privacy_unit_period = INTERVAL 1 DAY)
  url, COUNT(*) AS views
FROM page_views
GROUP BY url, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 1 DAY ON EVENT TIME FROM TIMESTAMP '2024-01-01' TO TIMESTAMP '2024-02-01';
