-- Diagnostics take a part of nu^2 before selection, values and closing.
CREATE SOURCE page_views (url TEXT, user_id BIGINT, ts TIMESTAMP)
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE SINK popular AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-8, privacy_unit_column = user_id,
           privacy_unit_period = INTERVAL 1 DAY, max_contribution_norm = 8,
           diagnostics_share = 0.01)
  url, COUNT(*) AS views
FROM page_views
GROUP BY url, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 6 HOURS;
