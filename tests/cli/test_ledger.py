"""`dpsqlp ledger`, and what `run` and `explain` say of a budget."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from dpsqlp.cli.app import app
from dpsqlp.ledgers.base import Change
from dpsqlp.ledgers.file import LedgerFile
from postgres.cluster import Cluster, in_sql
from postgres.conftest import cluster, server

__all__ = ["cluster", "server"]

NOW = 1_796_000_000_000_000  # 2026-11-30
DAY = 86_400_000_000
CREATE = "CREATE BUDGET people (epsilon = 2, delta = 1e-6, per = INTERVAL 30 DAYS)"
FILE = "path = 'people.ledger'"


def sink(name: str, epsilon: float = 1, options: str = ", budget = people") -> str:
    return (
        f"CREATE SINK {name} WITH (connector = 'parquet', path = '{name}') AS SELECT WITH"
        f" DIFFERENTIAL_PRIVACY OPTIONS (epsilon = {epsilon}, delta = 1e-7, mechanism = 'tree',"
        f" privacy_unit_column = user_id, max_contribution_norm = 1{options}) url, COUNT(*) AS n"
        " FROM views GROUP BY url, TUMBLE(ts, INTERVAL 1 HOUR) EMIT EVERY INTERVAL 30 MINUTES ON"
        " EVENT TIME FROM TIMESTAMP '2026-11-30' TO TIMESTAMP '2026-11-30 02:00:00';\n"
    )


def script(folder: Path, *sinks: str, name: str = "views", where: str = FILE) -> Path:
    (folder / "events").mkdir(exist_ok=True)
    columns = {"url": ["/home"], "user_id": [1], "ts": pa.array([NOW], pa.timestamp("us"))}
    pq.write_table(pa.table(columns), folder / "events" / "a.parquet")
    file = folder / f"{name}.sql"
    file.write_text(
        "CREATE SOURCE views (url TEXT, user_id BIGINT, ts TIMESTAMP)"
        f" WITH (connector = 'files', path = 'events/*.parquet');\n{CREATE} WITH ({where});\n"
        + "".join(sinks)
    )
    return file


def call(*words: str | Path) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture(autouse=True)
def _now(monkeypatch: pytest.MonkeyPatch) -> None:
    """A moment of the ledger period that the replays are in."""
    monkeypatch.setattr(time, "time_ns", lambda: NOW * 1000)


def steady(text: str) -> str:
    """Without what is random, or follows the clock."""
    text = re.sub(r"\b[0-9a-f]{32}\b", "INSTANCE", text)
    return re.sub(r"(entered|retired) +\d.*UTC", r"\1 THEN", text)


def test_the_balance(tmp_path: Path) -> None:
    """Who has spent what, as (epsilon, delta), rho and nu, and what is left."""
    file = script(tmp_path, sink("popular"), sink("rare", 0.5))
    ran = call("run", file)
    assert ran.exit_code == 0, ran.stderr
    assert "popular begins: (1, 1e-07)-DP for each user_id; state" in ran.stderr
    entered = f"; entered in the budget people, ledger {tmp_path}/people.ledger"
    assert f"/popular{entered}, which did not exist and was made\n" in ran.stderr
    assert f"/rare{entered}\n" in ran.stderr
    shown = call("ledger", tmp_path / "people.ledger")
    assert shown.exit_code == 0
    assert steady(shown.stdout) == (
        f"{tmp_path}/people.ledger\n"
        "  budget  (2, 1e-06)-DP for each user_id in each period of 30 days\n"
        "  period  2026-11-03 00:00:00 UTC to 2026-12-03 00:00:00 UTC\n"
        "  spent   epsilon 0.9951, rho 0.0274, nu 0.2341, failures 1e-07\n"
        "  left    epsilon 1.667 for one Gaussian mechanism\n"
        "\n"
        "popular, charged in this period\n"
        "  instance  INSTANCE\n"
        "  promise   (1, 1e-07)-DP for each user_id\n"
        "  spends    epsilon 0.8724, rho 0.02158, nu 0.2078, failures 5e-08\n"
        "  entered THEN\n"
        "\n"
        "rare, charged in this period\n"
        "  instance  INSTANCE\n"
        "  promise   (0.5, 1e-07)-DP for each user_id\n"
        "  spends    epsilon 0.432, rho 0.005815, nu 0.1078, failures 5e-08\n"
        "  entered THEN\n"
    )


def test_the_numbers_of_the_balance(tmp_path: Path) -> None:
    """As JSON, by the file and by the script."""
    file = script(tmp_path, sink("popular", options=", budget = people"))
    assert call("run", file).exit_code == 0
    by_file = json.loads(call("ledger", tmp_path / "people.ledger", "--json").stdout)
    by_script = json.loads(call("ledger", file, "--json", "--budget", "people").stdout)
    assert by_file == by_script
    assert by_file.keys() == {"id", "budget", "period", "spent", "left", "entries"}
    assert by_file["budget"] == {"epsilon": 2.0, "delta": 1e-6, "per_us": 30 * DAY}
    (entry,) = by_file["entries"]
    assert entry["charged"]
    assert entry["units"] == 1
    assert entry["spent"] == by_file["spent"]
    assert entry["spent"]["rho"] == pytest.approx(entry["squared_nu"] / 2)


def test_a_retired_pipeline_runs_no_more(tmp_path: Path) -> None:
    file = script(tmp_path, sink("popular"))
    assert call("run", file).exit_code == 0
    path = tmp_path / "people.ledger"
    instance = json.loads(call("ledger", path, "--json").stdout)["entries"][0]["instance"]
    shown = call("ledger", path, "--retire", instance)
    assert shown.exit_code == 0
    assert "retired   2026-11-30 00:53:20 UTC" in shown.stdout
    assert "popular, charged in this period" in shown.stdout
    refused = call("run", file)
    assert refused.exit_code == 1
    assert f"The instance {instance} of popular was retired from the ledger" in refused.stderr
    unknown = call("ledger", path, "--retire", "f" * 32)
    assert unknown.exit_code == 1
    assert f"The ledger has no instance '{'f' * 32}'. Give one" in unknown.stderr


def test_a_retirement_is_after_the_lock_was_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Triggers may have run meanwhile."""
    assert call("run", script(tmp_path, sink("popular"))).exit_code == 0
    path = tmp_path / "people.ledger"
    instance = json.loads(call("ledger", path, "--json").stdout)["entries"][0]["instance"]
    real = LedgerFile.update

    def waited(self: LedgerFile, change: Change) -> None:
        monkeypatch.setattr(time, "time_ns", lambda: (NOW + DAY) * 1000)
        real(self, change)

    monkeypatch.setattr(LedgerFile, "update", waited)
    shown = call("ledger", path, "--retire", instance).stdout
    assert "retired   2026-12-01 00:53:20 UTC" in shown


