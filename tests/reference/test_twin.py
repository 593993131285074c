"""The naive twin itself, on examples small enough to work out by hand."""

from __future__ import annotations

import struct
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy.stats import norm

from dpsqlp.accounting.model import (
    SELECTION,
    CalibratedProcess,
    Calibration,
    Closing,
    ContributionBounds,
    Process,
    Selection,
)
from dpsqlp.mechanisms import Tree
from dpsqlp.plan import Plan
from dpsqlp.schedule import WindowSchedule
from reference.twin import (
    Released,
    Row,
    Twin,
    blt_matrix,
    canonical,
    derive,
    mac,
    normal,
    tree_matrix,
    uniform_draws,
    wrap,
)

SECRET, INSTANCE = bytes(range(32)), bytes(range(16))
SILENT = 1e-9  # noise that rounds to nothing
COUNT = CalibratedProcess(Process("rows", "count"), "rows", SILENT, 1.0)


def make_plan(
    thresholds: tuple[int, ...] | None,
    caps: tuple[int, int, int] = (100, 100, 100),
    windows: WindowSchedule | None = None,
    periods: WindowSchedule | None = None,
    release: str = "every_trigger",
    processes: tuple[CalibratedProcess, ...] = (COUNT,),
    minimum: int = 0,
    public_keys: tuple[bytes, ...] | None = None,
    squared_norm: int = 0,
    closing: Closing | None = None,
) -> Plan:
    windows = windows or WindowSchedule(triggers=len(thresholds or ()))
    selection = None
    if thresholds is not None:
        selection = Selection(minimum, SILENT, thresholds, 0.0)
    return Plan(
        query="",
        unit_kinds=("text",),
        key_kinds=("text",),
        windows=windows,
        periods=periods,
        release=release,  # type: ignore[arg-type]
        caps=ContributionBounds(*caps, squared_norm),
        mechanism=Tree(windows.triggers),
        calibration=Calibration(1.0, 1e-6, 1.0, 1.0, 1e-6, 0.0, selection, processes, closing),
        public_keys=public_keys,
    )


def text(*scalars: str | None) -> bytes:
    return canonical(scalars, ("text",) * len(scalars))


def row(unit: str | None, key: str | None, **more: Any) -> Row:
    return Row((unit,), (key,), **{"window": 0, "timestamp": 0, **more})


def run(plan: Plan, *triggers: list[Row], first: int = 1) -> list[list[Released]]:
    twin = Twin(plan, SECRET, INSTANCE)
    return [twin.run(rows, first + n) for n, rows in enumerate(triggers)]


def table(released: list[list[Released]]) -> list[dict[bytes, tuple[int, ...]]]:
    return [{one.key: one.values for one in trigger} for trigger in released]


def test_caps_hold_across_triggers_and_a_dropped_record_uses_up_nothing() -> None:
    """C = 4, c = 2: the third record of a key is dropped and leaves room for another key."""
    plan = make_plan((1, 1, 1), caps=(4, 2, 4))
    released = run(
        plan,
        [row("u", "a")],
        [row("u", "a", timestamp=2), row("u", "a", timestamp=3), row("u", "b", timestamp=4)],
        [row("u", "c", timestamp=6), row("u", "b", timestamp=5), row("u", "c", timestamp=7)],
    )
    a, b = text("a"), text("b")
    assert table(released) == [{a: (1,)}, {a: (2,), b: (1,)}, {a: (2,), b: (2,)}]


def test_a_norm_bounds_the_squares_and_a_dropped_record_uses_up_nothing() -> None:
    """P = 10: three records of a cost 1 + 3 + 5, the fourth would cost 7; b costs the last 1."""
    plan = make_plan((1, 1), squared_norm=10)
    released = run(plan, [row("u", "a", timestamp=n) for n in range(4)], [row("u", "b")] * 2)
    assert table(released) == [{text("a"): (3,)}, {text("a"): (3,), text("b"): (1,)}]


def test_an_early_null_timestamp_and_an_absent_value_come_first() -> None:
    """C = 2 keeps the record without a timestamp and, of the tie, the one without a value."""
    total = CalibratedProcess(Process("sum", "sum", 0, -8.0, 8.0), "sum", SILENT, 0.5)
    plan = make_plan((1,), caps=(2, 2, 2), processes=(COUNT, total))
    rows = [
        row("u", "a", timestamp=-5, values=(-8.0,)),
        row("u", "a", timestamp=-5, values=(float("nan"),)),
        row("u", "a", timestamp=None, values=(1.9,)),
    ]
    for order in (rows, rows[::-1]):
        assert table(run(plan, order)) == [{text("a"): (2, 3)}]  # 1.9 is 3 halves, towards zero


