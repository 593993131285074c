"""Parquet files that Spark reads, and DataFrames with the columns that a source declares."""

from __future__ import annotations

from functools import reduce
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq

from dpsqlp.errors import SourceError
from dpsqlp.sources.files import FileRange, FileSource, unchanged_files
from dpsqlp.sql.query import SourceDef
from dpsqlp.sql.spark import spark_type
from dpsqlp.sql.spark.cells import in_range_sql, without_zone_sql

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
_LEGACY, _BY = b"org.apache.spark.legacyDateTime", b"org.apache.spark.version"
_PATTERN = "*?[]{}\\:"
_INTEGERS = ("TINYINT", "SMALLINT", "INT", "BIGINT")
_WIDER = {
    ("FLOAT", "DOUBLE"),
    ("TIMESTAMP", "TIMESTAMP_NTZ"),
    *((a, b) for place, a in enumerate(_INTEGERS) for b in _INTEGERS[place + 1 :]),
}


class SparkFiles(FileSource):
    """Parquet files that the driver and all executors see under the same names.

    Offsets are those of the local engine's files, so that a pipeline can move.
    """

    def __init__(self, source: SourceDef, timestamp: str | None, folder: Path) -> None:
        """See `FileSource`."""
        super().__init__(source, timestamp, folder)
        self._checked: set[str] = set()

    def complete(self, offsets: FileRange) -> FileRange:
        """The same range, refused if one of its files cannot be used or Spark would read other
        records.
        """
        completed = super().complete(offsets)
        names = {name for name, *_ in completed["files"]}
        for name in sorted(names - self._checked):
            if set(name) & set(_PATTERN):
                raise SourceError(
                    f"The file {name} has one of {_PATTERN} in its name, which Spark would read as"
                    " a pattern. It has not been read: rename it."
                )
            self._check_alike(name)
        self._checked |= names
        return completed

    def frame(self, offsets: FileRange | None, spark: SparkSession) -> DataFrame:
        """The range's records, with the columns and types that the source declares."""
        files = unchanged_files(offsets)
        if offsets is not None and "span" in offsets and self._timestamp is not None:
            files = [file for file in files if self._has_times_in(file, *offsets["span"])]
        frames = []
        in_order = sorted(files, key=lambda file: (self._shape(file), file))
        for _, members in groupby(in_order, key=self._shape):
            names = [file[0] for file in members]
            stored, columns = self._columns(names[0])
            uris = [
                f"file://{name}" for name in names
            ]  # not the default file system of the cluster
            frames.append(spark.read.schema(stored).parquet(*uris).selectExpr(*columns))
        if not frames:
            return no_records(self._source, spark)
        return reduce(lambda left, right: left.unionAll(right), frames)

    def _check_alike(self, file: str) -> None:
        """Refuse a file of which Spark would read other values, or no values."""
        if Path(file).suffix != ".parquet":
            return
        found = pq.read_metadata(file)
        said = found.metadata or {}
        kinds = {spark_type(kind) for _, kind in self._source.columns}
        if kinds & {"DATE", "TIMESTAMP_NTZ"} and (_LEGACY in said or said.get(_BY, b"3") < b"3"):
            raise SourceError(
                f"The file {file} may use the calendar of before 1582, which Spark would change."
                " It has not been read: write it again with"
                " spark.sql.parquet.datetimeRebaseModeInWrite = CORRECTED."
            )
        names = [name.lower() for name in found.schema.to_arrow_schema().names]
        twice = [name for name, _ in self._source.columns if names.count(name.lower()) > 1]
        if twice:
            raise SourceError(
                f"The file {file} has several columns named {twice[0]} that differ only in case,"
                " which Spark does not tell apart. It has not been read: rename them."
            )

    def _columns(self, file: str) -> tuple[str, list[str]]:
        """A layout's columns as they are stored, and as they are declared."""
        if Path(file).suffix != ".parquet":
            raise SourceError(
                f"The Spark engine reads only Parquet files; got {file}. Spark would read other"
                " formats differently. Convert the file, or use the local engine."
            )
        fields = {field.name.lower(): field for field in reversed(list(pq.read_schema(file)))}
        stored, columns = [], []
        for name, kind in self._source.columns:
            field = fields[name.lower()]
            found = _stored(field.type)
            columns.append(_cast(field.name, found, name, kind, f"column of {file}"))
            stored.append(f"{_name(field.name)} {found}")
        return ", ".join(stored), columns


def no_records(source: SourceDef, spark: SparkSession) -> DataFrame:
    """An empty frame with the columns and types that a source declares."""
    columns = [
        f"CAST(NULL AS {spark_type(kind)}) AS {_name(name)}" for name, kind in source.columns
    ]
    return spark.range(0).selectExpr(*columns)


def as_declared(frame: DataFrame, source: SourceDef) -> DataFrame:
    """A frame's columns that the source declares, with the declared types."""
    found = {field.name.lower(): field for field in frame.schema}
    missing = [name for name, _ in source.columns if name.lower() not in found]
    if missing:
        raise SourceError(
            f"The DataFrame lacks the columns {missing} of the source {source.name}. Select them"
            " under these names."
        )
    columns = []
    for name, kind in source.columns:
        field = found[name.lower()]
        stored = field.dataType.simpleString().upper()
        columns.append(_cast(field.name, stored, name, kind, "column of the DataFrame"))
    return frame.selectExpr(*columns)


def _cast(column: str, stored: str | None, name: str, kind: str, what: str) -> str:
    wanted = spark_type(kind)
    if stored != wanted and (stored, wanted) not in _WIDER:
        raise SourceError(
            f"The {what} named {column} is a {stored or 'type that Spark reads differently'}, and"
            f" {name} is declared as {kind}: some values would be converted differently. Declare it"
            " as it is, and CAST it in the query."
        )
    value = f"CAST({_name(column)} AS {wanted})"
    if wanted == "TIMESTAMP_NTZ":
        value = in_range_sql(without_zone_sql(_name(column)) if stored == "TIMESTAMP" else value)
    elif wanted == "STRING":  # a text of Spark may hold any bytes
        value = f"CASE WHEN is_valid_utf8({value}) THEN {value} END"
    return f"{value} AS {_name(name)}"


def _stored(kind: pa.DataType) -> str | None:
    """The Spark type of a stored type, if both are read alike."""
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if pa.types.is_decimal128(kind):
        return f"DECIMAL({kind.precision},{kind.scale})"
    return _STORED.get(kind)


def _name(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
