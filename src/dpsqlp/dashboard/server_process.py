"""The server in a subprocess of a running pipeline.

The parent binds the socket, so that it reports a busy port and knows the address at once. The child
reads its settings, including the token, from standard input. It exits when standard input closes,
so it never outlives the parent.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict

from dpsqlp.dashboard.server import Settings, address, check_installed, listen, serve

_EXIT_SECONDS = 5
# The only environment variables of the child: it gets no password of a source or sink.
_INHERITED = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "TMPDIR", "HOME", "VIRTUAL_ENV")


@contextmanager
def serve_in_subprocess(settings: Settings) -> Iterator[str]:
    """Serve in a subprocess while the context lasts; yields the address."""
    check_installed()
    with listen(settings) as bound:
        child = subprocess.Popen(
            # -P keeps a uvicorn.py in the working directory from being imported.
            [
                sys.executable,
                "-P",
                "-c",
                "from dpsqlp.dashboard.server_process import main; main()",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _INHERITED if name in os.environ},
            pass_fds=[bound.fileno()],
            process_group=0,  # Ctrl-C interrupts the pipeline, which finishes its trigger
        )
        assert child.stdin is not None
        sent = asdict(settings) | {"descriptor": bound.fileno()}
        child.stdin.write(json.dumps(sent).encode() + b"\n")
        child.stdin.flush()
        url = address(bound)
    try:
        yield url
    finally:
        with suppress(OSError):
            child.stdin.close()
        try:
            child.wait(_EXIT_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def main() -> None:
    """The entry point of the child."""
    sent = json.loads(sys.stdin.buffer.readline())
    bound = socket.socket(fileno=sent.pop("descriptor"))
    settings = Settings(**sent | {"names": tuple(sent["names"])})
    os.nice(10)  # the pipeline has priority
    stop = threading.Event()

    def stop_with_parent() -> None:
        sys.stdin.buffer.read()
        stop.set()

    threading.Thread(target=stop_with_parent, daemon=True).start()
    serve(settings, bound, stop=stop)
