"""bound: enforce the caps C, c and Cs and the norm on every unit, and cast its votes.

Privacy contract (what the accounting charges): over the life of a unit's state at most C records
are kept, at most c of them for one (key, window), the squares of their numbers per (key, window)
add up to at most P, and at most Cs votes are cast. Which ones depends only on that unit's own
records, in the order (trigger, timestamp, key bytes, window, values), and on the keys that earlier
triggers selected, which is output; not on other units' records, shards or the order of arrival
within the micro-batch (docs/proof.md, Lemmas 5 to 8).

With diagnostics a unit counts once as seen and once as bounded, when a record of it is first
dropped; of its rows the first K kept and the first D dropped count, each in the window of the
record. Whether a record counts depends on that unit's own records alone (Lemma 36).

A record that would be a unit's (n+1)-th for its (key, window) costs 2n + 1 of P. It is kept if the
caps and P allow it; a dropped record uses up nothing.

Votes under `every_trigger` (and with public keys): the unit's first kept record for a (key, window)
votes, unless an earlier trigger selected that key: the vote would be wasted. Under `threshold`: one
vote per trigger and (key, window); it carries `last_vote_step`, the step of the unit's previous
vote there, which tells the key whether the unit has counted in this round.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from dpsqlp.accounting.model import DIAGNOSTICS, Closing
from dpsqlp.entropy.prf import Array128
from dpsqlp.kernels import inlined, kernel, prefetch
from dpsqlp.plan import Plan
from dpsqlp.stages.admit import Records
from dpsqlp.tables.table import Table
from dpsqlp.tables.units import UnitTable

_INSERTION_SORT_MAX = 16
_FETCH_AHEAD = 128
_LIST_MAX = 8  # up to so many pairs are a list; more are a hash table
_LIST_LOG2 = np.array([1, 1, 1, 2, 2, 3, 3, 3, 3])


@dataclass(frozen=True, slots=True)
class Bounded:
    """The positions of the kept records, their votes, and the changes to the unit table."""

    kept: NDArray[np.int64]
    votes: NDArray[np.uint8]  # 0 or 1
    last_vote_step: NDArray[np.int64]  # 0 without a vote
    distinct: NDArray[np.uint8]  # 0 or 1, to be added to a count of distinct units
    units: NDArray[np.uint32]  # rows of their units
    entries: NDArray[np.uint64]  # slab entries of their pairs, after each record
    new_units: Array128  # ids of the rows appended
    new_keys: Array128  # ids of the rows appended to the table of keys
    counted: NDArray[np.int64]  # (open windows, DIAGNOSTICS): what diagnostics count
    dropped_units: NDArray[np.uint32]  # the row of its unit, for each dropped record that counts


def find_already_selected(
    selected: Mapping[int, Table], records: Records, members: NDArray[np.int64]
) -> NDArray[np.bool_]:
    """Whether the keys of the records at these positions were selected in their window."""
    known = np.zeros(len(members), np.bool_)
    window = records.window[members]
    for number, table in selected.items():
        if len(table):
            there = np.flatnonzero(window == number)
            known[there] = table.find(records.key[members[there]]) >= 0
    return known


def bound(
    plan: Plan,
    table: UnitTable,
    records: Records,
    members: NDArray[np.int64],
    already_selected: NDArray[np.bool_],
) -> Bounded:
    """Keep the records that the bounds allow, of those at these positions, in ascending order.

    All records of a unit in the batch must be given at once. `already_selected` tells for each
    record whether its key needs no vote.
    """
    ids = np.take(records.unit, members, axis=0)
    rows, first_seen = table.insert(ids)
    tags, unknown = _pair_tags(plan, table, records, members)
    rows_of_unknown = np.full(len(unknown), -1, np.int64)
    order = _ordered_by_unit(table, rows, records, members)  # of members: by unit, then by time
    size = len(order)
    windows = plan.windows.open(records.trigger)
    counted_max = _rows_counted_max(plan)
    if counted_max[1]:
        table.grow_dropped()
    bounded = Bounded(
        kept=np.empty(size, np.int64),
        votes=np.empty(size, np.uint8),
        last_vote_step=np.empty(size, np.int64),
        distinct=np.empty(size, np.uint8),
        units=np.empty(size, np.uint32),
        entries=np.empty(size, np.uint64),
        new_units=ids[first_seen],
        new_keys=np.empty((0, 2), np.uint64),
        counted=np.zeros((len(windows), len(DIAGNOSTICS)), np.int64),
        dropped_units=np.empty(size if counted_max[1] else 0, np.uint32),
    )
    caps = plan.caps
    done = made = lost = 0
    keys = len(table.keys)
    while done < size:
        done, made, keys, lost = _apply(
            table.rows,
            table.slab,
            table.slab_used,
            table.free,
            order,
            done,
            rows,
            tags,
            rows_of_unknown,
            keys,
            members,
            already_selected,
            records.step,
            records.window,
            (caps.records, caps.records_per_key, caps.squared_norm, caps.selections),
            plan.rounds,
            _count_bits(plan),
            made,
            lost,
            (bounded.counted, windows.start, *counted_max, table.dropped, bounded.dropped_units),
            bounded.kept,
            bounded.votes,
            bounded.last_vote_step,
            bounded.distinct,
            bounded.units,
            bounded.entries,
        )
        if done < size:
            table.grow_slab()
    kept = np.flatnonzero(rows_of_unknown >= 0)
    new_keys = unknown.ids(kept[np.argsort(rows_of_unknown[kept])])
    table.keys.insert(new_keys)
    return Bounded(
        bounded.kept[:made],
        bounded.votes[:made],
        bounded.last_vote_step[:made],
        bounded.distinct[:made],
        bounded.units[:made],
        bounded.entries[:made],
        bounded.new_units,
        new_keys,
        bounded.counted,
        bounded.dropped_units[:lost],
    )


def _rows_counted_max(plan: Plan) -> tuple[int, int]:
    """[K, D]: of one unit's kept and dropped rows, how many diagnostics count; 0 without them."""
    told = plan.calibration.diagnostics
    return (0, 0) if told is None else (told.kept_max, told.dropped_max)


