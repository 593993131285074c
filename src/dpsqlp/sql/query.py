"""A query after validation: everything that planning and running need, and no syntax tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import pyarrow as pa

from dpsqlp.accounting.model import ContributionBounds, Process, ReleasePolicy, Spending

OptionValue = str | int | float | bool
Quantiles = tuple[int, tuple[float, ...]]  # of the histogram with this index, at these fractions
OutputKind = Literal["key", "window", "aggregate"]
MechanismName = Literal["blt", "tree"]
CalendarUnit = Literal["day", "week", "month", "quarter", "year"]


@dataclass(frozen=True, slots=True)
class SourceDef:
    """CREATE SOURCE: a private stream."""

    name: str
    columns: tuple[tuple[str, str], ...]  # name, DuckDB type
    options: dict[str, OptionValue]

    @property
    def connector(self) -> str:
        """The connector that reads the stream; by default, batches come from Python."""
        return str(self.options.get("connector", "python"))

    @property
    def bounded(self) -> bool:
        """Whether it may be finished history, which alone is replayed on event time."""
        files = self.connector == "files" and not self.options.get("follow", False)
        return files or self.connector == "python"


@dataclass(frozen=True, slots=True)
class PublicTable:
    """CREATE PUBLIC TABLE: rows that are not protected, read once and frozen."""

    name: str
    rows: pa.Table = field(repr=False, compare=False)
    digest: str


@dataclass(frozen=True, slots=True)
class Tumble:
    """Windows one after another; window n starts n * size_us after the epoch (UTC)."""

    size_us: int

    @property
    def hop_us(self) -> int:
        """From one window's start to the next."""
        return self.size_us


@dataclass(frozen=True, slots=True)
class Hop:
    """Overlapping windows; window n starts n * hop_us after the epoch (UTC)."""

    size_us: int
    hop_us: int


@dataclass(frozen=True, slots=True)
class Calendar:
    """Days, weeks, months, quarters or years, one after another, by the clock of a time zone."""

    unit: CalendarUnit
    zone: str = "UTC"
    weekday: int = 0  # on which a week starts; 0 is Monday


Window = Tumble | Hop | Calendar
Length = int | Calendar  # microseconds, counted from the epoch; or a calendar's items


@dataclass(frozen=True, slots=True)
class Emit:
    """When releases are made. Times are microseconds; start and stop count from the epoch. With a
    calendar the triggers are at its boundaries, and lengths stand for multiples of its items.
    """

    interval_us: int
    on_event_time: bool = False
    triggers: int | None = None  # FOR n TRIGGERS: only without a window
    lateness_us: int = 0
    start_us: int | None = None  # ON EVENT TIME FROM
    stop_us: int | None = None  # ON EVENT TIME TO
    calendar: Calendar | None = field(default=None, repr=False)

    @property
    def late_triggers(self) -> int:
        """The triggers of a window after its end."""
        return self.lateness_us // self.interval_us

    @property
    def span(self) -> tuple[int, int] | None:
        """The event time that is replayed, if it has both ends."""
        return (
            None if self.start_us is None or self.stop_us is None else (self.start_us, self.stop_us)
        )


@dataclass(frozen=True, slots=True)
class Output:
    """One selected column. `sql` and `sd_sql` are over the columns of `released`."""

    name: str
    kind: OutputKind
    sql: str
    sd_sql: str | None = None  # standard deviation of the noise; aggregates only
    processes: tuple[int, ...] = ()  # whose noise it carries
    edges_sql: str | None = None  # of the bins; histograms only
    length: int = 0  # of a list; 0: a number

    @property
    def elements(self) -> list[Output]:
        """The numbers in it: of a list one for each place, named x[1], x[2], ..."""
        if not self.length:
            return [self]
        is_histogram = self.edges_sql is not None
        return [
            Output(
                f"{self.name}[{place}]",
                self.kind,
                f"({self.sql})[{place}]",
                self.sd_sql if is_histogram else f"({self.sd_sql})[{place}]",
                self.processes,
            )
            for place in range(1, self.length + 1)
        ]

    @property
    def columns(self) -> dict[str, str]:
        """The released columns by name, with their SQL: the first is the selected one."""
        beside = {"": self.sql, "_sd": self.sd_sql, "_edges": self.edges_sql}
        return {self.name + end: sql for end, sql in beside.items() if sql is not None}


