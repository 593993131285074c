CREATE SOURCE page_views (url TEXT, user_id TEXT, ts TIMESTAMP) WITH (connector = 'files', path = 'events/*.parquet');

CREATE SINK months AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-9, privacy_unit_column = user_id, max_contribution_norm = 4,
           privacy_unit_period = INTERVAL 1 MONTH)
  url, TUMBLE(ts, INTERVAL 1 MONTH) AT TIME ZONE 'Europe/Berlin' AS month, COUNT(*) AS views
FROM page_views
GROUP BY url, month
EMIT EVERY INTERVAL 1 DAY ALLOW LATENESS INTERVAL 2 DAYS ON EVENT TIME FROM TIMESTAMP '2024-01-01' TO TIMESTAMP '2024-04-01';
