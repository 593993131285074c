"""Processes on this machine: drivers, a standalone cluster, a Connect server."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyspark

from support.ports import free_ports
from support.processes import WAIT_SECONDS, started

HOME = Path(pyspark.__file__).parent
DRIVER = Path(__file__).with_name("driver.py")
QUIET = {"spark.ui.enabled": "false", "spark.log.level": "ERROR", "spark.driver.memory": "1g"}


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
def logged(command: list[str], log: Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process whose errors, and output unless told otherwise, go to a log."""
    with (
        log.open("a") as file,
        started(
            command, stderr=file, text=True, env=environment(), **{"stdout": file} | options
        ) as process,
    ):
        yield process


class Driver:
    """A driver's process."""

    def __init__(self, stack: ExitStack, log: Path, **options: Any) -> None:
        options["conf"] = QUIET | options.get("conf", {})
        if "remote" in options:
            options["conf"] = {}
        self.process = stack.enter_context(
            logged(
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
    limit = time.monotonic() + WAIT_SECONDS
    while True:
        with socket.socket() as trying:
            if trying.connect_ex(("127.0.0.1", port)) == 0:
                return
        assert process.poll() is None, log.read_text()[-3000:]
        assert time.monotonic() < limit, log.read_text()[-3000:]
        time.sleep(0.1)


@contextmanager
def cluster(folder: Path) -> Iterator[tuple[str, list[int]]]:
    """A master and two workers with a core each, which are two machines to Spark."""
    run, (port,) = str(HOME / "bin" / "spark-class"), free_ports(1)
    deploy, log = "org.apache.spark.deploy", folder / "cluster.log"
    with ExitStack() as stack:
        at = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", "0"]
        master = stack.enter_context(logged([run, f"{deploy}.master.Master", *at], log))
        wait_for(port, master, log)
        url, workers = f"spark://127.0.0.1:{port}", []
        for number in (1, 2):
            at = ["--host", f"127.0.0.{number}", "--webui-port", "0", "--cores", "1"]
            at += ["--memory", "1g", "--work-dir", str(folder / f"work{number}"), url]
            worker = stack.enter_context(logged([run, f"{deploy}.worker.Worker", *at], log))
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
    with logged([*command, "--class", name, "spark-internal"], log) as server:
        wait_for(port, server, log)
        yield f"sc://127.0.0.1:{port}"
