"""advance: move the keys of one window and shard to the next trigger.

Privacy contract: earlier stages have enforced the caps, so a unit's votes and values shift the
noise processes by no more than the accounting charges. A key is selected if `count > minimum` and
`count + <xi(j)> >= thr(j)`, where j counts from the window's first trigger (in later rounds, from
the trigger after the last release), never from a key's first appearance. After selection a key is
released at every trigger (`every_trigger`), or once, which begins a new round (`threshold`).

Only keys with new records and keys that are due are examined. The paths evaluated earlier show that
the others cannot be selected now, so releases equal those of a scan over all keys.

Proof: docs/proof.md, Lemmas 8, 9, 13, 14 and 17.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numba
import numpy as np
from numpy.typing import NDArray

from dpsqlp.accounting.model import SELECTION
from dpsqlp.entropy.canonical import Encoded
from dpsqlp.entropy.noise import Noise
from dpsqlp.entropy.prf import Array128
from dpsqlp.mechanisms.paths import path_ends, paths
from dpsqlp.plan import Plan
from dpsqlp.stages.combine import Groups
from dpsqlp.tables.keys import MARGIN_UNKNOWN, KeyTable

_MARGIN_MIN = -(1 << 30)
Slots = NDArray[np.int64] | slice  # of released keys


@dataclass(frozen=True, slots=True)
class ShardRelease:
    """The releases of one window and shard at one trigger."""

    key_text: Encoded
    values: NDArray[np.int64]  # (keys, totals), in quanta
    changed: NDArray[np.int64]  # the table's rows that changed
    selected: Array128  # the ids of the keys selected now


def advance(
    plan: Plan,
    noises: Mapping[str, Noise],
    table: KeyTable,
    groups: Groups,
    window: int,
    step: int,
) -> ShardRelease:
    """Merge the window's new groups at step `step` of the window, and release."""
    rows = table.insert_keys(groups.key, groups.key_text, groups.text)
    candidates = _accumulate(
        table.rows, table.totals, rows, groups.last_vote_step, groups.votes, groups.values, step
    )  # rows with new records, each once
    selected = _select(plan, noises, table, candidates, window, step)  # rows
    slots = _slots(table, selected)
    if plan.rounds:
        texts = table.texts(selected)
        values = _perturb(plan, noises, table, slots, window, step)
        _begin_round(table, selected, step)
    else:  # keys selected before are released again
        order, texts = table.released_by_text()
        every = slice(0, table.released.size)
        values = _perturb(plan, noises, table, every, window, step)[order]
    changed = np.concatenate([candidates, selected[table.rows["updated"][selected] != step]])
    return ShardRelease(texts, values, changed, table.ids(selected))


def release_also(
    plan: Plan,
    noises: Mapping[str, Noise],
    table: KeyTable,
    release: ShardRelease,
    rows: NDArray[np.int64],
    window: int,
) -> ShardRelease:
    """The window's last release with these rows too, which were not released before."""
    slots = _slots(table, rows)
    values = _perturb(plan, noises, table, slots, window, plan.windows.length(window))
    return replace(
        release,
        key_text=Encoded.concatenate([release.key_text, table.texts(rows)]),
        values=np.concatenate([release.values, values]),
    )


def add_public_keys(table: KeyTable, ids: NDArray[np.uint64], texts: Encoded) -> None:
    """Release public keys from the window's first trigger on."""
    _slots(table, table.insert_keys(ids, texts, np.arange(len(ids))))


def _select(
    plan: Plan,
    noises: Mapping[str, Noise],
    table: KeyTable,
    candidates: NDArray[np.int64],
    window: int,
    step: int,
) -> NDArray[np.int64]:
    """The rows selected now. The step at which the others are due is predicted."""
    numbers = plan.noise_of(window)
    selection, mechanism = numbers.calibration.selection, numbers.mechanism
    if selection is None:
        return np.empty(0, np.int64)
    due = table.take_due(step)  # more records only raise a count, so a due key is selected
    passages = table.passages
    open_rows, stop, moved = _undecided(
        table.rows,
        passages.of_row,
        passages.counts,
        passages.steps,
        candidates,
        selection.minimum,
        step,
        mechanism.triggers,
    )  # rows whose paths must be evaluated, up to which step of their round; rows due earlier now
    thresholds = np.array(selection.thresholds, np.int64)
    noise = noises[SELECTION]
    seeds = noise.seeds(table.ids(open_rows), window, table.rows["round"][open_rows])
    start = np.zeros(len(open_rows), np.int64)
    state = np.zeros((len(open_rows), mechanism.state_size), np.float64)
    for chunk, xi, offsets in paths(mechanism, noise, seeds, start, stop, state):
        passages.reserve(chunk.stop - chunk.start)
        passages.size = _predict(
            table.rows,
            open_rows[chunk],
            passages.of_row,
            passages.counts,
            passages.steps,
            passages.size,
            xi,
            offsets,
            selection.sigma,
            thresholds,
            step,
        )
    decided = np.concatenate([open_rows, moved])
    now = table.rows["due"][decided] == step
    later = table.rows["due"][decided] > step
    table.schedule(decided[later])
    return np.concatenate([due, decided[now]])


