"""How good the options are that `dpsqlp tune` finds, beside the best of a grid.

`best possible` is the best point of a grid that is searched on the very half that is measured, so
it has even the luck of its noise on its side. `paper` runs through the engine; the other figures
come from the simulation, whose releases equal those of an engine bit for bit.
"""

from __future__ import annotations

from functools import partial
from itertools import product
from statistics import fmean
from typing import Any

from dpsqlp.accounting import Spending
from dpsqlp.experiments import replay
from dpsqlp.experiments.halves import NOTE, Halves, Named, Settings, halves
from dpsqlp.experiments.histogram import true_histogram
from dpsqlp.experiments.replay import ReportProgress
from dpsqlp.experiments.result import Result
from dpsqlp.experiments.tuned import CANDIDATES
from dpsqlp.tuning.candidate import Candidate, norm_text
from dpsqlp.tuning.figures import Figures, Goal
from dpsqlp.tuning.search import measure, search

GOALS: tuple[Goal, ...] = ("keys", "l2")
NORMS = (2, 4, 8, 16, 32)
VOTES = (1, 2, 4, 8)
SHARES = (0.25, 0.5, 0.75)
SPENDINGS: tuple[Spending, ...] = ("late", "even")
_METHODS = ("paper", "default", "tuned", "best_possible")


def grid() -> list[Candidate]:
    """The candidates that `best possible` is the best of; a unit has at most norm² votes."""
    return [
        Candidate(norm * norm, votes, share, spending)
        for norm, votes, share, spending in product(NORMS, VOTES, SHARES, SPENDINGS)
        if votes <= norm * norm
    ]


def run_tuning(
    named: Named,
    settings: Settings,
    seeds: int,
    threads: int,
    report: ReportProgress,
) -> Result:
    """Tuned options beside the paper's, the default ones and the best of a grid."""
    rows = [
        row
        for seed in range(1, seeds + 1)
        for row in compare(named, settings, seed, threads, report)
    ]
    return tuning_result(named, settings, rows)


def compare(
    named: Named, settings: Settings, seed: int, threads: int, report: ReportProgress
) -> list[dict[str, Any]]:
    """A row for each goal: every method's figure on the half that nothing was tuned on."""

    def say(what: str, round_of_it: str, done: int, of: int) -> None:
        report(f"seed {seed}, {what}{round_of_it}", done, of)

    with halves(named.stream, settings, seed, threads) as split:
        paper = replay.measure(
            split.stream,
            settings.preset("paper"),
            settings.triggers,
            true_histogram(split.stream),
            threads=threads,
            on_progress=partial(say, "paper", ""),
        )
        tuned = {}
        for goal in GOALS:
            words = partial(say, f"{goal}, ")
            ranked, _ = search(split.sample, goal, CANDIDATES, seed, threads, words)
            tuned[goal] = ranked[0].candidate
        default = Candidate.of(split.measured.query)
        known = _figures(split, [default, *tuned.values()], threads, partial(say, "grid", ""))
    rows = []
    for goal in GOALS:
        figure = {candidate: _figure(figures, goal) for candidate, figures in known.items()}
        points = [point for point in grid() if point in known]
        best = (max if goal == "keys" else min)(points, key=lambda point: figure[point])
        row = {
            "paper": paper[goal],
            "default": figure[default],
            "tuned": figure[tuned[goal]],
            "best_possible": figure[best],
        }
        options = {"tuned_options": _words(tuned[goal]), "best_options": _words(best)}
        rows.append({"goal": goal, "seed": seed, **row, **_ratio(row), **options})
    return rows


def tuning_result(named: Named, settings: Settings, rows: list[dict[str, Any]]) -> Result:
    """The means over the seeds, then the seeds themselves."""
    means = []
    for goal in GOALS:
        of_goal = [row for row in rows if row["goal"] == goal]
        mean = {method: fmean(row[method] for row in of_goal) for method in _METHODS}
        means.append({"goal": goal, "seed": "mean", **mean, **_ratio(mean)})
    described = settings.describe(named, len(rows) // len(GOALS))
    described |= {"C": settings.contributions, "default_norm": settings.default_norm}
    searched = {"candidates": CANDIDATES, "grid_points": len(grid())}
    return Result("tuning", f"tuning-{named.name}", described | searched, [*means, *rows], [NOTE])


def _figures(
    split: Halves, further: list[Candidate], threads: int, report: partial[None]
) -> dict[Candidate, Figures]:
    """The figures of the grid and of further candidates on the measured half, all in one go."""
    candidates = list(dict.fromkeys([*further, *grid()]))

    def say(done: int) -> None:
        report(done, len(candidates))

    measured = split.measured
    return {
        one.candidate: one.figures
        for one in measure(measured, measured.sample, candidates, 1.0, threads, say)
    }


def _figure(figures: Figures, goal: Goal) -> float:
    """What a user of the release would see; the search itself looks at the expected error."""
    return figures.keys if goal == "keys" else figures.columns[0].l2


def _ratio(row: dict[str, float]) -> dict[str, float | None]:
    best = row["best_possible"]
    return {"tuned_to_best": row["tuned"] / best if best else None}


def _words(candidate: Candidate) -> str:
    """Norm, votes, share and spending."""
    return (
        f"{norm_text(candidate.squared_norm)}, {candidate.selections}, {candidate.share:g},"
        f" {candidate.spending}"
    )
