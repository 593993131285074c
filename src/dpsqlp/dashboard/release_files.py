"""Release files: a folder with one file per trigger, named by the trigger's number."""

from __future__ import annotations

import re
from pathlib import Path

_FILE = re.compile(r"trigger-(-?\d{1,18})\.(parquet|jsonl)")
FileVersion = tuple[int, int]  # modification time in nanoseconds, size in bytes


def parquet_name(trigger: int) -> str:
    """The name of a trigger's Parquet file."""
    return f"trigger-{trigger:012d}.parquet"


def trigger_files(folder: Path, suffix: str) -> dict[int, Path]:
    """The release files of a folder, by trigger."""
    files = {}
    for path in folder.iterdir():
        match = _FILE.fullmatch(path.name)
        if match is not None and match[2] == suffix:
            files[int(match[1])] = path
    return files


def file_version(path: Path) -> FileVersion | None:
    """Identifies the content of a file; None if the file does not exist."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return None
    return status.st_mtime_ns, status.st_size
