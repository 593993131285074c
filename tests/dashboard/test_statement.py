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
    assert len(total) == 1


def test_a_unit_of_several_columns_and_several_sinks(numbers: dict[str, Any]) -> None:
    several = numbers | {"unit": ["user", "day"]}
    text = " ".join(words(several, "What is not promised"))
    assert "A user as a whole is not protected" in text
    assert "as a whole is not protected" not in str(plain_words("popular", numbers))
    assert "everything that popular publishes" in " ".join(words(numbers, "How much"))
    assert "other sinks on this dashboard" in text
