"""Parquet, CSV and JSON Lines files: a fixed set, or a folder that grows (`follow = true`).

A file must be complete when it appears under its name (write elsewhere, then rename). Names and
folders that begin with a dot or underscore, and names that end like a half-written file, are
skipped. The files of a trigger, with their sizes and times of change, are decided when it is due. A
file that cannot be used, or that changes afterwards, stops the trigger.

Privacy contract: each line, and each row of a Parquet file, is read by itself. A value that cannot
be read is null; nothing is guessed from the contents of a file, and no record can hide another or
stop a run. So CSV has a comma (a tab in .tsv), double quotes, a first line with the names, and no
line breaks within quotes: with them, one unit's quote could swallow the rows of others.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
from collections.abc import Collection, Iterator, Sequence
from glob import escape, glob, has_magic
from itertools import groupby, takewhile
from os.path import abspath, isdir, realpath
from pathlib import Path
from typing import NotRequired, TypedDict

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from dpsqlp.errors import SourceError
from dpsqlp.sources.base import GridTime, Source
from dpsqlp.sources.columns import json_columns, try_cast
from dpsqlp.sql.query import SourceDef
from dpsqlp.sql.quoting import quote_identifier, quote_text

_DELIMITERS = {".csv": ",", ".tsv": "\t"}
_JSON = (".json", ".jsonl", ".ndjson")
_SUFFIXES = (".parquet", *_DELIMITERS, *_JSON)
_PER_MILLISECOND = {"milliseconds": 1, "microseconds": 10**3, "nanoseconds": 10**6}
_NAMED = 10  # files in a message
_GONE = (-1, -1)  # size and time of change of a file that is not there
# Below the pattern's folder: hidden names and folders, and files that are being written.
_SKIPPED = re.compile(r"/[._]|\.(tmp|part|partial|writing|inprogress)$")
# Whole lines: a line that is too long or not UTF-8 is left out, a line with chr(1) ends there. The
# line end is named: if DuckDB guessed CR LF, a spare CR would go to the next line.
_LINES = (
    "read_csv({files}, columns = {{'line': 'VARCHAR'}}, auto_detect = false, delim = '\x01',"
    " quote = '', escape = '', header = {header}, ignore_errors = true, strict_mode = false,"
    " new_line = '\\n') WHERE line <> ''"
)
# Nearly every type has one of these values: a cast that DuckDB lacks fails on it.
_EXAMPLES = (
    "1",
    "2024-01-01 00:00:00",
    "12:00:00",
    "1 day",
    "{}",
    "[]",
    "00000000-0000-0000-0000-000000000001",
)
Shape = tuple[str, tuple[str, ...]]  # suffix and columns
File = tuple[str, int, int]  # name, size, time of change; a list in JSON


class UnusableFileError(SourceError):
    """A file that a trigger cannot read. `fact` says which, and why."""

    def __init__(self, fact: str, way_out: str) -> None:
        self.fact = fact
        super().__init__(f"{fact}. {way_out}")


class FileOffset(TypedDict, total=False):
    """The names of the files taken so far; on event time all files, fixed at the first trigger."""

    taken: list[str]
    files: list[File]


class FileRange(TypedDict):
    """Files as they were when the trigger was due; on event time the records of a span of them."""

    files: list[File]
    left_behind: NotRequired[list[str]]  # names of files that count as read
    span: NotRequired[tuple[int, int]]


class FileSource(Source[FileOffset, FileRange]):
    """Files matched by the pattern `path`."""

    def __init__(self, source: SourceDef, timestamp: str | None, folder: Path) -> None:
        """`timestamp` is the event-time column, if it is a column of the source."""
        self._source = source
        self._timestamp = timestamp
        self._follow = bool(source.options.get("follow", False))
        path = Path(str(source.options["path"]))
        plain = takewhile(lambda part: not has_magic(part), path.parts)
        self._base = folder.resolve().joinpath(*plain)
        self._pattern = str(path if path.is_absolute() else escape(str(folder.resolve())) / path)
        self._shapes: dict[File, Shape] = {}
        self._layouts: set[Shape] = set()  # that can be read
        self._times: dict[File, tuple[float, float]] = {}

    def folders(self) -> list[str]:
        """The folder above the first wildcard of the pattern."""
        folder = str(self._folder())
        return sorted({folder, escape(folder)})  # as it is, and as DuckDB asks for it

    def initial_offset(self) -> FileOffset:
        """No file has been taken."""
        return {"taken": []}

    def cut(self, offset: FileOffset, at: GridTime) -> FileRange:
        """The files that have come since, as they are now: a file that changes before its trigger
        reads it is refused. No file is opened, since a cut has to be quick.
        """
        taken = set(_checked(offset)["taken"])
        names = self._listed(taken) if self._follow else [] if taken else self._all()
        return {"files": [_identify(name) for name in names], "left_behind": []}

    def replay(self, offset: FileOffset, span: tuple[int, int]) -> FileRange:
        """An event-time span of the files there were at the first trigger."""
        if "files" in _checked(offset):
            return {"files": offset["files"], "span": span}
        files = [_identify(name) for name in self._all()]
        for file in files:
            self._check_usable(file)
        return {"files": files, "span": span}

    def complete(self, offsets: FileRange) -> FileRange:
        """The same range, refused if one of its files has changed or cannot be used."""
        if "span" not in offsets:
            for file in _files(offsets):
                self._check_usable(file)
        return offsets

    def next_offset(self, offset: FileOffset, offsets: FileRange | None) -> FileOffset:
        """The offset after a range."""
        if offsets is None:
            return offset
        if "span" in offsets:
            return {"files": offsets["files"]}
        return {"taken": sorted({*offset["taken"], *_names(offsets)})}

    def leave_behind(
        self, offsets: FileRange, names: Collection[str]
    ) -> tuple[FileRange, list[str]]:
        """A range without the named files; on event time later spans are without them too."""
        paths = {path: name for name in names for path in (abspath(name), realpath(name))}
        left = [name for name in _names(offsets) if name in paths]
        kept: FileRange = {
            **offsets,
            "files": [file for file in offsets["files"] if file[0] not in left],
            "left_behind": [*offsets.get("left_behind", []), *left],
        }
        return kept, [paths[name] for name in left]

    def read(self, offsets: FileRange | None, database: duckdb.DuckDBPyConnection) -> None:
        """Make the range's records a view of the source's name."""
        files = _files(offsets)
        where, spanned = "", None
        if offsets is not None and "span" in offsets and self._timestamp is not None:
            low, high = offsets["span"]
            files = [file for file in files if self._has_times_in(file, low, high)]
            spanned, column = self._timestamp, quote_identifier(self._timestamp)
            where = (
                f" WHERE {column} >= make_timestamp({int(low)})"
                f" AND {column} < make_timestamp({int(high)})"
            )
        for file in files:
            _check_unchanged(file)
        rows = " UNION ALL ".join(self._relations(files, spanned))
        database.execute(
            f"CREATE OR REPLACE TEMP VIEW {quote_identifier(self._source.name)}"
            f" AS FROM ({rows}){where}"
        )

    def describe(self, offsets: FileRange | None) -> str:
        """The files of a range, for a message."""
        names = [file[0] for file in _files(offsets)]
        more = [f"{len(names) - _NAMED} more"] if len(names) > _NAMED else []
        return ", ".join(names[:_NAMED] + more)

    def _folder(self) -> Path:
        return self._base if self._base.is_dir() else self._base.parent

    def _all(self) -> list[str]:
        """The names of a fixed set of files."""
        found = self._listed(set())
        if not found:
            raise SourceError(
                f"No file matches {self._pattern}. Correct the path of {self._source.name}; if"
                " files are still to come, set follow = true. Nothing was run."
            )
        return found

    def _listed(self, taken: set[str]) -> list[str]:
        """The names that match, in order, without those taken and half-written files."""
        if not has_magic(str(self._source.options["path"])) and self._base.is_dir():
            raise SourceError(
                f"{self._base} is a folder. Name the files of {self._source.name} by a pattern,"
                f" such as path = '{self._source.options['path']}/*.parquet'."
            )
        base = len(str(self._base))
        return sorted(
            name
            for name in set(glob(self._pattern, recursive=True)) - taken
            if not _SKIPPED.search(name, base) and not isdir(name)
        )

    def _check_usable(self, file: File) -> None:
        """Refuse a file that is not as it was when it was listed, or that cannot be read."""
        self._check_place(Path(file[0]))
        found = _identify(file[0])
        if found[1:] == _GONE:
            raise _unusable(file[0], "has vanished")
        if found != file:
            raise _unusable(file[0], "has changed since its trigger was due")
        try:
            self._shape(file)
        except FileNotFoundError:
            raise _unusable(file[0], "has vanished") from None

    def _check_place(self, path: Path) -> None:
        """Refuse a file that the database could not open."""
        name = os.fsencode(path).decode(errors="replace")
        if name != str(path):
            raise _unusable(name, "has a name that is not UTF-8")
        if not path.resolve().is_relative_to(self._folder().resolve()):
            raise _unusable(
                name, f"is a link out of {self._folder()}, the only folder that is read"
            )

    def _shape(self, file: File) -> Shape:
        """The layout of a file; refused if it lacks a column."""
        if file not in self._shapes:
            shape, names = _find_layout(Path(file[0]))
            known = {name.lower() for name in names or ()}
            missing = [name for name, _ in self._source.columns if name.lower() not in known]
            if names is not None and missing:
                raise _unusable(file[0], f"lacks the columns {missing} of the source")
            for name, kind in self._source.columns:
                if kind.upper().startswith("TIMESTAMP") and _has_integers(shape, name):
                    raise _unusable(
                        file[0],
                        f"has integers in {name}, which is declared {kind} and would be null on"
                        f" every row; declare it BIGINT and, for milliseconds, write"
                        f" TIMESTAMP '1970-01-01' + TO_MICROSECONDS(1000 * {name})",
                    )
            if shape[0] == ".parquet" and shape not in self._layouts:
                for name, has, kind in _impossible_casts(file[0], self._source.columns):
                    raise _unusable(
                        file[0],
                        f"has {has} in {name}, which is declared {kind} and would be null on every"
                        " row; declare the type it has, and convert it in the query",
                    )
            self._layouts.add(shape)
            self._shapes[file] = shape
        return self._shapes[file]

    def _has_times_in(self, file: File, low: int, high: int) -> bool:
        """Whether a file can have records of this span; only Parquet files tell."""
        if file not in self._times:
            _check_unchanged(file)
            self._times[file] = _times(Path(file[0]), str(self._timestamp))
        first, last = self._times[file]
        return first < high and last >= low

    def _relations(self, files: list[File], spanned: str | None) -> list[str]:
        """A relation of the source's columns for each layout, so that no file affects another."""
        columns = self._source.columns
        relations = [f"SELECT {try_cast(columns, lambda _: 'NULL')} WHERE false"]
        in_order = sorted(files, key=lambda file: (self._shape(file), file))
        for (suffix, names), members in groupby(in_order, key=self._shape):
            listed = ", ".join(quote_text(escape(file[0])) for file in members)
            if suffix == ".parquet":
                rows = f"read_parquet([{listed}], hive_partitioning = false)"
                relations.append(
                    f"SELECT {try_cast(columns, quote_identifier, spanned)} FROM {rows}"
                )
            elif suffix in _JSON:
                rows = _LINES.format(files=f"[{listed}]", header="false")
                relations.append(f"SELECT {json_columns(columns)} FROM {rows}")
            else:
                places = {name.lower(): place for place, name in reversed([*enumerate(names, 1)])}
                rows = _LINES.format(files=f"[{listed}]", header="true")
                fields = f"SELECT {_fields(_DELIMITERS[suffix])} AS fields FROM {rows}"
                picked = try_cast(columns, lambda name: _field(places[name.lower()]))  # noqa: B023
                relations.append(f"SELECT {picked} FROM ({fields})")
        return relations


