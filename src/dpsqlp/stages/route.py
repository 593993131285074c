"""route: the shard of every unit and every key.

Units are routed by a public hash of their columns that Spark can compute too: its `xxhash64` (seed
42, columns chained) over integers as 64 bits, texts and bytes. Columns of other types are left out;
units with only such columns share one shard. Keys are routed by their keyed identifiers.

Privacy contract: all records of a unit are in one shard, in every batch, so its caps hold. Releases
do not depend on shards: the hash affects only speed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpsqlp.entropy.canonical import kind_of
from dpsqlp.entropy.prf import Array128
from dpsqlp.kernels import kernel

HASHED_KINDS = ("integer", "text", "bytes")
SEED = 42

_P1 = np.uint64(0x9E3779B185EBCA87)
_P2 = np.uint64(0xC2B2AE3D27D4EB4F)
_P3 = np.uint64(0x165667B19E3779F9)
_P4 = np.uint64(0x85EBCA77C2B2AE63)
_P5 = np.uint64(0x27D4EB2F165667C5)


def unit_shard_hashes(columns: Sequence[pa.Array], rows: int) -> NDArray[np.int64]:
    """The public hash of every unit. The shard is the hash modulo the number of shards."""
    hashes = np.full(rows, SEED, np.uint64)
    for column in columns:
        kind = kind_of(column.type)
        if kind not in HASHED_KINDS:
            continue
        if kind == "integer":
            _hash_integers(column.cast(pa.int64(), safe=False).to_numpy().view(np.uint64), hashes)
        else:
            column = column.cast(pa.large_binary())
            _, offsets, data = column.buffers()
            edges = np.frombuffer(offsets, np.int64)[column.offset : column.offset + rows + 1]
            text = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
            _hash_texts(text, edges, hashes)
    return hashes.view(np.int64)


def key_shards(ids: Array128, shards: int) -> NDArray[np.int64]:
    """The shard of every key."""
    return (ids[:, 1] % np.uint64(shards)).astype(np.int64)


def route(
    hashes: NDArray[np.int64], periods: NDArray[np.int64], period: int, shards: int
) -> list[NDArray[np.int64]]:
    """The positions of the records of a period's units by unit shard, each in ascending order."""
    members = np.empty((shards, len(hashes)), np.int64)
    sizes = np.zeros(shards, np.int64)
    _route(hashes, periods, period, members, sizes)
    return [row[:size] for row, size in zip(members, sizes, strict=True)]


@kernel
def _route(hashes, periods, period, members, sizes):  # type: ignore[no-untyped-def]
    for k in range(len(periods)):
        if periods[k] == period:
            shard = hashes[k] % len(sizes)
            members[shard, sizes[shard]] = k
            sizes[shard] += 1


@kernel
def _rotate(word, bits):  # type: ignore[no-untyped-def]
    return (word << np.uint64(bits)) | (word >> np.uint64(64 - bits))


@kernel
def _absorb(state, word):  # type: ignore[no-untyped-def]
    """Absorb eight more bytes."""
    return _rotate(state ^ (_rotate(word * _P2, 31) * _P1), 27) * _P1 + _P4


@kernel
def _finish(state):  # type: ignore[no-untyped-def]
    state = (state ^ (state >> np.uint64(33))) * _P2
    state = (state ^ (state >> np.uint64(29))) * _P3
    return state ^ (state >> np.uint64(32))


@kernel
def _hash_integers(words, hashes):  # type: ignore[no-untyped-def]
    for k in range(len(words)):
        hashes[k] = _finish(_absorb(hashes[k] + _P5 + np.uint64(8), words[k]))


@kernel
def _little_endian(data, at, size):  # type: ignore[no-untyped-def]
    word = np.uint64(0)
    for k in range(size):
        word |= np.uint64(data[at + k]) << np.uint64(8 * k)
    return word


@kernel
def _hash_texts(data, edges, hashes):  # type: ignore[no-untyped-def]
    for k in range(len(edges) - 1):
        at, end = edges[k], edges[k + 1]
        length = np.uint64(end - at)
        seed = hashes[k]
        if end - at >= 32:
            a, b, c, d = seed + _P1 + _P2, seed + _P2, seed, seed - _P1
            while end - at >= 32:
                a = _rotate(a + _little_endian(data, at, 8) * _P2, 31) * _P1
                b = _rotate(b + _little_endian(data, at + 8, 8) * _P2, 31) * _P1
                c = _rotate(c + _little_endian(data, at + 16, 8) * _P2, 31) * _P1
                d = _rotate(d + _little_endian(data, at + 24, 8) * _P2, 31) * _P1
                at += 32
            state = _rotate(a, 1) + _rotate(b, 7) + _rotate(c, 12) + _rotate(d, 18)
            state = (state ^ (_rotate(a * _P2, 31) * _P1)) * _P1 + _P4
            state = (state ^ (_rotate(b * _P2, 31) * _P1)) * _P1 + _P4
            state = (state ^ (_rotate(c * _P2, 31) * _P1)) * _P1 + _P4
            state = (state ^ (_rotate(d * _P2, 31) * _P1)) * _P1 + _P4
        else:
            state = seed + _P5
        state += length
        while end - at >= 8:
            state = _absorb(state, _little_endian(data, at, 8))
            at += 8
        if end - at >= 4:
            state ^= _little_endian(data, at, 4) * _P1
            state = _rotate(state, 23) * _P2 + _P3
            at += 4
        while at < end:
            state ^= np.uint64(data[at]) * _P5
            state = _rotate(state, 11) * _P1
            at += 1
        hashes[k] = _finish(state)
