"""Ledgers, and entries of small pipelines."""

from __future__ import annotations

from typing import Any

from dpsqlp.accounting import ContributionBounds, Process, calibrate
from dpsqlp.accounting.ledger import Budget, Entry, Ledger
from dpsqlp.mechanisms import Tree

DAY = 86_400_000_000
MONTH = 30 * DAY
NOW = 20_000 * DAY + 5 * 3_600_000_000
TREE = Tree(4)


def entry(number: int = 1, **changes: Any) -> Entry:
    """The entry of a small pipeline by the clock, without a unit period."""
    values: dict[str, Any] = {
        "instance": f"{number:032x}",
        "sink": f"s{number}",
        "unit": ("user_id",),
        "epsilon": 1.0,
        "delta": 1e-9,
        "period_us": None,
        "start_us": NOW // DAY * DAY,
        "stop_us": None,
        "hop_us": DAY,
        "size_us": DAY,
        "entered_us": NOW,
    } | changes
    calibration = calibrate(
        epsilon=values["epsilon"],
        delta=values["delta"],
        caps=ContributionBounds(1, 1, 1),
        mechanism=TREE,
        processes=[Process("n", "count")],
        release="every_trigger",
    )
    return Entry(
        squared_nu=values.pop("squared_nu", calibration.nu**2),
        failures=values.pop("failures", calibration.delta_threshold),
        float_error=values.pop("float_error", calibration.epsilon - calibration.epsilon_gaussian),
        **values,
    )


def daily(number: int = 1, **changes: Any) -> Entry:
    """One whose unit is a user's day."""
    return entry(number, **{"period_us": DAY, "epsilon": 0.3} | changes)


def ledger(epsilon: float = 3.0, delta: float = 1e-8, per_us: int | None = MONTH) -> Ledger:
    return Ledger("f" * 32, Budget(epsilon, delta, per_us))
