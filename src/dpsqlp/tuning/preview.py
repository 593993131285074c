"""preview: the table that the options as they stand would give, beside the truth."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from dpsqlp.core import TriggerRelease
from dpsqlp.engines.clock import TriggerGrid
from dpsqlp.engines.release_query import ReleaseQuery
from dpsqlp.plan import Plan
from dpsqlp.sql.query import Query, SinkDef
from dpsqlp.tuning.candidate import Candidate
from dpsqlp.tuning.figures import Figures, SizeClass, by_size, figures_of, values_of
from dpsqlp.tuning.load import SampleFacts, SampleRows
from dpsqlp.tuning.simulate import Shown, simulate
from dpsqlp.tuning.words import numbers_of, sample_notes


@dataclass(frozen=True, slots=True)
class Preview:
    """The last releases of every window of a sample, with their errors."""

    sink: str
    query: Query
    facts: SampleFacts
    figures: Figures
    sizes: dict[str, tuple[SizeClass, ...]]  # by aggregate
    table: pa.Table  # a row for each released group, those with most records first

    @property
    def notes(self) -> list[str]:
        """What the figures rest on, and what they do not show."""
        return sample_notes(self.facts)

    def to_dict(self) -> dict[str, Any]:
        """Every number, as plain values; keys and windows as in the table."""
        return {
            "sink": self.sink,
            "sample": numbers_of(self.facts),
            "options": Candidate.of(self.query).options(self.query),
            "figures": numbers_of(self.figures),
            "by_size": {name: numbers_of(list(sizes)) for name, sizes in self.sizes.items()},
            "rows": numbers_of(self.table.to_pylist()),
            "notes": self.notes,
        }


def preview_query(sink: SinkDef, rows: SampleRows) -> Preview:
    """Run the query as it stands over a sample."""
    query = sink.query
    simulation = rows.simulation(query)
    sample = simulation.sample
    outcome = simulate(simulation.plan(query), sample, simulation.secret)
    end = outcome.end
    values = values_of(query, outcome.plan, end)
    records = np.where(end.group >= 0, sample.group_rows[end.group], 0)
    columns: dict[str, Any] = _keys(query, outcome.plan, end) | {"true_rows": records}
    for column in values:
        columns |= {
            column.name: column.released,
            f"{column.name}_sd": column.sd,
            f"{column.name}_truth": column.truth,
            f"{column.name}_noise": column.noise,
            f"{column.name}_bias": column.bias,
        }
    return Preview(
        sink.name,
        query,
        simulation.facts,
        figures_of(query, sample, outcome),
        {column.name: tuple(by_size(sample, end, column)) for column in values},
        pa.table(columns).take(pa.array(np.argsort(-records, kind="stable"))),
    )


def _keys(query: Query, plan: Plan, end: Shown) -> dict[str, Any]:
    """The window and the keys of the released groups."""
    step = np.full(len(end), end.step)
    release = TriggerRelease(0, end.window, step, end.key_text, end.released)
    grid = TriggerGrid.of(query, plan, 0)  # for the times of release, not shown
    with ReleaseQuery(query, plan, grid) as release_query:
        released = release_query.columns(release)
    window = {} if query.window is None else {"window_start": released.column("window_start")}
    return window | {
        name: released.column(f"key_{number}") for number, name in enumerate(query.key_names)
    }
