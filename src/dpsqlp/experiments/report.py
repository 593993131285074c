"""Results as pages: one result as a self-contained HTML page, all saved results as Markdown."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from dpsqlp.errors import SourceError
from dpsqlp.experiments import paper
from dpsqlp.experiments.plots import draw
from dpsqlp.experiments.result import Result, days_of, read_results
from dpsqlp.experiments.table import cells, figure, html, markdown

PEERS = "peers"
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:64rem;margin:2rem auto;padding:0 1rem}"
    "table{border-collapse:collapse}td,th{padding:.2rem .7rem;border-bottom:1px solid #ddd;"
    "text-align:right}td:first-child,th:first-child{text-align:left}img{max-width:100%}"
    "@media(prefers-color-scheme:dark){body{background:#111;color:#ddd}img{background:#fff}}"
)
_METRICS = {
    "keys": "keys released",
    "half_day_keys": "half-day keys",
    "keys_before_last": "keys before the last trigger",
    "linf": "ℓ∞",
    "l1": "ℓ1",
    "l2": "ℓ2",
}

_SWEPT = {
    "C": (
        "Contribution limit C",
        " In the paper, at 10,000,000 units: keys near C = 5, ℓ1 near 25, ℓ2 near 30.",
    ),
    "norm": ("Norm", ""),
}


def write_html(result: Result, folder: Path) -> Path:
    """Write the plots of one result and its page."""
    body = json.loads(result.to_json())
    plots = draw({result.name: body}, folder)
    images = "".join(
        '<p><img alt="" src="data:image/png;base64,'
        f'{base64.b64encode(plot.read_bytes()).decode()}"></p>\n'
        for plot in plots
    )
    settings = ", ".join(f"{name} {figure(name, value)}" for name, value in result.settings.items())
    notes = "".join(f"<p>{escape(note)}</p>\n" for note in result.notes)
    page = (
        '<!doctype html>\n<html lang="en"><meta charset="utf-8">'
        f"<title>dpsqlp: {escape(result.name)}</title><style>{_STYLE}</style>\n"
        f"<h1>{escape(result.experiment)}</h1>\n<p>{escape(settings)}</p>\n{images}"
        f"{html(*cells(result.rows))}{notes}<p><code>{escape(result.command)}</code></p></html>\n"
    )
    path = folder / f"{result.name}.html"
    path.write_text(page, encoding="utf-8")
    return path


def write_results(folder: Path) -> Path:
    """Write the page of all saved results next to their folder, and their plots into it."""
    results = read_results(folder)
    if not results:
        raise SourceError(f"{folder} has no results. Run experiments with --save {folder} first.")
    peers = results.pop(PEERS, None)
    plots = {path.stem: f"{folder.name}/{path.name}" for path in draw(results, folder)}
    parts = [
        "# Results\n\n"
        "Generated from the JSON files that the experiments saved; the commands are at the end."
        " Figures of dpsqlp are of the whole system: Parquet files in, durable state, Parquet files"
        " out. Errors are against the true histogram before any bounding; a key that was not"
        " released counts as 0. Half-day keys are those released by half of the triggers."
        " [Experiments](experiments.md) explains the measurements.\n",
        *_synthetic(results, plots),
        *_sweep(results, plots),
        *_shopping(results, plots),
        *_trends(results),
        *_real(results, plots),
        *_tuning(results),
        *_preview(results),
        *_scale(results, plots),
        *([] if peers is None else [_peers(peers)]),
        _commands(results),
    ]
    page = folder.with_suffix(".md")
    page.write_text("\n".join(parts), encoding="utf-8")
    return page


def _of(results: Mapping[str, dict[str, Any]], experiment: str) -> list[dict[str, Any]]:
    return [result for result in results.values() if result["experiment"] == experiment]


def _plot(name: str, plots: Mapping[str, str], text: str) -> str:
    return f"![{text}]({plots[name]})\n" if name in plots else ""


def _size(result: Mapping[str, Any]) -> str:
    return f"{result['units']:,} units, {result['records']:,} records"


def _synthetic(results: Mapping[str, dict[str, Any]], plots: Mapping[str, str]) -> Iterator[str]:
    """For each T: the paper's figures, the presets, the ratio; then the baselines."""
    days = _of(results, "synthetic") + _of(results, "baselines")
    if days:
        yield "## The paper's synthetic day\n"
    for triggers in sorted({day["triggers"] for day in days}):
        ours = days_of(results, triggers)
        yield f"### {triggers:,} triggers\n"
        if ours:
            yield _accuracy(triggers, ours)
            yield _plot(f"synthetic-{triggers}", plots, f"Accuracy at {triggers} triggers")
            yield _speed(ours)
        for baselines in _of(results, "baselines"):
            if baselines["triggers"] == triggers:
                yield _baselines(baselines)


