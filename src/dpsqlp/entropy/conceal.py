"""Key texts at rest: XORed with a keyed stream, so that stored state does not show unreleased keys.

Block n of the stream of a key is AES(AES(id) xor n) under a key of its own. The stream belongs to
the key's identifier, which belongs to the text: no two texts share one. Concealing twice reveals.
"""

from __future__ import annotations

import numba
import numpy as np

from dpsqlp.entropy.canonical import Encoded
from dpsqlp.entropy.prf import Prf, Words
from dpsqlp.entropy.secret import Secret


class Concealer:
    """Conceals and reveals the key texts of one instance."""

    __slots__ = ("_prf",)

    def __init__(self, secret: Secret) -> None:
        self._prf = Prf(secret.derive(b"text"))

    def conceal(self, ids: Words, texts: Encoded) -> Encoded:
        """The texts of these keys, XORed with their streams."""
        blocks = (np.diff(texts.offsets) + 15) // 16
        ends = np.cumsum(blocks)
        stream = np.empty((int(ends[-1]) if len(ends) else 0, 2), np.uint64)
        _count(self._prf.encrypt(ids), ends, stream)
        begin = texts.offsets[0]
        out = texts.data[begin : texts.offsets[-1]].copy()
        offsets = texts.offsets - begin
        _xor(out, offsets, ends - blocks, self._prf.encrypt(stream).view(np.uint8))
        return Encoded(out, offsets)


@numba.njit(nogil=True, cache=True)
def _count(seeds, ends, out):  # type: ignore[no-untyped-def]
    at = 0
    for r in range(len(ends)):
        number = np.uint64(0)
        while at < ends[r]:
            out[at, 0] = seeds[r, 0] ^ number
            out[at, 1] = seeds[r, 1]
            number += np.uint64(1)
            at += 1


@numba.njit(nogil=True, cache=True)
def _xor(data, offsets, begins, stream):  # type: ignore[no-untyped-def]
    for r in range(len(begins)):
        for k in range(offsets[r + 1] - offsets[r]):
            data[offsets[r] + k] ^= stream[begins[r] + k // 16, k % 16]
