"""Where ledgers are kept: a file, or a table in PostgreSQL."""
