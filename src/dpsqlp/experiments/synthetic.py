"""The paper's synthetic day: accuracy of a preset, of the baselines, and by contribution bound."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from statistics import fmean
from typing import Any

from dpsqlp.experiments.data import write_day
from dpsqlp.experiments.histogram import errors, true_histogram
from dpsqlp.experiments.oneshot import Bounded, budgets
from dpsqlp.experiments.replay import ReportProgress, measure, working_folder
from dpsqlp.experiments.result import Result
from dpsqlp.experiments.task import CONTRIBUTIONS, PresetName, Stream, describe, preset

EPSILON, DELTA = 6.0, 1e-9  # the paper's budget
_FILES = 100  # independent of the triggers; each trigger opens all of them
_MEANS = (
    *("keys", "half_day_keys", "keys_before_last", "linf", "l1", "l2"),
    *("seconds", "records_per_second", "peak_memory_bytes"),
)


@dataclass(frozen=True, slots=True)
class Day:
    """The size of the generated day; the paper's has 10,000,000 units and 1,000,000 keys."""

    units: int
    keys: int
    triggers: int
    seed: int

    def describe(self, records: int) -> dict[str, Any]:
        """The settings of a result."""
        return {
            "units": self.units,
            "key_space": self.keys,
            "records": records,
            "triggers": self.triggers,
            "seed": self.seed,
            "epsilon": EPSILON,
            "delta": DELTA,
        }


@contextmanager
def written(day: Day, report: ReportProgress) -> Iterator[Stream]:
    """Write the day to a temporary folder."""
    with working_folder() as folder:
        report("writing the day", 0, 1)
        records = write_day(folder, day.units, day.keys, _FILES, day.seed)
        yield Stream(f"{folder}/*.parquet", records)


def run_synthetic(
    day: Day, name: PresetName, closing: bool, runs: int, threads: int, report: ReportProgress
) -> Result:
    """Run a preset over the day several times, with new noise; figures are means.

    `closing` is whether it may end with a closing.
    """
    options = replace(preset(name, EPSILON, DELTA), closing=None if closing else False)
    rows = []
    with written(day, report) as stream:
        truth = true_histogram(stream)
        described = describe(stream, options, day.triggers)
        for run in range(1, runs + 1):
            on_progress = partial(report, f"{name}, run {run} of {runs}")
            figures = measure(
                stream, options, day.triggers, truth, threads=threads, on_progress=on_progress
            )
            rows.append({"run": run, **figures})
    settings = {
        "preset": name,
        **day.describe(stream.records),
        **described,
        "runs": runs,
        **{key: fmean(row[key] for row in rows) for key in _MEANS},
    }
    off = "" if closing else "-closing-off"
    return Result("synthetic", f"synthetic-{name}{off}-{day.triggers}", settings, rows)


def baseline_rows(
    stream: Stream, epsilon: float, delta: float, contributions: int, triggers: int, seed: int
) -> list[dict[str, Any]]:
    """The paper's baselines on a stream."""
    truth = true_histogram(stream)
    rows = []
    with working_folder() as work:
        bounded = Bounded(stream, contributions, triggers, work)
        try:
            for name, noise in budgets(epsilon, delta, contributions, triggers).items():
                released = bounded.histogram(name, noise, seed)
                figures = {"keys": released.num_rows, **asdict(errors(truth, released))}
                rows.append({"baseline": name, **figures, **asdict(noise)})
        finally:
            bounded.close()
    return rows


def run_baselines(day: Day, report: ReportProgress) -> Result:
    """The baselines on the day, at the paper's budget and contributions."""
    with written(day, report) as stream:
        report("grouping", 0, 1)
        rows = baseline_rows(stream, EPSILON, DELTA, CONTRIBUTIONS, day.triggers, day.seed)
    settings = {**day.describe(stream.records), "C": CONTRIBUTIONS}
    return Result("baselines", f"baselines-{day.triggers}", settings, rows)


def sweeps_norm(name: PresetName) -> bool:
    """Whether a preset is swept over the norm; else over C, as in the paper's figure."""
    return name in ("default", "best")


def run_sweep(
    day: Day, name: PresetName, bounds: Sequence[float], threads: int, report: ReportProgress
) -> Result:
    """A preset over the day at each norm, or at each C for the presets of the paper."""
    by = "norm" if sweeps_norm(name) else "C"
    rows = []
    with written(day, report) as stream:
        truth = true_histogram(stream)
        for bound in bounds:
            if by == "norm":
                options = preset(name, EPSILON, DELTA, norm=bound)
            else:
                options = preset(name, EPSILON, DELTA, contributions=int(bound))
            on_progress = partial(report, f"{name}, {by} = {bound:g}")
            figures = measure(
                stream, options, day.triggers, truth, threads=threads, on_progress=on_progress
            )
            rows.append({by: bound, **figures})
    settings = {"preset": name, "by": by, **day.describe(stream.records)}
    return Result("sweep", f"sweep-{name}-{day.triggers}", settings, rows)
