"""The cap bias that `dpsqlp preview` predicts from one half of the units, beside the other's.

Options are those of `default` at several norms: a low norm drops many rows, a high one hardly any.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from dpsqlp.experiments.halves import NOTE, Named, Settings, halves
from dpsqlp.experiments.replay import ReportProgress
from dpsqlp.experiments.result import Result
from dpsqlp.experiments.task import query_of
from dpsqlp.tuning.candidate import Candidate
from dpsqlp.tuning.figures import SizeClass, by_size, values_of
from dpsqlp.tuning.load import Simulation
from dpsqlp.tuning.simulate import simulate

_CLASS = ("norm", "rows_from", "rows_to")
_BIAS = (
    "Bias is the median of a class, as a share of the class's median true count; a mean over the"
    " seeds that released keys of the class on both halves."
)


def run_preview(
    named: Named,
    settings: Settings,
    norms: Sequence[float],
    seeds: int,
    threads: int,
    report: ReportProgress,
) -> Result:
    """Predicted and measured bias, by the norm and the size of keys."""
    rows = []
    for seed in range(1, seeds + 1):
        report(f"seed {seed}", seed - 1, seeds)
        rows += predict(named, settings, norms, seed, threads)
    return preview_result(named, settings, seeds, rows)


def predict(
    named: Named, settings: Settings, norms: Sequence[float], seed: int, threads: int
) -> list[dict[str, Any]]:
    """A row for each norm and size of keys that are released on both halves."""
    rows = []
    with halves(named.stream, settings, seed, threads) as split:
        for norm in norms:
            options = replace(settings, default_norm=norm).preset("default")
            candidate = Candidate.of(query_of(split.stream, options, settings.triggers))
            predicted, measured = (
                _sizes(half, candidate) for half in (split.sample, split.measured)
            )
            rows += [
                {
                    "norm": norm,
                    "rows_from": low,
                    "rows_to": predicted[low].high,
                    "keys_released": measured[low].released,
                    "bias_predicted": predicted[low].bias / predicted[low].truth,
                    "bias_measured": measured[low].bias / measured[low].truth,
                    "share_within_2_sd": measured[low].coverage,
                }
                for low in sorted(predicted.keys() & measured.keys())
            ]
    return rows


def preview_result(
    named: Named, settings: Settings, seeds: int, rows: list[dict[str, Any]]
) -> Result:
    """The means over the seeds, by class."""
    means = []
    for each in sorted({tuple(row[column] for column in _CLASS) for row in rows}):
        members = [row for row in rows if tuple(row[column] for column in _CLASS) == each]
        columns = [column for column in members[0] if column not in _CLASS]
        mean = {column: fmean(row[column] for row in members) for column in columns}
        means.append({**dict(zip(_CLASS, each, strict=True)), **mean})
    described = settings.describe(named, seeds)
    return Result("preview", f"preview-{named.name}", described, means, [NOTE, _BIAS])


def _sizes(half: Simulation, candidate: Candidate) -> dict[int, SizeClass]:
    """Errors by the number of records of a key, as a preview shows them, by the lowest number."""
    query = candidate.query(half.query)
    outcome = simulate(half.plan(query), half.sample, half.secret)
    [values] = values_of(query, outcome.plan, outcome.end)
    return {one.low: one for one in by_size(half.sample, outcome.end, values) if one.released}
