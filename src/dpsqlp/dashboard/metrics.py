"""Metrics in the Prometheus text format. The names of operator metrics end in `_not_private`."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from dpsqlp.dashboard.api import Api
from dpsqlp.dashboard.sink_view import NotFoundError

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_PUBLIC = {
    "dpsqlp_released_rows": "Rows in the last release.",
    "dpsqlp_last_trigger": "Number of the last committed trigger.",
    "dpsqlp_last_trigger_due_timestamp_seconds": "Scheduled time of the last trigger.",
    "dpsqlp_next_trigger_due_timestamp_seconds": "Scheduled time of the next trigger.",
    "dpsqlp_seconds_since_last_trigger_due": "Seconds since the last trigger was due.",
    "dpsqlp_late": "1 if a trigger is overdue.",
    "dpsqlp_failed": "1 if the run ended with an error.",
    "dpsqlp_epsilon": "Epsilon per unit, over all releases of this sink.",
    "dpsqlp_delta": "Delta per unit, over all releases of this sink.",
}
_OPERATOR = {
    "records": "Records read since the start.",
    "records_per_second": "Records per second since the start.",
    "trigger_seconds": "Duration of the last trigger.",
    "lag_seconds": "Time from when the last trigger was due until it was done.",
    "state_bytes": "Size of the state on disk.",
}


def render(api: Api, operator: bool) -> str:
    """The metrics of all sinks."""
    health = {sink["name"]: sink for sink in api.health()["sinks"]}
    rows = api.released_rows()
    series: dict[str, dict[str, Any]] = {name: {} for name in _PUBLIC}
    for name, sink in health.items():
        described = api.sink(name)
        values = (
            rows.get(name),
            sink["last_trigger"],
            _seconds(sink["last_due"]),
            _seconds(sink["next_due"]),
            sink["seconds_since_due"],
            int(sink["status"] == "late"),
            int(sink["status"] == "failed"),
            described["epsilon"],
            described["delta"],
        )
        for metric, value in zip(_PUBLIC, values, strict=True):
            series[metric][name] = value
    lines = []
    for metric, values_by_sink in series.items():
        lines += _family(metric, _PUBLIC[metric], values_by_sink)
    if operator:
        lines += _operator(api, list(health))
    return "\n".join(lines) + "\n"


def _operator(api: Api, names: list[str]) -> list[str]:
    found = {}
    for name in names:
        try:
            found[name] = api.operator(name)
        except NotFoundError:
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
