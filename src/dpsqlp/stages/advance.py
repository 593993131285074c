"""advance: move the keys of one window and shard to the next trigger.

Privacy contract: earlier stages have enforced the caps, so a unit's votes and values shift the
noise processes by no more than the accounting charges. Selection follows `count > minimum` and
`count + <xi(j)> >= thr(j)`, where j counts from the window's first trigger (later rounds: from
the trigger after the last release), never from a key's first appearance. After selection a key is
released at every trigger (`every_trigger`), or once, which begins a new round (`threshold`).

Only keys with new records and keys that are due are looked at; the others cannot be selected now,
which the paths evaluated earlier have shown. Releases equal those of a scan over all keys.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numba
import numpy as np
from numpy.typing import NDArray

from dpsqlp.accounting.model import SELECTION
from dpsqlp.entropy.canonical import Encoded
from dpsqlp.entropy.noise import Noise
from dpsqlp.entropy.prf import Words
from dpsqlp.mechanisms.paths import path_ends, paths
from dpsqlp.plan import Plan
from dpsqlp.stages.combine import Groups
from dpsqlp.tables.keys import PEAK_UNKNOWN, KeyTable

_PEAK_MIN = -(1 << 30)


@dataclass(frozen=True, slots=True)
class ShardRelease:
    """The releases of one window and shard at one trigger."""

    key_text: Encoded
    values: NDArray[np.int64]  # (keys, processes), in quanta
    changed: NDArray[np.int64]  # the rows of the table that are not as they were
    selected: Words  # the ids of the keys selected now


def advance(
    plan: Plan,
    noises: Mapping[str, Noise],
    table: KeyTable,
    groups: Groups,
    window: int,
    step: int,
) -> ShardRelease:
    """Merge the window's new groups at trigger number `step` of the window, and release."""
    rows = table.insert_keys(groups.key, groups.key_text, groups.text)
    candidates = _accumulate(
        table.rows, table.totals, rows, groups.last_vote_step, groups.votes, groups.values, step
    )  # rows with new records, each once
    selected = _select(plan, noises, table, candidates, window, step)  # rows
    slots = _slots(table, selected)
    if not plan.rounds:  # what was selected before is released again
        slots = np.arange(table.released.size)
    values = _perturb(plan, noises, table, slots, window, step)
    if plan.rounds:
        _begin_round(table, selected, step)
    changed = np.concatenate([candidates, selected[table.rows["touched"][selected] != step]])
    texts = table.texts(table.released.rows[slots])
    return ShardRelease(texts, values, changed, table.ids(selected))


def publish(table: KeyTable, ids: NDArray[np.uint64], texts: Encoded) -> None:
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
    """The rows selected now; the others learn when they are due."""
    selection = plan.calibration.selection
    if selection is None:
        return np.empty(0, np.int64)
    due = table.take_due(step)  # more records only raise a count, so a due key is selected
    open_rows, stop = _undecided(
        table.rows, candidates, selection.minimum, step, plan.triggers
    )  # rows whose paths must be looked at, up to which step of their round
    thresholds = np.array(selection.thresholds, np.int64)
    noise = noises[SELECTION]
    seeds = noise.seeds(table.ids(open_rows), window, table.rows["round"][open_rows])
    start = np.zeros(len(open_rows), np.int64)
    state = np.zeros((len(open_rows), plan.mechanism.state_size), np.float64)
    for chunk, xi, offsets in paths(plan.mechanism, noise, seeds, start, stop, state):
        _predict(table.rows, open_rows[chunk], xi, offsets, selection.sigma, thresholds, step)
    now = table.rows["due"][open_rows] == step
    later = table.rows["due"][open_rows] > step
    table.schedule(open_rows[later])
    return np.concatenate([due, open_rows[now]])


