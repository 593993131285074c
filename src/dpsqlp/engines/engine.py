"""A trigger, on either engine: plan offsets, read, admit, compute, commit, publish.

See `state.journal` for what is durable when. The process may end at any instruction and start
again: the output is the same.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Collection
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

from dpsqlp.core import Core, Each, TriggerRelease
from dpsqlp.engines.account import open_account
from dpsqlp.engines.clock import Clock, SystemClock, TriggerGrid
from dpsqlp.engines.cuts import Cuts
from dpsqlp.engines.instance import open_instance
from dpsqlp.engines.release_query import ReleaseQuery, deserialise, serialise
from dpsqlp.errors import StateError, TriggerError, UnavailableError
from dpsqlp.sinks.base import Sink
from dpsqlp.sources.base import AnySource, GridTime
from dpsqlp.sources.spool import sweep_spools
from dpsqlp.sql.query import Query
from dpsqlp.state.journal import Changes, Intent, Journal
from dpsqlp.state.offsets import Offset
from dpsqlp.state.sealed import SealedStorage


@dataclass(frozen=True, slots=True)
class Progress:
    """The part of a trigger that an operator may see; it depends on released rows alone."""

    trigger: int
    last: int | None
    rows: int
    missed: bool = False  # the trigger had no cut, and ran without records


class Engine(ABC):
    """One query, its state, its source and its sink."""

    _each: Each = map
    # Rows read so far, and rows dropped because the query failed on them, if known: for the
    # operator alone, never published.
    records: int | None = None
    dropped: int | None = None

    def __init__(
        self,
        query: Query,
        storage: SealedStorage,
        key: bytes,
        source: AnySource,
        sink: Sink,
        *,
        clock: Clock | None = None,
        shards: int,
    ) -> None:
        """Open the state, or begin one; enter it in its budget; publish the last release again."""
        with ExitStack() as stack:  # a state that cannot be opened is unlocked
            stack.enter_context(storage.lock())
            self.query, self.source, self.sink = query, source, sink
            self._diagnostics_sink = sink.diagnostics() if query.diagnostics_share else None
            self.clock = clock or SystemClock()
            created = open_instance(storage, query, key, self.clock.now(), shards)
            instance = created.secret.instance.hex()
            self.account = open_account(
                storage, query, created.plan, instance, created.created, self.clock.now()
            )
            if self.account is not None:
                stack.callback(self.account.close)
            self.plan = created.plan
            self.schedule = TriggerGrid.of(query, created.plan, created.created)
            self.core = Core(created.plan, created.secret)
            self.journal = Journal(storage, self.core)
            self._release_query = stack.enter_context(
                ReleaseQuery(query, created.plan, self.schedule)
            )
            stack.callback(source.close)
            stack.callback(sink.close)
            keys = [output.name for output in query.outputs if output.kind == "key"]
            sink.open(instance, keys)
            if self._diagnostics_sink is not None:
                stack.callback(self._diagnostics_sink.close)
                self._diagnostics_sink.open(instance, ())
            self._open(stack)
            pending = self._pending_intent()
            self._unpublished = self.journal.release()
            self.journal.sweep()
            self.cuts = Cuts(self.journal, source, self.schedule, self.clock, pending)
            begun = None if pending is None else pending.offsets
            replays_on = self.schedule.on_event_time and not self._all_ran
            replayed = self._offset if replays_on else None
            sweep_spools(storage, [begun, replayed, *map(self.cuts.offsets, self.cuts.waiting)])
            self._is_ahead_of_disk = self._missed = False
            if self._unpublished is not None:
                with suppress(UnavailableError):  # then at the next step
                    self._publish()
            self._exit = stack.pop_all()

    def step(self) -> Progress:
        """Run the next trigger, and publish its release. After UnavailableError, call it again."""
        if self._unpublished is None:
            self.check_unfinished()
            if self.account is not None:
                self.account.check()  # entered in the budget's ledger, and not retired
            intent = self._plan_offsets()  # the records of the trigger, fixed and durable
            rows = self._read(intent)  # unit, key, window, values: the row query's result
            records = self._admit(rows)  # the rows that may count
            self._is_ahead_of_disk = True
            changes, release = self._compute(intent, records)  # changed tables; noisy totals
            self._commit(intent, changes, release)  # the manifest: from here on it has happened
        return self._publish()  # the sink gets the rows

    @abstractmethod
    def _open(self, stack: ExitStack) -> None:
        """Load the state, and refuse it if one of its files is missing."""

    @abstractmethod
    def _read(self, intent: Intent) -> Any:
        """Begin to read a range through the row query. The result may be still to come."""

    @abstractmethod
    def _admit(self, rows: Any) -> Any:
        """The rows that may count at the trigger."""

    @abstractmethod
    def _compute(self, intent: Intent, records: Any) -> tuple[Changes, TriggerRelease]:
        """Bound, combine, advance: the changes of the state, and the release."""

    def close(self) -> None:
        """Close the source and the sink, and unlock the state."""
        self._is_ahead_of_disk = True
        self._exit.close()

    @property
    def next_trigger(self) -> int:
        """The trigger that runs next."""
        committed = self.journal.manifest.trigger
        return self.schedule.first if committed is None else committed + 1

    @property
    def finished(self) -> bool:
        """Whether the last trigger has run, and its release is published."""
        return self._all_ran and self.published

    @property
    def _all_ran(self) -> bool:
        """Whether the last trigger has run."""
        return self.schedule.last is not None and self.next_trigger > self.schedule.last

    def check_unfinished(self) -> None:
        """Refuse to go on after the last trigger."""
        if not self.finished:
            return
        fact = f"The last of the {self.plan.triggers} triggers in the budget has run."
        if self.plan.last_trigger is not None:
            fact = (
                f"The calendar of the plan ends with trigger {self.schedule.last}, which has run."
            )
        raise TriggerError(
            f"{fact} Begin a new pipeline with a state of its own, which spends its own budget."
        )

    @property
    def published(self) -> bool:
        """Whether the sink has the release of the last trigger."""
        return self._unpublished is None

    @property
    def ready(self) -> bool:
        """Whether `step` can run now: there is a release to publish, or a trigger is decided."""
        if self.schedule.on_event_time or not self.published:
            return True
        return self.cuts.decided >= self.next_trigger

    def cut(self, trigger: int) -> None:
        """Cut the source now for a trigger, unless that was done. Triggers before it run empty."""
        if trigger > self.cuts.decided:
            self.cuts.take(GridTime(trigger, self.clock.now(), math.inf))

    def leave_behind(self, names: Collection[str]) -> list[str]:
        """Give up inputs of the next trigger that cannot be read; returns those that it had. The
        decision is durable, and outside the promise.
        """
        intent = self._pending_intent()
        if intent is None and not self.schedule.on_event_time and self.ready:
            intent = Intent(self.next_trigger, self.cuts.offsets(self.next_trigger))
        if intent is None or intent.offsets is None:
            return []
        offsets, left = self.source.leave_behind(intent.offsets, names)
        if left:
            completed = self.source.complete(offsets)
            self.journal.intend(Intent(intent.trigger, completed, (*intent.left_behind, *left)))
        return left

    @property
    def _offset(self) -> Offset:
        """The end of the last trigger's range."""
        manifest = self.journal.manifest
        initial: Offset = self.source.initial_offset()
        return initial if manifest.trigger is None else manifest.offset

    def _plan_offsets(self) -> Intent:
        """The range of the next trigger: that of its intent if it began before, else of its cut."""
        if self._is_ahead_of_disk:
            raise self._ahead_of_disk()
        intent = self._pending_intent()
        if intent is None:
            trigger = self.next_trigger
            if self.schedule.on_event_time:
                offsets = self.source.replay(self._offset, self.schedule.span(trigger))
            else:
                offsets = self.cuts.offsets(trigger)
            intent = Intent(trigger, None if offsets is None else self.source.complete(offsets))
            self.journal.intend(intent)
        return intent

    def _ahead_of_disk(self) -> StateError:
        """The error for a state in memory that the disk does not have, now or at the next step."""
        self._is_ahead_of_disk = True
        return StateError(
            "The last trigger did not finish. Open the pipeline again: it continues from the"
            " state on disk, and nothing is lost."
        )

    def _pending_intent(self) -> Intent | None:
        """The intent of the next trigger. A later trigger's means that the state lost triggers."""
        intent = self.journal.pending()
        if intent is not None and intent.trigger != self.next_trigger:
            raise StateError(
                f"The state ends before trigger {self.next_trigger}, and trigger {intent.trigger}"
                " has begun: manifest.json is missing or older than what was published. Restore"
                " the whole folder from a copy made since the last trigger, or begin a new"
                " pipeline, which spends its own budget."
            )
        return intent

    def _commit(self, intent: Intent, changes: Changes, release: TriggerRelease) -> None:
        """Run the release query, and make the trigger durable."""
        table = self._release_query.run(release)  # while threads write the changes
        data = serialise(table)
        if release.diagnostics is not None:
            data += serialise(self._release_query.diagnostics(release))
        self.journal.commit(
            changes,
            data,
            self.source.next_offset(self._offset, intent.offsets),
            self._each,
            rows=table.num_rows,
            columns=table.column_names,
            left_behind=len(intent.left_behind),
        )
        self._unpublished, self._is_ahead_of_disk = data, False
        self._missed = intent.offsets is None
        self.source.acknowledge(intent.offsets)
        if intent.trigger == self.schedule.last:
            sweep_spools(self.journal.storage, [])  # no trigger will read a replay's records again
        if not self.schedule.on_event_time:
            self.cuts.drop(intent.trigger)

    def _publish(self) -> Progress:
        """Give the sink the release of the last trigger, which may have it already."""
        trigger = self.journal.manifest.trigger
        assert trigger is not None
        assert self._unpublished is not None
        release, *diagnostics = deserialise(self._unpublished)
        self.sink.emit(trigger, release)
        if self._diagnostics_sink is not None:
            self._diagnostics_sink.emit(trigger, *diagnostics)
        self._unpublished = None
        return Progress(trigger, self.schedule.last, int(release.num_rows), self._missed)
