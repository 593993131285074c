"""One trigger, from micro-batch to releases: (state, micro-batch, trigger) -> (state, releases).

Deterministic: the releases are a function of the secret, the plan and the records of every
trigger so far, equal for every number of shards and every order of records within a micro-batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpsqlp.accounting.model import CLOSING, DIAGNOSTICS, SELECTION
from dpsqlp.entropy.canonical import Encoded
from dpsqlp.entropy.identify import Identifier
from dpsqlp.entropy.noise import Noise
from dpsqlp.entropy.prf import Array128
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import TriggerError
from dpsqlp.plan import Plan
from dpsqlp.stages.admit import MicroBatch, Records, admit
from dpsqlp.stages.advance import ShardRelease, add_public_keys, advance, release_also
from dpsqlp.stages.bound import Bounded, bound, find_already_selected
from dpsqlp.stages.closing import Weights, close, lay
from dpsqlp.stages.combine import Groups, combine, merge
from dpsqlp.stages.diagnose import Tally, diagnose
from dpsqlp.stages.route import key_shards, route
from dpsqlp.tables.keys import KeyTable
from dpsqlp.tables.table import Table
from dpsqlp.tables.units import UnitTable


@dataclass(frozen=True, slots=True)
class TriggerRelease:
    """The rows released at one trigger, sorted by (window, key bytes)."""

    trigger: int
    window: NDArray[np.int64]
    step: NDArray[np.int64]  # of the trigger within the window, 1..T
    key_text: Encoded  # canonical bytes
    values: NDArray[np.int64]  # (rows, totals), in quanta; see `Plan.spans`
    diagnostics: NDArray[np.int64] | None = None  # (open windows, DIAGNOSTICS)

    def __len__(self) -> int:
        return len(self.window)


ShardId = tuple[int, int]  # (period or window, shard)
Each = Callable[..., Iterable[Any]]
Rows = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TriggerResult:
    """The effect of a trigger on each shard: changes for the journal, and releases."""

    trigger: int
    plan: Plan
    groups: dict[ShardId, Groups]  # the bounded input
    units: dict[ShardId, Bounded]
    keys: dict[ShardId, ShardRelease]
    counted: NDArray[np.int64]  # (open windows, DIAGNOSTICS): what diagnostics have counted
    diagnostics: NDArray[np.int64] | None

    @property
    def releases(self) -> TriggerRelease:
        """The releases of all shards."""
        parts = self.keys.values()
        counts = [len(part.key_text) for part in parts]
        window = np.repeat(np.array([window for window, _ in self.keys], np.int64), counts)
        texts = Encoded.concatenate([part.key_text for part in parts])
        none = np.empty((0, self.plan.width), np.int64)
        values = np.concatenate([none, *(part.values for part in parts)])
        return collect(self.plan, self.trigger, window, texts, values, self.diagnostics)


@dataclass(slots=True)
class State:
    """Everything a pipeline remembers, in memory. `trigger` is the last one that ran."""

    shards: int = 1
    trigger: int | None = None
    units: dict[int, list[UnitTable]] = field(default_factory=dict)  # by period
    keys: dict[int, list[KeyTable]] = field(default_factory=dict)  # by window
    selected: dict[int, Table] = field(default_factory=dict)  # keys by window, if plan.spares_votes
    tallies: dict[int, Tally] = field(default_factory=dict)  # by window, if there are diagnostics


class Core:
    """A plan with its secret: the immutable half of a running query."""

    __slots__ = ("keys", "noises", "plan", "public", "public_ids", "public_texts", "units")

    def __init__(self, plan: Plan, secret: Secret) -> None:
        self.plan = plan
        self.units = Identifier(secret, "unit")
        self.keys = Identifier(secret, "key")
        purposes = {
            SELECTION,
            CLOSING,
            *DIAGNOSTICS,
            *(process.purpose for process in plan.calibration.processes),
        }
        self.noises = {p: Noise(secret, plan.fingerprint, p) for p in purposes}
        self.public: Table | None = None
        if plan.public_keys is not None:
            self.public_texts = Encoded.from_list(plan.public_keys)
            self.public_ids = self.keys.identify(self.public_texts)
            self.public = Table()
            self.public.insert(self.public_ids)

    def run(self, state: State, batch: MicroBatch, trigger: int) -> TriggerRelease:
        """Run one trigger. If the batch or the trigger is refused, the state is unchanged."""
        return self.compute(state, self.admit(batch, trigger)).releases

    def admit(self, batch: MicroBatch, trigger: int) -> Records:
        """The records that may count at a trigger. Needs no state, so it can run ahead."""
        return admit(self.plan, batch, trigger, self.units, self.keys, self.public)

    def compute(self, state: State, records: Records, each: Each = map) -> TriggerResult:
        """Run one trigger. `each` is map, or maps shards in threads."""
        trigger = records.trigger
        _check_turn(self.plan, state, trigger)

        def by_unit(task: tuple[ShardId, UnitTable, Rows]) -> tuple[ShardId, Bounded, Groups]:
            shard_id, table, members = task
            return shard_id, *self.by_unit(table, records, members, state.selected)

        tasks = list(_unit_tasks(self.plan, state, records))
        units = list(each(by_unit, tasks))  # (period, shard), bounded records, their groups
        parts = [part for _, _, part in units]

        def by_key(task: tuple[ShardId, KeyTable]) -> tuple[ShardId, Groups, ShardRelease]:
            (window, shard), table = task
            groups = merge(parts, window, shard, state.shards)
            return (window, shard), groups, self.by_key(table, groups, window, trigger)

        windows = list(self._key_tasks(state, trigger))
        keys = list(each(by_key, windows))  # (window, shard), groups, release
        released = {shard_id: release for shard_id, _, release in keys}
        window = self.plan.closes(trigger)
        if window is not None:
            places = [(window, shard) for shard in range(state.shards)]
            parts = [released[place] for place in places]
            released |= zip(places, self._close_window(state, window, parts, each), strict=True)

        counted = sum_counted(bounded.counted for _, bounded, _ in units)
        diagnostics = self.diagnose(state, counted, trigger)
        self.close_trigger(
            state, trigger, ((window, part.selected) for (window, _), part in released.items())
        )
        return TriggerResult(
            trigger,
            self.plan,
            groups={shard_id: groups for shard_id, groups, _ in keys},
            units={shard_id: bounded for shard_id, bounded, _ in units},
            keys=released,
            counted=counted,
            diagnostics=diagnostics,
        )

    def by_unit(
        self, table: UnitTable, records: Records, members: Rows, selected: Mapping[int, Table]
    ) -> tuple[Bounded, Groups]:
        """Bound the records of a shard's units, and group them by (key, window).

        `selected` holds the keys that earlier triggers have selected, by window.
        """
        already_selected = find_already_selected(selected, records, members)
        bounded = bound(self.plan, table, records, members, already_selected)
        return bounded, combine(self.plan, records, bounded)

    def by_key(self, table: KeyTable, groups: Groups, window: int, trigger: int) -> ShardRelease:
        """Add a shard's groups to its keys, select and release."""
        step = trigger - self.plan.windows.first(window)
        return advance(self.plan, self.noises, table, groups, window, step)

    def diagnose(
        self, state: State, counted: NDArray[np.int64], trigger: int
    ) -> NDArray[np.int64] | None:
        """The noisy numbers of the open windows, with what this trigger has counted."""
        if self.plan.calibration.diagnostics is None:
            return None
        return diagnose(self.plan, self.noises, state.tallies, counted, trigger)

    def _close_window(
        self, state: State, window: int, releases: list[ShardRelease], each: Each
    ) -> list[ShardRelease]:
        """The releases of a window's last trigger, with the keys that the closing selects."""
        tables = state.keys[window]
        out = Table()
        for table in tables:
            out.insert(table.released_ids())
        units = state.units[0 if self.plan.periods is None else window]
        laid = list(each(lambda table: self.lay(table, out), units))
        shards = range(state.shards)
        weights = [[part.of_shard(shard, state.shards) for part in laid] for shard in shards]
        return list(each(partial(self.close, window), tables, releases, weights))

    def lay(self, table: UnitTable, out: Table) -> Weights:
        """What a shard's units lay on keys that are not out, at the last trigger of a window."""
        closing = self.plan.calibration.closing
        assert closing is not None
        return lay(closing, table, out)

    def close(
        self, window: int, table: KeyTable, release: ShardRelease, weights: Sequence[Weights]
    ) -> ShardRelease:
        """Add the keys to a shard's last release that the weights of all units select."""
        closing, selection = self.plan.calibration.closing, self.plan.calibration.selection
        assert closing is not None
        assert selection is not None
        noise = self.noises[CLOSING]
        rows = close(closing, selection.minimum, noise, table, weights, window)
        return release_also(self.plan, self.noises, table, release, rows, window)

    def close_trigger(
        self, state: State, trigger: int, selected: Iterable[tuple[int, Array128]]
    ) -> None:
        """The tail of a trigger: remember the keys that it selected, by window, which need no more
        votes; drop the windows and periods that the next trigger does not have open.
        """
        if self.plan.spares_votes:
            for window, ids in selected:
                state.selected.setdefault(window, Table()).insert(ids)
        state.trigger = trigger
        windows = self.plan.windows.open(trigger + 1)
        state.keys = {window: t for window, t in state.keys.items() if window in windows}
        state.selected = {window: t for window, t in state.selected.items() if window in windows}
        state.tallies = {window: t for window, t in state.tallies.items() if window in windows}
        if self.plan.periods is not None:
            periods = self.plan.periods.open(trigger + 1)
            state.units = {period: t for period, t in state.units.items() if period in periods}

    def _key_tasks(self, state: State, trigger: int) -> Iterator[tuple[ShardId, KeyTable]]:
        """The keys of every open (window, shard)."""
        for window in self.plan.windows.open(trigger):
            if window not in state.keys:
                state.keys[window] = [
                    self.new_key_table(window, shard, state.shards) for shard in range(state.shards)
                ]
            for shard, table in enumerate(state.keys[window]):
                yield (window, shard), table

    def empty_key_table(self, window: int) -> KeyTable:
        """A table of a window, without keys."""
        return KeyTable(self.plan.width, self.plan.noise_of(window).mechanism.state_size)

    def new_key_table(self, window: int, shard: int, shards: int) -> KeyTable:
        """A shard of a window that opens, with its public keys."""
        table = self.empty_key_table(window)
        if self.public is not None:
            members = np.flatnonzero(key_shards(self.public_ids, shards) == shard)
            add_public_keys(table, self.public_ids[members], self.public_texts.take(members))
        return table


