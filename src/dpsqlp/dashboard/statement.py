"""The privacy guarantee in plain words. Every number comes from `dpsqlp explain`.

The success probability of an observer follows from nu. The whole output is nu-GDP, except for the
part of delta that pays for key selection, by votes and by closings. An observer who starts at 50:50
therefore distinguishes two neighbouring streams with probability at most
1/2 + (2 Phi(nu/2) - 1 + delta_threshold)/2. The allowance for rounding in the noise (epsilon_float)
is added at its worst, and the percentage is rounded up.
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
        {"title": "From what", "sentences": _from_what(name, unit)},
        {"title": "How much", "sentences": _how_much(name, unit, numbers)},
        {"title": "What you see", "sentences": _what_you_see(unit, numbers)},
        {"title": "What is not promised", "sentences": _not_promised(unit, numbers)},
    ]


def guess_percent(numbers: dict[str, Any]) -> int:
    """The largest success probability, in percent, of an observer who starts at 50:50."""
    apart: float = 2 * NormalDist().cdf(numbers["nu"] / 2) - 1
    apart += numbers["delta_threshold"] + math.expm1(numbers["epsilon_float"])
    return min(math.ceil(100 * (0.5 + apart / 2)), 100)


def bounds_note(numbers: dict[str, Any] | None) -> str:
    """What the bounds on a unit do to values, which no standard deviation includes."""
    unit = "unit" if numbers is None else " and ".join(numbers["unit"])
    clamped = ""
    if numbers is None or any(c["kind"] in ("sum", "squares") for c in numbers["columns"]):
        clamped = ", and values that are summed are clamped"
    return (
        f"Records beyond the bounds on each {unit} are dropped{clamped}. Counts, and sums of values"
        " that are not negative, are therefore biased down. No error bar and no _sd includes this:"
        " they are the noise alone."
    )


def _short(number: float) -> str:
    return f"{float(f'{number:.3g}'):,.0f}" if 100 <= number < 1e15 else f"{number:.3g}"


def _unit(numbers: dict[str, Any]) -> str:
    unit = " and ".join(numbers["unit"])
    return unit if numbers["unit_period"] is None else f"{unit} within {numbers['unit_period']}"


def _who(unit: str, numbers: dict[str, Any]) -> list[str]:
    sentences = [
        f"Each {unit}, with all of its records: not one visit or one purchase, but everything that"
        " belongs to it."
    ]
    if numbers["unit_period"] is not None:
        sentences.append(
            f"Each period of {numbers['unit_period']} is protected separately. What several periods"
            " reveal adds up."
        )
    return sentences


def _from_what(name: str, unit: str) -> list[str]:
    return [
        f"Someone who sees every number that {name} ever publishes, knows how it works and may know"
        f" everyone else's data cannot tell with confidence whether a given {unit} is in the data"
        " at all.",
        f"This holds for all windows and updates of {name} together, no matter how often the"
        " dashboard is loaded.",
    ]


def _how_much(name: str, unit: str, numbers: dict[str, Any]) -> list[str]:
    epsilon, delta = numbers["epsilon"], numbers["delta"]
    return [
        f"Someone who guesses whether a given {unit} is in the data, and would be right half of the"
        f" time by tossing a coin, is right at most {guess_percent(numbers)} % of the time after"
        f" seeing everything that {name} publishes.",
        f"In technical terms, this is ({epsilon:g}, {delta:g})-differential privacy: one {unit}"
        f" makes no outcome more than {_short(math.exp(epsilon))} times as likely, plus at most"
        f" {delta:g}.",
        "This is achieved by adding noise to every number, and by a budget for the records of each"
        f" {unit}: {_budget(numbers)}. Further records are not counted.",
    ]


def _budget(numbers: dict[str, Any]) -> str:
    """The most that a unit contributes."""
    caps = numbers["caps"]
    norm, rows = caps["max_contribution_norm"], caps["max_rows_contributed"]
    rows_per_place = caps["max_rows_per_group"]
    places = (["key"] if numbers["keys"] else []) + (["window"] if numbers["window"] else [])
    if not places:
        return f"at most {min(rows_per_place, math.floor(norm))} count"
    squares = round(norm * norm)
    text = (
        f"the squares of its numbers of records per {' and '.join(places)} add up to at most"
        f" {squares}, as with one record for each of {min(rows, squares)} {places[0]}s"
    )
    if rows < squares:
        text += f"; at most {rows} count in all"
    if rows_per_place < min(rows, math.isqrt(squares)):
        text += f"; at most {rows_per_place} per {' and '.join(places)}"
    return text


def _what_you_see(unit: str, numbers: dict[str, Any]) -> list[str]:
    sentences = [
        "The error bar of a value extends two standard deviations of the added noise to either"
        " side. Over all values, released or not, about 19 in 20 bars contain the exact value of"
        " the counted records. Records that the budget of their"
        f" {unit} drops are in no bar.",
        *_last_table(numbers),
    ]
    selection = numbers["selection"]
    if selection is not None:
        low, high = min(selection["thresholds"]), max(selection["thresholds"])
        span = f"{low}" if low == high else f"{low} to {high}, depending on the trigger"
        sentences.append(
            f"A key appears only after enough different values of {unit} have it, counted with"
            f" noise (about {span}). A missing key may have few of them or none, or the query's"
            " HAVING or LIMIT dropped it."
        )
        if numbers["closing"] is not None:
            sentences.append(
                f"What each {unit} has not spent of its budget by the last trigger of a window then"
                " selects further keys. These keys are in the last table of the window only."
            )
        if numbers["release"] == "threshold":
            sentences.append(
                "A key is shown at the triggers at which it reaches the threshold, and not at"
                " others."
            )
        sentences.append(
            "The noise that lifted a key over the threshold may also be in its values. The first"
            " values of a key are therefore biased upwards, and the error bar does not account for"
            " this."
        )
    elif numbers["keys"]:
        sentences.append(
            "The list of keys is public: every key is shown at every trigger, except for keys that"
            " the query's HAVING or LIMIT dropped."
        )
        sentences.append(
            "HAVING and LIMIT compare noisy values. The values that they let through are therefore"
            " biased, usually upwards, and the error bar does not account for this."
        )
    return sentences


def _last_table(numbers: dict[str, Any]) -> list[str]:
    """Why the last table of a window is the best one."""
    if numbers["triggers"] == 1 or numbers["release"] == "threshold":
        return []
    text = "The last table of a window is the best one: all records are in it"
    noised = [*numbers["columns"], numbers["selection"]][0]
    *_, before, last = noised["standard_deviation"]
    if last < before:
        less = 100 * (1 - last / before)
        text += f", and its noise is {less:.0f} % smaller than that of the table before"
    return [f"{text}."]


def _not_promised(unit: str, numbers: dict[str, Any]) -> list[str]:
    first, *others = numbers["unit"]
    combined = (
        f"What is protected is that a {first} occurs with one value of {', '.join(others)}. A"
        f" {first} as a whole is not protected: its other combinations are separate units, and what"
        " they reveal adds up."
    )
    return [
        *numbers["unprotected"],
        *([combined] if others else []),
        "Facts about many people are not hidden: publishing them is the purpose. If the numbers"
        " support a conclusion about people who resemble someone, they support it whether or not"
        f" that {unit} is in the data.",
        "Not covered: the running time of the computation, the parameters above, and anything that"
        " was chosen by looking at the data.",
        "Other publications from the same data add to what can be learned. These include other"
        " sinks on this dashboard, and this sink if it is started again from the beginning. The"
        " guarantee also requires that the secret of the pipeline stays secret.",
    ]
