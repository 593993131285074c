CREATE SOURCE s (unit TEXT, a INTEGER, ts TIMESTAMP) WITH (connector = 'files', path = 'x');
CREATE BUDGET people (epsilon = 3, delta = 1e-8, per = INTERVAL 30 DAYS) WITH (path = 'people.ledger');
CREATE SINK t AS SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = unit, max_contribution_norm = 3, mechanism = 'tree', budget = people, privacy_unit_period = INTERVAL 1 DAY)
  a, COUNT(*) AS n FROM s GROUP BY a, TUMBLE(ts + INTERVAL 30 DAYS, INTERVAL 1 DAY)
EMIT EVERY INTERVAL 6 HOURS ON EVENT TIME FROM TIMESTAMP '2024-01-01' TO TIMESTAMP '2024-02-01';
