"""What the tests run in a process of its own, which imports it by name."""

from __future__ import annotations

import os
import signal

from dpsqlp.errors import PlanError
from dpsqlp.experiments.subprocesses import OnProgress, peak_memory_bytes


def count(size: int, on_progress: OnProgress) -> int:
    for done in range(1, size + 1):
        on_progress(done, size)
    return os.getpid()


def refuse(on_progress: OnProgress) -> None:
    raise PlanError("It cannot be promised.")


def vanish(on_progress: OnProgress) -> None:
    os._exit(9)


def interrupted(on_progress: OnProgress) -> str:
    os.kill(os.getpid(), signal.SIGINT)
    return "went on"


def peak(on_progress: OnProgress) -> int:
    return peak_memory_bytes()
