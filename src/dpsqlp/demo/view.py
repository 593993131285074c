"""The live table: released counts with error bars, next to the exact counts.

Only the demo may show the truth: its data is generated.
"""

from __future__ import annotations

from dataclasses import dataclass

from rich import box
from rich.console import Group
from rich.table import Table
from rich.text import Text

_ROWS = 14
_BARS = 12, 44  # the shortest and the longest bar
_OTHER = 58  # width of the other columns


@dataclass(frozen=True, slots=True)
class Row:
    """A released page and its true count."""

    page: str
    views: int
    deviation: float
    truth: int


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The contents of the table after a trigger."""

    clock: str
    trigger: int
    triggers: int
    rows: tuple[Row, ...]  # all released pages
    pages_seen: int

    @property
    def within(self) -> float:
        """The share of released pages whose truth lies within two standard deviations."""
        inside = sum(abs(row.views - row.truth) <= 2 * row.deviation for row in self.rows)
        return inside / max(len(self.rows), 1)


def show(snapshot: Snapshot, width: int) -> Group:
    """The table after a trigger, for a console of this width."""
    bar = min(max(width - _OTHER, _BARS[0]), _BARS[1])
    top = sorted(snapshot.rows, key=lambda row: -row.views)[:_ROWS]
    scale = max((max(row.views + 2 * row.deviation, row.truth) for row in top), default=1.0)
    table = Table(
        title=f"Page views today, {snapshot.clock} UTC   "
        f"[dim](trigger {snapshot.trigger} of {snapshot.triggers})[/dim]",
        title_style="bold",
        title_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("page", min_width=22, no_wrap=True)
    table.add_column("released", justify="right", min_width=8, style="bold cyan")
    table.add_column("± 2 sd", justify="right", style="cyan")
    table.add_column("truth", justify="right", min_width=6, style="yellow")
    table.add_column("[cyan]━├┤[/] released [yellow]◆[/] truth", width=bar, no_wrap=True)
    for row in top:
        table.add_row(
            row.page,
            f"{row.views:,}",
            f"{2 * row.deviation:,.0f}",
            f"{row.truth:,}",
            _bar(row, scale, bar),
        )
    for _ in range(_ROWS - len(top)):
        table.add_row("", "", "", "", "")
    return Group(table, _caption(snapshot))


def _caption(snapshot: Snapshot) -> Text:
    return Text.assemble(
        (f"{len(snapshot.rows):,}", "bold cyan"),
        " pages released of ",
        (f"{snapshot.pages_seen:,}", "bold yellow"),
        " that were visited; the truth lies within ± 2 sd for ",
        (f"{snapshot.within:.0%}", "bold"),
        " of them.",
    )


def _bar(row: Row, scale: float, width: int) -> Text:
    """A bar up to the released count, whiskers of two deviations, and a mark at the truth."""

    def cell(value: float) -> int:
        return min(max(round(value / scale * (width - 1)), 0), width - 1)

    end, low, high = (
        cell(row.views),
        cell(row.views - 2 * row.deviation),
        cell(row.views + 2 * row.deviation),
    )
    cells = ["━" if n <= end else " " for n in range(width)]
    if high > low:
        cells[low : high + 1] = ["├", *"─" * (high - low - 1), "┤"]
    text = Text("".join(cells), style="cyan")
    truth = cell(row.truth)
    return Text.assemble(text[:truth], ("◆", "bold yellow"), text[truth + 1 :])
