-- What an operator should know: two sources that may be one, a weak promise, noise to spare.
CREATE SOURCE visits (shop TEXT, user_name TEXT, basket DOUBLE, ts TIMESTAMP)
  WITH (connector = 'files', path = 'visits/*.parquet', follow = true);
CREATE SOURCE may (shop TEXT, user_name TEXT, basket DOUBLE, ts TIMESTAMP)
  WITH (connector = 'files', path = './visits/may-*.parquet', follow = true);
CREATE SOURCE june (shop TEXT, user_name TEXT, basket DOUBLE, ts TIMESTAMP)
  WITH (connector = 'files', path = 'visits/june-*.csv', follow = true);
CREATE SINK shops AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 20, delta = 1e-3, privacy_unit_column = user_name, max_rows_contributed = 4,
           mechanism = 'tree')
  shop, COUNT(*) AS visits, AVG(basket, contribution_bounds_per_row => (0, 100)) AS basket
FROM visits GROUP BY shop, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 6 HOURS;
CREATE SINK shared AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_name, max_rows_contributed = 4,
           mechanism = 'tree')
  shop, COUNT(basket) AS visits, AVG(basket, contribution_bounds_per_row => (0, 100)) AS basket
FROM (SELECT LOWER(TRIM(user_name)) AS user_name, shop, basket, ts FROM may)
GROUP BY shop, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 6 HOURS;
CREATE SINK another AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_name, max_rows_contributed = 4,
           mechanism = 'tree')
  shop, COUNT(*) AS visits
FROM june GROUP BY shop, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 6 HOURS;
