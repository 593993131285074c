"""The deliberate breaks of `sql`."""

from __future__ import annotations

from mutants.breaks.base import Break

GOLDEN = "sql/test_golden.py::test_statement"
GROWTH = "sql/test_growth.py::"

BREAKS = [
    Break(
        "columns without a name have no place",
        "2: the unit is a column of the stream's own row",
        "sql/rows.py",
        "given = [column.lower() for column, _ in found] if found else list(relation.columns)",
        "given = list(relation.columns)",
        GOLDEN,
    ),
    Break(
        "of two columns of one name the last counts",
        "2: the unit is a column of the stream's own row",
        "sql/rows.py",
        "columns[name.lower()] = columns.get(name.lower(), frozenset()) | origin",
        "columns[name.lower()] = origin",
        GOLDEN,
    ),
    Break(
        "a period by any timestamp",
        "1: a unit's period comes from the row's own timestamp",
        "sql/groups.py",
        "if options.period_us is not None and scope.origins(node) != frozenset([STREAM]):",
        "if False:",
        GOLDEN,
    ),
    Break(
        "a function that reads files",
        "2: the row query sees one row at a time",
        "sql/database.py",
        '    "json_serialize_plan",',
        "    #",
        GOLDEN,
    ),
    Break(
        "letters do not matter",
        "6: the fingerprint covers whatever shapes units",
        "sql/canonical_form.py",
        'identifier.set("quoted", True)',
        'identifier.set("this", identifier.name.lower()); identifier.set("quoted", True)',
        "sql/test_plan.py::test_letters_change_the_fingerprint",
    ),
    Break(
        "a list of any length is unnested",
        "2: one row cannot exhaust the memory and stop the run",
        "sql/rows.py",
        "return safe(exp.Case(ifs=[exp.If(this=short, true=node.copy())]))",
        "return safe(node)",
        GROWTH + "test_a_row_becomes_no_more_rows_than_it_may",
    ),
    Break(
        "each UNNEST may make as many rows as all",
        "2: one row cannot exhaust the memory and stop the run",
        "sql/rows.py",
        "int(ROWS_MAX ** (1 / max(unnests, 1)) + 1e-9)",
        "ROWS_MAX",
        GROWTH + "test_several_unnests_share_what_a_row_may_become",
    ),
    Break(
        "keys of any length",
        "2: one row cannot exhaust the memory and stop the run",
        "sql/sink.py",
        "        if kind in _LONG\n",
        '        if kind == "BLOB"\n',
        GROWTH + "test_a_unit_and_its_key_are_no_longer_than_they_may_be",
    ),
    Break(
        "a row says how long a result is",
        "2: one row cannot exhaust the memory and stop the run",
        "sql/row_limits.py",
        "return _is_constant(arguments[:1]) or _is_limited",
        "return True or _is_limited",
        GROWTH + "test_a_result_of_any_length_is_refused",
    ),
    Break(
        "operators by their names as functions",
        "2: one row cannot end the process",
        "sql/database.py",
        "if not _FUNCTION.fullmatch(name):",
        "if False:",
        GROWTH + "test_what_can_end_the_process_is_refused",
    ),
    Break(
        "a long text ends a Spark task",
        "2: one row cannot end the process",
        "sql/spark/cells.py",
        '_DIGITS = "[0-9]([0-9_]*[0-9])?"',
        '_DIGITS = "[0-9]+(_[0-9]+)*"',
        "sql/test_spark_rows.py::test_no_pattern_repeats_a_group",
    ),
    Break(
        "rows of a file skipped by its statistics",
        "2: the row query maps each input row by itself",
        "sql/rows.py",
        "if left == right and all(side.find(exp.Column) for side in sides):",
        "if left == right:",
        "sources/test_files.py::test_no_record_decides_whether_another_is_read",
    ),
    Break(
        "times out of range are made",
        "2: an expression that fails on a row yields NULL, never an abort",
        "sql/database.py",
        "if name in _UNCHECKED_TIMES and len(arguments) <= 1:",
        "if name in _UNCHECKED_TIMES and len(arguments) < 1:",
        "sql/test_never_stops.py::test_no_row_stops_a_run",
    ),
    Break(
        "a time zone may be a column",
        "2: an expression that fails on a row yields NULL, never an abort",
        "sql/database.py",
        'if method or any(below.get("class") == "COLUMN_REF" for below in nodes_of(constant)):',
        "if method:",
        "sql/test_never_stops.py::test_no_row_stops_a_run",
    ),
    Break(
        "constants are not tried out",
        "2: an expression that fails on a row yields NULL, never an abort",
        "sql/sink.py",
        "        expressions.binder.try_out(query)\n",
        "",
        GOLDEN,
    ),
]
