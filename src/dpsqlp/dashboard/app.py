"""The web application: the routes of the API, and a cache of their responses.

One thread builds the responses, so that the pipeline keeps its cores. A response is cached until
the next release, and one that depends on the clock until the next second.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import pyarrow as pa
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from dpsqlp.dashboard import metrics
from dpsqlp.dashboard.api import PAGE_SIZES, WINDOWS_COMPARED_MAX, Api
from dpsqlp.dashboard.cache import LruCache
from dpsqlp.dashboard.download import FORMATS, ROWS_MAX, Download, TooLargeError, make_download
from dpsqlp.dashboard.guard import Guard, Policy
from dpsqlp.dashboard.openapi import description
from dpsqlp.dashboard.parameters import BadRequestError, Parameters
from dpsqlp.dashboard.responses import (
    JSON,
    encode,
    etag,
    respond,
    respond_download,
    respond_error,
    static_routes,
)
from dpsqlp.dashboard.sink_view import KeysQuery, NotFoundError

SEARCH_MAX = 200
_ORDER_MAX = 200
_PAGE_MAX = 10**6
_WINDOW_MAX = 10**17
_RESPONSES = 128  # cached
_KEY_ID = re.compile(r"[0-9a-f]{32}", re.ASCII)
Handler = Callable[[Parameters], Any]
FileHandler = Callable[[Parameters], Download]
Endpoint = Callable[[Request], Awaitable[Response]]
T = TypeVar("T")


def make_app(api: Api, policy: Policy, *, operator: bool = False) -> ASGIApp:
    """The application behind its guard."""
    endpoints = _Endpoints(api)

    def keys(parameters: Parameters) -> Any:
        query = _keys_query(parameters, 50, PAGE_SIZES)
        parameters.end()
        return api.keys(parameters.name, query)

    def compare(parameters: Parameters) -> Any:
        query = _keys_query(parameters, 50, PAGE_SIZES)
        count = _count(parameters)
        parameters.end()
        return api.compare(parameters.name, query, count)

    def keys_file(parameters: Parameters) -> Download:
        query = _keys_query(parameters, ROWS_MAX, (1, ROWS_MAX))
        kind = parameters.choice("format", FORMATS)
        parameters.end()
        rows = api.keys_rows(parameters.name, query)
        return make_download(rows, parameters.name, "keys", kind)

    def compare_file(parameters: Parameters) -> Download:
        query = _keys_query(parameters, ROWS_MAX, (1, ROWS_MAX))
        count, kind = _count(parameters), parameters.choice("format", FORMATS)
        parameters.end()
        rows = api.keys_rows(parameters.name, query, count)
        return make_download(rows, parameters.name, "windows", kind)

    def of_key(answer: Callable[[str, str, int | None], Any]) -> Handler:
        def handler(parameters: Parameters) -> Any:
            identity, window = _key_and_window(parameters)
            parameters.end()
            return answer(parameters.name, identity, window)

        return handler

    def key_file(rows: Callable[[str, str, int | None], pa.Table], content: str) -> FileHandler:
        def handler(parameters: Parameters) -> Download:
            identity, window = _key_and_window(parameters)
            kind = parameters.choice("format", FORMATS)
            parameters.end()
            found = rows(parameters.name, identity, window)
            return make_download(found, parameters.name, content, kind)

        return handler

    def plain(handle: Callable[[str], Any]) -> Handler:
        def handler(parameters: Parameters) -> Any:
            parameters.end()
            return handle(parameters.name)

        return handler

    openapi = description(operator)
    sink = "/api/v1/sinks/{name}"
    routes = [
        endpoints.route("/api/v1/sinks", plain(lambda _: api.sinks())),
        endpoints.route(sink, plain(api.sink)),
        endpoints.route(f"{sink}/windows", plain(api.windows)),
        endpoints.route(f"{sink}/keys", keys),
        endpoints.route(f"{sink}/compare", compare),
        endpoints.route(f"{sink}/key", of_key(api.key)),
        endpoints.route(f"{sink}/key/windows", of_key(api.key_windows)),
        endpoints.download(f"{sink}/keys/download", keys_file),
        endpoints.download(f"{sink}/compare/download", compare_file),
        endpoints.download(f"{sink}/key/download", key_file(api.key_rows, "key")),
        endpoints.download(
            f"{sink}/key/windows/download", key_file(api.key_windows_rows, "key-windows")
        ),
        endpoints.route(f"{sink}/statement", plain(api.statement)),
        endpoints.route("/api/v1/health", plain(lambda _: api.health()), live=True),
        endpoints.route("/openapi.json", plain(lambda _: openapi)),
        endpoints.route("/metrics", plain(lambda _: metrics.render(api, operator)), live=True),
    ]
    if operator:
        routes.append(endpoints.route(f"{sink}/operator", plain(api.operator), live=True))
    routes += static_routes()
    handlers: Any = {HTTPException: _not_found}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), policy)


def _keys_query(parameters: Parameters, size: int, sizes: tuple[int, int]) -> KeysQuery:
    return KeysQuery(
        window=parameters.integer("window", None, -_WINDOW_MAX, _WINDOW_MAX),
        search=parameters.text("search", SEARCH_MAX) or "",
        order=parameters.text("order", _ORDER_MAX),
        descending=parameters.choice("direction", ("desc", "asc")) == "desc",
        page=parameters.integer("page", None, 1, _PAGE_MAX) or 1,
        size=parameters.integer("size", None, *sizes) or size,
    )


def _count(parameters: Parameters) -> int:
    return parameters.integer("windows", None, 1, WINDOWS_COMPARED_MAX) or 4


def _key_and_window(parameters: Parameters) -> tuple[str, int | None]:
    identity = parameters.text("id", 32) or ""
    window = parameters.integer("window", None, -_WINDOW_MAX, _WINDOW_MAX)
    if not _KEY_ID.fullmatch(identity):
        raise BadRequestError("`id` must have 32 lower-case hexadecimal digits, as in /keys.")
    return identity, window


class _Endpoints:
    """Endpoints that share one worker thread and one cache of responses."""

    def __init__(self, api: Api) -> None:
        self._api = api
        self._cache: LruCache[bytes, tuple[Any, bytes, str]] = LruCache(_RESPONSES)
        self._one_thread: anyio.CapacityLimiter | None = None

    def route(self, path: str, handle: Handler, *, live: bool = False) -> Route:
        media_type = metrics.MEDIA_TYPE if path == "/metrics" else JSON

        async def answer(request: Request) -> Response:
            version = self._api.version(live)
            cached = self._cache.get(_address(request)) if version else None
            if cached is not None and cached[0] == version:
                return respond(request, *cached[1:], media_type)
            body = await self._work(lambda: encode(handle(Parameters(request))))
            tag = etag(body)
            if version:
                self._cache.put(_address(request), (version, body, tag))
            return respond(request, body, tag, media_type)

        return Route(path, _with_errors(path, answer))

    def download(self, path: str, handle: FileHandler) -> Route:
        """A file, which is not cached: it may be large."""

        async def answer(request: Request) -> Response:
            return respond_download(await self._work(lambda: handle(Parameters(request))))

        return Route(path, _with_errors(path, answer))

    async def _work(self, handle: Callable[[], T]) -> T:
        self._one_thread = self._one_thread or anyio.CapacityLimiter(1)
        return await anyio.to_thread.run_sync(
            lambda: self._api.retry_unreadable(handle), limiter=self._one_thread
        )


def _with_errors(path: str, answer: Endpoint) -> Endpoint:
    """The endpoint, with an error response where it fails."""

    async def endpoint(request: Request) -> Response:
        try:
            return await answer(request)
        except NotFoundError as error:
            return respond_error(404, str(error))
        except (BadRequestError, TooLargeError) as error:
            return respond_error(400, str(error))
        except Exception as error:
            # Only the error's type is logged: its text may repeat the request.
            print(f"The dashboard failed: {type(error).__name__} at {path}.", file=sys.stderr)
            return respond_error(500, "The server failed to answer. Try again.")

    return endpoint


def _address(request: Request) -> bytes:
    return bytes(request.scope["raw_path"]) + b"?" + bytes(request.scope["query_string"])


async def _not_found(request: Request, error: HTTPException) -> Response:
    return respond_error(error.status_code, "There is nothing at this address. See /openapi.json.")
