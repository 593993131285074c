"""Results as tables of text, for the terminal, HTML and Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

_HEADS = {
    "half_day_keys": "half-day keys",
    "keys_before_last": "before last",
    "linf": "ℓ∞",
    "l1": "ℓ1",
    "l2": "ℓ2",
    "records_per_second": "records/s",
    "peak_memory_bytes": "peak memory",
    "trigger_seconds": "s/trigger",
    "keys_in_state": "keys in state",
    "selection_sigma": "σ of selection",
    "count_sigma": "σ of counts",
    "views_retained": "views kept",
    "retained_1_per_hour": "≥ 1/hour",
    "retained_60_per_hour": "≥ 60/hour",
    "keys_above_minimum": "above minimum",
    "share_of_them": "share of them",
    "fewest_users": "fewest users",
    "rows_from": "rows of a key, from",
    "rows_to": "to",
    "tuned_to_best": "tuned / best",
    "tuned_options": "norm, votes, share, spending",
    "best_options": "those of the best",
}


def cells(rows: Sequence[dict[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """The column titles and the texts of a table; a missing value is a dash."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    heads = [_HEADS.get(name, name.replace("_", " ")) for name in names]
    return heads, [[figure(name, row.get(name)) for name in names] for row in rows]


def figure(name: str, value: Any) -> str:
    """A value as text, with the unit that its name implies."""
    if value is None:
        return "–"
    if isinstance(value, str):
        return value
    if name.endswith("_bytes") or "memory" in name:
        return f"{value / 1e9:.2f} GB"
    if "retained" in name or name.startswith(("share_", "bias_")):
        return f"{value:.1%}"
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"


def markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown, its first column left-aligned."""
    rule = ["---", *["---:"] * (len(heads) - 1)]
    return "\n".join(f"| {' | '.join(line)} |" for line in [list(heads), rule, *rows]) + "\n"


def html(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in HTML."""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(text)}</td>" for text in row) + "</tr>\n" for row in rows
    )
    return f"<table>\n<tr>{head}</tr>\n{body}</table>\n"
