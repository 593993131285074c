"""The search: successive halving over norm, votes, and the share and spending of selection.

Half of the candidates are spread evenly over the space, and run on a part of the units (`shrink`
says why that ranks them). The best of a round run again on a larger part, beside new candidates
near them; the last round runs on all units. Everything follows from the seed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpsqlp.errors import PlanError
from dpsqlp.sql.query import Query
from dpsqlp.tuning.candidate import Candidate, binding_caps
from dpsqlp.tuning.figures import Figures, Goal, figures_of, score
from dpsqlp.tuning.load import Simulation
from dpsqlp.tuning.sample import Sample
from dpsqlp.tuning.shrink import shrink
from dpsqlp.tuning.simulate import simulate

ReportProgress = Callable[[str, int, int], None]  # what is running; how much is done, of how much
_KEPT = 6  # candidates that a round passes on
_RECORDS_MIN = 100_000  # of the smallest part
_HALVINGS_MAX = 3
_SHARES = (0.02, 0.95)
_SQUARES_MAX = 2**20
# Steps between evenly spread points: the powers of the root of x^5 = x + 1.
_STEPS = 1.1673039782614187 ** -np.arange(1, 5)
_REACH = (0.2, 0.1)  # how far new candidates lie from the best, as parts of the space


@dataclass(frozen=True, slots=True)
class Measured:
    """A candidate on all units of the sample."""

    candidate: Candidate
    figures: Figures


@dataclass(frozen=True, slots=True)
class Space:
    """The candidates: as large as the sample's units need it."""

    squares: tuple[int, int]
    votes_max: int
    selects: bool  # else groups are public
    shares: bool  # whether selection shares the budget with values
    now: Candidate

    @classmethod
    def of(cls, simulation: Simulation) -> Space:
        """Norms up to those of all but the most active thousandth of the units."""
        query, sample = simulation.query, simulation.sample
        periods, period = np.unique(sample.records.period, return_inverse=True)
        members = (sample.unit * len(periods) + period) * len(sample.window) + sample.group
        codes, counts = np.unique(members, return_counts=True)
        unit = codes // len(sample.window)  # in a period
        squares = np.bincount(unit, counts.astype(np.float64) ** 2)
        groups = np.bincount(unit)
        now = Candidate.of(query)
        most = float(np.quantile(squares[groups > 0], 0.999))
        votes = int(np.quantile(groups[groups > 0], 0.999))
        high = int(min(max(most, 4, now.squared_norm), _SQUARES_MAX))
        high = Candidate(high, 1, now.share, now.spending).query(query).caps.squared_norm
        records, _ = binding_caps(query)
        return cls(
            (1, high),
            min(max(votes, 2, now.selections), records or high),
            query.public_keys is None,
            any(process.kind != "distinct" for process in query.processes),
            now,
        )

    def point(self, at: NDArray[np.float64]) -> Candidate:
        """The candidate at a point of the unit cube."""
        low, high = self.squares
        squares = round(low * (high / low) ** at[0])
        if not self.selects:
            return Candidate(squares, self.now.selections, self.now.share, self.now.spending)
        votes = round(min(self.votes_max, squares) ** at[1])
        share = round(_SHARES[0] + (_SHARES[1] - _SHARES[0]) * float(at[2]), 2)
        return Candidate(
            squares,
            max(votes, 1),
            share if self.shares else self.now.share,
            "late" if at[3] >= 0.5 else "even",
        )

    def place(self, candidate: Candidate) -> NDArray[np.float64]:
        """The point of a candidate."""
        low, high = self.squares
        votes = min(self.votes_max, candidate.squared_norm)
        return np.array(
            [
                math.log(candidate.squared_norm / low) / math.log(high / low) if high > low else 0,
                math.log(candidate.selections) / math.log(votes) if votes > 1 else 0.0,
                (candidate.share - _SHARES[0]) / (_SHARES[1] - _SHARES[0]),
                0.75 if candidate.spending == "late" else 0.25,
            ]
        )


