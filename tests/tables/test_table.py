"""The shard table against a dictionary."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dpsqlp.entropy.canonical import Encoded
from dpsqlp.tables.keys import KeyTable
from dpsqlp.tables.table import ID_FIELDS, Table

WORDS = st.sampled_from([0, 1, 2, 3, 2**32, 2**32 + 1, 2**63, 2**64 - 1])


@settings(max_examples=100, deadline=None, derandomize=True)
@given(batches=st.lists(st.lists(st.tuples(WORDS, WORDS), max_size=30), max_size=5))
def test_a_table_is_a_dictionary(batches: list[list[tuple[int, int]]]) -> None:
    """Ids that share slots, tags or both halves are told apart; id 0 is an id."""
    table, naive = Table(np.dtype(ID_FIELDS)), dict[tuple[int, int], int]()
    for batch in batches:
        ids = np.array(batch, np.uint64).reshape(-1, 2)
        known = [naive.get(key, -1) for key in batch]
        assert table.find(ids).tolist() == known
        rows, first_seen = table.insert(ids)
        for key in batch:
            naive.setdefault(key, len(naive))
        assert rows.tolist() == [naive[key] for key in batch]
        assert [batch[k] for k in first_seen] == list(naive)[len(naive) - len(first_seen) :]
        assert table.ids(rows).tolist() == ids.tolist()


def test_a_table_keeps_its_rows_while_it_grows() -> None:
    """A hundred thousand rows later every id is where it was."""
    dice = np.random.default_rng(5)
    ids = dice.integers(0, 2**64, (100_000, 2), dtype=np.uint64)
    table = Table(np.dtype(ID_FIELDS))
    for part in np.array_split(ids, 37):
        table.insert(part)
    assert table.find(ids).tolist() == list(range(len(ids)))


def test_texts_stay_with_their_keys() -> None:
    """Also when one batch repeats keys and mixes old ones with new ones."""
    table = KeyTable(1, 1)
    for batch in (["a", "bb", "a"], ["ccc", "a", "", "ccc"], []):
        ids = np.array([[1, sum(map(ord, text))] for text in batch], np.uint64).reshape(-1, 2)
        texts = Encoded.from_list([text.encode() for text in batch])
        rows = table.insert_keys(ids, texts, np.arange(len(batch)))
        assert table.texts(rows).to_arrow().to_pylist() == [text.encode() for text in batch]
    assert len(table) == 4


def test_a_later_prediction_overrules_an_earlier_one() -> None:
    """A row is due once, when it last said."""
    table = KeyTable(1, 1)
    ids = np.array([[1, 1], [2, 2]], np.uint64)
    rows = table.insert_keys(ids, Encoded.from_list([b"a", b"b"]), np.arange(2))
    for due in ([3, 3], [5, 3], [3, 3], [4, 3]):
        table.rows["due"][rows] = due
        table.schedule(rows)
    assert [table.take_due(index).tolist() for index in (3, 4, 5)] == [[1], [0], []]
