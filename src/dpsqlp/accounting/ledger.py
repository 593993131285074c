"""Ledger: what all pipelines over the same units spend together, in each of its periods.

Implements the composition of instances (docs/proof.md, Lemma 25) over groups of units (Lemma 33).
A ledger splits time into periods, aligned to the epoch, or has one period without end. An entry is
charged n times its nu^2, failures and float error, n being the number of its units of one person
that meet a ledger period:

    delta(epsilon) = e^error delta_nu(epsilon - error) + failures,    nu^2, error, failures: sums

Privacy contract: the units of one person in one entry share no window, so that their shifts are
orthogonal and no key has two of them (`sql.budget` refuses anything else). An entry's records have
timestamps in [start, stop). What is computed errs towards privacy, as `gdp` does.

Not covered: whether equal names of units mean the same people; entries that were never made.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from dpsqlp.accounting.gdp import bisect, delta_of, epsilon_of, nu_of
from dpsqlp.accounting.privacy_loss import FLOAT_SHARE
from dpsqlp.errors import BudgetError

_SLACK = 1 - 2.0**-31  # as in `epsilon_of`
# Of a retirement: it takes time to be durable, a trigger may have been checked before, and the
# clocks of two machines differ.
_MARGIN_US = 5 * 60_000_000


def units_met(start: int, stop: int, length: int) -> int:
    """How many of the intervals [n length, (n + 1) length) meet [start, stop)."""
    return (stop - 1) // length - start // length + 1


def units_most(per: int, length: int) -> int:
    """The largest number of the intervals [n length, (n + 1) length) that meet one [m per,
    (m + 1) per).

    m per leaves every multiple of g = gcd(per, length) below `length` as a rest of the division by
    `length`, each for infinitely many m. A rest of r gives (r + per - 1) // length + 1 intervals,
    most for the largest rest, length - g.
    """
    return (per - math.gcd(per, length) - 1) // length + 2


@dataclass(frozen=True, slots=True)
class Budget:
    """What all entries together may spend in one ledger period; without `per_us` there is one."""

    epsilon: float
    delta: float
    per_us: int | None


@dataclass(frozen=True, slots=True)
class Entry:
    """What one pipeline instance spends for one unit, and when its records lie."""

    instance: str  # 128 random bits, as hex
    sink: str
    unit: tuple[str, ...]  # the columns, as written
    epsilon: float  # as the script has it
    delta: float
    squared_nu: float
    failures: float  # [Cs beta + beta_c]
    float_error: float  # of epsilon
    period_us: int | None  # of the unit
    start_us: int | None  # of the records' timestamps; None: any
    stop_us: int | None
    hop_us: int | None  # of windows by the clock, which begin and end with it
    size_us: int | None
    entered_us: int
    retired_us: int | None = None

    def units(self, per_us: int | None) -> int:
        """The largest number of a person's units that meet one ledger period.

        Exact where the records' span has no end, or ends in the ledger period in which it starts
        or in the next one; otherwise at most one too many.
        """
        if self.period_us is None:
            return 1
        assert self.start_us is not None, "a unit period needs a window, which has a start"
        if per_us is None:
            assert self.stop_us is not None, "refused before: its units have no number"
            return units_met(self.start_us, self.stop_us, self.period_us)
        most = units_most(per_us, self.period_us)
        if self.stop_us is None:
            return most
        first, last = self.start_us // per_us, (self.stop_us - 1) // per_us
        if last - first > 1:
            return most
        border = min(self.stop_us, (first + 1) * per_us)
        return max(
            units_met(self.start_us, border, self.period_us),
            units_met(border, self.stop_us, self.period_us) if border < self.stop_us else 0,
        )

    @property
    def end_us(self) -> int | None:
        """The end of the records' timestamps. Windows that have begun go on after retirement, and
        triggers may for the margin. A retirement is not before the entry, whatever the clock of
        another machine says.
        """
        if self.retired_us is None or self.hop_us is None or self.size_us is None:
            return self.stop_us
        latest = max(self.retired_us, self.entered_us) + _MARGIN_US
        return latest // self.hop_us * self.hop_us + self.size_us

    def met(self, per_us: int | None) -> tuple[float, float]:
        """The first and the last ledger period that it is charged in."""
        if per_us is None:
            return 0, 0
        first = -math.inf if self.start_us is None else self.start_us // per_us
        return first, math.inf if self.end_us is None else (self.end_us - 1) // per_us

    def spending(self, per_us: int | None) -> Spending:
        """What it is charged in each ledger period that it meets."""
        units = self.units(per_us)
        return Spending(units * self.squared_nu, units * self.failures, units * self.float_error)


@dataclass(frozen=True, slots=True)
class Spending:
    """What is charged in one ledger period."""

    squared_nu: float
    failures: float
    float_error: float

    @classmethod
    def total(cls, parts: Iterable[Spending]) -> Spending:
        """The sum of several."""
        parts = list(parts)
        return cls(
            math.fsum(part.squared_nu for part in parts),
            math.fsum(part.failures for part in parts),
            math.fsum(part.float_error for part in parts),
        )

    def fits(self, budget: Budget) -> bool:
        """Whether it is (epsilon, delta)-DP."""
        epsilon = budget.epsilon - self.float_error
        if epsilon <= 0:
            return False
        room = self._gaussian_delta(budget.delta) * _SLACK
        return room > 0 and delta_of(epsilon, math.sqrt(self.squared_nu)) <= room

    def epsilon_at(self, delta: float) -> float:
        """Its epsilon at a delta; infinite if failures alone are as large."""
        room = self._gaussian_delta(delta)
        if room <= 0:
            return math.inf
        return epsilon_of(math.sqrt(self.squared_nu), room) + self.float_error

    def left(self, budget: Budget) -> float:
        """The largest epsilon, at the budget's delta, of one more Gaussian mechanism that fits."""
        if not self.fits(budget):
            return 0.0
        room = self._gaussian_delta(budget.delta)
        squared = nu_of(budget.epsilon - self.float_error, room) ** 2 - self.squared_nu
        return 0.0 if squared <= 0 else epsilon_of(math.sqrt(squared), budget.delta)

    def _gaussian_delta(self, delta: float) -> float:
        """What failures and float error leave of a delta."""
        return (delta - self.failures) * math.exp(-self.float_error)


