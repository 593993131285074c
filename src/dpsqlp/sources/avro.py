"""Avro values as records: each value is decoded by itself, with the schema that wrote it."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import pyarrow as pa

from dpsqlp.clients.avro import Schemas, arrow_type, decode, fields
from dpsqlp.sources.columns import try_cast
from dpsqlp.sources.convert import fitted
from dpsqlp.sql import connect
from dpsqlp.sql.query import SourceDef
from dpsqlp.sql.quoting import quote_identifier


class AvroDecoder:
    """Decodes fields by name. A field that is missing or of another type is null."""

    def __init__(self, source: SourceDef, schema: pa.Schema, schemas: Schemas) -> None:
        self._source = source
        self._schema = schema
        self._schemas = schemas
        self._database = connect(config={"threads": 1})

    def named(self, values: list[bytes]) -> set[int]:
        """The ids of the schemas that values name."""
        return self._schemas.named(values)

    def known(self, numbers: Collection[int]) -> set[int]:
        """The ids of the schemas that the registry has."""
        return self._schemas.known(numbers)

    def __call__(
        self, values: list[bytes], known: Collection[int] = ()
    ) -> tuple[pa.Table, list[int]]:
        """The records of known schemas, and the indices of values that cannot be decoded."""
        bad: list[int] = []
        groups: dict[int, tuple[Any, list[Any]]] = {}  # by the schema's identity
        for place, part in enumerate(self._schemas.split(values, known)):
            record = None if part is None else decode(*part)
            if part is None or record is None:
                bad.append(place)
            else:
                groups.setdefault(id(part[0]), (part[0], []))[1].append(record)
        tables = [self._table(schema, records) for schema, records in groups.values()]
        return pa.concat_tables([self._schema.empty_table(), *tables]), bad

    def _table(self, schema: Any, records: list[Any]) -> pa.Table:
        """Records of one schema, cast to the source's columns."""
        known = fields(schema)
        columns = {}
        for name, _ in self._source.columns:
            field = known.get(name.lower())
            columns[name] = _column(field, records) if field else pa.nulls(len(records))
        self._database.register("records", pa.table(columns))
        query = f"SELECT {try_cast(self._source.columns, quote_identifier)} FROM records"
        return self._database.sql(query).to_arrow_table().cast(self._schema)


def _column(field: Any, records: list[Any]) -> pa.Array:
    """One field of all records; as text if the field has no single type."""
    kind = arrow_type(field["type"])
    values = [record[field["name"]] for record in records]
    if kind is None or kind == pa.string():
        kind, values = pa.string(), [_text(value) for value in values]
    return fitted(values, kind)


def _text(value: Any) -> str | None:
    if value is None or isinstance(value, str):
        return value
    as_json = isinstance(value, bool | int | float | list | dict)
    return json.dumps(value, default=str) if as_json else str(value)
