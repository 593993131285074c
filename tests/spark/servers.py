"""Processes on this machine: drivers, a standalone cluster, a Connect server; and who to kill."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyspark

from ports import free_ports

HOME = Path(pyspark.__file__).parent
DRIVER = Path(__file__).with_name("driver.py")
QUIET = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.driver.memory": "1g"}
WAIT_SECONDS = 90


def environment() -> dict[str, str]:
    """Python workers run this Python and find the package and the tests."""
    added = {
        "SPARK_HOME": str(HOME),
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    return os.environ | added


@contextmanager
def started(command: list[str], log: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process with its own group, ended with all of it whatever happens."""
    with log.open("a") as file:
        process = subprocess.Popen(
            command,
            stderr=file,
            text=True,
            env=environment(),
            start_new_session=True,
            **{"stdout": file} | options,
        )
    try:
        yield process
    finally:
        below = descendants(process.pid)
        for pid in [process.pid, *below]:
            kill(pid)
        process.wait(WAIT_SECONDS)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()


class Driver:
    """A driver's process."""

    def __init__(self, stack: ExitStack, log: Path, **options: Any) -> None:
        options["conf"] = QUIET | options.get("conf", {})
        if "remote" in options:
            options["conf"] = {}
        self.process = stack.enter_context(
            started(
                [sys.executable, str(DRIVER), json.dumps(options)],
                log,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        )
        self._log = log
        assert self.answer() is None

    def ask(self, **command: Any) -> None:
        """Begin something."""
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        """What came of it."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        assert line, self._log.read_text()[-3000:]
        return json.loads(line)

    def step(self, folder: Path, name: str, now: int, triggers: int | None) -> None:
        """Run triggers of a pipeline."""
        self.ask(folder=str(folder), name=name, now=now, triggers=triggers)
        problem = self.answer()
        assert problem is None, problem


def wait_for(port: int, process: subprocess.Popen[str], log: Path) -> None:
    """Wait until a server listens."""
    for _ in range(WAIT_SECONDS * 10):
        with socket.socket() as trying:
            if trying.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, log.read_text()[-3000:]
        time.sleep(0.1)
    raise AssertionError(log.read_text()[-3000:])


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """A master and two workers with a core each, which are two machines to Spark."""
    run, (port,) = str(HOME / "bin" / "spark-class"), free_ports(1)
    deploy, log = "org.apache.spark.deploy", folder / "cluster.log"
    with ExitStack() as stack:
        at = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        master = stack.enter_context(started([run, f"{deploy}.master.Master", *at], log))
        wait_for(port, master, log)
        url, workers = f"spark://127.0.0.1:{port}", []
        for number in (1, 2):
            at = ["--host", f"127.0.0.{number}", "--webui-port", "0", "--cores", "1"]
            at += ["--memory", "1g", "--work-dir", str(folder / f"work{number}"), url]
            worker = stack.enter_context(started([run, f"{deploy}.worker.Worker", *at], log))
            workers.append(worker.pid)
        yield url, workers


@contextmanager
def connect_server(folder: Path) -> Iterator[str]:
    """A Connect server with Spark in it."""
    (port,), log = free_ports(1), folder / "connect.log"
    name = "org.apache.spark.sql.connect.service.SparkConnectServer"
    conf = QUIET | {
        "spark.connect.grpc.binding.address": "127.0.0.1",
        "spark.connect.grpc.binding.port": str(port),
    }
    settings = [part for item in conf.items() for part in ("--conf", "=".join(item))]
    command = [str(HOME / "bin" / "spark-submit"), "--master", "local[2,4]", *settings]
    with started([*command, "--class", name, "spark-internal"], log) as server:
        wait_for(port, server, log)
        yield f"sc://127.0.0.1:{port}"


def descendants(pid: int, named: str = "") -> list[int]:
    """The processes below one, those whose command says `named`."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
    below, found = {pid}, []
    while new := {child for child, parent in parents.items() if parent in below} - below:
        below |= new
    for child in below - {pid}:
        try:
            command = Path(f"/proc/{child}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if named in command:
            found.append(child)
    return sorted(found)


def kill(pid: int) -> None:
    """End a process now, if it is there."""
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
