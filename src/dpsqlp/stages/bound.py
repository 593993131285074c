"""bound: enforce the caps C, c and Cs on every unit, and cast its votes.

Privacy contract (what the accounting charges): over the life of a unit's state at most C records
are kept, at most c of them for one (key, window), and at most Cs votes are cast. Which ones
depends on that unit's own records alone, in the order (trigger, timestamp, key bytes, window,
values); never on another unit, a shard or the order of arrival within the micro-batch.

Votes, policy `every_trigger` (and public keys): the unit's first kept record for a (key, window).
Policy `threshold`: once per trigger and (key, window); the vote carries `prev`, the index of the
unit's previous vote there, by which the key knows whether the unit has counted in this round.
"""

from __future__ import annotations

from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from dpsqlp.entropy.prf import Words
from dpsqlp.plan import Plan
from dpsqlp.stages.batch import ABSENT, Records
from dpsqlp.tables.units import UnitTable, place

_INSERTION_SORT_MAX = 16
_FETCH_AHEAD = 128


@dataclass(frozen=True, slots=True)
class Bounded:
    """The kept records, by position, with their votes; and how they changed the unit table."""

    kept: NDArray[np.int64]
    votes: NDArray[np.int64]  # 0 or 1
    prev: NDArray[np.int64]  # 0 without a vote
    values: NDArray[np.int64]  # (kept, processes): what is added, absent as 0
    units: NDArray[np.int64]  # their units' rows
    entries: NDArray[np.uint64]  # their pairs' slab entries, after each
    new_units: Words  # ids of the rows appended


def bound(plan: Plan, table: UnitTable, records: Records) -> Bounded:
    """Keep what the caps allow. All records of the batch for a unit must be given at once."""
    rows, leaders = table.insert(records.unit)
    order = _ordered_by_unit(table, rows, records)  # (record), grouped by unit, in order
    vote = np.full(len(order), -2, np.int64)  # -2 dropped, -1 kept, >= 0 kept and voted: prev
    first = np.zeros(len(order), np.bool_)
    entries = np.zeros(len(order), np.uint64)
    rounds = plan.release == "threshold" and plan.public_keys is None
    count_bits = 32 - plan.triggers.bit_length()
    done = 0
    while done < len(order):
        done = _apply(
            table.rows,
            table.slab,
            table.slab_used,
            table.free,
            order,
            done,
            rows,
            records.key,
            records.window,
            records.index,
            (plan.caps.records, plan.caps.records_per_key, plan.caps.selections),
            rounds,
            count_bits,
            vote,
            first,
            entries,
        )
        if done < len(order):
            table.grow_slab()
    kept = np.flatnonzero(vote > -2)
    votes = (vote[kept] >= 0).astype(np.int64)
    values = records.values[kept]
    values[values == ABSENT] = 0
    for position, calibrated in enumerate(plan.calibration.processes):
        if calibrated.process.kind == "distinct":
            values[:, position] = first[kept] if rounds else votes
    return Bounded(
        kept,
        votes,
        np.maximum(vote[kept], 0),
        values,
        rows[kept],
        entries[kept],
        records.unit[leaders],
    )


def _ordered_by_unit(
    table: UnitTable, rows: NDArray[np.int64], records: Records
) -> NDArray[np.int64]:
    order = np.empty(len(rows), np.int64)
    starts = _group(table.reserve_scratch(), rows, order)
    _sort_groups(
        starts,
        order,
        records.timestamp,
        records.key_text.data,
        records.key_text.offsets,
        records.text,
        records.window,
        records.values,
    )
    return order


@numba.njit(nogil=True, cache=True)
def _group(scratch, rows, order):  # type: ignore[no-untyped-def]
    """Bring records of one row together; returns where groups of several begin and end.

    scratch[row] first counts the row's records, then is minus one minus the next free place.
    """
    for row in rows:
        scratch[row] += 1
    several = 0
    at = 0
    starts = np.empty((len(rows), 2), np.int64)
    for k in range(len(rows)):
        state = scratch[rows[k]]
        if state > 0:
            if state > 1:
                starts[several, 0] = at
                starts[several, 1] = at + state
                several += 1
            order[at] = k
            scratch[rows[k]] = -(at + 1) - 1
            at += state
        else:
            order[-state - 1] = k
            scratch[rows[k]] = state - 1
    for row in rows:
        scratch[row] = 0
    return starts[:several].copy()


