"""The deliberate breaks of the command line."""

from __future__ import annotations

from mutants.breaks.base import Break

BREAKS = [
    Break(
        "run promises more than is kept",
        "lemma 24: the unit, with a period if the plan has one",
        "cli/run.py",
        "unit_text(sink.query.unit_names, period_text(sink.query))",
        "unit_text(sink.query.unit_names, None)",
        "cli/test_cli.py::test_run_says_who_is_protected",
    ),
]
