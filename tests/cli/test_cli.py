"""The command line: what it runs, says, refuses, and how it ends."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import typer.main
from typer.testing import CliRunner

import dpsqlp
import dpsqlp.sql
from dpsqlp.cli.app import app
from dpsqlp.engines.script import open_spark_engine
from dpsqlp.errors import PlanError
from dpsqlp.tuning import tune as tuning
from support.processes import WAIT_SECONDS, started, until

COMMAND = [sys.executable, "-c", "from dpsqlp.cli import main; main()"]
OPTIONS = (
    "epsilon = 4, delta = 1e-6, privacy_unit_column = user_id, max_rows_contributed = 1,"
    " mechanism = 'tree'"
)
SELECT = f"SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS ({OPTIONS}) url, COUNT(*) AS views"
SOURCE = "CREATE SOURCE page_views (url TEXT, user_id BIGINT, ts TIMESTAMP)"
FILES = f"{SOURCE} WITH (connector = 'files', path = 'events/*.parquet');\n"
REPLAY = (
    "GROUP BY url, TUMBLE(ts, INTERVAL 1 HOUR)\nEMIT EVERY INTERVAL 10 MINUTES ON EVENT TIME"
    " FROM TIMESTAMP '2024-01-01 00:00:00' TO TIMESTAMP '2024-01-01 01:00:00';\n"
)
POPULAR = f"CREATE SINK popular WITH (connector = 'parquet', path = 'out') AS\n{SELECT}"
SCRIPT = f"{FILES}{POPULAR}\nFROM page_views\n{REPLAY}"
LIVE = (
    f"{SOURCE} WITH (connector = 'stdin');\n{POPULAR}\nFROM page_views GROUP BY url"
    " EMIT EVERY INTERVAL 1 SECOND FOR 1000 TRIGGERS;\n"
)
USERS = 200


def write_events(folder: Path, rare: list[str]) -> None:
    """A page of many users; rare pages, each of a user of its own."""
    urls = ["/home"] * USERS + rare
    moment = datetime(2024, 1, 1, 0, 5)
    table = pa.table(
        {
            "url": urls,
            "user_id": list(range(len(urls))),
            "ts": pa.array([moment] * len(urls), pa.timestamp("us")),
        }
    )
    (folder / "events").mkdir(exist_ok=True)
    pq.write_table(table, folder / "events" / "a.parquet")


@pytest.fixture
def script(tmp_path: Path) -> Path:
    write_events(tmp_path, ["/rare"])
    file = tmp_path / "views.sql"
    file.write_text(SCRIPT)
    return file


def call(*words: str | Path) -> Any:
    return CliRunner().invoke(app, [str(word) for word in words])


def released(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted((folder / "out").glob("*.parquet"))}


def test_every_command_and_option_has_help() -> None:
    root: Any = typer.main.get_command(app)
    assert root.help
    assert set(root.commands) == {
        *("run", "explain", "tune", "preview", "inspect", "ledger", "serve", "demo", "experiment"),
    }
    experiments = {f"experiment {n}": c for n, c in root.commands["experiment"].commands.items()}
    commands = root.commands | experiments
    for name, command in commands.items():
        assert command.help, name
        assert "dpsqlp " + name in command.epilog, f"{name} has no example"
    for command in (root, *commands.values()):
        for parameter in command.params:
            assert getattr(parameter, "help", None), f"{command.name} {parameter.name}"


def test_a_log_of_json_objects(script: Path) -> None:
    """Every line on standard error is an object, also of a refusal; none depends on records."""
    ran = call("run", script, "--log", "json")
    lines = [json.loads(line) for line in ran.stderr.splitlines()]
    assert ran.exit_code == 0
    assert {line["event"] for line in lines} == {"open", "trigger", "summary"}
    assert all({"time", "event", "message"} <= line.keys() for line in lines)
    triggers = [line for line in lines if line["event"] == "trigger"]
    known = {"time", "event", "message", "sink", "trigger", "rows"}
    assert all(line.keys() == known for line in triggers)
    assert len(triggers) == len(released(script.parent))
    script.write_text(SCRIPT.replace("COUNT(*)", "MEDIAN(dwell)"))
    refused = call("run", script, "--log", "json")
    assert refused.exit_code == 1
    assert json.loads(refused.stderr)["event"] == "refused"


def test_help_names_the_exit_codes_and_loads_nothing_heavy() -> None:
    answer = call("--help")
    assert answer.exit_code == 0
    assert "0 done, 1 refused, 2 wrong usage, 130 interrupted" in answer.output
    code = (
        "import sys, dpsqlp.cli.app;"
        "print([m for m in ('numba', 'pyarrow', 'scipy', 'duckdb') if m in sys.modules])"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"
    assert call("--version").output.startswith("dpsqlp ")


def test_run_says_who_is_protected(script: Path) -> None:
    """A period is part of the promise: without it the line would say more than is kept."""
    text = script.read_text()
    script.write_text(text.replace("= user_id", "= user_id, privacy_unit_period = INTERVAL 1 DAY"))
    assert script.read_text() != text
    said = "popular begins: (4, 1e-06)-DP for each user_id in each period of 1 day;"
    assert said in call("run", script).stderr


def test_run_replays_files_and_says_what_it_promises(script: Path) -> None:
    answer = call("run", script)
    assert answer.exit_code == 0, answer.output
    assert "popular begins: (4, 1e-06)-DP for each user_id" in answer.stderr
    assert "popular: ran 6 triggers, released 6 rows" in answer.stderr
    assert "records/s" not in answer.stderr
    assert answer.stdout == ""
    files = released(script.parent)
    assert len(files) == 6
    last = pq.read_table(script.parent / "out" / list(files)[-1])
    assert last.column("url").to_pylist() == ["/home"]
    assert last.column("final").to_pylist() == [True]
    assert (script.parent / "views.secret").stat().st_mode & 0o777 == 0o600
    again = call("run", script)
    assert again.exit_code == 0
    assert "ran 0 triggers" in again.stderr
    assert released(script.parent) == files


def test_metrics_are_shown_only_when_asked_for(script: Path) -> None:
    assert "records/s" in call("run", script, "--metrics").stderr


def test_a_stopped_run_goes_on_where_it_was(script: Path) -> None:
    with dpsqlp.open(script) as stream:
        stream.trigger()
        stream.trigger()
    answer = call("run", script)
    assert answer.exit_code == 0
    assert "popular resumes" in answer.stderr
    assert "ran 4 triggers" in answer.stderr
    assert len(released(script.parent)) == 6


def test_several_sinks_run_together_and_say_what_they_add_up_to(script: Path) -> None:
    second = POPULAR.replace("popular", "second").replace("'out'", "'out2'")
    script.write_text(SCRIPT + f"{second}\nFROM page_views\n{REPLAY}")
    answer = call("run", script)
    assert answer.exit_code == 0, answer.output
    assert "Together the sinks popular, second over page_views are (" in answer.stderr
    for folder in ("out", "out2"):
        assert len(list((script.parent / folder).iterdir())) >= 6
    text = call("inspect", script.with_suffix(".state")).stdout
    assert "Together popular, second are (" in text
    numbers = json.loads(call("explain", script, "--json").stdout)
    assert set(numbers["sinks"]) == {"popular", "second"}
    assert numbers["together"].startswith("Together")


def test_refused_sql_shows_line_column_and_snippet(script: Path) -> None:
    script.write_text(SCRIPT.replace("delta", "dleta"))
    for command in ("run", "explain"):
        answer = call(command, script)
        assert answer.exit_code == 1
        assert "Line 3, column 56: There is no option dleta." in answer.stderr
        assert "^^^^^" in answer.stderr
        assert "Did you mean delta?" in answer.stderr
        assert "Traceback" not in answer.stderr
    assert not script.with_suffix(".state").exists()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "connector = 'files', path = 'events/*.parquet'",
            "connector = 'python'",
            "fed from Python",
        ),
        ("WITH (connector = 'parquet', path = 'out')", "", "has no connector"),
        ("connector = 'parquet'", "connector = 'carrier pigeon'", "parquet, jsonl"),
    ],
)
def test_what_cannot_run_is_refused(script: Path, old: str, new: str, message: str) -> None:
    text = SCRIPT.replace(old, new)
    if "python" in new:
        text = (
            text.partition("GROUP BY")[0] + "GROUP BY url EMIT EVERY INTERVAL 1 DAY FOR 2 TRIGGERS"
        )
    script.write_text(text)
    answer = call("run", script)
    assert answer.exit_code == 1
    assert message in answer.stderr


def test_standard_input_is_read_by_one_sink(tmp_path: Path) -> None:
    file = tmp_path / "live.sql"
    file.write_text(LIVE + LIVE.partition(";\n")[2].replace("popular", "second"))
    answer = call("run", file)
    assert answer.exit_code == 1
    assert "only once" in answer.stderr


def test_wrong_usage_is_code_two(tmp_path: Path) -> None:
    assert call("run", tmp_path / "missing.sql").exit_code == 2
    assert call("run").exit_code == 2
    assert call("fly").exit_code == 2


def test_a_lost_secret_and_a_foreign_folder_are_refused(script: Path, tmp_path: Path) -> None:
    assert call("run", script).exit_code == 0
    script.with_suffix(".secret").unlink()
    answer = call("run", script)
    assert answer.exit_code == 1
    assert "Bring it back" in answer.stderr
    (tmp_path / "empty").mkdir()
    answer = call("inspect", tmp_path / "empty")
    assert answer.exit_code == 1
    assert "holds no state" in answer.stderr


def test_explain_prints_words_or_every_number(script: Path) -> None:
    words = call("explain", script)
    assert words.exit_code == 0
    assert "(4, 1e-06)-differentially private for each user_id" in words.stdout
    numbers = json.loads(call("explain", script, "--json").stdout)
    top = {"epsilon", "delta", "nu", "triggers", "unit", "caps", "selection", "columns"}
    assert top <= set(numbers)
    caps = {"max_contribution_norm", "max_rows_contributed", "max_rows_per_group"}
    assert caps | {"max_selections_contributed"} == set(numbers["caps"])
    selection = {"mechanism", "sensitivity", "sigma", "delta_gaussian", "delta_threshold"}
    assert selection <= set(numbers["selection"])
    assert numbers["triggers"] == 6 == len(numbers["selection"]["thresholds"])
    assert all(isinstance(threshold, int) for threshold in numbers["selection"]["thresholds"])
    (column,) = numbers["columns"]
    assert {"name", "mechanism", "sensitivity", "sigma", "quantum"} <= set(column)
    assert len(column["standard_deviation"]) == 6
    assert not script.with_suffix(".state").exists()


def test_inspect_depends_on_released_data_alone(script: Path) -> None:
    """Two runs of one instance whose streams differ in keys that are not released."""
    state, folder = script.with_suffix(".state"), script.parent
    dpsqlp.open(script).close()
    begun = call("inspect", state).stdout
    assert "no trigger has run" in begun
    shutil.copytree(state, folder / "copy")

    def inspected() -> str:
        assert call("run", script).exit_code == 0
        return str(call("inspect", state).stdout + call("inspect", state / "popular").stdout)

    first, files = inspected(), released(folder)
    shutil.rmtree(state)
    shutil.copytree(folder / "copy", state)
    write_events(folder, [f"/rare/{n}" for n in range(500)])
    second = inspected()
    assert released(folder) == files
    assert second == first
    assert "(4, 1e-06)-DP for each user_id" in first
    assert "6 triggers of 6" in first
    assert "1 closed, 0 open" in first
    assert "1 row" in first
    assert "rare" not in first


def test_inspect_verifies_with_the_secret_and_says_so_without(
    script: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it the public part is shown all the same; with it a changed one is refused."""
    state, secret = script.with_suffix(".state"), script.with_suffix(".secret")
    assert call("run", script).exit_code == 0
    verified = call("inspect", state).stdout
    assert "verified     with the secret" in verified
    assert call("inspect", state / "popular").stdout.startswith(verified.strip())
    secret.rename(script.parent / "elsewhere")
    unverified = call("inspect", state).stdout
    assert "verified     no: anybody who can write here could have changed it" in unverified
    assert unverified.splitlines()[:-1] == verified.splitlines()[:-1]
    named = ("--secret", script.parent / "elsewhere")
    assert call("inspect", state, *named).stdout == verified
    assert "is missing" in call("inspect", state, "--secret", secret).stderr
    monkeypatch.setenv("DPSQLP_SECRET", "ab" * 32)
    assert "The secret is not the one" in call("inspect", state).stderr
    monkeypatch.delenv("DPSQLP_SECRET")
    manifest = state / "popular" / "manifest.json"
    body = json.loads(manifest.read_text())
    public: dict[str, Any] = json.loads(body["public"])
    forged: list[dict[str, Any]] = [public | {"rows": 9999}, {}]
    for changed in forged:
        body["public"] = json.dumps(changed, sort_keys=True)
        manifest.write_text(json.dumps(body))
        answer = call("inspect", state, *named)
        assert answer.exit_code == 1
        assert "manifest.json is damaged, or was not written" in answer.stderr
    body["public"] = json.dumps(public | {"rows": 9999}, sort_keys=True)
    manifest.write_text(json.dumps(body))
    assert "9,999 rows" in call("inspect", state).stdout


