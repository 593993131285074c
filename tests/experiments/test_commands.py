"""`dpsqlp experiment`: every command on a tiny stream, its JSON, its pages, how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from dpsqlp.cli.app import app
from dpsqlp.experiments import industry, plots, subprocesses, tuning
from dpsqlp.experiments.data import write_day
from support.processes import WAIT_SECONDS, started, until

pytestmark = pytest.mark.slow

SYNTHETIC = (
    *("preset", "records", "units", "triggers", "linf", "l1", "l2", "seconds"),
    *("keys", "half_day_keys", "keys_before_last", "norm", "C", "c", "Cs", "closing"),
    *("records_per_second", "peak_memory_bytes", "epsilon", "delta"),
)
SMALL = ("--units", "2000", "--keys", "20", "--triggers", "3")


def call(*words: str | Path) -> Any:
    return CliRunner().invoke(app, ["experiment", *(str(word) for word in words)])


def answer(*words: str | Path) -> dict[str, Any]:
    called = call(*words, "--json")
    assert called.exit_code == 0, called.output
    body: dict[str, Any] = json.loads(called.stdout)
    return body


@pytest.fixture(autouse=True)
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process for each run would load the kernels each time."""
    monkeypatch.setattr(
        subprocesses,
        "run_in_subprocess",
        lambda work, *arguments, on_progress: work(*arguments, on_progress),
    )
    monkeypatch.setattr(industry, "SHOPPING_TRIGGERS", 6)
    monkeypatch.setattr(industry, "TRENDS_TRIGGERS", 6)


@pytest.mark.parametrize("preset", ["paper", "tree", "default", "best"])
def test_synthetic(preset: str) -> None:
    body = answer("synthetic", *SMALL, "--preset", preset, "--runs", "2")
    assert [name for name in SYNTHETIC if name not in body] == []
    assert (body["preset"], body["units"], body["triggers"]) == (preset, 2000, 3)
    assert (body["epsilon"], body["delta"], len(body["rows"])) == (6.0, 1e-9, 2)
    assert 0 < body["half_day_keys"] <= body["keys_before_last"] <= body["keys"] == 20
    assert 0 < body["linf"] <= body["l2"] <= body["l1"] < body["records"]
    assert body["l1"] == pytest.approx(sum(row["l1"] for row in body["rows"]) / 2)
    assert body["command"] == (
        "dpsqlp experiment synthetic --units 2000 --keys 20 --triggers 3"
        f" --preset {preset} --closing on --runs 2 --seed 1 --threads 2"
    )
    bounds = [body[name] for name in ("norm", "C", "c", "Cs")]
    assert bounds == (
        [32.0, 32, 32, 32] if preset in ("paper", "tree") else [8.0, 64, 8, bounds[3]]
    )
    chosen = [body[name] for name in ("Cs", "selection_share", "selection_spending", "closing")]
    assert (
        chosen
        == {
            "paper": [32, None, None, None],
            "tree": [32, 0.5, "even", None],
            "default": [3, 0.5, "even", "on"],
            "best": [2, 0.45, "late", "on"],
        }[preset]
    )


def test_the_closing_adds_keys_and_can_be_left_out() -> None:
    day = ("--units", "3000", "--keys", "300", "--triggers", "4")
    with_it, without = (answer("synthetic", *day, "--closing", word) for word in ("on", "off"))
    assert (with_it["closing"], without["closing"]) == ("on", "off")
    assert (with_it["name"], without["name"]) == (
        "synthetic-best-4",
        "synthetic-best-closing-off-4",
    )
    assert with_it["keys"] > with_it["keys_before_last"] + 50
    assert without["keys"] < with_it["keys"] - 50


def test_fresh_noise_on_the_same_day() -> None:
    one, two = answer("synthetic", *SMALL), answer("synthetic", *SMALL)
    assert one["records"] == two["records"]
    assert [one[norm] for norm in ("l1", "l2")] != [two[norm] for norm in ("l1", "l2")]
    assert answer("synthetic", *SMALL, "--seed", "2")["records"] != one["records"]


def test_baselines_lose_against_one_mechanism() -> None:
    body = answer("baselines", "--units", "5000", "--keys", "20", "--triggers", "50")
    keys = {row["baseline"]: row["keys"] for row in body["rows"]}
    assert list(keys) == ["repeated", "incremental", "repeated, improved"]
    assert keys["repeated"] == 0
    assert keys["repeated, improved"] == 20


