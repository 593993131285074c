"""Cuts by the clock: which records each trigger reads, decided at its grid time and durable then.

A thread of its own takes the cuts, and waits for nothing but the clock and the source. However long
a trigger takes, the cuts after it are taken at their own times, and a trigger that runs late reads
up to its own cut.

Privacy contract: the trigger of a record follows from the time at which the record arrived, never
from the time at which the worker is free. Otherwise one unit, with records that take long, would
move everybody's records to later triggers. A cut is durable before the next grid time, so a restart
does not move records either. A grid time has no cut only if no process ran, or if the source did
not answer before the next grid time: its trigger runs without records, and the next cut has them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from dpsqlp.engines.clock import Clock, TriggerGrid
from dpsqlp.errors import StateError, UnavailableError
from dpsqlp.sources.base import AnySource, GridTime
from dpsqlp.state.journal import Cut, Intent, Journal
from dpsqlp.state.offsets import Offset, OffsetRange

_PAUSE_US, _PAUSE_US_MAX = 250_000, 10_000_000


class Cuts:
    """The cuts of one pipeline: those that wait for their triggers, and the next cut's offset."""

    def __init__(
        self,
        journal: Journal,
        source: AnySource,
        schedule: TriggerGrid,
        clock: Clock,
        pending: Intent | None,
    ) -> None:
        """Load the cuts that wait. Refused if one is missing between them."""
        self._journal, self._source = journal, source
        self._schedule, self._clock = schedule, clock
        self.news = threading.Event()  # set when a trigger is decided, and when no more will be
        self.failure: BaseException | None = None  # why no more cuts are taken
        self.ended = False  # the source has no more records
        committed = journal.manifest
        self._offset: Offset = (
            source.initial_offset() if committed.trigger is None else committed.offset
        )
        reached = schedule.first - 1 if committed.trigger is None else committed.trigger
        if pending is not None:
            self._offset = source.next_offset(self._offset, pending.offsets)
            reached = pending.trigger
        self._waiting: dict[int, OffsetRange] = {}
        self._previous = reached  # the trigger of the last cut, or one that has run since
        for cut in journal.cuts():
            if cut.trigger > reached:
                self._follow(cut)
            elif pending is None or cut.trigger < pending.trigger:
                journal.drop_cut(cut.trigger)
        self.decided = max(reached, *self._waiting) if self._waiting else reached

    def _follow(self, cut: Cut) -> None:
        """Load a cut that waits, which begins where the cut before it has ended."""
        if not cut.follows(self._previous, self._offset):
            raise StateError(
                f"The cut before that of trigger {cut.trigger} is missing from the state. Nothing"
                " was released or changed. Restore the whole folder from a copy made since the"
                " last trigger, or begin a new pipeline, which spends its own budget."
            )
        self._waiting[cut.trigger] = cut.offsets
        self._previous = cut.trigger
        self._offset = self._source.next_offset(self._offset, cut.offsets)

    @property
    def waiting(self) -> list[int]:
        """The triggers that have a cut and have not run."""
        return sorted(self._waiting)

    def offsets(self, trigger: int) -> OffsetRange | None:
        """The range of a trigger that is decided; None if it has no cut."""
        assert trigger <= self.decided, "the trigger is not decided"
        return self._waiting.get(trigger)

    def drop(self, trigger: int) -> None:
        """The trigger is committed."""
        self._waiting.pop(trigger, None)
        self._journal.drop_cut(trigger)

    def take(self, at: GridTime, before: int | None = None) -> None:
        """Cut the source now. Triggers before this one that have no cut get none.

        An answer that comes at the time `before`, or later, is refused.
        """
        offsets = self._source.cut(self._offset, at)
        if not self._source.keeps_arrival_times and self._has_come(before):
            raise UnavailableError("The source did not answer before the next trigger was due.")
        self._journal.keep_cut(Cut.following(self._previous, self._offset, at.trigger, offsets))
        self._previous = at.trigger
        self._offset = self._source.next_offset(self._offset, offsets)
        self._waiting[at.trigger] = offsets
        self._decide(at.trigger)

    def run(self, stop: threading.Event, report: Callable[[UnavailableError], None]) -> None:
        """Cut the source at every grid time from now on, until told to stop or the last."""
        now, last = self._clock.now(), self._schedule.last
        trigger = max(self.decided, self._schedule.current(now - 1)) + 1
        self._decide(trigger - 1)
        try:
            while not (stop.is_set() or self.ended or (last is not None and trigger > last)):
                self._wait(self._schedule.due(trigger), stop)
                self._take_at(trigger, stop, report)
                trigger += 1
        except BaseException as problem:
            self.failure = problem  # raised by the worker, once it has run what is decided
        finally:
            self.news.set()

    def _take_at(
        self, trigger: int, stop: threading.Event, report: Callable[[UnavailableError], None]
    ) -> None:
        """Cut the source at a grid time, or as soon after it as the source answers."""
        due, following = self._schedule.span(trigger + 1)
        pause = _PAUSE_US
        while not stop.is_set():
            if self._has_come(following) and not self._source.keeps_arrival_times:
                self._decide(trigger)
                return
            left = (following - self._clock.now()) / 1e6
            try:
                self.take(GridTime(trigger, due, left), following)
                return
            except UnavailableError as problem:
                report(problem)
            self._wait(min(self._clock.now() + pause, following), stop)
            pause = min(2 * pause, _PAUSE_US_MAX)

    def _has_come(self, time: int | None) -> bool:
        return time is not None and self._clock.now() >= time

    def _wait(self, until: int, stop: threading.Event) -> None:
        while self._clock.now() < until and not stop.is_set():
            self._clock.wait(until, stop)

    def _decide(self, trigger: int) -> None:
        self.decided = max(self.decided, trigger)
        self.ended = self._source.exhausted
        self.news.set()
