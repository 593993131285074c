"""A folder with one Parquet or JSON Lines file per trigger."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import pyarrow as pa

from dpsqlp.sinks.base import DIAGNOSTICS_SUFFIX, Sink
from dpsqlp.sinks.formats import to_json_lines, to_parquet
from dpsqlp.sinks.published import other_pipeline, store_once
from dpsqlp.state.storage import LocalStorage

Suffix = Literal["parquet", "jsonl"]
_OWNER = ".pipeline"  # names the pipeline whose releases are in the folder


class FileSink(Sink):
    """One file per trigger."""

    def __init__(self, folder: Path, suffix: Suffix) -> None:
        self._folder = folder
        self._storage = LocalStorage(folder)
        self._suffix = suffix

    def open(self, pipeline: str, keys: Sequence[str]) -> None:
        """Claim the folder: the triggers of another pipeline have the same numbers."""
        owner = self._storage.get(_OWNER)
        if owner is None:
            self._storage.put(_OWNER, [pipeline.encode()])
        elif owner != pipeline.encode():
            away = f"move the folder away with its hidden file {_OWNER}, which names the pipeline"
            raise other_pipeline(str(self._folder), "path", away)

    def diagnostics(self) -> FileSink:
        """A folder beside this one."""
        folder = self._folder.absolute()
        return FileSink(folder.with_name(folder.name + DIAGNOSTICS_SUFFIX), self._suffix)

    def emit(self, trigger: int, release: pa.Table) -> None:
        """Store a release, unless it was published."""
        data = to_parquet(release) if self._suffix == "parquet" else to_json_lines(release)
        store_once(self._storage, trigger, f"trigger-{trigger:012d}.{self._suffix}", data)
