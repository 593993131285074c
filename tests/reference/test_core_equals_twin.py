"""The fast core against the naive twin, on random small streams, bit for bit."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsqlp.core import Core, State
from reference.streams import (
    SECRET,
    Stream,
    calendar_streams,
    micro_batch,
    rows_of,
    run_core,
    run_twin,
    streams,
)
from support.quick import QUICK

SHARE = 5 if QUICK else 1
GRID = [(kind, release) for kind in ("tree", "blt") for release in ("every_trigger", "threshold")]


@pytest.mark.parametrize(("kind", "release"), GRID)
def test_core_equals_twin(kind: str, release: str) -> None:
    """Every mechanism, policy, bound and shard count releases what the twin does. Under
    `every_trigger` all that may happen to a record, a unit or a key happens.
    """
    seen = Counter[str]()

    @settings(max_examples=600 // SHARE, deadline=None, derandomize=True)
    @given(stream=streams(kind, release), shards=st.sampled_from([1, 2, 7]))
    def check(stream: Stream, shards: int) -> None:
        assert run_core(stream, shards) == run_twin(stream, seen)

    check()
    if release == "every_trigger" and not QUICK:
        assert len(seen) == 21
        assert min(seen.values()) >= 3, seen


@pytest.mark.parametrize(("kind", "release"), GRID)
def test_windows_of_a_calendar_equal_the_twins(kind: str, release: str) -> None:
    """Windows of unequal T have the noise, the thresholds and the final row of their own T."""
    lengths = Counter[int]()

    @settings(max_examples=150 // SHARE, deadline=None, derandomize=True)
    @given(stream=calendar_streams(kind, release), shards=st.sampled_from([1, 3]))
    def check(stream: Stream, shards: int) -> None:
        lengths[len(stream.plan.windows.lengths)] += 1
        assert run_core(stream, shards) == run_twin(stream)

    check()
    assert min(lengths[number] for number in (1, 2, 3)) >= 5, lengths


@settings(max_examples=150 // SHARE, deadline=None, derandomize=True)
@given(stream=streams(), data=st.data())
def test_order_within_a_micro_batch_does_not_matter(stream: Stream, data: st.DataObject) -> None:
    """Shuffling each micro-batch changes nothing."""
    shuffled = tuple(tuple(data.draw(st.permutations(rows))) for rows in stream.batches)
    assert run_core(stream) == run_core(replace(stream, batches=shuffled), 2)


@settings(max_examples=100 // SHARE, deadline=None, derandomize=True)
@given(stream=streams())
def test_shards_in_threads_change_nothing(stream: Stream) -> None:
    """Five shards in four threads release what one shard does."""
    with ThreadPoolExecutor(4) as threads:
        pipeline, state = Core(stream.plan, SECRET), State(5)
        released = [
            rows_of(
                pipeline.compute(
                    state, pipeline.admit(micro_batch(stream.plan, rows), trigger), threads.map
                ).releases
            )
            for trigger, rows in enumerate(stream.batches, stream.first)
        ]
    assert released == run_core(stream)
