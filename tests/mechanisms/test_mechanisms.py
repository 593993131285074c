"""Both mechanisms against dense matrices that are built without them."""

from __future__ import annotations

import functools
import itertools
import json
import pickle
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from dpsqlp.errors import PlanError, TriggerError
from dpsqlp.mechanisms import Blt, Mechanism, Tree, fit_blt, from_parameters
from mechanisms import plain_blt, toeplitz
from support.quick import QUICK

SOME_T = sorted({1, *(2**k + e for k in range(1, 8) for e in (-1, 0, 1))})
EVERY_T = SOME_T if QUICK else range(1, 131)

cached_fit = functools.cache(fit_blt)
Make = Callable[[int], Tree | Blt]
MAKERS: dict[str, Make] = {"tree": functools.cache(Tree), "blt": cached_fit}


@pytest.fixture(params=MAKERS)
def make(request: pytest.FixtureRequest) -> Make:
    """The mechanism for T triggers, made once."""
    made: Make = MAKERS[request.param]
    return made


def tree_nodes(triggers: int) -> list[tuple[int, int]]:
    """(last trigger, height) of every drawn node, in the order they complete."""
    heights = max(1, int(np.ceil(np.log2(triggers))))
    return sorted(
        (last, height)
        for height in range(heights)
        for last in range(2**height, triggers + 1, 2**height)
    )


def tree_matrices(triggers: int) -> tuple[np.ndarray, np.ndarray]:
    """B and E: the level weights of Honaker's estimate, over the nodes that make up a prefix."""
    nodes = tree_nodes(triggers)
    number = {node: n for n, node in enumerate(nodes)}
    encoder = np.zeros((len(nodes), triggers))
    for (last, height), n in number.items():
        encoder[n, last - 2**height : last] = 1
    decoder = np.zeros((triggers, len(nodes)))
    for i in range(1, triggers + 1):
        covered = 0
        while covered < i:
            # The largest drawn node that starts after what is covered and ends by i.
            height = max(
                h for h in range(8) if (covered + 2**h, h) in number and covered + 2**h <= i
            )
            last = covered + 2**height
            levels = [0.5**depth for depth in range(height + 1)]
            for depth, weight in enumerate(levels):
                width = 2 ** (height - depth)
                for below in range(covered + width, last + 1, width):
                    decoder[i - 1, number[below, height - depth]] = weight / sum(levels)
            covered = last
    return decoder, encoder


@functools.cache
def matrices(mechanism: Tree | Blt) -> tuple[np.ndarray, np.ndarray]:
    if isinstance(mechanism, Blt):
        return plain_blt.matrices(mechanism)
    return tree_matrices(mechanism.triggers)


