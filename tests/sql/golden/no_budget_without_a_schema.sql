CREATE SOURCE s (unit TEXT, a INTEGER, ts TIMESTAMP) WITH (connector = 'files', path = 'x');
CREATE BUDGET people (epsilon = 3, delta = 1e-8) WITH (connector = 'postgres', table = 'people_ledger');
CREATE SINK t AS SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = unit, max_contribution_norm = 3, mechanism = 'tree', budget = people)
  a, COUNT(*) AS n FROM s GROUP BY a, TUMBLE(ts, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 6 HOURS;
