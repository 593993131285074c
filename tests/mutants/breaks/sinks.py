"""The deliberate breaks of `sinks`."""

from __future__ import annotations

from mutants.breaks.base import Break

SINKS = "sinks/test_sinks.py::"

BREAKS = [
    Break(
        "a published file is replaced",
        "lemma 23: a retry re-emits that file",
        "sinks/published.py",
        "    if known is None:\n",
        "    if known is None or known != data:\n",
        SINKS + "test_a_published_trigger_is_not_replaced[parquet]",
    ),
    Break(
        "another release taken for the one that is out",
        "lemma 23: a retry re-emits that file",
        "sinks/published.py",
        "if trigger == self.trigger and digest != self.digest:",
        "if False:",
        SINKS + "test_a_published_trigger_is_not_replaced[duckdb]",
    ),
    Break(
        "published rows are replaced in PostgreSQL",
        "lemma 23: a retry re-emits that file",
        "sinks/postgres.py",
        "if published is not None and published.has(trigger, digest, self._table):",
        "if published is not None and published.trigger == trigger:",
        "postgres/test_sink.py::test_a_trigger_is_there_once_and_is_not_replaced",
    ),
    Break(
        "an attempt that still commits is not waited for",
        "lemma 23: a retry re-emits",
        "sinks/postgres.py",
        "SELECT pg_advisory_xact_lock(hashtextextended({literal(self._table)}, 0))",
        "SELECT {literal(self._table)}",
        "postgres/test_sink.py::test_an_earlier_attempt_that_still_commits_is_waited_for",
    ),
    Break(
        "a commit that the server may still lose",
        "lemma 23: releases are durable",
        "sinks/postgres.py",
        "WHERE current_setting('synchronous_commit') = 'off'",
        "WHERE false",
        "postgres/test_sink.py::test_a_server_that_is_away_is_unavailable",
    ),
    Break(
        "a release that is out is published again",
        "lemma 23: a retry re-emits",
        "sinks/kafka.py",
        'last.has(trigger, published.digest, "Kafka")',
        "False",
        "kafka/test_sink.py::test_a_release_is_one_transaction_with_a_marker",
    ),
    Break(
        "PostgreSQL forgets a release without rows",
        "lemma 23: a retry re-emits that file",
        "sinks/postgres.py",
        "        if last is not None:\n            return Published(*last)\n",
        "",
        "postgres/test_sink.py::test_a_first_release_without_rows_is_not_replaced",
    ),
    Break(
        "rows in PostgreSQL without a digest are added again",
        "lemma 23: a retry re-emits that file",
        "sinks/postgres.py",
        "if latest is not None and latest >= trigger:",
        "if latest is not None and latest > trigger:",
        "postgres/test_sink.py::test_rows_without_a_digest_are_not_replaced",
    ),
    Break(
        "a retried trigger adds its rows again",
        "lemma 23: a retry re-emits",
        "sinks/postgres.py",
        "                return\n            command",
        "                pass\n            command",
        "postgres/test_sink.py::test_the_line_breaks_at_commit",
    ),
]
