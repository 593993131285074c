"""The dashboard: released values over time, the privacy guarantee, the pipeline's health.

Privacy contract: the server reads folders of releases with their public metadata
(`metadata.json`), and never the state, the source or the secret. The one exception is the file of
operator metrics. It is written and read only with `--operator-metrics`, and is labelled not private
wherever it is shown.
"""
