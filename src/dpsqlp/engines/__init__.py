"""Shells around the core that read, commit and publish."""