def lines(start: int) -> bytes:
    return b"".join(
        json.dumps({"url": "/home", "user_id": user}).encode() + b"\n"
        for user in range(start, start + USERS)
    )


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_finishes_the_trigger_and_the_run_goes_on(number: int, tmp_path: Path) -> None:
    """A signal while standard input is open: 130, and the same command resumes."""
    file = tmp_path / "live.sql"
    file.write_text(LIVE)
    command, environment = [*COMMAND, "run", str(file)], {**os.environ, "PYTHONUNBUFFERED": "1"}
    with (
        (tmp_path / "said").open("wb") as log,
        started(command, stdin=subprocess.PIPE, stderr=log, env=environment) as process,
    ):
        assert process.stdin is not None
        process.stdin.write(lines(0))
        process.stdin.flush()
        until(lambda: any(pq.read_table(path).num_rows for path in complete(tmp_path)), process)
        process.send_signal(number)
        assert process.wait(WAIT_SECONDS) == 130
    said = (tmp_path / "said").read_text()
    assert f"To resume: dpsqlp run {file}" in said
    assert "Resend the standard input" in said
    assert "Traceback" not in said
    before = complete(tmp_path)

    resumed = subprocess.run(
        command, input=lines(USERS), capture_output=True, timeout=WAIT_SECONDS, check=False
    )
    assert resumed.returncode == 0, resumed.stderr.decode()
    assert b"popular resumes" in resumed.stderr
    assert b"Standard input has ended." in resumed.stderr
    after = complete(tmp_path)
    assert after[: len(before)] == before
    assert len(after) > len(before)
    (views,) = pq.read_table(after[-1]).column("views").to_pylist()
    assert abs(views - 2 * USERS) < 100


