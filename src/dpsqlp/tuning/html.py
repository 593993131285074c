"""A tuning as one HTML page, without outside resources."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from dpsqlp.tuning.report import Bar, Table, bars, figures_line, size_table, tuning_tables
from dpsqlp.tuning.search import Measured
from dpsqlp.tuning.tune import Tuning

_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}td,th{padding:.2rem .7rem;border-bottom:1px solid #8884;"
    "text-align:right}td:first-child,th:first-child{text-align:left}"
    "pre{background:#8882;padding:.7rem;overflow-x:auto}svg{max-width:100%}"
    "svg text{font:12px system-ui,sans-serif;fill:currentColor}"
    ".noise{fill:#2b6cb0}.bias{fill:#dd6b20}.other{fill:#a0aec0}"
    "@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}}"
)
_WIDTH, _HEIGHT, _EDGE = 640, 300, 48
_BAR = 22


def page(tuning: Tuning) -> str:
    """The page."""
    title = escape(f"dpsqlp tune: {tuning.sink}")
    parts = [
        f"<h1>{title}</h1>",
        f"<p>Recommended for the goal {escape(tuning.goal)}:</p>",
        f"<pre>{escape(tuning.clause)}</pre>",
        f"<p>Recommended: {escape(figures_line(tuning.best.figures))}</p>",
        f"<p>As it stands: {escape(figures_line(tuning.now.figures))}</p>",
    ]
    if tuning.best.figures.columns:
        parts += [
            "<h2>Candidates</h2>",
            _scatter(tuning),
            "<h2>Noise and cap bias by the size of groups</h2>",
            "<p>Medians, as parts of the median true value of a class.</p>",
            "<h3>Recommended</h3>" + _bars(bars(tuning.sizes)),
            "<h3>As it stands</h3>" + _bars(bars(tuning.sizes_now)),
        ]
        sizes = [
            size_table("Errors by size, recommended", tuning.sizes),
            size_table("Errors by size, as it stands", tuning.sizes_now),
        ]
    else:
        sizes = []
    parts += [_table(table) for table in [*tuning_tables(tuning), *sizes]]
    parts += [f"<p>{escape(note)}</p>" for note in tuning.notes]
    return (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        f"<title>{title}</title><style>{_STYLE}</style>\n" + "\n".join(parts) + "\n</html>\n"
    )


def _table(table: Table) -> str:
    head = "".join(f"<th>{escape(text)}</th>" for text in table.heads)
    body = "\n".join(
        "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>" for row in table.rows
    )
    return f"<h2>{escape(table.title)}</h2>\n<table><tr>{head}</tr>\n{body}</table>"


def _scatter(tuning: Tuning) -> str:
    """Groups released against the l2 error of the first aggregate, relative to the truth's."""
    points = [(one.figures.keys, one.figures.columns[0].relative_l2) for one in tuning.measured]
    (left, right), (low, high) = (_range([p[axis] for p in points]) for axis in (0, 1))
    marks = []
    for one, (keys, error) in zip(tuning.measured, points, strict=True):
        x = _EDGE + (keys - left) / (right - left) * (_WIDTH - 2 * _EDGE)
        y = _HEIGHT - _EDGE - (error - low) / (high - low) * (_HEIGHT - 2 * _EDGE)
        kind, label = _kind(one, tuning)
        marks.append(
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="5" class="{kind}">'
            f"<title>{escape(label)} {keys:,.0f} groups, {error:.3g}</title></circle>"
        )
        if kind != "other":
            marks.append(f'<text x="{x + 8:.1f}" y="{y + 4:.1f}">{escape(label)}</text>')
    axes = (
        f'<text x="{_EDGE}" y="{_HEIGHT - 12}">{left:,.0f}</text>'
        f'<text x="{_WIDTH - _EDGE}" y="{_HEIGHT - 12}" text-anchor="end">{right:,.0f} groups'
        f'</text><text x="4" y="{_EDGE - 24}">l2 error {high:.3g}</text>'
        f'<text x="4" y="{_HEIGHT - _EDGE + 12}">{low:.3g}</text>'
    )
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}" role="img"'
        f' aria-label="Candidates by groups and error">{axes}{"".join(marks)}</svg>'
    )


def _kind(one: Measured, tuning: Tuning) -> tuple[str, str]:
    if one is tuning.best:
        return "noise", "recommended"
    return ("bias", "as it stands") if one is tuning.now else ("other", "candidate:")


def _range(numbers: Sequence[float]) -> tuple[float, float]:
    low, high = min(numbers), max(numbers)
    return (low, high) if high > low else (low - 1, high + 1)


def _bars(rows: Sequence[Bar]) -> str:
    """A bar for each class: noise, then cap bias."""
    shapes = []
    for number, bar in enumerate(rows):
        y = number * _BAR
        noise, bias = 120 * bar.noise, 120 * bar.bias
        shapes.append(
            f'<text x="0" y="{y + 15}">{escape(bar.label)}</text>'
            f'<rect x="150" y="{y + 4}" width="{noise:.1f}" height="14" class="noise"/>'
            f'<rect x="{150 + noise:.1f}" y="{y + 4}" width="{bias:.1f}" height="14" class="bias"/>'
            f'<text x="400" y="{y + 15}">{escape(bar.words)}</text>'
        )
    return (
        f'<svg viewBox="0 0 900 {_BAR * max(len(rows), 1)}" width="900" role="img"'
        f' aria-label="Noise and cap bias by size">{"".join(shapes)}</svg>'
    )
