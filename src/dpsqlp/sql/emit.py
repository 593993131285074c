"""Time in SQL: intervals, windows and EMIT, as microseconds on the public clock (UTC)."""

from __future__ import annotations

from datetime import UTC, datetime
from fractions import Fraction

from sqlglot import exp

from dpsqlp.sql.dialect import EmitClause
from dpsqlp.sql.location import Text
from dpsqlp.sql.query import Emit, Hop, SourceDef, Tumble

TRIGGERS_MAX = 2**20
_SECOND = 10**6
_UNITS = {
    "MICROSECOND": 1,
    "MILLISECOND": 1000,
    "SECOND": _SECOND,
    "MINUTE": 60 * _SECOND,
    "HOUR": 3600 * _SECOND,
    "DAY": 86400 * _SECOND,
    "WEEK": 7 * 86400 * _SECOND,
}
_ALIASES = {"MIN": "MINUTE", "SEC": "SECOND", "US": "MICROSECOND", "MS": "MILLISECOND"}
_TRUNCATED = ("SECOND", "MINUTE", "HOUR", "DAY")
_SESSIONS = ("SESSION", "SESSION_START", "SESSIONIZE")


def interval_us(text: Text, node: exp.Expr) -> int:
    """The length of a fixed, positive interval."""
    if not isinstance(node, exp.Interval):
        raise text.refuse(
            node, "An interval is expected here", "Write, for example, INTERVAL 15 MINUTES."
        )
    parts = _parts(node)
    total = Fraction(0)
    for amount, unit in parts or []:
        name = _unit(unit)
        if name in ("MONTH", "YEAR", "QUARTER", "DECADE", "CENTURY", "MILLENNIUM"):
            raise text.refuse(
                node,
                f"An interval in {name.lower()}s has no fixed length",
                "Give it in days or less, for example INTERVAL 30 DAYS.",
            )
        if name not in _UNITS:
            parts = None
            break
        total += amount * _UNITS[name]
    if not parts:
        raise text.refuse(
            node, "The interval cannot be read", "Write, for example, INTERVAL 15 MINUTES."
        )
    if total <= 0 or total.denominator != 1:
        raise text.refuse(
            node,
            "An interval is a positive whole number of microseconds",
            "Give a longer interval.",
        )
    return int(total)


def _parts(node: exp.Interval) -> list[tuple[Fraction, str]] | None:
    """(amount, unit) pairs: INTERVAL 1 DAY, INTERVAL '1' DAY, INTERVAL '1 day 2 hours'."""
    amount, unit = node.this, node.args.get("unit")
    if amount is None:
        return None
    words = str(amount.name).split()
    if isinstance(unit, exp.Var):
        words = [*words, unit.name]
    if not isinstance(amount, exp.Literal) or len(words) % 2 or not words:
        return None
    try:
        return [(Fraction(n), u) for n, u in zip(words[::2], words[1::2], strict=True)]
    except ValueError:
        return None


def _unit(word: str) -> str:
    word = word.upper()
    word = word[:-1] if word.endswith("S") and word not in _ALIASES else word
    return _ALIASES.get(word, word)


def as_window(text: Text, node: exp.Expr) -> tuple[Tumble | Hop, exp.Expr] | None:
    """The window that a grouping expression stands for, and its timestamp; None if none."""
    if isinstance(node, exp.Anonymous):
        name = str(node.this).upper()
        if name in _SESSIONS:
            raise text.refuse(
                node,
                "Session windows open and close by the data, so they cannot be protected",
                "Use TUMBLE(ts, INTERVAL ...) or HOP(ts, hop, size).",
            )
        if name == "TUMBLE":
            if len(node.expressions) != 2:
                raise text.refuse(
                    node,
                    "TUMBLE takes a timestamp and a size",
                    "Write TUMBLE(ts, INTERVAL 1 DAY).",
                )
            return Tumble(interval_us(text, node.expressions[1])), node.expressions[0]
        if name == "HOP":
            return _hop(text, node)
        if name == "TO_DATE" and len(node.expressions) == 1:
            return Tumble(_UNITS["DAY"]), node.expressions[0]
        return None
    if isinstance(node, exp.TimestampTrunc | exp.DateTrunc):
        unit = node.args.get("unit")
        return Tumble(_truncation(text, node, "" if unit is None else unit.name)), node.this
    if isinstance(node, exp.Cast) and not isinstance(node, exp.TryCast):
        is_date = node.to.this == exp.DType.DATE
        return (Tumble(_UNITS["DAY"]), node.this) if is_date else None
    if isinstance(node, exp.Date | exp.TsOrDsToDate) and node.this is not None:
        return Tumble(_UNITS["DAY"]), node.this
    return None


