CREATE SOURCE page_views (url TEXT, user_id TEXT, country TEXT, ts TIMESTAMP, dwell DOUBLE, tags TEXT[])
  WITH (connector = 'files', path = 'events/*.parquet');
