"""The exceptions of dpsqlp.

A message states the fact, what was got, and what to do. It never contains a record, a unit, an
unreleased key or a true aggregate.
"""

from __future__ import annotations


class DpsqlpError(Exception):
    """Base of all errors that dpsqlp raises."""


class PlanError(DpsqlpError):
    """Parameters under which the privacy promise cannot be kept."""


class BudgetError(DpsqlpError):
    """A pipeline that a budget does not allow to run. Nothing was entered or released."""


class BatchError(DpsqlpError):
    """A micro-batch that does not fit the plan. The state is unchanged."""


class TriggerError(DpsqlpError):
    """A trigger out of turn, or past the last one paid for. The state is unchanged."""


class StateError(DpsqlpError):
    """Durable state that is missing, damaged, foreign, or in use by another process."""


class SourceError(DpsqlpError):
    """Records that cannot be read, or that have changed since they were read."""


class SinkError(DpsqlpError):
    """A release that could not be published. It is stored, and sent at the next start."""


class UnavailableError(DpsqlpError):
    """A server that does not answer. Nothing is lost: make the same call again."""


class SecretError(DpsqlpError):
    """A secret or instance that is missing or malformed."""


class SqlError(DpsqlpError):
    """SQL that is not understood, or for which no guarantee can be given.

    `line` and `column` count from 1; `snippet` is the line with a caret below the place.
    """

    def __init__(self, fact: str, way_out: str, line: int, column: int, snippet: str) -> None:
        self.fact = fact
        self.way_out = way_out
        self.line = line
        self.column = column
        self.snippet = snippet
        super().__init__(f"Line {line}, column {column}: {fact}\n{snippet}\n{way_out}".rstrip())
