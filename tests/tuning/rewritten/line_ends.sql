CREATE SOURCE views (url TEXT, user_id BIGINT);
CREATE SINK popular AS
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (
    epsilon = 4,
    delta = 1e-7,
    privacy_unit_column = user_id,
    max_contribution_norm = 2
)
  url, COUNT(*) AS "Ansichten ü"
FROM views GROUP BY url EMIT EVERY INTERVAL 1 MINUTE FOR 60 TRIGGERS;
