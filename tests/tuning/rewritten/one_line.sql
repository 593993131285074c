CREATE SOURCE views (url TEXT, user_id BIGINT);
CREATE SINK popular AS SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (max_rows_contributed = 5, max_rows_per_group = 1, epsilon = 4, delta = 1e-7, privacy_unit_column = user_id, group_selection_share = 0.9) url FROM views GROUP BY url EMIT EVERY INTERVAL 1 MINUTE FOR 60 TRIGGERS
