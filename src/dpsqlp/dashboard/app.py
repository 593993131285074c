"""The web application: addresses to answers.

Answers are made by one thread, so that two cores stay with the pipeline, and remembered until
there is a new release; those that depend on the clock, until its next second. A file of the page
is one of a fixed list; no path is ever joined.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Callable
from importlib import resources
from typing import Any

import anyio
import anyio.to_thread
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

from dpsqlp.dashboard import metrics
from dpsqlp.dashboard.answers import (
    PAGE_SIZES,
    WINDOWS_BESIDE_MAX,
    Answers,
    Listing,
    MissingError,
    WrongError,
)
from dpsqlp.dashboard.guard import Guard, Policy
from dpsqlp.dashboard.history import Remembered
from dpsqlp.dashboard.openapi import description

SEARCH_MAX = 200
_PAGE_MAX = 10**6
_ANSWERS = 128
_JSON = "application/json"
_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/uplot.css": ("uplot.css", "text/css; charset=utf-8"),
    "/uplot.js": ("uplot.js", "text/javascript; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/api.js": ("api.js", "text/javascript; charset=utf-8"),
    "/dom.js": ("dom.js", "text/javascript; charset=utf-8"),
    "/charts.js": ("charts.js", "text/javascript; charset=utf-8"),
    "/keys.js": ("keys.js", "text/javascript; charset=utf-8"),
    "/course.js": ("course.js", "text/javascript; charset=utf-8"),
    "/windows.js": ("windows.js", "text/javascript; charset=utf-8"),
    "/promise.js": ("promise.js", "text/javascript; charset=utf-8"),
    "/health.js": ("health.js", "text/javascript; charset=utf-8"),
    "/favicon.svg": ("favicon.svg", "image/svg+xml"),
}
_INTEGER = re.compile(r"-?\d{1,18}", re.ASCII)
_IDENTITY = re.compile(r"[0-9a-f]{32}", re.ASCII)
_ORDER_MAX = 200
Answer = Callable[["Parameters"], Any]


class Parameters:
    """The query of an address, taken one by one; what is left over is refused."""

    def __init__(self, request: Request) -> None:
        self.name: str = request.path_params.get("name", "")
        pairs = request.query_params.multi_items()
        self._given = dict(pairs)
        if len(self._given) != len(pairs):
            raise WrongError("A parameter is given twice.")

    def text(self, name: str, longest: int) -> str | None:
        """A text, if it is given."""
        value = self._given.pop(name, None)
        if value is not None and len(value) > longest:
            raise WrongError(f"`{name}` has at most {longest} characters.")
        return value

    def integer(self, name: str, default: int | None, low: int, high: int) -> int | None:
        """A number within limits."""
        value = self._given.pop(name, None)
        if value is None:
            return default
        if not _INTEGER.fullmatch(value) or not low <= int(value) <= high:
            raise WrongError(f"`{name}` is a whole number from {low} to {high}.")
        return int(value)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of several words; the first, if none is given."""
        value = self._given.pop(name, choices[0])
        if value not in choices:
            raise WrongError(f"`{name}` is one of {', '.join(choices)}.")
        return value

    def end(self) -> None:
        """Refuse what was not asked for."""
        if self._given:
            raise WrongError("There is a parameter that this address does not have.")


