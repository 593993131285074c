"""The noise that leaves: variance, covariance, independence and shape.

Secrets are fixed, so every test gives one answer for ever; FALSE_ALARM says how the critical values
were chosen. Where a scale is tested, the same statistic must reject noise that is 10 % too small or
too large.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import stats

from dpsqlp.accounting import SELECTION, Calibration, ContributionBounds, Process, calibrate
from dpsqlp.core import Core, State
from dpsqlp.entropy.canonical import encode
from dpsqlp.entropy.identify import Identifier
from dpsqlp.entropy.noise import Noise
from dpsqlp.entropy.secret import Secret
from dpsqlp.mechanisms import Mechanism, Tree, fit_blt
from dpsqlp.mechanisms.paths import paths
from dpsqlp.plan import Plan
from dpsqlp.schedule import WindowSchedule
from dpsqlp.stages.admit import MicroBatch
from reference.twin import matrix

FALSE_ALARM = 1e-6  # per assertion, two-sided
CRITICAL = float(stats.norm.isf(FALSE_ALARM / 2))  # 4.89 deviations
OFF = (0.9, 1.1)  # scales that must be rejected

SECRET = Secret(bytes(range(7, 39)), bytes(range(16)))
PLAN = bytes(range(32))
KEYS = 20_000
TRIGGERS = 20
SIGMA = 7.0


@cache
def mechanism(name: str, triggers: int = TRIGGERS) -> Mechanism:
    return Tree(triggers) if name == "tree" else fit_blt(triggers)


@cache
def covariance(name: str, triggers: int = TRIGGERS) -> np.ndarray:
    """B B^T, from the twin's dense matrix."""
    b = matrix(mechanism(name, triggers).parameters()).astype(np.float64)
    return b @ b.T


@cache
def noise(name: str, purpose: str = "process/0", window: int = 0, round_number: int = 0) -> Any:
    """sigma xi(i) of many keys, one row per key, one column per trigger."""
    factorisation = mechanism(name)
    source = Noise(SECRET, PLAN, purpose)
    ids = Identifier(SECRET, "key").identify(encode([pa.array(range(KEYS))], KEYS))
    seeds = source.seeds(ids, window, np.full(KEYS, round_number))
    start, stop = np.zeros(KEYS, np.int64), np.full(KEYS, TRIGGERS)
    state = np.zeros((KEYS, factorisation.state_size))
    walked = paths(factorisation, source, seeds, start, stop, state)
    return SIGMA * np.concatenate([xi for _, xi, _ in walked]).reshape(KEYS, TRIGGERS)


