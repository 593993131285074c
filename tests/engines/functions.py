"""Every scalar function and macro of DuckDB's catalogue with hostile arguments, through the engine.

Run as a program, in a process whose memory is limited: what ends it is noticed, and named by the
last line it printed. Two things are looked at:

* The row query gives for many rows what it gives for each alone, and drops those that fail alone.
* Hostile rows have a unit and a key of their own, which is too small to be released. So the
  releases are equal, bit for bit, with and without them.
"""

from __future__ import annotations

import itertools
import json
import random
import re
import resource
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from dpsqlp.engines.row_query import RowQuery
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import SqlError
from dpsqlp.sql import compile_script
from dpsqlp.sql.functions import bad_function
from dpsqlp.sql.row_limits import unbounded
from support.fake_clock import FakeClock
from support.pipelines import SECRET, Collected, made, step

MEMORY_BYTES = 12 << 30
DEEP = 50_000
LONG = 2_000  # so that what compares all pairs of characters ends soon
PLACES = 4  # arguments of one type
ROWS = 32
HOSTILE_UNIT = "hostile"
ALIKE = ("collate_", "icu_collate_")  # functions that differ in a table alone
ALIKE_SOME = ("collate_de", "icu_collate_zh", "collate_noaccent")

WHOLE = ["0", "1", "-1", "2", "33", "64", "127", "255", "1000000", "2147483647", "-2147483648",
         "9223372036854775807", "-9223372036854775808", "18446744073709551615",
         "170141183460469231731687303715884105727"]  # fmt: skip
REAL = ["0", "-0.0", "-1", "0.5", "nan", "inf", "-inf", "1e308", "-1e308", "5e-324", "9.3e18"]
TEXT = ["", "a", "0", "-1", "1e400", "[", "(", "%", "%s%n%d", "{}", "{:999999999}", "%999999999d",
        "%Y-%m", "\\", "\x00", "2024-01-01", "week", "🙂", "e\u0301ß", '[1,{"a":[null]}]',
        '{"a":1}', "$.a[*]", "infinity", "P1Y", "Europe/Berlin", "a" * LONG, "%" * LONG,
        "[" * LONG, "(" * LONG, '{"a":' * LONG, "a%" * 1000, "/" * 1000]  # fmt: skip
MOMENT = ["2024-02-29 12:00:00", "infinity", "-infinity", "290309-12-22 (BC) 00:00:00",
          "294247-01-10 04:00:54.775806", "1970-01-01 00:00:00", "0001-01-01 00:00:00",
          "2262-04-11 23:47:16.854775806", "1677-09-22 00:12:43.145224194"]  # fmt: skip
