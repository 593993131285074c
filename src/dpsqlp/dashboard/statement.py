"""The promise for people who do not read formulas; every number is from `dpsqlp explain`.

How much a spectator learns, from nu: the whole output is nu-GDP but for the part of delta that
pays for selection, so telling two neighbouring streams apart from 50:50 succeeds with probability
at most 1/2 + (2 Phi(nu/2) - 1 + delta_threshold)/2. What is set aside for rounding in the noise
(epsilon_float) is added at its worst, and the percentage is rounded up.
"""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import Any

Section = dict[str, Any]  # title, sentences


def plain_words(name: str, numbers: dict[str, Any]) -> list[Section]:
    """Who is protected, from what, how much, and what is not promised."""
    unit = _unit(numbers)
    return [
        {"title": "Who is protected", "sentences": _who(unit, numbers)},
        {"title": "From what", "sentences": _what(name, unit)},
        {"title": "How much", "sentences": _how_much(name, unit, numbers)},
        {"title": "What you see", "sentences": _seen(unit, numbers)},
        {"title": "What is not promised", "sentences": _not_promised(unit, numbers)},
    ]


def guess_percent(numbers: dict[str, Any]) -> int:
    """How often, at most, a spectator guesses right who began at 50:50."""
    apart: float = 2 * NormalDist().cdf(numbers["nu"] / 2) - 1
    apart += numbers["delta_threshold"] + math.expm1(numbers["epsilon_float"])
    return min(math.ceil(100 * (0.5 + apart / 2)), 100)


def _short(number: float) -> str:
    return f"{float(f'{number:.3g}'):,.0f}" if 100 <= number < 1e15 else f"{number:.3g}"


def _unit(numbers: dict[str, Any]) -> str:
    unit = " and ".join(numbers["unit"])
    return unit if numbers["unit_period"] is None else f"{unit} within {numbers['unit_period']}"


def _who(unit: str, numbers: dict[str, Any]) -> list[str]:
    sentences = [
        f"Each {unit}, with all records at once: not one visit or one purchase, but everything"
        " that belongs to it."
    ]
    if numbers["unit_period"] is not None:
        sentences.append(
            f"Several stretches of {numbers['unit_period']} are protected one by one, and what"
            " they reveal adds up."
        )
    return sentences


def _what(name: str, unit: str) -> list[str]:
    return [
        f"Somebody who sees every number that {name} ever publishes, knows how it works and may"
        f" know everybody else's data, cannot tell with confidence whether a given {unit} is in"
        " the data at all.",
        f"This holds for all windows and updates of {name} together, however often the page is"
        " loaded.",
    ]


def _how_much(name: str, unit: str, numbers: dict[str, Any]) -> list[str]:
    epsilon, delta = numbers["epsilon"], numbers["delta"]
    caps = numbers["caps"]
    return [
        f"Whoever has to guess whether a {unit} is in the data, and would be right half of the"
        f" time by tossing a coin, is right at most {guess_percent(numbers)} % of the time after"
        f" seeing everything that {name} publishes.",
        f"In the language of reviewers this is ({epsilon:g}, {delta:g})-differential privacy: one"
        f" {unit} makes nothing that can be seen more than {_short(math.exp(epsilon))} times as"
        f" likely, plus at most {delta:g}.",
        f"It is reached by noise in every number, and by counting at most"
        f" {caps['max_rows_contributed']} records of each {unit}"
        f" ({caps['max_rows_per_group']} for one key in one window).",
    ]


def _seen(unit: str, numbers: dict[str, Any]) -> list[str]:
    sentences = [
        "Every value is shown with a bar of two standard deviations of its noise as it was drawn:"
        " of all values, released or not, about 19 out of 20 have the exact value of what was"
        " counted inside."
    ]
    selection = numbers["selection"]
    if selection is not None:
        low, high = min(selection["thresholds"]), max(selection["thresholds"])
        span = f"{low}" if low == high else f"{low} to {high}"
        sentences.append(
            f"A key appears only once it has enough different {unit} (about {span}, by trigger,"
            " with noise). A key that is missing may have few, or none, or was left out by the"
            " query's HAVING or LIMIT."
        )
        if numbers["release"] == "threshold":
            sentences.append("It is shown at the triggers at which it has, and not at others.")
        chosen = "The noise that brought a key out may be that of its values"
    elif numbers["keys"]:
        sentences.append(
            "The list of keys is public: all are shown at every trigger, but for those that the"
            " query's HAVING or LIMIT left out."
        )
        chosen = "Where HAVING or LIMIT chose, noise chose with them"
    else:
        return sentences
    sentences.append(
        f"{chosen}: the first values of a key lean upwards, and the bar does not take that into"
        " account."
    )
    return sentences


def _not_promised(unit: str, numbers: dict[str, Any]) -> list[str]:
    first, *others = numbers["unit"]
    combined = (
        f"Protected is that a {first} occurs with one value of {', '.join(others)}. Not protected"
        f" as a whole is a {first}: its other combinations are units of their own, and what they"
        " reveal adds up."
    )
    return [
        *numbers["unprotected"],
        *([combined] if others else []),
        "Facts about many people are no secret: that is what the numbers are for. If they allow a"
        f" conclusion about people like somebody, they allow it whether or not that {unit} is in"
        " the data.",
        "Not covered are how long the computation takes, the parameters above, and whatever was"
        " chosen by looking at the data.",
        "Other publications from the same data, other sinks on this page among them, add to what"
        " can be learned; so would this one, begun a second time. It all rests on the secret of the"
        " pipeline being kept.",
    ]