def whitened(values: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Rows of independent standard normals, if the rows of values have the expected covariance."""
    return np.linalg.solve(np.linalg.cholesky(expected), values.T).T


def accepts_scale(normals: np.ndarray) -> bool:
    """Chi-square, two-sided: the sum of squares of standard normals."""
    low, high = stats.chi2.ppf([FALSE_ALARM / 2, 1 - FALSE_ALARM / 2], normals.size)
    return bool(low <= np.sum(normals**2) <= high)


def accepts_covariance(normals: np.ndarray) -> bool:
    """Wald: every entry of the sample covariance against the identity, jointly chi-square."""
    rows, columns = normals.shape
    excess = normals.T @ normals / rows - np.eye(columns)
    weights = np.where(np.eye(columns) == 1, rows / 2, rows)  # one over the variance
    statistic = np.sum(np.triu(weights * excess**2))
    return bool(statistic <= stats.chi2.isf(FALSE_ALARM, columns * (columns + 1) // 2))


def accepts_no_correlation(one: np.ndarray, other: np.ndarray) -> bool:
    """The sum of products of independent standard normals."""
    return bool(abs(np.sum(one * other)) <= CRITICAL * np.sqrt(one.size))


def accepts_normal(normals: np.ndarray) -> bool:
    """Kolmogorov and Smirnov."""
    return bool(stats.kstest(normals.reshape(-1), "norm").pvalue >= FALSE_ALARM)


def accepts_share(hits: int, number: int, probability: float) -> bool:
    """Binomial, two-sided."""
    tails = (
        stats.binom.cdf(hits, number, probability),
        stats.binom.sf(hits - 1, number, probability),
    )
    return bool(min(tails) >= FALSE_ALARM / 2)


@pytest.mark.parametrize("name", ["tree", "blt"])
@pytest.mark.parametrize("trigger", [1, 2, 7, 8, 15, 16, 17, TRIGGERS])
def test_variance_of_each_trigger(name: str, trigger: int) -> None:
    """Var = sigma^2 b^2(i). With 20,000 keys 5 % off in variance are rejected, here 19 and 21 %."""
    deviation = SIGMA * np.sqrt(mechanism(name).variance[trigger - 1])
    values = noise(name)[:, trigger - 1] / deviation
    assert accepts_scale(values)
    for scale in OFF:
        assert not accepts_scale(scale * values)


@pytest.mark.parametrize("name", ["tree", "blt"])
def test_covariance_across_triggers(name: str) -> None:
    """Every entry of sigma^2 B B^T; noise of the right variance but another structure shows."""
    expected = SIGMA**2 * covariance(name)
    normals = whitened(noise(name), expected)
    assert accepts_covariance(normals)
    for scale in OFF:
        assert not accepts_covariance(scale * normals)
    other = "blt" if name == "tree" else "tree"
    assert not accepts_covariance(whitened(noise(other), expected))
    shuffled = np.column_stack(
        [np.roll(column, k) for k, column in enumerate(noise(name).T)]
    )  # the same variances, independent triggers
    assert not accepts_covariance(whitened(shuffled, expected))


@pytest.mark.parametrize("name", ["tree", "blt"])
@pytest.mark.parametrize(("trigger", "later"), [(1, 2), (7, 8), (15, 16), (16, 17), (16, 20)])
def test_covariance_of_two_triggers(name: str, trigger: int, later: int) -> None:
    """The mean product against sigma^2 (B B^T)(i, j), within its own deviation."""
    expected = SIGMA**2 * covariance(name)
    i, j = trigger - 1, later - 1
    deviation = np.sqrt((expected[i, j] ** 2 + expected[i, i] * expected[j, j]) / KEYS)
    product = np.mean(noise(name)[:, i] * noise(name)[:, j])
    assert abs(product - expected[i, j]) <= CRITICAL * deviation
    if expected[i, j] > 0.5 * np.sqrt(expected[i, i] * expected[j, j]):  # else covered jointly
        for scale in OFF:
            assert abs(scale**2 * product - expected[i, j]) > CRITICAL * deviation


@pytest.mark.parametrize("name", ["tree", "blt"])
@pytest.mark.parametrize(
    "other",
    [
        {"purpose": "process/1"},
        {"purpose": SELECTION},
        {"window": 1},
        {"window": -1},
        {"round_number": 1},
        {"round_number": 2},
    ],
    ids=str,
)
def test_columns_windows_and_rounds_are_independent(name: str, other: dict[str, Any]) -> None:
    """No correlation at any pair of triggers; a tenth would show."""
    expected = SIGMA**2 * covariance(name)
    one, two = whitened(noise(name), expected), whitened(noise(name, **other), expected)
    assert accepts_scale(two)
    assert accepts_no_correlation(one, two)
    assert not accepts_no_correlation(one, np.sqrt(0.99) * two + 0.1 * one)
    # Any trigger of one with any trigger of the other, also shifted.
    both = np.sum((one.T @ two) ** 2) / KEYS
    assert both <= stats.chi2.isf(FALSE_ALARM, TRIGGERS**2)


@pytest.mark.parametrize("name", ["tree", "blt"])
@pytest.mark.parametrize("lag", [1, 2, 3, 4, 8, 4096])
def test_keys_are_independent(name: str, lag: int) -> None:
    """Neighbours in the batch, in a lane of four, and far apart."""
    normals = whitened(noise(name), SIGMA**2 * covariance(name))
    other = np.roll(normals, lag, axis=0)
    assert accepts_no_correlation(normals, other)
    assert not accepts_no_correlation(normals, np.sqrt(0.99) * other + 0.1 * normals)


@pytest.mark.parametrize("name", ["tree", "blt"])
def test_normal(name: str) -> None:
    """The whole distribution, then the tails by themselves."""
    normals = whitened(noise(name), SIGMA**2 * covariance(name))
    assert accepts_normal(normals)
    for scale in OFF:
        assert not accepts_normal(scale * normals)
    for limit in (1.0, 2.0, 3.0, 4.0):
        for side in (1, -1):
            tail = float(stats.norm.sf(limit))
            assert accepts_share(int(np.sum(side * normals > limit)), normals.size, tail)
            for scale in OFF if limit <= 3 else ():
                hits = int(np.sum(side * scale * normals > limit))
                assert not accepts_share(hits, normals.size, tail)


# End to end: what a pipeline releases, less the truth.

WINDOW_TRIGGERS = 8
PUBLIC_KEYS = 3000
PROCESSES = [
    Process("views", "count"),
    Process("rated", "count", 0),
    Process("seconds", "sum", 0, -4.0, 64.0),
    Process("people", "distinct"),
]


def scaled(calibration: Calibration, scale: float) -> Calibration:
    """A build whose noise is off by a factor."""
    selection = calibration.selection
    if selection is not None:
        selection = replace(selection, sigma=selection.sigma * scale)
    processes = tuple(replace(p, sigma=p.sigma * scale) for p in calibration.processes)
    return replace(calibration, selection=selection, processes=processes)


def plan_of(name: str, calibration: Calibration, caps: ContributionBounds, **changes: Any) -> Plan:
    given: dict[str, Any] = {
        "query": "statistical test",
        "unit_kinds": ("integer",),
        "key_kinds": ("integer",),
        "windows": WindowSchedule(WINDOW_TRIGGERS),
        "periods": None,
        "release": "every_trigger",
        "caps": caps,
        "mechanism": mechanism(name, WINDOW_TRIGGERS),
        "calibration": calibration,
    }
    return Plan(**(given | changes))


def batch(keys: np.ndarray, units: np.ndarray, values: tuple[pa.Array, ...] = ()) -> MicroBatch:
    zeros = pa.array(np.zeros(len(keys), np.int64))
    return MicroBatch((pa.array(units),), (pa.array(keys),), zeros, zeros, values)


def accepts_residuals(residuals: np.ndarray, name: str, deviation: float) -> bool:
    """Of one process, keys by triggers, in quanta; rounding to the grid adds 1/12."""
    expected = deviation**2 * covariance(name, WINDOW_TRIGGERS) + np.eye(WINDOW_TRIGGERS) / 12
    return accepts_scale(whitened(residuals, expected))


@pytest.mark.parametrize("name", ["tree", "blt"])
def test_releases_of_public_keys(name: str) -> None:
    """Releases less true totals have deviation sigma b(i) / quantum in every process, and a build
    with 10 % more or less noise is convicted."""
    caps = ContributionBounds(4, 2, 2)
    calibration = calibrate(
        epsilon=1.0,
        delta=1e-6,
        caps=caps,
        mechanism=mechanism(name, WINDOW_TRIGGERS),
        processes=PROCESSES,
        release="every_trigger",
        private_keys=False,
    )
    keys = np.arange(PUBLIC_KEYS)
    texts = encode([pa.array(keys)], PUBLIC_KEYS).to_arrow().to_pylist()
    rated = np.where(keys % 3 == 0, np.nan, keys % 64)

    def residuals(scale: float) -> np.ndarray:
        """Keys by triggers by processes. One record per key from a new unit at odd triggers."""
        plan = plan_of(name, scaled(calibration, scale), caps, public_keys=tuple(sorted(texts)))
        pipeline, state = Core(plan, SECRET), State(2)
        found = []
        for trigger in range(1, WINDOW_TRIGGERS + 1):
            present = keys if trigger % 2 else keys[:0]
            values = (pa.array(rated[present], from_pandas=True),)
            releases = pipeline.run(
                state, batch(present, 10_000 * trigger + present, values), trigger
            )
            assert releases.key_text.to_arrow().to_pylist() == list(plan.public_keys or ())
            seen = (trigger + 1) // 2
            quantum = calibration.processes[2].quantum
            ones, sums = np.ones(PUBLIC_KEYS), np.nan_to_num(rated) / quantum
            truth = np.column_stack([ones, ~np.isnan(rated), sums, ones]) * seen
            found.append(releases.values - truth)
        return np.stack(found, axis=1)

    for scale in (1.0, *OFF):
        off = residuals(scale)
        for position, calibrated in enumerate(calibration.processes):
            deviation = calibrated.sigma / calibrated.quantum
            assert accepts_residuals(off[:, :, position], name, deviation) == (scale == 1.0)
        if scale == 1.0:
            peaks = [p.sigma / p.quantum for p in calibration.processes]
            normals = [
                whitened(off[:, :, p], peaks[p] ** 2 * covariance(name, WINDOW_TRIGGERS))
                for p in range(len(peaks))
            ]
            for one in range(len(peaks)):
                for two in range(one):
                    assert accepts_no_correlation(normals[one], normals[two])


@pytest.mark.parametrize("name", ["tree", "blt"])
def test_distinct_counts_of_selected_keys(name: str) -> None:
    """Where counts are so large that every key is selected at once, its distinct count less the
    truth is the selection process: deviation sigma b(i)."""
    caps = ContributionBounds(1, 1, 1)
    calibration = calibrate(
        epsilon=2.0,
        delta=1e-6,
        caps=caps,
        mechanism=mechanism(name, WINDOW_TRIGGERS),
        processes=[Process("people", "distinct")],
        release="every_trigger",
    )
    selection = calibration.selection
    assert selection is not None
    number = 2000
    people = int(max(selection.thresholds) + 10 * selection.sigma)
    keys = np.repeat(np.arange(number), people)
    for scale in (1.0, *OFF):
        pipeline = Core(plan_of(name, scaled(calibration, scale), caps), SECRET)
        state, found = State(2), []
        for trigger in range(1, WINDOW_TRIGGERS + 1):
            present = keys if trigger == 1 else keys[:0]
            releases = pipeline.run(state, batch(present, np.arange(len(present))), trigger)
            assert len(releases) == number
            found.append(releases.values[:, 0] - people)
        residuals = np.column_stack(found).astype(float)
        assert accepts_residuals(residuals, name, selection.sigma) == (scale == 1.0)


@pytest.mark.parametrize("release", ["every_trigger", "threshold"])
@pytest.mark.parametrize("name", ["tree", "blt"])
def test_the_share_of_selected_keys(name: str, release: Any) -> None:
    """A key a deviation below (above) its threshold is selected at trigger 1 with the probability
    that the rounded noise makes up the difference; noise 10 % off moves that by several percent."""
    caps = ContributionBounds(1, 1, 1)
    calibration = calibrate(
        epsilon=3.0,
        delta=1e-3,
        caps=caps,
        mechanism=mechanism(name, WINDOW_TRIGGERS),
        processes=[],
        release=release,
    )
    selection = calibration.selection
    assert selection is not None
    number, sigma = 20_000, selection.sigma * np.sqrt(mechanism(name, WINDOW_TRIGGERS).variance[0])
    for side in (-1, 1):
        missing = math.ceil(sigma + 0.5) if side < 0 else -math.ceil(sigma - 0.5)
        people = selection.thresholds[0] - missing
        assert people > selection.minimum
        probability = float(stats.norm.sf((missing - 0.5) / sigma))
        keys = np.repeat(np.arange(number), people)
        for scale in (1.0, *OFF):
            plan = plan_of(name, scaled(calibration, scale), caps, release=release)
            releases = Core(plan, SECRET).run(State(), batch(keys, np.arange(len(keys))), 1)
            assert accepts_share(len(releases), number, probability) == (scale == 1.0)


@pytest.mark.parametrize("name", ["tree", "blt"])
def test_the_share_of_keys_selected_by_the_closing(name: str) -> None:
    """Keys whose weights are a deviation below the closing's threshold are selected with the
    probability that one standard normal makes up the difference, at the last trigger; a normal
    10 % off would show. It is no normal of their values, whose noise has no bias in these keys."""
    caps = ContributionBounds(64, 64, 2, 64)
    calibration = calibrate(
        epsilon=6.0,
        delta=1e-9,
        caps=caps,
        mechanism=mechanism(name, WINDOW_TRIGGERS),
        processes=[Process("views", "count")],
        release="every_trigger",
        minimum=3,
        selection_share=0.1,  # so much noise that no key is selected before
        closing=True,
    )
    closing = calibration.closing
    assert closing is not None
    number, weight = 20_000, closing.weights_max[0]
    people = (closing.threshold - round(1 / closing.quantum)) // weight
    missing = (closing.threshold - people * weight - 0.5) * closing.quantum
    assert 0.8 < missing < 2.2
    pipeline, state = Core(plan_of(name, calibration, caps), SECRET), State(2)
    keys = np.repeat(np.arange(number), people)
    for trigger in range(1, WINDOW_TRIGGERS + 1):
        present = keys if trigger == 1 else keys[:0]
        releases = pipeline.run(state, batch(present, np.arange(len(present))), trigger)
        assert len(releases) == 0 or trigger == WINDOW_TRIGGERS
    assert accepts_share(len(releases), number, float(stats.norm.sf(missing)))
    for scale in OFF:
        assert not accepts_share(len(releases), number, float(stats.norm.sf(missing / scale)))
    (views,) = calibration.processes
    deviation = np.sqrt(views.sigma**2 * mechanism(name, WINDOW_TRIGGERS).variance[-1] + 1 / 12)
    residuals = (releases.values[:, 0] - people) / deviation
    assert abs(np.sum(residuals)) <= CRITICAL * np.sqrt(len(residuals))
