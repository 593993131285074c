"""A ledger as text: JSON with a version and a checksum, written in one way only.

The checksum is of what the text says. It tells a ledger that was cut short or edited from one that
was written; it does not keep out a person who may write the ledger.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import types
from dataclasses import asdict, fields
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from dpsqlp.accounting.ledger import Budget, Entry, Ledger
from dpsqlp.errors import StateError

FORMAT = 1
_ID = re.compile(r"[0-9a-f]{32}")
_POSITIVE = ("epsilon", "delta", "squared_nu", "per_us", "period_us", "hop_us", "size_us")
_TYPES: dict[type, dict[str, Any]] = {kind: get_type_hints(kind) for kind in (Budget, Entry)}
T = TypeVar("T", Budget, Entry)


def text_of(ledger: Ledger) -> str:
    """The text of a ledger."""
    body = asdict(ledger)
    whole = {"format": FORMAT, "checksum": _checksum(body), "ledger": body}
    return json.dumps(whole, indent=1, allow_nan=False) + "\n"


def ledger_of(text: str, name: str) -> Ledger:
    """The ledger of a text; StateError unless `text_of` gives the same text again."""
    try:
        whole = json.loads(text)
        if isinstance(whole, dict) and whole.get("format", FORMAT) != FORMAT:
            raise StateError(
                f"The ledger {name} has another format than {FORMAT}. Use the version of dpsqlp"
                " that wrote it. Nothing was changed."
            )
        body = whole["ledger"]
        entries = tuple(_read(Entry, entry) for entry in body["entries"])
        ledger = Ledger(body["id"], _read(Budget, body["budget"]), entries)
        _check(ledger)
        if text_of(ledger) != text:
            raise ValueError("written in another way, or the checksum is another")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise StateError(
            f"The ledger {name} is damaged: it was cut short, or changed by another program."
            " Nothing was entered in it. Restore it from a copy made since the last entry; with an"
            " older copy, what was entered since would be forgotten."
        ) from error
    return ledger


def _checksum(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(body, allow_nan=False).encode()).hexdigest()


def _read(kind: type[T], values: dict[str, Any]) -> T:
    """A Budget or an Entry, each field of its type."""
    hints = _TYPES[kind]
    if values.keys() != {field.name for field in fields(kind)}:
        raise ValueError("fields")
    return kind(**{name: _value(name, value, hints[name]) for name, value in values.items()})


def _value(name: str, value: Any, kind: Any) -> Any:
    if get_origin(kind) is types.UnionType and value is None:
        return None
    if get_origin(kind) is tuple:  # the names of unit columns
        if not (isinstance(value, list) and value and all(type(v) is str for v in value)):
            raise ValueError(name)
        return tuple(value)
    known = get_args(kind) or (kind,)
    if type(value) not in known:  # True is no number
        raise ValueError(name)
    if isinstance(value, float) and not 0 <= value < math.inf:
        raise ValueError(name)
    if name in _POSITIVE and value <= 0:
        raise ValueError(name)
    return value


def _check(ledger: Ledger) -> None:
    """Refuse what `Ledger.enter` never makes."""
    ids = [ledger.id, *(entry.instance for entry in ledger.entries)]
    if len(set(ids)) < len(ids) or not all(_ID.fullmatch(each) for each in ids):
        raise ValueError("ids")
    for entry in ledger.entries:
        start, stop = entry.start_us, entry.stop_us
        if start is not None and stop is not None and start >= stop:
            raise ValueError("span")
        if entry.period_us is not None and (
            start is None or (stop is None and ledger.budget.per_us is None)
        ):
            raise ValueError("period")
        if entry.unit != ledger.entries[0].unit or (entry.hop_us is None) != (
            entry.size_us is None
        ):
            raise ValueError("unit or windows")