def _find_layout(path: Path) -> tuple[Shape, list[str] | None]:
    """A file's layout, and its columns if all rows have the same ones."""
    suffix = path.suffix
    if suffix == ".parquet":
        try:
            schema = pq.read_schema(path)
        except FileNotFoundError:
            raise
        except (pa.ArrowException, OSError):
            raise _unusable(str(path), "is not a complete Parquet file") from None
        return (suffix, tuple(f"{field.name} {field.type}" for field in schema)), schema.names
    if suffix in _DELIMITERS:
        with path.open("rb") as file:
            line = file.readline(1 << 20).decode("utf-8-sig", errors="replace")
        try:
            names = next(csv.reader([line.rstrip("\r\n")], delimiter=_DELIMITERS[suffix]), [])
        except csv.Error:
            raise _unusable(str(path), "has no header line that ends in a line feed") from None
        return (suffix, tuple(names)), names
    if suffix in _JSON:
        return (suffix, ()), None
    raise _unusable(str(path), f"has none of the suffixes {', '.join(sorted(_SUFFIXES))}")


def _impossible_casts(
    path: str, columns: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, str, str]]:
    """Columns of a Parquet file whose type has no cast to the declared one."""
    with duckdb.connect() as database:
        try:
            described = database.execute(
                f"DESCRIBE FROM read_parquet({quote_text(escape(path))}, hive_partitioning = false)"
            ).fetchall()
        except duckdb.Error:
            raise _unusable(path, "is not a Parquet file that DuckDB can read") from None
        types = {row[0].lower(): row[1] for row in reversed(described)}
        for name, kind in columns:
            has = types.get(name.lower(), kind)
            tried = (f"TRY_CAST({quote_text(value)} AS {has})" for value in _EXAMPLES)
            try:
                database.execute(f"SELECT CAST(COALESCE({', '.join(tried)}) AS {kind}) IS NULL")
            except duckdb.Error as problem:
                if "Unimplemented type for cast" in str(problem):
                    yield name, has, kind