def _hop(text: Text, node: exp.Anonymous) -> tuple[Hop, exp.Expr]:
    if len(node.expressions) != 3:
        raise text.refuse(
            node,
            "HOP takes a timestamp, a hop and a size",
            "Write HOP(ts, INTERVAL 1 HOUR, INTERVAL 1 DAY).",
        )
    timestamp, hop, size = node.expressions
    window = Hop(size_us=interval_us(text, size), hop_us=interval_us(text, hop))
    if window.hop_us > window.size_us:
        raise text.refuse(
            node,
            "The hop is longer than the window, which would leave out records",
            "The order is HOP(ts, hop, size): exchange the two intervals.",
        )
    return window, timestamp


def _truncation(text: Text, node: exp.Expr, unit: str) -> int:
    name = _unit(unit)
    if name in _TRUNCATED:
        return _UNITS[name]
    way_out = "Truncate to second, minute, hour or day, or use TUMBLE(ts, INTERVAL ...)."
    if name.startswith(("WEEK", "ISOWEEK")):
        way_out = (
            "Use TUMBLE(ts, INTERVAL 7 DAY): windows are counted from 1970-01-01, so they start on"
            " Thursdays."
        )
    elif name in ("MONTH", "YEAR", "QUARTER"):
        way_out = "Windows have a fixed length: use, for example, TUMBLE(ts, INTERVAL 30 DAY)."
    raise text.refuse(node, f"A window of a {name.lower()} is not supported", way_out)


def read_emit(
    text: Text, select: exp.Select, window: Tumble | Hop | None, source: SourceDef
) -> Emit:
    """The EMIT clause, checked against the window and the source."""
    clause = select.args.get("emit")
    if not isinstance(clause, EmitClause):
        raise text.refuse(
            select,
            "EMIT is missing: it says when releases are made, and each costs privacy",
            "End the query with, for example, EMIT EVERY INTERVAL 15 MINUTES.",
        )
    interval = interval_us(text, clause.this)
    lateness = clause.args.get("lateness")
    emit = Emit(
        interval_us=interval,
        on_event_time=bool(clause.args.get("event_time")),
        triggers=_read_triggers(text, clause, window),
        lateness_us=0 if lateness is None else interval_us(text, lateness),
        start_us=_timestamp_us(text, clause.args.get("start")),
        stop_us=_timestamp_us(text, clause.args.get("stop")),
    )
    if window is None and lateness is not None:
        raise text.refuse(
            lateness,
            "Without a window nothing closes, so no record is late",
            "Leave ALLOW LATENESS out, or group by a window.",
        )
    _check_divides(text, clause, emit, window)
    if emit.on_event_time:
        _check_replay(text, clause, emit, window, source)
    triggers = emit.triggers
    if window is not None:
        triggers = (window.size_us + emit.lateness_us) // interval
    assert triggers is not None
    if triggers > TRIGGERS_MAX:
        raise text.refuse(
            clause,
            f"A window would have {triggers} triggers; at most {TRIGGERS_MAX} are supported",
            "Emit less often, or make the window or the lateness shorter.",
        )
    return emit


