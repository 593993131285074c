"""The search: it repeats, it ranks on parts as on the whole, and it finds what it looks for."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from dpsqlp.errors import PlanError
from dpsqlp.sql import SinkDef, compile_script
from dpsqlp.sql.options import square_of_norm
from dpsqlp.sql.query import Query
from dpsqlp.tuning import search as searching
from dpsqlp.tuning import tune as tuning
from dpsqlp.tuning.candidate import Candidate, norm_text
from dpsqlp.tuning.figures import Goal, score
from dpsqlp.tuning.rewrite import Rewritten
from dpsqlp.tuning.search import Space, measure, search
from dpsqlp.tuning.shrink import shrink
from dpsqlp.tuning.tune import Tuning, check_goal, check_rewritten, tune_query, with_interval
from tuning.samples import sample_rows, script, simulation, write_rows


def quiet(*_: object) -> None:
    return


def compiled(options: str) -> Query:
    [sink] = compile_script(script(options=options)).sinks
    return sink.query


def tuned(sql: str, folder: Path, goal: Goal = "l2", seed: int = 1, threads: int = 2) -> Tuning:
    rows = sample_rows(sql, folder, seed=seed)
    sink = SinkDef("t", {}, rows.query)
    return tune_query(
        sql,
        partial(compile_script, folder=str(folder)),
        sink,
        rows,
        goal,
        candidates=16,
        seed=seed,
        threads=threads,
        report=quiet,
    )


def test_the_search_repeats(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a seed, whatever the number of threads; with parts of the units too."""
    write_rows(tmp_path / "sample" / "a.parquet", units=2000)
    monkeypatch.setattr(searching, "_RECORDS_MIN", 1000)
    one, other = (tuned(script(), tmp_path, threads=threads).to_dict() for threads in (1, 2))
    assert one == other
    assert "on 1/8, 1/2 of the units" in one["notes"][-1]
    assert tuned(script(), tmp_path, seed=2).to_dict() != one


@pytest.mark.parametrize("goal", ["l2", "keys"])
def test_a_part_of_the_units_ranks_as_all_of_them(goal: Goal, tmp_path: Path) -> None:
    """With noise and thresholds as much smaller. Without, small samples would ask for other
    options.
    """
    write_rows(tmp_path / "sample" / "a.parquet", units=8000, keys=40)
    simulated = simulation(
        script(options="max_contribution_norm = 3, privacy_unit_period = INTERVAL 1 DAY"), tmp_path
    )
    space = Space.of(simulated)
    points = np.random.default_rng(1).random((16, 4))
    candidates = sorted({space.point(point) for point in points})
    part = simulated.sample.part(0.25, 1)
    scores = [
        [score(one.figures, goal)[0] for one in measure(simulated, sample, candidates, f, 2, quiet)]
        for sample, f in ((part, 0.25), (simulated.sample, 1.0))
    ]
    assert spearmanr(*scores).statistic > 0.8


def test_a_shrunk_plan_has_everything_in_proportion(tmp_path: Path) -> None:
    """Noise, thresholds and what a closing asks for; at the whole it is the plan."""
    write_rows(tmp_path / "sample" / "a.parquet")
    simulated = simulation(
        script(options="max_contribution_norm = 3, privacy_unit_period = INTERVAL 1 DAY"), tmp_path
    )
    plan = simulated.plan(simulated.query)
    small = shrink(plan, 0.25).calibration
    assert shrink(plan, 1) is plan
    whole = plan.calibration
    assert small.processes[0].sigma == whole.processes[0].sigma / 4
    assert small.selection is not None
    assert whole.selection is not None
    assert whole.closing is not None
    assert small.closing is not None
    for low, high in zip(small.selection.thresholds, whole.selection.thresholds, strict=True):
        assert high / 4 <= low < high / 4 + 1
    assert small.closing.weights_max == whole.closing.weights_max
    assert small.closing.quantum == 4 * whole.closing.quantum
    assert small.closing.budget == 16 * whole.closing.budget


def test_a_norm_that_drops_rows_is_raised(tmp_path: Path) -> None:
    """Units with eight rows each have no place in a norm of 1: bias, where the noise is small."""
    write_rows(tmp_path / "sample" / "a.parquet", units=3000)
    found = tuned(script(options="max_contribution_norm = 1"), tmp_path)
    assert found.best.candidate.squared_norm > 4
    best, now = found.best.figures.columns[0], found.now.figures.columns[0]
    assert best.bias[0] < now.bias[0] / 4
    assert now.coverage < 0.5 < best.coverage


def test_the_clause_gives_the_recommended_options(tmp_path: Path) -> None:
    """The rewritten script compiles to them; caps that no longer bind are left out."""
    write_rows(tmp_path / "sample" / "a.parquet", units=1000)
    sql = script(options="max_rows_contributed = 20, max_rows_per_group = 3")
    found = tuned(sql, tmp_path)
    check_rewritten(compile_script(found.script), found)
    with pytest.raises(PlanError, match="does not have the recommended options"):
        check_rewritten(compile_script(sql), found)


