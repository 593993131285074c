"""What a refusal says of a query that is not the one that a state was made with."""

from __future__ import annotations

import pytest

from dpsqlp.sql import compile_script
from dpsqlp.sql.changes import changes

SCRIPT = """CREATE SOURCE s (url TEXT, user_id TEXT, ts TIMESTAMP, price DECIMAL(10, 2));
CREATE PUBLIC TABLE t AS SELECT 'a' AS x;
CREATE SINK p AS SELECT WITH DIFFERENTIAL_PRIVACY
  OPTIONS (epsilon = 1, delta = 1e-9, privacy_unit_column = user_id, max_contribution_norm = 8)
  url, COUNT(*) AS n FROM s WHERE url <> 'a
emit b' AND url IN (SELECT x FROM t) GROUP BY url, TUMBLE(ts, INTERVAL 1 DAY) HAVING n > 3
EMIT EVERY INTERVAL 1 HOUR ALLOW LATENESS INTERVAL 2 HOURS;"""


def normal_form(text: str) -> str:
    [sink] = compile_script(text).sinks
    return sink.query.normal_form


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("epsilon = 1", "epsilon = 2", "the option epsilon was 1 and is 2"),
        (
            "norm = 8",
            "norm = 8, min_privacy_units_per_group = 3",
            "the option min_privacy_units_per_group was missing and is 3",
        ),
        ("(10, 2)", "(10, 3)", "the column price was DECIMAL(10, 2) and is DECIMAL(10, 3)"),
        ("ts TIMESTAMP,", "ts TIMESTAMP, a INT,", "the column a was missing and is INT"),
        ("SELECT 'a'", "SELECT 'b'", "public table t has other rows"),
        (
            "COUNT(*) AS n",
            "COUNT(*) AS n, COUNT(DISTINCT user_id) AS u",
            'the SELECT list was "url", COUNT(*) AS "n" and is "url", COUNT(*) AS "n",'
            ' COUNT(DISTINCT "user_id") AS "u"',
        ),
        ("HAVING n > 3", "", 'HAVING was HAVING "n" > 3 and is missing'),
        (
            "INTERVAL 1 HOUR",
            "INTERVAL 2 HOURS",
            "EMIT EVERY was INTERVAL '1' HOUR and is INTERVAL '2' HOURS",
        ),
        (
            "ALLOW LATENESS INTERVAL 2 HOURS",
            "",
            "ALLOW LATENESS was INTERVAL '2' HOURS and is missing",
        ),
        (
            " s ",
            " q ",
            'the name of the source was s and is q; FROM was FROM "s" and is FROM "q"',
        ),
    ],
)
def test_the_part_that_changed_is_named(old: str, new: str, said: str) -> None:
    assert changes(normal_form(SCRIPT), normal_form(SCRIPT.replace(old, new))) == said


def test_long_parts_are_cut_and_unreadable_ones_are_not_shown() -> None:
    """A name that needs quotes cannot be read back; a plan of an experiment is no query."""
    longer = SCRIPT.replace("url <> 'a", f"url <> '{'a' * 100}")
    assert len(changes(normal_form(SCRIPT), normal_form(longer))) < 200
    quoted = SCRIPT.replace("price DECIMAL", '"the price" DECIMAL')
    for other in (normal_form(quoted), "counts of an experiment", ""):
        assert changes(normal_form(SCRIPT), other) == "the text of the query differs"
