"""Where releases are read from: a state, a sink's folder, a DuckDB file.

Whatever it is, it becomes folders of one Parquet file for each trigger. Parquet is read where it
lies; JSON Lines and DuckDB are brought over trigger by trigger, once, into a folder of the server.
"""

from __future__ import annotations

import json
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq

from dpsqlp.dashboard.archive import SUFFIX
from dpsqlp.errors import StateError
from dpsqlp.sql.release import FIXED

_FILE = re.compile(r"trigger-(-?\d{1,18})\.(parquet|jsonl)")
_COPIES = 5  # attempts to copy a file that a pipeline is writing
_PAUSE_SECONDS = 0.05
Stamp = tuple[int, int]  # when a file was changed, and its size


class Origin(Protocol):
    """One sink's releases."""

    @property
    def name(self) -> str:
        """What the sink is called."""

    def watched(self) -> Path:
        """The file or folder whose time of change tells that there is something new."""

    def folder(self) -> Path:
        """A folder with one Parquet file for each trigger, brought up to date."""


@dataclass(frozen=True, slots=True)
class ParquetFolder:
    """A folder of Parquet files, read where it lies."""

    path: Path

    @property
    def name(self) -> str:
        """What the sink is called."""
        return self.path.resolve().name.removesuffix(SUFFIX)

    def watched(self) -> Path:
        """The folder itself."""
        return self.path

    def folder(self) -> Path:
        """The folder itself."""
        return self.path


@dataclass(frozen=True, slots=True)
class JsonLinesFolder:
    """A folder of JSON Lines."""

    path: Path
    cache: Path

    @property
    def name(self) -> str:
        """What the sink is called."""
        return self.path.resolve().name

    def watched(self) -> Path:
        """The folder of JSON Lines."""
        return self.path

    def folder(self) -> Path:
        """Parquet files of all triggers there are."""
        brought = trigger_files(self.cache, "parquet")
        known = {trigger for trigger, file in brought.items() if file.stat().st_size}
        for trigger, file in trigger_files(self.path, "jsonl").items():
            if trigger in known:
                continue
            try:
                rows = [json.loads(line) for line in file.read_bytes().splitlines()]
                if rows:  # a release without rows does not say which columns it has
                    _write(self.cache, trigger, _table(rows))
            except (ValueError, TypeError, OverflowError, pa.ArrowException):
                # What cannot be read is left out, and said, where releases are read.
                if trigger not in brought:
                    (self.cache / f"trigger-{trigger:012d}.parquet").touch()
        return self.cache


class DuckDbTable:
    """A table in a DuckDB file.

    The file is copied and the copy is read: who has it open, if only to read, stops the pipeline
    that writes to it.
    """

    def __init__(self, path: Path, table: str, cache: Path) -> None:
        self.name = table
        self._path = path
        self._cache = cache
        self._seen: Stamp | None = None

    def watched(self) -> Path:
        """The DuckDB file."""
        return self._path

    def folder(self) -> Path:
        """Parquet files of all triggers there are."""
        if stamp(self._path) != self._seen:
            copy = self._cache.with_suffix(".duckdb")
            seen = copied(self._path, copy)
            if seen is not None:  # else it is being written: what is known will do until next time
                with duckdb.connect(str(copy), read_only=True, config={"threads": 1}) as database:
                    self._export(database)
                self._seen = seen
            copy.unlink()
        return self._cache

    def _export(self, database: duckdb.DuckDBPyConnection) -> None:
        table = '"' + self.name.replace('"', '""') + '"'
        known = trigger_files(self._cache, "parquet")
        found = database.execute(f"SELECT DISTINCT trigger FROM {table} ORDER BY 1").fetchall()
        for (trigger,) in found:
            if trigger not in known:
                query = f"SELECT * FROM {table} WHERE trigger = ?"
                rows = database.sql(query, params=[trigger]).to_arrow_table()
                _write(self._cache, trigger, rows)


