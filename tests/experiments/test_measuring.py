"""What is measured, and with which plan: by hand, and against the definitions."""

from __future__ import annotations

import itertools
import math
import os
import re
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from scipy.special import ndtr

from dpsqlp.accounting import ContributionBounds, delta_of, epsilon_spent, paper_calibration
from dpsqlp.engines.instance import create_instance, description
from dpsqlp.engines.script import open_engine
from dpsqlp.errors import DpsqlpError, SourceError, StateError
from dpsqlp.experiments import subprocesses
from dpsqlp.experiments.data import DAY_US, START_US, write_day, write_part, write_visits
from dpsqlp.experiments.halves import Settings, halves, split_units
from dpsqlp.experiments.histogram import (
    Errors,
    errors,
    keys_by,
    released_keys,
    true_histogram,
)
from dpsqlp.experiments.industry import equivalent_threshold, thresholds
from dpsqlp.experiments.oneshot import (
    Bounded,
    OneShot,
    budgets,
    composed_delta,
    each_budget,
    improved,
    one_shot,
)
from dpsqlp.experiments.replay import replay
from dpsqlp.experiments.scale import extrapolate
from dpsqlp.experiments.task import (
    PRESETS,
    Options,
    Stream,
    describe,
    plan_of,
    preset,
    query_of,
    read_stream,
    script,
)
from dpsqlp.experiments.tuning import grid
from dpsqlp.mechanisms import Tree
from dpsqlp.plan import Plan
from dpsqlp.sql import compile_script
from dpsqlp.sql.plan import window_grid
from dpsqlp.state.sealed import SealedStorage
from dpsqlp.state.storage import LocalStorage
from experiments import jobs

pytestmark = pytest.mark.slow

DAY = Stream("day/*.parquet", 0)


def test_errors_are_those_computed_by_hand() -> None:
    truth = pa.table({"key": ["a", "b", "c", None], "n": [10, 5, 1, 4]})
    released = pa.table({"key": ["a", "b", None], "n": [12.0, 1.0, 4.5]})
    assert errors(truth, released) == Errors(4.0, 2 + 4 + 1 + 0.5, math.sqrt(4 + 16 + 1 + 0.25))
    nothing = released.slice(0, 0)
    assert errors(truth, nothing) == Errors(10.0, 20.0, math.sqrt(100 + 25 + 1 + 16))


def test_a_key_has_its_last_value_and_its_first_trigger(tmp_path: Path) -> None:
    no_keys: list[str] = []
    no_counts: list[int] = []
    releases = (
        (9, ["a", "b"], [7, 3]),
        (10, ["a"], [5]),
        (11, no_keys, no_counts),
        (18, ["c"], [2]),
    )
    for trigger, keys, counts in releases:
        table = pa.table(
            {
                "trigger": pa.array([trigger] * len(keys), pa.int64()),
                "key": pa.array(keys, pa.string()),
                "n": pa.array(counts, pa.int64()),
            }
        )
        pq.write_table(table, tmp_path / f"trigger-{trigger:012d}.parquet")
    released = released_keys(tmp_path)
    assert {row["key"]: row["n"] for row in released.to_pylist()} == {"a": 5, "b": 3, "c": 2}
    for table in (released, released_keys(tmp_path, counts=False)):
        assert [keys_by(table, trigger) for trigger in (8, 9, 17, 18)] == [0, 2, 2, 3]


def test_half_day_keys_are_those_of_the_release_after_half_of_the_triggers(tmp_path: Path) -> None:
    """Under `every_trigger` a key that is out stays out."""
    records = write_day(tmp_path / "day", 3000, 300, 3)
    stream = Stream(f"{tmp_path}/day/*.parquet", records)
    replay(stream, preset("best", 6.0, 1e-9), 4, tmp_path / "work", 2, lambda *done: None)
    output = tmp_path / "work" / "output"
    sizes = [pq.read_metadata(file).num_rows for file in sorted(output.glob("*.parquet"))]
    released = released_keys(output)
    assert [keys_by(released, trigger) for trigger in range(1, 5)] == sizes
    assert 0 < sizes[1] < sizes[2] < sizes[3]


def test_the_day_is_the_paper_s(tmp_path: Path) -> None:
    records = write_day(tmp_path / "day", 20_000, 1000, 4)
    table = pq.read_table(tmp_path / "day")
    times = table.column("ts").cast(pa.int64()).to_numpy()
    assert len(table) == records
    assert records / 20_000 == pytest.approx(6.1, rel=0.02)
    assert START_US <= times.min() <= times.max() < START_US + DAY_US
    assert np.unique(table.column("user_id").to_numpy()).size == 20_000
    keys = np.bincount(table.column("key").to_numpy(), minlength=1001)
    assert keys[0] == 0
    assert keys[1:101].sum() / keys[901:].sum() == pytest.approx((1950 / 1050) ** 1.4, rel=0.05)
    assert write_visits(tmp_path / "visits", 500, 10, 2) == 500
    assert set(pq.read_table(tmp_path / "visits").column("user_id").to_pylist()) == set(range(500))