def test_what_does_not_fit_is_refused(tmp_path: Path) -> None:
    """Before any sink of the script is created."""
    file = script(tmp_path, sink("popular"), sink("rare", 3))
    ran = call("run", file)
    assert ran.exit_code == 1
    assert ran.stderr == (
        "rare does not fit the budget of (2, 1e-06): got (3, 1e-07), where epsilon 1.745 is left"
        " for one Gaussian mechanism at delta 1e-06. rare was not entered. The largest epsilon that"
        " fits, with the same delta and options, is 1.981.\n"
    )
    assert not (tmp_path / "people.ledger").exists()
    assert not (tmp_path / "views.state").exists()
    assert call("run", script(tmp_path, sink("popular"))).exit_code == 0
    file = script(tmp_path, sink("more", 0.01), sink("popular"), sink("rare", 3))
    assert "rare does not fit the budget" in call("run", file).stderr
    assert [path.name for path in (tmp_path / "views.state").iterdir()] == ["popular"]
    file = script(tmp_path, sink("popular"), sink("rare", 1.981))
    assert call("run", file).exit_code == 0


def test_explain_says_what_would_be_entered_and_enters_nothing(tmp_path: Path) -> None:
    file = script(tmp_path, sink("popular"), sink("rare", 3), sink("free", options=""))
    before = sorted(path.name for path in tmp_path.iterdir())
    said = call("explain", file).stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    assert said.rstrip().splitlines()[-4:] == [
        f"The ledger of the budget people is {tmp_path}/people.ledger, which does not exist yet: a"
        " run makes it.",
        "A new pipeline popular would enter nu^2 = 0.04316 and failures of 5e-08 in the budget"
        " people. Left would be epsilon 1.745 for one Gaussian mechanism. Nothing was entered.",
        "A new pipeline rare would be refused. rare does not fit the budget of (2, 1e-06): got"
        " (3, 1e-07), where epsilon 1.745 is left for one Gaussian mechanism at delta 1e-06."
        " rare was not entered. The largest epsilon that fits, with the same delta and options, is"
        " 1.981.",
        "WARNING: no budget bounds what free would spend.",
    ]
    numbers = json.loads(call("explain", file, "--json").stdout)["sinks"]
    assert numbers["popular"]["budget"]["refused"] is None
    assert numbers["popular"]["budget"]["left"] == pytest.approx(1.745, abs=1e-3)
    assert numbers["rare"]["budget"]["refused"] is not None
    assert numbers["popular"]["budget"]["exists"] is False
    assert "budget" not in numbers["free"]
    assert call("run", script(tmp_path, sink("popular"), name="other")).exit_code == 0
    assert f"people is {tmp_path}/people.ledger.\n" in call("explain", file).stdout