def offsets(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def walk(
    mechanism: Mechanism,
    paths: Sequence[np.ndarray] | np.ndarray,
    start: np.ndarray,
    stop: np.ndarray,
    state: np.ndarray,
) -> list[np.ndarray]:
    """Continue row r from start[r] to stop[r] in one call; its draws are those of paths[r].

    Junk around the normals and the output shows a walk that reads or writes beside its rows."""
    first, last = mechanism.draws(start), mechanism.draws(stop)
    junk = np.full(3, np.nan)
    normals = np.concatenate(
        [junk, *(z[a:b] for z, a, b in zip(paths, first, last, strict=True)), junk]
    )
    out_offsets = offsets(stop - start) + 2
    out = np.full(out_offsets[-1] + 2, np.nan)
    mechanism.walk(normals, offsets(last - first) + 3, start, state, out, out_offsets)
    assert np.isnan(out[:2]).all()
    assert np.isnan(out[-2:]).all()
    return [out[a:b] for a, b in itertools.pairwise(out_offsets)]


def whole_path(mechanism: Mechanism, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    state = np.zeros((1, mechanism.state_size))
    ends = np.array([0]), np.array([mechanism.triggers])
    return walk(mechanism, [z], *ends, state)[0], state[0]


def all_draws(mechanism: Mechanism) -> int:
    return int(mechanism.draws(np.array([mechanism.triggers]))[0])


@pytest.mark.parametrize("triggers", EVERY_T)
def test_factorisation(make: Make, triggers: int) -> None:
    """B E is the prefix sum, s the longest column of E, b^2 the row lengths of B, xi is B z.

    For blt, s is the length of all columns, and the last row of B uses the final row of E."""
    mechanism = make(triggers)
    decoder, encoder = matrices(mechanism)
    prefix_sum = np.tril(np.ones((triggers, triggers)))
    np.testing.assert_allclose(decoder @ encoder, prefix_sum, rtol=0, atol=1e-12)
    columns = np.sqrt(np.sum(encoder**2, axis=0))
    assert mechanism.sensitivity == pytest.approx(columns.max(), rel=1e-14)
    assert (columns <= mechanism.sensitivity * (1 + 1e-14)).all()
    assert isinstance(mechanism, Tree) or columns.min() == pytest.approx(columns.max(), rel=1e-14)
    np.testing.assert_allclose(mechanism.variance, np.sum(decoder**2, axis=1), rtol=1e-12)

    for z in np.random.default_rng(triggers).standard_normal((3, encoder.shape[0])):
        np.testing.assert_allclose(whole_path(mechanism, z)[0], decoder @ z, rtol=0, atol=1e-12)


@pytest.mark.parametrize("triggers", EVERY_T)
def test_causal(make: Make, triggers: int) -> None:
    """The first i releases use exactly the draws that are counted for them, in order."""
    mechanism = make(triggers)
    decoder, encoder = matrices(mechanism)
    counted = mechanism.draws(np.arange(triggers + 1))
    assert counted[0] == 0
    assert counted[-1] == encoder.shape[0]
    drawn = np.arange(encoder.shape[0])[None, :] < counted[1:, None]
    assert (decoder[~drawn] == 0).all() or np.abs(decoder[~drawn]).max() < 1e-14
    known = np.arange(triggers)[None, :]
    completed_at = np.searchsorted(counted[1:], np.arange(encoder.shape[0]), side="right")
    assert (encoder[known > completed_at[:, None]] == 0).all()


@pytest.mark.parametrize("triggers", EVERY_T)
def test_split_anywhere(make: Make, triggers: int) -> None:
    """A path that is stopped at any trigger and continued has the same bits, and the same state."""
    mechanism = make(triggers)
    z = np.random.default_rng(triggers).standard_normal(all_draws(mechanism))
    xi, end = whole_path(mechanism, z)
    stops = np.arange(triggers + 1)
    paths = [z] * stops.size
    state = np.zeros((stops.size, mechanism.state_size))
    before = walk(mechanism, paths, np.zeros_like(stops), stops, state)
    after = walk(mechanism, paths, stops, np.full_like(stops, triggers), state)
    for head, tail in zip(before, after, strict=True):
        assert np.concatenate([head, tail]).tobytes() == xi.tobytes()
    assert state.tobytes() == np.tile(end, (stops.size, 1)).tobytes()


@pytest.mark.parametrize("triggers", [1, 7, 8, 9, 100])
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 4, 5, 6, 7, 50])
def test_rows_are_independent(make: Make, triggers: int, rows: int) -> None:
    """A row has the same bits alone and among any other rows, whatever their starts and lengths."""
    mechanism = make(triggers)
    rng = np.random.default_rng(rows)
    paths = rng.standard_normal((rows, all_draws(mechanism)))
    start, stop = np.sort(rng.integers(0, triggers + 1, (2, rows)), axis=0)
    state = np.zeros((rows, mechanism.state_size))
    alone = [whole_path(mechanism, z)[0] for z in paths]
    heads = walk(mechanism, paths, np.zeros_like(start), start, state)
    middles = walk(mechanism, paths, start, stop, state)
    for r in range(rows):
        together = np.concatenate([heads[r], middles[r]])
        assert together.tobytes() == alone[r][: stop[r]].tobytes()


