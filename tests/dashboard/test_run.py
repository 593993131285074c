"""The dashboard of a run, and `dpsqlp serve`: how they start and stop."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest
from typer.testing import CliRunner

from dashboard.api_client import fetch
from dashboard.pipelines import ADDRESS, COMMAND, LIVE, SQL, live_run, write_events
from dpsqlp.cli import run
from dpsqlp.cli.app import app
from dpsqlp.dashboard import request_timeout, server
from dpsqlp.dashboard.attach import Dashboard
from dpsqlp.dashboard.server import Settings
from dpsqlp.dashboard.server_process import serve_in_subprocess
from dpsqlp.engines.script import open_engine
from dpsqlp.errors import PlanError
from dpsqlp.sql import compile_script
from support.pipelines import Collected
from support.processes import WAIT_SECONDS, descendants, kill, started, until

pytestmark = pytest.mark.slow


def reachable(address: str) -> bool:
    try:
        return fetch(f"{address}api/v1/health").status_code == 200
    except httpx2.TransportError:
        return False


def sink_of(address: str) -> dict[str, Any]:
    found: dict[str, Any] = fetch(f"{address}api/v1/health").json()["sinks"][0]
    return found


def test_a_run_serves_its_dashboard_while_it_lasts(tmp_path: Path) -> None:
    with live_run(tmp_path) as address:
        until(lambda: (sink_of(address)["last_trigger"] or 0) > 0)
        first = sink_of(address)["last_trigger"]
        until(lambda: sink_of(address)["last_trigger"] > first)
        assert sink_of(address)["status"] == "running"
        base = f"{address}api/v1/sinks/live"
        until(lambda: fetch(f"{base}/keys").json()["total"] > 0)
    assert not reachable(address)
    status = tmp_path / "live.state" / "live.releases" / "status.json"
    assert status.read_text() == '{"status": "stopped"}'


def test_a_run_asks_for_the_token_of_its_environment(tmp_path: Path) -> None:
    with live_run(tmp_path, DPSQLP_DASHBOARD_TOKEN="t") as address:
        health = f"{address}api/v1/health"
        until(lambda: fetch(health).status_code == 401)
        assert fetch(health, headers={"Authorization": "Bearer t"}).status_code == 200


def test_the_server_ends_when_its_run_is_killed(tmp_path: Path) -> None:
    code = (
        "import signal; from dpsqlp.dashboard.server_process import *\n"
        f"with serve_in_subprocess(Settings({str(tmp_path)!r}, port=0)) as address:\n"
        "    print(address, flush=True); signal.pause()"
    )
    (tmp_path / "x.releases").mkdir()
    command = [sys.executable, "-c", code]
    with started(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        address = parent.stdout.readline().strip()
        until(lambda: reachable(address))
        (page,) = descendants(parent.pid)
        parent.kill()
        parent.wait()
        try:
            until(lambda: not reachable(address))
        finally:
            kill(page)


def test_serve_prints_its_address_and_ends_at_a_signal(ran: Path, tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    for number, code in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        command = [*COMMAND, "serve", str(ran / "state"), "--port", "0"]
        with started(command, stderr=subprocess.PIPE, text=True, env=environment) as server:
            assert server.stderr is not None
            found = ADDRESS.search(server.stderr.readline())
            assert found is not None
            until(partial(reachable, found[0]))
            assert fetch(found[0]).headers["content-type"].startswith("text/html")
            with socket.create_connection(found[0].split("/")[2].split(":")) as raw:  # type: ignore[arg-type]
                raw.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000)
                raw.sendall(b"\r\n\r\n")
                assert raw.recv(100).startswith((b"HTTP/1.1 400", b"HTTP/1.1 431"))
            server.send_signal(number)
            assert server.wait(WAIT_SECONDS) == code
            assert list(tmp_path.iterdir()) == []  # copies of releases
            assert "Traceback" not in server.stderr.read()


def test_a_server_in_the_background_ignores_ctrl_c(ran: Path) -> None:
    """A shell makes background jobs ignore SIGINT. SIGTERM still ends them."""
    command = [*COMMAND, "serve", str(ran / "state"), "--port", "0"]
    with started(command, ignoring=True, stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr is not None
        found = ADDRESS.search(server.stderr.readline())
        assert found is not None
        until(lambda: reachable(found[0]))
        server.send_signal(signal.SIGINT)
        for _ in range(5):
            assert fetch(found[0]).status_code == 200
        server.send_signal(signal.SIGTERM)
        assert server.wait(WAIT_SECONDS) == 143


def test_serve_refuses_what_it_cannot_serve(ran: Path, tmp_path: Path) -> None:
    for words, said in (
        ((str(tmp_path),), "contains no releases"),
        ((str(ran / "state"), "--host", "0.0.0.0"), "Give a token"),
        ((str(ran / "state"), "--port", "1", "--host", "203.0.113.7", "--token", "t"), "--port"),
    ):
        answer = CliRunner().invoke(app, ["serve", *words])
        assert answer.exit_code == 1
        assert said in answer.stderr


def test_without_its_packages_the_dashboard_says_what_to_install(
    ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    answer = CliRunner().invoke(app, ["serve", str(ran / "state")])
    assert answer.exit_code == 1
    assert "pip install 'dpsqlp[dashboard]'" in answer.stderr


def test_a_failed_run_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error's type and text stay in the log."""
    write_events(tmp_path)
    (tmp_path / "views.sql").write_text(SQL.format(sink="connector = 'parquet', path = 'out'"))
    (tmp_path / "in" / "b.parquet").write_text("not Parquet: sensitive")
    answer = CliRunner().invoke(
        app, ["run", str(tmp_path / "views.sql"), "--dashboard", "--port", "0"]
    )
    assert answer.exit_code == 1
    statuses = list(tmp_path.rglob("status.json"))
    if statuses:  # it failed at a trigger, not before the first
        assert {path.read_text() for path in statuses} == {'{"status": "failed"}'}
    else:
        assert "b.parquet" in answer.stderr


