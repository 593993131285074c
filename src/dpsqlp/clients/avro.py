"""Avro: schemas by file or registry, values one at a time.

Values of a registry begin with a zero byte and the four bytes of their schema's number; without a
registry they are the bare encoding by one schema.

Privacy contract: the schema decides how a value is read, never the values beside it. Which schema
a value names is data: whatever a registry answers to one number, others are read as without it.
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
    raise DpsqlpError("Avro is not installed. Run `pip install 'dpsqlp[kafka]'`.") from None

_MAGIC = b"\0"
_HEADER = 5
_TYPES_MAX = 10_000
_NUMBERS = 1 << 31
_NO_SCHEMA, _PASSING = (400, 404, 422), (408, 429)  # registries differ
_ASKING = {"timeout": 10, "max.retries": 1, "retries.wait.ms": 100}  # unless options say otherwise
_DENIED = (401, 403)
_AWAY_SECONDS = 3600.0  # then the numbers that are not known are those of no schema
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
    """A schema that values are not read by."""


def parsed(text: str) -> Any:
    """A schema for reading: a record, and nothing by which a few bytes could become a lot.

    A type within itself is as deep as a value says, an array of things without bytes as long, and
    types of types of types as many; any could end the process, and one value must not.
    """
    try:
        schema = fastavro.parse_schema(json.loads(text))
        if not isinstance(schema, dict) or schema.get("type") != "record":
            raise UnusableError("it is no record")
        _Walk().has_bytes(schema)
    except UnusableError:
        raise
    except Exception as error:  # whatever a text makes the parser do
        raise UnusableError(str(error)) from None
    return schema


class _Walk:
    """Looks at every type of a schema, as often as a value would have it."""

    def __init__(self) -> None:
        self._known: dict[str, Any] = {}
        self._left = _TYPES_MAX

    def has_bytes(self, schema: Any, within: tuple[str, ...] = ()) -> bool:
        """Whether values of a type always have bytes; refuses what could grow."""
        self._left -= 1
        if self._left < 0:
            raise UnusableError("it is too large")
        if isinstance(schema, list):  # a union's value has the number of its choice
            for part in schema:
                self.has_bytes(part, within)
            return True
        if isinstance(schema, str):
            if schema in within:
                raise UnusableError(f"the type {schema} is within itself")
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
            raise UnusableError("it has an array of things without bytes")
        if kind == "map":
            self.has_bytes(schema["values"], within)
        if kind == "fixed":
            return bool(schema["size"] > 0)
        return True if kind in ("array", "map", "enum") else self.has_bytes(kind, within)


class Registry:
    """A schema registry; its client's settings are options named registry.*."""

    def __init__(self, options: Mapping[str, OptionValue], error: type[DpsqlpError]) -> None:
        """`error` is raised for what waiting does not heal."""
        address = str(options["schema_registry"])
        place = urlsplit(address)
        self._shown = f"{place.hostname}:{place.port}" if place.port else str(place.hostname)
        self._error = error
        passed = [name for name in options if name.startswith("registry.")]
        settings = {name.removeprefix("registry."): options[name] for name in passed}
        self._settings = {"url": address, **_ASKING, **settings}
        self._client = self._connect()
        self._known: dict[int, Any] = {}
        self._away_since: float | None = None

    def has(self, number: int) -> bool:
        """Whether there is a schema of this number, for now.

        A number that is refused while the registry answers to others is that of no schema. A
        registry that answers to none is waited for, but not for ever: a value that names a new
        number would stop all others.
        """
        try:
            return self._look(number)
        except UnavailableError:
            now = time.monotonic()
            self._away_since = now if self._away_since is None else self._away_since
            if now < self._away_since + _AWAY_SECONDS:
                raise
            return False

    def schema(self, number: int) -> Any:
        """A schema that there was; None if values are not read by it."""
        if not self._look(number):
            raise UnavailableError(
                f"The schema registry {self._shown} no longer has a schema that it had when the"
                " trigger began. Bring it back. Nothing is lost."
            )
        return self._known[number]

    def _look(self, number: int) -> bool:
        """Whether there is a schema; raises if the registry is away."""
        if number in self._known:
            return True
        try:
            text = str(self._client.get_schema(number).schema_str)
        except Exception as problem:
            code = getattr(problem, "http_status_code", None)
            if code in _NO_SCHEMA or (code not in _PASSING and self._answers()):
                self._away_since = None
                return False
            said = f" refuses ({code})" if code in _DENIED else " does not answer"
            raise UnavailableError(
                f"The schema registry {self._shown}{said}. Check it and the options registry.*."
                " Nothing is lost."
            ) from None
        self._away_since = None
        try:
            self._known[number] = parsed(text)
        except UnusableError:
            self._known[number] = None
        return True

    def _answers(self) -> bool:
        """Whether the registry answers to what it answered before, or to what names no schema."""
        client = self._connect()  # the other remembers answers
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
            text = f"The schema registry's client does not take an option: {error}."
            raise PlanError(text) from None

    def header(self, subject: str, schema: Any) -> bytes:
        """What the values of a schema begin with, after it was registered."""
        try:
            number = self._client.register_schema(subject, Schema(json.dumps(schema), "AVRO"))
        except Exception as problem:
            raise self._refused(problem) from None
        return _MAGIC + int(number).to_bytes(_HEADER - 1, "big")

    def _refused(self, problem: Exception) -> DpsqlpError:
        """To be waited for, or not."""
        code = getattr(problem, "http_status_code", None)
        if isinstance(code, int) and 400 <= code < 500 and code not in _PASSING:
            return self._error(
                f"The schema registry {self._shown} refuses ({code}). Check the options registry.*"
                " and what it says of the subject. Nothing is lost."
            )
        return UnavailableError(
            f"The schema registry {self._shown} does not answer. Nothing is lost."
        )