def _accuracy(triggers: int, ours: Mapping[str, dict[str, Any]]) -> str:
    day = next(iter(ours.values()))  # all of one size
    full = day["units"] == paper.UNITS
    published = paper.SYNTHETIC.get(triggers, {}) if full else {}
    reference: Mapping[str, Any] = ours.get("paper", {}) | published
    heads = ["", "the paper", *(f"dpsqlp, `{name}`" for name in ours)]
    ratios = [name for name in ("default", "best") if name in ours]
    heads += [f"`{name}`: ratio" for name in ratios]
    rows = []
    for metric, title in _METRICS.items():
        values = [published.get(metric), *(day[metric] for day in ours.values())]
        texts = [figure(metric, value) for value in values]
        base = reference.get(metric)
        texts += [f"{ours[name][metric] / base:.2f}" if base else "–" for name in ratios]
        rows.append([title, *texts])
    against = "`paper` here"
    if published:
        against = f"the paper, or to {against} for a figure that the paper does not have"
    smaller = (
        "" if full else " **Smaller than the paper's day (10,000,000 units): not its figures.**"
    )
    runs = ", ".join(f"`{name}` {day['runs']}" for name, day in ours.items())
    return (
        f"{_size(day)}; runs averaged: {runs}. The ratio is to {against}; above 1 is better"
        f" for keys, below 1 for errors.{smaller}\n\n{markdown(heads, rows)}"
    )


def _speed(ours: Mapping[str, dict[str, Any]]) -> str:
    names = (
        *("mechanism", "release", "norm", "C", "c", "Cs", "selection_share", "selection_spending"),
        *("closing", "seconds", "records_per_second", "peak_memory_bytes"),
    )
    rows = [
        {"preset": f"`{name}`", **{key: day[key] for key in names}} for name, day in ours.items()
    ]
    return markdown(*cells(rows))


def _baselines(result: Mapping[str, Any]) -> str:
    published = paper.BASELINES.get(result["triggers"], {})
    rows = [
        {"baseline": f"{name}, as published", **figures}
        for name, figures in published.items()
        if result["units"] == paper.UNITS
    ]
    rows += [{"baseline": f"{row['baseline']}, here", **_metrics(row)} for row in result["rows"]]
    return (
        f"Baselines, {_size(result)}: one-shot differential privacy on all data so far at every"
        f" trigger (repeated), or on each micro-batch (incremental).\n\n{markdown(*cells(rows))}"
    )


