"""Options from a sample: a simulation through the real core, a search, and reports."""
