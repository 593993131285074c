"""A sample: records of data that one may look at, admitted once and kept as columns by trigger.

The rows go through the query's own row part and the real `admit`. What follows (bounding,
selection, noise) differs by candidate, and begins here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from dpsqlp.core import Core
from dpsqlp.engines.micro_batch import concatenate, micro_batch
from dpsqlp.entropy.canonical import Encoded, encode
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import SourceError
from dpsqlp.plan import Plan
from dpsqlp.stages.admit import ABSENT, Records
from dpsqlp.tables.table import Table
from dpsqlp.tuning.replay import Replay

_RECORDS_MAX = 200_000_000  # of drawn units
Ints = NDArray[np.int64]


class Sample:
    """Records in the order of their triggers. A record's text number is its key's number.

    A *group* is a (window, key) that has records: `truth` has its exact totals, before bounding.
    """

    def __init__(
        self,
        replay: Replay,
        records: Records,
        trigger: Ints,
        unit: Ints,
        units: int,
        keys: Table,
        values: Callable[[Plan], Ints],
    ) -> None:
        self.replay = replay
        self.records = records
        self.trigger = trigger
        self.unit = unit  # the number of each record's unit
        self.units = units
        self.keys = keys  # ids, by number
        self._values = _Cached(values, 2)
        codes, self.group = np.unique(self._code(records.window, records.text), return_inverse=True)
        self.window, self.key = np.divmod(codes, len(keys))  # of each group
        self._codes = codes
        self.group_rows = np.bincount(self.group, minlength=len(codes))
        self._truth = _Cached(self._totals, 4)  # half way and at the end

    def __len__(self) -> int:
        return len(self.trigger)

    def batches(self, plan: Plan) -> Iterator[Records]:
        """The records of each trigger, with their contributions in the plan's quanta."""
        values = self._values(plan)
        triggers = np.arange(self.replay.first, self.replay.last + 1)
        edges = np.append(np.searchsorted(self.trigger, triggers), len(self))
        whole = self.records
        for number, trigger in enumerate(triggers.tolist()):
            part = slice(edges[number], edges[number + 1])
            yield Records(
                trigger=trigger,
                unit=whole.unit[part],
                shard_hash=whole.shard_hash[part],
                key=whole.key[part],
                key_text=whole.key_text,
                text=whole.text[part],
                window=whole.window[part],
                step=whole.step[part],
                timestamp=whole.timestamp[part],
                values=values[part],
                period=whole.period[part],
            )

    def truth(self, plan: Plan, step: int) -> Ints:
        """The exact total of every process for each group, of the records up to a step of its
        window, in quanta: (groups, processes).
        """
        return self._truth(plan, step)

    def find_groups(self, window: int, ids: NDArray[np.uint64]) -> Ints:
        """The group of each of a window's keys; -1 for a key without records."""
        number = self.keys.find(ids)
        code = self._code(np.full(len(ids), window, np.int64), number)
        at = np.minimum(np.searchsorted(self._codes, code), len(self._codes) - 1)
        return np.where((number >= 0) & (self._codes[at] == code), at, -1)

    def part(self, fraction: float, seed: int) -> Sample:
        """The records of a fraction of the units: of nested sets for one seed."""
        chosen = np.zeros(self.units, bool)
        number = max(1, round(self.units * fraction))
        chosen[np.random.default_rng(seed).permutation(self.units)[:number]] = True
        rows = np.flatnonzero(chosen[self.unit])
        return self._take(rows, self.unit[rows], self.units, None)

    def resampled(self, units: int, seed: int, core: Core) -> Sample:
        """So many units drawn with replacement, each with all its records and a new identity."""
        expected = units * len(self) // self.units
        if expected > _RECORDS_MAX:
            raise SourceError(
                f"{units:,} units like those of the sample have about {expected:,} rows; at most"
                f" {_RECORDS_MAX:,} are simulated. Give fewer units."
            )
        order = np.argsort(self.unit, kind="stable")
        sizes = np.bincount(self.unit, minlength=self.units)
        drawn = np.random.default_rng(seed).integers(0, self.units, units)
        lengths = sizes[drawn]
        unit = np.repeat(np.arange(units), lengths)
        starts = (np.cumsum(sizes) - sizes)[drawn]
        within = np.arange(len(unit)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
        rows = order[np.repeat(starts, lengths) + within]
        in_time = np.argsort(self.trigger[rows], kind="stable")
        ids = core.units.identify(encode([pa.array(np.arange(units))], units))
        return self._take(rows[in_time], unit[in_time], units, ids)

    def _take(self, rows: Ints, unit: Ints, units: int, ids: NDArray[np.uint64] | None) -> Sample:
        """These records; of new units if ids are given."""
        if not len(rows):
            raise SourceError("The sample has too few records for this. Give a larger one.")
        records = self.records
        taken = Records(
            records.trigger,
            records.unit[rows] if ids is None else ids[unit],
            records.shard_hash[rows],
            records.key[rows],
            records.key_text,
            records.text[rows],
            records.window[rows],
            records.step[rows],
            records.timestamp[rows],
            records.values[rows],
            records.period[rows],
        )
        return Sample(
            self.replay,
            taken,
            self.trigger[rows],
            unit,
            units,
            self.keys,
            lambda plan: self._values(plan)[rows],
        )

    def _code(self, window: Ints, key: Ints) -> Ints:
        return window * len(self.keys) + key

    def _totals(self, plan: Plan, step: int) -> Ints:
        rows = np.flatnonzero(self.records.step <= step)
        values, group = self._values(plan)[rows], self.group[rows]
        totals = np.zeros((len(self._codes), plan.width), np.int64)
        for position, span in enumerate(plan.spans):
            process = plan.calibration.processes[position].process
            known = values[:, position] != ABSENT
            inside, added = group[known], values[known, position]
            if process.kind == "distinct":
                unit = [group, self.unit[rows], self.records.period[rows]]
                once = np.unique(np.stack(unit, axis=1), axis=0)[:, 0]
                totals[:, span.start] = np.bincount(once, minlength=len(totals))
            elif process.kind == "histogram":
                np.add.at(totals, (inside, span.start + added), 1)
                if process.coarse:
                    around = span.start + process.bins + added // process.coarse
                    np.add.at(totals, (inside, around), 1)
            else:
                np.add.at(totals[:, span.start], inside, added)
        return totals


class _Cached:
    """Numbers that depend on a plan by its quanta alone: the last few that were asked for."""

    def __init__(self, compute: Callable[..., Ints], kept: int) -> None:
        self._compute = compute
        self._kept = kept
        self._known: dict[tuple[float, ...], Ints] = {}
        self._lock = threading.RLock()

    def __call__(self, plan: Plan, *step: int) -> Ints:
        key = (*(calibrated.quantum for calibrated in plan.calibration.processes), *step)
        with self._lock:
            found = self._known.pop(key, None)
            if found is None:
                found = self._compute(plan, *step)
            self._known[key] = found  # now the last
            if len(self._known) > self._kept:
                del self._known[next(iter(self._known))]
            return found


def admit_sample(
    core: Core, secret: Secret, rows: pa.Table, replay: Replay, trigger: Ints
) -> Sample:
    """The sample of rows of the row query and the triggers that they belong to."""
    order = np.argsort(trigger, kind="stable")
    order = order[np.searchsorted(trigger[order], replay.first) :]
    order = order[: np.searchsorted(trigger[order], replay.last, side="right")]
    ordered, at = rows.take(pa.array(order)), trigger[order]
    numbers, begins = np.unique(at, return_index=True)
    pieces = [
        (int(number), micro_batch(ordered.slice(begin, end - begin)))
        for number, begin, end in zip(numbers, begins, [*begins[1:], len(at)], strict=False)
    ]

    def admitted(plan: Plan) -> list[Records]:
        real = core if plan is core.plan else Core(plan, secret)
        return [real.admit(batch, number) for number, batch in pieces]

    parts = admitted(core.plan)
    counts = [len(part) for part in parts]
    if not sum(counts):
        raise SourceError(
            "No row of the sample counts in the query: its units are null, or its timestamps lie in"
            " no window. Give a sample of the same kind as the stream."
        )
    records = concatenate(parts)
    keys, units = Table(), Table()
    text, first = keys.insert(records.key)
    texts = records.key_text.take(records.text[first])
    if core.public is not None:
        _, more = keys.insert(core.public_ids)
        texts = Encoded.concatenate([texts, core.public_texts.take(more)])
    unit, _ = units.insert(records.unit)
    return Sample(
        replay,
        replace(records, key_text=texts, text=text),
        np.repeat(numbers, counts),
        unit,
        len(units),
        keys,
        lambda plan: np.concatenate([part.values for part in admitted(plan)]),
    )
