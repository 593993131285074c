"""The page to watch: released values, the promise over time, health.

Privacy contract: the server reads folders of releases and what is public of a plan (`about.json`),
and never the state, the source or the secret. What the operator may see beyond that is one file,
written and read only where it was switched on, and named as not private wherever it shows.
"""
