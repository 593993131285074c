"""The contract of a sink."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

import pyarrow as pa

from dpsqlp.errors import SinkError

DIAGNOSTICS_SUFFIX = "_diagnostics"


class Sink(Protocol):
    """Receives the release of each trigger, in order; the last one perhaps twice.

    A sink holds no connection before its first release: it may be sent to another process first.
    """

    def open(self, pipeline: str, keys: Sequence[str]) -> None:
        """Name the pipeline, uniquely, and the columns that identify a row within a window."""
        return

    @abstractmethod
    def emit(self, trigger: int, release: pa.Table) -> None:
        """Publish a release durably. If it was published, nothing changes; if another release was
        published for the trigger, this one is refused.

        Raises UnavailableError if a server is away; the release is then emitted again.
        """

    def diagnostics(self) -> Sink:
        """The sink of the second table, `<sink>_diagnostics`: noisy numbers of each open window."""
        raise SinkError(
            f"{type(self).__name__} has one table, and diagnostics_share needs a second one. Leave"
            " the option out, or use parquet, jsonl, duckdb, postgres, kafka or stdout."
        )

    def close(self) -> None:
        """Close connections."""
        return