def test_sweep() -> None:
    body = answer("sweep", *SMALL, "--contributions", "1,8")
    assert (body["by"], [row["C"] for row in body["rows"]]) == ("C", [1, 8])
    assert body["rows"][0]["l1"] > body["rows"][1]["l1"]  # one record of six
    body = answer("sweep", *SMALL, "--preset", "best", "--norms", "1,4.5")
    assert (body["by"], [row["norm"] for row in body["rows"]]) == ("norm", [1.0, 4.5])
    assert body["rows"][0]["l1"] > body["rows"][1]["l1"]
    for option, text in (("--contributions", "1,x"), ("--norms", "0.5"), ("--norms", "4,")):
        refused = call("sweep", *SMALL, option, text)
        assert refused.exit_code == 2
        assert "at least 1" in refused.stderr


def test_shopping() -> None:
    body = answer("shopping", "--units", "2000", "--keys", "20")
    assert [row["published"] for row in body["rows"]] == [120] * 4 + [43] * 4 + [16] * 4
    best = [row for row in body["rows"] if row["preset"] == "best"]
    assert [row["threshold"] for row in best] == sorted(
        (r["threshold"] for r in best), reverse=True
    )
    assert 0 < best[-1]["half_day_keys"] <= best[-1]["keys"] == 20
    assert best[-1]["views_retained"] == best[-1]["retained_1_per_hour"] == 1.0
    assert best[-1]["retained_60_per_hour"] is None
    assert "generated" in body["notes"][0]


def test_trends_never_shows_a_query_of_fifty_users() -> None:
    body = answer("trends", "--units", "30000", "--keys", "10000")
    assert 100 < body["keys"] < body["keys_above_minimum"] < 10000  # keys from 2 to 120 users
    assert body["half_day_keys"] < body["keys"]
    assert body["fewest_users"] > 50
    assert body["threshold"] > 50
    assert (body["epsilon"], body["delta"], body["minimum"]) == (2.0, 1e-10, 50)


def test_real(tmp_path: Path) -> None:
    records = write_day(tmp_path, 2000, 20, 1)
    file = tmp_path / "part-00000.parquet"
    small = ("--triggers", "3", "--contributions", "9", "--default-norm", "4", "--norm", "5")
    best = ("--records", "20", "--records-per-key", "3", "--selections", "4")
    body = answer("real", file, *small, *best, "--selection-spending", "even")
    methods = ["paper", "tree", "default", "best", "repeated", "incremental", "repeated, improved"]
    assert [row["method"] for row in body["rows"]] == methods
    assert all(row["half_day_keys"] <= row["keys"] for row in body["rows"][:4])
    assert (body["records"], body["units"], body["true_keys"]) == (records, 2000, 20)
    assert (body["C"], body["default_norm"], body["best_norm"]) == (9, 4.0, 5.0)
    assert (body["best_C"], body["best_c"], body["best_Cs"]) == (20, 3, 4)
    assert (body["best_selection_share"], body["best_selection_spending"]) == (0.45, "even")
    assert "convenience" in body["notes"][0]
    assert str(tmp_path) not in json.dumps(body)
    assert "tuned" not in body["command"]
    assert "production" in call("real", "--help").output
    for option in ("--selections", "--records-per-key"):
        refused = call("real", file, "--norm", "1", option, "4")
        assert refused.exit_code == 1
        assert "at most 1" in refused.stderr


def test_real_may_be_tuned_on_one_half_of_the_units(tmp_path: Path) -> None:
    """The other half is measured, so the halves have all units between them."""
    write_day(tmp_path, 2000, 20, 1)
    file = tmp_path / "part-00000.parquet"
    body = answer("real", file, "--triggers", "3", "--tuned")
    assert [row["method"] for row in body["rows"]][4] == "tuned"
    assert 800 < body["units"] < 1200
    assert body["tuned_norm"] >= 1
    assert " --tuned --seed 1 " in body["command"]
    assert "other half" in body["notes"][1]


