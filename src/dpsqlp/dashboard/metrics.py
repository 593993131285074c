"""Metrics in Prometheus' text format. What is not private says so in its name."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from dpsqlp.dashboard.answers import Answers, MissingError

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PUBLIC = {
    "dpsqlp_released_rows": "Rows in the last release.",
    "dpsqlp_last_trigger": "Number of the last committed trigger.",
    "dpsqlp_last_trigger_due_timestamp_seconds": "When the last trigger was due, by the grid.",
    "dpsqlp_next_trigger_due_timestamp_seconds": "When the next trigger is due, by the grid.",
    "dpsqlp_seconds_since_last_trigger_due": "Seconds since the last trigger was due.",
    "dpsqlp_late": "1 if a trigger is overdue.",
    "dpsqlp_failed": "1 if the run ended with an error.",
    "dpsqlp_epsilon": "Epsilon of all releases of this sink together, per unit.",
    "dpsqlp_delta": "Delta of all releases of this sink together, per unit.",
}
_OPERATOR = {
    "records": "Records read since the start.",
    "records_per_second": "Records per second since the start.",
    "trigger_seconds": "How long the last trigger took.",
    "lag_seconds": "How long after it was due the last trigger was done.",
    "state_bytes": "Size of the state on disk.",
}


def render(answers: Answers, operator: bool) -> str:
    """All metrics of all sinks."""
    health = {sink["name"]: sink for sink in answers.health()["sinks"]}
    rows = answers.released_rows()
    series: dict[str, dict[str, Any]] = {name: {} for name in _PUBLIC}
    for name, sink in health.items():
        about = answers.sink(name)
        values = (
            rows.get(name),
            sink["last_trigger"],
            _seconds(sink["last_due"]),
            _seconds(sink["next_due"]),
            sink["seconds_since_due"],
            int(sink["status"] == "late"),
            int(sink["status"] == "failed"),
            about["epsilon"],
            about["delta"],
        )
        for metric, value in zip(_PUBLIC, values, strict=True):
            series[metric][name] = value
    lines = []
    for metric, values_by_sink in series.items():
        lines += _family(metric, _PUBLIC[metric], values_by_sink)
    if operator:
        lines += _operator(answers, list(health))
    return "\n".join(lines) + "\n"


def _operator(answers: Answers, names: list[str]) -> list[str]:
    found = {}
    for name in names:
        try:
            found[name] = answers.operator(name)
        except MissingError:
            continue
    lines = []
    for field, text in _OPERATOR.items():
        values = {name: body[field] for name, body in found.items()}
        lines += _family(f"dpsqlp_operator_{field}_not_private", f"{text} NOT PRIVATE.", values)
    return lines


def _family(metric: str, text: str, values: dict[str, Any]) -> list[str]:
    present = {name: value for name, value in values.items() if value is not None}
    if not present:
        return []
    lines = [f"# HELP {metric} {text}", f"# TYPE {metric} gauge"]
    return lines + [f'{metric}{{sink="{_label(n)}"}} {value}' for n, value in present.items()]


def _label(name: str) -> str:
    return name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _seconds(moment: str | None) -> float | None:
    return None if moment is None else datetime.fromisoformat(moment).timestamp()
