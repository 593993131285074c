"""The deliberate breaks of the clients of servers."""

from __future__ import annotations

from mutants.breaks.base import Break

BREAKS = [
    Break(
        "a refused schema number holds up the others",
        "lemma 3: a record's fate depends on that record alone",
        "clients/avro.py",
        "if code in _NO_SCHEMA or (code not in _TRANSIENT and self._answers()):",
        "if code in _NO_SCHEMA:",
        "kafka/test_source.py::test_a_number_that_a_registry_refuses_is_a_dead_letter",
    ),
    Break(
        "a registry that is away is waited for for ever",
        "lemma 3: a record's fate depends on that record alone",
        "clients/avro.py",
        "if now < self._away_since + _AWAY_SECONDS:",
        "if True:",
        "kafka/test_source.py::"
        "test_a_registry_that_answers_to_nothing_is_waited_for_but_not_for_ever",
    ),
    Break(
        "a range of a topic has no end",
        "lemma 23: a retry replays exactly that range",
        "clients/kafka.py",
        "firsts[m.partition()] <= m.offset() < ends[m.partition()]",
        "True",
        "kafka/test_source.py::test_a_trigger_takes_all_that_has_arrived_and_nothing_later",
    ),
    Break(
        "records of a transaction that is open are read",
        "lemma 23: a retry replays exactly that range",
        "clients/kafka.py",
        "level.READ_COMMITTED if",
        "level.READ_UNCOMMITTED if",
        "kafka/test_source.py::test_only_committed_records_count",
    ),
    Break(
        "a schema that was registered since makes other records of a range",
        "lemma 23: a retry replays exactly that range",
        "clients/avro.py",
        "for n in set(known).intersection(numbers)\n",
        "for n in self.known(self.named(values))\n",
        "kafka/test_source.py::test_a_range_reads_the_same_whatever_the_registry_learns_or_forgets",
    ),
    Break(
        "a schema number that a registry calls absurd stops the run",
        "lemma 3: an expression that fails on a row yields NULL",
        "clients/avro.py",
        "_NO_SCHEMA, _TRANSIENT = (400, 404, 422),",
        "_NO_SCHEMA, _TRANSIENT = (404,),",
        "kafka/test_source.py::test_a_number_that_no_schema_has_stops_nothing",
    ),
    Break(
        "a decimal without digits stops the run",
        "lemma 3: an expression that fails on a row yields NULL",
        "clients/avro.py",
        "        return pa.decimal128(precision, scale) if 1 <=",
        "        if precision < 1:\n"
        "            raise SourceError('No decimal.')\n"
        "        return pa.decimal128(precision, scale) if 1 <=",
        "kafka/test_source.py::test_a_decimal_that_is_none_stops_nothing",
    ),
]
