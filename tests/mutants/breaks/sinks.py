"""The deliberate breaks of `sinks`."""

from __future__ import annotations

from mutants.breaks.base import Break

SINKS = "sinks/test_sinks.py::"

BREAKS = [
    Break(
        "a published file is replaced",
        "6: a retry re-emits that file",
        "sinks/base.py",
        "    if known is None:\n",
        "    if known is None or known != data:\n",
        SINKS + "test_a_published_trigger_is_not_replaced[parquet]",
    ),
    Break(
        "another release taken for the one that is out",
        "6: a retry re-emits that file",
        "sinks/base.py",
        "if trigger == self.trigger and digest != self.digest:",
        "if False:",
        SINKS + "test_a_published_trigger_is_not_replaced[duckdb]",
    ),
    Break(
        "published rows are replaced in PostgreSQL",
        "6: a retry re-emits that file",
        "sinks/postgres.py",
        "        if connection.execute(query).fetchone() != (True,):\n"
        "            raise is_another(trigger, self._table)\n"
        '        connection.execute(f"DELETE {of_trigger} AND {mine}")\n',
        '        connection.execute(f"DELETE {of_trigger} AND NOT {mine}")\n',
        "postgres/test_sink.py::test_a_trigger_is_there_once_and_is_not_replaced",
    ),
    Break(
        "a trigger does not replace its rows",
        "6: a retry re-emits",
        "sinks/postgres.py",
        "WHERE trigger = {int(trigger)}",
        "WHERE false",
        "postgres/test_sink.py::test_the_line_breaks_at_commit",
    ),
    Break(
        "an attempt that still commits is not waited for",
        "6: a retry re-emits",
        "sinks/postgres.py",
        "SELECT pg_advisory_xact_lock(hashtextextended({literal(self._table)}, 0))",
        "SELECT {literal(self._table)}",
        "postgres/test_sink.py::test_an_earlier_attempt_that_still_commits_is_waited_for",
    ),
    Break(
        "a commit that the server may still lose",
        "6: releases are durable",
        "sinks/postgres.py",
        "WHERE current_setting('synchronous_commit') = 'off'",
        "WHERE false",
        "postgres/test_sink.py::test_a_server_that_is_away_is_unavailable",
    ),
    Break(
        "a release that is out is published again",
        "6: a retry re-emits",
        "sinks/kafka.py",
        'last.has(trigger, published.digest, "Kafka")',
        "False",
        "kafka/test_sink.py::test_a_release_is_one_transaction_with_a_marker",
    ),
]
