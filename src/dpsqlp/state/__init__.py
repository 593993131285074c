"""Durable state: a journal of deltas and snapshots behind a storage seam."""
