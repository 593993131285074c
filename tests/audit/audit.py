"""An empirical lower bound on epsilon, from the outputs of the real core on neighbouring streams.

Noise is independent over keys, so one pipeline over many keys is many trials: each trial is a few
keys of its own, with background units of its own and one target unit of its own. One run has the
targets, another run, under another instance, has not. A trial's output is which of its keys were
released at which triggers, and with which values.

The attack knows nothing of the mechanism. A third of the trials teach it, for every key of a trial,
how likely a pattern of releases is in both worlds, and the best linear test between the values
given the pattern (Fisher); a trial's score is the sum over its keys. The cut is chosen there too.
The other trials are counted once per direction, with exact (Clopper and Pearson) bounds, so that

    epsilon >= log((p_low - delta) / q_high)

is false for a build that keeps its promise with probability at most `FALSE_ALARM`.
Secrets are fixed: an audit always gives the same figure.

Not covered: a bound far below the claim convicts nobody; it does not acquit either.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from scipy.special import betaincinv

from dpsqlp.accounting import ContributionBounds, Process, ReleasePolicy, Spending, calibrate
from dpsqlp.core import Core, State
from dpsqlp.entropy.canonical import encode
from dpsqlp.entropy.secret import Secret
from dpsqlp.mechanisms import Mechanism, Tree, fit_blt
from dpsqlp.plan import Plan
from dpsqlp.schedule import WindowSchedule
from dpsqlp.stages.admit import MicroBatch

FALSE_ALARM = 1e-6  # of one audit, both directions together
_SAMPLES_MIN = 200  # of a pattern, to teach a test between its values
_CUTS = 400
_HUGE = 1e9  # what a target sends: clamped to the bound
SUM = Process("sum", "sum", 0, -1.0, 1.0)
DISTINCT = Process("distinct", "distinct")
HISTOGRAM = Process("histogram", "histogram", 0, edges=(0.0, 1.0, 2.0, 3.0, 4.0))

Contribution = tuple[int, int, int]  # trigger, key of the trial, units or records


@dataclass(frozen=True)
class Setting:
    """What a pipeline is calibrated for."""

    release: ReleasePolicy
    caps: ContributionBounds
    triggers: int
    processes: tuple[Process, ...] = (SUM, DISTINCT)
    mechanism: str = "blt"
    minimum: int = 0
    selection_share: float = 0.5
    selection_spending: Spending = "even"
    public: bool = False
    closing: bool = False
    epsilon: float = 1.0
    delta: float = 0.05


@dataclass(frozen=True)
class Placement:
    """What happens on the keys of each trial.

    A background unit sends one record of value 0. The target sends records of a value far above the
    bound, in the order given, or of `values`, one for each contribution.
    """

    keys: int
    background: tuple[Contribution, ...]
    target: tuple[Contribution, ...]
    values: tuple[float, ...] = ()


@dataclass(frozen=True)
class Output:
    """What left the pipeline, by trial, key of the trial and trigger."""

    released: NDArray[np.bool_]  # (trials, keys, triggers)
    values: NDArray[np.float64]  # (trials, keys, triggers, totals), 0 where not released


@dataclass(frozen=True)
class Verdict:
    """The lower bound, and the event that gave it: `p` and `q` are its frequencies."""

    epsilon: float
    claimed: float
    p: float
    q: float
    direction: str

    @property
    def convicted(self) -> bool:
        """Whether the claim is refuted."""
        return self.epsilon > self.claimed

    def __str__(self) -> str:
        return (
            f"epsilon >= {self.epsilon:.3f}, claimed {self.claimed:.3f}"
            f" ({self.direction}: p = {self.p:.4f}, q = {self.q:.5f})"
        )


@cache
def _mechanism(name: str, triggers: int) -> Mechanism:
    return Tree(triggers) if name == "tree" else fit_blt(triggers)


def honest_plan(setting: Setting, keys: int) -> Plan:
    """The plan that the package makes for a setting; `keys` is how many are public."""
    mechanism = _mechanism(setting.mechanism, setting.triggers)
    calibration = calibrate(
        epsilon=setting.epsilon,
        delta=setting.delta,
        caps=setting.caps,
        mechanism=mechanism,
        processes=setting.processes,
        release=setting.release,
        minimum=setting.minimum,
        private_keys=not setting.public,
        selection_share=setting.selection_share,
        selection_spending=setting.selection_spending,
        closing=setting.closing,
    )
    texts = encode([pa.array(np.arange(keys))], keys).to_arrow().to_pylist()
    return Plan(
        query="audit",
        unit_kinds=("integer",),
        key_kinds=("integer",),
        windows=WindowSchedule(setting.triggers),
        periods=None,
        release=setting.release,
        caps=setting.caps,
        mechanism=mechanism,
        calibration=calibration,
        public_keys=tuple(sorted(texts)) if setting.public else None,
    )


def with_noise(plan: Plan, factor: float) -> Plan:
    """A broken build: every sigma times a factor, thresholds as they were."""
    calibration = plan.calibration
    selection = calibration.selection
    if selection is not None:
        selection = replace(selection, sigma=selection.sigma * factor)
    processes = tuple(replace(p, sigma=p.sigma * factor) for p in calibration.processes)
    return replace(plan, calibration=replace(calibration, selection=selection, processes=processes))


def with_thresholds(plan: Plan, thresholds: Sequence[int]) -> Plan:
    """A broken build: other thresholds."""
    selection = plan.calibration.selection
    assert selection is not None
    selection = replace(selection, thresholds=tuple(thresholds))
    return replace(plan, calibration=replace(plan.calibration, selection=selection))


def with_caps(plan: Plan, **caps: int) -> Plan:
    """A broken build: it enforces other caps, and the norm that they imply, than it is calibrated
    for.
    """
    return replace(plan, caps=replace(plan.caps, squared_norm=0, **caps))


def audit(plan: Plan, placement: Placement, trials: int) -> Verdict:
    """The largest epsilon that the outputs refute."""
    present = observe(plan, placement, trials, target=True)
    absent = observe(plan, placement, trials, target=False)
    taught = trials // 3
    score = [np.zeros(trials), np.zeros(trials)]
    for key in range(placement.keys):
        for total, part in zip(score, _key_scores(present, absent, key, taught), strict=True):
            total += part
    with_target, without = score
    claimed, delta = plan.calibration.epsilon, plan.calibration.delta
    verdicts = []
    for direction, p, q in (
        ("with / without", with_target, without),
        ("without / with", -without, -with_target),
    ):
        n = trials - taught
        cut = _cut(p[:taught], q[:taught], n, delta)
        hits_p, hits_q = int(np.sum(p[taught:] >= cut)), int(np.sum(q[taught:] >= cut))
        bound = float(_epsilon_low(hits_p, hits_q, n, delta))
        verdicts.append(Verdict(bound, claimed, hits_p / n, hits_q / n, direction))
    return max(verdicts, key=lambda verdict: verdict.epsilon)


def failure(
    plan: Plan, placement: Placement, trials: int, forbidden: Sequence[tuple[int, int]]
) -> tuple[float, float]:
    """Bounds on how often a target is given away by a release that is impossible without it.

    `forbidden` are those releases, as (trigger, key of the trial).
    """
    when, place = np.array(forbidden).T
    seen, impossible = (
        observe(plan, placement, trials, target=target).released[:, place, when - 1].any(axis=1)
        for target in (True, False)
    )
    assert not impossible.any(), "a key was released below its minimum"
    return _bounds(np.sum(seen), trials, FALSE_ALARM / 2)


def observe(plan: Plan, placement: Placement, trials: int, *, target: bool) -> Output:
    """Run the pipeline in one of the two worlds."""
    pipeline = Core(plan, Secret(bytes(range(32)), bytes([target] * 16)))
    state = State()
    keys = placement.keys
    released = np.zeros((trials * keys, plan.triggers), np.bool_)
    values = np.zeros((trials * keys, plan.triggers, plan.width))
    for trigger in range(1, plan.triggers + 1):
        batch = _micro_batch(placement, trials, trigger, target, plan.value_columns)
        releases = pipeline.run(state, batch, trigger)
        # a canonical integer is a tag and 8 bytes, offset by 2^63
        words = releases.key_text.data.reshape(-1, 9)[:, 1:].copy().view(">u8")[:, 0]
        rows = (words.astype(np.uint64) - np.uint64(1 << 63)).astype(np.int64)
        released[rows, trigger - 1] = True
        values[rows, trigger - 1] = releases.values
    shape = (trials, keys, plan.triggers)
    return Output(released.reshape(shape), values.reshape(*shape, plan.width))


def _micro_batch(
    placement: Placement, trials: int, trigger: int, target: bool, columns: int
) -> MicroBatch:
    """One trigger's records of all trials."""
    unit, key, time, value = [], [], [], []
    trial = np.arange(trials)
    first = trials  # the targets are the units 0..trials - 1
    for when, place, units in placement.background:
        if when == trigger:
            unit.append(first + np.arange(trials * units))
            key.append(np.repeat(trial * placement.keys + place, units))
            time.append(np.zeros(trials * units, np.int64))
            value.append(np.zeros(trials * units))
        first += trials * units
    for order, (when, place, records) in enumerate(placement.target if target else ()):
        if when == trigger:
            unit.append(np.repeat(trial, records))
            key.append(np.repeat(trial * placement.keys + place, records))
            time.append(np.full(trials * records, order))
            sent = placement.values[order] if placement.values else _HUGE
            value.append(np.full(trials * records, sent))

    def column(parts: Sequence[NDArray[Any]], kind: type) -> pa.Array:
        return pa.array(np.concatenate([np.empty(0, kind), *parts]))

    times = column(time, np.int64)
    return MicroBatch(
        unit=(column(unit, np.int64),),
        key=(column(key, np.int64),),
        window=pa.array(np.zeros(len(times), np.int64)),
        timestamp=times,
        values=(column(value, np.float64),)[:columns],
    )


