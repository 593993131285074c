CREATE SOURCE page_views (url TEXT, user_id TEXT, country TEXT, ts TIMESTAMP, dwell DOUBLE, tags TEXT[])
  WITH (connector = 'files', path = 'events/*.parquet');

CREATE SINK popular AS SELECT url, COUNT(*) FROM page_views GROUP BY url EMIT EVERY INTERVAL 1 HOUR;
