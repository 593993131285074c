"""The workers and the cutting threads of a run."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

from dpsqlp.engines.runner import run_side_by_side


class NoMoreCuts:
    """The cuts of a source that is at its end. All of them are taken before the worker looks."""

    def __init__(self) -> None:
        self.news, self.ended, self.failure = threading.Event(), False, None

    def run(self, stop: threading.Event, report: Any) -> None:
        """Nothing is left to do."""


def test_cuts_that_end_before_the_worker_waits_for_one_end_the_run() -> None:
    cuts = NoMoreCuts()

    class Engine:
        schedule = SimpleNamespace(on_event_time=False)
        finished = False
        clock: Any = SimpleNamespace(now=lambda: 0)

        def __init__(self) -> None:
            self.cuts, self.clock.wait = cuts, self.never

        @property
        def ready(self) -> bool:
            cuts.ended = True  # the other thread, after the worker saw that the run is not done
            return False

        @staticmethod
        def never(until: int, news: threading.Event) -> None:
            raise AssertionError("the worker waits for a cut that does not come")

    engines: Any = {"popular": Engine()}
    run_side_by_side(engines, threading.Event(), lambda name, event: None)
