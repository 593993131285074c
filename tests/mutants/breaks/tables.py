"""The deliberate breaks of `tables`."""

from __future__ import annotations

from mutants.breaks.base import JOURNAL, MISSED, Break

BREAKS = [
    Break(
        "ids compared by half",
        "lemma 22: units and keys are identified by 128-bit keyed hashes",
        "tables/table.py",
        "if row.id0 != ids[k, 0] or row.id1 != ids[k, 1]:",
        "if row.id0 != ids[k, 0]:",
        "tables/test_table.py::test_a_table_is_a_dictionary",
    ),
    Break(
        "a prediction is not overruled",
        "lemma 17: releases equal those of a scan over every key",
        "tables/keys.py",
        "return rows[current]",
        "return rows",
        "tables/test_table.py::test_a_later_prediction_overrules_an_earlier_one",
    ),
    Break(
        "due keys forgotten at a restart",
        "lemma 17: releases equal those of a scan over all keys",
        "tables/keys.py",
        '        self.schedule(at[self.rows["due"][at] > step])\n',
        "",
        JOURNAL + "test_a_restart_at_every_trigger_changes_nothing",
    ),
    Break(
        "what a path told of an earlier round",
        "lemma 17: releases equal those of a scan over all keys",
        "tables/keys.py",
        "        self.passages.of_row[at] = 0  # they may be those of an earlier round\n",
        "",
        "state/test_shards.py::test_a_table_that_missed_a_round_predicts_anew",
    ),
    Break(
        "released keys of missed triggers forgotten",
        "lemma 17: a key released only when it had new data",
        "tables/keys.py",
        'released = at[self.rows["slot"][at] > self.released.size]',
        "released = at[:0]",
        MISSED,
    ),
]
