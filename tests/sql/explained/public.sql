CREATE SOURCE page_views (url TEXT, user_id TEXT, ts TIMESTAMP, dwell DOUBLE)
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE PUBLIC TABLE pages AS SELECT * FROM (VALUES ('/'), ('/about')) AS t(url);

CREATE SINK pages AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-8, privacy_unit_column = user_id, mechanism = 'tree',
           max_rows_contributed = 4, group_selection_strategy = PUBLIC_GROUPS, public_groups = pages)
  url, COUNT(*) AS views, COUNT(DISTINCT user_id) AS users
FROM page_views
GROUP BY url, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 12 HOURS;
