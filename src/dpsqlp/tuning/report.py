"""Reports as titles, tables and bars of text, for the terminal and for HTML."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpsqlp.tuning.candidate import norm_text
from dpsqlp.tuning.figures import Errors, Figures, SizeClass
from dpsqlp.tuning.preview import Preview
from dpsqlp.tuning.search import Measured
from dpsqlp.tuning.tune import Tuning

_SHOWN = 8  # candidates
_SHOWN_ROWS = 20  # of a preview


@dataclass(frozen=True, slots=True)
class Table:
    """A table of text; the first column is aligned to the left."""

    title: str
    heads: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Bar:
    """The median noise and cap bias of a class of groups, as parts of their median true value."""

    label: str
    noise: float
    bias: float
    words: str


def tuning_tables(tuning: Tuning) -> list[Table]:
    """Candidates, the errors of every aggregate, and steps."""
    rows = [_candidate(one, _mark(one, tuning)) for one in tuning.measured[:_SHOWN]]
    if tuning.now not in tuning.measured[:_SHOWN]:
        rows.append(_candidate(tuning.now, _mark(tuning.now, tuning)))
    heads = ("", *_heads(tuning.best))
    tables = [Table(f"Candidates by {tuning.goal}", heads, tuple(rows))]
    if len(tuning.best.figures.columns) > 1:
        tables.append(_columns(tuning))
    for name in dict.fromkeys(step.name for step in tuning.steps):
        stepped = [
            _candidate(step.measured, step.value) for step in tuning.steps if step.name == name
        ]
        tables.append(Table(f"The best candidate by {name}", (name, *heads[1:]), tuple(stepped)))
    return tables


def preview_tables(preview: Preview) -> list[Table]:
    """The groups with most rows, and the errors by size for each aggregate."""
    table = preview.table.slice(0, _SHOWN_ROWS)
    rows = tuple(tuple(map(cell, row.values())) for row in table.to_pylist())
    more = preview.table.num_rows - table.num_rows
    title = "Last release, the groups with most rows first"
    if more > 0:
        title += f" ({more:,} more)"
    return [
        Table(title, tuple(table.column_names), rows),
        *(
            size_table(f"Errors of {name} by the number of rows of a group", sizes)
            for name, sizes in preview.sizes.items()
        ),
    ]


def size_table(title: str, sizes: Sequence[SizeClass]) -> Table:
    """Errors by the size of groups."""
    heads = ("rows", "groups", "released", "sd", "noise", "cap bias", "90 % error", "in ±2 sd")
    rows = tuple(
        (
            _class(size),
            cell(size.groups),
            cell(size.released),
            cell(size.sd),
            cell(size.noise),
            cell(size.bias),
            cell(size.error),
            percent(size.coverage),
        )
        for size in sizes
    )
    return Table(title, heads, rows)


def bars(sizes: Sequence[SizeClass]) -> list[Bar]:
    """Noise and cap bias beside the true value: at most as large as it."""
    return [
        Bar(
            _class(size),
            _part(size.noise, size.truth),
            _part(abs(size.bias), size.truth),
            f"{size.released:,} of {size.groups:,} released, noise {cell(size.noise)}, cap bias"
            f" {cell(size.bias)}",
        )
        for size in sizes
        if size.released
    ]


def figures_line(figures: Figures) -> str:
    """Figures in one sentence."""
    text = (
        f"{cell(figures.keys)} of {cell(figures.true_keys)} groups released at the end of a window,"
        f" {cell(figures.half_keys)} half way, with {percent(figures.records)} of the rows"
    )
    for column in figures.columns:
        text += (
            f"; {column.name}: median error {cell(column.error[0])} (noise {cell(column.noise[0])},"
            f" cap bias {cell(column.bias[0])}), {percent(column.coverage)} within 2 sd"
        )
    return text + "."


def percent(share: float) -> str:
    """A share in percent."""
    return "–" if math.isnan(share) else f"{100 * share:.3g} %"


def cell(value: object) -> str:
    """A value of a table."""
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        return "–"
    if isinstance(value, float) and abs(value) < 100:
        return f"{value:.3g}"
    return f"{value:,.0f}" if isinstance(value, int | float) else str(value)


def _mark(one: Measured, tuning: Tuning) -> str:
    marks = []
    if one is tuning.best:
        marks.append("recommended")
    if one is tuning.now:
        marks.append("as it stands")
    return ", ".join(marks)


def _heads(one: Measured) -> tuple[str, ...]:
    options = ("norm", "votes", "share", "spending", "half way", "groups", "rows")
    errors = ("error 50/90 %", "noise 50/90 %", "cap bias 50/90 %", "in ±2 sd")
    return options + (errors if one.figures.columns else ())


def _candidate(one: Measured, label: str) -> tuple[str, ...]:
    candidate, figures = one.candidate, one.figures
    return (
        label,
        norm_text(candidate.squared_norm),
        str(candidate.selections),
        f"{candidate.share:g}",
        candidate.spending,
        cell(figures.half_keys),
        cell(figures.keys),
        percent(figures.records),
        *(_errors(figures.columns[0]) if figures.columns else ()),
    )


def _errors(column: Errors) -> tuple[str, ...]:
    pairs = (column.error, column.noise, column.bias)
    return (*(f"{cell(low)} / {cell(high)}" for low, high in pairs), percent(column.coverage))


def _columns(tuning: Tuning) -> Table:
    """Every aggregate, with the best options and as it stands."""
    rows = [
        (f"{column.name}, {label}", cell(column.sd), *_errors(column))
        for label, one in (("recommended", tuning.best), ("as it stands", tuning.now))
        for column in one.figures.columns
    ]
    heads = ("", "sd", "error 50/90 %", "noise 50/90 %", "cap bias 50/90 %", "in ±2 sd")
    return Table("Errors by column", heads, tuple(rows))


def _part(error: float, truth: float) -> float:
    return error / truth if error < truth else float(error > 0)


def _class(size: SizeClass) -> str:
    return f"{size.low:,} to {size.high:,}"