def test_a_script_with_other_options_is_never_recommended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rewritten script is compiled again, whether or not it is written to a file."""
    write_rows(tmp_path / "sample" / "a.parquet", units=1000)
    monkeypatch.setattr(tuning, "rewrite", lambda text, *_: Rewritten(text, "OPTIONS ()"))
    with pytest.raises(PlanError, match="does not have the recommended options"):
        tuned(script(options="max_contribution_norm = 1"), tmp_path)


def test_public_groups_have_a_norm_alone(tmp_path: Path) -> None:
    """There is nothing to select; noise and cap bias remain."""
    write_rows(tmp_path / "sample" / "a.parquet", units=1000)
    public = "CREATE PUBLIC TABLE p AS SELECT * FROM (VALUES ('k1'), ('k2')) AS t(k);"
    strategy = "group_selection_strategy = PUBLIC_GROUPS, public_groups = p"
    sql = script(public=public, options=f"max_contribution_norm = 1, {strategy}")
    found = tuned(sql, tmp_path)
    assert list(found.options) == ["max_contribution_norm"]
    assert found.best.candidate.squared_norm > 1
    with pytest.raises(PlanError, match="nothing to select"):
        check_goal(found.query, "keys")


def test_steps_show_other_budgets_and_intervals(tmp_path: Path) -> None:
    """More epsilon gives smaller noise, at the best options for each."""
    write_rows(tmp_path / "sample" / "a.parquet", units=1000)
    sql = script()
    rows = sample_rows(sql, tmp_path)
    found = tune_query(
        sql,
        compile_script,
        SinkDef("t", {}, rows.query),
        rows,
        "l2",
        candidates=8,
        seed=1,
        threads=2,
        epsilons=[1.0, 20.0],
        intervals=["1 day"],
        report=quiet,
    )
    assert [(step.name, step.value) for step in found.steps] == [
        ("epsilon", "1"),
        ("epsilon", "20"),
        ("interval", "1 day"),
    ]
    low, high = (step.measured.figures.columns[0].noise[0] for step in found.steps[:2])
    assert high < low


@pytest.mark.parametrize("words", ["5 bananas", "1 month", "0 hours", "7 hours"])
def test_intervals_off_the_grid_are_refused(words: str) -> None:
    """The window is a whole number of intervals."""
    [sink] = compile_script(script()).sinks
    with pytest.raises(PlanError, match="interval"):
        with_interval(sink.query, words)


def test_norms_are_written_so_that_they_are_read_back() -> None:
    """The square of what is written, rounded down, is the candidate's; up to the largest norm."""
    most = (2**16 - 1) ** 2
    more = np.random.default_rng(1).integers(2**16, most, 20_000).tolist()
    roots = np.random.default_rng(2).integers(2**8, 2**16 - 1, 2000).tolist()
    near = [root**2 + step for root in roots for step in (-1, 0, 1)]
    for squares in [*range(1, 2**16 + 1), *more, *near, most - 1, most]:
        assert square_of_norm(float(norm_text(squares))) == squares
    assert [norm_text(n) for n in (4, 8, 3000, 3660)] == ["2", "2.9", "54.78", "60.5"]


@pytest.mark.parametrize("norm", ["1", "2.83", "54.78", "60.5", "1000.0005", "65534.9999", "65535"])
@pytest.mark.parametrize("share", [0.3, 1 / 3, 1e-5, 0.3333333])
def test_options_are_written_so_that_they_are_read_back(norm: str, share: float) -> None:
    """Through a script: the candidate of the options that were written is the same."""
    options = f"max_contribution_norm = {norm}, group_selection_share = {share!r}"
    written = Candidate.of(compiled(options))
    again = ", ".join(
        f"{name} = {value}" for name, value in written.options(compiled(options)).items()
    )
    assert Candidate.of(compiled(again)) == written
    assert written.share == share


def test_candidates_are_points_of_the_space(tmp_path: Path) -> None:
    """There and back; votes never exceed what a unit can reach."""
    write_rows(tmp_path / "sample" / "a.parquet")
    space = Space.of(simulation(script(), tmp_path))
    for point in np.random.default_rng(1).random((50, 4)):
        candidate = space.point(point)
        assert 1 <= candidate.selections <= candidate.squared_norm
        assert space.point(space.place(candidate)) == candidate


def test_further_caps_stay_only_where_they_bind() -> None:
    """`max_rows_contributed` that the norm implies is no cap for a larger norm."""
    [sink] = compile_script(
        script(options="max_contribution_norm = 3, max_rows_contributed = 9")
    ).sinks
    larger = replace(Candidate.of(sink.query), squared_norm=25).query(sink.query)
    assert larger.caps.records == 25
    [sink] = compile_script(
        script(options="max_contribution_norm = 3, max_rows_contributed = 5")
    ).sinks
    assert replace(Candidate.of(sink.query), squared_norm=25).query(sink.query).caps.records == 5


def test_an_interrupted_search_ends(tmp_path: Path) -> None:
    """What has not begun does not run."""
    write_rows(tmp_path / "sample" / "a.parquet")
    simulated = simulation(script(), tmp_path)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(simulated, "l2", 8, 1, 2, interrupt)