def test_halves_share_no_unit_and_no_noise(tmp_path: Path) -> None:
    """Equal noise on both halves would let a search fit the noise that is measured."""
    records = write_day(tmp_path / "day", 2000, 50, 2)
    stream = Stream(f"{tmp_path}/day/*.parquet", records)
    files = split_units(stream.files, tmp_path, 1)
    units = [set(pq.read_table(file).column("user_id").to_pylist()) for file in files]
    assert not units[0] & units[1]
    assert len(units[0] | units[1]) == 2000
    secrets = set()
    for seed in (1, 2, 3):
        with halves(stream, Settings(4, 6.0, 1e-9), seed, 2) as split:
            assert len(split.sample.sample) + len(split.measured.sample) == pytest.approx(
                records, abs=20
            )  # the span of time is the measured half's
            assert split.stream.records == len(split.measured.sample)
            secrets |= {split.sample.secret, split.measured.secret}
    assert len(secrets) == 6


def test_the_grid_has_more_than_a_hundred_points() -> None:
    points = grid()
    assert len(set(points)) == len(points) > 100
    assert all(point.selections <= point.squared_norm for point in points)


def test_the_presets_are_what_they_say() -> None:
    paper, tree, default, best = (preset(name, 6.0, 1e-9) for name in PRESETS)
    plan = plan_of(query_of(DAY, paper, 100), paper)
    published = paper_calibration(
        epsilon=6.0,
        delta=1e-9,
        records=32,
        mechanism=Tree(100),
        processes=[calibrated.process for calibrated in plan.calibration.processes],
    )
    assert plan.calibration == published
    assert (plan.release, plan.caps, plan.mechanism) == (
        "threshold",
        ContributionBounds(32, 32, 32),
        Tree(100),
    )
    ours = plan_of(query_of(DAY, tree, 100), tree)
    assert (ours.release, ours.caps, ours.mechanism) == (
        "threshold",
        ContributionBounds(32, 32, 32),
        Tree(100),
    )
    assert ours.calibration.nu > published.nu  # less noise for the same epsilon
    alone = plan_of(query_of(DAY, default, 100), default)
    assert alone.caps == ContributionBounds(64, 8, 3, 64)
    tuned = plan_of(query_of(DAY, best, 100), best)
    assert tuned.caps == ContributionBounds(64, 8, 2, 64)
    assert alone.calibration.closing is not None
    assert tuned.calibration.closing is not None
    for promised in (ours, alone, tuned):
        spent = epsilon_spent(
            promised.calibration, promised.caps, promised.mechanism, promised.release
        )
        assert 5.9 < spent <= 6.0
    assert query_of(DAY, preset("best", 6.0, 1e-9, norm=1), 100).caps == ContributionBounds(1, 1, 1)


def test_options_reach_the_query() -> None:
    options = Options(
        2.0,
        1e-10,
        records=3,
        records_per_key=2,
        selections=1,
        closing=False,
        minimum=50,
        unit="(user_id, key)",
        counts=False,
    )
    query = query_of(DAY, options, 96)
    assert (query.epsilon, query.delta, query.caps) == (2.0, 1e-10, ContributionBounds(3, 2, 1))
    assert (query.minimum, window_grid(query).triggers, query.processes) == (50, 96, ())
    assert (query.unit_names, query.closing) == (("user_id", "key"), False)
    best = query_of(DAY, preset("best", 6.0, 1e-9), 100)
    assert (best.selection_share, best.selection_spending) == (0.45, "late")
    assert query_of(DAY, preset("tree", 6.0, 1e-9), 100).selection_spending == "even"


def test_default_is_one_number() -> None:
    """Every option but the norm is left to the product."""
    text = script(DAY, preset("default", 6.0, 1e-9), 100, Path("out"))
    given = re.findall(r"(\w+) = ", text.split("OPTIONS")[1].split(")")[0])
    required = ["epsilon", "delta", "privacy_unit_column", "timestamp_column"]
    assert given == [*required, "max_contribution_norm"]


def test_settings_are_those_in_effect() -> None:
    described = describe(DAY, preset("default", 6.0, 1e-9, norm=math.sqrt(32)), 100)
    assert described == {
        "mechanism": "blt",
        "release": "every_trigger",
        "norm": math.sqrt(32),
        "C": 32,
        "c": 5,
        "Cs": 3,
        "selection_share": 0.5,
        "selection_spending": "even",
        "closing": "on",
    }


