"""The plan: every number that data or noise depend on, frozen, with a fingerprint.

A plan is computed once, stored, and read back. Nothing in it is computed again for a running
pipeline, because a different number would give different noise.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, field
from typing import Any

from dpsqlp.accounting.model import (
    CLOSING,
    SELECTION,
    CalibratedProcess,
    Calibration,
    Closing,
    ContributionBounds,
    Process,
    ReleasePolicy,
    Selection,
)
from dpsqlp.errors import PlanError, StateError
from dpsqlp.mechanisms import Mechanism, from_parameters

NOISE_VERSION = 2


@dataclass(frozen=True, slots=True)
class WindowSchedule:
    """Public time. Item n (a window, or a period of units) is open at the grid triggers
    n * stride + 1 .. n * stride + triggers; without a stride there is one item, number 0.
    """

    triggers: int
    stride: int | None = None

    def __post_init__(self) -> None:
        if self.triggers < 1 or (self.stride is not None and self.stride < 1):
            raise PlanError(
                f"A window schedule needs at least one trigger and a positive stride; got {self}."
            )

    def first(self, item: int) -> int:
        """The grid trigger before the item's trigger number 1."""
        return 0 if self.stride is None else item * self.stride

    def open(self, trigger: int) -> range:
        """The items that are open at a grid trigger."""
        if self.stride is None:
            return range(0, 1 if 1 <= trigger <= self.triggers else 0)
        return range(-((self.triggers - trigger) // self.stride), (trigger - 1) // self.stride + 1)

    def ending(self, trigger: int) -> int | None:
        """The item whose last trigger this is, if there is one."""
        if self.stride is None:
            return 0 if trigger == self.triggers else None
        item, rest = divmod(trigger - self.triggers, self.stride)
        return item if rest == 0 else None


@dataclass(frozen=True, slots=True)
class Plan:
    """One pipeline's frozen parameters."""

    query: str  # the computation, in words or SQL: part of the fingerprint
    unit_kinds: tuple[str, ...]  # canonical kinds of the unit columns, see entropy.canonical
    key_kinds: tuple[str, ...]
    windows: WindowSchedule
    periods: WindowSchedule | None  # None: a unit's state is kept forever
    release: ReleasePolicy
    caps: ContributionBounds
    mechanism: Mechanism
    calibration: Calibration
    public_keys: tuple[bytes, ...] | None = None  # canonical bytes, sorted
    fingerprint: bytes = field(init=False)

    def __post_init__(self) -> None:
        _validate(self)
        text = json.dumps(_exact(self.describe()), sort_keys=True, separators=(",", ":"))
        object.__setattr__(self, "fingerprint", hashlib.sha256(text.encode()).digest())

    @property
    def triggers(self) -> int:
        """[T] per window."""
        return self.windows.triggers

    @property
    def value_columns(self) -> int:
        """How many value columns a micro-batch has."""
        columns = (calibrated.process.column for calibrated in self.calibration.processes)
        return max((c + 1 for c in columns if c is not None), default=0)

    @property
    def rounds(self) -> bool:
        """Whether a released key must be selected again."""
        return self.release == "threshold" and self.public_keys is None

    def open_periods(self, trigger: int) -> range:
        """The unit periods open at a grid trigger; without periods there is one, 0."""
        return range(1) if self.periods is None else self.periods.open(trigger)

    def closes(self, trigger: int) -> int | None:
        """The window that has its closing at a grid trigger, if there is one."""
        return None if self.calibration.closing is None else self.windows.ending(trigger)

    @property
    def spares_votes(self) -> bool:
        """Whether a selected key needs no more votes: it stays selected, and no column counts
        votes.
        """
        kinds = {calibrated.process.kind for calibrated in self.calibration.processes}
        selects = self.public_keys is None and self.release == "every_trigger"
        return selects and "distinct" not in kinds

    @classmethod
    def restore(cls, description: dict[str, Any]) -> Plan:
        """The plan of a description, bit for bit."""
        if description["noise_version"] != NOISE_VERSION:
            raise StateError(
                f"The state has noise version {description['noise_version']}; this dpsqlp has"
                f" {NOISE_VERSION}. Use the version of dpsqlp that wrote the state."
            )
        calibration = description["calibration"]
        selection, closing = calibration["selection"], calibration["closing"]
        periods = description["periods"]
        public = description["public_keys"]
        return cls(
            query=description["query"],
            unit_kinds=tuple(description["unit_kinds"]),
            key_kinds=tuple(description["key_kinds"]),
            windows=WindowSchedule(**description["windows"]),
            periods=None if periods is None else WindowSchedule(**periods),
            release=description["release"],
            caps=ContributionBounds(**description["caps"]),
            mechanism=from_parameters(description["mechanism"]),
            calibration=Calibration(
                **calibration
                | {
                    "selection": None
                    if selection is None
                    else Selection(**selection | {"thresholds": tuple(selection["thresholds"])}),
                    "closing": None
                    if closing is None
                    else Closing(**closing | {"weights_max": tuple(closing["weights_max"])}),
                    "processes": tuple(
                        CalibratedProcess(**process | {"process": Process(**process["process"])})
                        for process in calibration["processes"]
                    ),
                }
            ),
            public_keys=None if public is None else tuple(bytes.fromhex(key) for key in public),
        )

    def describe(self) -> dict[str, Any]:
        """Every number of the plan, as plain values."""
        return {
            "noise_version": NOISE_VERSION,
            "query": self.query,
            "unit_kinds": self.unit_kinds,
            "key_kinds": self.key_kinds,
            "windows": asdict(self.windows),
            "periods": None if self.periods is None else asdict(self.periods),
            "release": self.release,
            "caps": asdict(self.caps),
            "mechanism": self.mechanism.parameters(),
            "calibration": asdict(self.calibration),
            "public_keys": None
            if self.public_keys is None
            else [key.hex() for key in self.public_keys],
        }


def _exact(value: Any) -> Any:
    """Floats as hex, so that the fingerprint sees every bit."""
    if isinstance(value, float):
        return value.hex()
    if isinstance(value, dict):
        return {name: _exact(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_exact(item) for item in value]
    return value


def _validate(plan: Plan) -> None:
    """Refuse plans whose numbers do not fit together."""
    triggers = plan.triggers
    if plan.mechanism.triggers != triggers:
        raise PlanError(
            f"The mechanism has {plan.mechanism.triggers} triggers; the windows have {triggers}."
            " Give a mechanism with the windows' number of triggers."
        )
    if (plan.calibration.selection is None) != (plan.public_keys is not None):
        raise PlanError(
            "Keys are either public or selected. Give public_keys exactly when the calibration"
            " has no selection."
        )
    if plan.public_keys is not None and list(plan.public_keys) != sorted(set(plan.public_keys)):
        raise PlanError("public_keys must be sorted and without repetition.")
    if triggers.bit_length() + plan.caps.records_per_key.bit_length() > 32:
        raise PlanError(
            f"{triggers} triggers per window with {plan.caps.records_per_key} records per unit and"
            " key do not fit the unit state (32 bits together). Emit less often, or lower"
            " max_rows_per_group."
        )
    periods = plan.periods
    if periods is not None and (periods.stride is None or periods.triggers < periods.stride):
        raise PlanError(
            "A unit period must stay open until the next one begins. Give more triggers, or no"
            " period."
        )
    if not all(1 <= cap < 2**32 for cap in asdict(plan.caps).values()):
        raise PlanError(f"Every cap is at least 1 and below 2^32; got {plan.caps}.")
    if plan.calibration.closing is not None and not (
        plan.public_keys is None
        and plan.release == "every_trigger"
        and plan.periods == (None if plan.windows.stride is None else plan.windows)
    ):
        raise PlanError(
            "A closing needs keys that are selected under 'every_trigger', and unit state that ends"
            " with the window. Leave it out, or give the period of the units the windows' schedule."
        )
    _validate_noise(plan)


def _validate_noise(plan: Plan) -> None:
    """Refuse shared noise, and thresholds that do not protect."""
    selection = plan.calibration.selection
    if selection is not None and (
        len(selection.thresholds) != plan.triggers or selection.minimum < 0
    ):
        raise PlanError(
            f"Selection needs a minimum of 0 or more and one threshold for each of the"
            f" {plan.triggers} triggers. Calibrate again."
        )
    purposes = [p.purpose for p in plan.calibration.processes if p.purpose != SELECTION]
    if CLOSING in purposes or len(set(purposes)) != len(purposes):
        raise PlanError(f"Processes would share their noise; got the purposes {purposes}.")
    for calibrated in plan.calibration.processes:
        process = calibrated.process
        sums = process.kind in ("sum", "squares")
        if process.kind != "count" and sums != (process.column is not None):
            raise PlanError(f"A sum has a value column, a distinct count has none; got {process}.")
        if calibrated.purpose == SELECTION and not (
            process.kind == "distinct"
            and plan.release == "every_trigger"
            and selection is not None
            and (calibrated.sigma, calibrated.quantum) == (selection.sigma, 1.0)
        ):
            raise PlanError(
                f"{process.name!r} cannot be released from the selection process: that is for a"
                " distinct count of units under 'every_trigger', with the selection's own noise."
            )
