"""Avro: schemas from a file or a registry; values are read and written one at a time.

With a registry, a value begins with a zero byte and the four bytes of its schema id; without one, a
value is the plain encoding of a single schema.

Privacy contract: how a value is read depends on its schema, never on other values. The schema id of
a value is data: the registry's answer to one id does not change how values with other ids are read.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa

from dpsqlp.errors import DpsqlpError, PlanError, SinkError, SourceError, UnavailableError
from dpsqlp.sql import connect
from dpsqlp.sql.query import OptionValue

try:
    import fastavro
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
except ImportError:
    raise DpsqlpError(
        "The Avro library is not installed. Run `pip install 'dpsqlp[kafka]'`."
    ) from None

_MAGIC = b"\0"
_HEADER = 5
_TYPES_MAX = 10_000
_NUMBERS = 1 << 31
_NO_SCHEMA, _TRANSIENT = (400, 404, 422), (408, 429)  # depending on the registry
_CLIENT_SETTINGS = {"timeout": 10, "max.retries": 1, "retries.wait.ms": 100}  # defaults
_DENIED = (401, 403)
_AWAY_SECONDS = 3600.0  # after that, unknown ids count as ids of no schema
_ARROW = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "enum": pa.string(),
}
_LOGICAL = {
    "date": pa.date32(),
    "time-millis": pa.time64("us"),
    "time-micros": pa.time64("us"),
    "timestamp-millis": pa.timestamp("us", "UTC"),
    "timestamp-micros": pa.timestamp("us", "UTC"),
    "local-timestamp-millis": pa.timestamp("us"),
    "local-timestamp-micros": pa.timestamp("us"),
    "uuid": pa.string(),
}


class UnusableError(ValueError):
    """A schema that is not used for reading values."""


def parse_schema(text: str) -> Any:
    """A schema for reading: a record by which a few bytes cannot become a large value.

    Refused are recursive types, which a value can nest as deeply as it likes, arrays of items
    without bytes, which it can make as long as it likes, and schemas with very many types. Each of
    them would let one value end the process.
    """
    try:
        schema = fastavro.parse_schema(json.loads(text))
        if not isinstance(schema, dict) or schema.get("type") != "record":
            raise UnusableError("it is not a record")
        _SchemaCheck().has_bytes(schema)
    except UnusableError:
        raise
    except Exception as error:  # the parser may fail in any way
        raise UnusableError(str(error)) from None
    return schema


class _SchemaCheck:
    """Visits every type of a schema, as often as it occurs in a value."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}
        self._left = _TYPES_MAX

    def has_bytes(self, schema: Any, within: tuple[str, ...] = ()) -> bool:
        """Whether values of a type always have bytes; refuses types that could grow."""
        self._left -= 1
        if self._left < 0:
            raise UnusableError("it is too large")
        if isinstance(schema, list):  # a union's value always has the index of its branch
            for part in schema:
                self.has_bytes(part, within)
            return True
        if isinstance(schema, str):
            if schema in within:
                raise UnusableError(f"the type {schema} is recursive")
            known = self._known.get(schema)
            return schema != "null" if known is None else self.has_bytes(known, within)
        return self._compound_has_bytes(schema, within)

    def _compound_has_bytes(self, schema: Any, within: tuple[str, ...]) -> bool:
        kind = schema["type"]
        if "name" in schema:
            self._known[schema["name"]] = schema
        if kind == "record":
            inside = (*within, schema["name"])
            found = [self.has_bytes(field["type"], inside) for field in schema["fields"]]
            return any(found)
        if kind == "array" and not self.has_bytes(schema["items"], within):
            raise UnusableError("it has an array of items without bytes")
        if kind == "map":
            self.has_bytes(schema["values"], within)
        if kind == "fixed":
            return bool(schema["size"] > 0)
        return True if kind in ("array", "map", "enum") else self.has_bytes(kind, within)


