-- A day of page views: which articles are read, for how long, and by how many readers per country.
CREATE SOURCE page_views (url TEXT, country TEXT, reader BIGINT, ts TIMESTAMP, seconds DOUBLE)
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE PUBLIC TABLE countries AS
  SELECT * FROM (VALUES ('de'), ('fr'), ('jp'), ('us')) AS t(country);

-- Which articles appear is private, so articles are selected with noise.
CREATE SINK articles WITH (connector = 'parquet', path = 'articles') AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-8, privacy_unit_column = reader,
           privacy_unit_period = INTERVAL 1 DAY, max_contribution_norm = 3)
  url, COUNT(seconds) AS views, AVG(seconds, contribution_bounds_per_row => (0, 120)) AS seconds
FROM page_views
GROUP BY url, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 3 HOURS
  ON EVENT TIME FROM TIMESTAMP '2024-05-01 00:00:00' TO TIMESTAMP '2024-05-02 00:00:00';

-- The countries are no secret: nothing is spent on selecting them.
CREATE SINK audience WITH (connector = 'duckdb', path = 'audience.duckdb') AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 1, delta = 1e-8, privacy_unit_column = reader,
           privacy_unit_period = INTERVAL 1 DAY, max_contribution_norm = 1,
           group_selection_strategy = PUBLIC_GROUPS, public_groups = countries)
  country, COUNT(*) AS readers
FROM page_views
GROUP BY country, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 3 HOURS
  ON EVENT TIME FROM TIMESTAMP '2024-05-01 00:00:00' TO TIMESTAMP '2024-05-02 00:00:00';