def search(
    simulation: Simulation,
    goal: Goal,
    candidates: int,
    seed: int,
    threads: int,
    report: ReportProgress,
) -> tuple[list[Measured], str]:
    """The candidates of the last round and the options as they stand, the best first; and how they
    were ranked, in words.
    """
    space, rng = Space.of(simulation), np.random.default_rng(seed)
    numbers = [candidates - candidates // 4 - candidates // 4, candidates // 4, candidates // 4]
    fractions = _fractions(len(simulation.sample))
    total = sum(numbers) + 2 * _KEPT
    done = 0
    known = [space.now]
    fresh = known + _spread(space, numbers[0] - 1, rng, known)
    known = list(fresh)
    best: list[Candidate] = []
    measured: list[Measured] = []
    for number, fraction in enumerate(fractions):
        if number:
            fresh = _near(space, best, numbers[number], _REACH[number - 1], rng, known)
            known += fresh
        sample = simulation.sample
        part = sample if fraction == 1 else sample.part(fraction, seed)
        batch = [*best, *fresh]
        if fraction == 1 and space.now not in batch:
            batch.append(space.now)

        def say(finished: int, number: int = number, done: int = done) -> None:
            report(f"round {number + 1} of {len(fractions)}", done + finished, total)

        measured = measure(simulation, part, batch, fraction, threads, say)
        done += len(batch)
        measured.sort(key=lambda one: score(one.figures, goal))
        best = [one.candidate for one in measured[:_KEPT]]
    return measured, _words(len(known), fractions)


def _words(candidates: int, fractions: Sequence[float]) -> str:
    text = f"{candidates} candidates in {len(fractions)} rounds"
    if fractions[0] == 1:
        return f"{text}, all on every unit."
    parts = ", ".join(f"1/{round(1 / fraction)}" for fraction in fractions if fraction < 1)
    return (
        f"{text}: before the last, on {parts} of the units, with noise and thresholds as much"
        " smaller, which keeps the order of candidates but for luck."
    )


def measure(
    simulation: Simulation,
    sample: Sample,
    candidates: Sequence[Candidate],
    fraction: float,
    threads: int,
    finished: Callable[[int], None],
) -> list[Measured]:
    """The figures of candidates on a sample. Those for which there is no noise are left out."""

    def one(candidate: Candidate) -> Measured | None:
        query: Query = candidate.query(simulation.query)
        try:
            plan = simulation.plan(query)
        except PlanError:  # too much noise for exact arithmetic
            return None
        outcome = simulate(shrink(plan, fraction), sample, simulation.secret)
        return Measured(candidate, figures_of(query, sample, outcome))

    finished(0)
    with ThreadPoolExecutor(threads) as pool:
        try:
            running = [pool.submit(one, candidate) for candidate in candidates]
            waiting = set(running)
            while waiting:
                ended, waiting = wait(waiting, timeout=0.2, return_when=FIRST_EXCEPTION)
                for future in ended:
                    future.result()
                finished(len(running) - len(waiting))
        except BaseException:  # Ctrl-C too: what has not begun does not run
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return [done for future in running if (done := future.result()) is not None]


def _fractions(records: int) -> list[float]:
    """The part of the units in each round: powers of two, the last all of them."""
    halvings = min(_HALVINGS_MAX, max(0, int(math.log2(max(records / _RECORDS_MIN, 1)))))
    return [2.0**-halvings, 2.0 ** -(halvings // 2), 1.0]


def _spread(
    space: Space, number: int, rng: np.random.Generator, known: Sequence[Candidate]
) -> list[Candidate]:
    """New candidates spread evenly over the space."""
    begin = rng.random(4)
    found: dict[Candidate, None] = {}
    for k in range(10 * number):
        candidate = space.point((begin + k * _STEPS) % 1)
        if candidate not in known and len(found) < number:
            found[candidate] = None
    return list(found)


def _near(
    space: Space,
    best: Sequence[Candidate],
    number: int,
    reach: float,
    rng: np.random.Generator,
    known: Sequence[Candidate],
) -> list[Candidate]:
    """New candidates near the best ones; the better, the more."""
    found: dict[Candidate, None] = {}
    for _ in range(10 * number):
        center = best[min(int(rng.integers(len(best))), int(rng.integers(len(best))))]
        moved = space.place(center) + reach * rng.standard_normal(4)
        candidate = space.point(np.clip(moved, 0, 1))
        if candidate not in known and len(found) < number:
            found[candidate] = None
    return list(found)
