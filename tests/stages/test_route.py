"""The public hash by which units find their shard."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from dpsqlp.stages.route import SEED, unit_shard_hashes

# What Spark 4.3 says: SELECT xxhash64(...).
SPARK = {
    (5,): 6251837290343458373,
    ("abc",): 1423657621850124518,
    ("a", "b"): -7357372313250070212,
}


def homes(*columns: Sequence[object]) -> list[int]:
    arrays = [pa.array(column) for column in columns]
    return [int(home) for home in unit_shard_hashes(arrays, len(columns[0]))]


def test_it_is_sparks_xxhash64() -> None:
    for unit, expected in SPARK.items():
        assert homes(*([value] for value in unit)) == [expected]


def test_layouts_do_not_show() -> None:
    numbers, texts = [0, 5, 127], ["", "é" * 40, "abcdefgh"]
    for layout in (pa.int8(), pa.uint16(), pa.int64()):
        column = pa.array(numbers, layout)
        assert unit_shard_hashes([column], 3).tolist() == homes(numbers)
    for layout in (pa.large_string(), pa.string_view(), pa.binary()):
        column = pa.array(texts, pa.string()).cast(layout)
        assert unit_shard_hashes([column], 3).tolist() == homes(texts)
    sliced = pa.array(["x", *texts, "y"]).slice(1, 3)
    assert unit_shard_hashes([sliced], 3).tolist() == homes(texts)


def test_other_types_take_no_part() -> None:
    assert homes([1.5, 2.5]) == [SEED, SEED]
    assert homes([1.5, 2.5], [5, 5]) == homes([5, 5])


def test_shards_are_even() -> None:
    for unit in (np.arange(40_000).tolist(), [f"u{k}" for k in range(40_000)]):
        counts = np.bincount(np.array(homes(unit)) % 16, minlength=16)
        assert counts.min() > 2200  # of 2500, more than six standard deviations
