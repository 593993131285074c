"""bound on its own: blocks that grow, tags that collide."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from dpsqlp.core import Core
from dpsqlp.stages.admit import MicroBatch, Records, admit
from dpsqlp.stages.bound import bound, bound_early
from dpsqlp.stages.combine import Groups, combine, merge
from dpsqlp.tables.units import UnitTable
from reference.streams import Stream, micro_batch, run_core, run_twin, streams
from reference.twin import Row
from support.plans import SECRET, make_batch, make_closing, make_plan

MIX = 0xD6E8FEB86659FD93
WINDOW = 0x9E3779B97F4A7C15


@pytest.mark.parametrize("release", ["every_trigger", "threshold"])
@pytest.mark.parametrize("caps", [(150, 1, 40), (150, 2, 150), (400, 400, 7)])
def test_units_with_many_pairs_equal_the_twin(release: str, caps: tuple[int, int, int]) -> None:
    """Blocks double and move many times while their pairs keep their counts and votes."""
    dice = np.random.default_rng(7)
    plan = make_plan(6, release=release, caps=caps, threshold=2, sigma=0.5)  # type: ignore[arg-type]
    batches = tuple(
        tuple(
            Row((int(unit),), (int(key),), 0, int(time))
            for unit, key, time in dice.integers(0, [3, 200, 50], (180, 3))
        )
        for _ in range(6)
    )
    stream = Stream(plan, 1, batches)

    def integers(rows: tuple[Row, ...]) -> MicroBatch:
        return make_batch([(row.unit[0], row.key[0], 0, row.timestamp) for row in rows])

    core = run_core(stream, 1, integers)
    assert core == run_twin(stream)
    assert any(core)


def crafted(tag: int, low: int, window: int, index: int) -> tuple[int, int, int]:
    """A key word whose pair with the window has this tag."""
    mixed = (tag << 32) | low
    word = (mixed * pow(MIX, -1, 2**64) % 2**64) ^ (window * WINDOW % 2**64)
    return word, window, index


def records(pairs: list[tuple[int, int, int]]) -> Records:
    plan = make_plan(100, stride=1)
    pipeline = Core(plan, SECRET)
    batch = make_batch([(1, n, 0, n) for n in range(len(pairs))])
    admitted = admit(plan, batch, 1, pipeline.units, pipeline.keys, None)
    words = np.array([[n, word] for n, (word, _, _) in enumerate(pairs)], np.uint64)
    return replace(
        admitted,
        key=words,
        window=np.array([window for _, window, _ in pairs]),
        step=np.array([index for _, _, index in pairs]),
    )


def all_of(count: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """All records, none of a settled key."""
    return np.arange(count), np.zeros(count, np.bool_)


def test_colliding_tags_drop_more_and_never_count_twice() -> None:
    """Two pairs of one unit with equal tags share c, and their last vote is the later one."""
    plan = make_plan(100, stride=1, release="threshold", caps=(10, 10, 10))
    table = UnitTable()
    old, young = crafted(5, 1, 0, 90), crafted(5, 2, 80, 10)
    first = bound(plan, table, records([old, young]), *all_of(2))
    assert (first.votes.tolist(), first.last_vote_step.tolist()) == ([1, 0], [0, 0])
    # Were the younger window's step 10 taken for the last vote, this one would carry
    # last_vote_step = 10 and count a second time in a round that began at 20.
    again = bound(plan, table, records([crafted(5, 1, 0, 91)]), *all_of(1))
    assert (again.votes.tolist(), again.last_vote_step.tolist()) == ([1], [90])
    strict = replace(plan, caps=replace(plan.caps, records_per_key=2))
    crowded = bound(strict, UnitTable(), records([old, young, old]), *all_of(3))
    assert len(crowded.kept) == 2


def test_id_zero_and_the_first_tag_are_like_any_other() -> None:
    """Zero is not an empty place."""
    plan = make_plan(4, caps=(10, 1, 10))
    zero = crafted(0, 0, 0, 1)
    kept = bound(plan, UnitTable(), records([zero, zero]), *all_of(2)).kept
    assert kept.tolist() == [0]


def test_with_a_closing_keys_are_told_apart_exactly() -> None:
    """Keys whose tags would be equal are two keys: each has its own c, its vote and its place in
    the norm. Here ids agree in all of the bits that other tables look at first.
    """
    plan = make_plan(4, caps=(10, 1, 10), squared_norm=2, closing=make_closing(1))
    given = records([crafted(5, 1, 0, 1), crafted(5, 2, 0, 1)] * 2)
    for first, second in ((0, 1), (1 << 40, 1)):  # and one tag or one slot in the table of keys
        given.key[:, 0] = [first, second] * 2
        table = UnitTable()
        bounded = bound(plan, table, given, *all_of(4))
        assert bounded.kept.tolist() == [0, 1]
        assert bounded.votes.tolist() == [1, 1]
        assert len(table.keys) == 2
    given.key[:, 1] = 7 << 32
    assert bound(plan, UnitTable(), given, *all_of(4)).kept.tolist() == [0, 1]


def test_with_a_closing_dropped_records_leave_no_key() -> None:
    """P = 9: of ten thousand keys of one unit nine stay, and after that none of any other."""
    plan = make_plan(4, squared_norm=9, closing=make_closing(1))
    table = UnitTable()
    for begin in (0, 10_000):
        given = records([(begin + key, 0, 1) for key in range(10_000)])
        bounded = bound(plan, table, given, *all_of(10_000))
        assert bounded.new_keys.tolist() == given.key[bounded.kept].tolist()
        assert len(table.keys) == 9


Pair = tuple[int, int, int]  # unit, key, timestamp


def of_pairs(pairs: list[Pair], trigger: int) -> Records:
    """Records in window 0 whose keys' tags come in pairs that are equal."""
    pipeline = Core(make_plan(9), SECRET)
    batch = make_batch([(unit, key, 0, time) for unit, key, time in pairs])
    admitted = admit(pipeline.plan, batch, trigger, pipeline.units, pipeline.keys, None)
    words = [[key, crafted(key // 2, key, 0, 1)[0]] for _, key, _ in pairs]
    return replace(admitted, key=np.array(words, np.uint64).reshape(-1, 2))


@st.composite
def triggers_of_pairs(draw: st.DrawFn) -> list[list[Pair]]:
    keys = draw(st.sampled_from([2, 5, 24]))
    pair = st.tuples(st.integers(1, 2), st.integers(0, keys), st.integers(0, 3))
    return [draw(st.lists(pair, max_size=40)) for _ in range(draw(st.integers(1, 3)))]


@pytest.mark.parametrize("closing", [False, True])
@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    given=triggers_of_pairs(),
    squared_norm=st.sampled_from([1, 2, 3, 4, 5, 8, 9, 10, 17, 40]),
    records_max=st.sampled_from([1, 3, 10, 60]),
    per_key=st.sampled_from([1, 2, 3, 60]),
    data=st.data(),
)
def test_early_bounding_drops_nothing_that_would_be_kept(
    closing: bool,
    given: list[list[Pair]],
    squared_norm: int,
    records_max: int,
    per_key: int,
    data: st.DataObject,
) -> None:
    """Whatever the pieces and their order, on units that have kept records before, under a norm and
    caps, with tags that are merged and with exact keys.
    """
    caps = (records_max, min(per_key, records_max), min(2, records_max))
    closes = make_closing(1) if closing else None
    plan = make_plan(9, caps=caps, squared_norm=squared_norm, closing=closes)
    plain, early = UnitTable(), UnitTable()
    for trigger, pairs in enumerate(given, 1):
        batch = of_pairs(pairs, trigger)
        held = np.empty(0, np.int64)
        home = data.draw(st.lists(st.integers(0, 3), min_size=len(pairs), max_size=len(pairs)))
        for piece in range(4):
            held = np.union1d(held, np.flatnonzero(np.array(home, int) == piece)).astype(np.int64)
            if data.draw(st.booleans()):
                held = bound_early(plan, batch, held)
        everything = bound(plan, plain, batch, *all_of(len(pairs)))
        shortened = bound(plan, early, batch, held, np.zeros(len(held), np.bool_))
        found, wanted = (
            sorted(
                (*pairs[k], vote) for k, vote in zip(part.kept, part.votes.tolist(), strict=True)
            )
            for part in (shortened, everything)
        )
        assert found == wanted


@pytest.mark.parametrize("closing", [False, True])
def test_early_bounding_of_one_unit_is_short(closing: bool) -> None:
    """P = 9 leaves nine keys: all may have one record, two of them two, one of them three."""
    plan = make_plan(9, squared_norm=9, closing=make_closing(1) if closing else None)
    given = of_pairs([(1, 2 * (n % 2500), n) for n in range(10_000)], 1)
    assert bound_early(plan, given, np.arange(10_000)).tolist() == list(range(9))
    given = of_pairs([(1, 2 * (n // 1000), n) for n in range(10_000)], 1)
    kept = [0, 1, 2, *range(1_000, 9_000, 1_000), 1_001]
    assert sorted(bound_early(plan, given, np.arange(10_000)).tolist()) == sorted(kept)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(stream=streams(), data=st.data())
def test_partial_groups_merge_to_the_same(stream: Stream, data: st.DataObject) -> None:
    """However a micro-batch is split for combining, merging gives the same groups."""
    pipeline = Core(stream.plan, SECRET)
    table = UnitTable()
    for trigger, rows in enumerate(stream.batches, stream.first):
        admitted = admit(
            stream.plan,
            micro_batch(stream.plan, rows),
            trigger,
            pipeline.units,
            pipeline.keys,
            pipeline.public,
        )
        bounded = bound(stream.plan, table, admitted, *all_of(len(admitted)))
        whole = combine(stream.plan, admitted, bounded)
        size = len(bounded.kept)
        home = np.array(data.draw(st.lists(st.integers(0, 2), min_size=size, max_size=size)))
        parts = [
            combine(
                stream.plan,
                admitted,
                replace(
                    bounded,
                    kept=bounded.kept[home == part],
                    votes=bounded.votes[home == part],
                    last_vote_step=bounded.last_vote_step[home == part],
                    distinct=bounded.distinct[home == part],
                ),
            )
            for part in range(3)
            if size
        ]
        windows = set(whole.window.tolist())
        merged = [
            row
            for window in windows
            for shard in range(2)
            for row in contents(merge(parts, window, shard, 2))
        ]
        assert sorted(merged) == contents(whole)


def contents(groups: Groups) -> list[tuple[object, ...]]:
    return sorted(
        zip(
            groups.key_text.take(groups.text).to_arrow().to_pylist(),
            groups.window.tolist(),
            groups.last_vote_step.tolist(),
            groups.votes.tolist(),
            map(tuple, groups.values.tolist()),
            strict=True,
        )
    )
