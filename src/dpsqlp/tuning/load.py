"""Load a sample: files that the query's own source schema and row part read.

Refused: files of the script's sources, a query whose errors are not noise and cap bias, and files
that lack the columns of the source.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from glob import escape
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dpsqlp.core import Core
from dpsqlp.engines.row_query import RowQuery
from dpsqlp.entropy.secret import INSTANCE_BYTES, Secret
from dpsqlp.errors import PlanError, SourceError
from dpsqlp.mechanisms import Mechanism
from dpsqlp.plan import Plan
from dpsqlp.sources.files import FileSource, UnusableFileError
from dpsqlp.sql import make_plan
from dpsqlp.sql.overlap import files_at, shared_file
from dpsqlp.sql.plan import fit_mechanism, window_grid
from dpsqlp.sql.query import Calendar, Query, SourceDef
from dpsqlp.tuning.replay import assign_triggers
from dpsqlp.tuning.sample import Sample, admit_sample


@dataclass(frozen=True, slots=True)
class Simulation:
    """A query with a sample of its records: everything that candidates share."""

    query: Query
    mechanism: Mechanism
    secret: Secret
    sample: Sample
    facts: SampleFacts

    def plan(self, query: Query) -> Plan:
        """The plan of the query with other options."""
        return make_plan(query, self.mechanism)


@dataclass(frozen=True, slots=True)
class SampleFacts:
    """What a report says of the sample."""

    rows: int  # of the row part
    counted: int  # rows with a unit, in a window that is simulated
    units: int
    groups: int
    windows: int
    triggers: int  # of a window
    resampled: int | None  # units, if they were drawn from those of the sample
    replay: str  # how rows were given to triggers, in words


@dataclass(frozen=True, slots=True)
class SampleRows:
    """The rows that the row part gives for a sample, to be simulated on any grid of triggers."""

    query: Query
    secret: Secret
    rows: pa.Table
    units: int | None  # to draw; None: those of the sample
    seed: int

    def simulation(self, query: Query) -> Simulation:
        """The rows as records of a query that differs in its options or its interval."""
        mechanism = fit_mechanism(query, window_grid(query).triggers)
        plan = make_plan(query, mechanism)
        stamps = self.rows.column("timestamp_us")
        timed = stamps.is_valid().to_numpy()
        replay, trigger = assign_triggers(
            query,
            plan,
            pc.fill_null(stamps.cast(pa.int64()), 0).to_numpy(),
            timed,
            pc.fill_null(self.rows.column("window_number").cast(pa.int64()), 0).to_numpy(),
            self.seed,
        )
        core = Core(plan, self.secret)
        sample = admit_sample(core, self.secret, self.rows, replay, trigger)
        counted, units, groups = len(sample), sample.units, len(sample.window)
        if self.units is not None:
            sample = sample.resampled(self.units, self.seed, core)
        facts = SampleFacts(
            rows=self.rows.num_rows,
            counted=counted,
            units=units,
            groups=groups,
            windows=len(np.unique(sample.window)),
            triggers=plan.triggers,
            resampled=self.units,
            replay=replay.words,
        )
        return Simulation(query, mechanism, self.secret, sample, facts)


def read_sample(
    query: Query,
    path: str,
    folder: Path,
    *,
    private: Iterable[SourceDef],
    units: int | None,
    seed: int,
    threads: int = 2,
) -> SampleRows:
    """Run the row part on the files of a sample. `folder` is where the script's paths start, and
    `private` are all sources of the script.
    """
    _check_query(query)
    pattern = _pattern(path)
    if not files_at(pattern, ""):
        raise SourceError(f"No file matches the sample {path}. Give a file, a pattern or a folder.")
    for stream in private:
        if shared_file([pattern], stream, str(folder)) is not None:
            raise SourceError(
                f"The sample {path} has files of {stream.name}, a private stream of the script."
                " Options chosen by looking at a private stream are outside the promise: give data"
                " that one may look at (public, consented, generated, or of another population)."
            )
    source = replace(query.source, options={"connector": "files", "path": pattern})
    files = FileSource(source, None, Path.cwd())
    sampled = replace(query, source=source)

    def collected(batches: Iterator[pa.RecordBatch]) -> list[pa.RecordBatch]:
        return list(batches)

    try:
        offsets = files.replay(files.initial_offset(), (0, 0))
        whole = {"files": offsets["files"], "left_behind": []}
        with RowQuery(sampled, files, threads) as rows:
            batches = rows.run(whole, None, collected)
    except UnusableFileError as error:
        raise SourceError(
            f"{error.fact}. The sample cannot be used: give files with the columns that"
            f" {query.source.name} declares, by name and type."
        ) from None
    except duckdb.Error as error:
        raise SourceError(
            f"The sample {path} cannot be read ({type(error).__name__}). Check that its columns"
            f" have the types that {query.source.name} declares, and that no file is damaged."
        ) from None
    if not batches:
        raise SourceError(
            f"The sample {path} has no row that the query's row part keeps. Give another sample, or"
            " check the WHERE clause."
        )
    return SampleRows(query, simulation_secret(seed), pa.Table.from_batches(batches), units, seed)


def simulation_secret(seed: int) -> Secret:
    """A secret for simulated noise: it protects nothing, and repeats with the seed."""
    digest = hashlib.sha512(f"dpsqlp simulation {seed}".encode()).digest()
    return Secret(digest[:32], digest[32 : 32 + INSTANCE_BYTES])


def _pattern(path: str) -> str:
    """A file, a pattern, or all files of a folder; absolute, since scripts lie elsewhere."""
    found = Path(path)
    if found.is_dir():
        return f"{escape(str(found.resolve()))}/*"
    if found.is_file():
        return escape(str(found.resolve()))
    return str(Path(escape(str(Path.cwd()))) / path)


def _check_query(query: Query) -> None:
    """Refuse a query whose errors are not noise and cap bias alone, or differ between windows."""
    if isinstance(query.window, Calendar) or isinstance(query.period, Calendar):
        raise PlanError(
            "The query's windows or unit periods are those of a calendar, whose lengths differ."
            " tune and preview are for windows of one length. Give them the query with, for"
            " example, TUMBLE(ts, INTERVAL 30 DAYS) in the place of months; its options can be used"
            " for both."
        )
    if query.release != "every_trigger":
        raise PlanError(
            "The query has release = 'threshold': a group keeps the value of the trigger that"
            " selected it, so its error is neither noise nor cap bias alone. tune and preview are"
            " for release = 'every_trigger'."
        )
