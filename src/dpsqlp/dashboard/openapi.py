"""The OpenAPI description of the API, by hand: it is small, and it is what tests hold it to."""

from __future__ import annotations

from importlib.metadata import version
from typing import Any

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
    "Start of the window, microseconds since 1970 (UTC). Without it: the newest with released"
    " rows.",
)
_LISTING = [
    _WINDOW_START,
    _parameter("search", {"type": "string", "maxLength": 200}, "Part of a key; case is ignored."),
    _parameter(
        "order",
        {"type": "string", "maxLength": 200},
        "`key`, or an aggregate. Without it: the first aggregate.",
    ),
    _parameter("direction", {"type": "string", "enum": ["desc", "asc"]}, "Largest first, or last."),
    _parameter("page", {"type": "integer", "minimum": 1, "maximum": 10**6}, "From 1."),
    _parameter("size", {"type": "integer", "minimum": 1, "maximum": 100}, "Rows of a page: 50."),
]
_BESIDE = _parameter(
    "windows", {"type": "integer", "minimum": 1, "maximum": 8}, "How many windows: 4."
)
_IDENTITY = _parameter(
    "id",
    {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    "The key's short name, as lists of keys have it: the first 32 hexadecimal digits of the SHA-256"
    " of its columns, as texts, as a JSON array without spaces.",
    required=True,
)
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
    "Keys": _object(**_PAGE, rows=_list(_object(id=_TEXT, key=_KEY, values=_list(_ref("Cell"))))),
    "Beside": _object(
        **_PAGE,
        windows=_list(_ref("Window")),
        rows=_list(
            _object(
                id=_TEXT,
                key=_KEY,
                windows=_list({"anyOf": [_list(_ref("Cell")), {"type": "null"}]}),
            )
        ),
    ),
    "Course": _object(
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
        numbers={"type": "object", "description": "As `dpsqlp explain --json` prints them."},
        text={"type": "string", "description": "As `dpsqlp explain` prints it."},
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
        f"{sink}/keys": _get("keys", "A page of keys of one window.", "Keys", _LISTING),
        f"{sink}/beside": _get(
            "beside",
            "A page of keys of one window, with their values in the windows before it.",
            "Beside",
            [*_LISTING, _BESIDE],
        ),
        f"{sink}/key": _get(
            "key", "One key's course over triggers.", "Course", [_IDENTITY, _WINDOW_START]
        ),
        f"{sink}/statement": _get("statement", "The promise, in words and numbers.", "Statement"),
        "/api/v1/health": _get("health", "Last commit, next trigger.", "Health", named=False),
    }
    if operator:
        text = "NOT PRIVATE: depends on unreleased data. For the operator's eyes only."
        paths[f"{sink}/operator"] = _get("operator", text, "Operator")
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "dpsqlp",
            "version": version("dpsqlp"),
            "description": "Released values, public numbers and the clock. Nothing here depends on"
            " unreleased data, but for what is named not private.",
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
        "description": "Of the sink.",
    }
    answers = {"200": (text, schema)}
    answers |= {"400": ("A parameter is wrong.", "Error")}
    answers |= {"401": ("The token is missing or wrong.", "Error")}
    answers |= {"403": ("A page elsewhere made a browser ask.", "Error")}
    answers |= {"404": ("No such thing.", "Error")} if named else {}
    answers |= {"414": ("The address is too long.", "Error")}
    return {
        "get": {
            "operationId": operation,
            "summary": text,
            "parameters": [*([name] if named else []), *(query or [])],
            "responses": {
                code: {
                    "description": said,
                    "content": {"application/json": {"schema": _ref(answer)}},
                }
                for code, (said, answer) in answers.items()
            },
        }
    }