class Registry:
    """A schema registry. Options named registry.* are passed to its client."""

    def __init__(self, options: Mapping[str, OptionValue], error: type[DpsqlpError]) -> None:
        """`error` is raised for permanent errors."""
        address = str(options["schema_registry"])
        place = urlsplit(address)
        self._address = f"{place.hostname}:{place.port}" if place.port else str(place.hostname)
        self._error = error
        passed = [name for name in options if name.startswith("registry.")]
        settings = {name.removeprefix("registry."): options[name] for name in passed}
        self._settings = {"url": address, **_CLIENT_SETTINGS, **settings}
        self._client = self._connect()
        self._known: dict[int, Any] = {}
        self._away_since: float | None = None

    def has(self, number: int) -> bool:
        """Whether there is a schema with this id, for now.

        An id that the registry refuses while it answers to others has no schema. A registry that
        does not answer at all is waited for, but not forever: one value with a new id would stop
        all others.
        """
        try:
            return self._look_up(number)
        except UnavailableError:
            now = time.monotonic()
            self._away_since = now if self._away_since is None else self._away_since
            if now < self._away_since + _AWAY_SECONDS:
                raise
            return False

    def schema(self, number: int) -> Any:
        """The schema of a known id; None if it is not used for reading values."""
        if not self._look_up(number):
            raise UnavailableError(
                f"The schema registry {self._address} no longer has a schema that it had when the"
                " trigger began. Restore the schema. Nothing is lost."
            )
        return self._known[number]

    def _look_up(self, number: int) -> bool:
        """Whether there is a schema; raises UnavailableError if the registry does not answer."""
        if number in self._known:
            return True
        try:
            text = str(self._client.get_schema(number).schema_str)
        except Exception as problem:
            code = getattr(problem, "http_status_code", None)
            if code in _NO_SCHEMA or (code not in _TRANSIENT and self._answers()):
                self._away_since = None
                return False
            said = f" refuses ({code})" if code in _DENIED else " does not answer"
            raise UnavailableError(
                f"The schema registry {self._address}{said}. Check it and the options registry.*."
                " Nothing is lost."
            ) from None
        self._away_since = None
        try:
            self._known[number] = parse_schema(text)
        except UnusableError:
            self._known[number] = None
        return True

    def _answers(self) -> bool:
        """Whether the registry answers to a request that worked before, or needs no schema."""
        client = self._connect()  # the other client caches answers
        try:
            if self._known:
                client.get_schema(min(self._known))
            else:
                client.get_config()
        except Exception as problem:
            code = getattr(problem, "http_status_code", None)
            return code in _NO_SCHEMA
        return True

    def _connect(self) -> SchemaRegistryClient:
        try:
            return SchemaRegistryClient(self._settings)
        except (ValueError, TypeError) as error:
            text = f"The schema registry's client refuses an option: {error}."
            raise PlanError(text) from None

    def header(self, subject: str, schema: Any) -> bytes:
        """Register a schema, and return the first bytes of its values."""
        try:
            number = self._client.register_schema(subject, Schema(json.dumps(schema), "AVRO"))
        except Exception as problem:
            raise self._as_error(problem) from None
        return _MAGIC + int(number).to_bytes(_HEADER - 1, "big")

    def _as_error(self, problem: Exception) -> DpsqlpError:
        """A client's error as ours: UnavailableError if it is to be retried."""
        code = getattr(problem, "http_status_code", None)
        if isinstance(code, int) and 400 <= code < 500 and code not in _TRANSIENT:
            return self._error(
                f"The schema registry {self._address} refuses ({code}). Check the options"
                " registry.* and the subject's compatibility settings. Nothing is lost."
            )
        return UnavailableError(
            f"The schema registry {self._address} does not answer. Nothing is lost."
        )


class Schemas:
    """The schemas of a source's values."""

    def __init__(self, options: Mapping[str, OptionValue], folder: Path) -> None:
        """One schema from a file, or those of a registry."""
        if ("schema" in options) == ("schema_registry" in options):
            raise PlanError(
                "format = 'avro' needs either schema = 'file.avsc' or schema_registry ="
                " 'http://...', and not both."
            )
        registry = "schema_registry" in options
        self._registry = Registry(options, SourceError) if registry else None
        if self._registry is None:
            file = folder / str(options["schema"])
            try:
                self._only = parse_schema(file.read_text())
            except (OSError, ValueError) as error:
                raise PlanError(f"The Avro schema {file} cannot be used: {error}.") from None

    def named(self, values: Iterable[bytes]) -> set[int]:
        """The schema ids of values."""
        if self._registry is None:
            return set()
        return {n for n in map(_number, values) if n is not None}

    def known(self, numbers: Iterable[int]) -> set[int]:
        """The ids for which the registry has a schema, for now."""
        if self._registry is None:
            return set()
        return {n for n in numbers if self._registry.has(n)}

    def split(
        self, values: Sequence[bytes], known: Collection[int]
    ) -> list[tuple[Any, bytes] | None]:
        """The schema and the body of each value; None if its id is not known."""
        if self._registry is None:
            return [(self._only, value) for value in values]
        numbers = [_number(value) for value in values]
        schemas: dict[int | None, Any] = {
            n: self._registry.schema(n) for n in set(known).intersection(numbers)
        }
        return [
            None if schema is None else (schema, value[_HEADER:])
            for schema, value in zip(map(schemas.get, numbers), values, strict=True)
        ]


def _number(value: bytes) -> int | None:
    """The schema id of a value; None if it cannot be one."""
    framed = value[:1] == _MAGIC and len(value) >= _HEADER
    number = int.from_bytes(value[1:_HEADER], "big")
    return number if framed and number < _NUMBERS else None


