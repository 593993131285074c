"""Encrypted and authenticated files: AES-256-GCM, with a key of its own for each file.

    seal  =  HMAC(K1; name, public part, SHA-256 of the contents)
    key   =  HMAC(K2; seal)
    file  =  seal, AES-256-GCM(key; contents), tag         associated data: name, public part

K1 and K2 belong to one instance. GCM must never use a key and nonce for two texts: another name or
other contents have another seal, hence another key, so all files use one nonce. The same contents
under the same name give the same bytes, as a retry needs. (AES-GCM-SIV would do the same; OpenSSL's
is twenty times slower.)

Privacy contract: without the secret a file shows its name, its size, its public part, and whether
it equals another version of the same name. A changed byte, another name, another instance, another
public part or truncation is detected. An older version of the same file is not: a version is
authenticated by its seal, kept elsewhere (docs/proof.md, Lemma 26).
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterator, Sequence

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from dpsqlp.entropy.secret import Secret

SEAL_BYTES = 32
_TAG_BYTES = 16
_NONCE = bytes(12)
_CHUNK_BYTES = 1 << 20  # for larger pieces, memory is allocated anew each time

Parts = Sequence[bytes | memoryview]


class BrokenSeal(Exception):  # noqa: N818  callers turn it into an error message
    """The contents are not what was sealed under this name in this instance."""


class Sealer:
    """Seals and opens the files of one instance. Threads may share it."""

    __slots__ = ("_keys", "_seals")

    def __init__(self, secret: Secret) -> None:
        self._seals = secret.derive(b"seal")
        self._keys = secret.derive(b"seal key")

    def seal(
        self, name: str, parts: Parts, public: bytes = b""
    ) -> tuple[bytes, Iterator[bytes | memoryview]]:
        """The seal of a file's contents, and the file, encrypted as the iterator is read."""
        digest = hashlib.sha256()
        for part in parts:
            digest.update(part)
        associated = _associated(name, public)
        seal = hmac.digest(self._seals, associated + digest.digest(), "sha256")
        return seal, self._encrypted(seal, associated, parts)

    def _encrypted(
        self, seal: bytes, associated: bytes, parts: Parts
    ) -> Iterator[bytes | memoryview]:
        encryptor = Cipher(self._aes(seal), modes.GCM(_NONCE)).encryptor()
        encryptor.authenticate_additional_data(associated)
        yield seal
        for part in parts:
            view = memoryview(part).cast("B")
            for begin in range(0, len(view), _CHUNK_BYTES):
                yield encryptor.update(view[begin : begin + _CHUNK_BYTES])
        encryptor.finalize()
        yield encryptor.tag

    def open(self, name: str, data: bytes, public: bytes = b"") -> tuple[bytes, bytes]:
        """The seal and the contents of a file. Raises BrokenSeal."""
        view = memoryview(data)
        seal, body, tag = view[:SEAL_BYTES], view[SEAL_BYTES:-_TAG_BYTES], view[-_TAG_BYTES:]
        if len(data) < SEAL_BYTES + _TAG_BYTES:
            raise BrokenSeal
        decryptor = Cipher(self._aes(bytes(seal)), modes.GCM(_NONCE, bytes(tag))).decryptor()
        decryptor.authenticate_additional_data(_associated(name, public))
        pieces = range(0, len(body), _CHUNK_BYTES)  # other threads run in between
        contents = b"".join([decryptor.update(body[at : at + _CHUNK_BYTES]) for at in pieces])
        try:
            decryptor.finalize()
        except InvalidTag:
            raise BrokenSeal from None
        return bytes(seal), contents

    def _aes(self, seal: bytes) -> algorithms.AES:
        return algorithms.AES(hmac.digest(self._keys, seal, "sha256"))


def _associated(name: str, public: bytes) -> bytes:
    """The associated data of a file, encoded injectively."""
    return len(name.encode()).to_bytes(4, "big") + name.encode() + public
