CREATE SOURCE page_views (url TEXT, user_id TEXT, ts TIMESTAMP)
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE SINK popular AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-8, privacy_unit_column = user_id, max_rows_contributed = 32,
           group_selection_spending = 'late')
  url, COUNT(*) AS views
FROM page_views
GROUP BY url, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 2 HOURS;