def test_values_are_clamped_and_a_missing_one_is_absent() -> None:
    total = CalibratedProcess(Process("sum", "sum", 0, -2.0, 4.0), "sum", SILENT, 0.5)
    plan = make_plan((1,), processes=(COUNT, total))
    values = [float("inf"), float("-inf"), None, float("nan"), -0.9]
    rows = [row("u", "a", values=(value,)) for value in values]
    assert table(run(plan, rows)) == [{text("a"): (5, 8 - 4 - 1)}]


def test_centred_values_and_their_squares() -> None:
    """From -2 to 4 around 1.5: 3.5 at most. Squares have lost half of 12.25. Null adds nothing."""
    bounds = (0, -2.0, 4.0, 1.5)
    processes = tuple(
        CalibratedProcess(Process(kind, kind, *bounds), kind, SILENT, 0.5)
        for kind in ("sum", "squares")
    )
    plan = make_plan((1,), processes=processes)
    rows = [row("u", "a", values=(value,)) for value in (float("inf"), -5.0, None, 1.0)]
    # 2.5, -3.5, -0.5; and 0.125, 6.125, -5.875 in halves, towards zero
    assert table(run(plan, rows)) == [{text("a"): (5 - 7 - 1, 0 + 12 - 11)}]


def test_every_trigger_releases_a_selected_key_with_and_without_new_records() -> None:
    """A unit votes once per key, Cs = 1 times in all; thresholds select at trigger 2."""
    distinct = CalibratedProcess(Process("units", "distinct"), SELECTION, SILENT, 1.0)
    plan = make_plan((2, 2, 9, 9), caps=(9, 9, 1), processes=(COUNT, distinct))
    released = run(
        plan,
        [row("u", "a"), row("u", "b", timestamp=1), row("u", "a", timestamp=2)],
        [row("v", "a"), row("w", "b"), row("u", "b")],
        [],
        [row("u", "a")],
    )
    a = text("a")  # b stays at one vote: u had spent its only one on a
    assert table(released) == [{}, {a: (3, 2)}, {a: (3, 2)}, {a: (4, 2)}]
    assert [one.final for trigger in released for one in trigger] == [False, False, True]


def test_a_key_needs_more_units_than_the_minimum() -> None:
    plan = make_plan((1, 1), minimum=1)
    assert table(run(plan, [row("u", "a")], [row("v", "a")])) == [{}, {text("a"): (2,)}]


def test_threshold_starts_a_new_round_after_each_release() -> None:
    """Round 1 is released at trigger 2 (thr(2) = 2), so trigger 3 is index 1 (9) and 4 is 2."""
    plan = make_plan((9, 2, 9, 9, 9, 9), release="threshold")
    u, v = row("u", "a"), row("v", "a")
    twin = Twin(plan, SECRET, INSTANCE)
    batches = [[u], [v], [u, v, u], [], [u], [u]]
    released = [twin.run(rows, 1 + n) for n, rows in enumerate(batches)]
    # Round 2 counts two units at trigger 3 and is released without records at trigger 4; totals go
    # on. Round 3 has u twice, which counts once: not enough at its index 2.
    assert table(released) == [{}, {text("a"): (2,)}, {}, {text("a"): (5,)}, {}, {}]
    assert [one.index for trigger in released for one in trigger] == [2, 4]
    rounds = [path[3] for path in twin.noise.paths if path[0] == SELECTION]
    assert rounds == [1, 2, 3]  # each has noise of its own


def test_threshold_counts_a_unit_once_a_round_but_charges_every_vote() -> None:
    """Cs = 2 goes on two votes for a, of which one counts; nothing is left for b."""
    distinct = CalibratedProcess(Process("units", "distinct"), "units", SILENT, 1.0)
    plan = make_plan((2, 2, 1), caps=(9, 9, 2), release="threshold", processes=(COUNT, distinct))
    u = row("u", "a")
    released = run(plan, [u, u], [u], [row("u", "b"), row("v", "b"), row("v", "c")])
    expected = {text("a"): (3, 1), text("b"): (2, 2), text("c"): (1, 1)}
    assert table(released) == [{}, {}, expected]
    released = run(plan, [u, u], [u], [row("u", "b")])
    assert table(released) == [{}, {}, {text("a"): (3, 1)}]


