CREATE SOURCE s (unit TEXT, c TEXT, ts TIMESTAMP)
  WITH (connector = 'files', path = 'x', folow = true);