def test_the_pipeline_has_priority_over_the_server(ran: Path) -> None:
    """The server has a higher niceness, in the same session: Linux does not compare niceness
    between sessions. It is in its own process group: Ctrl-C in a terminal is for the pipeline.
    """
    before = set(descendants(os.getpid()))
    with serve_in_subprocess(Settings(str(ran / "state"), port=0)):
        (page,) = set(descendants(os.getpid())) - before
        lower = min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)
        until(lambda: os.getpriority(os.PRIO_PROCESS, page) == lower)
        assert os.getsid(page) == os.getsid(0)
        assert os.getpgid(page) != os.getpgid(0)


def test_the_server_takes_neither_code_nor_passwords_from_its_surroundings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x.releases").mkdir()
    (tmp_path / "uvicorn.py").write_text("open('executed', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PGPASSWORD", "sensitive")
    with serve_in_subprocess(Settings(str(tmp_path), port=0, token="sensitive")) as address:
        until(lambda: fetch(address).status_code == 200)
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        assert children
        for child in children:
            assert b"sensitive" not in Path(f"/proc/{child}/environ").read_bytes()
    assert not (tmp_path / "executed").exists()


def test_a_token_that_is_set_but_empty_is_refused(
    ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator who sets the variable wants a token."""
    monkeypatch.setenv("DPSQLP_DASHBOARD_TOKEN", "")
    answer = CliRunner().invoke(app, ["serve", str(ran / "state"), "--port", "1"])
    assert "not empty" in answer.stderr
    with pytest.raises(PlanError, match="not empty"), Dashboard(ran / "state").serve({}):
        pass


def test_a_connection_without_a_request_is_closed(
    ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The timeout applies to the first and to later requests of a connection."""
    made: list[request_timeout.TimeoutProtocol] = []

    class Seen(request_timeout.TimeoutProtocol):
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            made.append(self)

    monkeypatch.setattr(request_timeout, "TimeoutProtocol", Seen)
    stop = threading.Event()
    request = b"HEAD / HTTP/1.1\r\nHost: localhost\r\n"
    settings = Settings(str(ran / "state"), port=0)
    with server.listen(settings) as bound:
        thread = threading.Thread(
            target=server.serve, args=(settings, bound), kwargs={"stop": stop}
        )
        thread.start()
        where = bound.getsockname()
        try:
            fetch(server.address(bound))  # it is up
            with socket.create_connection(where, timeout=WAIT_SECONDS) as raw:
                for _ in range(2):
                    raw.sendall(request + b"\r\n")
                    assert raw.recv(1 << 16).startswith(b"HTTP/1.1 200")
                    until(lambda: made[-1]._deadline is None)  # the deadline is cancelled
            monkeypatch.setattr(request_timeout, "HEAD_SECONDS", 0.5)
            for before, sent in ((b"", b""), (b"", request), (request + b"\r\n", request)):
                with socket.create_connection(where, timeout=WAIT_SECONDS) as raw:
                    if before:
                        raw.sendall(before)
                        assert raw.recv(1 << 16).startswith(b"HTTP/1.1 200")
                    raw.sendall(sent)
                    while raw.recv(1 << 16):  # until it is closed
                        pass
        finally:
            stop.set()
            thread.join()


def test_the_command_to_resume_is_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "live.sql").write_text(LIVE)
    command = ["run", str(tmp_path / "live.sql"), "--dashboard", "--port", "0", "--threads", "1"]
    monkeypatch.setattr("sys.argv", ["/bin/dpsqlp", *command])
    monkeypatch.setattr(run, "_stay", lambda log, address, stop: None)
    answer = CliRunner().invoke(app, command, input="")
    assert f"dpsqlp {' '.join(command)}" in answer.stderr


def test_the_page_stays_up_after_a_replay_until_ctrl_c(tmp_path: Path) -> None:
    """The run is over: its status says so, its state is free, and its exit code is 0."""
    write_events(tmp_path)
    (tmp_path / "views.sql").write_text(SQL.format(sink="connector = 'parquet', path = 'out'"))
    said = tmp_path / "said"
    command = [*COMMAND, "run", str(tmp_path / "views.sql"), "--dashboard", "--port", "0"]
    with said.open("w") as log, started(command, stderr=log) as process:
        until(lambda: "stays up until Ctrl-C" in said.read_text(), process)
        address = ADDRESS.findall(said.read_text())[0]
        until(lambda: reachable(address), process)
        health = fetch(f"{address}api/v1/health").json()
        assert [sink["status"] for sink in health["sinks"]] == ["finished", "finished"]
        assert fetch(f"{address}api/v1/sinks/popular/keys").json()["total"] > 0
        engine = open_engine(
            compile_script((tmp_path / "views.sql").read_text(), folder=str(tmp_path)).sinks[0],
            state=tmp_path / "views.state",
            secret=tmp_path / "views.secret",
            folder=tmp_path,
            output=Collected(),
        )
        assert engine.finished
        engine.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_SECONDS) == 0
    assert not reachable(address)
    assert "To open the dashboard again" in said.read_text()
