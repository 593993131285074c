-- Norms and closings: two sinks over one unit add up, closings included.
CREATE SOURCE page_views (url TEXT, country TEXT, user_id BIGINT, ts TIMESTAMP, dwell DOUBLE)
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE SINK popular AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-8, privacy_unit_column = user_id,
           privacy_unit_period = INTERVAL 1 DAY, max_contribution_norm = 8)
  url, COUNT(dwell) AS views, SUM(dwell, contribution_bounds_per_row => (0, 600)) AS seconds,
  VARIANCE(dwell, contribution_bounds_per_row => (0, 600)) AS spread
FROM page_views
GROUP BY url, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 6 HOURS;

CREATE SINK pages AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 1, delta = 1e-8, privacy_unit_column = user_id,
           privacy_unit_period = INTERVAL 1 DAY, max_contribution_norm = 8,
           max_rows_contributed = 20, max_rows_per_group = 2, min_privacy_units_per_group = 10)
  url, country
FROM page_views
GROUP BY url, country, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 12 HOURS;