@dataclass(frozen=True, slots=True)
class BudgetDef:
    """CREATE BUDGET: what several pipelines may spend together, and where that is kept."""

    name: str
    epsilon: float
    delta: float
    per_us: int | None  # the length of a ledger period; None: one without end
    options: dict[str, OptionValue]
    folder: str  # of the script, absolute


@dataclass(frozen=True, slots=True)
class Account:
    """The budget that a sink spends from, and the name that it is entered under."""

    sink: str
    budget: BudgetDef


@dataclass(frozen=True, slots=True)
class Query:
    """The computation of one sink.

    `row_sql` is DuckDB SQL over a relation with the source's name. It never fails on a row and
    gives, in this order, unit_0.., key_0.., window_number, timestamp_us, [period_number],
    value_0..; the last four kinds are integers (numbers for values). A window_number of null is
    outside every window. A calendar's window_number and period_number are the timestamp itself: the
    plan has the table of the calendar.

    `release_sql` is DuckDB SQL over a table `released` with the columns window_number,
    window_start, window_end, window_local (the start by the clock of the window's zone), trigger,
    released_at (its time on the grid), window_trigger (its number within the window), final,
    position (in the order of window and canonical key bytes), key_0.., p0, p0_sd, .. (p a list, if
    the process is a histogram), q0, q0_sd, .. (lists); it gives window_start, window_end, trigger
    to final, then the SELECT list, each aggregate followed by its <alias>_sd, and a histogram by
    <alias>_edges.
    """

    source: SourceDef
    row_sql: str
    release_sql: str
    normal_form: str  # of the SQL: equal for equal meaning up to formatting
    public_tables: tuple[PublicTable, ...]
    unit_names: tuple[str, ...]  # as the user wrote them
    unit_types: tuple[str, ...]  # DuckDB types
    unit_kinds: tuple[str, ...]  # canonical kinds
    key_names: tuple[str, ...]
    key_types: tuple[str, ...]
    key_kinds: tuple[str, ...]
    window: Window | None
    emit: Emit
    period: Length | None
    epsilon: float
    delta: float
    caps: ContributionBounds
    minimum: int  # min_privacy_units_per_group - 1
    selection_share: float
    selection_spending: Spending
    mechanism: MechanismName
    release: ReleasePolicy
    closing: bool  # what units have left at a window's end selects further keys
    diagnostics_share: float  # of nu^2; 0: there are no diagnostics
    public_keys: tuple[bytes, ...] | None  # canonical bytes, sorted; None: selected privately
    processes: tuple[Process, ...]
    quantiles: tuple[Quantiles, ...]
    outputs: tuple[Output, ...]
    event_column: str | None  # the source's column that the timestamp is, if it is one
    account: Account | None = None  # where it enters what it spends; shapes neither data nor noise

    @property
    def counts_units_alone(self) -> bool:
        """Whether a unit's rows of a group after the first use up nothing."""
        return counts_units_alone(self.processes, self.release, self.public_keys is not None)


def counts_units_alone(
    processes: Sequence[Process], release: ReleasePolicy, public_keys: bool
) -> bool:
    """Whether the only aggregate is COUNT(DISTINCT unit), and each unit counts once in a group.

    A unit's further rows of a group add nothing then. Under `threshold` each round needs a vote.
    """
    once = release == "every_trigger" or public_keys
    return once and {process.kind for process in processes} == {"distinct"}


def no_closing(
    release: ReleasePolicy,
    public_keys: tuple[bytes, ...] | None,
    window: Window | None,
    period: Length | None,
) -> str | None:
    """Why a window cannot end with a closing, in words; None if it can.

    The unit's state must end with the window. Hopping windows may have a period as long as a hop,
    but the unit's other windows go on.
    """
    if public_keys is not None:
        return "no groups are selected"
    if release != "every_trigger":
        return f"release is '{release}'"
    if isinstance(window, Hop):
        return "the windows overlap"
    length = window.size_us if isinstance(window, Tumble) else window
    if period != length:
        return "units outlive a window, since privacy_unit_period is not set to its length"
    return None


@dataclass(frozen=True, slots=True)
class SinkDef:
    """CREATE SINK: a query and where its releases go."""

    name: str
    options: dict[str, OptionValue]
    query: Query


@dataclass(frozen=True, slots=True)
class Program:
    """A validated script."""

    sources: dict[str, SourceDef]  # by name, lower case
    public_tables: dict[str, PublicTable]  # by name, lower case
    sinks: tuple[SinkDef, ...]
