"""From SQL to the core's plan, and through the core."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from dpsqlp.accounting.composition import compose
from dpsqlp.core import Core, State
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import SqlError, StateError
from dpsqlp.plan import Plan
from dpsqlp.sql import compile_script, connect, make_plan, standard_deviations
from dpsqlp.stages.admit import MicroBatch
from sql.scripts import SOURCE, query, sink


def test_formatting_does_not_change_the_fingerprint() -> None:
    """Comments, quotes, order of options and spaces are not part of a plan."""
    plain = make_plan(query("c, COUNT(*) AS n"))
    text = SOURCE + sink("c,  COUNT( * ) /* all */ AS n", rows='FROM "s"', name="other")
    text = text.replace("epsilon = 1, delta = 1e-6", "delta = 1e-6,\n epsilon = 1")
    assert make_plan(compile_script(text).sinks[0].query).fingerprint == plain.fingerprint


def test_letters_change_the_fingerprint() -> None:
    """A field of JSON, or of a line of it, is another one in other letters: so are units then."""
    script = "CREATE SOURCE s ({columns});\n" + sink("c, COUNT(*) AS n", rows="FROM s WHERE {rows}")
    plans = [
        make_plan(compile_script(text).sinks[0].query).fingerprint
        for columns in (f"{name} TEXT, c TEXT, j JSON, ts TIMESTAMP" for name in ("unit", "Unit"))
        for rows in ("j.user = 1", "j.User = 1")
        for text in [script.format(columns=columns, rows=rows)]
    ]
    assert len(set(plans)) == 4


@pytest.mark.parametrize(
    "change",
    [
        {"rows": "FROM s WHERE a > 1"},
        {"group": "GROUP BY c, TUMBLE(ts, INTERVAL 2 DAYS)"},
        {"emit": "EMIT EVERY INTERVAL 2 HOURS"},
        {
            "emit": "EMIT EVERY INTERVAL 1 HOUR"
            " ON EVENT TIME FROM TIMESTAMP '2024-01-01' TO TIMESTAMP '2024-01-02'"
        },
        {"options": ", max_rows_per_group = 1"},
        {"options": ", max_contribution_norm = 3"},
        {"options": ", release = 'threshold'"},
        {"options": ", privacy_unit_period = INTERVAL 1 DAY"},
        {"options": ", min_privacy_units_per_group = 2"},
    ],
)
def test_meaning_changes_the_fingerprint(change: dict[str, str]) -> None:
    """Anything that shapes data or noise is part of a plan."""
    assert make_plan(query(**change)).fingerprint != make_plan(query()).fingerprint


def test_a_closing_changes_the_fingerprint() -> None:
    """It spends a part of delta."""
    period = ", privacy_unit_period = INTERVAL 1 DAY"
    closing, none = (
        query(options=period + off) for off in ("", ", group_selection_closing = false")
    )
    assert (closing.closing, none.closing) == (True, False)
    assert make_plan(closing).fingerprint != make_plan(none).fingerprint


def test_public_data_is_part_of_the_plan() -> None:
    """Another content of a public table is another plan; the order of its rows is not."""

    def fingerprint(names: list[str]) -> bytes:
        text = SOURCE + sink(rows="FROM s JOIN p USING (c)")
        program = compile_script(text, tables={"p": pa.table({"c": names})})
        return make_plan(program.sinks[0].query).fingerprint

    assert fingerprint(["x", "y"]) == fingerprint(["y", "x"])
    assert fingerprint(["x", "y"]) != fingerprint(["x", "z"])


def test_a_query_runs_through_the_core() -> None:
    """Row query, plan and core fit: a key that many units share is released, with its values."""
    compiled = query(
        "c, COUNT(*) AS n, AVG(b, contribution_bounds_per_row => (0, 3)) AS m,"
        " COUNT(DISTINCT unit) AS units",
        options=", privacy_unit_period = INTERVAL 1 DAY",
    )
    units = 3000
    batch = pa.table(
        {
            "unit": [f"u{n}" for n in range(units)],
            "a": pa.nulls(units, pa.int32()),
            "b": pa.array(np.full(units, 2.0)),
            "c": pa.array(["popular"] * (units - 1) + ["alone"]),
            "ts": pa.array(np.full(units, 5), pa.timestamp("us")),
            "e": pa.nulls(units, pa.bool_()),
        }
    )
    connection = connect()
    connection.register("s", batch)
    rows = connection.sql(compiled.row_sql).to_arrow_table().combine_chunks()
    plan = make_plan(compiled)
    column = {name: rows.column(name).combine_chunks() for name in rows.column_names}
    pipeline = Core(plan, Secret(bytes(range(32)), bytes(16)))
    values = tuple(column[f"value_{n}"] for n in range(plan.value_columns))
    releases = pipeline.run(
        State(1),
        MicroBatch(
            unit=(column["unit_0"],),
            key=(column["key_0"],),
            window=column["window_number"],
            timestamp=column["timestamp_us"],
            values=values,
            period=column["period_number"],
        ),
        1,
    )
    assert releases.key_text.to_arrow().to_pylist() == [b"\x06popular\x00\x00"]
    quanta = [calibrated.quantum for calibrated in plan.calibration.processes]
    truth = {"n": units - 1, "units": units - 1, "m_sum": 0.5 * (units - 1), "m_count": units - 1}
    deviations = standard_deviations(plan)
    assert deviations.shape == (4, 24)
    for n, process in enumerate(compiled.processes):
        error = releases.values[0, n] * quanta[n] - truth[process.name]
        assert abs(error) < 6 * deviations[n, 0]


def test_sinks_add_up() -> None:
    """Two equal sinks: nu^2 and delta double, epsilon less than doubles."""
    plan = make_plan(query())
    nu, epsilon, delta = compose([plan.calibration] * 2)
    assert nu**2 == pytest.approx(2 * plan.calibration.nu**2)
    assert delta == 2e-6
    assert 1 < epsilon < 2
    assert compose([plan.calibration])[1] == pytest.approx(plan.calibration.epsilon, rel=1e-6)


def test_compiled_sqlglot_is_refused_clearly() -> None:
    """With sqlglotc installed classes cannot be extended; the error says what to do."""
    code = (
        "import sqlglot.dialects.duckdb\n"
        "from sqlglot import exp\n"
        "def refuse(cls, **kwargs):\n"
        "    raise TypeError('interpreted classes cannot inherit from compiled')\n"
        "exp.Expression.__init_subclass__ = classmethod(refuse)\n"
        "from dpsqlp.errors import DpsqlpError\n"
        "try:\n"
        "    import dpsqlp.sql.dialect\n"
        "except DpsqlpError as error:\n"
        "    print(error)\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "pip uninstall sqlglotc" in ran.stdout


def test_an_error_says_where() -> None:
    """Line, column, snippet and way out are attributes too."""
    with pytest.raises(SqlError) as caught:
        query("c,\n  SUM(b) AS x")
    error = caught.value
    assert (error.line, error.column) == (3, 3)
    assert error.snippet.splitlines()[1].index("^") == 4 + 2
    assert "contribution_bounds_per_row" in error.way_out


def test_plans_compare_by_what_they_compute() -> None:
    """Two compilations of one text are one plan."""
    assert replace(query()) == query()
    assert make_plan(query()).fingerprint == make_plan(query()).fingerprint


def test_another_noise_version_is_refused() -> None:
    """Its noise would be other noise on the same stream."""
    plan = make_plan(query())
    described = json.loads(json.dumps(plan.describe()))
    assert Plan.restore(described) == plan
    with pytest.raises(StateError, match=r"noise version 1.*Use the version of dpsqlp"):
        Plan.restore(described | {"noise_version": 1})
