"""What the tests run in a process of its own, which imports it by name."""

from __future__ import annotations

import os
import signal

from dpsqlp.errors import PlanError
from dpsqlp.experiments.subprocesses import Tell, peak_memory_bytes


def count(size: int, tell: Tell) -> int:
    for done in range(1, size + 1):
        tell(done, size)
    return os.getpid()


def refuse(tell: Tell) -> None:
    raise PlanError("It cannot be promised.")


def vanish(tell: Tell) -> None:
    os._exit(9)


def interrupted(tell: Tell) -> str:
    os.kill(os.getpid(), signal.SIGINT)
    return "went on"


def peak(tell: Tell) -> int:
    return peak_memory_bytes()
