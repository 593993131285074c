"""combine: one row per (key, window, last_vote_step) instead of one per record.

Sums are of integers modulo 2^64, so any order and any partial grouping within a trigger give the
same result, and groups can be combined again (docs/proof.md, Lemma 18).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpsqlp.entropy.canonical import Encoded
from dpsqlp.entropy.prf import Array128
from dpsqlp.kernels import inlined, kernel, prefetch
from dpsqlp.plan import Plan
from dpsqlp.stages.admit import ABSENT, Records
from dpsqlp.stages.bound import Bounded

_FETCH_AHEAD = 32


@dataclass(frozen=True, slots=True)
class Groups:
    """The contributions of one trigger to keys."""

    key: Array128
    key_text: Encoded  # of the whole batch; group g has the text number text[g]
    text: NDArray[np.int64]
    window: NDArray[np.int64]
    last_vote_step: NDArray[np.int64]
    votes: NDArray[np.int64]
    values: NDArray[np.int64]  # (groups, totals), see `Plan.spans`

    def __len__(self) -> int:
        return len(self.window)


def combine(plan: Plan, records: Records, bounded: Bounded) -> Groups:
    """Group the kept records."""
    processes = [calibrated.process for calibrated in plan.calibration.processes]
    groups, slots = _allocate(len(bounded.kept), records.key_text, plan.width)
    size = _group_records(
        slots,
        (
            groups.key,
            groups.text,
            groups.window,
            groups.last_vote_step,
            groups.votes,
            groups.values,
        ),
        bounded.kept,
        bounded.votes,
        bounded.last_vote_step,
        bounded.distinct,
        np.array([process.kind == "distinct" for process in processes], bool),
        np.array([span.start for span in plan.spans], np.int64),
        np.array([process.bins for process in processes], np.int64),
        np.array([process.coarse for process in processes], np.int64),
        records.key,
        records.text,
        records.window,
        records.values,
    )
    return _truncate(groups, size)


def merge(parts: Sequence[Groups], window: int, shard: int, shards: int) -> Groups:
    """Combine the partial groups of one window and key shard. They share their texts."""
    assert all(part.key_text is parts[0].key_text for part in parts)
    groups, slots = _allocate(sum(map(len, parts)), parts[0].key_text, parts[0].values.shape[1])
    size = 0
    for part in parts:
        size = _group_groups(
            slots,
            (
                groups.key,
                groups.text,
                groups.window,
                groups.last_vote_step,
                groups.votes,
                groups.values,
            ),
            size,
            (part.key, part.text, part.window, part.last_vote_step, part.votes, part.values),
            window,
            np.uint64(shard),
            np.uint64(shards),
        )
    return _truncate(groups, size)


def _allocate(size: int, texts: Encoded, totals: int) -> tuple[Groups, NDArray[np.int32]]:
    """Arrays for `size` groups, and an empty hash index."""
    groups = Groups(
        key=np.empty((size, 2), np.uint64),
        key_text=texts,
        text=np.empty(size, np.int64),
        window=np.empty(size, np.int64),
        last_vote_step=np.empty(size, np.int64),
        votes=np.empty(size, np.int64),
        values=np.empty((size, totals), np.int64),
    )
    return groups, np.full(max(16, 1 << (2 * size - 1).bit_length()), -1, np.int32)


def _truncate(groups: Groups, size: int) -> Groups:
    return Groups(
        groups.key[:size],
        groups.key_text,
        groups.text[:size],
        groups.window[:size],
        groups.last_vote_step[:size],
        groups.votes[:size],
        groups.values[:size],
    )


@inlined
def _first_slot(slots, key, window, last_vote_step):  # type: ignore[no-untyped-def]
    """The slot at which the search for a group begins."""
    mixed = key[0] ^ (np.uint64(window) * np.uint64(0x9E3779B97F4A7C15))
    mixed ^= np.uint64(last_vote_step) * np.uint64(0xD6E8FEB86659FD93)
    return np.int64(mixed >> np.uint64(1)) & (len(slots) - 1)


@inlined
def _find_or_add(slots, groups, size, key, text, window, last_vote_step):  # type: ignore[no-untyped-def]
    """The group's number. A new group has the number `size`, and sums of zero."""
    keys, texts, windows, last_vote_steps, votes, values = groups
    at = _first_slot(slots, key, window, last_vote_step)
    while True:
        g = slots[at]
        if g < 0:
            slots[at] = size
            keys[size, 0], keys[size, 1] = key[0], key[1]
            texts[size], windows[size], last_vote_steps[size] = text, window, last_vote_step
            votes[size] = 0
            values[size] = 0
            return size
        if (
            keys[g, 0] == key[0]
            and keys[g, 1] == key[1]
            and windows[g] == window
            and last_vote_steps[g] == last_vote_step
        ):
            return np.int64(g)
        at = (at + 1) & (len(slots) - 1)


@kernel
def _group_records(  # type: ignore[no-untyped-def]
    slots,
    groups,
    kept,
    votes,
    last_vote_step,
    distinct,
    is_distinct,
    first,
    bins,
    coarse,
    key,
    text,
    window,
    values,
):
    """Add every kept record to its group; returns the number of groups."""
    size = 0
    for k in range(len(kept)):
        ahead = min(k + _FETCH_AHEAD, len(kept) - 1)
        record = kept[ahead]
        prefetch(slots, _first_slot(slots, key[record], window[record], last_vote_step[ahead]))
        record = kept[k]
        g = _find_or_add(
            slots, groups, size, key[record], text[record], window[record], last_vote_step[k]
        )
        size = max(size, g + 1)
        groups[4][g] += votes[k]
        for p in range(len(is_distinct)):
            value = values[record, p]
            if is_distinct[p]:
                groups[5][g, first[p]] += distinct[k]
            elif value == ABSENT:
                continue
            elif bins[p] == 0:
                groups[5][g, first[p]] += value
            else:
                groups[5][g, first[p] + value] += 1
                if coarse[p] > 0:
                    groups[5][g, first[p] + bins[p] + value // coarse[p]] += 1
    return size


@kernel
def _group_groups(slots, groups, size, part, window, shard, shards):  # type: ignore[no-untyped-def]
    """Add a part's groups of a window and shard; returns the number of groups."""
    keys, texts, windows, last_vote_steps, votes, values = part
    for k in range(len(windows)):
        if windows[k] != window or keys[k, 1] % shards != shard:
            continue
        g = _find_or_add(slots, groups, size, keys[k], texts[k], window, last_vote_steps[k])
        size = max(size, g + 1)
        groups[4][g] += votes[k]
        for p in range(values.shape[1]):
            groups[5][g, p] += values[k, p]
    return size