def make_app(answers: Answers, policy: Policy, *, operator: bool = False) -> ASGIApp:
    """The application, guarded."""
    served = _Served(answers)

    def listing(asked: Parameters) -> Listing:
        page = asked.integer("page", 1, 1, _PAGE_MAX)
        size = asked.integer("size", 50, *PAGE_SIZES)
        assert page is not None
        assert size is not None
        return Listing(
            window=asked.integer("window", None, -(10**17), 10**17),
            search=asked.text("search", SEARCH_MAX) or "",
            order=asked.text("order", _ORDER_MAX),
            descending=asked.choice("direction", ("desc", "asc")) == "desc",
            page=page,
            size=size,
        )

    def keys(asked: Parameters) -> Any:
        wanted = listing(asked)
        asked.end()
        return answers.keys(asked.name, wanted)

    def beside(asked: Parameters) -> Any:
        wanted, count = listing(asked), asked.integer("windows", 4, 1, WINDOWS_BESIDE_MAX)
        asked.end()
        assert count is not None
        return answers.beside(asked.name, wanted, count)

    def key(asked: Parameters) -> Any:
        identity = asked.text("id", 32) or ""
        window = asked.integer("window", None, -(10**17), 10**17)
        asked.end()
        if not _IDENTITY.fullmatch(identity):
            raise WrongError("`id` is 32 hexadecimal digits, as a list of keys has them.")
        return answers.key(asked.name, identity, window)

    def plain(answer: Callable[[str], Any]) -> Answer:
        def answered(asked: Parameters) -> Any:
            asked.end()
            return answer(asked.name)

        return answered

    described = description(operator)
    sink = "/api/v1/sinks/{name}"
    routes = [
        served.route("/api/v1/sinks", plain(lambda _: answers.sinks())),
        served.route(sink, plain(answers.sink)),
        served.route(f"{sink}/windows", plain(answers.windows)),
        served.route(f"{sink}/keys", keys),
        served.route(f"{sink}/beside", beside),
        served.route(f"{sink}/key", key),
        served.route(f"{sink}/statement", plain(answers.statement)),
        served.route("/api/v1/health", plain(lambda _: answers.health()), live=True),
        served.route("/openapi.json", plain(lambda _: described)),
        served.route("/metrics", plain(lambda _: metrics.render(answers, operator)), live=True),
    ]
    if operator:
        routes.append(served.route(f"{sink}/operator", plain(answers.operator), live=True))
    routes += [_file(address, *file) for address, file in _FILES.items()]
    handlers: Any = {HTTPException: _refused}
    return Guard(Starlette(routes=routes, exception_handlers=handlers), policy)


class _Served:
    """Answers by one thread, remembered until there is a new release, or while a second lasts."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self._known: Remembered[bytes, tuple[Any, bytes, str]] = Remembered(_ANSWERS)
        self._one: anyio.CapacityLimiter | None = None

    def route(self, path: str, answer: Answer, *, live: bool = False) -> Route:
        kind = metrics.MEDIA_TYPE if path == "/metrics" else _JSON

        async def endpoint(request: Request) -> Response:
            self._one = self._one or anyio.CapacityLimiter(1)
            try:
                version = self._answers.version(live)
                known = self._known.recall(_address(request)) if version else None
                if known is not None and known[0] == version:
                    return _tagged(request, *known[1:], kind)
                body, tag = await anyio.to_thread.run_sync(
                    lambda: _encoded(self._answers.settled(lambda: answer(Parameters(request)))),
                    limiter=self._one,
                )
            except MissingError as missing:
                return problem(404, str(missing))
            except WrongError as wrong:
                return problem(400, str(wrong))
            except Exception as error:
                # The kind of error alone is logged: its text might hold what was asked for.
                print(f"The page failed: {type(error).__name__} at {path}.", file=sys.stderr)
                return problem(500, "This could not be answered. Try again.")
            if version:
                self._known.keep(_address(request), (version, body, tag))
            return _tagged(request, body, tag, kind)

        return Route(path, endpoint)


def _address(request: Request) -> bytes:
    return bytes(request.scope["raw_path"]) + b"?" + bytes(request.scope["query_string"])


def _encoded(answer: Any) -> tuple[bytes, str]:
    if isinstance(answer, str):
        body = answer.encode()
    else:
        body = json.dumps(answer, allow_nan=False, separators=(",", ":")).encode()
    return body, f'"{hashlib.sha256(body).hexdigest()[:32]}"'


def _tagged(request: Request, body: bytes, tag: str, kind: str) -> Response:
    headers = {"ETag": tag, "Cache-Control": "private, no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, media_type=kind, headers=headers)


def _file(address: str, name: str, kind: str) -> Route:
    body = resources.files("dpsqlp.dashboard").joinpath("static", name).read_bytes()
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'

    async def endpoint(request: Request) -> Response:
        return _tagged(request, body, tag, kind)

    return Route(address, endpoint)


def problem(status: int, text: str) -> Response:
    """An error in words, which repeat nothing of the question."""
    return Response(json.dumps({"error": text}), status_code=status, media_type=_JSON)


async def _refused(request: Request, error: HTTPException) -> Response:
    return problem(error.status_code, "There is nothing at this address. See /openapi.json.")