def _slots(table: KeyTable, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows' indices among the released keys, assigned if they have none."""
    new = rows[table.rows["slot"][rows] == 0]
    table.rows["slot"][new] = table.released.append(new) + 1
    table.rows["due"][rows] = 0
    return table.rows["slot"][rows].astype(np.int64) - 1


def _perturb(
    plan: Plan,
    noises: Mapping[str, Noise],
    table: KeyTable,
    slots: Slots,
    window: int,
    step: int,
) -> NDArray[np.int64]:
    """Totals plus noise of released keys, in quanta. Their paths advance to `step`."""
    released, numbers = table.released, plan.noise_of(window)
    rows = released.rows[slots]
    start = released.at[slots]  # 0 for new keys, and for all keys after a restart
    assert (start < step).all(), "a key has one value of noise for each trigger"
    stop = np.full(len(rows), step, np.int64)
    values = np.empty((len(rows), plan.width), np.int64)
    new = np.arange(released.seeded, released.size)
    ids = table.ids(released.rows[new])
    for calibrated, span in zip(numbers.calibration.processes, plan.spans, strict=True):
        from_selection = calibrated.purpose == SELECTION
        noise = noises[calibrated.purpose]
        for number, at in enumerate(span):  # of the selection: round 1; else the total's number
            seeds = noise.seeds(ids, window, np.full(len(new), int(from_selection) + number))
            released.seeds[at][new] = seeds
            seeds = released.seeds[at][slots]
            state = released.states[at][slots]
            xi = path_ends(numbers.mechanism, noise, seeds, start, stop, state)
            released.states[at][slots] = state
            noised = np.rint(xi * (calibrated.sigma / calibrated.quantum)).astype(np.int64)
            totals = table.rows["count"][rows] if from_selection else table.totals[rows, at]
            values[:, at] = totals + noised  # modulo 2^64
    released.at[slots] = step
    released.seeded = released.size
    return values


def _begin_round(table: KeyTable, rows: NDArray[np.int64], step: int) -> None:
    table.rows["count"][rows] = 0
    table.rows["round_start"][rows] = step
    table.rows["round"][rows] += 1
    table.rows["best_margin"][rows] = MARGIN_UNKNOWN


@numba.njit(nogil=True, cache=True)
def _accumulate(keys, totals, rows, last_vote_step, votes, values, step):  # type: ignore[no-untyped-def]
    """Add the groups; returns the rows updated."""
    updated = np.empty(len(rows), np.int64)
    size = 0
    for k in range(len(rows)):
        row = rows[k]
        if keys[row].updated != step:
            keys[row].updated = step
            updated[size] = row
            size += 1
        # after an earlier vote in this round the unit has counted already
        if last_vote_step[k] <= keys[row].round_start:
            keys[row].count += votes[k]
        for p in range(values.shape[1]):
            totals[row, p] += values[k, p]
    return updated[:size].copy()


@numba.njit(nogil=True, cache=True)
def _undecided(keys, of_row, counts, steps, candidates, minimum, step, triggers):  # type: ignore[no-untyped-def]
    """Candidates whose paths must be evaluated, and how far; and those whose passages tell when
    they are due now.
    """
    rows = np.empty(len(candidates), np.int64)
    stop = np.empty(len(candidates), np.int64)
    moved = np.empty(len(candidates), np.int64)
    size = 0
    known = 0
    for row in candidates:
        # under every_trigger a released key stays released; under threshold a round has begun
        if (keys[row].slot != 0 and keys[row].round_start == 0) or keys[row].count <= minimum:
            continue
        due = keys[row].due
        if due == step or (due == 0 and keys[row].count + np.int64(keys[row].best_margin) < 0):
            continue
        at = of_row[row] - 1
        if due > 0 and at >= 0:
            more = keys[row].count - counts[at]
            if more < steps.shape[1] and steps[at, more] >= step:
                if steps[at, more] != due:
                    keys[row].due = steps[at, more]
                    moved[known] = row
                    known += 1
                continue
        rows[size] = row
        stop[size] = (due if due > 0 else triggers) - keys[row].round_start
        size += 1
    return rows[:size].copy(), stop[:size].copy(), moved[:known].copy()


@numba.njit(nogil=True, cache=True)
def _predict(  # type: ignore[no-untyped-def]
    keys, rows, of_row, counts, steps, known, xi, offsets, sigma, thresholds, step
):
    """Set `due` to the step of the next release without new data, and the passages; or else
    `best_margin`. Returns the number of rows with passages.
    """
    for k in range(len(rows)):
        row = rows[k]
        start = keys[row].round_start
        best_margin = np.int64(_MARGIN_MIN)
        keys[row].due = 0
        at = of_row[row] - 1 if of_row[row] > 0 else known
        missing = steps.shape[1]  # for so many units more or above, no step is known
        for j in range(step - start, offsets[k + 1] - offsets[k] + 1):
            margin = np.int64(np.rint(xi[offsets[k] + j - 1] * sigma)) - thresholds[j - 1]
            while missing > 0 and keys[row].count + missing - 1 + margin >= 0:
                missing -= 1
                steps[at, missing] = j + start
            if missing == 0:
                keys[row].due = j + start
                break
            best_margin = max(best_margin, margin)
        if keys[row].due == 0:
            keys[row].best_margin = best_margin
        else:
            counts[at] = keys[row].count
            if at == known:
                known += 1
                of_row[row] = known
    return known