class Schemas:
    """The schemas a source's values were written with."""

    def __init__(self, options: Mapping[str, OptionValue], folder: Path) -> None:
        """One in a file, or those of a registry."""
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
                self._only = parsed(file.read_text())
            except (OSError, ValueError) as error:
                raise PlanError(f"The Avro schema {file} cannot be used: {error}.") from None

    def named(self, values: Iterable[bytes]) -> set[int]:
        """The numbers that values name."""
        if self._registry is None:
            return set()
        return {n for n in map(_number, values) if n is not None}

    def known(self, numbers: Iterable[int]) -> set[int]:
        """The numbers of schemas that the registry has, for now."""
        if self._registry is None:
            return set()
        return {n for n in numbers if self._registry.has(n)}

    def split(
        self, values: Sequence[bytes], known: Collection[int]
    ) -> list[tuple[Any, bytes] | None]:
        """The schema, one of those known, and the body of each value; None if there is none."""
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
    """The number of a value's schema; None if no schema can have it."""
    framed = value[:1] == _MAGIC and len(value) >= _HEADER
    number = int.from_bytes(value[1:_HEADER], "big")
    return number if framed and number < _NUMBERS else None


def decode(schema: Any, body: bytes) -> dict[str, Any] | None:
    """A record; None if the bytes are none of this schema."""
    stream = io.BytesIO(body)
    try:
        read = fastavro.schemaless_reader(stream, schema, None)
    except Exception:  # whatever the bytes made the decoder do
        return None
    return read if isinstance(read, dict) and not stream.read(1) else None


def arrow_type(schema: Any) -> pa.DataType | None:
    """The Arrow type of an Avro type; None for what Arrow has no single type for."""
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
    """Released rows as Avro, with the header of a registry."""

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
            raise PlanError(f"A column cannot be named so in Avro: {error}. Use AS.") from None
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
    """The columns as Avro can have them: integers fit, times are UTC, the rest is text."""
    places = [f"c{place}" for place in range(release.num_columns)]
    columns = [_cast(*column) for column in zip(places, release.schema.types, strict=True)]
    with connect() as database:
        database.register("release", release.rename_columns(places))
        table = database.sql(f"SELECT {', '.join(columns)} FROM release").to_arrow_table()
    return table.rename_columns(release.column_names)


def _cast(name: str, kind: pa.DataType) -> str:
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
    """Dates and times as numbers: not all are in Python's calendar, and some are infinite."""
    if pa.types.is_date(kind):
        return pa.int32()
    return pa.int64() if pa.types.is_timestamp(kind) else kind


def _avro_type(kind: pa.DataType) -> Any:
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