@numba.njit(nogil=True, cache=True)
def _precedes(a, b, timestamp, data, offsets, text, window, values):  # type: ignore[no-untyped-def]
    if timestamp[a] != timestamp[b]:
        return timestamp[a] < timestamp[b]
    at_a, at_b = offsets[text[a]], offsets[text[b]]
    length_a = offsets[text[a] + 1] - at_a
    length_b = offsets[text[b] + 1] - at_b
    for k in range(min(length_a, length_b)):
        byte_a = data[at_a + k]
        byte_b = data[at_b + k]
        if byte_a != byte_b:
            return byte_a < byte_b
    if length_a != length_b:
        return length_a < length_b
    if window[a] != window[b]:
        return window[a] < window[b]
    for k in range(values.shape[1]):
        if values[a, k] != values[b, k]:
            return values[a, k] < values[b, k]
    return False


@numba.njit(nogil=True, cache=True)
def _sort_groups(starts, order, timestamp, data, offsets, text, window, values):  # type: ignore[no-untyped-def]
    """Sort each group in place: insertion sort of short runs, then merges."""
    for g in range(len(starts)):
        begin, end = starts[g]
        run = _INSERTION_SORT_MAX
        for low in range(begin, end, run):
            for k in range(low + 1, min(low + run, end)):
                item = order[k]
                at = k
                while at > low and _precedes(
                    item, order[at - 1], timestamp, data, offsets, text, window, values
                ):
                    order[at] = order[at - 1]
                    at -= 1
                order[at] = item
        while run < end - begin:
            for low in range(begin, end - run, 2 * run):
                left = order[low : low + run].copy()
                right = low + run
                stop = min(low + 2 * run, end)
                taken = 0
                at = low
                while taken < run:
                    if right < stop and _precedes(
                        order[right], left[taken], timestamp, data, offsets, text, window, values
                    ):
                        order[at] = order[right]
                        right += 1
                    else:
                        order[at] = left[taken]
                        taken += 1
                    at += 1
            run *= 2


@numba.njit(nogil=True, cache=True)
def _apply(  # type: ignore[no-untyped-def]
    units, slab, used, free, order, done, rows, key, window, index, caps, rounds, count_bits,
    vote, first, entries,
):  # fmt: skip
    """Decide record by record from `done` on; returns early when the slab has no room left."""
    records_max, records_per_key_max, selections_max = caps
    count_mask = np.uint64((1 << count_bits) - 1)
    fetched = done
    warm = np.uint64(0)
    for position in range(done, len(order)):
        if position == fetched:
            # independent reads, so that the cache misses of many records overlap
            fetched = min(position + _FETCH_AHEAD, len(order))
            for ahead in range(position, fetched):
                warm ^= slab[units[rows[order[ahead]]].block]
            used[1] = np.int64(warm >> np.uint64(1))
        k = order[position]
        row = rows[k]
        if units[row].kept >= records_max:
            continue
        mixed = (key[k, 1] ^ np.uint64(window[k]) * np.uint64(0x9E3779B97F4A7C15)) * np.uint64(
            0xD6E8FEB86659FD93
        )
        tag = np.int64(mixed >> np.uint64(32))
        at = place(units, slab, used, free, row, tag)
        if at < 0:
            return position
        entry = slab[at]
        count = entry & count_mask
        if count >= np.uint64(records_per_key_max):
            continue
        units[row].kept += 1
        first[k] = count == 0
        voted = np.int64((entry & np.uint64(0xFFFFFFFF)) >> np.uint64(count_bits))
        vote[k] = -1
        may_vote = voted < index[k] if rounds else count == 0
        if may_vote and units[row].votes < selections_max:
            units[row].votes += 1
            if rounds:
                vote[k] = voted
                entry += np.uint64(index[k] - voted) << np.uint64(count_bits)
            else:
                vote[k] = 0
        slab[at] = entry + np.uint64(1)
        entries[k] = slab[at]
    return len(order)
