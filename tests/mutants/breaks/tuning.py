"""The deliberate breaks of `tuning`: which data may choose options."""

from __future__ import annotations

from mutants.breaks.base import Break

REFUSED = "tuning/test_refused.py::test_refused_cases_say_why"

BREAKS = [
    Break(
        "a sample is compared with the query's own source alone",
        "options are chosen by looking at another private stream of the script",
        "tuning/load.py",
        "for stream in private:",
        "for stream in [query.source]:",
        REFUSED,
    ),
    Break(
        "a sample is not compared with a path that is not known",
        "in doubt, a sample has files of a private stream",
        "sql/overlap.py",
        'private = files_at(str(from_environment(source.options)["path"]), folder)',
        'private = files_at(str(source.options["path"]), folder)',
        REFUSED,
    ),
]
