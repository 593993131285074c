"""The final row of a BLT: what it is by brute force, and what it leaves as it was.

See docs/proof.md, lemma 28.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest

from dpsqlp.mechanisms import Blt, fit_blt
from mechanisms import plain_blt, toeplitz

fit = functools.cache(fit_blt)
SOME_T = [*range(1, 21), 24, 100]
WIDE = np.longdouble


def walked(mechanism: Blt, paths: np.ndarray) -> np.ndarray:
    """xi of every trigger, one path in each row."""
    rows, draws = paths.shape
    out = np.empty(rows * mechanism.triggers)
    mechanism.walk(
        np.ascontiguousarray(paths).reshape(-1),
        np.arange(rows + 1) * draws,
        np.zeros(rows, np.int64),
        np.zeros((rows, mechanism.state_size)),
        out,
        np.arange(rows + 1) * mechanism.triggers,
    )
    return out.reshape(rows, mechanism.triggers)


def decoder(mechanism: Blt) -> np.ndarray:
    """[B'], as the mechanism has it: one row per trigger, one column per normal."""
    return walked(mechanism, np.eye(mechanism.triggers + 1)).T


def encoder(mechanism: Blt, dtype: Any = np.float64) -> np.ndarray:
    """[E], without the final row."""
    column = plain_blt.first_column(mechanism).astype(dtype)
    dense = np.zeros((column.size, column.size), dtype)
    for j in range(column.size):
        dense[j:, j] = column[: column.size - j]
    return dense


def lengths(rows: np.ndarray) -> np.ndarray:
    """Of the columns."""
    found: np.ndarray = np.sqrt(np.sum(rows**2, axis=0))
    return found


@pytest.mark.parametrize("triggers", SOME_T)
def test_the_last_release_follows_from_columns_of_length_s(triggers: int) -> None:
    """From the numbers that leave, without any formula for them: the one row below E that gives the
    exact sum has coefficient a, and with it every column of E has length s, none a longer one."""
    mechanism = fit(triggers)
    above = encoder(mechanism, WIDE)
    last = decoder(mechanism)[-1].astype(WIDE)
    assert (last[-1] == 0) == (triggers == 1)
    missing = 1 - last[:-1] @ above
    row = missing / last[-1] if triggers > 1 else missing
    columns = lengths(np.vstack([above, row]))
    assert row[0] == pytest.approx(0, abs=1e-12)
    assert columns.max() <= mechanism.sensitivity * (1 + 1e-13)
    assert columns.min() >= mechanism.sensitivity * (1 - 1e-13)


@pytest.mark.parametrize("triggers", SOME_T)
def test_no_shorter_combination_is_the_sum(triggers: int) -> None:
    """b' is at right angles to the only combination of the rows that is 0, so it is the shortest;
    its squared length is the variance, and that of the formula."""
    mechanism = fit(triggers)
    above = encoder(mechanism)
    columns = lengths(above)
    final = np.sqrt(columns[0] ** 2 - columns**2)
    w = np.linalg.solve(above.T, final)  # w E = g
    beta = np.linalg.solve(above.T, np.ones(triggers))  # beta E = 1
    last = decoder(mechanism)[-1]
    zero = np.append(w, -1)
    assert last @ zero == pytest.approx(0, abs=1e-12)
    assert lengths(last) ** 2 == pytest.approx(mechanism.variance[-1], rel=1e-13)
    saved = (beta @ w) ** 2 / (1 + w @ w)
    assert mechanism.variance[-1] == pytest.approx(beta @ beta - saved, rel=1e-12)
    a = (beta @ w) / (1 + w @ w)
    np.testing.assert_allclose(last, np.append(beta - a * w, a), rtol=0, atol=1e-12)
    assert mechanism.path_deviation_max >= np.sqrt(max(mechanism.variance))
    assert mechanism.path_deviation_max >= np.sqrt(beta @ beta) + lengths(a * zero) - 1e-12


@pytest.mark.skipif(bool(np.finfo(WIDE).eps > 2**-60), reason="no wider float here")
@pytest.mark.parametrize("triggers", [1000, 10_000])
def test_no_column_is_longer_than_s_over_many_triggers(triggers: int) -> None:
    """As above, from the stored row; products with Toeplitz matrices are correlations."""
    mechanism = fit(triggers)
    column = plain_blt.first_column(mechanism).astype(WIDE)
    v = mechanism.final_row[:-1].astype(WIDE) / WIDE(mechanism.final_row[-1])
    row = np.correlate(v, column, "full")[triggers - 1 :]  # v E
    squares = np.cumsum(column**2)[::-1] + row**2
    assert np.sqrt(squares.max()) <= mechanism.sensitivity * (1 + 1e-13)
    assert np.sqrt(squares.min()) >= mechanism.sensitivity * (1 - 1e-13)


@pytest.mark.parametrize("triggers", SOME_T)
def test_releases_before_the_last_are_as_without_it(triggers: int) -> None:
    """The same bits as the recursion alone, and the same variances."""
    mechanism = fit(triggers)
    paths = np.random.default_rng(triggers).standard_normal((7, triggers + 1))
    plain = plain_blt.recursion(mechanism, paths[:, :-1])
    assert walked(mechanism, paths)[:, :-1].tobytes() == plain[:, :-1].tobytes()
    squares = np.cumsum(plain_blt.response(mechanism) ** 2)
    np.testing.assert_allclose(mechanism.variance[:-1], squares[:-1], rtol=1e-14)


@pytest.mark.parametrize("triggers", SOME_T)
def test_the_additional_normal_is_used_at_the_last_trigger_alone(triggers: int) -> None:
    """It moves the last release by a, and no other by a bit; no path begins or ends with it."""
    mechanism = fit(triggers)
    rng = np.random.default_rng(triggers)
    paths = np.tile(rng.standard_normal((1, triggers + 1)), (2, 1))
    paths[1, -1] += 1
    one, other = walked(mechanism, paths)
    assert one[:-1].tobytes() == other[:-1].tobytes()
    assert other[-1] - one[-1] == pytest.approx(mechanism.final_row[-1], abs=1e-14)
    assert (mechanism.final_row[-1] > 0.2) == (triggers > 1)
    steps = np.arange(triggers + 1)
    assert mechanism.draws(steps).tolist() == [*range(triggers), triggers + 1]


def test_one_trigger_has_no_use_for_it() -> None:
    """At T = 1 the release is the first normal, to the bit."""
    mechanism = fit(1)
    paths = np.random.default_rng(1).standard_normal((5, 2))
    assert walked(mechanism, paths).tobytes() == paths[:, :1].tobytes()
    assert mechanism.variance.tolist() == [1.0]
    assert mechanism.final_row.tolist() == [0.0, 0.0]
    assert mechanism.path_deviation_max == 1.0


@pytest.mark.parametrize(
    ("triggers", "without", "with_it"),
    [(10, 1.791, 1.478), (24, 2.075, 1.593), (100, 2.531, 1.758), (1000, 3.265, 1.993)],
)
def test_how_much_it_saves(triggers: int, without: float, with_it: float) -> None:
    """s b(T) and s b'(T) of the square root of the prefix sum, by dense matrices; a BLT is within
    0.4 % of both."""
    above = toeplitz.dense(toeplitz.coefficients(triggers))
    columns = lengths(above)
    final = np.sqrt(columns[0] ** 2 - columns**2)
    s = toeplitz.sensitivity(triggers)
    beta = np.linalg.solve(above.T, np.ones(triggers))
    below = np.vstack([above, final])
    shortest = np.linalg.lstsq(below.T, np.ones(triggers), rcond=None)[0]
    assert s * lengths(beta) == pytest.approx(without, abs=0.0005)
    assert s * lengths(shortest) == pytest.approx(with_it, abs=0.0005)
    mechanism = fit(triggers)
    b = np.sqrt(np.sum(plain_blt.response(mechanism) ** 2))
    assert mechanism.sensitivity * b == pytest.approx(without, rel=0.004)
    last = mechanism.sensitivity * np.sqrt(mechanism.variance[-1])
    assert with_it * 0.9997 <= last <= with_it * 1.004


def test_the_final_row_cannot_be_changed() -> None:
    """Mechanisms are shared, so their arrays are read-only."""
    with pytest.raises(ValueError, match="read-only"):
        fit(5).final_row[0] = 0.0
