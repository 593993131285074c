CREATE SOURCE page_views (url TEXT, user_id BIGINT, ts TIMESTAMP);

CREATE SINK popular AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_contribution_norm = 4,
           diagnostics_share = 1)
  url, COUNT(*) AS views
FROM page_views
GROUP BY url
EMIT EVERY INTERVAL 1 HOUR FOR 4 TRIGGERS;
