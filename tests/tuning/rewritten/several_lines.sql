CREATE SOURCE views (url TEXT, user_id BIGINT);

-- OPTIONS (in a comment)
CREATE SINK other AS SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-7, privacy_unit_column = user_id, max_contribution_norm = 9) url FROM views GROUP BY url EMIT EVERY INTERVAL 1 HOUR FOR 9 TRIGGERS;

CREATE SINK popular AS
WITH clean AS (SELECT LOWER(url) AS url, user_id FROM views)
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 4, delta = 1e-7, privacy_unit_column = (user_id, url), -- one (comment, two
           MAX_CONTRIBUTION_NORM = 2, max_rows_per_group = 1, min_privacy_units_per_group = 2 /* the last */)
  url, COUNT(*) AS views  -- kept
FROM clean
GROUP BY url
EMIT EVERY INTERVAL 1 MINUTE FOR 60 TRIGGERS;