@pytest.mark.parametrize(("epsilon", "mean"), [(1.0, 97), (3.0, 35), (10.0, 13)])
def test_shopping_thresholds_are_below_the_paper_s(epsilon: float, mean: float) -> None:
    """Against an independent computation, without the rounding up (half a user on average)."""
    options = Options(epsilon, 1e-9, norm=1, counts=False)
    limits = thresholds(DAY, options, 150)
    assert np.mean(limits) == pytest.approx(mean + 0.5, abs=1.0)


def test_the_equivalent_threshold_keeps_as_many_keys() -> None:
    truth = pa.table({"key": range(5), "n": [3, 9, 1, 7, 7]})
    assert equivalent_threshold(truth, 3) == 7
    assert equivalent_threshold(truth, 4) == 3
    assert equivalent_threshold(truth, 0) is None


def test_a_run_uses_the_preset_s_plan_from_files_to_files(tmp_path: Path) -> None:
    records = write_day(tmp_path / "day", 3000, 20, 3)
    stream = Stream(f"{tmp_path}/day/*.parquet", records)
    truth = true_histogram(stream)
    assert sum(truth.column("n").to_pylist()) == records
    options = preset("paper", 6.0, 1e-9, contributions=8)
    told: list[tuple[int, int]] = []
    ran = replay(stream, options, 3, tmp_path / "work", 2, lambda *done: told.append(done))
    assert told == [(1, 3), (2, 3), (3, 3)]
    assert len(ran.trigger_seconds) == 3
    assert sum(ran.trigger_seconds) < ran.seconds
    stored = description(LocalStorage(tmp_path / "work" / "state" / "counts"))
    assert stored is not None
    plan = Plan.restore(stored["plan"])
    published = paper_calibration(
        epsilon=6.0,
        delta=1e-9,
        records=8,
        mechanism=Tree(3),
        processes=[calibrated.process for calibrated in plan.calibration.processes],
    )
    assert plan.calibration == published
    released = released_keys(tmp_path / "work" / "output")
    figures = errors(truth, released)
    assert released.num_rows == 20
    dropped = records - 3000 * 8  # at least; the rest of the error is noise
    assert max(dropped, 0) <= figures.l1 < records

    # It carries no promise, so the query by itself does not go on with it, nor begin over it.
    work = tmp_path / "work"
    [sink] = compile_script(script(stream, options, 3, work / "output")).sinks
    with pytest.raises(StateError, match="are not those this state was made with"):
        open_engine(sink, state=work / "state", secret=work / "secret", folder=work)
    storage = SealedStorage(LocalStorage(work / "state" / "counts"))
    with pytest.raises(StateError, match="other files exist"):
        create_instance(storage, sink.query, plan, bytes(32), 0, 2)


def test_composition_is_that_of_all_outcomes() -> None:
    """Against an enumeration of the worst pair of (epsilon, delta)-DP outcomes."""
    each_epsilon, each_delta, folds = 0.7, 0.02, 3
    truthful = (1 - each_delta) * math.exp(each_epsilon) / (1 + math.exp(each_epsilon))
    lying = (1 - each_delta) / (1 + math.exp(each_epsilon))
    first, second = (each_delta, truthful, lying, 0.0), (0.0, lying, truthful, each_delta)
    for epsilon in (0.0, 0.3, 1.0, 1.5, 2.1):
        expected = sum(
            max(
                math.prod(first[o] for o in way)
                - math.exp(epsilon) * math.prod(second[o] for o in way),
                0,
            )
            for way in itertools.product(range(4), repeat=folds)
        )
        assert composed_delta(epsilon, each_epsilon, each_delta, folds) == pytest.approx(expected)


def test_the_repeated_budget_is_the_largest() -> None:
    each_epsilon, each_delta = each_budget(6.0, 1e-9, 100)
    assert composed_delta(6.0, each_epsilon, each_delta, 100) <= 1e-9
    assert composed_delta(6.0, each_epsilon * 1.01, each_delta, 100) > 1e-9
    assert each_epsilon > 6.0 / 100


def test_one_execution_keeps_its_budget_and_no_more() -> None:
    noise = one_shot(6.0, 1e-9, 32)
    half = pytest.approx(1e-9 / 2, rel=1e-6)
    assert delta_of(6.0, 32 / noise.count_sigma) == half
    chances = [
        keys * ndtr((32 / keys - noise.threshold) / noise.count_sigma) for keys in range(1, 33)
    ]  # of a release, for a unit that has so many keys to itself
    assert max(chances) == half
    several = budgets(6.0, 1e-9, 32, 100)
    assert several["incremental"] == noise
    assert several["repeated"].count_sigma > 10 * noise.count_sigma


