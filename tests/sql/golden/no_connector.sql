CREATE SOURCE s (unit TEXT, c TEXT, ts TIMESTAMP) WITH (connector = 'file', path = 'x');
