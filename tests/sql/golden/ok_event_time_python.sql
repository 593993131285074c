CREATE SOURCE page_views (url TEXT, user_id TEXT, ts TIMESTAMP);

CREATE SINK popular AS
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 8)
  url, COUNT(*) AS views
FROM page_views
GROUP BY url, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 1 HOUR ON EVENT TIME FROM TIMESTAMP '2024-01-01' TO TIMESTAMP '2024-01-02';
