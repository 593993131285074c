"""Standard input: JSON Lines, read by a thread.

A line belongs to the trigger that is due after the line's end was read. Lines that wait in the pipe
behind others have not been read.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from itertools import takewhile
from typing import IO

import duckdb
import numpy as np
import pyarrow as pa

from dpsqlp.sources.base import GridTime
from dpsqlp.sources.columns import json_columns
from dpsqlp.sources.spool import SpooledSource, SpoolRange, check_no_offset
from dpsqlp.sql.query import SourceDef
from dpsqlp.state.storage import Storage

_CHUNK_BYTES = 1 << 16
_SEARCHED_BYTES = 1 << 24  # for line ends, before other threads have their turn
_LINE_BYTES = 2_000_000  # a line of this length is left out, as DuckDB does in a file


class StandardInput(SpooledSource):
    """JSON Lines on standard input, read by a thread until standard input ends."""

    suffix = "jsonl"
    keeps_arrival_times = True

    def __init__(
        self,
        source: SourceDef,
        storage: Storage,
        now: Callable[[], int],
        stream: IO[bytes] | None = None,
    ) -> None:
        """`now` is the clock by which lines arrive."""
        super().__init__(source, storage)
        self._now = now
        self._arrived: list[tuple[int, bytes]] = []  # when, and whole lines
        self._lock = threading.Lock()
        self._ended_at: int | None = None
        self.ended = threading.Event()
        if stream is None:
            # Unbuffered: a thread that waits for the buffer's lock breaks the exit of Python.
            stream = getattr(sys.stdin.buffer, "raw", sys.stdin.buffer)
        threading.Thread(target=self._read_lines, args=(stream,), daemon=True).start()

    def cut(self, offset: SpoolRange | None, at: GridTime) -> SpoolRange:
        """The lines that have arrived by a grid time, spooled.

        One trigger runs after the end of standard input, with or without lines. If it ran only
        when lines were left, its release would show that somebody sent a line.
        """
        check_no_offset(offset)
        ended = self._ended_at is not None and self._ended_at <= at.time  # read before the lines
        with self._lock:
            arrived = list(takewhile(lambda part: part[0] <= at.time, self._arrived))
        offsets = self._spool(at.trigger, [lines for _, lines in arrived])
        with self._lock:
            del self._arrived[: len(arrived)]
        self.exhausted = ended
        return offsets

    def _read_lines(self, stream: IO[bytes]) -> None:
        """Collect whole lines, with the time at which their end was read.

        A long line takes time in proportion to its length, and bounded memory. Lines stay together:
        millions of objects would keep the other threads from running.
        """
        begun, time = bytearray(), 0
        while chunk := stream.read(_CHUNK_BYTES):
            time = max(time, self._now())  # a clock that goes back does not move a line
            first, end, others = chunk.partition(b"\n")
            begun += first[: _LINE_BYTES - len(begun)]
            if end:
                whole, end, left = others.rpartition(b"\n")
                self._keep(time, begun, whole + end)
                begun = bytearray(left)
        time = max(time, self._now())
        self._keep(time, begun, b"")
        self._ended_at = time
        self.ended.set()

    def _keep(self, time: int, line: bytearray, others: bytes) -> None:
        """Keep a line, unless it is too long, and the whole lines after it."""
        first = bytes(line) + b"\n" if len(line) < _LINE_BYTES else b""
        with self._lock:
            self._arrived.append((time, first + others))

    def _parse(self, data: bytes) -> pa.Table:
        """The records. Lines that are not JSON, and fields of another type, become nulls, as in a
        file. A line that is not UTF-8 is left out.
        """
        with duckdb.connect() as database:
            database.register("spooled", pa.table({"line": _lines(data)}))
            query = (
                f"SELECT {json_columns(self._source.columns)}"
                " FROM (SELECT TRY(decode(line)) AS line FROM spooled) WHERE line <> chr(10)"
            )
            return database.sql(query).to_arrow_table().cast(self._schema)


def _lines(data: bytes) -> pa.Array:
    """Whole lines, each with its end, as views of the data, without an object for each."""
    letters = np.frombuffer(data, np.uint8)
    ends = [
        begin + 1 + np.flatnonzero(letters[begin : begin + _SEARCHED_BYTES] == ord("\n"))
        for begin in range(0, len(letters), _SEARCHED_BYTES)
    ]
    offsets = np.concatenate([np.zeros(1, np.int64), *ends])
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(data)]
    return pa.LargeBinaryArray.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
