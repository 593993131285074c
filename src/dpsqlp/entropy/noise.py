"""Keyed noise: a normal is a function of (secret, instance, plan, purpose, key, window, round, j).

The totals of a process are numbered in the place of rounds, which selection alone has.

Privacy contract: the AES key is derived from instance, plan fingerprint and purpose; key id,
(window, round) and j are the three blocks of a fixed-length CBC-MAC. So no two of these tuples
share a draw, a retry draws the same noise, and a prediction evaluates the same path (docs/proof.md,
Lemma 21). Equal noise is safe only on equal input: a draw must never be added to two versions of
the same data (Lemma 23).
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from dpsqlp.entropy.gaussian import normals
from dpsqlp.entropy.prf import Array128, Prf
from dpsqlp.entropy.secret import Secret


class Noise:
    """The draws of one purpose of one plan."""

    __slots__ = ("_prf",)

    def __init__(self, secret: Secret, fingerprint: bytes, purpose: str) -> None:
        self._prf = Prf(secret.derive(b"noise", fingerprint, purpose.encode()))

    def seeds(self, ids: Array128, window: int, rounds: NDArray[np.int64]) -> Array128:
        """The seed of each (key, window, round), from which its draws follow."""
        state = self._prf.encrypt(ids)
        state[:, 0] ^= np.int64(window).view(np.uint64)
        state[:, 1] ^= rounds.astype(np.uint64)
        return self._prf.encrypt(state)

    def draw(
        self, seeds: Array128, first: NDArray[np.int64], last: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Draws first[r] .. last[r] - 1 of every row r, and the rows' offsets."""
        offsets = np.zeros(len(first) + 1, np.int64)
        np.cumsum(last - first, out=offsets[1:])
        blocks = np.empty((offsets[-1] + 1, 2), np.uint64)
        _count(seeds, first, offsets, blocks)
        return normals(self._prf.encrypt_in_place(blocks)), offsets


@numba.njit(nogil=True, cache=True)
def _count(seeds, first, offsets, out):  # type: ignore[no-untyped-def]
    for r in range(len(first)):
        number = np.uint64(first[r])
        for at in range(offsets[r], offsets[r + 1]):
            out[at, 0] = seeds[r, 0] ^ number
            out[at, 1] = seeds[r, 1]
            number += np.uint64(1)
