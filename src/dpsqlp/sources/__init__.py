"""Sources of records: exact offset ranges that can be read again."""
