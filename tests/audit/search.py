"""A search for streams on which a pipeline with a closing spends more than delta.

For each setting the package makes a plan; cases are drawn around the places where the proof is
tight, and the worst of them are changed again and again. Their deltas are exact (see `exact`), so
one above delta is a counterexample.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from audit.audit import DISTINCT, SUM, Setting, honest_plan
from audit.exact import (
    VISIBLE,
    Cases,
    Floats,
    Integers,
    numbers_of,
    spent,
    spent_on_alike,
    spent_with_distinct,
)
from dpsqlp.accounting import ContributionBounds, Process
from dpsqlp.errors import PlanError
from dpsqlp.plan import Plan

_KEPT = 24  # cases that are changed in each round
_EPSILONS = (0.03, 0.1, 0.3, 1.0, 2.0, 6.0, 20.0)
_DELTAS = (0.5, 0.3, 0.1, 0.1, 0.01, 1e-4, 1e-9, 1e-15)
_SHARES = (0.001, 0.02, 0.2, 0.45, 0.8, 0.98, 0.999)
_NORMS = (1, 2, 3, 4, 5, 6, 9, 11, 16, 64, 100, 400)
_LARGE_NORMS = (994, 10_033)  # room for 32 keys and for one more with nearly all of the rest
_DISTINCT_SIGMA_MAX = 30.0  # each count that may be shown is an output
_RECORDS_MAX = 20  # that a target sends to a key, but for one that others made visible


@dataclass(frozen=True)
class Worst:
    """The largest shares of what is claimed that a search has found, and the cases that spend them:
    of delta, and of the part of delta for outputs that are impossible without the target.
    """

    delta: float
    failures: float
    cases: tuple[Cases, Cases]
    evaluations: int

    def __str__(self) -> str:
        first, second = (
            {name: value[0].tolist() for name, value in vars(case).items()} for case in self.cases
        )
        return f"{self.delta:.4f} of delta by {first}, {self.failures:.4f} of failures by {second}"


def settings(seed: int, number: int) -> Iterator[tuple[Setting, Plan]]:
    """Settings of one and of two triggers, small enough that a few keys use up what a unit has."""
    rng = np.random.default_rng(seed)
    while number:
        steps = int(rng.integers(1, 3))
        norm = int(rng.choice([*_NORMS, *_LARGE_NORMS] if steps == 1 else _NORMS))
        root = int(norm**0.5)
        most = root if rng.random() < 0.5 else int(rng.integers(1, root + 1))
        votes = 32 if rng.random() < 0.1 else int(rng.integers(1, 7))
        caps = ContributionBounds(norm, most, min(norm, votes), norm)
        processes: list[tuple[Process, ...]] = [(), (SUM,), (SUM,), (SUM,)]
        if steps == 1:
            processes += [(DISTINCT,), (SUM, DISTINCT)]
        setting = Setting(
            "every_trigger",
            caps,
            steps,
            processes[rng.integers(len(processes))],
            minimum=int(rng.choice([0, 0, 1, 2, 5])),
            selection_share=float(rng.choice(_SHARES)),
            selection_spending="even" if rng.random() < 0.7 else "late",
            closing=True,
            epsilon=float(rng.choice(_EPSILONS)),
            delta=float(rng.choice(_DELTAS)),
        )
        try:
            plan = honest_plan(setting, 0)
        except PlanError:  # too much noise for exact arithmetic
            continue
        if plan.calibration.closing is None:
            continue
        if not plan.spares_votes and numbers_of(plan)[1].sigma > _DISTINCT_SIGMA_MAX:
            continue
        number -= 1
        yield setting, plan


def search(plan: Plan, seed: int, *, cases: int, rounds: int) -> Worst:
    """The worst of streams of one to three keys, and, with one trigger, of many. Where
    COUNT(DISTINCT unit) is released there are two keys beside those that others made visible.
    """
    if not plan.spares_votes:
        return _search_distinct(plan, seed, cases // 8)
    found = [_search_few(plan, seed, keys, cases, rounds) for keys in (1, 2, 3)]
    if plan.triggers == 1:
        found.append(_search_many(plan, seed, cases // 8))
    return _worst_of(found)


def _search_few(plan: Plan, seed: int, keys: int, size: int, rounds: int) -> Worst:
    rng = np.random.default_rng(seed)
    found = draw(plan, rng, size, keys)
    kept, shares = found.take(slice(0, 0)), np.empty((0, 2))
    for _ in range(rounds + 1):
        shares = np.concatenate([shares, spent(plan, found)])
        kept = joined(kept, found)
        orders = np.argsort(-shares, axis=0, kind="stable")
        best = np.concatenate([orders[:_KEPT, 0], orders[: _KEPT // 4, 1]])
        kept, shares = kept.take(best), shares[best]
        found = _changed(plan, rng, kept.take(rng.integers(0, len(kept), size)))
    return _worst(kept, shares, (rounds + 1) * size)


def _search_many(plan: Plan, seed: int, size: int) -> Worst:
    """Keys that are alike, and beside them one that others have made visible."""
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(size):
        number = int(rng.choice([1, 2, 5, 8, 16, 31, 32, 32, 33, 40]))
        if rng.random() < 0.5:
            case = at_the_minimum(plan, number)
        else:
            case = joined(*[draw(plan, rng, 1, 1)] * number, axis=1)
        if number <= 32 and rng.random() < 0.7:
            more = float(rng.choice([0, 0, 1e-3, 0.01, 0.1])) * plan.caps.squared_norm
            case = joined(case, visible(plan, number + int(more)), axis=1)
        found.append(_worst(case, spent_on_alike(plan, case), 1))
    return _worst_of(found)


def _search_distinct(plan: Plan, seed: int, size: int) -> Worst:
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(size):
        case = draw(plan, rng, 1, int(rng.integers(1, 3)))
        for _ in range(rng.integers(0, 3)):
            others = plan.caps.squared_norm - int(rng.integers(1, 3)) ** 2
            case = joined(visible(plan, others), case, axis=1)
        found.append(_worst(case, spent_with_distinct(plan, case), 1))
    return _worst_of(found)


def visible(plan: Plan, others: int) -> Cases:
    """A key that is selected in any case, with as many records as the norm has left beside a sum
    of squares of `others` elsewhere.
    """
    left = int(max(1, plan.caps.squared_norm - others) ** 0.5)
    return keys_of(plan, 1, records=min(left, plan.caps.records_per_key), counted=VISIBLE)


def at_the_minimum(plan: Plan, number: int, *, records: int = 1, step: int = 1) -> Cases:
    """Keys that only the target lifts above the minimum; others lay as much as they can."""
    closing, selection = numbers_of(plan)
    others, weight = selection.minimum, selection.minimum * closing.weights_max[0]
    return keys_of(
        plan, number, records=records, counted=others, laid=others, weight=weight, step=step
    )


def keys_of(
    plan: Plan,
    number: int,
    *,
    records: int,
    counted: int,
    laid: int = 0,
    weight: int = 0,
    step: int = 1,
) -> Cases:
    """One case of keys that are alike. The target sends at this step, others before."""
    shape = (1, number)
    return Cases(
        records=np.full(shape, records),
        step=np.full(shape, step),
        counted=np.full((*shape, plan.triggers), counted),
        laid=np.full(shape, laid),
        weight=np.full(shape, weight),
    )


def joined(*parts: Cases, axis: int = 0) -> Cases:
    """Cases one after the other, or with the keys of all."""
    names = vars(parts[0])
    return Cases(
        **{name: np.concatenate([vars(part)[name] for part in parts], axis) for name in names}
    )


def _worst(cases: Cases, shares: Floats, evaluations: int) -> Worst:
    one, other = shares.argmax(axis=0)
    worst = cases.take(slice(one, one + 1)), cases.take(slice(other, other + 1))
    return Worst(float(shares[one, 0]), float(shares[other, 1]), worst, evaluations)


def _worst_of(found: Sequence[Worst]) -> Worst:
    by_delta = max(found, key=lambda each: each.delta)
    by_failures = max(found, key=lambda each: each.failures)
    return Worst(
        by_delta.delta,
        by_failures.failures,
        (by_delta.cases[0], by_failures.cases[1]),
        sum(each.evaluations for each in found),
    )


def draw(plan: Plan, rng: np.random.Generator, size: int, keys: int) -> Cases:
    """Cases around the minimum, the thresholds and the end of the norm."""
    closing, selection = numbers_of(plan)
    shape, steps = (size, keys), plan.triggers
    minimum, most = selection.minimum, min(plan.caps.records_per_key, _RECORDS_MAX)
    records = rng.choice([0, 1, 1, 1, max(1, most - 1), most, most + 1], shape)

    near = np.array(selection.thresholds) - rng.integers(-2, 4, (*shape, steps))
    few = minimum + rng.integers(-1, 3, (*shape, 1))
    counted = np.where(rng.random((*shape, 1)) < 0.3, near, few)

    # others lay what units with one open key or several can have
    heaviest = closing.weights_max[0]
    lighter = np.array([weight for weight in closing.weights_max if weight > 0])
    others = np.maximum(minimum - rng.choice([0, 0, 0, 0, 1], shape), 0)
    weight = others * np.where(rng.random(shape) < 0.7, heaviest, rng.choice(lighter, shape))
    enough = closing.threshold - heaviest * rng.integers(0, 2, shape)
    enough = np.maximum(enough + rng.uniform(-3, 2, shape) / closing.quantum, minimum + 1)
    are_few = rng.random(shape) < 0.6
    return Cases(
        records=records,
        step=rng.integers(1, steps + 1, shape),
        counted=np.maximum.accumulate(np.maximum(counted, 0), axis=-1),
        laid=np.where(are_few, others, np.maximum(-(-enough // heaviest), minimum + 1)).astype(int),
        weight=np.where(are_few, weight, enough).astype(int),
    )


def _changed(plan: Plan, rng: np.random.Generator, cases: Cases) -> Cases:
    """Parts of some keys drawn anew, or every key made like the first."""
    size, keys = cases.records.shape
    fresh = draw(plan, rng, size, keys)
    alike = rng.random((size, 1)) < 0.15

    def mixed(*names: str) -> dict[str, Integers]:
        """Fields of a key that are changed together."""
        pick = rng.random((size, keys)) < 0.25
        found = {}
        for name in names:
            old, new = getattr(cases, name), getattr(fresh, name)
            more = (1,) * (old.ndim - 2)
            value = np.where(pick.reshape(size, keys, *more), new, old)
            found[name] = np.where(alike.reshape(size, 1, *more), value[:, :1], value)
        return found

    return Cases(**mixed("records"), **mixed("step"), **mixed("counted"), **mixed("laid", "weight"))
