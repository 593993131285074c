CREATE BUDGET people (epsilon = 3, delta = 1e-8, per = INTERVAL 30 DAYS) WITH (path = 'p');
CREATE SOURCE page_views (url TEXT, user_id TEXT, country TEXT, ts TIMESTAMP, dwell DOUBLE, tags TEXT[])
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE SINK popular AS
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 8, privacy_unit_period = INTERVAL 1 MONTH, budget = people)
  url, COUNT(*) AS views
FROM page_views
GROUP BY url, DATE_TRUNC('month', ts)
EMIT EVERY INTERVAL 1 DAY;
