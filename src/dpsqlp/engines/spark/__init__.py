"""The Spark engine: the same triggers, with shards as Spark tasks."""
