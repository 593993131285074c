CREATE SOURCE page_views (url TEXT, user_id TEXT, country TEXT, ts TIMESTAMP, dwell DOUBLE, tags TEXT[])
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE PUBLIC TABLE pages AS SELECT * FROM (VALUES ('/'), ('/about')) AS t(url);

CREATE SINK popular AS
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_contribution_norm = 8, group_selection_closing = true, group_selection_strategy = PUBLIC_GROUPS, public_groups = pages, privacy_unit_period = INTERVAL 1 DAY)
  url, COUNT(*) AS views
FROM page_views
GROUP BY url, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 1 HOUR;
