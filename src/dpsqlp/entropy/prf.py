"""A pseudo-random function of 16-byte blocks: AES-256 through OpenSSL, in bulk.

Messages of several blocks use CBC-MAC, a pseudo-random function on prefix-free inputs. Callers
ensure prefix freedom: noise inputs have a fixed number of blocks, identifiers have their length in
the first block.
"""

from __future__ import annotations

import threading

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

Array128 = NDArray[np.uint64]  # shape (n, 2): a block or id per row, as two little-endian words


class Prf:
    """AES under one derived key. Threads may share a Prf: each has a cipher context of its own."""

    __slots__ = ("_algorithm", "_contexts")

    def __init__(self, key: bytes) -> None:
        self._algorithm = algorithms.AES(key)
        self._contexts = threading.local()

    def encrypt(self, blocks: Array128) -> Array128:
        """AES of every block."""
        copy = np.empty((len(blocks) + 1, 2), np.uint64)
        copy[:-1] = blocks
        return self.encrypt_in_place(copy)

    def encrypt_in_place(self, blocks: Array128) -> Array128:
        """AES of every block except the last, which is space that OpenSSL requires."""
        try:
            context = self._contexts.blockwise
        except AttributeError:
            # block by block, as a PRF: nothing is ever decrypted
            context = Cipher(self._algorithm, modes.ECB()).encryptor()  # noqa: S305
            self._contexts.blockwise = context
        flat = blocks.reshape(-1).view(np.uint8)
        context.update_into(flat[:-16].data, flat.data)
        return blocks[:-1]

    def chain(self, message: bytes) -> bytes:
        """CBC-MAC of one long message whose length is a multiple of 16."""
        encryptor = Cipher(self._algorithm, modes.CBC(bytes(16))).encryptor()
        return (encryptor.update(message) + encryptor.finalize())[-16:]