def _read_triggers(text: Text, clause: exp.Expr, window: Tumble | Hop | None) -> int | None:
    node = clause.args.get("triggers")
    if node is None:
        if window is None:
            raise text.refuse(
                clause,
                "There is neither a window nor FOR n TRIGGERS, so the number of releases would be"
                " unlimited",
                "Add FOR n TRIGGERS, or group by TUMBLE(ts, INTERVAL ...).",
            )
        return None
    if window is not None:
        raise text.refuse(
            node,
            "FOR n TRIGGERS is for queries without a window; with one, the number of triggers is"
            " (window + lateness) / interval",
            "Leave FOR n TRIGGERS out.",
        )
    if not (isinstance(node, exp.Literal) and node.is_int and int(node.name) > 0):
        raise text.refuse(
            node,
            "FOR n TRIGGERS needs a whole number above 0",
            "Write, for example, FOR 96 TRIGGERS.",
        )
    return int(node.name)


def _check_divides(text: Text, clause: exp.Expr, emit: Emit, window: Tumble | Hop | None) -> None:
    """Every edge of a window lies on a trigger."""
    lengths = {"lateness": emit.lateness_us}
    if window is not None:
        lengths = {"window": window.size_us, "hop": window.hop_us, **lengths}
    for name, length in lengths.items():
        if length % emit.interval_us:
            raise text.refuse(
                clause.this,
                f"The interval ({duration(emit.interval_us)}) does not divide the {name}"
                f" ({duration(length)})",
                f"Choose an interval that fits a whole number of times into the {name}.",
            )


def _check_replay(
    text: Text, clause: exp.Expr, emit: Emit, window: Tumble | Hop | None, source: SourceDef
) -> None:
    """ON EVENT TIME is for finished history, from a public start."""
    if not source.bounded:
        follows = source.connector == "files"
        what = "connector 'files' with follow = true" if follows else f"{source.connector!r}"
        raise text.refuse(
            clause.args["event_time"],
            f"ON EVENT TIME replays finished history; the source {source.name} ({what}) is"
            " unbounded, so its triggers would depend on who sends records",
            "Leave ON EVENT TIME out to emit by the clock"
            + (
                ", or set follow = false."
                if follows
                else ", or replay files or, from Python, frames."
            ),
        )
    if window is None and emit.start_us is None:
        raise text.refuse(
            clause.args["event_time"],
            "Without a window the first trigger has no public event time",
            "Write ON EVENT TIME FROM TIMESTAMP '2024-01-01 00:00:00'; do not take it from the"
            " data.",
        )
    if window is not None and (emit.start_us is None or emit.stop_us is None):
        raise text.refuse(
            clause.args["event_time"],
            "Replaying history needs its public bounds",
            "Write ON EVENT TIME FROM TIMESTAMP '2024-01-01' TO TIMESTAMP '2024-02-01'; do not take"
            " them from the data.",
        )
    for name, at in (("start", emit.start_us), ("stop", emit.stop_us)):
        if at is not None and window is not None and at % emit.interval_us:
            raise text.refuse(
                clause.args[name],
                f"The {name} is not on the grid of triggers, which counts from 1970-01-01 UTC",
                f"Choose a multiple of the interval ({duration(emit.interval_us)}).",
            )
    if emit.start_us is not None and emit.stop_us is not None and emit.stop_us <= emit.start_us:
        raise text.refuse(
            clause.args["stop"], "The replay stops before it starts", "Give a later TO."
        )


def _timestamp_us(text: Text, node: exp.Expr | None) -> int | None:
    if node is None:
        return None
    try:
        moment = datetime.fromisoformat(node.this.name)
    except ValueError:
        raise text.refuse(
            node,
            "The timestamp cannot be read",
            "Write it as TIMESTAMP '2024-01-01 00:00:00' (UTC).",
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    delta = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (delta.days * 86400 + delta.seconds) * _SECOND + delta.microseconds


def duration(us: int) -> str:
    """A length of time in words, exactly."""
    for name in ("DAY", "HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND"):
        count, rest = divmod(us, _UNITS[name])
        if not rest:
            return f"{count} {name.lower()}{'' if count == 1 else 's'}"
    raise AssertionError("microseconds divide everything")
