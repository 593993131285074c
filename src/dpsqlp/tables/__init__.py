"""State tables of one shard, in memory."""
