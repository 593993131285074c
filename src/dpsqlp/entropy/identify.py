"""Keyed 128-bit identifiers of units and keys.

Privacy contract: an identifier is the AES-CBC-MAC of the tuple's canonical bytes, prefixed with
their length. Two different tuples collide with probability about 2^-128, so one unit's data cannot
change another's bounding, and without the secret nobody can provoke a collision (docs/proof.md,
Lemma 22).
"""

from __future__ import annotations

import numba
import numpy as np

from dpsqlp.entropy.canonical import Encoded
from dpsqlp.entropy.prf import Array128, Prf
from dpsqlp.entropy.secret import Secret

_FIRST_BYTES = 12  # of the message, in the first block
_LONG_BLOCKS = 64  # longer messages are rare: each is chained by itself


class Identifier:
    """Identifiers for one purpose (`unit` or `key`) of one instance."""

    __slots__ = ("_prf",)

    def __init__(self, secret: Secret, purpose: str) -> None:
        self._prf = Prf(secret.derive(b"identifier", purpose.encode()))

    def identify(self, encoded: Encoded) -> Array128:
        """The identifier of every byte string."""
        state = np.empty((len(encoded) + 1, 2), np.uint64)
        longest = _begin(encoded.data, encoded.offsets, state)
        state = self._prf.encrypt_in_place(state)
        if longest <= _FIRST_BYTES:
            return state
        blocks = (np.diff(encoded.offsets) + 4 + 15) // 16
        active = np.flatnonzero((blocks > 1) & (blocks <= _LONG_BLOCKS))
        step = 1
        while len(active):
            chained = state[active]
            _absorb(encoded.data, encoded.offsets, active, step, chained)
            state[active] = self._prf.encrypt(chained)
            step += 1
            active = active[blocks[active] > step]
        for row in np.flatnonzero(blocks > _LONG_BLOCKS):
            text = encoded.data[encoded.offsets[row] : encoded.offsets[row + 1]].tobytes()
            message = (len(text).to_bytes(4, "big") + text).ljust(16 * blocks[row], b"\0")
            state[row] = np.frombuffer(self._prf.chain(message), np.uint64)
        return state


@numba.njit(nogil=True, cache=True)
def _begin(data, offsets, state):  # type: ignore[no-untyped-def]
    """Write the first blocks: the length in four bytes, big-endian, then the message. Returns the
    longest length.
    """
    longest = 0
    for row in range(len(offsets) - 1):
        begin = offsets[row]
        length = offsets[row + 1] - begin
        longest = max(longest, length)
        low = np.uint64(0)
        for byte in range(4):
            low |= np.uint64((length >> (8 * (3 - byte))) & 255) << np.uint64(8 * byte)
        word = np.uint64(0)
        if length >= 8:  # a constant number of bytes compiles to one load
            for byte in range(8):
                word |= np.uint64(data[begin + byte]) << np.uint64(8 * byte)
        else:
            for byte in range(length):
                word |= np.uint64(data[begin + byte]) << np.uint64(8 * byte)
        low |= word << np.uint64(32)
        high = word >> np.uint64(32)
        for byte in range(8, min(length, _FIRST_BYTES)):
            high |= np.uint64(data[begin + byte]) << np.uint64(8 * (byte - 4))
        state[row, 0] = low
        state[row, 1] = high
    return longest


@numba.njit(nogil=True, cache=True)
def _absorb(data, offsets, rows, step, state):  # type: ignore[no-untyped-def]
    """XOR block number `step` >= 1 of the rows' messages into their states."""
    for k in range(len(rows)):
        low = np.uint64(0)
        high = np.uint64(0)
        begin = offsets[rows[k]] + step * 16 - 4
        last = min(offsets[rows[k] + 1] - begin, 16)
        for byte in range(min(last, 8)):
            low |= np.uint64(data[begin + byte]) << np.uint64(8 * byte)
        for byte in range(8, last):
            high |= np.uint64(data[begin + byte]) << np.uint64(8 * (byte - 8))
        state[k, 0] ^= low
        state[k, 1] ^= high