@pytest.mark.parametrize("triggers", SOME_T)
def test_tree_nodes(triggers: int) -> None:
    """Draws follow the nodes as they complete; their variance is Honaker's; no root is drawn."""
    tree = Tree(triggers)
    nodes = tree_nodes(triggers)
    index = np.arange(triggers + 1)
    assert tree.draws(index).tolist() == [sum(last <= i for last, _ in nodes) for i in index]
    assert tree.state_size == max(height for _, height in nodes) + 1
    assert tree.sensitivity**2 == pytest.approx(max(1, np.ceil(np.log2(triggers))))
    for kappa in range(1, tree.state_size + 1):
        assert tree.variance[2 ** (kappa - 1) - 1] == pytest.approx(1 / (2 * (1 - 2.0**-kappa)))
    if triggers == 2**tree.state_size:
        child = tree.variance[triggers // 2 - 1]
        assert tree.variance[-1] == pytest.approx(2 * child)


@pytest.mark.parametrize("triggers", [2, 3, 20, 130])
def test_reference_is_the_square_root(triggers: int) -> None:
    """The reference's coefficients are those of A^(1/2)."""
    root = toeplitz.dense(toeplitz.coefficients(triggers))
    np.testing.assert_allclose(root @ root, np.tril(np.ones_like(root)), atol=1e-13)
    assert toeplitz.sensitivity(triggers) == pytest.approx(np.linalg.norm(root[:, 0]))
    np.testing.assert_allclose(toeplitz.variance(triggers), np.sum(root**2, axis=1))


@pytest.mark.parametrize("triggers", [*range(1, 21), 50, 100, 1000, 10000, 100000])
def test_fit_is_near_optimal(triggers: int) -> None:
    """Without the final row the deviation of the worst release at equal privacy is within 0.2 % of
    the reference's; the final row only lowers it."""
    mechanism = cached_fit(triggers)
    variance = np.cumsum(plain_blt.response(mechanism) ** 2)
    error = mechanism.sensitivity * np.sqrt(variance[-1])
    best = toeplitz.sensitivity(triggers) * np.sqrt(toeplitz.variance(triggers)[-1])
    assert best * (1 - 1e-12) <= error <= 1.002 * best
    assert len(mechanism.theta) <= 6
    np.testing.assert_allclose(mechanism.variance[:-1], variance[:-1], rtol=1e-14)
    assert mechanism.variance[-1] <= variance[-1]


@pytest.mark.parametrize(
    ("triggers", "tree_mean", "tree_max", "best_mean", "best_max", "blt_max", "blt_last"),
    [
        (100, 3.66, 5.15, 2.36, 2.53, 2.53, 1.76),
        (1000, 5.28, 7.28, 3.10, 3.27, 3.27, 2.00),
        (10000, 7.05, 10.11, 3.83, 4.00, 4.00, 2.22),
    ],
)
def test_documented_error(
    triggers: int,
    tree_mean: float,
    tree_max: float,
    best_mean: float,
    best_max: float,
    blt_max: float,
    blt_last: float,
) -> None:
    """The standard deviations at sigma = s that the documentation states: of blt the largest, at
    the last trigger but one, and that of the last."""
    tree = Tree(triggers).sensitivity * np.sqrt(Tree(triggers).variance)
    best = toeplitz.sensitivity(triggers) * np.sqrt(toeplitz.variance(triggers))
    blt = cached_fit(triggers)
    figures = [tree.mean(), tree.max(), best.mean(), best.max()]
    figures += [blt.sensitivity * np.sqrt(blt.variance[i]) for i in (-2, -1)]
    expected = [tree_mean, tree_max, best_mean, best_max, blt_max, blt_last]
    np.testing.assert_allclose(figures, expected, rtol=0, atol=0.0051)


@pytest.mark.parametrize("triggers", [3, 100])
def test_fit_is_deterministic(triggers: int) -> None:
    """Two fits in one process are the same digits."""
    assert fit_blt(triggers) == fit_blt(triggers)


@pytest.mark.skipif(bool(np.finfo(np.longdouble).eps > 2**-60), reason="no wider float here")
@pytest.mark.parametrize("triggers", [10, 100, 1000, 10000])
def test_blt_float_error(triggers: int) -> None:
    """A path is off by less than 2^-51 sqrt(T) b(i), at the last trigger by less than that of the
    largest number it adds up, against the recursion in wider floats."""
    mechanism = cached_fit(triggers)
    paths = np.random.default_rng(0).standard_normal((20, triggers + 1))
    ends = np.zeros(20, dtype=np.int64), np.full(20, triggers)
    xi = np.array(walk(mechanism, paths, *ends, np.zeros((20, mechanism.state_size))))
    exact = plain_blt.recursion(mechanism, paths[:, :-1], np.longdouble)
    row = mechanism.final_row.astype(np.longdouble)
    exact[:, -1] -= paths[:, :-1] @ row[:-1] - row[-1] * paths[:, -1]
    deviation = np.sqrt(mechanism.variance)
    deviation[-1] = mechanism.path_deviation_max
    error = np.abs(xi - exact) / deviation
    assert error.max() < 2**-51 * np.sqrt(triggers)


@pytest.mark.parametrize("triggers", SOME_T)
def test_parameters_round_trip(make: Make, triggers: int) -> None:
    """A mechanism is rebuilt from its stored parameters bit for bit."""
    mechanism = make(triggers)
    again = from_parameters(json.loads(json.dumps(mechanism.parameters())))
    assert again == mechanism
    assert hash(again) == hash(mechanism)
    assert again.parameters() == mechanism.parameters()
    assert again.sensitivity == mechanism.sensitivity
    assert again.variance.tobytes() == mechanism.variance.tobytes()
    assert pickle.loads(pickle.dumps(mechanism)) == mechanism


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"name": "toeplitz", "triggers": 3},
        {"name": "tree"},
        {"name": "tree", "triggers": 3, "theta": [0.5]},
        {"name": "tree", "triggers": "3"},
        {"name": "tree", "triggers": 0},
        {"name": "blt", "triggers": 3, "theta": [0.5]},
        {"name": "blt", "triggers": 0, "theta": [], "decay": []},
        {"name": "blt", "triggers": 3, "theta": [0.5], "decay": []},
        {"name": "blt", "triggers": 3, "theta": [0.0], "decay": [0.5]},
        {"name": "blt", "triggers": 3, "theta": [float("nan")], "decay": [0.5]},
        {"name": "blt", "triggers": 3, "theta": [float("inf")], "decay": [0.5]},
        {"name": "blt", "triggers": 3, "theta": [0.5], "decay": [1.0]},
        {"name": "blt", "triggers": 3, "theta": [0.5], "decay": [float("nan")]},
        {"name": "blt", "triggers": 3, "theta": [1e200], "decay": [0.5]},
        {"name": "blt", "triggers": 5000, "theta": [3.0], "decay": [0.5]},
    ],
)
def test_bad_parameters_are_refused(parameters: dict[str, Any]) -> None:
    """Unknown mechanisms, parameters out of range and noise that blows up are no plan."""
    with pytest.raises(PlanError):
        from_parameters(parameters)


