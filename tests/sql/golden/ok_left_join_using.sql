CREATE SOURCE page_views (url TEXT, user_id TEXT, country TEXT, ts TIMESTAMP, dwell DOUBLE, tags TEXT[])
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE PUBLIC TABLE countries AS SELECT * FROM (VALUES ('de', 'Europe', 83), ('fr', 'Europe', 68), ('jp', 'Asia', 124)) AS t(code, continent, millions);

CREATE SINK popular AS
WITH c AS (SELECT code AS country, continent FROM countries)
SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_rows_contributed = 8)
  continent, COUNT(*) AS views
FROM page_views LEFT JOIN c USING (country)
GROUP BY continent, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 1 HOUR;
