"""The OpenAPI description of the API, written by hand. The tests check the API against it."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

from dpsqlp.dashboard.download import FORMATS, MEDIA_TYPES, ROWS_MAX

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_WHOLE: Schema = {"type": "integer"}
_NUMBER: Schema = {"type": "number"}
_TIME: Schema = {"type": "string", "format": "date-time"}
_KEY: Schema = {"type": "array", "items": {"type": ["string", "null"]}}


def _ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _or_null(schema: Schema) -> Schema:
    if "$ref" in schema:
        return {"anyOf": [schema, {"type": "null"}]}
    return schema | {"type": [schema["type"], "null"]}


def _list(schema: Schema) -> Schema:
    return {"type": "array", "items": schema}


def _object(**fields: Schema) -> Schema:
    return {"type": "object", "properties": fields, "required": sorted(fields)}


def _parameter(name: str, schema: Schema, text: str, **more: Any) -> Schema:
    return {"name": name, "in": "query", "schema": schema, "description": text, **more}


_WINDOW_START = _parameter(
    "window",
    {"type": "integer", "minimum": -(10**17), "maximum": 10**17},
    "Start of the window in microseconds since 1970 (UTC). Default: the newest window with rows.",
)
_KEYS_QUERY = [
    _WINDOW_START,
    _parameter("search", {"type": "string", "maxLength": 200}, "Part of a key, case-insensitive."),
    _parameter(
        "order",
        {"type": "string", "maxLength": 200},
        "`key` or the name of an aggregate. Default: the first aggregate.",
    ),
    _parameter(
        "direction", {"type": "string", "enum": ["desc", "asc"]}, "Sort direction. Default: `desc`."
    ),
    _parameter("page", {"type": "integer", "minimum": 1, "maximum": 10**6}, "Page number, from 1."),
    _parameter(
        "size", {"type": "integer", "minimum": 1, "maximum": 100}, "Rows per page. Default: 50."
    ),
]
_WINDOWS_COMPARED = _parameter(
    "windows",
    {"type": "integer", "minimum": 1, "maximum": 8},
    "Number of windows. Default: 4.",
)
_KEY_ID = _parameter(
    "id",
    {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    "The key's id, as in `/keys`: the first 32 hexadecimal digits of the SHA-256 of the key"
    " columns, as texts, in a JSON array without spaces.",
    required=True,
)
_ROWS = _parameter(
    "size",
    {"type": "integer", "minimum": 1, "maximum": ROWS_MAX},
    f"Rows per page. Default: {ROWS_MAX}.",
)
_FORMAT = _parameter(
    "format",
    {"type": "string", "enum": list(FORMATS)},
    "Default: `csv`, with texts that no"
    " spreadsheet takes for a formula: see the documentation. `parquet` has the rows as they are.",
)
_KEYS_FILE_QUERY = [*(p for p in _KEYS_QUERY if p["name"] != "size"), _ROWS, _FORMAT]
_PAGE: dict[str, Schema] = {
    "trigger": _or_null(_WHOLE),
    "due": _or_null(_TIME),
    "window": _or_null(_ref("Window")),
    "total": _WHOLE,
    "page": _WHOLE,
    "pages": _WHOLE,
    "scale": _list({"type": "array", "items": _NUMBER, "minItems": 2, "maxItems": 2}),
}
_SCHEMAS: dict[str, Schema] = {
    "Error": _object(error=_TEXT),
    "Sink": _object(
        name=_TEXT,
        keys=_list(_TEXT),
        aggregates=_list(_TEXT),
        last_trigger=_or_null(_WHOLE),
        kept_triggers=_WHOLE,
        interval_us=_or_null(_WHOLE),
        on_event_time={"type": ["boolean", "null"]},
        epsilon=_or_null(_NUMBER),
        delta=_or_null(_NUMBER),
        unit=_or_null(_list(_TEXT)),
        unit_period=_or_null(_TEXT),
        bounds_note=_TEXT,
    ),
    "Sinks": _object(sinks=_list(_ref("Sink"))),
    "Window": _object(
        start_us=_or_null(_WHOLE),
        start=_or_null(_TIME),
        end=_or_null(_TIME),
        trigger=_WHOLE,
        closed={"type": "boolean"},
    ),
    "Windows": _object(windows=_list(_ref("Window"))),
    "Cell": _object(value=_or_null(_NUMBER), sd=_or_null(_NUMBER)),
    "Cells": _or_null(_list(_ref("Cell"))),
    "Changes": _or_null(_list(_or_null(_ref("Cell")))),
    "Keys": _object(**_PAGE, rows=_list(_object(id=_TEXT, key=_KEY, values=_list(_ref("Cell"))))),
    "Comparison": _object(
        **_PAGE,
        windows=_list(_ref("Window")),
        rows=_list(
            _object(
                id=_TEXT,
                key=_KEY,
                windows=_list(_ref("Cells")),
                changes=_list(_ref("Changes")),
            )
        ),
    ),
    "KeyWindows": _object(
        id=_TEXT,
        key=_KEY,
        windows=_list(_ref("Window")),
        values=_list(_ref("Cells")),
        changes=_list(_ref("Changes")),
    ),
    "KeySeries": _object(
        id=_TEXT,
        key=_KEY,
        window=_ref("Window"),
        triggers=_list(_WHOLE),
        due=_list(_or_null(_TIME)),
        values=_list(_list(_or_null(_NUMBER))),
        sd=_list(_list(_or_null(_NUMBER))),
        threshold=_list(_or_null(_list(_WHOLE))),
    ),
    "Statement": _object(
        plain=_list(_object(title=_TEXT, sentences=_list(_TEXT))),
        guess_percent=_WHOLE,
        numbers={"type": "object", "description": "The output of `dpsqlp explain --json`."},
        text={"type": "string", "description": "The output of `dpsqlp explain`."},
    ),
    "Health": _object(
        status=_ref("Status"),
        now=_TIME,
        operator_metrics={"type": "boolean"},
        sinks=_list(
            _object(
                name=_TEXT,
                status=_ref("Status"),
                last_trigger=_or_null(_WHOLE),
                last_due=_or_null(_TIME),
                next_due=_or_null(_TIME),
                seconds_since_due=_or_null(_WHOLE),
                triggers_run=_or_null(_WHOLE),
                triggers_in_all=_or_null(_WHOLE),
                triggers_unreadable=_WHOLE,
            )
        ),
    ),
    "Status": {
        "type": "string",
        "enum": ["running", "waiting", "late", "stopped", "failed", "finished", "unknown"],
    },
    "Operator": _object(
        not_private={"const": True},
        trigger=_WHOLE,
        records=_or_null(_WHOLE),
        records_per_second=_or_null(_NUMBER),
        trigger_seconds=_NUMBER,
        lag_seconds=_or_null(_NUMBER),
        state_bytes=_WHOLE,
    ),
}


def description(operator: bool) -> dict[str, Any]:
    """The document at /openapi.json."""
    sink = "/api/v1/sinks/{name}"
    paths = {
        "/api/v1/sinks": _get("sinks", "All sinks.", "Sinks", named=False),
        sink: _get("sink", "One sink.", "Sink"),
        f"{sink}/windows": _get("windows", "Windows, newest first.", "Windows"),
        f"{sink}/keys": _get("keys", "A page of keys of one window.", "Keys", _KEYS_QUERY),
        f"{sink}/compare": _get(
            "compare",
            "A page of keys of one window, with their values in that window and the ones before.",
            "Comparison",
            [*_KEYS_QUERY, _WINDOWS_COMPARED],
        ),
        f"{sink}/key": _get(
            "key",
            "The values of one key over the triggers of a window.",
            "KeySeries",
            [_KEY_ID, _WINDOW_START],
        ),
        f"{sink}/key/windows": _get(
            "keyWindows",
            "The values of one key in the newest release of each window, newest first, and their"
            " changes between final windows that follow each other.",
            "KeyWindows",
            [_KEY_ID, _WINDOW_START],
        ),
        f"{sink}/keys/download": _get_file(
            "keysFile", "The released rows of a page of keys.", _KEYS_FILE_QUERY
        ),
        f"{sink}/compare/download": _get_file(
            "compareFile",
            "The released rows of a page of keys in a window and the ones before.",
            [*_KEYS_FILE_QUERY, _WINDOWS_COMPARED],
        ),
        f"{sink}/key/download": _get_file(
            "keyFile",
            "The released rows of one key over the triggers of a window.",
            [_KEY_ID, _WINDOW_START, _FORMAT],
        ),
        f"{sink}/key/windows/download": _get_file(
            "keyWindowsFile",
            "The released rows of one key in the newest release of each window.",
            [_KEY_ID, _WINDOW_START, _FORMAT],
        ),
        f"{sink}/statement": _get(
            "statement", "The privacy guarantee, in plain words and in numbers.", "Statement"
        ),
        "/api/v1/health": _get(
            "health", "Status, last trigger and next trigger of each sink.", "Health", named=False
        ),
    }
    if operator:
        text = "Operator metrics. NOT PRIVATE: they depend on unreleased data."
        paths[f"{sink}/operator"] = _get("operator", text, "Operator")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "dpsqlp",
            "version": version("dpsqlp"),
            "description": "Released values, public metadata and scheduled times. Only what is"
            " labelled not private depends on unreleased data.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": paths,
        "security": [{"token": []}, {}],
        "components": {
            "schemas": _SCHEMAS,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _get(
    operation: str, text: str, schema: str, query: list[Schema] | None = None, *, named: bool = True
) -> Schema:
    name = {
        "name": "name",
        "in": "path",
        "required": True,
        "schema": {"type": "string", "minLength": 1},
        "description": "Name of the sink.",
    }
    responses = {"200": (text, schema)}
    responses |= {"400": ("A parameter is invalid.", "Error")}
    responses |= {"401": ("The token is missing or wrong.", "Error")}
    responses |= {"403": ("Cross-site request.", "Error")}
    responses |= {"404": ("Not found.", "Error")} if named else {}
    responses |= {"414": ("The address is too long.", "Error")}
    return {
        "get": {
            "operationId": operation,
            "summary": text,
            "parameters": [*([name] if named else []), *(query or [])],
            "responses": {
                code: {
                    "description": meaning,
                    "content": {"application/json": {"schema": _ref(content)}},
                }
                for code, (meaning, content) in responses.items()
            },
        }
    }


def _get_file(operation: str, text: str, query: list[Schema]) -> Schema:
    described = _get(operation, text, "Error", query)
    contents = {kind.split(";")[0]: {"schema": _TEXT} for kind in MEDIA_TYPES.values()}
    described["get"]["responses"]["200"]["content"] = contents
    return described
