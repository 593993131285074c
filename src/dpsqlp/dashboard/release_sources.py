"""Sources of releases: a state, the folder of a sink, a DuckDB file.

Each source provides a folder with one Parquet file per trigger. Parquet folders are read in place.
JSON Lines and DuckDB tables are converted once, trigger by trigger, into a cache folder.
"""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from dpsqlp.dashboard.archive import SUFFIX
from dpsqlp.dashboard.release_files import (
    FileVersion,
    file_version,
    parquet_name,
    trigger_files,
)
from dpsqlp.errors import StateError
from dpsqlp.sinks.formats import from_json_rows
from dpsqlp.sql.quoting import quote_identifier
from dpsqlp.sql.release import FIXED

_COPY_ATTEMPTS = 5  # for a file that a pipeline is writing
_PAUSE_SECONDS = 0.05


class ReleaseSource(Protocol):
    """The releases of one sink."""

    @property
    def name(self) -> str:
        """The name of the sink."""

    def watched_path(self) -> Path:
        """The file or folder whose modification time changes with a new release."""

    def folder(self) -> Path:
        """A folder with one Parquet file per trigger, up to date."""


@dataclass(frozen=True, slots=True)
class ParquetFolder:
    """A folder of Parquet files, read in place."""

    path: Path

    @property
    def name(self) -> str:
        """The name of the sink."""
        return self.path.resolve().name.removesuffix(SUFFIX)

    def watched_path(self) -> Path:
        """The folder itself."""
        return self.path

    def folder(self) -> Path:
        """The folder itself."""
        return self.path


@dataclass(frozen=True, slots=True)
class JsonLinesFolder:
    """A folder of JSON Lines files."""

    path: Path
    cache: Path

    @property
    def name(self) -> str:
        """The name of the sink."""
        return self.path.resolve().name

    def watched_path(self) -> Path:
        """The folder of JSON Lines files."""
        return self.path

    def folder(self) -> Path:
        """The cache folder, with all triggers converted."""
        converted = trigger_files(self.cache, "parquet")
        known = {trigger for trigger, file in converted.items() if file.stat().st_size}
        for trigger, file in trigger_files(self.path, "jsonl").items():
            if trigger in known:
                continue
            try:
                rows = [json.loads(line) for line in file.read_bytes().splitlines()]
                if rows:  # a release without rows has no columns
                    _write(self.cache, trigger, from_json_rows(rows))
            except (ValueError, TypeError, OverflowError, pa.ArrowException):
                # The reader reports and skips this empty placeholder as an unreadable release.
                if trigger not in converted:
                    (self.cache / parquet_name(trigger)).touch()
        return self.cache


class DuckDbTable:
    """A table in a DuckDB file.

    A copy of the file is read, because a process that has the file open, even read-only, blocks
    the pipeline that writes to it.
    """

    def __init__(self, path: Path, table: str, cache: Path) -> None:
        self.name = table
        self._path = path
        self._cache = cache
        self._version: FileVersion | None = None

    def watched_path(self) -> Path:
        """The DuckDB file."""
        return self._path

    def folder(self) -> Path:
        """The cache folder, with all triggers converted."""
        if file_version(self._path) != self._version:
            copy = self._cache.with_suffix(".duckdb")
            version = copy_consistently(self._path, copy)
            if version is not None:  # else a pipeline is writing the file: try at the next refresh
                with duckdb.connect(str(copy), read_only=True, config={"threads": 1}) as database:
                    self._export(database)
                self._version = version
            copy.unlink()
        return self._cache

    def _export(self, database: duckdb.DuckDBPyConnection) -> None:
        table = quote_identifier(self.name)
        known = trigger_files(self._cache, "parquet")
        found = database.execute(f"SELECT DISTINCT trigger FROM {table} ORDER BY 1").fetchall()
        for (trigger,) in found:
            if trigger not in known:
                query = f"SELECT * FROM {table} WHERE trigger = ?"
                rows = database.sql(query, params=[trigger]).to_arrow_table()
                _write(self._cache, trigger, rows)


def find_sources(path: Path, cache: Path) -> list[ReleaseSource]:
    """The sources at a path. `cache` is an empty folder for converted releases."""
    path = path.resolve()  # gives `.` and `..` a name
    if path.is_file():
        return _duckdb_tables(path, cache)
    archives = [path.parent / (path.name + SUFFIX), *sorted(path.glob(f"*{SUFFIX}"))]
    sources: list[ReleaseSource] = [ParquetFolder(folder) for folder in archives if folder.is_dir()]
    if sources:
        return sources
    if (path / "pipeline.json").exists() or any(path.glob("*/pipeline.json")):
        raise StateError(
            f"{path} has no archive of releases. Run `dpsqlp run FILE.sql --dashboard`, which"
            " archives releases from then on, or give the folder or DuckDB file of the sink."
        )
    if any(path.glob("trigger-*.jsonl")):
        (cache / "0").mkdir()
        return [JsonLinesFolder(path, cache / "0")]
    if any(path.glob("trigger-*.parquet")) or path.name.endswith(SUFFIX):
        return [ParquetFolder(path)]
    raise StateError(
        f"{path} contains no releases. Give a state that was run with --dashboard, the folder of a"
        " parquet or jsonl sink, or a DuckDB file."
    )


def _duckdb_tables(path: Path, cache: Path) -> list[ReleaseSource]:
    copy = cache / "tables.duckdb"
    try:
        if copy_consistently(path, copy) is None:
            raise StateError(f"{path} is being written. Try again.")
        with duckdb.connect(str(copy), read_only=True) as database:
            columns = database.execute(
                "SELECT table_name, list(column_name) FROM duckdb_columns()"
                " WHERE NOT internal GROUP BY 1 ORDER BY 1"
            ).fetchall()
    except duckdb.Error as error:
        raise StateError(f"{path} cannot be read as a DuckDB file: {error}") from error
    copy.unlink()
    names = [name for name, found in columns if set(found) >= set(FIXED)]
    if not names:
        raise StateError(
            f"{path} has no table that a duckdb sink wrote. Give the file of a duckdb sink."
        )
    sources: list[ReleaseSource] = []
    for number, name in enumerate(names):
        (cache / str(number)).mkdir()
        sources.append(DuckDbTable(path, name, cache / str(number)))
    return sources


def copy_consistently(path: Path, copy: Path) -> FileVersion | None:
    """Copy a DuckDB file and return its version, or None while a pipeline is writing to it."""
    for _ in range(_COPY_ATTEMPTS):
        before = file_version(path)
        shutil.copyfile(path, copy)
        if (
            before is not None
            and file_version(path) == before
            and not path.with_name(path.name + ".wal").exists()
        ):
            return before
        time.sleep(_PAUSE_SECONDS)
    return None


def _write(folder: Path, trigger: int, table: pa.Table) -> None:
    """Write a file atomically: another request may list the folder."""
    target = folder / parquet_name(trigger)
    temporary = target.with_suffix(".writing")
    pq.write_table(table, temporary, compression="zstd", row_group_size=8192)
    temporary.replace(target)
