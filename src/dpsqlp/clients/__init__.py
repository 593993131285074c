"""Clients of servers, shared by sources and sinks."""