def _has_integers(shape: Shape, column: str) -> bool:
    """Whether a Parquet column holds whole numbers."""
    suffix, fields = shape
    integers = {
        f"{column.lower()} {sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
    }
    return suffix == ".parquet" and any(field.lower() in integers for field in fields)


def _times(path: Path, column: str) -> tuple[float, float]:
    """The first and the last time in a column, in microseconds; infinite if not known."""
    unknown = (-math.inf, math.inf)
    if path.suffix != ".parquet":
        return unknown
    metadata = pq.read_metadata(path)
    names = [name.lower() for name in metadata.schema.to_arrow_schema().names]
    place = names.index(column.lower())
    if metadata.num_columns != len(names):  # nested columns have indices of their own
        return unknown
    unit = json.loads(metadata.schema.column(place).logical_type.to_json()).get("timeUnit")
    if unit not in _PER_MILLISECOND:
        return unknown
    first, last = math.inf, -math.inf
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(place).statistics
        if statistics is None or not statistics.has_min_max:
            return unknown
        # Integers: a datetime ends at the year 9999, and no record may stop a run.
        low, high = (
            edge * _PER_MILLISECOND["microseconds"] // _PER_MILLISECOND[unit]
            for edge in (statistics.min_raw, statistics.max_raw)
        )
        first, last = min(first, low), max(last, high + 1)  # nanoseconds are rounded
    return first, last


