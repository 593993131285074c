"""The plan: every number that data or noise depend on, frozen, with a fingerprint.

A plan is computed once, stored, and read back. Nothing in it is computed again for a running
pipeline, because a different number would give different noise.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate, pairwise
from typing import Any

from dpsqlp.accounting.model import (
    CLOSING,
    DIAGNOSTICS,
    SELECTION,
    CalibratedProcess,
    Calibration,
    Closing,
    ContributionBounds,
    Diagnostics,
    Process,
    ReleasePolicy,
    Selection,
)
from dpsqlp.errors import PlanError, StateError
from dpsqlp.mechanisms import Mechanism, from_parameters
from dpsqlp.schedule import Schedule, restore_schedule

NOISE_VERSION = 2


@dataclass(frozen=True, slots=True)
class WindowNoise:
    """What depends on a window's number of triggers: the mechanism, and in the calibration each
    sigma and the thresholds.
    """

    mechanism: Mechanism
    calibration: Calibration


@dataclass(frozen=True, slots=True)
class Plan:
    """One pipeline's frozen parameters. `mechanism` and `calibration` are those of the longest
    windows; code that has a window asks `noise_of`.
    """

    query: str  # the computation, in words or SQL: part of the fingerprint
    unit_kinds: tuple[str, ...]  # canonical kinds of the unit columns, see entropy.canonical
    key_kinds: tuple[str, ...]
    windows: Schedule
    periods: Schedule | None  # None: a unit's state is kept forever
    release: ReleasePolicy
    caps: ContributionBounds
    mechanism: Mechanism
    calibration: Calibration
    public_keys: tuple[bytes, ...] | None = None  # canonical bytes, sorted
    shorter: tuple[WindowNoise, ...] = ()  # of windows with fewer triggers, ascending
    fingerprint: bytes = field(init=False)

    def __post_init__(self) -> None:
        _validate(self)
        text = json.dumps(_exact(self.describe()), sort_keys=True, separators=(",", ":"))
        object.__setattr__(self, "fingerprint", hashlib.sha256(text.encode()).digest())

    @property
    def triggers(self) -> int:
        """[T] of the longest windows."""
        return self.mechanism.triggers

    @property
    def noises(self) -> tuple[WindowNoise, ...]:
        """One for each number of triggers that windows have, ascending."""
        return (*self.shorter, WindowNoise(self.mechanism, self.calibration))

    def noise_of(self, window: int) -> WindowNoise:
        """The mechanism and the calibration of a window."""
        triggers = self.windows.length(window)
        return next(noise for noise in self.noises if noise.mechanism.triggers == triggers)

    @property
    def last_trigger(self) -> int | None:
        """The last grid trigger of a calendar's table, if there is one."""
        lasts = [grid.last for grid in (self.windows, self.periods) if grid is not None]
        return min((last for last in lasts if last is not None), default=None)

    @property
    def value_columns(self) -> int:
        """How many value columns a micro-batch has."""
        columns = (calibrated.process.column for calibrated in self.calibration.processes)
        return max((c + 1 for c in columns if c is not None), default=0)

    @property
    def spans(self) -> tuple[range, ...]:
        """Where each process has its totals, among those of a key: one, or one for each bin."""
        widths = [calibrated.process.width for calibrated in self.calibration.processes]
        ends = list(accumulate(widths, initial=0))
        return tuple(range(begin, end) for begin, end in pairwise(ends))

    @property
    def width(self) -> int:
        """How many totals a key has."""
        return sum(map(len, self.spans))

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
        periods = description["periods"]
        public = description["public_keys"]
        return cls(
            query=description["query"],
            unit_kinds=tuple(description["unit_kinds"]),
            key_kinds=tuple(description["key_kinds"]),
            windows=restore_schedule(description["windows"]),
            periods=None if periods is None else restore_schedule(periods),
            release=description["release"],
            caps=ContributionBounds(**description["caps"]),
            mechanism=from_parameters(description["mechanism"]),
            calibration=_restore_calibration(description["calibration"]),
            public_keys=None if public is None else tuple(bytes.fromhex(key) for key in public),
            shorter=tuple(
                WindowNoise(
                    from_parameters(noise["mechanism"]), _restore_calibration(noise["calibration"])
                )
                for noise in description.get("shorter", ())
            ),
        )

    def describe(self) -> dict[str, Any]:
        """Every number of the plan, as plain values."""
        shorter = [
            {
                "mechanism": noise.mechanism.parameters(),
                "calibration": asdict(noise.calibration),
            }
            for noise in self.shorter
        ]
        described = {
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
        return described | ({"shorter": shorter} if shorter else {})


def _restore_calibration(description: dict[str, Any]) -> Calibration:
    selection, closing = description["selection"], description["closing"]
    told = description["diagnostics"]
    return Calibration(
        **description
        | {
            "selection": None
            if selection is None
            else Selection(**selection | {"thresholds": tuple(selection["thresholds"])}),
            "closing": None
            if closing is None
            else Closing(**closing | {"weights_max": tuple(closing["weights_max"])}),
            "diagnostics": None
            if told is None
            else Diagnostics(**told | {"sigmas": tuple(told["sigmas"])}),
            "processes": tuple(
                CalibratedProcess(**process | {"process": _process(process["process"])})
                for process in description["processes"]
            ),
        }
    )


def _process(description: dict[str, Any]) -> Process:
    return Process(**description | {"edges": tuple(description["edges"])})


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
    got = tuple(noise.mechanism.triggers for noise in plan.noises)
    if got != plan.windows.lengths:
        raise PlanError(
            f"The mechanisms have {_listed(got)} triggers; the windows have"
            f" {_listed(plan.windows.lengths)}. Give a mechanism with each of the windows' numbers"
            " of triggers."
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
    if periods is not None and not periods.overlaps:
        raise PlanError(
            "A unit period must stay open until the next one begins. Give more triggers, or no"
            " period."
        )
    if not all(1 <= cap < 2**32 for cap in asdict(plan.caps).values()):
        raise PlanError(f"Every cap is at least 1 and below 2^32; got {plan.caps}.")
    if plan.calibration.closing is not None and not (
        plan.public_keys is None
        and plan.release == "every_trigger"
        and plan.periods == (None if plan.windows.single else plan.windows)
    ):
        raise PlanError(
            "A closing needs keys that are selected under 'every_trigger', and unit state that ends"
            " with the window. Leave it out, or give the period of the units the windows' schedule."
        )
    told = plan.calibration.diagnostics
    if told is not None and not (
        all(1 <= most <= 255 for most in told.counted_max) and len(told.sigmas) == len(DIAGNOSTICS)
    ):
        raise PlanError(
            "Diagnostics count 1 to 255 kept and dropped rows of a unit, and have a sigma for each"
            f" of {DIAGNOSTICS}; got {told}."
        )
    _validate_noise(plan)


def _listed(numbers: tuple[int, ...]) -> str:
    return ", ".join(map(str, numbers))


def _validate_noise(plan: Plan) -> None:
    """Refuse shared noise, thresholds that do not protect, and costs that depend on the window."""
    for noise in plan.noises:
        selection = noise.calibration.selection
        triggers = noise.mechanism.triggers
        if selection is not None and (
            len(selection.thresholds) != triggers or selection.minimum < 0
        ):
            raise PlanError(
                f"Selection needs a minimum of 0 or more and one threshold for each of the"
                f" {triggers} triggers. Calibrate again."
            )
        if not _cost_alike(noise, plan.noises[-1]):
            raise PlanError(
                f"A unit would spend another part of its budget in windows of {triggers} triggers"
                f" than in those of {plan.triggers}. Calibrate all together."
            )
    purposes = [p.purpose for p in plan.calibration.processes if p.purpose != SELECTION]
    reserved = {CLOSING, *DIAGNOSTICS}
    if reserved & set(purposes) or len(set(purposes)) != len(purposes):
        raise PlanError(f"Processes would share their noise; got the purposes {purposes}.")
    for noise in plan.noises:
        _validate_processes(plan, noise.calibration)


def _cost_alike(noise: WindowNoise, longest: WindowNoise) -> bool:
    """Whether all but sigmas and thresholds is equal, and each s / sigma."""
    (one, sigmas), (other, wanted) = map(_without_scales, (noise, longest))
    return one == other and all(
        math.isclose(
            noise.mechanism.sensitivity * long, longest.mechanism.sensitivity * short, rel_tol=1e-12
        )
        for short, long in zip(sigmas, wanted, strict=True)
    )


def _without_scales(noise: WindowNoise) -> tuple[Calibration, list[float]]:
    """The calibration without what depends on T, and its sigmas."""
    calibration = noise.calibration
    selection, processes = calibration.selection, calibration.processes
    sigmas = [calibrated.sigma for calibrated in processes]
    if selection is not None:
        sigmas.append(selection.sigma)
        selection = replace(selection, sigma=0.0, thresholds=())
    told = calibration.diagnostics
    if told is not None:
        sigmas += told.sigmas
        told = replace(told, sigmas=())
    common = replace(
        calibration,
        selection=selection,
        processes=tuple(replace(calibrated, sigma=0.0) for calibrated in processes),
        diagnostics=told,
    )
    return common, sigmas


def _validate_processes(plan: Plan, calibration: Calibration) -> None:
    """Refuse columns that the core cannot compute, or that have noise of another process."""
    selection = calibration.selection
    for calibrated in calibration.processes:
        process = calibrated.process
        if process.kind != "count" and (process.kind == "distinct") != (process.column is None):
            raise PlanError(f"A sum has a value column, a distinct count has none; got {process}.")
        if (process.kind == "histogram") != (process.bins > 0):
            raise PlanError(f"A histogram has bins, and nothing else has; got {process}.")
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
