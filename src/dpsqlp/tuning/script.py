"""The script that tune and preview are given, and the sink in it whose options they look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from dpsqlp.sql.query import Program, SinkDef
from dpsqlp.tuning.load import SampleRows, read_sample


@dataclass(frozen=True, slots=True)
class Script:
    """A script and one of its sinks."""

    text: str
    compiled: Callable[[str], Program]
    program: Program
    sink: SinkDef
    folder: Path  # where its paths start

    def sample_rows(self, path: str, *, units: int | None, seed: int, threads: int) -> SampleRows:
        """The rows that the row part of the sink gives for files apart from all sources."""
        return read_sample(
            self.sink.query,
            path,
            self.folder,
            private=self.program.sources.values(),
            units=units,
            seed=seed,
            threads=threads,
        )