@pytest.mark.parametrize("release", ["every_trigger", "threshold"])
def test_public_keys_are_released_at_every_trigger_of_every_open_window(release: str) -> None:
    """Windows of three triggers, one every two; records for other keys use up nothing."""
    distinct = CalibratedProcess(Process("units", "distinct"), "units", SILENT, 1.0)
    plan = make_plan(
        None,
        caps=(2, 2, 1),
        windows=WindowSchedule(triggers=3, stride=2),
        release=release,
        processes=(COUNT, distinct),
        public_keys=(text("a"), text("b")),
    )
    other, late, far = row("u", "z"), row("u", "a", window=-1), row("u", "a", window=1)
    released = run(
        plan,
        [],
        [other, far, row("u", "a"), row(None, "a"), row("u", "a", window=None)],
        [late, row("u", "b", window=1), row("u", "b", window=0)],
    )
    seen = [[(r.window, r.index, r.final, r.key[1:2], *r.values) for r in t] for t in released]
    assert seen[0] == [
        (-1, 3, True, b"a", 0, 0),
        (-1, 3, True, b"b", 0, 0),
        (0, 1, False, b"a", 0, 0),
        (0, 1, False, b"b", 0, 0),
    ]
    assert seen[1] == [(0, 2, False, b"a", 1, 1), (0, 2, False, b"b", 0, 0)]
    assert seen[2] == [
        (0, 3, True, b"a", 1, 1),
        (0, 3, True, b"b", 1, 0),  # window 0 before window 1; Cs was spent on a
        (1, 1, False, b"a", 0, 0),
        (1, 1, False, b"b", 0, 0),
    ]


def test_a_unit_is_bounded_per_period_and_forgotten_when_the_period_closes() -> None:
    """C = 1 per (user, period). Period 0 is open at triggers 1 and 2, period 1 at 3 and 4."""
    plan = make_plan((1, 1, 1), caps=(1, 1, 1), periods=WindowSchedule(triggers=2, stride=2))
    twin = Twin(plan, SECRET, INSTANCE)
    now, later, never = (row("u", "a", period=period) for period in (0, 1, None))
    assert table([twin.run([now, now, later, never], 1)]) == [{text("a"): (1,)}]
    assert table([twin.run([now], 2)]) == [{text("a"): (1,)}]
    assert not twin.units
    assert table([twin.run([now, later], 3)]) == [{text("a"): (2,)}]
    assert list(twin.units) == [(1, text("u"))]
    assert not twin.keys


def test_noise_is_added_modulo_two_to_the_64_and_differs_by_key_and_process() -> None:
    loud = [CalibratedProcess(Process(name, "count"), name, 1e6, 1.0) for name in "xy"]
    plan = make_plan(
        None, windows=WindowSchedule(2), processes=tuple(loud), public_keys=(text("a"), text("b"))
    )
    first, second = run(plan, [], [])
    assert len({value for one in first + second for value in one.values}) == 8
    assert run(plan, [], []) == [first, second]
    draws = uniform_draws(
        derive(SECRET, b"noise", INSTANCE, plan.fingerprint, b"y"),
        mac(derive(SECRET, b"identifier", INSTANCE, b"key"), text("b")),
        window=0,
        round_number=0,
        number=2,
    )
    assert first[1].values[1] == round(normal(*draws[0]) * 1e6)
    assert second[1].values[1] == round((normal(*draws[0]) + normal(*draws[1])) * 1e6)
    assert [wrap(2**63), wrap(-(2**63) - 1), wrap(7)] == [-(2**63), 2**63 - 1, 7]


def test_matrices_match_those_worked_out_by_hand() -> None:
    # E is 1, 1/2, 1/4 from the diagonal down, its inverse 1, -1/2, 0.
    blt = np.array([[1, 0, 0, 0], [0.5, 1, 0, 0]])
    np.testing.assert_allclose(blt_matrix(3, [0.5], [0.5])[:2].astype(float), blt, atol=1e-18)
    # T = 2: g = (0, 1/2), w = (-1/4, 1/2), and a = (3/8) / (21/16) takes (1/2, 1) to the final row.
    blt = np.array([[1, 0, 0], [4 / 7, 6 / 7, 2 / 7]])
    np.testing.assert_allclose(blt_matrix(2, [0.5], [0.5]).astype(float), blt, rtol=1e-15)
    assert blt_matrix(1, [], []).tolist() == [[1, 0]]
    # Draws: leaf 1, leaf 2, node 1-2, leaf 3, leaf 4, node 3-4; the root is never drawn.
    third = 1 / 3
    tree = np.array(
        [
            [1, 0, 0, 0, 0, 0],
            [third, third, 2 * third, 0, 0, 0],
            [third, third, 2 * third, 1, 0, 0],
            [third, third, 2 * third, third, third, 2 * third],
        ]
    )
    np.testing.assert_allclose(tree_matrix(4).astype(float), tree, rtol=1e-15)
    assert tree_matrix(1).tolist() == [[1]]
    assert tree_matrix(2).tolist() == [[1, 0], [1, 1]]
    full = (tree_matrix(9)[7] ** 2).sum()  # a drawn node of four levels
    assert float(full) == pytest.approx(1 / (2 * (1 - 2**-4)), rel=1e-15)


