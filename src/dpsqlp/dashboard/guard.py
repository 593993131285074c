"""Middleware that checks every request and adds security headers to every response.

It refuses methods other than GET and HEAD, request bodies, long addresses and headers, unknown host
names (against DNS rebinding), cross-site requests, and a missing or wrong token, before the
application sees the request.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

ADDRESS_MAX = 8192  # bytes of path and query: two longest texts, every byte escaped
HEADERS_MAX = 16_384  # bytes of all headers
PROTECTED = ("/api/", "/openapi.json", "/metrics")
LOOPBACK = ("127.0.0.1", "::1", "localhost")
_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src"
        " 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


@dataclass(frozen=True, slots=True)
class Policy:
    """The token, and the accepted host names. `hosts` is None only together with a token."""

    token: str | None = None
    hosts: frozenset[str] | None = frozenset(LOOPBACK)


class Guard:
    """The middleware around the whole application."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse the request or pass it on."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(k.lower().encode(), v.encode()) for k, v in _HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *extra]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send_with_headers)
            return
        status, text = refusal
        await _send_error(send_with_headers, status, text, scope["method"] == "HEAD")

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = dict(scope["headers"])
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "Only GET and HEAD are supported."
        if headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers:
            return 413, "Requests must not have a body."
        if len(scope["raw_path"] or b"") + len(scope["query_string"]) > ADDRESS_MAX:
            return 414, f"The address is longer than {ADDRESS_MAX} bytes."
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADERS_MAX:
            return 431, f"The headers are longer than {HEADERS_MAX} bytes."
        if not self._is_known_host(headers.get(b"host", b"")):
            return (
                421,
                "Unknown host name. Use the address that the server printed, or --allow-host.",
            )
        protected = scope["path"].startswith(PROTECTED)
        if protected and headers.get(b"sec-fetch-site") == b"cross-site":
            return 403, "Cross-site requests are refused. Open the dashboard itself."
        if protected and not self._is_authorized(headers):
            return 401, "The token is missing or wrong. Send: Authorization: Bearer TOKEN"
        return None

    def _is_known_host(self, host: bytes) -> bool:
        if self._policy.hosts is None:
            return True
        name = host.decode("latin-1").strip().lower()
        name, colon, port = name.rpartition(":")
        if not colon or (name.count(":") and not name.endswith("]")):  # no port
            name = host.decode("latin-1").strip().lower()
        elif not port.isdigit():
            return False
        return name.removeprefix("[").removesuffix("]") in self._policy.hosts

    def _is_authorized(self, headers: dict[bytes, bytes]) -> bool:
        if self._policy.token is None:
            return True
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        same = hmac.compare_digest(given.strip(), self._policy.token.encode())
        return same and kind.lower() == b"bearer"


async def _send_error(send: Any, status: int, text: str, head: bool) -> None:
    body = json.dumps({"error": text}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers += [(b"allow", b"GET, HEAD")] if status == 405 else []
    headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
    headers += [(b"connection", b"close")] if status == 413 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head else body})
