"""Rows become records piece by piece; the pieces change no release."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsqlp.core import Core, State
from dpsqlp.engines import micro_batch as module
from dpsqlp.engines.micro_batch import admit_batches
from dpsqlp.plan import Plan
from dpsqlp.sources import memory_limit
from reference.streams import SECRET, Stream, micro_batch, rows_of, run_core, streams
from reference.twin import Row
from support.fake_clock import START, FakeClock
from support.pipelines import Collected, made
from support.plans import make_plan


def as_batches(plan: Plan, rows: tuple[Row, ...]) -> Iterator[pa.RecordBatch]:
    """The rows as a row query gives them, one per batch."""
    for row in rows:
        batch = micro_batch(plan, (row,))
        columns = {"unit_0": batch.unit[0], "key_0": batch.key[0]}
        columns |= {"window_number": batch.window, "timestamp_us": batch.timestamp}
        columns |= {f"value_{number}": value for number, value in enumerate(batch.values)}
        if batch.period is not None:
            columns["period_number"] = batch.period
        yield pa.RecordBatch.from_pydict(columns)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(stream=streams(), piece=st.integers(1, 9), held=st.sampled_from([0, 500, 1 << 30]))
def test_pieces_and_early_bounding_change_no_release(stream: Stream, piece: int, held: int) -> None:
    """Whatever the sizes, with every bound, policy and period."""
    core, state, released = Core(stream.plan, SECRET), State(2), []
    sizes: dict[str, Any] = {"PIECE_ROWS": piece, "_HELD_BYTES": held, "_TEXT_BYTES": -1}
    with patch.multiple(module, **sizes):
        for trigger, rows in enumerate(stream.batches, stream.first):
            count, records = admit_batches(core, as_batches(stream.plan, rows), trigger)
            assert count == len(rows)
            released.append(rows_of(core.compute(state, records).releases))
    assert released == run_core(stream)


def test_one_unit_does_not_fill_the_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """32 kB of one unit become 32 MB; the trigger may hold 4 MB, and runs."""
    monkeypatch.setattr(memory_limit, "BATCH_BYTES_MAX", 4 << 20)
    monkeypatch.setattr(module, "PIECE_BYTES", 1 << 20)
    sql = (
        "CREATE SOURCE s (unit TEXT, k TEXT, l INTEGER[]) WITH (connector = 'files',"
        " path = '*.jsonl'); CREATE SINK t WITH (connector = 'python') AS"
        " SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 40, delta = 1e-3, privacy_unit_column"
        " = unit, max_rows_contributed = 6, mechanism = 'tree') k || y AS key, COUNT(*) AS n"
        " FROM s, UNNEST(s.l) AS t(y) GROUP BY key EMIT EVERY INTERVAL 15 MINUTES FOR 4 TRIGGERS;"
    )
    lines = [{"unit": f"u{number}", "k": "a", "l": [1]} for number in range(30)]
    lines += [{"unit": "evil", "k": "z" * 16_000, "l": list(range(2000))}]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    engine = made(tmp_path, sql, threads=1, clock=FakeClock(START))
    engine.cut(1)
    engine.step()
    engine.close()
    assert isinstance(engine.sink, Collected)
    assert engine.sink.releases[0].column("key").to_pylist() == ["a1"]
    assert engine.records == 2030


def test_early_bounding_shares_the_text_of_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """32 MB of texts of one unit and one key fit a trigger that may hold 1 MB."""
    monkeypatch.setattr(memory_limit, "BATCH_BYTES_MAX", 1 << 20)
    monkeypatch.setattr(module, "_HELD_BYTES", 1 << 16)
    monkeypatch.setattr(module, "PIECE_ROWS", 500)
    plan = replace(make_plan(4, caps=(5000, 5000, 1)), key_kinds=("text",))
    core = Core(plan, SECRET)
    rows = {
        "unit_0": pa.array([1] * 500, pa.int64()),
        "key_0": ["z" * 16_000] * 500,
        "window_number": pa.array([0] * 500, pa.int64()),
        "timestamp_us": pa.array(range(500), pa.int64()),
    }
    _, records = admit_batches(core, [pa.RecordBatch.from_pydict(rows)] * 4, 1)
    assert len(records) == 2000
