"""The privacy guarantee in plain words says what the theorem says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dpsqlp.dashboard.metadata import Metadata
from dpsqlp.dashboard.statement import plain_words


@pytest.fixture
def numbers(ran: Path) -> dict[str, Any]:
    metadata = Metadata.read(ran / "state" / "popular.releases")
    assert metadata is not None
    return metadata.numbers


def words(numbers: dict[str, Any], title: str) -> list[str]:
    (found,) = (part for part in plain_words("popular", numbers) if part["title"] == title)
    sentences: list[str] = found["sentences"]
    return sentences


def test_delta_is_added_and_no_chance_of_failure(numbers: dict[str, Any]) -> None:
    text = " ".join(words(numbers, "How much"))
    assert "more than 2,980 times as likely, plus at most 0.0001." in text
    assert "odds" not in text
    assert "chance" not in text


def test_what_the_operator_gave_up_comes_first(numbers: dict[str, Any]) -> None:
    warning = "NOT PROTECTED: something."
    assert words(numbers | {"unprotected": [warning]}, "What is not promised")[0] == warning
    assert "NOT PROTECTED" not in str(plain_words("popular", numbers))


def test_what_selection_and_filters_do_to_values_is_said(numbers: dict[str, Any]) -> None:
    public = numbers | {"selection": None}
    for said in (numbers, public):
        text = " ".join(words(said, "What you see"))
        assert "upwards" in text
        assert "HAVING or LIMIT" in text
        assert "not at others" not in text
    text = " ".join(words(numbers | {"release": "threshold"}, "What you see"))
    assert "not at others" in text
    total = words(public | {"keys": []}, "What you see")
    assert len(total) == 2


def test_what_a_unit_may_contribute_is_said(numbers: dict[str, Any]) -> None:
    def budget(**caps: float) -> str:
        return words(numbers | {"caps": numbers["caps"] | caps}, "How much")[-1]

    assert budget().endswith(
        "per key and window add up to at most 2, as with one record for each of 2 keys. Further"
        " records are not counted."
    )
    wide = {"max_contribution_norm": 8, "max_rows_contributed": 64, "max_rows_per_group": 8}
    assert "add up to at most 64, as with one record for each of 64 keys. Further" in budget(**wide)
    capped = wide | {"max_rows_contributed": 40, "max_rows_per_group": 4}
    assert "each of 40 keys; at most 40 count in all; at most 4 per key and window." in budget(
        **capped
    )
    total = numbers | {"keys": [], "caps": numbers["caps"] | wide}
    assert "numbers of records per window add up" in words(total, "How much")[-1]
    whole = words(total | {"window": None}, "How much")[-1]
    assert "a budget for the records of each user_id: at most 8 count." in whole


def test_the_last_table_is_the_best_one(numbers: dict[str, Any]) -> None:
    def last(**others: Any) -> list[str]:
        found = words(numbers | others, "What you see")
        return [sentence for sentence in found if "last table" in sentence]

    (text,) = last()
    assert "best one: all records are in it" in text
    quiet = {"standard_deviation": [2.0, 4.0, 5.0, 4.0]}
    assert "its noise is 20 % smaller than that of the table before." in last(columns=[quiet])[0]
    assert "noise" not in last(columns=[quiet | {"standard_deviation": [4.0, 5.0]}])[0]
    assert last(triggers=1) == last(release="threshold") == []
    closing = last(closing={"threshold": 6.5})
    assert len(closing) == 2
    assert "These keys are in the last table of the window only." in closing[1]


def test_a_unit_of_several_columns_and_several_sinks(numbers: dict[str, Any]) -> None:
    several = numbers | {"unit": ["user", "day"]}
    text = " ".join(words(several, "What is not promised"))
    assert "A user as a whole is not protected" in text
    assert "as a whole is not protected" not in str(plain_words("popular", numbers))
    assert "everything that popular publishes" in " ".join(words(numbers, "How much"))
    assert "other sinks on this dashboard" in text
