CREATE SOURCE page_views (u INTEGER, user_id BIGINT, seconds BIGINT);

CREATE SINK popular AS
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 8)
  u, COUNT(*) AS n
FROM page_views
GROUP BY u, TUMBLE(TO_TIMESTAMP(seconds), INTERVAL 1 DAY)
EMIT EVERY INTERVAL 1 HOUR;
