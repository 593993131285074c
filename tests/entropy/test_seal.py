"""Sealed files: what they show, what they are bound to, and that no key is used for two texts."""

from __future__ import annotations

import pytest

from dpsqlp.entropy import seal as module
from dpsqlp.entropy.seal import BrokenSeal, Sealer
from dpsqlp.entropy.secret import Secret

SECRET = Secret(bytes(range(32)), bytes(range(16)))
TEXT = b"a text of some length, " * 9


def sealed(secret: Secret, name: str, *parts: bytes | memoryview, public: bytes = b"") -> bytes:
    seal, file = Sealer(secret).seal(name, parts, public)
    data = b"".join(file)
    assert data.startswith(seal)
    return data


def test_what_is_sealed_can_be_opened() -> None:
    """Whatever parts it came in, and also if it is empty."""
    data = sealed(SECRET, "a/b", TEXT, b"", memoryview(b"end"), public=b"{}")
    seal, contents = Sealer(SECRET).open("a/b", data, b"{}")
    assert (seal, contents) == (data[:32], TEXT + b"end")
    assert Sealer(SECRET).open("x", sealed(SECRET, "x"))[1] == b""


def test_large_parts_are_sealed_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pieces are encrypted one by one, and are the same file."""
    whole = sealed(SECRET, "x", TEXT)
    monkeypatch.setattr(module, "_CHUNK_BYTES", 10)
    assert sealed(SECRET, "x", TEXT) == whole
    assert len(list(Sealer(SECRET).seal("x", [TEXT])[1])) > 20


def test_the_same_contents_are_the_same_bytes() -> None:
    """A retry overwrites with the same, whatever the parts are."""
    assert sealed(SECRET, "x", TEXT) == sealed(SECRET, "x", TEXT[:7], TEXT[7:])


def test_no_key_serves_two_texts() -> None:
    """Other contents, names, public parts, instances or secrets: another stream of the cipher.
    Equal beginnings of two texts would else be equal in the files, or their difference be seen."""
    files = [
        sealed(SECRET, "x", TEXT),
        sealed(SECRET, "x", TEXT[:-1] + b"!"),
        sealed(SECRET, "y", TEXT),
        sealed(SECRET, "x", TEXT, public=b"p"),
        sealed(Secret(SECRET.key, bytes(16)), "x", TEXT),
        sealed(Secret(bytes(32), SECRET.instance), "x", TEXT),
    ]
    assert len({data[:32] for data in files}) == len(files)
    assert len({data[32:48] for data in files}) == len(files)


def test_every_byte_counts() -> None:
    """Flipped, cut off or added, at any place: refused."""
    data = sealed(SECRET, "x", TEXT)
    sealer = Sealer(SECRET)
    for place in range(len(data)):
        for bit in (1, 128):
            flipped = data[:place] + bytes([data[place] ^ bit]) + data[place + 1 :]
            with pytest.raises(BrokenSeal):
                sealer.open("x", flipped)
        with pytest.raises(BrokenSeal):
            sealer.open("x", data[:place])
    with pytest.raises(BrokenSeal):
        sealer.open("x", data + b"\0")


def test_a_file_of_another_name_is_refused() -> None:
    """Renamed, or its name and public part divided elsewhere."""
    data = sealed(SECRET, "keys/1", TEXT, public=b"/2")
    for name, public in (("keys/2", b"/2"), ("keys/1/2", b""), ("keys", b"/1/2"), ("keys/1", b"")):
        with pytest.raises(BrokenSeal):
            Sealer(SECRET).open(name, data, public)


def test_a_file_of_another_instance_is_refused() -> None:
    """Also one that was made with the same secret."""
    data = sealed(SECRET, "x", TEXT)
    for other in (Secret(SECRET.key, bytes(16)), Secret(bytes(32), SECRET.instance)):
        with pytest.raises(BrokenSeal):
            Sealer(other).open("x", data)
