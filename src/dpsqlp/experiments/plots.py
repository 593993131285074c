"""Plots of results as PNG files, by matplotlib (the extra `experiments`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpsqlp.errors import DpsqlpError
from dpsqlp.experiments import paper
from dpsqlp.experiments.result import days_of
from dpsqlp.experiments.task import PRESETS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLUE, _GREY, _ORANGE = "#2b6cb0", "#a0aec0", "#dd6b20"
_METRICS = {
    "keys": "keys released",
    "half_day_keys": "half-day keys",
    "l1": "ℓ1 error",
    "l2": "ℓ2 error",
}


def check_available() -> None:
    """Refuse to run without matplotlib."""
    if find_spec("matplotlib") is None:
        raise DpsqlpError(
            "Plots need matplotlib, which is not installed. Run pip install 'dpsqlp[experiments]',"
            " or leave out --report."
        )


def draw(results: Mapping[str, dict[str, Any]], folder: Path) -> list[Path]:
    """Write the plots of these results; returns their files."""
    check_available()
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, rows in _bars(results).items():
        figure = Figure(figsize=(10, 3.2), layout="constrained")
        _draw_bars(figure, rows)
        written.append(_save(figure, folder / f"{name}.png"))
    for name, result in results.items():
        drawer = {"sweep": _sweep, "shopping": _shopping, "scale": _scale}.get(result["experiment"])
        if drawer is not None:
            figure = Figure(figsize=(10, 3.2), layout="constrained")
            drawer(figure, result)
            written.append(_save(figure, folder / f"{name}.png"))
    return written


def _save(figure: Figure, path: Path) -> Path:
    figure.savefig(path, dpi=110, metadata={"Software": None})  # the same file for the same figures
    return path


def _bars(results: Mapping[str, dict[str, Any]]) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Plots that compare the accuracy of methods: (label, figures) by name of the plot."""
    plots: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for triggers in sorted({r["triggers"] for r in results.values() if "triggers" in r}):
        ours = days_of(results, triggers)
        sizes = {result["units"] for result in ours.values()}
        rows = [
            (row["baseline"], row)
            for result in results.values()
            if result["experiment"] == "baselines"
            and (result["triggers"], {result["units"]}) == (triggers, sizes)
            for row in result["rows"]
        ]
        if paper.UNITS in sizes and triggers in paper.SYNTHETIC:
            rows.append(("as published", dict(paper.SYNTHETIC[triggers])))
        rows += [(f"dpsqlp, {name}", day) for name, day in ours.items()]
        if ours:
            plots[f"synthetic-{triggers}"] = rows
    for name, result in results.items():
        if result["experiment"] == "real":
            plots[name] = [(row["method"], row) for row in result["rows"]]
    return plots


def _draw_bars(figure: Figure, rows: Sequence[tuple[str, dict[str, Any]]]) -> None:
    labels = [label for label, _ in rows]
    colours = [
        _ORANGE if "best" in label else _BLUE if "dpsqlp" in label or label in PRESETS else _GREY
        for label in labels
    ]
    for axes, (metric, title) in zip(_axes(figure, len(_METRICS)), _METRICS.items(), strict=True):
        values = [row.get(metric) for _, row in rows]
        bars = axes.barh(labels, [value or 0 for value in values], color=colours)
        texts = ["–" if value is None else f"{value:,.0f}" for value in values]
        axes.bar_label(bars, texts, padding=3, fontsize=8)
        axes.invert_yaxis()
        axes.set_title(title, fontsize=10)
        axes.margins(x=0.4)
        axes.set_xticks([])
    for axes in figure.axes[1:]:
        axes.set_yticks([])


def _sweep(figure: Figure, result: dict[str, Any]) -> None:
    by = result["by"]
    bounds = [row[by] for row in result["rows"]]
    for axes, (metric, title) in zip(_axes(figure, len(_METRICS)), _METRICS.items(), strict=True):
        axes.plot(bounds, [row[metric] for row in result["rows"]], "o-", color=_BLUE, markersize=3)
        axes.set_title(title, fontsize=10)
        axes.set_xlabel("C, records per unit" if by == "C" else "norm")


def _shopping(figure: Figure, result: dict[str, Any]) -> None:
    [axes] = _axes(figure, 1)
    rows = [row for row in result["rows"] if row["preset"] == "best"]
    kinds = {
        "published": ("published", _GREY),
        "threshold": ("best, mean over triggers", _BLUE),
        "equivalent": ("best, equivalent", _ORANGE),
    }
    for shift, (name, (label, colour)) in enumerate(kinds.items()):
        places = [place + 0.27 * shift for place in range(len(rows))]
        values = [row[name] or 0 for row in rows]
        bars = axes.bar(places, values, 0.25, label=label, color=colour)
        axes.bar_label(bars, fmt="{:,.0f}", fontsize=9)
    ticks = [place + 0.27 for place in range(len(rows))]
    axes.set_xticks(ticks, [f"ε = {row['epsilon']:g}" for row in rows])
    axes.set_title("users a key needs to be selected", fontsize=10)
    axes.legend(frameon=False)


def _scale(figure: Figure, result: dict[str, Any]) -> None:
    from matplotlib.ticker import EngFormatter

    kinds = {"records": "records", "shards": "shards", "keys": "keys_in_state"}
    for axes, (kind, name) in zip(_axes(figure, len(kinds)), kinds.items(), strict=True):
        rows = [row for row in result["rows"] if row["by"] == kind]
        times = [1000 * row["trigger_seconds"] for row in rows]
        axes.plot([row[name] for row in rows], times, "o-", color=_BLUE)
        axes.set_title(f"ms per trigger by {name.replace('_', ' ')}", fontsize=10)
        axes.set_ylim(0, 1.15 * max(times))
        axes.set_xlim(left=0)
        axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def _axes(figure: Figure, number: int) -> list[Axes]:
    axes: list[Axes] = list(figure.subplots(1, number, squeeze=False)[0])
    for each in axes:
        each.spines[["top", "right"]].set_visible(False)
    return axes
