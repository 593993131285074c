"""The session that `dpsqlp run --engine spark` starts."""

from __future__ import annotations

import subprocess
import sys

import pytest

from spark.servers import environment
from support.processes import WAIT_SECONDS, started

pytestmark = pytest.mark.needs("java")
PROGRAM = """
import signal
from dpsqlp.engines.spark.session import start_session
before = signal.getsignal(signal.SIGINT)
session = start_session("local[1]")
print(signal.getsignal(signal.SIGINT) is before)
session.stop()
"""


def test_ctrl_c_still_finishes_the_trigger() -> None:
    """Spark installs a handler of its own, which would end it half way."""
    command = [sys.executable, "-c", PROGRAM]
    with started(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment(), text=True
    ) as process:
        assert process.communicate(timeout=WAIT_SECONDS)[0] == "True\n"
