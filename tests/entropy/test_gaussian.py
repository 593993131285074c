"""Normals against quantiles in arbitrary precision."""

from __future__ import annotations

import itertools
import random

import mpmath
import numpy as np
import pytest
from scipy.special import ndtri

from dpsqlp.entropy.gaussian import normals

RELATIVE_ERROR = 1.5e-15  # AS241 has 1e-15; measured are 6e-16
LAST = 2**63 - 1
CENTRE = int(0.425 * 2.0**64)  # the tails begin at |p - 1/2| = 0.425


def of(blocks: list[tuple[int, int]]) -> np.ndarray:
    """Normals of (signed first word, unsigned second word)."""
    return normals(np.array([(w % 2**64, v) for w, v in blocks], np.uint64).reshape(-1, 2))


def exact(w: int, v: int) -> mpmath.mpf:
    """The quantile, by Newton from scipy's. In the tails the second word is the digits below."""
    if w < 0:
        return -exact(-1 - w, v)
    if w <= CENTRE:  # erf(x / sqrt 2) / 2 = p - 1/2
        above = (2 * mpmath.mpf(w) + 1) / 2**65
        x = mpmath.mpf(float(ndtri(0.5 + float(above))))
        for _ in range(3):
            gap = mpmath.erf(x / mpmath.sqrt(2)) / 2 - above
            x -= gap / mpmath.npdf(x)
        return x
    tail = (mpmath.mpf(LAST - w) * 2**65 + 2 * v + 1) / mpmath.mpf(2) ** 129
    x = -mpmath.mpf(float(ndtri(float(tail))))
    for _ in range(3):
        gap = mpmath.erfc(x / mpmath.sqrt(2)) / 2 - tail
        x += gap / mpmath.npdf(x)
    return x


def errors(blocks: list[tuple[int, int]]) -> list[float]:
    with mpmath.workdps(60):
        return [
            float(abs(found / exact(*block) - 1))
            for found, block in zip(of(blocks).tolist(), blocks, strict=True)
        ]


def test_the_centre_is_exact() -> None:
    """From the two words around zero, over every power of two, to where the tails begin."""
    dice = random.Random(1)
    words = [0, 1, 2, 3, *(2**k + dice.randrange(2**k) for k in range(1, 62)), CENTRE - 1, CENTRE]
    words += [dice.randrange(CENTRE) for _ in range(200)]
    blocks = [(w, dice.randrange(2**64)) for word in words for w in (word, -1 - word)]
    assert max(errors(blocks)) < RELATIVE_ERROR


def test_the_tails_are_exact() -> None:
    """Down to every power of two, through both tail approximations."""
    dice = random.Random(2)
    distances = [2**k + dice.randrange(2**k) for k in range(60)]
    distances += [dice.randrange(LAST - CENTRE) for _ in range(200)]
    blocks = [(LAST - d, dice.randrange(2**64)) for d in distances]
    blocks += [(-1 - w, v) for w, v in blocks]
    assert max(errors(blocks)) < RELATIVE_ERROR


def test_the_extreme_words_are_exact_and_finite() -> None:
    """The second word takes over below 2^-64; the last block of all is at 13 deviations."""
    seconds = [0, 1, 2, *(2**k for k in range(2, 64)), 2**64 - 1]
    blocks = [(w, v) for v in seconds for w in (LAST, -(2**63))]
    assert max(errors(blocks)) < RELATIVE_ERROR
    found = of(blocks)
    assert np.isfinite(found).all()
    assert np.abs(found).max() == pytest.approx(13.06, abs=0.05)
    assert np.abs(found).min() > 9


def test_a_draw_is_off_by_no_more_than_is_charged_for_it() -> None:
    """2^-48 + 2^-50 deviations, within nine of them: what is charged for a path of one trigger."""
    dice = random.Random(4)
    distances = [2**k + dice.randrange(2**k) for k in range(62) for _ in range(20)]
    blocks = [(LAST - d, dice.randrange(2**64)) for d in distances if d <= LAST]
    off = np.array(errors(blocks)) * np.abs(of(blocks))
    assert 2.0**-49 < off[np.abs(of(blocks)) <= 9].max() < 2.0**-48 + 2.0**-50


