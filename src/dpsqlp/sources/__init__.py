"""Where records come from: exact ranges that can be read again."""
