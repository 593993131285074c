"""HTTP responses: JSON bodies with an ETag, the page's static files, errors."""

from __future__ import annotations

import hashlib
import json
from importlib import resources
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from dpsqlp.dashboard.download import Download

JSON = "application/json"
_JAVASCRIPT = "text/javascript; charset=utf-8"
# The only files that are served: no request path is ever joined to a folder.
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/uplot.css": ("uplot.css", "text/css; charset=utf-8"),
    "/favicon.svg": ("favicon.svg", "image/svg+xml"),
    "/uplot.js": ("uplot.js", _JAVASCRIPT),
    "/app.js": ("app.js", _JAVASCRIPT),
    "/api.js": ("api.js", _JAVASCRIPT),
    "/dom.js": ("dom.js", _JAVASCRIPT),
    "/charts.js": ("charts.js", _JAVASCRIPT),
    "/download.js": ("download.js", _JAVASCRIPT),
    "/keys.js": ("keys.js", _JAVASCRIPT),
    "/key.js": ("key.js", _JAVASCRIPT),
    "/key_windows.js": ("key_windows.js", _JAVASCRIPT),
    "/key_triggers.js": ("key_triggers.js", _JAVASCRIPT),
    "/windows.js": ("windows.js", _JAVASCRIPT),
    "/privacy.js": ("privacy.js", _JAVASCRIPT),
    "/health.js": ("health.js", _JAVASCRIPT),
}


def static_routes() -> list[Route]:
    """The routes of the page's files."""
    return [_static_route(path, *file) for path, file in _FILES.items()]


def encode(content: Any) -> bytes:
    """A response body: text as it is, anything else as JSON."""
    if isinstance(content, str):
        return content.encode()
    return json.dumps(content, allow_nan=False, separators=(",", ":")).encode()


def etag(body: bytes) -> str:
    """The ETag of a body."""
    return f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def respond(request: Request, body: bytes, tag: str, media_type: str) -> Response:
    """The body, or 304 if the client has it."""
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=media_type, headers=headers)


def respond_download(download: Download) -> Response:
    """A file that the browser saves."""
    headers = {"Content-Disposition": f'attachment; filename="{download.name}"'}
    headers["Cache-Control"] = "private, no-store"
    return Response(download.body, media_type=download.media_type, headers=headers)


def respond_error(status: int, text: str) -> Response:
    """An error. The text repeats nothing of the request."""
    return Response(json.dumps({"error": text}), status_code=status, media_type=JSON)


def _static_route(path: str, name: str, media_type: str) -> Route:
    body = resources.files("dpsqlp.dashboard").joinpath("static", name).read_bytes()
    tag = etag(body)

    async def endpoint(request: Request) -> Response:
        return respond(request, body, tag, media_type)

    return Route(path, endpoint)
