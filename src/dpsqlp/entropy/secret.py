"""The secret, and every key that is derived from it.

Privacy contract: the secret is 256 bits of operating-system entropy, drawn once per pipeline
instance and never logged. Separate keys are derived for noise and identifiers, and for each plan
and purpose, from an injective encoding of the context; so equal noise for two purposes, plans or
instances would require a collision of HMAC-SHA256 (docs/proof.md, Lemma 21).

This is the only module of the package that reads entropy.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass, field

from dpsqlp.errors import SecretError

SECRET_BYTES = 32
INSTANCE_BYTES = 16


@dataclass(frozen=True, slots=True)
class Secret:
    """A pipeline instance's secret and its public instance number."""

    key: bytes = field(repr=False)
    instance: bytes

    def __post_init__(self) -> None:
        sizes = [len(b) for b in (self.key, self.instance) if isinstance(b, bytes)]
        if sizes != [SECRET_BYTES, INSTANCE_BYTES]:
            raise SecretError(
                f"A secret has {SECRET_BYTES} bytes and an instance {INSTANCE_BYTES}; got"
                f" {len(self.key)} and {len(self.instance)}. Use Secret.new(), or give bytes."
            )

    @classmethod
    def new(cls) -> Secret:
        """A fresh secret for a new pipeline instance."""
        return cls(secrets.token_bytes(SECRET_BYTES), secrets.token_bytes(INSTANCE_BYTES))

    def derive(self, label: bytes, *context: bytes) -> bytes:
        """A 256-bit key for one use, bound to this instance."""
        parts = (label, self.instance, *context)
        message = b"".join(len(part).to_bytes(4, "big") + part for part in parts)
        return hmac.new(self.key, b"dpsqlp/v1/" + message, hashlib.sha256).digest()


def new_name() -> str:
    """A unique public name: 128 random bits."""
    return secrets.token_hex(16)
