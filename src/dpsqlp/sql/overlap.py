"""Whether two sources may read the same records, as far as their options tell.

Privacy contract: in doubt they may. Their privacy losses are then added up, which is never too
little.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from glob import escape, glob, has_magic
from itertools import takewhile
from pathlib import Path

from dpsqlp.errors import PlanError
from dpsqlp.sql.options import from_environment
from dpsqlp.sql.query import SourceDef

_MAGIC = re.compile(r"[*?\[]")


def shared_groups(sources: Sequence[SourceDef], folder: str) -> list[int]:
    """A group number for each source: equal if two may share records, directly or through others.

    Paths are relative to the folder.
    """
    groups = list(range(len(sources)))
    for later, source in enumerate(sources):
        for earlier in range(later):
            if may_share(source, sources[earlier], folder):
                merged, kept = groups[later], groups[earlier]
                groups = [kept if group == merged else group for group in groups]
    return groups


def may_share(one: SourceDef, other: SourceDef, folder: str) -> bool:
    """Whether a record may be read by both."""
    if one.name == other.name:
        return True
    if one.connector != other.connector:
        return False
    try:
        options = [from_environment(source.options) for source in (one, other)]
    except PlanError:  # a variable that is not set may have any value
        return True
    match one.connector:
        case "files":
            return _may_match(str(options[0]["path"]), str(options[1]["path"]), folder)
        case "kafka":  # a cluster has several addresses
            return options[0].get("topic") == options[1].get("topic")
        case "postgres":  # so has a server; a name without a schema is found in any
            names = {str(option.get("table")).rpartition(".")[2] for option in options}
            return len(names) == 1
    return True  # standard input, and batches from Python


def files_at(pattern: str, folder: str) -> set[Path]:
    """The files that match a pattern now."""
    path = os.path.join(escape(folder), pattern.removeprefix("file://"))
    try:
        return {Path(name).resolve() for name in glob(path, recursive=True) if Path(name).is_file()}
    except (OSError, ValueError):  # not a path
        return set()


def shared_file(names: Iterable[str], source: SourceDef, folder: str) -> str | None:
    """The first of some paths or patterns that matches a file of the source.

    A PlanError if the source's path has a variable that is not set.
    """
    if source.connector != "files":
        return None
    private = files_at(str(from_environment(source.options)["path"]), folder)
    return next((name for name in names if private & files_at(name, folder)), None)


def _may_match(one: str, other: str, folder: str) -> bool:
    """Whether two patterns may match the same file: their beginnings and ends agree, or they match
    the same file now.
    """
    (first, last), (head, tail) = _edges(one, folder), _edges(other, folder)
    begins = first.startswith(head) or head.startswith(first)
    ends = last.endswith(tail) or tail.endswith(last)
    return (begins and ends) or bool(files_at(one, folder) & files_at(other, folder))


def _edges(pattern: str, folder: str) -> tuple[str, str]:
    """The texts before the first and after the last wildcard; without one, the path twice.

    Links in front of the first wildcard are resolved.
    """
    parts = Path(pattern.removeprefix("file://")).parts
    plain = list(takewhile(lambda part: not has_magic(part), parts))
    base = os.path.realpath(os.path.join(folder, *plain))
    if len(plain) == len(parts):
        return base, base
    wild = parts[len(plain) :]
    if ".." in wild:  # which may lead anywhere
        return "", ""
    texts = _MAGIC.split("/".join(wild))
    return os.path.join(base, texts[0]), texts[-1].rpartition("]")[2]