def trigger_files(folder: Path, suffix: str) -> dict[int, Path]:
    """The files of a folder by trigger."""
    found = {}
    for path in folder.iterdir():
        match = _FILE.fullmatch(path.name)
        if match is not None and match[2] == suffix:
            found[int(match[1])] = path
    return found


def find_origins(path: Path, cache: Path) -> list[Origin]:
    """The sinks at a path; `cache` is an empty folder of the server's own."""
    path = path.resolve()  # `.` and `..` have no name
    if path.is_file():
        return _duckdb_tables(path, cache)
    kept = [path.parent / (path.name + SUFFIX), *sorted(path.glob(f"*{SUFFIX}"))]
    origins: list[Origin] = [ParquetFolder(folder) for folder in kept if folder.is_dir()]
    if origins:
        return origins
    if (path / "pipeline.json").exists() or any(path.glob("*/pipeline.json")):
        raise StateError(
            f"{path} keeps no releases for a page. Run with `dpsqlp run FILE.sql --dashboard`,"
            " which keeps them from then on, or give the folder or DuckDB file of the sink."
        )
    if any(path.glob("trigger-*.jsonl")):
        (cache / "0").mkdir()
        return [JsonLinesFolder(path, cache / "0")]
    if any(path.glob("trigger-*.parquet")) or path.name.endswith(SUFFIX):
        return [ParquetFolder(path)]
    raise StateError(
        f"{path} holds no releases. Give a state that was run with --dashboard, the folder of a"
        " parquet or jsonl sink, or a DuckDB file."
    )


def _duckdb_tables(path: Path, cache: Path) -> list[Origin]:
    copy = cache / "tables.duckdb"
    try:
        if copied(path, copy) is None:
            raise StateError(f"{path} is being written all the time. Try again.")
        with duckdb.connect(str(copy), read_only=True) as database:
            columns = database.execute(
                "SELECT table_name, list(column_name) FROM duckdb_columns()"
                " WHERE NOT internal GROUP BY 1 ORDER BY 1"
            ).fetchall()
    except duckdb.Error as error:
        raise StateError(f"{path} is no DuckDB file that can be read: {error}") from error
    copy.unlink()
    names = [name for name, found in columns if set(found) >= set(FIXED)]
    if not names:
        raise StateError(f"{path} has no table that a duckdb sink wrote. Give another file.")
    origins: list[Origin] = []
    for number, name in enumerate(names):
        (cache / str(number)).mkdir()
        origins.append(DuckDbTable(path, name, cache / str(number)))
    return origins


def copied(path: Path, copy: Path) -> Stamp | None:
    """Copy a file while nobody writes to it: which version it is, or None if somebody does."""
    for _ in range(_COPIES):
        before = stamp(path)
        shutil.copyfile(path, copy)
        if (
            before is not None
            and stamp(path) == before
            and not path.with_name(path.name + ".wal").exists()
        ):
            return before
        time.sleep(_PAUSE_SECONDS)
    return None


def stamp(path: Path) -> Stamp | None:
    """Which version of a file it is; None if there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_mtime_ns, found.st_size


def _table(rows: Sequence[dict[str, object]]) -> pa.Table:
    """JSON rows as a table: times of windows as times, a column without values as text."""
    table = pa.Table.from_pylist(list(rows))
    for number, column in enumerate(table.schema):
        kind = column.type
        if column.name in ("window_start", "window_end"):
            kind = pa.timestamp("us")
        elif pa.types.is_null(kind):
            kind = pa.string()
        if kind != column.type:
            table = table.set_column(number, column.name, table.column(number).cast(kind))
    return table


def _write(folder: Path, trigger: int, table: pa.Table) -> None:
    """Whole or not at all: another request may list the folder."""
    target = folder / f"trigger-{trigger:012d}.parquet"
    temporary = target.with_suffix(".writing")
    pq.write_table(table, temporary, compression="zstd", row_group_size=8192)
    temporary.replace(target)
