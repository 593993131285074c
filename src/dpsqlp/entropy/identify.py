"""Keyed 128-bit identifiers of units and keys.

Privacy contract: an identifier is AES-CBC-MAC of the tuple's canonical bytes with their length in
front. Two different tuples share one with probability about 2^-128, so one unit's data cannot
change another's bounding, and nobody without the secret can aim for a collision.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from dpsqlp.entropy.canonical import Encoded
from dpsqlp.entropy.prf import Prf, Words
from dpsqlp.entropy.secret import Secret

_LONG_BLOCKS = 64  # messages past this are few: each is chained by itself


class Identifier:
    """Identifiers for one purpose (`unit` or `key`) of one instance."""

    __slots__ = ("_prf",)

    def __init__(self, secret: Secret, purpose: str) -> None:
        self._prf = Prf(secret.derive(b"identifier", purpose.encode()))

    def identify(self, encoded: Encoded) -> Words:
        """The identifier of every byte string."""
        blocks = (np.diff(encoded.offsets) + 4 + 15) // 16
        state = np.zeros((len(encoded), 2), np.uint64)
        state = self._prf.encrypt(_absorb(encoded, np.arange(len(encoded)), 0, state))
        active = np.flatnonzero((blocks > 1) & (blocks <= _LONG_BLOCKS))
        step = 1
        while len(active):
            state[active] = self._prf.encrypt(_absorb(encoded, active, step, state[active]))
            step += 1
            active = active[blocks[active] > step]
        for row in np.flatnonzero(blocks > _LONG_BLOCKS):
            text = encoded.data[encoded.offsets[row] : encoded.offsets[row + 1]].tobytes()
            message = (len(text).to_bytes(4, "big") + text).ljust(16 * blocks[row], b"\0")
            state[row] = np.frombuffer(self._prf.chain(message), np.uint64)
        return state


def _absorb(encoded: Encoded, rows: NDArray[np.int64], step: int, state: Words) -> Words:
    """The state of rows with block number `step` of their length-prefixed messages XORed in."""
    _xor(encoded.data, encoded.offsets, rows, step, state)
    return state


@numba.njit(nogil=True, cache=True)
def _xor(data, offsets, rows, step, state):  # type: ignore[no-untyped-def]
    for k in range(len(rows)):
        row = rows[k]
        low = np.uint64(0)
        high = np.uint64(0)
        first = 0
        if step == 0:  # the length, big-endian, stands in the first four bytes
            length = offsets[row + 1] - offsets[row]
            for byte in range(4):
                low |= np.uint64((length >> (8 * (3 - byte))) & 255) << np.uint64(8 * byte)
            first = 4
        begin = offsets[row] + step * 16 - 4
        last = min(offsets[row + 1] - begin, 16)
        for byte in range(first, min(last, 8)):
            low |= np.uint64(data[begin + byte]) << np.uint64(8 * byte)
        for byte in range(8, last):
            high |= np.uint64(data[begin + byte]) << np.uint64(8 * (byte - 8))
        state[k, 0] ^= low
        state[k, 1] ^= high
