-- Windows without a closing, and why.
CREATE SOURCE page_views (url TEXT, user_id BIGINT, ts TIMESTAMP)
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE SINK switched_off AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-8, privacy_unit_column = user_id, mechanism = 'tree',
           max_contribution_norm = 4, group_selection_closing = false)
  url, COUNT(*) AS views
FROM page_views
GROUP BY url
EMIT EVERY INTERVAL 1 DAY FOR 7 TRIGGERS;

CREATE SINK hopping AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-8, privacy_unit_column = user_id, mechanism = 'tree',
           max_contribution_norm = 4, privacy_unit_period = INTERVAL 1 HOUR)
  url, COUNT(*) AS views
FROM page_views
GROUP BY url, HOP(ts, INTERVAL 1 HOUR, INTERVAL 2 HOURS)
EMIT EVERY INTERVAL 1 HOUR;

CREATE SINK living_on AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-8, privacy_unit_column = user_id, mechanism = 'tree',
           max_contribution_norm = 4)
  url, COUNT(*) AS views
FROM page_views
GROUP BY url, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 12 HOURS;

CREATE SINK nothing_left AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-8, privacy_unit_column = user_id, mechanism = 'tree',
           max_contribution_norm = 1)
  url, COUNT(*) AS views
FROM page_views
GROUP BY url
EMIT EVERY INTERVAL 1 DAY FOR 2 TRIGGERS;
