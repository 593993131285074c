"""The method `tuned`: what `dpsqlp tune` finds on a random half of a file's units.

The other half is what all methods are measured on, so nothing is tuned on what is measured.
"""

from __future__ import annotations

from pathlib import Path

from dpsqlp.experiments.replay import ReportProgress
from dpsqlp.experiments.task import Options, Stream, query_of
from dpsqlp.tuning.candidate import norm_text
from dpsqlp.tuning.load import read_sample
from dpsqlp.tuning.search import search

CANDIDATES = 40


def tuned_options(
    stream: Stream,
    sample: Path,
    options: Options,
    triggers: int,
    seed: int,
    threads: int,
    report: ReportProgress,
) -> Options:
    """The options found on a sample, at the budget of `options`."""
    query = query_of(stream, options, triggers)
    rows = read_sample(
        query, str(sample), Path(), private=[query.source], units=None, seed=seed, threads=threads
    )
    measured, _ = search(rows.simulation(query), "live", CANDIDATES, seed, threads, report)
    found = measured[0].candidate
    return Options(
        options.epsilon,
        options.delta,
        norm=float(norm_text(found.squared_norm)),
        selections=found.selections,
        selection_share=found.share,
        selection_spending=found.spending,
    )
