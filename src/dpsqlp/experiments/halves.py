"""A stream's units in two random halves: a sample, and what stands for the private stream.

What is chosen by the sample is measured on the other half, so nothing is tuned on what is measured.
The two halves have noise of their own: a search gains nothing from the luck of its own noise.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb

from dpsqlp.experiments.replay import ReportProgress, working_folder
from dpsqlp.experiments.synthetic import Day, written
from dpsqlp.experiments.task import (
    CONTRIBUTIONS,
    NORM,
    Options,
    PresetName,
    Stream,
    preset,
    query_of,
    read_stream,
)
from dpsqlp.sql.quoting import quote_text
from dpsqlp.tuning.load import Simulation, read_sample

NOTE = (
    "The units are split at random. One half is the sample, and figures are measured on the other."
)


@dataclass(frozen=True, slots=True)
class Named:
    """A stream, and its name in results."""

    name: str
    stream: Stream


@dataclass(frozen=True, slots=True)
class Settings:
    """The budget of each method, and what the presets have besides."""

    triggers: int
    epsilon: float
    delta: float
    contributions: int = CONTRIBUTIONS  # [C] of `paper`
    default_norm: float = NORM

    def preset(self, name: PresetName) -> Options:
        """The options of a preset."""
        return preset(
            name,
            self.epsilon,
            self.delta,
            contributions=self.contributions,
            norm=self.default_norm,
        )

    def describe(self, named: Named, seeds: int) -> dict[str, Any]:
        """The settings of a result."""
        return {
            "stream": named.name,
            "records": named.stream.records,
            "triggers": self.triggers,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "seeds": seeds,
        }


@dataclass(frozen=True, slots=True)
class Halves:
    """The sample, and the half that figures are measured on: also as a stream for an engine."""

    sample: Simulation
    measured: Simulation
    stream: Stream


@contextmanager
def opened(file: Path | None, day: Day, report: ReportProgress) -> Iterator[Named]:
    """A file, or the synthetic day."""
    if file is not None:
        yield Named(file.stem, read_stream(file))
        return
    with written(day, report) as stream:
        yield Named("synthetic", stream)


@contextmanager
def halves(stream: Stream, settings: Settings, seed: int, threads: int) -> Iterator[Halves]:
    """Both halves of a stream, with the query of `default`."""
    with working_folder() as folder:
        sample, measured = split_units(stream.files, folder, seed)
        other = read_stream(measured)
        query = query_of(other, settings.preset("default"), settings.triggers)

        def simulation(half: Path, own_seed: int) -> Simulation:
            rows = read_sample(
                query, str(half), Path(), private=[], units=None, seed=own_seed, threads=threads
            )
            return rows.simulation(query)

        yield Halves(simulation(sample, 2 * seed), simulation(measured, 2 * seed + 1), other)


def split_units(files: str, folder: Path, seed: int) -> tuple[Path, Path]:
    """Two files: each unit is in one or the other, as its name and the seed decide."""
    paths = folder / "tuned.parquet", folder / "measured.parquet"
    salted = quote_text(f" {seed}")
    half = f"md5_number_lower(CAST(user_id AS VARCHAR) || {salted}) % 2"
    with duckdb.connect() as database:
        for number, path in enumerate(paths):
            database.execute(
                f"COPY (SELECT user_id, key, ts FROM read_parquet({quote_text(files)})"
                f" WHERE {half} = {number}) TO {quote_text(str(path))} (FORMAT parquet)"
            )
    return paths
