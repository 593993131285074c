CREATE SOURCE page_views (url TEXT, user_id TEXT, country TEXT, ts TIMESTAMP, dwell DOUBLE, tags TEXT[])
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE PUBLIC TABLE countries AS SELECT * FROM (VALUES ('de', 'Europe', 83), ('fr', 'Europe', 68), ('jp', 'Asia', 124)) AS t(dwell, continent, millions);

CREATE SINK popular AS
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 8, group_selection_strategy = PUBLIC_GROUPS, public_groups = countries)
  dwell, COUNT(*) AS views
FROM page_views
GROUP BY dwell, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 1 HOUR;
