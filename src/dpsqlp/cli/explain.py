"""`dpsqlp explain`: what a script promises."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from dpsqlp.sql import compile_script, explain, explain_text, explain_total, make_plan, read_file


def explanation(file: Path, as_json: bool) -> str:
    """The promise of every sink of a script, and their total."""
    program = compile_script(read_file(file), folder=str(file.parent))
    sinks = [(sink.name, sink.query, make_plan(sink.query)) for sink in program.sinks]
    together = explain_total(sinks, str(file.parent))
    if not as_json:
        parts = [explain_text(*sink) for sink in sinks] + ([together] if together else [])
        return "\n\n".join(parts)
    numbers: dict[str, Any] = {name: explain(query, plan) for name, query, plan in sinks}
    answer = {"sinks": numbers, "together": together.strip() or None}
    if len(sinks) == 1:
        answer = next(iter(numbers.values()))
    return json.dumps(answer, indent=2) + "\n"