def test_symmetric() -> None:
    """The one's complement of the first word is the mirrored normal: in the tails bit for bit, in
    the centre, where the word is rounded to a float, up to a last digit."""
    dice = random.Random(3)
    blocks = [(dice.randrange(2**63), dice.randrange(2**64)) for _ in range(5000)]
    blocks += [(w, 5) for w in (0, 1, CENTRE - 1, CENTRE, CENTRE + 1, LAST)]
    found, mirrored = of(blocks), of([(-1 - w, v) for w, v in blocks])
    assert (found > 0).all()
    tail = np.array([w > CENTRE for w, _ in blocks])
    assert (found[tail] == -mirrored[tail]).all()
    np.testing.assert_allclose(found, -mirrored, rtol=2.0**-51, atol=0)


@pytest.mark.parametrize("around", [0, CENTRE, -1 - CENTRE])
def test_monotone_around_zero_and_where_the_centre_ends(around: int) -> None:
    """Rising through 0 and through 0.425, and no step at the seam beyond the error allowed."""
    rising = of([(around + k * 2**20, 0) for k in range(-500, 501)])
    assert (np.diff(rising) > 0).all()
    if around:
        below, above = of([(around, 0), (around + (1 if around > 0 else -1), 0)])
        assert abs(above / below - 1) < RELATIVE_ERROR


def test_monotone_where_the_two_tails_meet() -> None:
    """AS241 changes again at p = e^-25, here between two first words: even steps throughout."""
    word = LAST - int(np.exp(-25.0) * 2.0**64)
    steps = -np.diff(of([(word, k << 54) for k in range(1024)]))
    assert steps.min() > 0.9 * np.median(steps) > 0
    assert steps.max() < 1.1 * np.median(steps)


def test_monotone_over_the_whole_range() -> None:
    """Evenly spread words, then words that halve their distance from the end."""
    step = 2**64 // 20_000
    words = [-(2**63) + k * step for k in range(20_000)]
    words += [LAST - int(2.0 ** (52 - k / 8)) for k in range(400)]
    found = of([(w, 0) for w in sorted(set(words))])
    assert (np.diff(found) > 0).all()


@pytest.mark.parametrize("sign", [1, -1])
def test_second_words_tell_far_normals_apart(sign: int) -> None:
    """At 6 deviations neighbouring first words are 2^-37 apart: the second word fills the gap."""
    tail = 9.866e-10  # of 6 deviations
    word = LAST - int(tail * 2.0**64)
    word = word if sign > 0 else -1 - word
    fine = of([(word, k << 58) for k in range(64)])
    assert len(np.unique(fine)) == 64
    assert abs(float(np.ptp(fine))) < 2.0**-35
    # Towards the mean as the tail grows, and never past the next first word.
    inner = of([(word - sign, 0)])[0]
    assert (np.diff(sign * fine) < 0).all()
    assert sign * inner < sign * fine[-1]
    last = LAST if sign > 0 else -(2**63)
    near_the_end = of([(last, v) for v in range(2000)])
    assert len(np.unique(near_the_end)) == 2000
    assert (np.diff(sign * near_the_end) < 0).all()


def test_rows_do_not_see_each_other() -> None:
    """Tails and centres in any company have the same bits."""
    dice = random.Random(4)
    blocks = [(dice.randrange(-(2**63), 2**63), dice.randrange(2**64)) for _ in range(300)]
    whole = of(blocks)
    assert (np.concatenate([of([block]) for block in blocks]) == whole).all()
    assert (of(blocks[::-1]) == whole[::-1]).all()
    for first, second in itertools.pairwise((0, 1, 7, 120, 300)):
        assert (of(blocks[first:second]) == whole[first:second]).all()
    assert len(of([])) == 0