def _key_scores(
    present: Output, absent: Output, key: int, taught: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What this key says for the target, per trial, in both worlds."""
    triggers = present.released.shape[2]
    bits = 1 << np.arange(triggers)
    patterns = [output.released[:, key] @ bits for output in (present, absent)]
    scores = (np.zeros(len(patterns[0])), np.zeros(len(patterns[1])))
    for pattern in np.unique(np.concatenate(patterns)):
        seen = (pattern & bits) > 0
        members = [np.flatnonzero(p == pattern) for p in patterns]
        lessons = [rows[rows < taught] for rows in members]
        ratio = math.log((len(lessons[0]) + 0.5) / (len(lessons[1]) + 0.5))
        for score, rows in zip(scores, members, strict=True):
            score[rows] = ratio
        if not seen.any() or min(map(len, lessons)) < _SAMPLES_MIN:
            continue
        values = [
            output.values[rows, key][:, seen].reshape(len(rows), -1)
            for output, rows in zip((present, absent), members, strict=True)
        ]
        known = [
            v[: len(rows)] for v, rows in zip(values, lessons, strict=True)
        ]  # members are in order of trials
        means = [v.mean(axis=0) for v in known]
        spread = sum(np.atleast_2d(np.cov(v, rowvar=False)) for v in known) / 2
        weights = np.linalg.lstsq(spread, means[0] - means[1])[0]
        for score, rows, v in zip(scores, members, values, strict=True):
            score[rows] += (v - (means[0] + means[1]) / 2) @ weights
    return scores


def _cut(p: NDArray[np.float64], q: NDArray[np.float64], trials: int, delta: float) -> float:
    """The cut that promises the largest bound on `trials` more trials like these."""
    cuts = np.unique(np.quantile(np.concatenate([p, q]), np.linspace(0, 1, _CUTS)))
    hits = [len(s) - np.searchsorted(np.sort(s), cuts, side="left") for s in (p, q)]
    hits_p, hits_q = (h / len(p) * trials for h in hits)
    return float(cuts[np.argmax(_epsilon_low(hits_p, hits_q, trials, delta))])


def _epsilon_low(hits_p: Any, hits_q: Any, trials: int, delta: float) -> Any:
    """log((p_low - delta) / q_high), at least 0."""
    tail = FALSE_ALARM / 4  # two directions, two bounds each
    p_low, q_high = _bounds(hits_p, trials, tail)[0], _bounds(hits_q, trials, tail)[1]
    return np.log(np.maximum(p_low - delta, q_high) / q_high)


def _bounds(hits: Any, trials: int, tail: float) -> tuple[Any, Any]:
    """Clopper and Pearson's bounds on a probability, each wrong with probability `tail`."""
    some, rest = np.maximum(hits, 1e-9), np.maximum(trials - hits, 1e-9)
    low = np.where(hits > 0, betaincinv(some, trials - some + 1, tail), 0.0)
    high = np.where(hits < trials, betaincinv(hits + 1, rest, 1 - tail), 1.0)
    return low, high