def test_primitives() -> None:
    message = b"\x00\x00\x00\x0dthirteen byte"  # 4 + 13 bytes: padded to two blocks
    cbc = Cipher(algorithms.AES(SECRET), modes.CBC(bytes(16))).encryptor()
    assert mac(SECRET, b"thirteen byte") == cbc.update(message + bytes(15))[-16:]
    assert (
        normal(2**63 - 1, 0)
        == -normal(-(2**63), 0)
        == pytest.approx(norm.isf(2.0**-129), rel=1e-13)
    )
    assert normal(0, 2**63) == pytest.approx(np.sqrt(2 * np.pi) / 2**65, abs=1e-16)
    assert canonical((None, True, -1), ("text", "boolean", "integer")).hex() == (
        "000101027fffffffffffffff"
    )
    assert canonical(("a\x00", 2**63), ("text", "integer")).hex() == (
        "066100ff0000038000000000000000"
    )
    floats = [float("-inf"), -1.5, -0.0, 2.0, float("inf"), float("nan")]
    encoded = [canonical((value,), ("float",)) for value in floats]
    assert encoded == sorted(encoded)
    assert encoded[2] == canonical((0.0,), ("float",))


QUIET = Closing(1e8, 1e7, 2e7, 1.0, (8366, 5477, 4082), 5000, 0.0)  # weights of thousands


def test_a_closing_spends_what_is_left_on_keys_that_are_not_out() -> None:
    """Of 100 a vote costs 10 and a squared row 20. At trigger 2 key a is selected by two votes.
    Units u and w have 100 - 20 - 40 left: u all on b, w on two keys. Unit v has nothing left, with
    two records of c: 100 - 20 - 20 - 80.
    """
    plan = make_plan((9, 2), caps=(9, 9, 2), closing=QUIET, squared_norm=5)
    rows = [
        [row("u", "a"), row("u", "b", timestamp=1), row("v", "a"), row("v", "c", timestamp=1)],
        [row("w", "d"), row("w", "e", timestamp=1), row("v", "c")],
    ]
    assert table(run(plan, *rows)) == [{}, {text("a"): (2,), text("b"): (1,)}]
    low = make_plan((9, 2), caps=(9, 9, 2), closing=replace(QUIET, threshold=4000))
    assert sorted(table(run(low, *rows))[1]) == [text(key) for key in "abde"]


def test_a_closing_needs_more_units_than_the_minimum() -> None:
    """One unit has weight enough for b; a has two units."""
    plan = make_plan((9,), minimum=1, closing=QUIET)
    rows = [row("u", "a"), row("v", "a"), row("w", "b")]
    assert table(run(plan, rows)) == [{text("a"): (2,)}]


def test_a_closing_takes_the_first_keys_and_caps_their_weights() -> None:
    """M = 3 of five keys, in the order of their ids, with at most 4,082 on each."""
    rich = replace(QUIET, budget=1e10, threshold=4000)
    plan = make_plan((9,), caps=(9, 9, 1), closing=rich)
    ids = derive(SECRET, b"identifier", INSTANCE, b"key")
    first = sorted(
        (text(key) for key in "abcde"), key=lambda key: struct.unpack("<2Q", mac(ids, key))
    )
    rows = [row("u", key) for key in "abcde"]
    assert sorted(table(run(plan, rows))[0]) == sorted(first[:3])
    high = replace(plan.calibration, closing=replace(rich, threshold=4200))
    assert table(run(replace(plan, calibration=high), rows)) == [{}]


def test_a_closing_comes_at_an_empty_last_trigger_and_once_for_each_window() -> None:
    """Windows of two intervals, open for three triggers; what a unit did elsewhere costs nothing
    here, and a record whose period is not its window is dropped.
    """
    windows = WindowSchedule(triggers=3, stride=2)
    plan = make_plan((9, 9, 9), windows=windows, periods=windows, closing=QUIET)
    here, there = row("u", "a", period=0), row("u", "b", window=1, period=1)
    stray = row("v", "c", window=0, period=1)
    released = run(plan, [here], [], [there, there, stray], [], [])
    assert table(released) == [{}, {}, {text("a"): (1,)}, {}, {}]
    again = run(plan, [here], [], [there], [], [])
    assert table(again) == [{}, {}, {text("a"): (1,)}, {}, {text("b"): (1,)}]
