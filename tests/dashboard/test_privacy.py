"""The dashboard shows released values only. A deliberate break is known to fail each test."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path

import pytest

from dashboard.api_client import SINK, ask, client, everything, fetch
from dashboard.pipelines import live_run, replay, write_events
from state.sealed_storages import committed
from support.processes import until


def test_unreleased_data_changes_no_byte(tmp_path: Path) -> None:
    """Two runs of one instance, on streams that differ in keys that are not released."""
    (tmp_path / "secret").write_text("5" * 64)  # else one of 500 runs would release a rare key
    (tmp_path / "secret").chmod(0o600)
    write_events(tmp_path)
    state = replay(tmp_path, triggers=0, names=["popular"])
    shutil.copytree(state, tmp_path / "copy")
    write_events(tmp_path, ["/rare"])
    replay(tmp_path, names=["popular"])
    first = everything(client(state))
    sizes = {path.name: path.stat().st_size for path in state.rglob("*") if path.is_file()}
    shutil.rmtree(state)
    shutil.copytree(tmp_path / "copy", state)
    write_events(tmp_path, [f"/rare/{n}" for n in range(500)])
    replay(tmp_path, names=["popular"])
    after = {path.name: path.stat().st_size for path in state.rglob("*") if path.is_file()}
    assert sizes != after  # there was something to show
    second = everything(client(state))
    assert len(first) > 100
    assert first == second


@pytest.mark.slow
def test_the_state_the_stream_and_the_secret_are_not_needed(ran: Path, tmp_path: Path) -> None:
    """Nothing but the folders of releases is read."""
    shutil.copytree(ran, tmp_path / "ran")
    before = everything(client(tmp_path / "ran" / "state"))
    for name in ("secret", "in", "out", "total", "state/popular", "state/total"):
        path = tmp_path / "ran" / name
        path.unlink() if path.is_file() else shutil.rmtree(path)
    assert everything(client(tmp_path / "ran" / "state")) == before


def test_nothing_of_the_instance_or_the_source_is_shown(ran: Path) -> None:
    kept = "".join(path.read_text() for path in (ran / "state" / "popular.releases").glob("*.json"))
    bodies = [body for _, body in everything(client(ran / "state")).values()]
    shown = kept + "".join(body.decode(errors="replace") for body in bodies)
    secret = (ran / "secret").read_text().strip()
    pipeline = json.loads(json.loads((ran / "state/popular/pipeline.json").read_text())["public"])
    for hidden in (
        pipeline["instance"],
        pipeline["secret_check"],
        committed(ran / "state/popular", bytes.fromhex(secret)).input_digest,
        secret,
        "/rare",
        "a.parquet",
        str(ran),
    ):
        assert hidden not in shown


@pytest.mark.slow
def test_operator_metrics_are_off(ran: Path, tmp_path: Path) -> None:
    """Also where a run has written them."""
    shutil.copytree(ran, tmp_path / "ran")
    state = tmp_path / "ran" / "state"
    body = {"trigger": 1, "records": 987_654, "records_per_second": 5.0, "lag_seconds": None}
    body |= {"trigger_seconds": 0.25, "state_bytes": 123_456}
    (state / "popular" / "operator.json").write_text(json.dumps(body))
    asked = client(state)
    assert "987654" not in str(everything(asked))
    assert "not_private" not in asked.get("/metrics").text
    assert asked.get(f"{SINK}/operator").status_code == 404
    assert "operator" not in str(ask(asked, "/openapi.json")["paths"])
    assert ask(asked, "/api/v1/health")["operator_metrics"] is False

    asked = client(state, operator=True)
    assert ask(asked, f"{SINK}/operator") == {"not_private": True, **body}
    lines = [line for line in asked.get("/metrics").text.splitlines() if "operator" in line]
    names = {line.split("{")[0] for line in lines if not line.startswith("#")}
    assert names == {
        f"dpsqlp_operator_{name}_not_private"
        for name in ("records", "records_per_second", "trigger_seconds", "state_bytes")
    }
    assert all("NOT PRIVATE" in line for line in lines if line.startswith("# HELP"))
    everywhere_else = everything(asked)
    del everywhere_else["/metrics"]
    assert "987654" not in str(everywhere_else)


def test_an_error_is_logged_without_what_was_asked(
    ran: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(ran / "state" / "popular.releases", tmp_path / "popular.releases")
    asked = client(tmp_path / "popular.releases")
    newest = max((tmp_path / "popular.releases").glob("*.parquet"))
    newest.write_bytes(b"damaged")
    answers = [asked.get(f"{SINK}/keys?search=sensitive")]
    shutil.rmtree(tmp_path / "popular.releases")
    answers.append(asked.get(f"{SINK}/keys?search=sensitive"))
    assert [answer.status_code for answer in answers] == [200, 500]
    printed = "".join(capfd.readouterr())
    assert printed.count("The dashboard skips") == 1
    assert printed.count("The dashboard failed: FileNotFoundError") == 1
    for text in ("sensitive", str(tmp_path), "damaged", "Traceback"):
        assert text not in printed + answers[0].text + answers[1].text


def has_released(health: str) -> bool:
    return fetch(health).json()["sinks"][0]["last_trigger"] is not None


def has_counted(operator: str) -> bool:
    return bool(fetch(operator).json().get("records", 0) > 0)


@pytest.mark.slow
def test_a_run_writes_operator_metrics_only_when_asked(tmp_path: Path) -> None:
    for options, found in (((), 404), (("--operator-metrics",), 200)):
        folder = tmp_path / str(found)
        folder.mkdir()
        with live_run(folder, *options) as address:
            health, operator = f"{address}api/v1/health", f"{address}api/v1/sinks/live/operator"
            until(partial(has_released, health))
            if found == 200:  # written just after the release
                until(partial(has_counted, operator))
            assert fetch(operator).status_code == found
        assert len(list(folder.rglob("operator.json"))) == (found == 200)
