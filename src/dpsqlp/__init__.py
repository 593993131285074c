"""Live statistics from private event streams."""