def _check_turn(plan: Plan, state: State, trigger: int) -> None:
    """Every grid trigger runs, in order, and no more of them than were paid for."""
    if state.trigger is not None and trigger != state.trigger + 1:
        raise TriggerError(
            f"Trigger {state.trigger + 1} is next; got {trigger}."
            " Every grid trigger runs once and in order, with or without records."
        )
    if plan.windows.single and not 1 <= trigger <= plan.triggers:
        raise TriggerError(
            f"The plan pays for triggers 1 to {plan.triggers}; got {trigger}."
            " Going on needs a new pipeline, which spends its own budget."
        )
    if plan.last_trigger is not None and trigger > plan.last_trigger:
        raise TriggerError(
            f"The plan's calendar ends with trigger {plan.last_trigger}; got {trigger}. Going on"
            " needs a new pipeline, which spends its own budget."
        )


def _unit_tasks(
    plan: Plan, state: State, records: Records
) -> Iterator[tuple[ShardId, UnitTable, Rows]]:
    """The units of every open (period, shard), and which records are theirs."""
    for period in plan.open_periods(records.trigger):
        if period not in state.units:
            state.units[period] = [UnitTable() for _ in range(state.shards)]
        shards = route(records.shard_hash, records.period, period, state.shards)
        for shard, (table, members) in enumerate(zip(state.units[period], shards, strict=True)):
            yield (period, shard), table, members


def sum_counted(parts: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    """What diagnostics have counted in all unit shards."""
    total: NDArray[np.int64] = np.sum(list(parts), axis=0, dtype=np.int64)
    return total


def collect(
    plan: Plan,
    trigger: int,
    window: NDArray[np.int64],
    key_text: Encoded,
    values: NDArray[np.int64],
    diagnostics: NDArray[np.int64] | None,
) -> TriggerRelease:
    """The released rows of all shards, in an order that does not come from state."""
    order = key_text.order()
    order = order[np.argsort(window[order], kind="stable")]
    return TriggerRelease(
        trigger=trigger,
        window=window[order],
        step=trigger - plan.windows.firsts(window[order]),
        key_text=key_text.take(order),
        values=values[order],
        diagnostics=diagnostics,
    )
