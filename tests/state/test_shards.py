"""Shard tables that several processes hold in turn."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsqlp.core import Core, State
from dpsqlp.plan import Plan
from dpsqlp.stages.admit import MicroBatch
from dpsqlp.state.shards import Held, Shards, shard_name
from dpsqlp.state.storage import LocalStorage
from reference.streams import Stream, micro_batch, rows_of, run_core, streams
from state.disks import FakeDisk
from state.sealed_storages import opened_journal, unlocked
from support.plans import SECRET, make_batch, make_plan, with_thresholds


def run_by_turns(
    plan: Plan, batches: Sequence[MicroBatch], first: int, home: Callable[[int, str], int]
) -> list[Any]:
    """Each shard's next trigger is run by one of two processes, whose tables may be some triggers
    old: what the other wrote since is added.
    """
    storage = LocalStorage(Path("/state"), FakeDisk())
    core = Core(plan, SECRET)
    workers: list[dict[str, Held]] = [{}, {}]
    released = []
    for trigger, batch in enumerate(batches, first):
        journal = opened_journal(storage, core, SECRET, 2)
        state = journal.load()
        shards = Shards(unlocked(storage, SECRET), core)
        homes = {name: home(trigger, name) for name, _, _ in _places(state)}
        for name, tables, shard in _places(state):
            held = workers[homes[name]].pop(name, None)
            log = journal.manifest.tables.get(name)
            if log is not None and held is not None:
                tables[shard] = shards.load(name, log, trigger - 1, held)
        step = core.compute(state, core.admit(batch, trigger))
        journal.commit(journal.save(state, step), b"", None)
        released.append(rows_of(step.releases))
        for name, tables, shard in _places(state):
            log = journal.manifest.tables.get(name)
            if log is not None:
                workers[homes.get(name, 0)][name] = Held(tables[shard], log)
    return released


@pytest.mark.parametrize("release", ["every_trigger", "threshold"])
@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data(), seed=st.integers(0, 2**32))
def test_tables_that_were_held_go_on_as_if_they_had_been_read(
    release: str, data: st.DataObject, seed: int
) -> None:
    """On random streams, in random turns."""
    stream: Stream = data.draw(streams(release=release))
    dice = random.Random(seed)
    batches = [micro_batch(stream.plan, rows) for rows in stream.batches]
    released = run_by_turns(stream.plan, batches, stream.first, lambda *_: dice.randrange(2))
    assert released == run_core(stream, 2)


def test_a_table_that_missed_a_round_predicts_anew() -> None:
    """At trigger 1 one process sees one unit. The other one sees the key released at trigger 3,
    and two units in the next round, due at trigger 8. Back at the first, a third unit is still too
    few for trigger 5: in the round before it would have been enough.
    """
    thresholds = (9, 9, 5, 9, 2, 9, 9, 1, 9)
    plan = with_thresholds(make_plan(9, release="threshold"), *thresholds)
    units = [[1], [], [2, 3, 4, 5], [1, 2], [3], [], [], [], []]
    batches = [make_batch([(unit, 7, 0, 0) for unit in part]) for part in units]
    turns = run_by_turns(plan, batches, 1, lambda trigger, _: int(trigger in (2, 3, 4)))
    assert [len(rows) for rows in turns] == [0, 0, 1, 0, 0, 0, 0, 1, 0]


def _places(state: State) -> list[tuple[str, list[Any], int]]:
    """Each shard's name, and where its table is."""
    groups = (("units", state.units), ("keys", state.keys))
    return [
        (shard_name(kind, (item, shard)), tables, shard)
        for kind, group in groups
        for item, tables in group.items()
        for shard in range(state.shards)
    ]
