"""Parquet, CSV and JSON Lines files: a fixed set, or a folder that grows.

A file must be complete when it appears under its name (write elsewhere, then rename). Names that
begin with a dot or underscore are passed over. A file that changes after it was taken is refused.
"""

from __future__ import annotations

from glob import glob, has_magic
from itertools import takewhile
from pathlib import Path
from typing import Any

import duckdb

from dpsqlp.errors import SourceError
from dpsqlp.sql.query import SourceDef

_READERS = {
    ".parquet": "read_parquet({files})",
    ".csv": "read_csv({files}, columns = {columns}, ignore_errors = true{extra})",
    ".jsonl": "read_json({files}, columns = {columns}, format = 'newline_delimited',"
    " ignore_errors = true)",
}
_READERS[".json"] = _READERS[".ndjson"] = _READERS[".jsonl"]
_READERS[".tsv"] = _READERS[".csv"]


class FileSource:
    """Files matched by the pattern `path`."""

    def __init__(self, source: SourceDef, timestamp: str | None, folder: Path) -> None:
        self._source = source
        self._timestamp = timestamp
        self._pattern = str(folder.resolve() / str(source.options["path"]))

    def folders(self) -> list[str]:
        """The folder above the first wildcard of the pattern."""
        plain = takewhile(lambda part: not has_magic(part), Path(self._pattern).parts)
        folder = Path(*plain)
        return [str(folder if folder.is_dir() else folder.parent)]

    def begin(self) -> Any:
        """No file has been taken; on event time all of them are, now and for good."""
        return {"taken": []}

    def take(self, position: Any, trigger: int, span: tuple[int, int] | None) -> Any:
        """New files, or the event-time span of the files there were at the first trigger."""
        if span is not None:
            files = position.get("files") or _found(self._pattern)
            return {"files": files, "span": list(span)}
        taken = set(position["taken"])
        return {"files": [file for file in _found(self._pattern) if file[0] not in taken]}

    def after(self, position: Any, records: Any) -> Any:
        """The position after a range."""
        if records is None:
            return position
        if "span" in records:
            return {"files": records["files"]}
        return {"taken": position["taken"] + [file[0] for file in records["files"]]}

    def read(self, records: Any, database: duckdb.DuckDBPyConnection) -> None:
        """Make the range's records a view of the source's name."""
        files = [] if records is None else records["files"]
        for name, size, modified in files:
            _check_unchanged(name, size, modified)
        where = ""
        if records is not None and "span" in records and self._timestamp is not None:
            low, high = (f"make_timestamp({int(edge)})" for edge in records["span"])
            where = (
                f"WHERE {_quoted(self._timestamp)} >= {low} AND {_quoted(self._timestamp)} < {high}"
            )
        columns = ", ".join(
            f"{_quoted(name)}::{kind} AS {_quoted(name)}" for name, kind in self._source.columns
        )
        relation = self._relation([file[0] for file in files])
        database.execute(
            f"CREATE OR REPLACE TEMP VIEW {_quoted(self._source.name)} AS"
            f" SELECT {columns} FROM {relation} {where}"
        )

    def forget(self, records: Any) -> None:
        """Files stay where they are."""

    def _relation(self, names: list[str]) -> str:
        if not names:
            nulls = ", ".join(
                f"NULL::{kind} AS {_quoted(name)}" for name, kind in self._source.columns
            )
            return f"(SELECT {nulls} WHERE false)"
        suffix = Path(names[0]).suffix
        if suffix not in _READERS:
            raise SourceError(
                f"Files that end in {suffix!r} cannot be read. Use one of"
                f" {', '.join(sorted(_READERS))}."
            )
        return _READERS[suffix].format(
            files=_literal(names),
            columns="{"
            + ", ".join(f"{_text(n)}: {_text(k)}" for n, k in self._source.columns)
            + "}",
            extra=", delim = '\t'" if suffix == ".tsv" else "",
        )


def _found(pattern: str) -> list[list[Any]]:
    """Name, size and time of change of the files there are, by name."""
    paths = sorted(Path(name) for name in glob(pattern, recursive=True))
    files = [path for path in paths if path.is_file() and path.name[0] not in "._"]
    return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in files]


def _check_unchanged(name: str, size: int, modified: int) -> None:
    try:
        status = Path(name).stat()
    except FileNotFoundError:
        status = None
    if status is None or (status.st_size, status.st_mtime_ns) != (size, modified):
        raise SourceError(
            f"The file {name} {'is gone' if status is None else 'has changed'} since its trigger"
            " began. A trigger reads the same records each time: bring back the file as it was."
        )


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _literal(names: list[str]) -> str:
    return "[" + ", ".join(_text(name) for name in names) + "]"
