"""A keyed function of blocks: AES-256 through OpenSSL, in bulk.

Messages of 16-byte blocks are authenticated by CBC-MAC, a pseudo-random function on prefix-free
inputs. Callers see to prefix freedom: noise inputs have a fixed number of blocks, identifiers
carry their length in the first block.
"""

from __future__ import annotations

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

Words = NDArray[np.uint64]  # shape (n, 2): one 16-byte block a row, two little-endian words


class Prf:
    """AES under one derived key. Calls share nothing, so threads may share a Prf."""

    __slots__ = ("_algorithm", "_blockwise")

    def __init__(self, key: bytes) -> None:
        self._algorithm = algorithms.AES(key)
        self._blockwise = Cipher(self._algorithm, modes.ECB())  # noqa: S305  a PRF, not encryption

    def encrypt(self, blocks: Words) -> Words:
        """AES of every block."""
        out = np.empty(blocks.nbytes + 15, np.uint8)
        flat = np.ascontiguousarray(blocks).reshape(-1).view(np.uint8)
        self._blockwise.encryptor().update_into(flat.data, out.data)
        return out[: blocks.nbytes].view(np.uint64).reshape(-1, 2)

    def chain(self, message: bytes) -> bytes:
        """CBC-MAC of one long message whose length is a multiple of 16."""
        encryptor = Cipher(self._algorithm, modes.CBC(bytes(16))).encryptor()
        return (encryptor.update(message) + encryptor.finalize())[-16:]