def _checked(offset: FileOffset) -> FileOffset:
    """The offset, refused if it is another connector's."""
    if not isinstance(offset, dict) or not offset.keys() & {"files", "taken"}:
        raise SourceError(
            "The state holds an offset of another connector. Give the source the connector"
            " it had, or begin a new pipeline, which spends its own budget."
        )
    return offset


def _files(offsets: FileRange | None) -> list[File]:
    """The files of a range, which JSON has made lists."""
    if offsets is None:
        return []
    return [(name, size, modified) for name, size, modified in offsets["files"]]


def _names(offsets: FileRange) -> list[str]:
    """The names of a range's files, also of those left behind."""
    return [*(file[0] for file in offsets["files"]), *offsets.get("left_behind", [])]


def _identify(name: str) -> File:
    """A file's name, size and time of change, without opening it."""
    try:
        status = os.stat(name)
    except FileNotFoundError:
        return (name, *_GONE)
    return name, status.st_size, status.st_mtime_ns


def _unusable(name: str, why: str) -> UnusableFileError:
    return UnusableFileError(
        f"The file {name} {why}",
        "The trigger has not run. On event time, replace the file. In processing time, leave it"
        " behind with --leave-behind-unprotected and add a complete file under another name. Write"
        " files elsewhere, and rename them when they are complete.",
    )


def unchanged_files(offsets: FileRange | None) -> list[File]:
    """The files of a range, refused if one is not as it was when it was taken."""
    files = _files(offsets)
    for file in files:
        _check_unchanged(file)
    return files


def _check_unchanged(file: File) -> None:
    found = _identify(file[0])
    if found != file:
        raise SourceError(
            f"The file {file[0]} {'is gone' if found[1:] == _GONE else 'has changed'} since its"
            " trigger began. A trigger reads the same records each time: restore the file as it"
            " was."
        )


def _fields(delimiter: str) -> str:
    """The fields of a line of CSV, with their quotes; an unpaired quote is a character."""
    pattern = f'{delimiter}("(?:[^"]|"")*"|[^{delimiter}]*)'
    matched = f"regexp_extract_all({quote_text(delimiter)} || line, {quote_text(pattern)}, 1)"
    return (
        f"CASE WHEN contains(line, '\"') THEN {matched}"
        f" ELSE string_split(line, {quote_text(delimiter)}) END"
    )


def _field(place: int) -> str:
    """A field without its quotes; an empty field without quotes is null."""
    field = f"fields[{place}]"
    return (
        f"CASE WHEN {field} = '' THEN NULL WHEN {field}[1] = '\"' AND {field}[-1] = '\"'"
        f" AND length({field}) > 1 THEN replace({field}[2:-2], '\"\"', '\"') ELSE {field} END"
    )
