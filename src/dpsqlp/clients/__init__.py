"""What sources and sinks share of a server's client."""
