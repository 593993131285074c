"""Checks of the arguments of a calibration. Errors say the fact, what was got, and what to do."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NoReturn, get_args

from dpsqlp.accounting.model import (
    ContributionBounds,
    Process,
    ProcessKind,
    ReleasePolicy,
    Spending,
)
from dpsqlp.errors import PlanError

_LARGEST_EPSILON = 1000
_SMALLEST_DELTA = 1e-24  # draws have 128 bits: below some 1e-30 their grid would show


def check_budget(epsilon: float, delta: float) -> None:
    """Refuse an epsilon or delta without a meaningful promise."""
    if not (_is_number(epsilon) and 0 < epsilon <= _LARGEST_EPSILON):
        _refuse(
            f"epsilon must be above 0 and at most {_LARGEST_EPSILON}",
            epsilon,
            "Typical values are 0.1 to 10; far above that, little is promised.",
        )
    if not (_is_number(delta) and _SMALLEST_DELTA <= delta < 1):
        _refuse(
            f"delta must be at least {_SMALLEST_DELTA} and below 1",
            delta,
            "Give far less than one over the number of units.",
        )


def check_policies(release: ReleasePolicy, selection_spending: Spending) -> None:
    """Refuse unknown policies."""
    if release not in ("every_trigger", "threshold"):
        _refuse("release is 'every_trigger' or 'threshold'", release, "Give one of the two.")
    if selection_spending not in ("even", "late"):
        _refuse("selection_spending is 'even' or 'late'", selection_spending, "Try 'even'.")


def check_closing(closing: bool, private_keys: bool, release: ReleasePolicy) -> None:
    """Refuse a closing where keys are not selected, or not for the rest of their window."""
    if closing and not (private_keys and release == "every_trigger"):
        _refuse(
            "A closing selects keys under 'every_trigger'",
            "public keys" if not private_keys else release,
            "Leave the closing out.",
        )


def check_selection_share(selection_share: float) -> None:
    """Refuse a share that leaves nothing to selection or nothing to the processes."""
    if not (_is_number(selection_share) and 0 < selection_share < 1):
        _refuse("selection_share must be above 0 and below 1", selection_share, "Try 0.5.")


def check_diagnostics_share(diagnostics_share: float) -> None:
    """Refuse a share that leaves nothing to what is released."""
    if not (_is_number(diagnostics_share) and 0 <= diagnostics_share < 1):
        _refuse("diagnostics_share must be at least 0 and below 1", diagnostics_share, "Try 0.01.")


def check_minimum(minimum: int) -> None:
    """Refuse a negative minimum."""
    if not _is_integer(minimum, 0):
        _refuse("minimum must be an integer of at least 0", minimum, "Give 0 for no minimum.")


def check_processes(processes: Sequence[Process]) -> None:
    """Refuse processes whose sensitivity is unknown, and two of one name."""
    names = [process.name for process in processes]
    if len(set(names)) != len(names):
        _refuse("The name of a process must be unique", names, "Rename one of them.")
    for process in processes:
        _check_process(process)


def _check_process(process: Process) -> None:
    name = f"process {process.name!r}"
    kinds = get_args(ProcessKind)
    if process.kind not in kinds:
        _refuse(f"The kind of {name} is unknown", process.kind, f"Give one of {kinds}.")
    if process.kind == "distinct" and process.column is not None:
        _refuse(
            f"column of {name} must be None: it counts units", process.column, "Leave column out."
        )
    if process.column is not None and not _is_integer(process.column, 0):
        _refuse(
            f"column of {name} must be an integer of at least 0",
            process.column,
            "Give the number of a value column.",
        )
    if process.kind == "histogram":
        _check_histogram(process, name)
    elif process.edges or process.coarse:
        _refuse(
            f"edges of {name} are those of a histogram; a {process.kind} has none",
            (process.edges, process.coarse),
            "Leave edges and coarse out.",
        )
    if process.kind not in ("sum", "squares"):
        if (process.lower, process.upper, process.center) != (0, 1, 0):
            _refuse(
                f"bounds of {name} are fixed: a {process.kind} adds 0 or 1",
                (process.lower, process.upper, process.center),
                "Leave lower, upper and center out.",
            )
        return
    if process.column is None:
        _refuse(f"column of {name} is missing", None, "Give the number of a value column.")
    bounds = (process.lower, process.upper)
    if not all(_is_number(value) for value in (*bounds, process.center, process.bound)):
        _refuse(f"bounds of {name} must be finite", bounds, "Give finite lower and upper.")
    if process.lower > process.upper:
        _refuse(f"bounds of {name} are reversed", bounds, "Exchange lower and upper.")
    if process.bound == 0:
        _refuse(f"bounds of {name} leave only one value", bounds, "Widen lower or upper.")


def _check_histogram(process: Process, name: str) -> None:
    edges = process.edges
    increasing = all(map(_is_number, edges)) and all(a < b for a, b in pairwise(edges))
    if process.bins < 1 or not increasing:
        _refuse(
            f"edges of {name} must be two finite numbers or more, increasing", edges, "Sort them."
        )
    if process.coarse and not 2 <= process.coarse < process.bins:
        _refuse(
            f"coarse of {name} must be 0, or at least 2 and below the number of bins",
            process.coarse,
            "Give 0 for no coarse bins.",
        )
    if process.column is None:
        _refuse(f"column of {name} is missing", None, "Give the number of a value column.")


def check_caps(caps: ContributionBounds) -> None:
    """Refuse caps that bound nothing, and caps that no unit can reach."""
    for name in ("records", "records_per_key", "selections"):
        value = getattr(caps, name)
        if not _is_integer(value, 1):
            _refuse(
                f"caps.{name} must be an integer of at least 1", value, "Give a cap of 1 or more."
            )
        if value > caps.records:
            _refuse(
                f"caps.{name} must be at most caps.records ({caps.records}): no unit reaches a"
                " larger cap, and the noise would be larger",
                value,
                f"Lower caps.{name} or raise caps.records.",
            )
    if not _is_integer(caps.squared_norm, 1):
        _refuse(
            "caps.squared_norm must be an integer of at least 1",
            caps.squared_norm,
            "Give a norm of 1 or more, or none.",
        )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_integer(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _refuse(fact: str, got: object, advice: str) -> NoReturn:
    raise PlanError(f"{fact}; got {got!r}. {advice}")
