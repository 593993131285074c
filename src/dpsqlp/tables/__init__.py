"""Shard tables in memory."""