@dataclass(frozen=True, slots=True)
class Ledger:
    """A budget, and what is entered in it. Its id tells it from a new one in its place."""

    id: str
    budget: Budget
    entries: tuple[Entry, ...] = ()

    def find(self, instance: str) -> Entry | None:
        """The entry of an instance."""
        return next((entry for entry in self.entries if entry.instance == instance), None)

    def spending(self, period: float) -> Spending:
        """What is entered for a ledger period."""
        return Spending.total(
            entry.spending(self.budget.per_us) for entry in self.entries_in(period)
        )

    def entries_in(self, period: float) -> list[Entry]:
        """The entries that are charged in a ledger period."""
        met = ((entry, entry.met(self.budget.per_us)) for entry in self.entries)
        return [entry for entry, (first, last) in met if first <= period <= last]

    def period(self, now: int) -> int:
        """The ledger period of a moment."""
        return 0 if self.budget.per_us is None else now // self.budget.per_us

    def enter(self, entry: Entry) -> Ledger:
        """The ledger with one more entry. Refused unless it fits in every ledger period it meets.

        An instance is entered once: for the same numbers again, the ledger stays as it is.
        """
        known = self.find(entry.instance)
        if known is not None:
            self._check_known(known, entry)
            return self
        if self.entries and entry.unit != self.entries[0].unit:
            raise BudgetError(
                f"The ledger protects {_unit(self.entries[0].unit)}; got {entry.sink}, which"
                f" protects {_unit(entry.unit)}. Name the unit as the first entry has it, letter"
                " by letter, or give the sink a budget with a ledger of its own."
            )
        before = self._fullest(entry)
        if not all(self._fits(entry, spent) for spent in before):
            raise self._does_not_fit(entry, before)
        return replace(self, entries=(*self.entries, entry))

    def retire(self, instance: str, now: int) -> Ledger:
        """The ledger with an instance that runs no more. Its later ledger periods are free."""
        entry = self.find(instance)
        if entry is None:
            raise BudgetError(
                f"The ledger has no instance {instance!r}. Give one of those that it lists."
            )
        if entry.retired_us is not None:
            return self
        retired = replace(entry, retired_us=now)
        return replace(self, entries=tuple(retired if e is entry else e for e in self.entries))

    def largest_epsilon(self, entry: Entry) -> float:
        """The largest epsilon with which a pipeline fits, all other options as they are; or 0."""
        before = self._fullest(entry)
        gaussian = entry.delta - entry.failures

        def fits(epsilon: float) -> bool:
            error = epsilon * FLOAT_SHARE
            nu = nu_of(epsilon - error, gaussian * math.exp(-error)) if epsilon else 0.0
            tried = replace(entry, squared_nu=nu * nu, float_error=error)
            return all(self._fits(tried, spent) for spent in before)

        return bisect(fits)[0] if fits(0.0) else 0.0

    def left(self, entry: Entry) -> float:
        """What is left in the fullest ledger period that an entry meets; see `Spending.left`."""
        return min(spent.left(self.budget) for spent in self._fullest(entry))

    def _fullest(self, entry: Entry) -> list[Spending]:
        """What is entered where an entry could be too much: the sum over the ledger periods that
        it meets is largest in its own first one, or where another entry begins.
        """
        first, last = entry.met(self.budget.per_us)
        begin = {begins for e in self.entries if first < (begins := e.met(self.budget.per_us)[0])}
        return [self.spending(period) for period in (first, *sorted(begin)) if period <= last]

    def _fits(self, entry: Entry, spent: Spending) -> bool:
        return Spending.total([spent, entry.spending(self.budget.per_us)]).fits(self.budget)

    def _does_not_fit(self, entry: Entry, before: list[Spending]) -> BudgetError:
        budget, units = self.budget, entry.units(self.budget.per_us)
        left = down(min(spent.left(budget) for spent in before))
        largest = self.largest_epsilon(entry)
        times = "" if units == 1 else f", charged for {units} units in each ledger period"
        advice = (
            f"The largest epsilon that fits, with the same delta and options, is {down(largest)}."
        )
        if largest <= 0:
            advice = (
                f"No epsilon fits with delta = {entry.delta:g}: {_room(before, budget):g} of the"
                " budget's delta is left, for failures and noise. Lower delta."
            )
        return BudgetError(
            f"{entry.sink} does not fit the budget of ({budget.epsilon:g}, {budget.delta:g}): got"
            f" ({entry.epsilon:g}, {entry.delta:g}){times}, where epsilon {left} is left for one"
            f" Gaussian mechanism at delta {budget.delta:g}. {entry.sink} was not entered. {advice}"
        )

    @staticmethod
    def _check_known(known: Entry, entry: Entry) -> None:
        """Refuse an instance that was retired, or that is not the one entered."""
        if known.retired_us is not None:
            raise BudgetError(
                f"The instance {known.instance} of {entry.sink} was retired from the ledger, which"
                " has freed its later periods. It cannot run again. Begin a new pipeline with a"
                " state of its own, which is entered anew."
            )
        as_known = replace(entry, sink=known.sink, entered_us=known.entered_us)
        if as_known != known:
            raise BudgetError(
                f"The ledger has other numbers for the instance {known.instance} of {entry.sink}"
                " than its state. One of them was changed. Restore the state and the ledger"
                " from their copies, or begin a new pipeline with a state of its own."
            )


def down(number: float) -> str:
    """A number with four digits, rounded down: what is promised to fit does."""
    if number < 1e-300:  # 10.0**digits would overflow
        return "0"
    digits = 3 - math.floor(math.log10(number))
    return f"{math.floor(number * 10.0**digits) / 10.0**digits:.4g}"


def _room(before: list[Spending], budget: Budget) -> float:
    return max(0.0, min(budget.delta - spent.failures for spent in before))


def _unit(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"({', '.join(names)})"