def _slots(table: KeyTable, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows' places among the released keys, given to them if they have none."""
    new = rows[table.rows["slot"][rows] == 0]
    table.rows["slot"][new] = table.released.append(new) + 1
    table.rows["due"][rows] = 0
    return table.rows["slot"][rows].astype(np.int64) - 1


def _perturb(
    plan: Plan,
    noises: Mapping[str, Noise],
    table: KeyTable,
    slots: NDArray[np.int64],
    window: int,
    step: int,
) -> NDArray[np.int64]:
    """Totals and noise of released keys, in quanta. Their paths move on to `step`."""
    released = table.released
    rows = released.rows[slots]
    ids = table.ids(rows)
    start = released.at[slots]  # 0 for new keys, and for all after a restart
    assert (start < step).all(), "a key has one value of noise for each trigger"
    stop = np.full(len(slots), step, np.int64)
    values = np.empty((len(slots), len(plan.calibration.processes)), np.int64)
    for position, calibrated in enumerate(plan.calibration.processes):
        from_selection = calibrated.purpose == SELECTION
        noise = noises[calibrated.purpose]
        seeds = noise.seeds(ids, window, np.full(len(slots), int(from_selection)))
        state = released.states[position][slots]
        xi = path_ends(plan.mechanism, noise, seeds, start, stop, state)
        released.states[position][slots] = state
        noised = np.rint(xi * (calibrated.sigma / calibrated.quantum)).astype(np.int64)
        totals = table.rows["count"][rows] if from_selection else table.totals[rows, position]
        values[:, position] = totals + noised  # modulo 2^64
    released.at[slots] = step
    return values


def _begin_round(table: KeyTable, rows: NDArray[np.int64], step: int) -> None:
    table.rows["count"][rows] = 0
    table.rows["last"][rows] = step
    table.rows["round"][rows] += 1
    table.rows["peak"][rows] = PEAK_UNKNOWN


@numba.njit(nogil=True, cache=True)
def _accumulate(keys, totals, rows, last_vote_step, votes, values, step):  # type: ignore[no-untyped-def]
    """Add the groups; returns the rows touched."""
    touched = np.empty(len(rows), np.int64)
    size = 0
    for k in range(len(rows)):
        row = rows[k]
        if keys[row].touched != step:
            keys[row].touched = step
            touched[size] = row
            size += 1
        # a vote after one in this round adds nothing: the unit has counted
        if last_vote_step[k] <= keys[row].last:
            keys[row].count += votes[k]
        for p in range(values.shape[1]):
            totals[row, p] += values[k, p]
    return touched[:size].copy()


@numba.njit(nogil=True, cache=True)
def _undecided(keys, candidates, minimum, step, triggers):  # type: ignore[no-untyped-def]
    """Candidates whose paths must be looked at, and how far."""
    rows = np.empty(len(candidates), np.int64)
    stop = np.empty(len(candidates), np.int64)
    size = 0
    for row in candidates:
        # under every_trigger a released key stays released; under threshold `last` says its round
        if (keys[row].slot != 0 and keys[row].last == 0) or keys[row].count <= minimum:
            continue
        due = keys[row].due
        if due == step or (due == 0 and keys[row].count + np.int64(keys[row].peak) < 0):
            continue
        rows[size] = row
        stop[size] = (due if due > 0 else triggers) - keys[row].last
        size += 1
    return rows[:size].copy(), stop[:size].copy()


@numba.njit(nogil=True, cache=True)
def _predict(keys, rows, xi, offsets, sigma, thresholds, step):  # type: ignore[no-untyped-def]
    """Set `due` to the next release without new data, or `peak` if there is none."""
    for k in range(len(rows)):
        row = rows[k]
        last = keys[row].last
        peak = np.int64(_PEAK_MIN)
        keys[row].due = 0
        for j in range(step - last, offsets[k + 1] - offsets[k] + 1):
            margin = np.int64(np.rint(xi[offsets[k] + j - 1] * sigma)) - thresholds[j - 1]
            if keys[row].count + margin >= 0:
                keys[row].due = j + last
                break
            peak = max(peak, margin)
        if keys[row].due == 0:
            keys[row].peak = peak
