"""Arrays as bytes, read by several threads."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from dpsqlp.state.arrays import pack, unpack


class Cycle:
    """Something for the collector to finalise, in Python, at any moment."""

    def __init__(self) -> None:
        self.me = self

    def __del__(self) -> None:
        for _ in range(50):
            pass


@pytest.fixture
def restless() -> Iterator[None]:
    """Threads and the collector take turns all the time."""
    thresholds, interval = gc.get_threshold(), sys.getswitchinterval()
    gc.set_threshold(20)
    sys.setswitchinterval(1e-6)
    yield
    gc.set_threshold(*thresholds)
    sys.setswitchinterval(interval)


@pytest.mark.usefixtures("restless")
def test_threads_read_headers_at_the_same_time() -> None:
    """CPython 3.11 raises SystemError when the collector interrupts its parser for another."""
    data = b"".join(bytes(part) for part in pack([np.zeros((5, 2), np.uint64)] * 50))
    failures: list[BaseException] = []

    def read() -> None:
        for _ in range(8):
            Cycle()
            try:
                unpack(data)
            except SystemError as error:
                failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
