"""Identifiers: the twin's CBC-MAC for every length, each row by itself."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dpsqlp.entropy.canonical import Encoded
from dpsqlp.entropy.identify import Identifier
from dpsqlp.entropy.secret import Secret
from reference.twin import derive, mac

SECRET = Secret(bytes(range(32)), bytes(range(100, 116)))
# A block holds 16 bytes and the length takes 4; past 64 blocks messages are chained one by one.
LENGTHS = sorted(
    {*range(70), *range(1000, 1042), 64 * 16 - 5, 64 * 16 - 4, 64 * 16 - 3, 1999, 2560, 3000}
)


def messages(lengths: list[int]) -> list[bytes]:
    dice = random.Random(7)
    return [dice.randbytes(length) for length in lengths]


def identify(secret: Secret, purpose: str, items: list[bytes]) -> list[bytes]:
    words = Identifier(secret, purpose).identify(Encoded.from_list(items))
    assert words.shape == (len(items), 2)
    assert words.dtype == np.uint64
    return [row.astype("<u8").tobytes() for row in words]


@pytest.mark.parametrize("purpose", ["unit", "key"])
def test_equals_the_twin_for_every_length(purpose: str) -> None:
    """Empty, around block boundaries, around 64 blocks, and thousands of bytes, in one call."""
    items = messages(LENGTHS)
    key = derive(SECRET.key, b"identifier", SECRET.instance, purpose.encode())
    assert identify(SECRET, purpose, items) == [mac(key, item) for item in items]


def test_messages_of_zeros_differ_by_their_length() -> None:
    """Padding is told from content."""
    items = [bytes(length) for length in range(1100)]
    assert len(set(identify(SECRET, "key", items))) == len(items)


def test_purposes_instances_and_secrets_have_identifiers_of_their_own() -> None:
    """A unit's identifier says nothing about a key's, nor about another instance's."""
    items = messages([0, 5, 40, 2000])
    other_instance = Secret(SECRET.key, bytes(16))
    other_secret = Secret(bytes(32), SECRET.instance)
    found = [
        *identify(SECRET, "unit", items),
        *identify(SECRET, "key", items),
        *identify(other_instance, "key", items),
        *identify(other_secret, "key", items),
    ]
    assert len(set(found)) == 16


def test_rows_do_not_see_each_other() -> None:
    """Any order, any cut, alone or beside longer rows: a row's identifier is the same."""
    items = messages([0, 3, 12, 13, 500, 28, 29, 1020, 1021, 2999, 12, 0])
    whole = identify(SECRET, "unit", items)
    order = list(range(len(items)))
    random.Random(1).shuffle(order)
    assert identify(SECRET, "unit", [items[k] for k in order]) == [whole[k] for k in order]
    for cut in range(len(items) + 1):
        parts = identify(SECRET, "unit", items[:cut]) + identify(SECRET, "unit", items[cut:])
        assert parts == whole
    encoded = Encoded.from_list(items)
    rows = np.array(order[::2])
    taken = Identifier(SECRET, "unit").identify(encoded.take(rows))
    assert [row.tobytes() for row in taken] == [whole[k] for k in rows]


def test_one_bit_changes_about_half_of_an_identifier() -> None:
    """Also the last bit of a message of many blocks."""
    (base,) = identify(SECRET, "key", [bytes(1500)])
    (changed,) = identify(SECRET, "key", [bytes(1499) + b"\1"])
    assert 30 < (int.from_bytes(base) ^ int.from_bytes(changed)).bit_count() < 98
