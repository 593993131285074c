"""The secret, and that nothing else reads entropy."""

from __future__ import annotations

import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

import dpsqlp
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import SecretError
from reference.twin import derive

KEY, INSTANCE = bytes(range(32)), bytes(range(16))
SOURCES = sorted(Path(dpsqlp.__file__).parent.rglob("*.py"))
ENTROPY = {
    "secrets",
    "random",
    "urandom",
    "getrandom",
    "default_rng",
    "SystemRandom",
    "uuid",
    "uuid1",
    "uuid4",
    "generate_key",
}


@pytest.mark.parametrize(
    ("key", "instance"),
    [(b"", INSTANCE), (KEY[:-1], INSTANCE), (KEY + b"\0", INSTANCE), (KEY, b""), (KEY, KEY)],
)
def test_other_lengths_are_refused(key: bytes, instance: bytes) -> None:
    """The refusal says the lengths and nothing of the secret."""
    with pytest.raises(SecretError, match=rf"got {len(key)} and {len(instance)}") as refusal:
        Secret(key, instance)
    assert "Use Secret.new()" in str(refusal.value)
    for shown in (repr(key), key.hex()):
        assert not key or shown not in str(refusal.value)


def test_the_key_is_not_shown() -> None:
    """repr, str and format have the instance, which is public, and not the key."""
    secret = Secret(b"K" * 32, b"I" * 16)
    for text in (repr(secret), str(secret), f"{secret}", repr([secret])):
        assert "K" * 4 not in text
        assert "4b4b" not in text
        assert "I" * 16 in text


def test_new_secrets_differ() -> None:
    """In both parts, every time."""
    made = [Secret.new() for _ in range(50)]
    assert len({secret.key for secret in made}) == 50
    assert len({secret.instance for secret in made}) == 50
    assert {(len(s.key), len(s.instance)) for s in made} == {(32, 16)}


def test_a_secret_cannot_be_changed() -> None:
    """Frozen, so that a running pipeline keeps its noise."""
    with pytest.raises(AttributeError):
        Secret(KEY, INSTANCE).key = bytes(32)  # type: ignore[misc]


def test_derived_keys_are_the_twins_and_all_different() -> None:
    """HMAC over an injective encoding of label, instance and context."""
    secret = Secret(KEY, INSTANCE)
    contexts = [(b"noise",), (b"noise", b""), (b"noise", b"a", b"b"), (b"noise", b"ab")]
    contexts += [(b"noise", b"", b"ab"), (b"noise", b"ab", b""), (b"identifier", b"ab")]
    found = [secret.derive(*context) for context in contexts]
    assert found == [derive(KEY, label, INSTANCE, *rest) for label, *rest in contexts]
    assert len({KEY, *found}) == len(contexts) + 1
    assert {len(key) for key in found} == {32}


def test_one_module_reads_entropy() -> None:
    """No name of an entropy source stands in another module, but where data is made up, and where
    options are searched on a sample, by a seed.
    """
    assert len(SOURCES) > 20
    found = set()
    for path in SOURCES:
        if path.parts[-2:] == ("demo", "data.py") or path.parts[-2] in ("experiments", "tuning"):
            continue
        with tokenize.open(path) as source:
            for token in tokenize.generate_tokens(source.readline):
                if token.type == tokenize.NAME and token.string in ENTROPY:
                    found.add((path.relative_to(SOURCES[0].parent).as_posix(), token.string))
    assert found == {("entropy/secret.py", "secrets")}


def test_importing_the_package_is_cheap() -> None:
    """`import dpsqlp` loads none of the libraries that take long."""
    slow = ("numba", "pyarrow", "scipy", "numpy", "cryptography")
    program = f"import sys, dpsqlp; print([m for m in {slow} if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    )
    assert done.stdout.strip() == "[]"
