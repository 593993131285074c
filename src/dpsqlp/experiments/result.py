"""The result of an experiment as plain values, for a table, JSON or a report."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from dpsqlp.errors import SourceError
from dpsqlp.experiments.task import PRESETS


@dataclass(frozen=True, slots=True)
class Result:
    """Settings and summary figures, then a row for each run, preset or size."""

    experiment: str
    name: str  # of its file
    settings: dict[str, Any]
    rows: list[dict[str, Any]]
    notes: list[str] = field(default_factory=list)
    command: str = ""  # repeats the experiment

    def to_json(self) -> str:
        """The whole result, the settings first, and the versions used."""
        body = {
            "experiment": self.experiment,
            "name": self.name,
            **self.settings,
            "rows": self.rows,
            "notes": self.notes,
            "command": self.command,
            "made_with": _made_with(),
        }
        return json.dumps(body, indent=2) + "\n"

    def save(self, folder: Path) -> Path:
        """Write the result to a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.name}.json"
        path.write_text(self.to_json(), encoding="utf-8")
        return path


def _made_with() -> str:
    packages = ("dpsqlp", "duckdb", "numba", "numpy", "pyarrow")
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    return f"{versions}, Python {platform.python_version()}, {os.cpu_count()} cores"


def read_results(folder: Path) -> dict[str, dict[str, Any]]:
    """The saved results of a folder by name, as JSON values."""
    results = {}
    for path in sorted(folder.glob("*.json")):
        try:
            results[path.stem] = json.loads(path.read_text(encoding="utf-8"))
        except ValueError:
            raise SourceError(f"{path} is not JSON. Write it again with --save.") from None
    return results


def days_of(results: Mapping[str, dict[str, Any]], triggers: int) -> dict[str, dict[str, Any]]:
    """The synthetic results with this many triggers, by preset, in the order of the presets; only
    those of the largest day. Without its closing, a preset is named `best, closing off`.
    """
    days = [
        result
        for result in results.values()
        if result["experiment"] == "synthetic" and result["triggers"] == triggers
    ]
    size = max((day["units"] for day in days), default=0)
    named = {_name(day): day for day in days if day["units"] == size}
    return dict(sorted(named.items(), key=lambda item: PRESETS.index(item[1]["preset"])))


def _name(day: Mapping[str, Any]) -> str:
    off = ", closing off" if day["closing"] == "off" else ""
    return f"{day['preset']}{off}"
