"""Sources that Spark reads."""

from __future__ import annotations

from functools import reduce
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from dpsqlp.errors import SourceError
from dpsqlp.sources.files import File, FileSource, check_unchanged
from dpsqlp.sql.spark import spark_type

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_STORED = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INT",
    pa.int64(): "BIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "STRING",
    pa.large_string(): "STRING",
    pa.binary(): "BINARY",
    pa.large_binary(): "BINARY",
    pa.date32(): "DATE",
    pa.timestamp("ms"): "TIMESTAMP_NTZ",
    pa.timestamp("us"): "TIMESTAMP_NTZ",
    pa.timestamp("ms", "UTC"): "TIMESTAMP",
    pa.timestamp("us", "UTC"): "TIMESTAMP",
}
_INTEGERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_WIDER = {
    ("FLOAT", "DOUBLE"),
    ("TIMESTAMP", "TIMESTAMP_NTZ"),  # in a session in UTC
    *((a, b) for place, a in enumerate(_INTEGERS) for b in _INTEGERS[place + 1 :]),
}


class SparkFiles(FileSource):
    """Parquet files that the driver and all executors see under the same names.

    Positions are those of the local engine's files, so that a pipeline can move.
    """

    def frame(self, records: Any, spark: SparkSession) -> DataFrame:
        """The range's records, with the columns and types that the source declares."""
        files: list[File] = [] if records is None else [tuple(file) for file in records["files"]]
        for file in files:
            check_unchanged(file)
        if records is not None and "span" in records and self._timestamp is not None:
            files = [file for file in files if self._has_times_in(file, *records["span"])]
        types = [spark_type(kind) for _, kind in self._source.columns]
        declared = ", ".join(
            f"{_name(name)} {kind}"
            for (name, _), kind in zip(self._source.columns, types, strict=True)
        )
        frames = [spark.createDataFrame([], declared)]
        in_order = sorted(files, key=lambda file: (self._shape(file), file))
        for _, members in groupby(in_order, key=self._shape):
            names = [file[0] for file in members]
            stored, columns = self._columns(names[0], types)
            frames.append(spark.read.schema(stored).parquet(*names).selectExpr(*columns))
        return reduce(lambda left, right: left.unionAll(right), frames)

    def _columns(self, file: str, types: list[str]) -> tuple[str, list[str]]:
        """A layout's columns as they are stored, and as they are declared."""
        if Path(file).suffix != ".parquet":
            raise SourceError(
                f"The Spark engine reads Parquet files, and {file} is none: other files would be"
                " read differently. Convert it, or use the local engine."
            )
        fields = {field.name.lower(): field for field in reversed(list(pq.read_schema(file)))}
        stored, columns = [], []
        for (name, kind), wanted in zip(self._source.columns, types, strict=True):
            field = fields[name.lower()]
            found = _stored(field.type)
            if found != wanted and (found, wanted) not in _WIDER:
                raise SourceError(
                    f"The column {name} of {file} is stored as {field.type} and declared as"
                    f" {kind}: Spark would convert some values differently. Declare it as it is"
                    " stored, and CAST it in the query."
                )
            stored.append(f"{_name(field.name)} {found}")
            columns.append(f"CAST({_name(field.name)} AS {wanted}) AS {_name(name)}")
        return ", ".join(stored), columns


def _stored(kind: pa.DataType) -> str | None:
    """The Spark type of a stored type, if both are read alike."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_decimal128(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return _STORED.get(kind)


def _name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
