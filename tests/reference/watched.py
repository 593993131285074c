"""A twin that is watched, to see that random streams reach whatever the core may have to do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from copy import copy
from dataclasses import replace

from dpsqlp.plan import Plan
from reference.twin import Record, Released, Row, Twin


class Watched(Twin):
    """A twin that counts what happens."""

    def __init__(self, plan: Plan, secret: bytes, instance: bytes, seen: Counter[str]) -> None:
        super().__init__(plan, secret, instance)
        self.seen = seen
        self.out_before: set[tuple[int, bytes]] = set()

    def run(self, rows: list[Row], trigger: int) -> list[Released]:
        self.out_before = {pair for pair, state in self.keys.items() if state.selected}
        released = super().run(rows, trigger)
        closes = self.plan.closes(trigger) is not None
        self.seen["rows"] += len(released)
        self.seen["an empty last trigger"] += closes and not rows
        self.seen["an empty last trigger with releases"] += closes and not rows and bool(released)
        return released

    def _accept(self, row: Row, trigger: int) -> Record | None:
        record = super()._accept(row, trigger)
        if record is None and self.plan.calibration.closing is not None:
            same = super()._accept(replace(row, period=row.window), trigger)
            self.seen["a record whose period is not its window"] += same is not None
        return record

    def _bound(self, record: Record, trigger: int) -> bool:
        caps, unit = self.plan.caps, self.units[record.unit]
        kept, at = unit.kept, unit.kept_at[record.key, record.window]
        is_kept = super()._bound(record, trigger)
        capped = kept >= caps.records or at >= caps.records_per_key
        dropped = unit.kept == kept
        self.seen["a record dropped by a cap"] += dropped and capped
        self.seen["a record dropped by the norm"] += dropped and not capped
        room = unit.squared_norm < caps.squared_norm
        self.seen["a repeated record dropped, a new one possible"] += (
            dropped and not capped and room
        )
        self.seen["a repeated record kept"] += not dropped and at > 0
        kinds = (calibrated.process.kind for calibrated in self.plan.calibration.processes)
        self.seen["a value in a bin"] += is_kept and any(
            kind == "histogram" and value is not None
            for kind, value in zip(kinds, record.values, strict=True)
        )
        return is_kept

    def _diagnose(self, record: Record, kept: bool) -> None:
        super()._diagnose(record, kept)
        told, unit = self.plan.calibration.diagnostics, self.units[record.unit]
        if told is not None:
            self.seen["a unit's first dropped record"] += not kept and unit.dropped == 1
            self.seen["more than K kept records"] += kept and unit.kept > told.kept_max
            self.seen["more than D dropped"] += not kept and unit.dropped > told.dropped_max

    def _close(self, trigger: int) -> Iterator[Released]:
        window = self.plan.closes(trigger)
        if window is None:
            return
        closing, selection = self.plan.calibration.closing, self.plan.calibration.selection
        assert closing is not None
        assert selection is not None
        out = {pair for pair, state in self.keys.items() if state.selected and pair[0] == window}
        laid = self._laid(window)
        self._watch_units(window, laid)
        closed = list(super()._close(trigger))
        yield from closed
        eligible = sum(len(weights) > selection.minimum for weights in laid.values())
        self.seen["a key with too few units"] += len(laid) - eligible
        self.seen["a key below the threshold"] += eligible - len(closed)
        self.seen["a key closed in"] += len(closed)
        self.seen["a key closed in beside those selected at T"] += bool(closed) and not (
            out <= self.out_before
        )
        self.seen["several units on a key"] += any(len(weights) > 1 for weights in laid.values())

    def _watch_units(self, window: int, laid: dict[bytes, list[int]]) -> None:
        closing = self.plan.calibration.closing
        assert closing is not None
        for (period, _), unit in self.units.items():
            if period not in (None, window):
                continue
            keys = {key for (key, at), number in unit.kept_at.items() if number and at == window}
            open_keys = {key for key in keys if not self.keys[window, key].selected}
            left = closing.budget - closing.vote_cost * unit.votes
            left -= closing.square_cost * unit.squared_norm
            many = len(open_keys) > len(closing.weights_max)
            self.seen["a unit with more than M open keys"] += many and left > 0
            self.seen["a unit with nothing left"] += bool(open_keys) and left <= 0
            self.seen["a unit with some keys out"] += bool(open_keys) and open_keys < keys
        uncapped = replace(closing, weights_max=(2**60,) * len(closing.weights_max))
        free = copy(self)
        free.plan = replace(self.plan, calibration=replace(self.plan.calibration, closing=uncapped))
        self.seen["a weight that is capped"] += free._laid(window) != laid
