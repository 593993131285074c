"""The vocabulary of accounting: contribution bounds, processes, calibrations.

Symbols of docs/proof.md are in brackets.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

ReleasePolicy = Literal["every_trigger", "threshold"]
Spending = Literal["even", "late"]  # of a vote's failure over the triggers, see `thresholds`
ProcessKind = Literal["count", "sum", "squares", "distinct", "histogram"]

SELECTION = "selection"
CLOSING = "closing"
# What diagnostics tell about each window, and the prefix of their noise's purposes.
DIAGNOSTICS = ("units_seen", "units_bounded", "rows_kept", "rows_dropped")


@dataclass(frozen=True, slots=True)
class ContributionBounds:
    """The most that one unit contributes over the whole stream."""

    records: int  # [C]
    records_per_key: int  # [c] per (key, window)
    selections: int  # [Cs] selection votes
    # [P] sum of the squares of its records per (key, window); 0: what the first two imply
    squared_norm: int = 0

    def __post_init__(self) -> None:
        """A larger norm than the other bounds imply is never reached."""
        if self.records >= 1 and self.records_per_key >= 1:
            full, rest = divmod(self.records, self.records_per_key)
            implied = full * self.records_per_key**2 + rest**2
            squared_norm = min(self.squared_norm or implied, implied)
            object.__setattr__(self, "squared_norm", squared_norm)


@dataclass(frozen=True, slots=True)
class Process:
    """A continual sum per (key, window), of one or several totals, before calibration.

    `count` adds 1 per record, or per record with a value in micro-batch column `column`; `sum`
    adds that column's value, clamped, less `center`; `squares` adds the square of that, less half
    of the largest square; `distinct` adds 1 per unit. `histogram` adds 1 to the total of the bin
    that the column's value is in, and with `coarse` also to that of the coarse bin around it: the
    totals of the bins come first. Values below the first edge or above the last are in the bin at
    that end; a value on an inner edge is in the bin above it.
    """

    name: str
    kind: ProcessKind
    column: int | None = None
    lower: float = 0.0
    upper: float = 1.0
    center: float = 0.0
    edges: tuple[float, ...] = ()  # of the bins, increasing: one more than there are bins
    coarse: int = 0  # so many bins side by side are a coarse bin, the last perhaps fewer; 0: none

    @property
    def bins(self) -> int:
        """How many bins a histogram has."""
        return max(0, len(self.edges) - 1)

    @property
    def width(self) -> int:
        """How many totals a key has."""
        if self.kind != "histogram":
            return 1
        return self.bins + (math.ceil(self.bins / self.coarse) if self.coarse else 0)

    @property
    def depth(self) -> int:
        """How many of the totals one record adds to."""
        return 2 if self.coarse else 1

    @property
    def reach(self) -> float:
        """The largest distance of a clamped value from the center, as floats subtract."""
        return max(abs(self.lower - self.center), abs(self.upper - self.center))

    @property
    def half_square(self) -> float:
        """Half of the largest square."""
        return self.reach * self.reach / 2

    @property
    def bound(self) -> float:
        """[L], the largest absolute value of one contribution; of a histogram, the length of the
        vector that one record adds to its totals.
        """
        if self.kind == "histogram":
            return math.sqrt(self.depth)
        return self.half_square if self.kind == "squares" else self.reach


@dataclass(frozen=True, slots=True)
class CalibratedProcess:
    """A process with its noise. `purpose` names the noise process it is released from.

    A `distinct` process under `every_trigger` with private keys is released from the selection
    process: its purpose is `SELECTION` and it has no cost of its own.
    """

    process: Process
    purpose: str
    sigma: float  # in units of the value; the noise of trigger i has deviation sigma * b(i)
    quantum: float  # a power of two; totals and noise are integer multiples of it


@dataclass(frozen=True, slots=True)
class Selection:
    """A key is selected iff count > minimum and count + noise >= threshold."""

    minimum: int  # [mu]
    sigma: float  # [sigma_k]
    thresholds: tuple[int, ...]  # [thr(i)], i = 1..T
    failure: float  # [beta] per selection vote, over all triggers


@dataclass(frozen=True, slots=True)
class Closing:
    """At a window's last trigger units lay what they have left of nu^2 on keys that are not out."""

    budget: float  # [nu^2] less what diagnostics cost, rounded down
    vote_cost: float  # of nu^2
    square_cost: float  # of nu^2, for a unit's sum of squared rows per group
    quantum: float  # [q] of weights and noise: a power of two
    weights_max: tuple[int, ...]  # of a unit with m open keys, m = 1..M, in quanta
    threshold: int  # [tau], in quanta
    failure: float  # [beta_c] per unit


@dataclass(frozen=True, slots=True)
class Diagnostics:
    """Noisy numbers of each window: units seen and bounded, rows kept and dropped."""

    share: float  # of nu^2
    kept_max: int  # [K] of a unit's kept rows, the first so many count
    dropped_max: int  # [D] of its dropped rows, the first so many count
    sigmas: tuple[float, ...]  # in the order of DIAGNOSTICS

    @property
    def counted_max(self) -> tuple[int, ...]:
        """The most that one unit adds to each number, over all windows."""
        return 1, 1, self.kept_max, self.dropped_max


@dataclass(frozen=True, slots=True)
class Calibration:
    """Every number between (epsilon, delta) and the noise."""

    epsilon: float
    delta: float
    nu: float  # the whole output is nu-GDP, eligibility aside
    epsilon_gaussian: float  # epsilon less the charge for float error in the noise
    delta_gaussian: float  # [delta_0]
    delta_threshold: float  # [Cs * beta + beta_c], 0 with public keys
    selection: Selection | None  # None: keys are public
    processes: tuple[CalibratedProcess, ...]
    closing: Closing | None = None
    diagnostics: Diagnostics | None = None