def test_explain_goes_on_without_the_ledger(tmp_path: Path) -> None:
    """It says why the ledger was not read."""
    file = script(tmp_path, sink("popular"))
    (tmp_path / "people.ledger").write_text("{}")
    shown = call("explain", file)
    assert shown.exit_code == 0, shown.stderr
    where = f"The ledger {tmp_path}/people.ledger is damaged"
    assert f"{tmp_path}/people.ledger. The ledger was not read: {where}" in shown.stdout
    assert shown.stdout.endswith("failures of 5e-08 in the budget people. Nothing was entered.\n")
    budget = json.loads(call("explain", file, "--json").stdout)["budget"]
    assert budget["not_read"].startswith(where)
    assert budget["exists"] is budget["left"] is budget["refused"] is None
    assert budget["squared_nu"] > 0
    file = script(tmp_path, sink("popular"), where="path = '${NOWHERE}'")
    assert "The ledger was not read: An option refers to ${NOWHERE}" in call("explain", file).stdout


def test_explain_counts_units(tmp_path: Path) -> None:
    hourly = sink("popular", 0.5, ", budget = people, privacy_unit_period = INTERVAL 1 HOUR")
    said = call("explain", script(tmp_path, hourly)).stdout
    assert "failures of 1e-07, for 2 units in each ledger period in the budget people" in said


def test_which_ledger(tmp_path: Path) -> None:
    """What cannot be found is said, and nothing is made."""
    file = script(tmp_path, sink("popular"))
    absent = call("ledger", file)
    assert absent.exit_code == 1
    assert f"There is no ledger {tmp_path}/people.ledger yet." in absent.stderr
    assert not (tmp_path / "people.ledger").exists()
    assert call("ledger", tmp_path / "people.ledger").exit_code == 2
    assert call("run", file).exit_code == 0
    other = call("ledger", file, "--budget", "persons")
    assert other.exit_code == 1
    assert "Budgets of the script: people; got 'persons'. Give one with --budget." in other.stderr
    pointless = call("ledger", tmp_path / "people.ledger", "--budget", "people")
    assert pointless.exit_code == 1
    assert "--budget people goes with a script" in pointless.stderr
    changed = file.read_text().replace("epsilon = 2,", "epsilon = 3,", 1)
    file.write_text(changed)
    assert "was made for (epsilon = 2.0" in call("ledger", file).stderr


def test_a_ledger_without_periods(tmp_path: Path) -> None:
    file = script(tmp_path, sink("popular"))
    file.write_text(file.read_text().replace(", per = INTERVAL 30 DAYS", ""))
    assert call("run", file).exit_code == 0
    lines = call("ledger", tmp_path / "people.ledger").stdout.splitlines()
    assert lines[1] == "  budget  (2, 1e-06)-DP for each user_id"
    assert "period" not in lines[2]


def test_a_ledger_in_a_database(tmp_path: Path, server: Cluster) -> None:
    """It is named by the script; the password stays there."""
    where = f"connector = 'postgres', dsn = {in_sql(server.dsn)}, table = 'public.people'"
    file = script(tmp_path, sink("popular"), where=where)
    assert "in the budget people. Left would be epsilon 1.745" in call("explain", file).stdout
    assert server.run("SELECT to_regclass('people') IS NULL") == [(True,)]
    ran = call("run", file)
    assert "budget people, ledger public.people, which did not exist and was made" in ran.stderr
    shown = call("ledger", file)
    assert shown.stdout.startswith(
        "public.people\n  budget  (2, 1e-06)-DP for each user_id in each"
    )
    again = script(tmp_path, sink("popular", 3), name="again", where=where)
    assert "does not fit the budget" in call("run", again).stderr
