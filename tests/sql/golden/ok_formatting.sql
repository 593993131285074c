CREATE SOURCE page_views (url TEXT, user_id TEXT, country TEXT, ts TIMESTAMP, dwell DOUBLE, tags TEXT[])
  WITH (connector = 'files', path = 'events/*.parquet');

/* formatting does not matter */
create sink Popular as
select with differential_privacy options (max_rows_contributed = 8, privacy_unit_column = "USER_ID",
    delta = 1e-9, epsilon = 1) URL, count(*) as Views -- comment
from Page_Views group by "url", tumble(TS, interval '1' day) emit every interval 1 hour;
