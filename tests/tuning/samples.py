"""Small scripts and samples for tune and preview."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from dpsqlp.entropy.secret import Secret
from dpsqlp.sql import compile_script
from dpsqlp.tuning.load import SampleRows, Simulation, read_sample

SECRET = Secret(bytes(range(32)), bytes(range(16)))
START = "TIMESTAMP '2024-05-01 00:00:00'"
STOP = "TIMESTAMP '2024-05-04 00:00:00'"
TUMBLE = "TUMBLE(ts, INTERVAL 1 DAY)"
_FIRST_US, _DAY_US = 1_714_521_600_000_000, 86_400_000_000


def script(
    *,
    select: str = "k, COUNT(*) AS n",
    window: str | None = TUMBLE,
    emit: str = f"EMIT EVERY INTERVAL 6 HOURS ON EVENT TIME FROM {START} TO {STOP}",
    options: str = "max_contribution_norm = 3",
    source: str = "connector = 'files', path = 'in/*.parquet'",
    public: str = "",
    group: str = "k",
) -> str:
    """A script with one sink."""
    groups = ", ".join(part for part in (group, window) if part)
    return (
        f"CREATE SOURCE s (unit TEXT, k TEXT, x DOUBLE, ts TIMESTAMP) WITH ({source});\n{public}\n"
        f"CREATE SINK t WITH (connector = 'python') AS\nSELECT WITH DIFFERENTIAL_PRIVACY\n"
        f"  OPTIONS (epsilon = 8, delta = 1e-6, privacy_unit_column = unit, {options})\n"
        f"  {select} FROM s GROUP BY {groups} {emit};\n"
    )


def write_rows(path: Path, units: int = 400, keys: int = 12, seed: int = 1, days: int = 2) -> None:
    """Rows of units over some days: a few keys are common, most are rare."""
    rng = np.random.default_rng(seed)
    unit = np.repeat(np.arange(units), rng.integers(1, 9, units))
    key = np.minimum(rng.geometric(0.3, len(unit)), keys)
    times = _FIRST_US + rng.integers(0, days * _DAY_US, len(unit))
    table = pa.table(
        {
            "unit": pa.array([f"u{number}" for number in unit]),
            "k": pa.array([f"k{number}" for number in key]),
            "x": pa.array(rng.normal(3.0, 4.0, len(unit)), mask=rng.random(len(unit)) < 0.1),
            "ts": pa.array(times, pa.timestamp("us")),
        }
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path)


def sample_rows(sql: str, folder: Path, units: int | None = None, seed: int = 1) -> SampleRows:
    """The rows of `folder`/sample for the first sink of a script."""
    program = compile_script(sql, folder=str(folder))
    return read_sample(
        program.sinks[0].query,
        str(folder / "sample"),
        folder,
        private=program.sources.values(),
        units=units,
        seed=seed,
    )


def simulation(sql: str, folder: Path, units: int | None = None) -> Simulation:
    """The simulation of a script's query on those rows."""
    rows = sample_rows(sql, folder, units)
    return rows.simulation(rows.query)
