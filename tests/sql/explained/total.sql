CREATE SOURCE page_views (url TEXT, user_id TEXT, ts TIMESTAMP, dwell DOUBLE)
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE SINK total AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-8, privacy_unit_column = user_id, mechanism = 'tree',
           max_rows_contributed = 4)
  AVG(dwell, contribution_bounds_per_row => (-5, 60)) AS m
FROM page_views
EMIT EVERY INTERVAL 1 DAY FOR 7 TRIGGERS;
