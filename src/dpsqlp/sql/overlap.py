"""Whether two sources may read the same records, as far as their options tell.

Privacy contract: in doubt they may. What they spend is then added up, which is never too little.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from glob import glob
from pathlib import Path

from dpsqlp.sql.query import SourceDef

_MAGIC = re.compile(r"[*?\[]")
_SAME = {"kafka": "topic", "postgres": "table"}  # brokers and servers have several names


def may_share(one: SourceDef, other: SourceDef) -> bool:
    """Whether a record may be read by both."""
    if one.name == other.name:
        return True
    if one.connector != other.connector:
        return False
    if one.connector == "files":
        return _may_match(str(one.options["path"]), str(other.options["path"]))
    named = _SAME.get(one.connector)
    return named is not None and one.options.get(named) == other.options.get(named)


def files_at(pattern: str, folder: str) -> set[Path]:
    """The files that a pattern has now."""
    path = os.path.join(folder, pattern.removeprefix("file://"))
    try:
        return {Path(name).resolve() for name in glob(path, recursive=True) if Path(name).is_file()}
    except (OSError, ValueError):  # no path at all
        return set()


def shared_file(names: Iterable[str], source: SourceDef, folder: str) -> str | None:
    """The first of some paths or patterns that has a file of a source."""
    if source.connector != "files":
        return None
    private = files_at(str(source.options["path"]), folder)
    return next((name for name in names if private & files_at(name, folder)), None)


def _may_match(one: str, other: str) -> bool:
    """Whether two patterns may name the same file: their beginnings and ends agree."""
    edges = [_edges(os.path.normpath(pattern)) for pattern in (one, other)]
    (first, last), (head, tail) = edges
    begins = first.startswith(head) or head.startswith(first)
    return begins and (last.endswith(tail) or tail.endswith(last))


def _edges(pattern: str) -> tuple[str, str]:
    """What stands before the first and after the last wildcard; both all of it without one."""
    parts = _MAGIC.split(pattern)
    if len(parts) == 1:
        return pattern, pattern
    return parts[0], parts[-1].rpartition("]")[2]
