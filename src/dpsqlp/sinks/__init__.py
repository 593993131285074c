"""Sinks: where releases are published. A published trigger is never replaced."""