def test_the_improved_baseline_keeps_its_budget_and_no_more() -> None:
    noise = improved(6.0, 1e-9, 32, 100)
    third = pytest.approx(1e-9 / 3, rel=1e-6)
    assert noise.selection_sigma is not None
    assert delta_of(3.0, 10 * math.sqrt(32) / noise.selection_sigma) == third
    assert delta_of(3.0, 10 * 32 / noise.count_sigma) == third
    assert 32 * 100 * ndtr((1 - noise.threshold) / noise.selection_sigma) == third


def test_baselines_group_bounded_data(tmp_path: Path) -> None:
    """Two batches; unit 1 has three records of which two count, in the order of time."""
    times = START_US + np.array([1, 2, 3, 4, 5, 6]) * (DAY_US // 8)  # a batch is four eighths
    write_part(tmp_path, 0, np.array([1, 2, 1, 3, 4, 1]), np.array([7, 7, 8, 8, 7, 7]), times)
    stream = Stream(f"{tmp_path}/*.parquet", 6)
    bounded = Bounded(stream, 2, 2, tmp_path)
    by_units = OneShot(count_sigma=1e-9, threshold=1.5, selection_sigma=1e-9)
    by_count = OneShot(count_sigma=1e-9, threshold=2.5)

    def released(name: str, noise: OneShot = by_units) -> dict[int, float]:
        rows = bounded.histogram(name, noise, 1).to_pylist()
        return {row["key"]: round(row["n"], 6) for row in rows}

    assert released("repeated") == {7: 3.0, 8: 2.0}
    assert released("incremental") == {7: 2.0}  # 8 has one unit in each batch
    assert released("repeated", by_count) == {7: 3.0}
    assert released("incremental", by_count) == {}
    bounded.close()


def test_a_file_of_one_s_own_is_replayed_over_its_span(tmp_path: Path) -> None:
    file = tmp_path / "a [1].parquet"
    table = pa.table(
        {
            "user_id": ["u", "v", None],
            "key": ["x", "y", "y"],
            "ts": pa.array([-5_000_000, 5_000_000, 0], pa.timestamp("us")),
        }
    )
    pq.write_table(table, file)
    stream = read_stream(file)
    assert (stream.records, stream.start_us, stream.span_us) == (2, -5_000_000, 10_000_001)
    assert (stream.user_type, stream.key_type) == ("VARCHAR", "VARCHAR")
    assert true_histogram(stream).num_rows == 2
    query = query_of(stream, preset("best", 1.0, 1e-6, norm=1), 3)
    assert query.emit.start_us == -5_000_000
    assert query.emit.interval_us * 3 >= stream.span_us
    pq.write_table(table.drop_columns(["key"]), tmp_path / "b.parquet")
    with pytest.raises(SourceError, match="key"):
        read_stream(tmp_path / "b.parquet")


def test_scale_extrapolates_in_a_straight_line() -> None:
    sizes = (10, 20, 40)
    rows = [
        {"by": "keys", "records": 5, "keys_in_state": n, "trigger_seconds": 1.0 + n / 1e9}
        | {"peak_memory_bytes": 100 + 50 * n}
        for n in sizes
    ]
    rows.append({"by": "records", "records": 7, "records_per_second": 1e6})
    beyond = extrapolate(rows)
    assert beyond["bytes_per_key"] == pytest.approx(50)
    assert beyond["memory_bytes_at_paper_keys"] == pytest.approx(50e9)
    assert beyond["trigger_seconds_at_paper_keys"] == pytest.approx(2.0, rel=1e-3)
    assert beyond["hours_for_paper_records"] == pytest.approx(6000 / 3600)


def test_work_apart_reports_answers_and_refuses() -> None:
    told: list[tuple[int, int]] = []
    on_progress = lambda *done: told.append(done)  # noqa: E731
    assert subprocesses.run_in_subprocess(jobs.count, 2, on_progress=on_progress) != os.getpid()
    assert told == [(1, 2), (2, 2)]
    with pytest.raises(DpsqlpError, match=r"It cannot be promised\."):
        subprocesses.run_in_subprocess(jobs.refuse, on_progress=on_progress)
    with pytest.raises(DpsqlpError, match="code 9"):
        subprocesses.run_in_subprocess(jobs.vanish, on_progress=on_progress)
    assert (
        subprocesses.run_in_subprocess(jobs.interrupted, on_progress=on_progress) == "went on"
    )  # Ctrl-C is its parent's


def test_memory_is_the_run_s_own_not_its_parent_s() -> None:
    ballast = np.ones(1 << 26)  # half a gigabyte, touched
    assert subprocesses.peak_memory_bytes() > ballast.nbytes
    assert (
        subprocesses.run_in_subprocess(jobs.peak, on_progress=lambda *done: None) < ballast.nbytes
    )
