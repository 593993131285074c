"""Noise is a function: the twin's, sliced anywhere, and different wherever an input differs."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from dpsqlp.entropy.noise import Noise
from dpsqlp.entropy.secret import Secret
from reference.twin import derive, normal, uniform_draws

SECRET = Secret(bytes(range(32)), bytes(range(50, 66)))
PLAN = bytes(range(200, 232))
IDS = np.array([[0, 0], [1, 0], [0, 1], [2**64 - 1, 2**63], [12345, 67890]], np.uint64)


def draw(
    first: Any,
    last: Any,
    *,
    key: bytes = SECRET.key,
    instance: bytes = SECRET.instance,
    fingerprint: bytes = PLAN,
    purpose: str = "process/0",
    ids: np.ndarray = IDS,
    window: int = 3,
    rounds: Any = 0,
) -> list[np.ndarray]:
    noise = Noise(Secret(key, instance), fingerprint, purpose)
    shape = len(ids)
    seeds = noise.seeds(ids, window, np.broadcast_to(np.int64(rounds), shape))
    first, last = (np.broadcast_to(np.int64(end), shape) for end in (first, last))
    values, offsets = noise.draw(seeds, first, last)
    assert (np.diff(offsets) == last - first).all()
    return [values[a:b] for a, b in itertools.pairwise(offsets)]


@pytest.mark.parametrize("window", [0, 1, -1, 2**40, -(2**63), 2**63 - 1])
@pytest.mark.parametrize("purpose", ["selection", "process/0"])
def test_equals_the_twin(purpose: str, window: int) -> None:
    """Block for block: AES(AES(AES(id) ^ (window, round)) ^ j), then the quantile."""
    noise_key = derive(SECRET.key, b"noise", SECRET.instance, PLAN, purpose.encode())
    rounds = np.array([0, 1, 2, 2**31, 2**32 - 1])
    found = draw(0, 40, purpose=purpose, window=window, rounds=rounds)
    for row, key_id, round_number in zip(found, IDS, rounds, strict=True):
        blocks = uniform_draws(noise_key, key_id.tobytes(), window, int(round_number), 40)
        np.testing.assert_allclose(row, [normal(*b) for b in blocks], rtol=1e-14, atol=1e-15)


def test_a_part_is_a_slice_of_the_whole() -> None:
    """Draws first .. last - 1 have the same bits as in one draw from 0, row by row."""
    whole = draw(0, 300)
    dice = np.random.default_rng(5)
    for _ in range(50):
        ends = np.sort(dice.integers(0, 301, (2, len(IDS))), axis=0)
        for row, full, first, last in zip(draw(*ends), whole, *ends, strict=True):
            assert (row == full[first:last]).all()
    far = draw(2**40, 2**40 + 3)
    assert (np.concatenate(far) == np.concatenate(draw(2**40 + np.arange(5) * 0, 2**40 + 3))).all()


def test_rows_do_not_see_each_other() -> None:
    """The same row alone, or among others in another order."""
    whole = draw(0, 20)
    order = [3, 0, 4, 2, 1]
    for row, k in zip(draw(0, 20, ids=IDS[order]), order, strict=True):
        assert (row == whole[k]).all()
        assert (draw(0, 20, ids=IDS[[k]])[0] == whole[k]).all()
    assert draw(0, 20, ids=IDS[:0]) == []


CHANGES: list[dict[str, Any]] = [
    {},
    {"key": bytes(32)},
    {"key": SECRET.key[:-1] + b"\0"},
    {"instance": bytes(16)},
    {"fingerprint": PLAN[:-1] + b"\0"},
    {"purpose": "process/1"},
    {"purpose": "process/10"},
    {"purpose": "selection"},
    {"window": 4},
    {"window": -3},
    {"window": 3 + 2**32},
    {"rounds": 1},
    {"rounds": 3},
    {"rounds": 2**31},
]


def test_every_input_changes_every_draw() -> None:
    """Secret, instance, plan, purpose, key, window, round and index: no draw occurs twice."""
    draws = [row for change in CHANGES for row in draw(0, 64, **change)]
    assert len(np.unique(np.concatenate(draws))) == len(CHANGES) * len(IDS) * 64


def test_parts_of_the_context_cannot_be_moved() -> None:
    """The last byte of the plan is not the first of the purpose."""
    moved: dict[str, Any] = {"fingerprint": PLAN + b"p", "purpose": "rocess/0"}
    assert draw(0, 1, ids=IDS[:1])[0] != draw(0, 1, ids=IDS[:1], **moved)[0]


def test_a_retry_draws_the_same() -> None:
    """Nothing is left over from an earlier call."""
    noise = Noise(SECRET, PLAN, "process/0")
    seeds = noise.seeds(IDS, 3, np.zeros(5, np.int64))
    ends = np.zeros(5, np.int64), np.full(5, 9)
    once, again = noise.draw(seeds, *ends)[0], noise.draw(seeds, *ends)[0]
    assert (once == again).all()
    assert (seeds == noise.seeds(IDS, 3, np.zeros(5, np.int64))).all()
