"""JSON Lines on standard output."""

from __future__ import annotations

import sys

import pyarrow as pa

from dpsqlp.sinks.base import Sink
from dpsqlp.sinks.formats import to_json_lines


class StdoutSink(Sink):
    """One line per row. After a crash the last trigger's lines may be printed twice."""

    def diagnostics(self) -> StdoutSink:
        """Lines after those of the trigger, told apart by their columns."""
        return self

    def emit(self, trigger: int, release: pa.Table) -> None:
        """Print a release in UTF-8, whatever the terminal's encoding is."""
        lines = to_json_lines(release)
        sys.stdout.flush()
        if hasattr(sys.stdout, "buffer"):
            sys.stdout.buffer.write(lines)
        else:  # in a notebook
            sys.stdout.write(lines.decode())
        sys.stdout.flush()