@pytest.mark.parametrize(
    ("start", "triggers_more", "normals_more", "columns_more"),
    [
        (0, 101, 0, 0),
        (100, 1, 0, 0),
        (-1, 1, 0, 0),
        (3, -1, 0, 0),
        (0, 1, 1, 0),
        (0, 1, -1, 0),
        (99, 1, -1, 0),
        (0, 1, 0, 1),
    ],
)
def test_misfits_are_refused(
    make: Make, start: int, triggers_more: int, normals_more: int, columns_more: int
) -> None:
    """A path past trigger T, or with other normals or states, is refused and nothing is written."""
    mechanism = make(100)
    lengths = np.array([2, triggers_more, 2])
    starts = np.array([0, start, 0])
    draws = mechanism.draws(starts + lengths) - mechanism.draws(starts)
    draws[1] += normals_more
    state = np.zeros((3, mechanism.state_size + columns_more))
    out = np.zeros(200)
    with pytest.raises(TriggerError):
        mechanism.walk(np.ones(400), offsets(draws), starts, state, out, offsets(lengths))
    assert not state.any()
    assert not out.any()


def test_buffers_too_small_are_refused(make: Make) -> None:
    """Offsets that point outside their arrays are refused."""
    mechanism = make(100)
    row = np.array([0, 1])
    state = np.zeros((1, mechanism.state_size))
    for normals, out, at in ((0, 1, row), (1, 0, row), (9, 9, row - 1)):
        with pytest.raises(TriggerError):
            mechanism.walk(np.ones(normals), at, row[:1], state, np.zeros(out), at)
    with pytest.raises(TriggerError):
        mechanism.walk(np.ones(9), row, row, state, np.zeros(9), row)


def test_variance_cannot_be_changed(make: Make) -> None:
    """Mechanisms are shared, so their arrays are read-only."""
    with pytest.raises(ValueError, match="read-only"):
        make(5).variance[0] = 0.0