def bound_early(plan: Plan, records: Records, members: NDArray[np.int64]) -> NDArray[np.int64]:
    """Of the records at these positions, those that `bound` may keep, whatever else their units
    have; and, with diagnostics, the first of each unit that `bound` drops, as many as count.

    A unit's j-th record of a (key, window) is kept by `bound` only with the j-th of every
    (key, window) that had one before: so as many times j, or the square of j, must be allowed.
    """
    table = UnitTable()
    rows, _ = table.insert(np.take(records.unit, members, axis=0))
    tags, _ = _pair_tags(plan, table, records, members)
    tags = np.where(tags < 0, -1 - tags, tags)  # with a closing no key is known
    order = _ordered_by_unit(table, rows, records, members)
    keep = np.zeros(len(members), np.bool_)
    caps = plan.caps
    records_per_key = min(caps.records_per_key, math.isqrt(caps.squared_norm))
    pairs_with = np.zeros(records_per_key + 1, np.int64)  # of one unit, by number of records
    dropped = np.zeros(len(table), np.int64)
    done = 0
    while done < len(order):
        done = _apply_early(
            table.rows,
            table.slab,
            table.slab_used,
            table.free,
            order,
            done,
            rows,
            tags,
            (caps.records, caps.squared_norm, _rows_counted_max(plan)[1]),
            pairs_with,
            dropped,
            keep,
        )
        if done < len(order):
            table.grow_slab()
    return members[keep]


def redo(
    plan: Plan,
    table: UnitTable,
    new_units: Array128,
    new_keys: Array128,
    rows: NDArray[np.int64],
    entries: NDArray[np.uint64],
    votes: NDArray[np.int64],
    dropped_units: NDArray[np.uint32],
) -> None:
    """Repeat what `bound` did to a table: one kept record per entry, in any order."""
    table.insert(new_units)
    table.keys.insert(new_keys)
    if len(dropped_units):
        table.grow_dropped()
        np.add.at(table.dropped, dropped_units, np.uint8(1))
    done = 0
    while done < len(rows):
        done = _redo(
            table.rows,
            table.slab,
            table.slab_used,
            table.free,
            done,
            rows,
            entries,
            votes,
            _count_bits(plan),
        )
        if done < len(rows):
            table.grow_slab()


