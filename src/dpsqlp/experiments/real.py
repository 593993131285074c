"""The presets and the baselines on any file of user_id, key and ts."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import duckdb

from dpsqlp.accounting import ContributionBounds, Spending
from dpsqlp.experiments.histogram import true_histogram
from dpsqlp.experiments.replay import ReportProgress, measure
from dpsqlp.experiments.result import Result
from dpsqlp.experiments.synthetic import baseline_rows
from dpsqlp.experiments.task import PRESETS, preset, read_stream

_SPAN = (
    "The span of time was taken from the file, for the convenience of this experiment. In"
    " production it must be public and chosen beforehand: otherwise the data decides about time."
)


def run_real(
    file: Path,
    *,
    triggers: int,
    epsilon: float,
    delta: float,
    contributions: int,
    records_per_key: int | None,
    selections: int | None,
    selection_share: float,
    selection_spending: Spending,
    seed: int,
    threads: int,
    report: ReportProgress,
) -> Result:
    """Presets and baselines on a file; c, Cs, share and spending are those of `best`."""
    stream = read_stream(file)
    truth = true_histogram(stream)
    chosen = {name: preset(name, epsilon, delta, contributions) for name in PRESETS}
    caps = chosen["best"].caps
    caps = ContributionBounds(
        contributions, records_per_key or caps.records_per_key, selections or caps.selections
    )
    chosen["best"] = replace(
        chosen["best"],
        caps=caps,
        selection_share=selection_share,
        selection_spending=selection_spending,
    )
    rows = []
    for name, options in chosen.items():
        on_progress = partial(report, name)
        figures = measure(
            stream, options, triggers, truth, threads=threads, on_progress=on_progress
        )
        rows.append({"method": name, **figures})
    report("baselines", 0, 1)
    accuracy = ("keys", "linf", "l1", "l2")
    rows += [
        {"method": row["baseline"], **{name: row[name] for name in accuracy}}
        for row in baseline_rows(stream, epsilon, delta, contributions, triggers, seed)
    ]
    with duckdb.connect() as database:
        [(units,)] = database.sql(f"SELECT count(DISTINCT user_id) FROM {stream.rows}").fetchall()
    settings = {
        "file": file.name,
        "records": stream.records,
        "units": units,
        "true_keys": truth.num_rows,
        "triggers": triggers,
        "epsilon": epsilon,
        "delta": delta,
        "C": contributions,
        "c": caps.records_per_key,
        "Cs": caps.selections,
        "selection_share": selection_share,
        "selection_spending": selection_spending,
    }
    return Result("real", f"real-{file.stem}", settings, rows, [_SPAN])