@pytest.mark.slow
def test_a_background_job_is_not_ended_by_ctrl_c(tmp_path: Path) -> None:
    """A shell has it ignore SIGINT, which is meant for the script in front. SIGTERM ends it."""
    file = tmp_path / "live.sql"
    file.write_text(LIVE)
    command = [*COMMAND, "run", str(file)]
    with started(
        command, ignoring=True, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        until(lambda: complete(tmp_path), process)
        process.send_signal(signal.SIGINT)
        seen = len(complete(tmp_path))
        until(lambda: len(complete(tmp_path)) > seen + 1, process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == 130


# Signals are blocked in the main thread, and so in those that it starts, but not in the first one.
ANOTHER_THREAD = """
import signal, threading
threading.Thread(target=threading.Event().wait, daemon=True).start()
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
from dpsqlp.cli import main
main()
"""


@pytest.mark.slow
def test_a_signal_that_another_thread_receives_ends_the_run(tmp_path: Path) -> None:
    """The system chooses the thread, rarely another than the main one, which then sleeps on."""
    file = tmp_path / "live.sql"
    file.write_text(LIVE)
    command = [sys.executable, "-c", ANOTHER_THREAD, "run", str(file)]
    with started(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        until(lambda: complete(tmp_path), process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_SECONDS) == 130


def complete(folder: Path) -> list[Path]:
    return sorted((folder / "out").glob("*.parquet"))


@pytest.mark.parametrize("command", ["run", "explain"])
def test_a_script_that_is_no_utf8_is_refused_and_a_mark_is_passed_over(
    command: str, script: Path
) -> None:
    text = script.read_bytes()
    script.write_bytes(b"-- gr\xf6\xdfe\n" + text)
    answer = call(command, script)
    assert (answer.exit_code, answer.exception.__class__) == (1, SystemExit)
    assert "not UTF-8. Save it as UTF-8" in answer.output
    script.write_bytes(b"\xef\xbb\xbf" + text)
    assert call(command, script).exit_code == 0


def test_an_expression_that_is_nested_too_deeply_is_refused(script: Path) -> None:
    deep = "(" * 300 + "1" + ")" * 300
    script.write_text(SCRIPT.replace("GROUP BY", f"WHERE {deep} = 1 GROUP BY", 1))
    answer = call("explain", script)
    assert (answer.exit_code, answer.exception.__class__) == (1, SystemExit)
    assert "nested too deeply" in answer.output


@pytest.mark.parametrize(
    ("option", "needed"),
    [
        (["--master", "local"], "--engine spark"),
        (["--shards", "4"], "--engine spark"),
        (["--port", "8000"], "--dashboard"),
        (["--operator-metrics"], "--dashboard"),
    ],
)
def test_an_option_that_would_do_nothing_is_refused(
    option: list[str], needed: str, script: Path
) -> None:
    answer = call("run", script, *option)
    assert answer.exit_code == 2
    assert f"{option[0]} goes with {needed}" in " ".join(answer.output.split())
    assert not script.with_suffix(".state").exists()


def test_a_folder_is_no_secret(script: Path, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    answer = call("run", script, "--secret", tmp_path / "folder")
    assert answer.exit_code == 1
    assert "is a folder. Give --secret a file" in " ".join(answer.output.split())


@pytest.mark.slow
def test_a_pipe_that_nobody_reads_is_said_so(tmp_path: Path) -> None:
    """And the last release comes again, to whoever reads then."""
    write_events(tmp_path, [])
    file = tmp_path / "views.sql"
    file.write_text(re.sub(r"connector = 'parquet', path = '\w+'", "connector = 'stdout'", SCRIPT))
    command = [*COMMAND, "run", str(file)]
    reading, writing = os.pipe()
    os.close(reading)
    ran = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ran.returncode, "Traceback" in ran.stderr) == (1, False)
    assert "Standard output was closed" in ran.stderr
    again = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(again.stdout.splitlines()[0])["url"] == "/home"


@pytest.mark.parametrize("engine", ["local", "spark"])
@pytest.mark.parametrize("state", ["s3://bucket/state", "gs://b", "file:///tmp/x", "hdfs://h/x"])
def test_a_store_is_no_folder(engine: str, state: str, script: Path) -> None:
    """A path would be made of it, on this machine."""
    if engine == "spark":
        (sink,) = dpsqlp.sql.compile_script(SCRIPT).sinks
        with pytest.raises(PlanError, match="address of a store"):
            open_spark_engine(
                None,  # type: ignore[arg-type]
                sink,
                state=Path(state),
                secret=Path("secret"),
                folder=Path(),
                shards=1,
            )
        return
    answer = call("run", script, "--state", state)
    assert answer.exit_code == 1
    assert "is the address of a store" in " ".join(answer.output.split())
    with pytest.raises(PlanError, match="address of a store"):
        dpsqlp.open(script, state=state)
    assert not Path(state).exists()


def test_a_run_begins_with_its_warnings(script: Path) -> None:
    script.write_text(SCRIPT.replace("epsilon = 4", "epsilon = 12"))
    answer = call("run", script, "--log", "json")
    assert answer.exit_code == 0
    said = [json.loads(line) for line in answer.stderr.splitlines()]
    assert [line["event"] for line in said[:2]] == ["open", "warning"]
    assert said[1]["message"].startswith("WARNING: epsilon = 12 is above 10.")
    assert said[1]["message"] in call("explain", script).stdout


TUNED = f"""{FILES}CREATE SINK popular WITH (connector = 'parquet', path = 'out') AS
SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 4, delta = 1e-6, privacy_unit_column = user_id, max_contribution_norm = 1)
  url, COUNT(*) AS views
FROM page_views
{REPLAY}"""


@pytest.fixture
def tuned(tmp_path: Path) -> Path:
    """A script to be tuned, beside a sample: users with four views each of one of three pages."""
    users = [user for user in range(3 * USERS) for _ in range(4)]
    begin = datetime(2024, 1, 1)
    table = pa.table(
        {
            "url": [f"/{user % 3}" for user in users],
            "user_id": users,
            "ts": pa.array([begin + timedelta(seconds=n) for n in range(len(users))]),
        }
    )
    pq.write_table(table, tmp_path / "sample.parquet")
    file = tmp_path / "tuned.sql"
    file.write_text(TUNED)
    return file


def test_tune_recommends_options(tuned: Path) -> None:
    """A clause to paste, tables, a picture, and what the figures do not show."""
    sample, page = str(tuned.parent / "sample.parquet"), tuned.parent / "page.html"
    words = ["tune", str(tuned), "--sample", sample, "--candidates", "8", "--epsilons", "2,8"]
    ran = CliRunner().invoke(app, [*words, "--intervals", "20 minutes", "--html", str(page)])
    assert ran.exit_code == 0, ran.output
    for shown in (
        "OPTIONS (epsilon = 4, delta = 1e-6",
        "Candidates by live",
        "The best candidate by epsilon",
        "The best candidate by interval",
        "outside the promise",
        "░",
    ):
        assert shown in ran.stdout
    assert "round 1 of 3" in ran.stderr
    assert page.read_text().startswith("<!doctype html>")
    assert tuned.read_text() == TUNED


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_tune_writes_the_options_alone(tuned: Path, mark: str) -> None:
    """With --write the clause changes; a byte order mark, line ends and the rest stay."""
    tuned.write_bytes((mark + TUNED.replace("\n", "\r\n")).encode())
    tuned.chmod(0o640)
    sample = str(tuned.parent / "sample.parquet")
    words = ["tune", str(tuned), "--sample", sample, "--candidates", "8", "--write", "--json"]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 0, ran.output
    clause = json.loads(ran.stdout)["recommended"]["clause"]
    text = tuned.read_bytes().decode()
    before, _, rest = TUNED.replace("\n", "\r\n").partition("OPTIONS (")
    after = rest.partition("max_contribution_norm = 1)")[2]
    assert text == mark + before + clause + after
    assert tuned.stat().st_mode & 0o777 == 0o640
    [sink] = dpsqlp.sql.compile_script(text.removeprefix("\ufeff")).sinks
    assert sink.query.caps.squared_norm > 1


def test_tune_keeps_edits_made_while_it_searched(
    tuned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """--write is refused, with the clause to paste."""
    search, edited = tuning.tune_query, TUNED + "-- edited\n"

    def edit_and_search(*args: Any, **options: Any) -> Any:
        tuned.write_text(edited)
        return search(*args, **options)

    monkeypatch.setattr(tuning, "tune_query", edit_and_search)
    sample = str(tuned.parent / "sample.parquet")
    words = ["tune", str(tuned), "--sample", sample, "--candidates", "8", "--write"]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 1, ran.output
    assert "has changed since the search began" in ran.stderr
    assert "OPTIONS (epsilon = 4, delta = 1e-6" in ran.stderr
    assert tuned.read_text() == edited


def test_preview_shows_noise_and_cap_bias(tuned: Path) -> None:
    """A norm of 1 keeps one of four views: the bias is three quarters, in no error bar."""
    words = ["preview", str(tuned), "--sample", str(tuned.parent / "sample.parquet")]
    ran = CliRunner().invoke(app, words)
    assert ran.exit_code == 0, ran.output
    assert "Errors of views by the number of rows of a group" in ran.stdout
    body = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert [row["views_truth"] for row in body["rows"]] == [4.0 * USERS] * 3
    assert [row["views_bias"] for row in body["rows"]] == [-3.0 * USERS] * 3
    assert body["figures"]["columns"][0]["coverage"] == 0.0


@pytest.mark.parametrize("command", ["tune", "preview"])
def test_tune_and_preview_refuse_in_words(command: str, script: Path, tuned: Path) -> None:
    """The query's own files, a sink that is not there, a sample that is not there."""
    own = str(tuned.parent / "events" / "a.parquet")
    sample = str(tuned.parent / "sample.parquet")
    for words, said in (
        (["--sample", own], "outside the promise"),
        (["--sample", "nowhere.csv"], "No file matches the sample"),
        (["--sample", sample, "--sink", "x"], "Give one with --sink."),
    ):
        ran = CliRunner().invoke(app, [command, str(tuned), *words])
        assert ran.exit_code == 1, ran.output
        assert said in ran.stderr


def test_an_interrupted_tune_ends_cleanly(tuned: Path) -> None:
    """Ctrl-C: exit code 130, no traceback, and the script as it was."""
    sample = str(tuned.parent / "sample.parquet")
    words = [*COMMAND, "tune", str(tuned), "--sample", sample, "--candidates", "4000", "--write"]
    with started(words, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("round 1"):
                break
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(WAIT_SECONDS) == 130
    assert "Interrupted." in rest
    assert "Traceback" not in rest
    assert tuned.read_text() == TUNED