def contents(table: UnitTable) -> list[NDArray[Any]]:
    """Copies: per row the id and the numbers of kept records, squares, votes and pairs; all entries
    by row; the keys; and the numbers of dropped records that count, if there are any.
    """
    rows = table.rows[: table.size]
    pairs = rows["pairs"]
    entries = np.empty(int(pairs.sum(dtype=np.int64)), np.uint64)
    _gather_entries(rows, table.slab, entries)
    ids, keys = (each.ids(np.arange(len(each))) for each in (table, table.keys))
    kept, squares, votes = (rows[name].copy() for name in ("kept", "squares", "votes"))
    dropped = table.dropped[: table.size].copy()
    return [ids, kept, squares, votes, pairs.copy(), entries, keys, dropped]


def restore(plan: Plan, saved: list[NDArray[Any]]) -> UnitTable:
    """A table with these contents."""
    ids, kept, squares, votes, pairs, entries, keys, dropped = saved
    table = UnitTable()
    rows = np.repeat(np.arange(len(ids)), pairs)
    dropped_units = np.repeat(np.arange(len(dropped), dtype=np.uint32), dropped)
    redo(plan, table, ids, keys, rows, entries, np.zeros(len(entries), int), dropped_units)
    for name, numbers in (("kept", kept), ("squares", squares), ("votes", votes)):
        table.rows[name][: len(ids)] = numbers
    return table


