"""A PostgreSQL server of the tests' own, to be used, killed and started again; and a bad line."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from support.ports import free_ports
from support.processes import WAIT_SECONDS

PASSWORD = "it's a \\ test"
SETTINGS = {
    "fsync": "off",  # processes are killed here, machines are not
    "max_connections": "40",
    "max_prepared_transactions": "4",
    "shared_buffers": "16MB",
    "timezone": "Asia/Kolkata",  # whatever a server is set to,
    "datestyle": "German",  # releases and records are the same
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "standard_conforming_strings": "off",
    "synchronous_commit": "off",
}


class Cluster:
    """A server with a folder and a port of its own."""

    def __init__(self, programs: Path) -> None:
        self._programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="dpsqlp-postgres-"))
        # The server refuses to be root.
        self._as: dict[str, Any] = {}
        if os.geteuid() == 0:
            self._as = {"user": "postgres", "group": "postgres", "extra_groups": []}
            shutil.chown(self.folder, "postgres", "postgres")
        password = self.folder / "password"
        password.write_text(PASSWORD)
        password.chmod(0o644)
        self._data = self.folder / "data"
        subprocess.run(
            [
                *(str(programs / "initdb"), "-D", str(self._data), "-U", "postgres", "-N"),
                *("-E", "UTF8", "--locale=C", "-A", "scram-sha-256", "--pwfile", str(password)),
            ],
            check=True,
            cwd=self.folder,
            capture_output=True,
            **self._as,
        )
        (self.port,) = free_ports(1)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def dsn(self) -> str:
        """What a script says."""
        password = PASSWORD.replace("\\", "\\\\").replace("'", "\\'")
        return (
            f"host=127.0.0.1 port={self.port} user=postgres password='{password}' dbname=postgres"
            " sslmode=disable gssencmode=disable"
        )

    def start(self) -> None:
        """Start it, and wait until it answers."""
        given = SETTINGS | {"port": str(self.port), "listen_addresses": "127.0.0.1"}
        given["unix_socket_directories"] = str(self.folder)
        options = [part for item in given.items() for part in ("-c", "=".join(item))]
        until = time.monotonic() + WAIT_SECONDS
        while True:
            if self._process is None or self._process.poll() is not None:
                with (self.folder / "log").open("ab") as log:
                    self._process = subprocess.Popen(
                        [str(self._programs / "postgres"), "-D", str(self._data), *options],
                        cwd=self.folder,
                        stdin=subprocess.DEVNULL,
                        stdout=log,
                        stderr=log,
                        start_new_session=True,
                        **self._as,
                    )
            with suppress(psycopg.OperationalError):
                psycopg.connect(self.dsn, connect_timeout=5).close()
                return
            assert time.monotonic() < until, (self.folder / "log").read_text()[-3000:]
            time.sleep(0.05)

    def kill(self) -> None:
        """End all its processes at once."""
        if self._process is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(WAIT_SECONDS)

    def signal(self, number: int) -> None:
        """Send a signal to all its processes."""
        assert self._process is not None
        for pid in (self._process.pid, *_children(self._process.pid)):
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def connect(self) -> psycopg.Connection[Any]:
        """A connection of a program's own, which may write."""
        options = (
            "-c DateStyle=ISO -c TimeZone=UTC -c default_transaction_read_only=off"
            " -c synchronous_commit=on"
        )
        connection = psycopg.connect(self.dsn, options=options)
        connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        return connection

    def run(self, sql: str) -> list[tuple[Any, ...]]:
        """Run a statement."""
        with self.connect() as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    def remove(self) -> None:
        """End it and leave nothing."""
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


def _children(pid: int) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    return [int(child) for child in text.split()]


class Line:
    """A line to a server that breaks when told: at the COMMIT of a client, before or after it."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listening.getsockname()[1])
        self.breaks: Iterator[str | None] = iter(())  # "before" or "after" the next COMMITs
        self.broke = 0
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """Take no more connections."""
        self._listening.close()

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(("127.0.0.1", self._port))
                ends = {"client": client, "server": server}
                state = {"answers": True}
                both = [
                    threading.Thread(target=way, args=(ends, state), daemon=True)
                    for way in (self._up, self._down)
                ]
                threading.Thread(target=_carry, args=(both, ends), daemon=True).start()

    def _up(self, ends: dict[str, socket.socket], state: dict[str, bool]) -> None:
        with suppress(OSError):
            while data := ends["client"].recv(1 << 16):
                if b"COMMIT\0" in data and (when := next(self.breaks, None)) is not None:
                    self.broke += 1
                    if when == "after":
                        state["answers"] = False
                        ends["server"].sendall(data)
                        return
                    break
                ends["server"].sendall(data)
        _hang_up(ends)

    def _down(self, ends: dict[str, socket.socket], state: dict[str, bool]) -> None:
        with suppress(OSError):
            while data := ends["server"].recv(1 << 16):
                if not state["answers"]:
                    break
                ends["client"].sendall(data)
        _hang_up(ends)


def _carry(both: list[threading.Thread], ends: dict[str, socket.socket]) -> None:
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    for end in ends.values():
        end.close()


def _hang_up(ends: dict[str, socket.socket]) -> None:
    for end in ends.values():
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextmanager
def bad_line(cluster: Cluster) -> Iterator[tuple[Line, str]]:
    """A line to a cluster, and the dsn that goes through it."""
    line = Line(cluster.port)
    try:
        yield line, cluster.dsn.replace(f"port={cluster.port}", f"port={line.port}")
    finally:
        line.close()


def in_sql(dsn: str) -> str:
    """A dsn as a text of a script."""
    return "'" + dsn.replace("'", "''") + "'"
