-- Page views from Kafka, counted by page and day, published in PostgreSQL every 15 minutes.
CREATE SOURCE page_views (url TEXT, user_id TEXT, ts TIMESTAMP)
  WITH (connector = 'kafka', brokers = 'kafka:9092', topic = 'page-views',
        dead_letters = '/state/dead-letters');

CREATE SINK popular
  WITH (connector = 'postgres', dsn = 'host=postgres dbname=stats user=dpsqlp') AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 2, delta = 1e-9, privacy_unit_column = user_id,
           privacy_unit_period = INTERVAL 1 DAY, max_contribution_norm = 6)
  url, COUNT(*) AS views
FROM page_views
GROUP BY url, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 15 MINUTES ALLOW LATENESS INTERVAL 1 HOUR;