HOURS = ["00:00:00", "23:59:59.999999", "24:00:00"]
THREE = ["[1, 2, 3]", "[0, 0, NULL]"]
PAIR = "STRUCT(a INTEGER, b VARCHAR)"
NUMBERS = ["[]", "[1, 2, 3]", "[NULL]", "[0, -1, 2147483647]", f"{[0] * 20_000}"]
HOSTILE: dict[str, list[str]] = {
    **dict.fromkeys(("TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT"), WHOLE),
    **dict.fromkeys(("UTINYINT", "USMALLINT", "UINTEGER", "UBIGINT", "UHUGEINT"), WHOLE),
    **dict.fromkeys(("BIGNUM", "DECIMAL(18,3)"), WHOLE),
    **dict.fromkeys(("FLOAT", "DOUBLE"), REAL),
    "BOOLEAN": ["true", "false"],
    "VARCHAR": TEXT,
    "JSON": ["null", "[]", "{}", '[1,{"a":[null]}]', '{"a":1e400}', '"\\u0000"', '{"a":1,"a":2}',
             "[" * DEEP + "]" * DEEP, '{"a":' * DEEP + "1" + "}" * DEEP],
    "BLOB": ["", "\\x00", "\\xFF\\xFE", "abc", "a" * LONG, "\\x01\\x00\\x00\\x00\\xFF\\xFF\\xFF"],
    "BIT": ["0", "1", "10101010101", "1" * LONG],
    "DATE": ["2024-02-29", "infinity", "-infinity", "5877642-06-25 (BC)", "5881580-07-10"],
    **dict.fromkeys(("TIME", "TIME_NS"), HOURS),
    "TIME WITH TIME ZONE": ["00:00:00+15:59:59", "23:59:59.999999-15:59:59"],
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP WITH TIME ZONE"), MOMENT),
    **dict.fromkeys(("TIMESTAMP_NS", "TIMESTAMPTZ_NS"), MOMENT),
    "INTERVAL": ["0 days", "1 day", "-1 day", "1 month", "-1 month -1 day", "2147483647 months",
                 "2147483647 days", "2562047788 hours", "1 microsecond"],
    "UUID": ["00000000-0000-0000-0000-000000000000", "0190b5a0-0000-7000-8000-000000000000"],
    "GEOMETRY": ["POINT(1 2)", "POINT EMPTY", "POLYGON EMPTY", "LINESTRING(0 0, 1 1)"],
    **dict.fromkeys(("INTEGER[]", "BIGINT[]", "DOUBLE[]", "FLOAT[]"), NUMBERS),
    "BOOLEAN[]": ["[]", "[true, false]", "[NULL]"],
    "VARCHAR[]": ["[]", "[a, b]", "[NULL]", "['']", "[$.a, x]", f"[{', '.join(['aaaa'] * 9999)}]"],
    "INTEGER[][]": ["[]", "[[1], [], NULL]", "[[NULL]]"],
    **dict.fromkeys(("FLOAT[3]", "DOUBLE[3]", "INTEGER[3]"), THREE),
    "STRUCT(a INTEGER, b VARCHAR)": ["{'a': 1, 'b': x}", "{'a': NULL, 'b': NULL}"],
    "STRUCT(k VARCHAR, v INTEGER)[]": ["[]", "[{'k': a, 'v': 1}, {'k': a, 'v': 2}]", "[NULL]"],
    "MAP(VARCHAR, INTEGER)": ["{}", "{a=1}", "{a=NULL, b=2}"],
}  # fmt: skip
NAMES = {kind: f"t{number}" for number, kind in enumerate(HOSTILE)}
GENERIC = {  # parameters without a type of their own
    "ANY": ["VARCHAR", "BIGINT", "INTEGER[]", "TIMESTAMP", "STRUCT(a INTEGER, b VARCHAR)", "BLOB"],
    "ANY[]": ["INTEGER[]", "VARCHAR[]", "DOUBLE[]"], "T[]": ["INTEGER[]", "VARCHAR[]"],
    "T": ["INTEGER", "VARCHAR"], "T[][]": ["INTEGER[][]"], "K": ["VARCHAR"], "V": ["INTEGER"],
    "K[]": ["VARCHAR[]"], "V[]": ["INTEGER[]"], "MAP(K, V)": ["MAP(VARCHAR, INTEGER)"],
    "TUPLE(K, V)[]": ["STRUCT(k VARCHAR, v INTEGER)[]"], "DECIMAL": ["DECIMAL(18,3)"],
    "TUPLE": [PAIR], "STRUCT": [PAIR], "UNION": [PAIR],
    "FLOAT[ANY]": ["FLOAT[3]"], "DOUBLE[ANY]": ["DOUBLE[3]"], "VARIANT": ["JSON", "VARCHAR"],
    "LAMBDA": ["lambda x: x", "lambda x, y: x + y", "lambda x: x || x", "lambda x: x > 1"],
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Call:
    """A function with its arguments, in SQL."""

    function: str
    sql: str

    @property
    def text(self) -> str:
        """SQL of the value as a text, which can be a key."""
        return f"CAST({self.sql} AS VARCHAR)"


def catalogue() -> list[tuple[str, list[str | None]]]:
    """Names and parameters of the scalar functions and macros that there are."""
    rows = duckdb.connect().execute(
        "SELECT DISTINCT lower(function_name), parameter_types, varargs FROM duckdb_functions()"
        " WHERE function_type IN ('scalar', 'macro') ORDER BY ALL"
    )
    found = []
    for name, parameters, more in rows.fetchall():
        found += [
            (name, [*(parameters or []), *[more] * extra]) for extra in range(3 if more else 1)
        ]
    return found


def arguments(parameters: Sequence[str | None], dice: random.Random) -> list[str] | None:
    """An argument for each parameter: a column, or a constant; None if there is none."""
    chosen = []
    for place, parameter in enumerate(parameters):
        kinds = GENERIC.get(parameter or "ANY", [str(parameter)])
        kind = dice.choice(kinds)
        if kind.startswith("lambda "):
            chosen.append(kind)
        elif kind not in HOSTILE:
            return None
        elif dice.random() < 0.2:
            text = dice.choice([value for value in HOSTILE[kind] if len(value) < 99])
            chosen.append("TRY_CAST('" + text.replace("'", "''") + f"' AS {kind})")
        else:
            chosen.append(f"TRY_CAST({NAMES[kind]}_{place % PLACES} AS {kind})")
    return chosen


def calls(each: int, every: bool, seed: int) -> Iterator[Call]:
    """Some calls of each function that DuckDB can bind."""
    dice, binder = random.Random(seed), duckdb.connect()
    columns = ", ".join(f"NULL::VARCHAR AS {n}_{p}" for n in NAMES.values() for p in range(PLACES))
    binder.execute(f"CREATE VIEW s AS SELECT {columns}")
    for name, overloads in itertools.groupby(catalogue(), key=lambda entry: entry[0]):
        if name.startswith(ALIKE) and name not in ALIKE_SOME and not every:
            continue
        quoted, found = '"' + name.replace('"', '""') + '"', set[Call]()
        given = list(overloads)
        for attempt in range(each * 30):
            chosen = arguments(given[attempt % len(given)][1], dice)
            if chosen is None or len(found) == each:
                continue
            call = Call(name, f"{quoted}({', '.join(chosen)})")
            try:
                binder.execute(f"DESCRIBE SELECT {call.text} FROM s")
            except (duckdb.Error, UnicodeDecodeError):  # an error text may end within a character
                continue
            found.add(call)
        yield from sorted(found, key=lambda call: call.sql)


def used(batch: Sequence[Call]) -> dict[str, str]:
    """The columns of a batch's calls, and the types that they are cast to."""
    kinds = {f"{name}_{place}": kind for kind, name in NAMES.items() for place in range(PLACES)}
    named = re.findall(r"\bt\d+_\d\b", " ".join(call.sql for call in batch))
    return {name: kinds[name] for name in sorted(set(named))}


def script(batch: Sequence[Call], keys: str = "") -> str:
    """A query that needs the calls of a batch, for one key or for those that are given."""
    columns = "".join(f", {name} TEXT" for name in used(batch))
    listed = ", ".join(f"{call.text} AS c{number}" for number, call in enumerate(batch))
    empty = ", ".join(f"LEFT(c{number}, 0)" for number in range(len(batch)))
    return (
        f"CREATE SOURCE s (unit TEXT, k TEXT{columns}) WITH (connector = 'files', path ="
        f" '*.parquet'); CREATE SINK o WITH (connector = 'python') AS WITH w AS (SELECT unit, k,"
        f" {listed} FROM s) SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (epsilon = 40, delta = 1e-9,"
        " privacy_unit_column = unit, max_rows_contributed = 1, mechanism = 'tree')"
        f" {keys or f'CONCAT(k, {empty}) AS key'}, COUNT(*) AS n FROM w GROUP BY {keys or 'key'}"
        " EMIT EVERY INTERVAL 15 MINUTES FOR 1 TRIGGERS;"
    )


def accepted(batch: Sequence[Call]) -> list[Call]:
    """The calls that compile: all at once, or else one by one."""
    known = [call for call in batch if not refused(f"SELECT {call.sql}")]
    for parts in ([known], [[call] for call in known]):
        found = []
        for part in parts:
            with suppress(SqlError):
                compile_script(script(part))
                found += part
        if found:
            return found
    return []


def refused(query: str) -> bool:
    """Whether the compiler knows a function of a query to be none for rows."""
    return bool(bad_function(query) or unbounded(query))


def rows(units: Sequence[str], batch: Sequence[Call], dice: random.Random) -> pa.Table:
    """A row for each unit: hostile values for the hostile unit, nulls for the others."""
    hostile = [unit == HOSTILE_UNIT for unit in units]
    columns: dict[str, Any] = {"unit": pa.array(units, pa.string())}
    keys = [HOSTILE_UNIT if bad else "abc"[place % 3] for place, bad in enumerate(hostile)]
    columns["k"] = pa.array(keys)
    for name, kind in used(batch).items():
        values = [dice.choice([None, *HOSTILE[kind] * 5]) if bad else None for bad in hostile]
        columns[name] = pa.array(values, pa.string())
    return pa.table(columns)


def released(folder: Path, batch: Sequence[Call]) -> list[dict[str, Any]]:
    """What is released at the one trigger."""
    engine = made(folder, script(batch), threads=1)
    try:
        engine.clock = FakeClock(engine.schedule.due(engine.next_trigger))
        step(engine)
        assert isinstance(engine.sink, Collected)
        return list(engine.sink.releases[0].to_pylist())
    finally:
        engine.close()


class Given:
    """A source of one table."""

    def __init__(self, table: pa.Table) -> None:
        self.table = table

    def folders(self) -> list[str]:
        return []

    def read(self, records: Any, database: duckdb.DuckDBPyConnection) -> None:
        database.register("s", self.table)


def check_alone(batch: Sequence[Call], seed: int) -> int:
    """Compare many rows with each alone; returns how many fail."""
    keys = ", ".join(f"c{number}" for number in range(len(batch)))
    query = compile_script(script(batch, keys)).sinks[0].query
    table = rows([HOSTILE_UNIT] * ROWS, batch, random.Random(seed))
    table = table.set_column(0, "unit", pa.array(map(str, range(ROWS)), pa.string()))
    source = Given(table)
    with RowQuery(query, source, 1) as evaluating:  # type: ignore[arg-type]
        together, failing = rows_of(evaluating), evaluating.dropped
        alone = []
        for row in range(ROWS):
            source.table = table.slice(row, 1)
            alone += rows_of(evaluating)
        assert together == sorted(alone), "rows are others alone"
        assert evaluating.dropped == 2 * failing, "other rows are dropped alone"
    return failing


def rows_of(evaluating: RowQuery) -> list[str]:
    """What the rows of the source become, each as a text."""
    return sorted(
        repr(row) for batch in evaluating.run(None, None, list) for row in batch.to_pylist()
    )


def check_released(batch: Sequence[Call], folder: Path, seed: int) -> None:
    """Compare what is released with hostile rows and without."""
    others, outcomes = [f"u{number}" for number in range(30)], []
    for name, units in {"without": others, "with": [*others, *[HOSTILE_UNIT] * ROWS]}.items():
        (folder / name).mkdir(parents=True)
        pq.write_table(rows(units, batch, random.Random(seed)), folder / name / "a.parquet")
        outcomes.append(released(folder / name, batch))
    assert outcomes[0] == outcomes[1], "hostile rows change what others release"
    assert len(outcomes[0]) == 3, "nothing of the others is released"


def run(each: int, every: bool, size: int, seed: int) -> dict[str, int]:
    """Look at batches of calls; counts of what was done."""
    counts = dict.fromkeys(("functions", "accepted", "calls", "dropped"), 0)
    found, names = list(calls(each, every, seed)), set()
    counts["functions"] = len({call.function for call in found})
    random.Random(seed).shuffle(found)
    with tempfile.TemporaryDirectory() as place:
        for number in range(0, len(found), size):
            batch = accepted(found[number : number + size])
            names |= {call.function for call in batch}
            print(json.dumps([call.sql for call in batch]), flush=True)
            counts["dropped"] += check_alone(batch, number) if batch else 0
            if batch:
                check_released(batch, Path(place) / str(number), number)
            counts["accepted"], counts["calls"] = len(names), counts["calls"] + len(batch)
    return counts


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    Secret.new = classmethod(lambda cls: SECRET)  # type: ignore[assignment, method-assign]
    print(json.dumps(run(int(sys.argv[1]), sys.argv[2] == "every", int(sys.argv[3]), seed=1)))