@pytest.fixture
def few_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search and a grid of seconds."""
    monkeypatch.setattr(tuning, "CANDIDATES", 8)
    monkeypatch.setattr(tuning, "NORMS", (2, 8))
    monkeypatch.setattr(tuning, "VOTES", (2,))


@pytest.mark.usefixtures("few_candidates")
def test_tuning_compares_with_the_best_of_a_grid(tmp_path: Path) -> None:
    write_day(tmp_path, 4000, 150, 1)
    file = tmp_path / "part-00000.parquet"
    body = answer("tuning", file, "--triggers", "4", "--epsilon", "8", "--seeds", "2")
    means, seeds = body["rows"][:2], body["rows"][2:]
    assert [(row["goal"], row["seed"]) for row in means] == [("keys", "mean"), ("l2", "mean")]
    assert [(row["goal"], row["seed"]) for row in seeds] == [
        *(("keys", 1), ("l2", 1)),
        *(("keys", 2), ("l2", 2)),
    ]
    for row in means:
        ratios = [seed for seed in seeds if seed["goal"] == row["goal"]]
        assert row["tuned"] == pytest.approx(sum(seed["tuned"] for seed in ratios) / 2)
        assert row["tuned_to_best"] == pytest.approx(row["tuned"] / row["best_possible"])
    keys, errors = means
    assert keys["paper"] <= keys["tuned"] <= 150
    assert errors["tuned"] < errors["paper"]
    assert seeds[1]["best_options"].startswith("8, 2, ")  # not the norm that drops rows
    assert (body["name"], body["grid_points"], body["candidates"]) == ("tuning-part-00000", 12, 8)
    assert "best of a grid" in call("tuning", "--help").output


def test_preview_predicts_the_bias_of_the_other_half() -> None:
    day = ("--units", "20000", "--keys", "20", "--triggers", "3", "--seeds", "1")
    body = answer("preview", *day, "--norms", "1,16")
    low = [row for row in body["rows"] if row["norm"] == 1]
    high = [row for row in body["rows"] if row["norm"] == 16]
    assert (body["name"], len(low), len(high)) == ("preview-synthetic", 1, 1)  # keys of one size
    assert (low[0]["rows_from"], low[0]["rows_to"]) == (1000, 9999)
    assert -0.95 < low[0]["bias_measured"] < -0.7
    assert low[0]["bias_predicted"] == pytest.approx(low[0]["bias_measured"], abs=0.01)
    assert low[0]["share_within_2_sd"] == 0
    assert abs(high[0]["bias_predicted"]) < 0.01
    assert abs(high[0]["bias_measured"]) < 0.01


def test_scale() -> None:
    body = answer("scale", "--keys", "320", "--records", "160")
    kinds = [row["by"] for row in body["rows"]]
    assert kinds.count("records") == kinds.count("keys") == 4
    assert [r["keys_in_state"] for r in body["rows"] if r["by"] == "keys"] == [20, 80, 160, 320]
    assert "1,000,000,000 keys" in body["notes"][0]


def test_the_screen_has_a_table() -> None:
    shown = call("synthetic", *SMALL)
    assert shown.exit_code == 0
    assert "every_trigger" in shown.stdout
    assert "ℓ1" in shown.stdout
    assert "best, run 1 of 1" in shown.stderr


def test_without_matplotlib_it_says_so_before_it_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plots, "find_spec", lambda name: None)
    refused = call("synthetic", *SMALL, "--report", tmp_path / "out", "--save", tmp_path / "kept")
    assert refused.exit_code == 1
    assert "pip install 'dpsqlp[experiments]'" in refused.stderr
    assert list(tmp_path.iterdir()) == []
    assert call("synthetic", *SMALL, "--save", tmp_path / "kept").exit_code == 0


def test_one_result_as_a_page_that_stands_by_itself(tmp_path: Path) -> None:
    assert call("synthetic", *SMALL, "--report", tmp_path).exit_code == 0
    page = (tmp_path / "synthetic-best-3.html").read_text()
    assert (tmp_path / "synthetic-3.png").read_bytes().startswith(b"\x89PNG")
    assert "data:image/png;base64," in page
    assert "dpsqlp experiment synthetic --units 2000" in page
    assert not re.findall(r'(?:src|href)="(?!data:)', page)


@pytest.mark.usefixtures("few_candidates")
def test_the_results_page_is_made_from_saved_results(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    write_day(tmp_path, 500, 5, 1)
    for name in ("paper", "best"):
        assert call("synthetic", *SMALL, "--preset", name, "--save", folder).exit_code == 0
    for words in (
        ("synthetic", *SMALL, "--closing", "off"),
        ("baselines", *SMALL),
        ("sweep", *SMALL, "--contributions", "2,4"),
        ("sweep", *SMALL, "--preset", "default", "--norms", "2,4"),
        ("shopping", "--units", "500", "--keys", "5"),
        ("trends", "--units", "500", "--keys", "5"),
        ("real", tmp_path / "part-00000.parquet", "--triggers", "3", "--contributions", "9"),
        ("tuning", *SMALL, "--seeds", "1"),
        ("preview", *SMALL, "--seeds", "1", "--norms", "2"),
        ("scale", "--keys", "32", "--records", "16"),
    ):
        assert call(*words, "--save", folder).exit_code == 0
    peers = {"columns": ["tool", "keys"], "rows": [["other", 12345]], "notes": ["A note on it."]}
    (folder / "peers.json").write_text(json.dumps(peers))
    assert call("report", folder).exit_code == 0
    page = (tmp_path / "results.md").read_text()
    best = json.loads((folder / "synthetic-best-3.json").read_text())
    paper = json.loads((folder / "synthetic-paper-3.json").read_text())
    assert f"| {best['l1'] / paper['l1']:.2f} |" in page
    assert (
        "| dpsqlp, `paper` | dpsqlp, `best` | dpsqlp, `best, closing off` | `best`: ratio |" in page
    )
    assert f"| half-day keys | – | {paper['half_day_keys']:.0f} |" in page
    assert "## Contribution limit C, `paper`, 3 triggers" in page
    assert "## Norm, `default`, 3 triggers" in page
    assert "with C = 9; `default` with norm 9 and no other option; `best` with norm 8, C" in page
    assert "Smaller than the paper's day" in page
    assert "## Tuned options, synthetic" in page
    assert "best of a grid of 12 points" in page
    assert "## Predicted bias, synthetic" in page
    assert "| other | 12,345 |" in page
    assert "A note on it." in page
    assert f"{best['command']} --save docs/results" in page
    pictures = re.findall(r"!\[[^]]*\]\(([^)]+)\)", page)
    assert sorted(pictures) == [
        "results/real-part-00000.png",
        "results/scale.png",
        "results/shopping.png",
        "results/sweep-default-3.png",
        "results/sweep-paper-3.png",
        "results/synthetic-3.png",
    ]
    assert all((tmp_path / picture).exists() for picture in pictures)


def test_at_the_paper_s_size_the_ratio_is_to_the_paper(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    call("synthetic", *SMALL, "--save", folder)
    saved = folder / "synthetic-best-3.json"
    body = json.loads(saved.read_text()) | {"units": 10_000_000, "triggers": 100, "keys": 56_676}
    saved.write_text(json.dumps(body))
    call("synthetic", *SMALL, "--preset", "paper", "--save", folder)  # smaller: left out
    smaller = folder / "synthetic-paper-3.json"
    smaller.write_text(json.dumps(json.loads(smaller.read_text()) | {"triggers": 100}))
    assert call("report", folder).exit_code == 0
    page = (tmp_path / "results.md").read_text()
    assert "| keys released | 28,338 | 56,676 | 2.00 |" in page
    assert "| half-day keys | – | 20 | – |" in page
    assert "Smaller than the paper's day" not in page


def test_a_folder_without_results_is_refused(tmp_path: Path) -> None:
    assert "--save" in call("report", tmp_path).stderr
    (tmp_path / "broken.json").write_text("{")
    assert "broken.json" in call("report", tmp_path).stderr


def test_ctrl_c_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    """Sent to the whole group, as a terminal does."""
    command = [sys.executable, "-c", "from dpsqlp.cli import main; main()", "experiment"]
    with started(
        [*command, "synthetic", "--units", "200000", "--runs", "50"],
        env=os.environ | {"TMPDIR": str(tmp_path)},
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        until(lambda: list(tmp_path.glob("*/output/*.parquet")), process)
        os.killpg(process.pid, signal.SIGINT)
        printed, said = process.communicate(timeout=WAIT_SECONDS)
    assert process.returncode == 130
    assert said.splitlines()[-1] == "Interrupted."
    assert "Traceback" not in said
    assert printed == ""
    assert list(tmp_path.iterdir()) == []
