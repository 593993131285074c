"""Keyed 128-bit identifiers of units and keys.

Privacy contract: an identifier is AES-CBC-MAC of the tuple's canonical bytes with their length in
front. Two different tuples share one with probability about 2^-128, so one unit's data cannot
change another's bounding, and nobody without the secret can aim for a collision.
"""

from __future__ import annotations

import numba
import numpy as np

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
        active = np.flatnonzero(blocks <= _LONG_BLOCKS)
        step = 0
        while len(active):
            xored = np.empty((len(active), 2), np.uint64)
            _absorb(encoded.data, encoded.offsets, active, step, state, xored)
            state[active] = self._prf.encrypt(xored)
            step += 1
            active = active[blocks[active] > step]
        for row in np.flatnonzero(blocks > _LONG_BLOCKS):
            text = encoded.data[encoded.offsets[row] : encoded.offsets[row + 1]].tobytes()
            message = (len(text).to_bytes(4, "big") + text).ljust(16 * blocks[row], b"\0")
            state[row] = np.frombuffer(self._prf.chain(message), np.uint64)
        return state


@numba.njit(nogil=True, cache=True)
def _absorb(data, offsets, rows, step, state, out):  # type: ignore[no-untyped-def]
    """XOR block number `step` of the length-prefixed message into the state."""
    for k in range(len(rows)):
        row = rows[k]
        length = offsets[row + 1] - offsets[row]
        low = np.uint64(0)
        high = np.uint64(0)
        for byte in range(16):
            position = step * 16 + byte - 4
            if position < 0:
                value = np.uint64((length >> (8 * (3 - byte))) & 255)
            elif position < length:
                value = np.uint64(data[offsets[row] + position])
            else:
                break
            if byte < 8:
                low |= value << np.uint64(8 * byte)
            else:
                high |= value << np.uint64(8 * (byte - 8))
        out[k, 0] = state[row, 0] ^ low
        out[k, 1] = state[row, 1] ^ high
