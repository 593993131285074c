"""What both reports say of a sample, and plain values of their numbers."""

from __future__ import annotations

import math
from dataclasses import asdict, is_dataclass
from typing import Any

from dpsqlp.tuning.load import SampleFacts

OUTSIDE = (
    "Options chosen by looking at the private stream itself are outside the promise: use a sample"
    " that is public, consented, generated, or of another population."
)
ERRORS = (
    "error = noise + cap bias. The noise is what _sd measures; the cap bias, from rows that the"
    " unit's budget drops, is in no error bar. A true total counts every row, with values clamped"
    " as the query says."
)


def sample_notes(facts: SampleFacts) -> list[str]:
    """What the figures rest on."""
    drawn = ""
    if facts.resampled is not None:
        drawn = (
            f" {facts.resampled:,} units were drawn from them with replacement, each with all of"
            " its rows. That gives no new groups: a real stream of that size has more rare ones."
        )
    outside = facts.rows - facts.counted
    dropped = (
        f" {outside:,} rows have no unit, no window or no trigger, and are left out."
        if outside
        else ""
    )
    windows = "1 window" if facts.windows == 1 else f"{facts.windows:,} windows"
    return [
        f"Sample: {facts.counted:,} rows of {facts.units:,} units in {facts.groups:,} groups,"
        f" {windows} of {facts.triggers:,} triggers.{drawn}{dropped} {facts.replay}",
        ERRORS,
        "Figures are of one run with noise of its own; the production run has other noise. HAVING,"
        " ORDER BY and LIMIT are not applied.",
        OUTSIDE,
    ]


def numbers_of(value: Any) -> Any:
    """Dataclasses as dictionaries; what has no value as None."""
    if is_dataclass(value) and not isinstance(value, type):
        value = asdict(value)
    if isinstance(value, dict):
        return {name: numbers_of(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [numbers_of(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