def lay_weights(
    closing: Closing, table: UnitTable, is_out: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For each row of the table of keys, how many units lay on it, and the sum of their weights in
    quanta. `is_out` tells which of these keys are selected.

    A unit lays on its open keys, those with a kept record that are not out. If it has more than the
    closing allows, it takes those with the smallest ids.
    """
    units = np.zeros(len(table.keys), np.int64)
    weights = np.zeros(len(table.keys), np.int64)
    rows = table.rows[: table.size]
    _lay(
        rows,
        table.slab,
        is_out,
        (closing.budget, closing.vote_cost, closing.square_cost, closing.quantum),
        np.array(closing.weights_max, np.int64),
        table.keys.ids(np.arange(len(table.keys))),
        np.empty(rows["pairs"].max(initial=0), np.int64),
        units,
        weights,
    )
    return units, weights


def _count_bits(plan: Plan) -> int:
    """How many bits of an entry hold the number of kept records; above are those of the vote."""
    return 32 - plan.triggers.bit_length()


def _pair_tags(
    plan: Plan, table: UnitTable, records: Records, members: NDArray[np.int64]
) -> tuple[NDArray[np.int64], Table]:
    """The tag of each record's (key, window) pair; and the keys that the table does not have, of
    which row r has the tag -1 - r. Only those with a kept record enter the table.
    """
    keys = np.take(records.key, members, axis=0)
    unknown = Table()
    if plan.calibration.closing is None:
        tags = np.empty(len(members), np.int64)
        _hash_pairs(keys, np.take(records.window, members), tags)
    else:
        tags = table.keys.find(keys)
        new = np.flatnonzero(tags < 0)
        rows, _ = unknown.insert(keys[new])
        tags[new] = -1 - rows
    return tags, unknown


def _ordered_by_unit(
    table: UnitTable, rows: NDArray[np.int64], records: Records, members: NDArray[np.int64]
) -> NDArray[np.int64]:
    order: NDArray[np.int64]
    order, several = _partition(table.scratch_bits(), rows)
    first = len(order) - several  # records before it are the only ones of their units
    tail = order[first:]
    order[first:] = tail = tail[np.argsort(rows[tail], kind="stable")]
    edges = np.flatnonzero(np.diff(rows[tail], prepend=-1, append=-1)) + first
    starts = np.stack([edges[:-1], edges[1:]], axis=1)
    _sort_groups(
        starts,
        order,
        members,
        records.timestamp,
        records.key_text.data,
        records.key_text.offsets,
        records.text,
        records.window,
        records.values,
    )
    return order


@numba.njit(nogil=True, cache=True)
def _partition(bits, rows):  # type: ignore[no-untyped-def]
    """The order with records that are alone in their row first; and how many follow them."""
    one = np.uint64(1)
    for row in rows:
        bit = one << np.uint64(row & 63)
        bits[row >> 6, 1] |= bits[row >> 6, 0] & bit
        bits[row >> 6, 0] |= bit
    order = np.empty(len(rows), np.int64)
    alone = 0
    several = 0
    for k in range(len(rows)):
        if bits[rows[k] >> 6, 1] >> np.uint64(rows[k] & 63) & one:
            several += 1
            order[len(rows) - several] = k
        else:
            order[alone] = k
            alone += 1
    for row in rows:
        bits[row >> 6, 0] = 0
        bits[row >> 6, 1] = 0
    return order, several


@inlined
def _precedes(a, b, timestamp, data, offsets, text, window, values):  # type: ignore[no-untyped-def]
    if timestamp[a] != timestamp[b]:
        return timestamp[a] < timestamp[b]
    at_a, at_b = offsets[text[a]], offsets[text[b]]
    length_a = offsets[text[a] + 1] - at_a
    length_b = offsets[text[b] + 1] - at_b
    shared = 0 if text[a] == text[b] else min(length_a, length_b)
    for k in range(shared):
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
def _sort_groups(starts, order, members, timestamp, data, offsets, text, window, values):  # type: ignore[no-untyped-def]
    """Sort each group in place: insertion sort of short runs, then merges."""
    for g in range(len(starts)):
        begin, end = starts[g]
        run = _INSERTION_SORT_MAX
        for low in range(begin, end, run):
            for k in range(low + 1, min(low + run, end)):
                item = order[k]
                at = k
                while at > low and _precedes(
                    members[item], members[order[at - 1]],
                    timestamp, data, offsets, text, window, values,
                ):  # fmt: skip
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
                        members[order[right]], members[left[taken]],
                        timestamp, data, offsets, text, window, values,
                    ):  # fmt: skip
                        order[at] = order[right]
                        right += 1
                    else:
                        order[at] = left[taken]
                        taken += 1
                    at += 1
            run *= 2


# All code that reads or writes a slab is in this module: numba's cache misses changes elsewhere.


@inlined
def _block_log2(pairs):  # type: ignore[no-untyped-def]
    """Log2 of the block size for a number of pairs: 2, 4 or 8, then at most 3/4 full."""
    if pairs <= _LIST_MAX:
        return _LIST_LOG2[pairs]  # a look-up is faster than a loop of unpredictable length
    log2 = np.int64(4)
    while 3 << log2 < 4 * pairs:
        log2 += 1
    return log2


@kernel
def _hash_pairs(keys, windows, tags):  # type: ignore[no-untyped-def]
    """32 bits of each pair of key and window."""
    for k in range(len(tags)):
        mixed = keys[k, 1] ^ np.uint64(windows[k]) * np.uint64(0x9E3779B97F4A7C15)
        tags[k] = np.int64((mixed * np.uint64(0xD6E8FEB86659FD93)) >> np.uint64(32))


@inlined
def _probe(slab, block, log2, tag):  # type: ignore[no-untyped-def]
    """The index of the tag in a block that is a hash table, or of the empty entry for it."""
    mask = (1 << log2) - 1
    at = tag & mask
    while slab[block + at] != 0 and slab[block + at] >> np.uint64(32) != np.uint64(tag):
        at = (at + 1) & mask
    return block + at


@inlined
def _allocate(slab, used, free, log2):  # type: ignore[no-untyped-def]
    """An empty block, or -1 if the slab is full."""
    block = free[log2]
    if block >= 0:
        free[log2] = np.int64(slab[block]) - 1
        slab[block] = 0
        return block
    if used[0] + (1 << log2) > len(slab):
        return -1
    block = used[0]
    used[0] += 1 << log2
    return block


@inlined
def _find_or_add(units, slab, used, free, row, tag):  # type: ignore[no-untyped-def]
    """The index of a unit's entry with this tag; -1 if the slab has no room for a new one.

    A new entry has a count of zero: the caller raises it.
    """
    pairs = np.int64(units[row].pairs)
    block = np.int64(units[row].block)
    log2 = _block_log2(pairs)
    if pairs <= _LIST_MAX:
        for listed in range(block, block + pairs):
            if slab[listed] >> np.uint64(32) == np.uint64(tag):
                return listed
    else:
        at = _probe(slab, block, log2, tag)
        if slab[at] != 0:
            return at
    wanted = _block_log2(pairs + 1)
    if pairs == 0 or wanted > log2:
        old, block = block, _allocate(slab, used, free, wanted)
        if block < 0:
            return -1
        if pairs > 0:
            for number in range(1 << log2):
                entry = slab[old + number]
                if pairs < _LIST_MAX:
                    slab[block + number] = entry
                elif entry != 0:
                    slab[_probe(slab, block, wanted, np.int64(entry >> np.uint64(32)))] = entry
                slab[old + number] = 0
            slab[old] = np.uint64(free[log2] + 1)
            free[log2] = old
        units[row].block = block
    at = block + pairs if pairs < _LIST_MAX else _probe(slab, block, wanted, tag)
    units[row].pairs = pairs + 1
    slab[at] = np.uint64(tag) << np.uint64(32)
    return at


@inlined
def _prefetch_entry(units, slab, row, tag):  # type: ignore[no-untyped-def]
    """Prefetch what `_find_or_add` will read."""
    pairs = np.int64(units[row].pairs)
    block = np.int64(units[row].block)
    if pairs <= _LIST_MAX:
        prefetch(slab, block)
        prefetch(slab, block + pairs)
    else:
        prefetch(slab, block + (tag & ((1 << _block_log2(pairs)) - 1)))


@kernel
def _redo(units, slab, used, free, done, rows, entries, votes, count_bits):  # type: ignore[no-untyped-def]
    count_mask = np.uint64((1 << count_bits) - 1)
    for k in range(done, len(rows)):
        at = _find_or_add(units, slab, used, free, rows[k], np.int64(entries[k] >> np.uint64(32)))
        if at < 0:
            return k
        slab[at] = max(slab[at], entries[k])  # a pair's entries only grow
        units[rows[k]].kept += 1
        units[rows[k]].squares += 2 * (entries[k] & count_mask) - np.uint64(1)
        units[rows[k]].votes += votes[k]
    return len(rows)


@kernel
def _gather_entries(units, slab, entries):  # type: ignore[no-untyped-def]
    at = 0
    for row in range(len(units)):
        prefetch(slab, np.int64(units[min(row + _FETCH_AHEAD, len(units) - 1)].block))
        pairs = np.int64(units[row].pairs)
        if pairs == 0:
            continue
        block = np.int64(units[row].block)
        for place in range(block, block + (1 << _block_log2(pairs))):
            if slab[place] != 0:
                entries[at] = slab[place]
                at += 1


@inlined
def _count_kept(diagnosed, kept, window):  # type: ignore[no-untyped-def]
    """A unit with so many kept records keeps another; its first record of all is kept."""
    counted, first_window, kept_max, _, _, _ = diagnosed
    if kept < kept_max:
        counted[window - first_window, 0] += kept == 0
        counted[window - first_window, 2] += 1


@inlined
def _count_dropped(diagnosed, row, window, lost):  # type: ignore[no-untyped-def]
    """A record of a unit is dropped; returns how many such records have counted."""
    counted, first_window, _, dropped_max, dropped, dropped_units = diagnosed
    if dropped_max == 0 or dropped[row] >= dropped_max:
        return lost
    counted[window - first_window, 1] += dropped[row] == 0
    counted[window - first_window, 3] += 1
    dropped[row] += 1
    dropped_units[lost] = row
    return lost + 1


@kernel
def _apply(  # type: ignore[no-untyped-def]
    units, slab, used, free, order, done, rows, tags, rows_of_unknown, keys, members,
    already_selected, step, window, bounds, rounds, count_bits, made, lost, diagnosed, kept, votes,
    last_vote_step, distinct, kept_units, entries,
):  # fmt: skip
    """Decide record by record from `done` on; returns early when the slab is full."""
    records_max, records_per_key_max, squares_max, selections_max = bounds
    count_mask = np.uint64((1 << count_bits) - 1)
    fetched = done
    for position in range(done, len(order)):
        if position == fetched:  # the cache misses of many records overlap
            fetched = min(position + _FETCH_AHEAD, len(order))
            for ahead in order[position:fetched]:
                prefetch(units, rows[ahead])
            for ahead in order[position:fetched]:
                _prefetch_entry(units, slab, rows[ahead], tags[ahead])
        row = rows[order[position]]
        k = members[order[position]]
        if units[row].kept >= records_max or units[row].squares >= squares_max:
            lost = _count_dropped(diagnosed, row, window[k], lost)
            continue
        tag = tags[order[position]]
        if tag < 0:
            if rows_of_unknown[-1 - tag] < 0:  # no unit has this pair, so the record is kept
                rows_of_unknown[-1 - tag] = keys
                keys += 1
            tag = rows_of_unknown[-1 - tag]
        at = _find_or_add(units, slab, used, free, row, tag)
        if at < 0:
            return position, made, keys, lost
        entry = slab[at]
        count = entry & count_mask
        squares = np.int64(units[row].squares) + 2 * np.int64(count) + 1
        if count >= np.uint64(records_per_key_max) or squares > squares_max:
            lost = _count_dropped(diagnosed, row, window[k], lost)
            continue
        _count_kept(diagnosed, units[row].kept, window[k])
        units[row].kept += 1
        units[row].squares = squares
        voted = np.int64((entry & np.uint64(0xFFFFFFFF)) >> np.uint64(count_bits))
        votes_once = count == 0 and not already_selected[order[position]]
        may_vote = voted < step[k] if rounds else votes_once
        votes[made] = may_vote and units[row].votes < selections_max
        last_vote_step[made] = 0
        if votes[made]:
            units[row].votes += 1
            if rounds:
                last_vote_step[made] = voted
                entry += np.uint64(step[k] - voted) << np.uint64(count_bits)
        slab[at] = entry + np.uint64(1)
        kept[made] = k
        distinct[made] = count == 0 if rounds else votes[made]
        kept_units[made] = row
        entries[made] = slab[at]
        made += 1
    return len(order), made, keys, lost


@kernel
def _apply_early(  # type: ignore[no-untyped-def]
    units, slab, used, free, order, done, rows, tags, bounds, pairs_with, dropped, keep
):
    """Decide record by record from `done` on; returns early when the slab is full."""
    records_max, squares_max, dropped_max = bounds
    for position in range(done, len(order)):
        row = rows[order[position]]
        if position == 0 or rows[order[position - 1]] != row:
            number = 1
            while number < len(pairs_with) and pairs_with[number] > 0:
                pairs_with[number] = 0
                number += 1
        if pairs_with[1] < min(records_max, squares_max):
            at = _find_or_add(units, slab, used, free, row, tags[order[position]])
            if at < 0:
                return position
            count = np.int64(slab[at] & np.uint64(0xFFFFFFFF)) + 1
            pairs = pairs_with[count] + 1 if count < len(pairs_with) else records_max + 1
            if pairs * count <= records_max and pairs * count * count <= squares_max:
                pairs_with[count] = pairs
                slab[at] += np.uint64(1)
                keep[order[position]] = True
                continue
        if dropped[row] < dropped_max:
            dropped[row] += 1
            keep[order[position]] = True
    return len(order)


@kernel
def _lay(units, slab, is_out, costs, weights_max, ids, open_keys, laid, weights):  # type: ignore[no-untyped-def]
    """Each unit lays what it has left on its open keys. `open_keys` is space for one unit's."""
    budget, vote_cost, square_cost, quantum = costs
    for row in range(len(units)):
        prefetch(slab, np.int64(units[min(row + _FETCH_AHEAD, len(units) - 1)].block))
        pairs = np.int64(units[row].pairs)
        left = budget - vote_cost * units[row].votes - square_cost * units[row].squares
        if pairs == 0 or left <= 0:
            continue
        block = np.int64(units[row].block)
        found = 0
        for place in range(block, block + (1 << _block_log2(pairs))):
            key = np.int64(slab[place] >> np.uint64(32))
            if slab[place] != 0 and not is_out[key]:
                open_keys[found] = key
                found += 1
        if found == 0:
            continue
        taken = min(found, len(weights_max))
        if taken < found:
            _move_smallest(open_keys, found, taken, ids)
        weight = min(
            np.int64(math.floor(math.sqrt(left / taken) / quantum)), weights_max[taken - 1]
        )
        if weight > 0:
            for key in open_keys[:taken]:
                laid[key] += 1
                weights[key] += weight


@inlined
def _move_smallest(keys, size, number, ids):  # type: ignore[no-untyped-def]
    """Move the `number` keys with the smallest ids to the front."""
    for front in range(number):
        smallest = front
        for k in range(front + 1, size):
            a, b = keys[k], keys[smallest]
            if ids[a, 0] < ids[b, 0] or (ids[a, 0] == ids[b, 0] and ids[a, 1] < ids[b, 1]):
                smallest = k
        keys[front], keys[smallest] = keys[smallest], keys[front]
