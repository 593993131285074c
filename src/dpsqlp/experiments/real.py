"""The presets and the baselines on any file of user_id, key and ts."""

from __future__ import annotations

from functools import partial
from glob import escape
from pathlib import Path

import duckdb

from dpsqlp.experiments.halves import split_units
from dpsqlp.experiments.histogram import true_histogram
from dpsqlp.experiments.replay import ReportProgress, measure, working_folder
from dpsqlp.experiments.result import Result
from dpsqlp.experiments.synthetic import baseline_rows
from dpsqlp.experiments.task import PRESETS, Options, describe, preset, read_stream
from dpsqlp.experiments.tuned import tuned_options

_COLUMNS = ("keys", "half_day_keys", "keys_before_last", "linf", "l1", "l2", "seconds")
_SPAN = (
    "The span of time was taken from the file, for the convenience of this experiment. In"
    " production it must be public and chosen beforehand: otherwise the data decides about time."
)
_HALVES = (
    "`tuned` has the options that `dpsqlp tune` finds on a random half of the units; all methods"
    " run on the other half."
)


def run_real(
    file: Path,
    *,
    triggers: int,
    contributions: int,
    default_norm: float,
    best: Options,
    tuned: bool = False,
    seed: int,
    threads: int,
    report: ReportProgress,
) -> Result:
    """Presets and baselines on a file, each at the budget of `best`.

    With `tuned` there is one method more, tuned on a random half of the units; all are measured on
    the other half.
    """
    chosen: dict[str, Options] = {
        name: preset(name, best.epsilon, best.delta, contributions=contributions, norm=default_norm)
        for name in PRESETS
    }
    chosen["best"] = best
    with working_folder() as folder:
        if tuned:
            half, measured = split_units(escape(str(file)), folder, seed)
            stream = read_stream(measured)
            chosen["tuned"] = tuned_options(
                stream, half, chosen["default"], triggers, seed, threads, report
            )
        else:
            stream = read_stream(file)
        described = {name: describe(stream, options, triggers) for name, options in chosen.items()}
        truth = true_histogram(stream)
        rows = []
        for name, options in chosen.items():
            on_progress = partial(report, name)
            figures = measure(
                stream, options, triggers, truth, threads=threads, on_progress=on_progress
            )
            rows.append({"method": name, **{column: figures[column] for column in _COLUMNS}})
        report("baselines", 0, 1)
        rows += [
            {"method": row["baseline"], **{column: row.get(column) for column in _COLUMNS}}
            for row in baseline_rows(
                stream, best.epsilon, best.delta, contributions, triggers, seed
            )
        ]
        with duckdb.connect() as database:
            [(units,)] = database.sql(
                f"SELECT count(DISTINCT user_id) FROM {stream.rows}"
            ).fetchall()
        settings = {
            "file": file.name,
            "records": stream.records,
            "units": units,
            "true_keys": truth.num_rows,
            "triggers": triggers,
            "epsilon": best.epsilon,
            "delta": best.delta,
            "C": contributions,  # of paper, tree and the baselines
            "default_norm": default_norm,
            **{f"best_{name}": value for name, value in described["best"].items()},
        }
    notes = [_SPAN]
    if tuned:
        settings |= {f"tuned_{name}": value for name, value in described["tuned"].items()}
        notes.append(_HALVES)
    return Result("real", f"real-{file.stem}", settings, rows, notes)