def decode(schema: Any, body: bytes) -> dict[str, Any] | None:
    """The record; None if the bytes do not fit the schema."""
    stream = io.BytesIO(body)
    try:
        read = fastavro.schemaless_reader(stream, schema, None)
    except Exception:  # the decoder may fail in any way
        return None
    return read if isinstance(read, dict) and not stream.read(1) else None


def arrow_type(schema: Any) -> pa.DataType | None:
    """The Arrow type of an Avro type; None if Arrow has no single type for it."""
    if isinstance(schema, list):
        others = [part for part in schema if part != "null"]
        return arrow_type(others[0]) if len(others) == 1 else None
    if not isinstance(schema, dict):
        return _ARROW.get(schema)
    logical = schema.get("logicalType")
    if logical == "decimal":
        precision, scale = schema.get("precision") or 0, schema.get("scale") or 0
        return pa.decimal128(precision, scale) if 1 <= precision <= 38 else None
    return _LOGICAL.get(str(logical)) or _ARROW.get(schema["type"])


def fields(schema: Any) -> dict[str, Any]:
    """The fields of a record schema, by name in lower case."""
    return {field["name"].lower(): field for field in schema["fields"]}


class Encoder:
    """Encodes released rows as Avro values, with the registry's header."""

    def __init__(self, options: Mapping[str, OptionValue], topic: str) -> None:
        if "schema_registry" not in options:
            raise PlanError(
                "A sink with format = 'avro' needs schema_registry = 'http://...', so that readers"
                " know the schema."
            )
        self._registry = Registry(options, SinkError)
        self._topic = topic

    def __call__(self, release: pa.Table) -> list[bytes]:
        """A value for each row."""
        table = _released(release)
        kinds = [{"name": f.name, "type": ["null", _avro_type(f.type)]} for f in table.schema]
        schema = {"type": "record", "name": "release", "namespace": "dpsqlp", "fields": kinds}
        try:
            written = fastavro.parse_schema(schema)
        except fastavro.schema.SchemaParseException as error:
            raise PlanError(
                f"Avro refuses the name of a column: {error}. Rename it with AS."
            ) from None
        header = self._registry.header(f"{self._topic}-value", schema)
        values = []
        numbers = pa.schema([field.with_type(_plain(field.type)) for field in table.schema])
        for row in table.cast(numbers).to_pylist():
            stream = io.BytesIO(header)
            stream.seek(_HEADER)
            fastavro.schemaless_writer(stream, written, row)
            values.append(stream.getvalue())
        return values


def _released(release: pa.Table) -> pa.Table:
    """The columns in types that Avro has: wide integers, UTC times, texts for the rest."""
    places = [f"c{place}" for place in range(release.num_columns)]
    columns = [_cast(*column) for column in zip(places, release.schema.types, strict=True)]
    with connect() as database:
        database.register("release", release.rename_columns(places))
        table = database.sql(f"SELECT {', '.join(columns)} FROM release").to_arrow_table()
    return table.rename_columns(release.column_names)


def _cast(name: str, kind: pa.DataType) -> str:
    if pa.types.is_list(kind):  # of integers or doubles
        return name
    if pa.types.is_uint64(kind):
        return f"CAST({name} AS DECIMAL(20, 0))"
    if pa.types.is_integer(kind):
        return f"CAST({name} AS BIGINT)"
    if pa.types.is_floating(kind):
        return f"CAST({name} AS DOUBLE)"
    if pa.types.is_timestamp(kind) and kind.unit != "ns":
        return f"CAST({name} AS TIMESTAMPTZ)"
    known = (pa.types.is_boolean, pa.types.is_date, pa.types.is_decimal, pa.types.is_binary)
    return name if any(is_kind(kind) for is_kind in known) else f"CAST({name} AS VARCHAR)"


def _plain(kind: pa.DataType) -> pa.DataType:
    """Dates and times as numbers: some are infinite or outside Python's calendar."""
    if pa.types.is_date(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def _avro_type(kind: pa.DataType) -> Any:
    if pa.types.is_list(kind):
        return {"type": "array", "items": _avro_type(kind.value_type)}
    if pa.types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros"}
    if pa.types.is_date(kind):
        return {"type": "int", "logicalType": "date"}
    if pa.types.is_decimal(kind):
        precision = 39 if kind == pa.decimal128(38, 0) else kind.precision  # it may be a HUGEINT
        decimal = {"precision": precision, "scale": kind.scale}
        return {"type": "bytes", "logicalType": "decimal", **decimal}
    return {pa.bool_(): "boolean", pa.int64(): "long", pa.float64(): "double"}.get(
        kind, "bytes" if pa.types.is_binary(kind) else "string"
    )