def _metrics(row: Mapping[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in _METRICS if name in row}


def _sweep(results: Mapping[str, dict[str, Any]], plots: Mapping[str, str]) -> Iterator[str]:
    for sweep in _of(results, "sweep"):
        by = sweep["by"]
        rows = [{by: row[by], **_metrics(row)} for row in sweep["rows"]]
        peaks = {
            "keys": max(rows, key=lambda row: row["keys"])[by],
            "half-day keys": max(rows, key=lambda row: row["half_day_keys"])[by],
            "ℓ1": min(rows, key=lambda row: row["l1"])[by],
            "ℓ2": min(rows, key=lambda row: row["l2"])[by],
        }
        best = ", ".join(f"{name} at {by} = {bound:g}" for name, bound in peaks.items())
        title, paper_s = _SWEPT[by]
        yield (
            f"## {title}, `{sweep['preset']}`, {sweep['triggers']:,} triggers\n\n"
            f"{_size(sweep)}. Best: {best}.{paper_s}\n"
        )
        yield _plot(sweep["name"], plots, "Keys and errors by contribution limit")
        yield markdown(*cells(rows))


def _shopping(results: Mapping[str, dict[str, Any]], plots: Mapping[str, str]) -> Iterator[str]:
    for shopping in _of(results, "shopping"):
        rows = [
            {**row, "ratio": row["equivalent"] and row["equivalent"] / row["published"]}
            for row in shopping["rows"]
        ]
        yield (
            f"## Shopping\n\nOne record per unit and day, {shopping['triggers']} triggers, δ ="
            f" {shopping['delta']:g}: how many users a key needs. *Equivalent* is the plain"
            " threshold that would have kept as many keys, *threshold* the mean over the triggers;"
            " the ratio is that of the equivalent to the published one. The views are generated"
            f" ({_size(shopping)}); the paper's are not public, so what is kept is not comparable"
            " with its 59 %.\n"
        )
        yield _plot(shopping["name"], plots, "Thresholds beside the paper's")
        yield markdown(*cells(rows))


def _trends(results: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    for trends in _of(results, "trends"):
        yield (
            f"## Trends\n\nKeys only, ε = {trends['epsilon']:g}, δ = {trends['delta']:g}, more than"
            f" {trends['minimum']} users, a unit is a user and a query, {trends['triggers']}"
            f" triggers; a generated stand-in ({_size(trends)}). The paper gives no figures.\n"
        )
        yield markdown(*cells(trends["rows"]))


def _real(results: Mapping[str, dict[str, Any]], plots: Mapping[str, str]) -> Iterator[str]:
    for real in _of(results, "real"):
        yield (
            f"## {real['file']}\n\n{_size(real)}, {real['true_keys']:,} keys; {real['triggers']}"
            f" triggers, ε = {real['epsilon']:g}, δ = {real['delta']:g}. `paper`, `tree` and the"
            f" baselines with C = {real['C']}; `default` with norm {real['default_norm']:g} and no"
            f" other option; `best` with norm {real['best_norm']:.3g}, C = {real['best_C']}, c ="
            f" {real['best_c']}, Cs = {real['best_Cs']}, share {real['best_selection_share']:g},"
            f" spending {real['best_selection_spending']}, closing {real['best_closing']}.\n"
        )
        yield _plot(real["name"], plots, f"Accuracy on {real['file']}")
        yield markdown(*cells(real["rows"]))


def _tuning(results: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    """The means, then each seed with the options that were found."""
    for tuning in _of(results, "tuning"):
        means = [
            {name: value for name, value in row.items() if name != "seed"}
            for row in tuning["rows"]
            if row["seed"] == "mean"
        ]
        seeds = [row for row in tuning["rows"] if row["seed"] != "mean"]
        yield (
            f"## Tuned options, {tuning['stream']}\n\n{_split(tuning)} `default` has norm"
            f" {tuning['default_norm']:g}, `paper` C = {tuning['C']}. `tuned` is the best of"
            f" {tuning['candidates']} candidates on the sample, `best possible` the best of a grid"
            f" of {tuning['grid_points']} points on the measured half itself. `paper` ran through"
            " the engine, the others in the simulation.\n"
        )
        yield markdown(*cells(means))
        yield "By seed:\n"
        yield markdown(*cells(seeds))


def _preview(results: Mapping[str, dict[str, Any]]) -> Iterator[str]:
    for preview in _of(results, "preview"):
        notes = " ".join(preview["notes"][1:])
        yield f"## Predicted bias, {preview['stream']}\n\n{_split(preview)} {notes}\n"
        yield markdown(*cells(preview["rows"]))


def _split(result: Mapping[str, Any]) -> str:
    """How a result of two halves came about."""
    return (
        f"{result['records']:,} records, {result['triggers']} triggers, ε = {result['epsilon']:g},"
        f" δ = {result['delta']:g}. {result['notes'][0]} Ways to split them: {result['seeds']}."
    )


def _scale(results: Mapping[str, dict[str, Any]], plots: Mapping[str, str]) -> Iterator[str]:
    for scale in _of(results, "scale"):
        yield "## Scale\n\n" + "\n".join(scale["notes"]) + "\n"
        yield _plot(scale["name"], plots, "Time of a trigger")
        yield markdown(*cells(scale["rows"]))


def _peers(peers: Mapping[str, Any]) -> str:
    rows = [[figure("", value) for value in row] for row in peers["rows"]]
    notes = "".join(f"\n{note}\n" for note in peers["notes"])
    return f"## Other systems\n\n{markdown(peers['columns'], rows)}{notes}"


def _commands(results: Mapping[str, dict[str, Any]]) -> str:
    made = sorted({result["made_with"] for result in results.values()})
    lines = "\n".join(f"{r['command']} --save docs/results" for r in results.values())
    return (
        f"## To repeat\n\nMade with {'; '.join(made)}.\n\n```text\n{lines}\n"
        "dpsqlp experiment report docs/results\n```\n"
    )
