"""The exact delta of a pipeline with a closing, on streams of a few keys.

What the target adds, which votes it casts and what it lays on open keys come from the real stages,
once for each history: which keys the selection takes, at which step. The rest is arithmetic on the
numbers of the real plan: probabilities of selection are normal tails, values given what is released
are normals that differ by a known shift. So the largest Pr[D] - e^epsilon Pr[D'] over all sets of
outputs is a finite sum, in both directions, without sampling and without a false alarm.

An output is, for each key, whether and at which step the selection took it, whether the closing
did, and its values from then on. That is a little more than is shown: the proof allows it.

Other units are given by what they do to each key: how many have counted by each step, how many lay
on it and with what weight. They are the same in both worlds.

Not covered: more than two steps; others that do different things in different histories, as units
with several keys do; float error of the noise.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import gammaln, ndtr, xlogy

from dpsqlp.accounting import SELECTION, Closing, Selection
from dpsqlp.core import Core
from dpsqlp.entropy.canonical import encode
from dpsqlp.entropy.secret import Secret
from dpsqlp.mechanisms import Mechanism
from dpsqlp.plan import Plan
from dpsqlp.stages.admit import MicroBatch
from dpsqlp.tables.table import Table
from dpsqlp.tables.units import UnitTable

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

VISIBLE = 1 << 40  # so many units are selected in any case
_HUGE = 1e9  # what a target sends: clamped to the bound
_NODES, _NODE_WEIGHTS = np.polynomial.legendre.leggauss(80)
_FAR = 9.5  # deviations
_NEVER = 1e-30


@dataclass(frozen=True)
class Cases:
    """Streams of a few keys each. Arrays are (cases, keys), `counted` is (cases, keys, steps)."""

    records: Integers  # of the target
    step: Integers  # at which it sends them
    counted: Integers  # others that have counted by each step
    laid: Integers  # others that lay on the key, if it is open
    weight: Integers  # the sum of their weights, in quanta

    def __len__(self) -> int:
        return len(self.records)

    def take(self, rows: Any) -> Cases:
        return Cases(**{name: value[rows] for name, value in vars(self).items()})


@dataclass(frozen=True)
class Target:
    """What the target does in each history. Arrays are (cases, histories, keys, ...)."""

    kept: Integers  # records
    votes: Integers  # by step
    added: Integers  # by step and process, in quanta
    laid: Integers
    weight: Integers


@dataclass(frozen=True)
class Outputs:
    """What the two worlds show. Arrays are (cases, outputs): the probabilities of what is released,
    and the squared distance between the values then.
    """

    present: Floats  # with the target
    absent: Floats
    squares: Floats


def spent(plan: Plan, cases: Cases) -> Floats:
    """What each case spends, as shares of what is claimed: of delta, the larger of the two
    directions; and of the part of delta for outputs that are impossible without the target.
    """
    return _shares(plan, _outputs(plan, cases)[0])


def release_chances(plan: Plan, cases: Cases) -> tuple[Floats, Floats]:
    """With and without the target, the probability of each way to release the keys: (cases, ways).
    Way number w releases key k from step w // (steps + 1)^k % (steps + 1) on, 0 never.
    """
    outputs, released = _outputs(plan, cases)
    ways = released @ (plan.triggers + 1) ** np.arange(released.shape[-1])
    found = []
    for chances in (outputs.present, outputs.absent):
        total = np.zeros((len(cases), int(ways.max()) + 1))
        np.add.at(total.T, ways, chances.T)
        found.append(total)
    return found[0], found[1]


def _outputs(plan: Plan, cases: Cases) -> tuple[Outputs, Integers]:
    """The outputs, and from which step each of them releases each key."""
    closing, selection = numbers_of(plan)
    steps, keys = plan.triggers, cases.records.shape[1]
    taken = np.arange((steps + 1) ** keys)[:, None] // (steps + 1) ** np.arange(keys) % (steps + 1)
    closed = (np.arange(1 << keys)[:, None] >> np.arange(keys) & 1).astype(bool)
    target = observe(plan, cases, taken)
    chances = []
    for present in (1, 0):
        counted = cases.counted[:, None] + present * np.cumsum(target.votes, axis=-1)
        history = np.prod(_pick(first_selected(plan, counted), taken), axis=-1)
        units = cases.laid[:, None] + present * target.laid
        weight = cases.weight[:, None] + present * target.weight
        close, rest = _closes(closing, selection, units, weight)
        close, rest = np.where(taken == 0, close, 0.0), np.where(taken == 0, rest, 1.0)
        part = np.where(closed, close[:, :, None], rest[:, :, None])
        each = history[:, :, None] * np.prod(part, axis=-1)
        chances.append(each.reshape(len(cases), -1))
        np.testing.assert_allclose(chances[-1].sum(axis=1), 1, rtol=0, atol=1e-9)
    released = np.where((taken[:, None] == 0) & closed, steps, taken[:, None]).reshape(-1, keys)
    shifts = _squared_shifts(plan, target.added[:, 0])  # records are kept in every history
    squares = np.sum(_pick(shifts[:, None], released), axis=-1)
    return Outputs(chances[0], chances[1], squares), released


def spent_on_alike(plan: Plan, cases: Cases) -> Floats:
    """As `spent`, for one case of many keys and one step, of which many keys are alike.

    Of the keys that are alike only numbers matter. If the target has more open keys than it lays
    on, all keys must be alike but for its votes: then so are those that it lays on.
    """
    closing, selection = numbers_of(plan)
    assert plan.triggers == 1
    assert len(cases) == 1
    keys = cases.records.shape[1]
    first = observe(plan, cases, np.zeros((1, keys), np.int64))
    others = np.stack([cases.counted[0, :, 0], cases.laid[0], cases.weight[0]], axis=1)
    own = np.concatenate([first.kept[0, 0, :, None], first.added[0, 0, :, 0]], axis=1)
    kinds, kind = np.unique(
        np.concatenate([others, own, first.votes[0, 0]], axis=1), axis=0, return_inverse=True
    )
    groups, group = np.unique(kinds[:, :-1], axis=0, return_inverse=True)  # but for votes
    counted, votes, sizes = kinds[:, 0], kinds[:, -1], np.bincount(kind)
    member = np.array([np.sum(kind[:key] == kind[key]) for key in range(keys)])  # of its kind

    # (patterns, kinds): how many of each kind the selection takes, and how likely that is
    numbers = _grid(sizes)
    histories = [
        np.prod(_binomial(numbers, sizes, *first_selected(plan, counts[:, None]).T[::-1]), axis=1)
        for counts in (counted + votes, counted)
    ]
    likely = np.maximum(*histories) > _NEVER
    numbers, histories = numbers[likely], [history[likely] for history in histories]
    target = observe(plan, cases, (member < numbers[:, kind]).astype(np.int64))
    own_weight, lays = target.weight[0].max(axis=1, keepdims=True), target.laid[0].sum(axis=1)
    assert (target.weight[0] == own_weight * target.laid[0]).all(), "one weight for all"

    _, laid, weight, kept = groups[:, :4].T
    shifts = _squared_shifts(plan, groups[None, :, None, 4:])[0, :, 1]
    open_keys = (sizes - numbers) @ np.eye(len(groups), dtype=np.int64)[group]
    lays_on = (own_weight > 0) & (kept > 0)
    if (lays < (open_keys * lays_on).sum(axis=1)).any():  # the keys that it lays on, and the others
        assert len(groups) == 1
        open_keys = np.stack([lays, open_keys[:, 0] - lays], axis=1)
        lays_on = (own_weight > 0) & np.array([True, False])
        laid, weight, group, shifts = laid[[0, 0]], weight[[0, 0]], group * 0, shifts[[0, 0]]

    closed = _grid(open_keys.max(axis=0))  # how many of each group the closing takes
    chances = []
    for history, present in zip(histories, (1, 0), strict=True):
        own_laid = present * lays_on
        close, rest = _closes(closing, selection, laid + own_laid, weight + own_laid * own_weight)
        part = history[:, None]
        for place, number in enumerate(closed.T):
            at = [place]
            part = part * _binomial(number, open_keys[:, at], close[:, at], rest[:, at])
        chances.append(part.reshape(1, -1))
        np.testing.assert_allclose(part.sum(), 1, rtol=0, atol=1e-9)
    distance = (numbers @ shifts[group])[:, None] + closed @ shifts
    return _shares(plan, Outputs(chances[0], chances[1], distance.reshape(1, -1)))


def spent_with_distinct(plan: Plan, cases: Cases) -> Floats:
    """As `spent`, for one case and one step, where COUNT(DISTINCT unit) is released from the
    selection: each integer that it may be is an output of its own.

    Keys with as many units as `VISIBLE` are selected in both worlds. Of the rest there are one or
    two.
    """
    _, selection = numbers_of(plan)
    assert plan.triggers == 1
    (visible,) = cases.counted[:, :, 0] >= VISIBLE
    hidden = np.flatnonzero(~visible)
    taken = np.tile(visible, (1 << len(hidden), 1)).astype(np.int64)
    taken[:, hidden] = np.arange(len(taken))[:, None] >> np.arange(len(hidden)) & 1
    target = observe(plan, cases, taken)
    votes = target.votes[0, 0, :, 0]  # of every history: no key is spared of them
    shifts = _squared_shifts(plan, target.added[:, 0])[0, :, 1]  # of the values, by key
    seen = np.sum((shifts + (votes / selection.sigma) ** 2)[visible])

    # Of each key: it is released with one of these counts; or it is not, which comes last.
    reach = int(_FAR * selection.sigma) + 2
    found: list[list[Floats]] = []
    for history, pattern in enumerate(taken):
        present, absent, squares = np.ones(()), np.ones(()), np.asarray(seen)
        for key in hidden:
            others = cases.counted[0, key, 0], cases.laid[0, key], cases.weight[0, key]
            shown = others[0] + np.arange(-reach, reach + 1)
            own = votes[key], target.laid[0, history, key], target.weight[0, history, key]
            both = [o + w for o, w in zip(others, own, strict=True)]
            present = np.multiply.outer(present, count_chances(plan, shown, pattern[key], *both))
            absent = np.multiply.outer(absent, count_chances(plan, shown, pattern[key], *others))
            distance = np.append(np.full(len(shown), shifts[key]), 0.0)
            squares = np.add.outer(squares, distance)
        found.append([each.reshape(1, -1) for each in (present, absent, squares)])
    outputs = Outputs(*(np.concatenate(each, axis=1) for each in zip(*found, strict=True)))
    np.testing.assert_allclose(outputs.present.sum(), 1, rtol=0, atol=1e-9)
    np.testing.assert_allclose(outputs.absent.sum(), 1, rtol=0, atol=1e-9)
    return _shares(plan, outputs)


def count_chances(
    plan: Plan, shown: Integers, taken: Any, counted: Any, units: Any, weight: Any
) -> Floats:
    """The probability that a key is taken by the selection, or is not, and is then released with
    each count, or, last, not released.
    """
    closing, selection = numbers_of(plan)
    edges = np.append(shown - 0.5, np.inf)
    edges[0] = -np.inf
    at = (edges - counted) / selection.sigma
    likely = np.where(at[1:] <= 0, np.diff(ndtr(at)), -np.diff(ndtr(-at)))  # exact in both tails
    selected = (counted > selection.minimum) & (shown >= selection.thresholds[0])
    if taken:
        return np.append(likely * selected, 0.0)
    close, rest = _closes(closing, selection, units, weight)
    return np.append(likely * ~selected * close, np.sum(likely * ~selected) * rest)


def numbers_of(plan: Plan) -> tuple[Closing, Selection]:
    """The closing and the selection, which there are."""
    closing, selection = plan.calibration.closing, plan.calibration.selection
    assert closing is not None
    assert selection is not None
    return closing, selection


def hockey_stick(p: Any, q: Any, squares: Any, epsilon: float) -> Floats:
    """The mean of (p f - e^epsilon q g)^+ for normal densities f and g at this squared distance."""
    distance = np.sqrt(squares)
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = (epsilon + np.log(q) - np.log(p)) / distance
        apart = p * ndtr(distance / 2 - middle) - np.exp(epsilon) * q * ndtr(-distance / 2 - middle)
    apart = np.where((p > 0) & (q > 0), apart, p)
    at_once = np.maximum(p - np.exp(epsilon) * q, 0.0)
    mean: Floats = np.where(distance > 0, np.maximum(apart, at_once), at_once)
    return mean


def _shares(plan: Plan, outputs: Outputs) -> Floats:
    calibration = plan.calibration
    p, q, squares = outputs.present, outputs.absent, outputs.squares
    delta = np.maximum(
        hockey_stick(p, q, squares, calibration.epsilon).sum(axis=1),
        hockey_stick(q, p, squares, calibration.epsilon).sum(axis=1),
    )
    failures = np.where(q == 0, p, 0.0).sum(axis=1)
    return np.stack([delta / calibration.delta, failures / calibration.delta_threshold], axis=1)


def _closes(
    closing: Closing, selection: Selection, units: Any, weight: Any
) -> tuple[Floats, Floats]:
    """The probability that the closing takes a key that is open, and that it does not."""
    short = (closing.threshold - weight - 0.5) * closing.quantum
    short = np.where(units > selection.minimum, short, np.inf)
    return ndtr(-short), ndtr(short)


def _grid(most: Integers) -> Integers:
    """All combinations of numbers from 0 up to these."""
    return np.indices(tuple((most + 1).tolist())).reshape(len(most), -1).T


def _binomial(number: Any, size: Any, chance: Any, rest: Any) -> Floats:
    """The probability of this number out of a size, where `rest` is 1 - `chance`."""
    others = np.maximum(size - number, 0)
    ways = gammaln(size + 1.0) - gammaln(number + 1.0) - gammaln(others + 1.0)
    likely: Floats = np.exp(ways + xlogy(number, chance) + xlogy(others, rest))
    return np.where(number > size, 0.0, likely)


def first_selected(plan: Plan, counted: Integers) -> Floats:
    """The probability that a key is never selected, or first at each step: (..., steps + 1)."""
    _, selection = numbers_of(plan)
    counts, back = np.unique(counted.reshape(-1, plan.triggers), axis=0, return_inverse=True)
    covariance = path_covariance(plan.mechanism)
    deviation = np.sqrt(covariance.diagonal())
    limits = (np.array(selection.thresholds) - counts - 0.5) / (selection.sigma * deviation)
    limits = np.where(counts > selection.minimum, limits, np.inf)
    chances = np.zeros((len(counts), plan.triggers + 1))
    chances[:, 0], chances[:, 1] = ndtr(limits[:, 0]), ndtr(-limits[:, 0])
    if plan.triggers == 2:
        correlation = covariance[0, 1] / (deviation[0] * deviation[1])
        rest = np.sqrt(1 - correlation**2)
        end = np.clip(limits[:, :1], -_FAR, _FAR)
        at = -_FAR + (end + _FAR) * (_NODES + 1) / 2
        density = np.exp(-at * at / 2) / np.sqrt(2 * np.pi)
        beyond = (limits[:, 1:] - correlation * at) / rest
        width = (end[:, 0] + _FAR) / 2
        chances[:, 0] = (density * ndtr(beyond)) @ _NODE_WEIGHTS * width
        chances[:, 2] = (density * ndtr(-beyond)) @ _NODE_WEIGHTS * width
    assert plan.triggers <= 2, "more steps need a normal integral of more dimensions"
    return chances[back.reshape(counted.shape[:-1])]


def path_covariance(mechanism: Mechanism) -> Floats:
    """The covariance of xi over the triggers, from the paths of unit vectors of normals."""
    triggers = mechanism.triggers
    draws = int(mechanism.draws(np.array([triggers]))[0])
    paths = np.empty(draws * triggers)
    mechanism.walk(
        np.eye(draws).reshape(-1),
        np.arange(draws + 1) * draws,
        np.zeros(draws, np.int64),
        np.zeros((draws, mechanism.state_size)),
        paths,
        np.arange(draws + 1) * triggers,
    )
    response = paths.reshape(draws, triggers)
    return np.asarray(response.T @ response)


def observe(plan: Plan, cases: Cases, taken: Integers) -> Target:
    """Run the bounding and the weights of the target, with keys of its own for each history.

    `taken` is (histories, keys): the step at which the selection takes the key, 0 never.
    """
    core = Core(plan, Secret(bytes(32), bytes(16)))
    steps, (size, keys) = plan.triggers, cases.records.shape
    shape = (size, len(taken), keys)
    number = np.arange(size * len(taken) * keys).reshape(shape)  # of a key
    ids = core.keys.identify(encode([pa.array(number.reshape(-1))], number.size))
    every = Table()
    every.insert(ids)

    def those(rows: NDArray[np.bool_]) -> Table:
        found = Table()
        found.insert(ids[number[:, rows].reshape(-1)])
        return found

    table = UnitTable()
    processes = len(plan.calibration.processes)
    kept = np.zeros(number.size, np.int64)
    votes = np.zeros((number.size, steps), np.int64)
    added = np.zeros((number.size, steps, processes), np.int64)
    for step in range(1, steps + 1):
        sent = np.where(cases.step == step, cases.records, 0)
        sent = np.broadcast_to(sent[:, None], shape).reshape(-1)
        key = np.repeat(number.reshape(-1), sent)
        records = core.admit(
            MicroBatch(
                unit=(pa.array(key // keys),),
                key=(pa.array(key),),
                window=pa.array(np.zeros_like(key)),
                timestamp=pa.array(key % keys),
                values=(pa.array(np.full(len(key), _HUGE)),)[: plan.value_columns],
            ),
            step,
        )
        before = {0: those((taken > 0) & (taken < step))} if plan.spares_votes else {}
        bounded, groups = core.by_unit(table, records, np.arange(len(key)), before)
        kept += np.bincount(key[bounded.kept], minlength=len(kept))
        rows = every.find(groups.key)
        votes[rows, step - 1] = groups.votes
        added[rows, step - 1] = groups.values

    laid, weight = np.zeros((2, number.size), np.int64)
    weights = core.lay(table, those(taken > 0))
    rows = every.find(weights.key)
    laid[rows], weight[rows] = weights.units, weights.weight
    return Target(
        kept.reshape(shape),
        votes.reshape(*shape, steps),
        added.reshape(*shape, steps, processes),
        laid.reshape(shape),
        weight.reshape(shape),
    )


def _pick(table: Floats, at: Integers) -> Floats:
    """The entry number `at` of the last axis."""
    shape = np.broadcast_shapes(table.shape[:-1], at.shape)
    wide = np.broadcast_to(table, (*shape, table.shape[-1]))
    picked: Floats = np.take_along_axis(wide, np.broadcast_to(at, shape)[..., None], -1)[..., 0]
    return picked


def _squared_shifts(plan: Plan, added: Integers) -> Floats:
    """The squared distance of a key's values, by the step from which it is released; 0 never."""
    cases, keys, steps, _ = added.shape
    covariance = path_covariance(plan.mechanism)
    squares = np.zeros((cases, keys, steps + 1))
    for position, calibrated in enumerate(plan.calibration.processes):
        if calibrated.purpose == SELECTION:
            continue
        scale = calibrated.quantum / calibrated.sigma
        totals = np.cumsum(added[..., position], axis=-1) * scale
        for step in range(1, steps + 1):
            seen = totals[..., step - 1 :]
            inverse = np.linalg.inv(covariance[step - 1 :, step - 1 :])
            squares[..., step] += np.einsum("cki,ij,ckj->ck", seen, inverse, seen)
    return squares
