"""What every request passes: who may ask, what, and how much; and what every answer says.

Refused before anything is looked at: methods but GET and HEAD, a body, a long address, a name of
this server that is not its own (a page elsewhere may point its name here), a question that a page
elsewhere makes a browser ask, a wrong token.
"""

from __future__ import annotations

import hmac
import json
from dataclasses import dataclass
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

ADDRESS_MAX = 8192  # bytes of path and query: two texts of the longest, with every byte escaped
HEADERS_MAX = 16_384  # bytes of all of them
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
    """Who may ask. Without `hosts` any name of the server will do; then there is a token."""

    token: str | None = None
    hosts: frozenset[str] | None = frozenset(LOOPBACK)


class Guard:
    """The middleware around the whole application."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse, or pass on; add the headers either way."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                extra = [(k.lower().encode(), v.encode()) for k, v in _HEADERS.items()]
                message["headers"] = [*message.get("headers", []), *extra]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, guarded)
            return
        status, text = refusal
        await _answer(guarded, status, text, scope["method"] == "HEAD")

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        headers = dict(scope["headers"])
        if scope["method"] not in ("GET", "HEAD"):
            return 405, "Only GET and HEAD are answered."
        if headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers:
            return 413, "A request has no body here."
        if len(scope["raw_path"] or b"") + len(scope["query_string"]) > ADDRESS_MAX:
            return 414, f"An address has at most {ADDRESS_MAX} bytes."
        if sum(len(name) + len(value) for name, value in scope["headers"]) > HEADERS_MAX:
            return 431, f"Headers have at most {HEADERS_MAX} bytes."
        if not self._is_own(headers.get(b"host", b"")):
            return 421, "This server has another name. Use the address that it printed."
        protected = scope["path"].startswith(PROTECTED)
        if protected and headers.get(b"sec-fetch-site") == b"cross-site":
            return 403, "Other pages may not ask. Open the address itself."
        if protected and not self._may(headers):
            return 401, "Send the token: Authorization: Bearer ..."
        return None

    def _is_own(self, host: bytes) -> bool:
        if self._policy.hosts is None:
            return True
        name = host.decode("latin-1").strip().lower()
        name, colon, port = name.rpartition(":")
        if not colon or (name.count(":") and not name.endswith("]")):  # no port
            name = host.decode("latin-1").strip().lower()
        elif not port.isdigit():
            return False
        return name.removeprefix("[").removesuffix("]") in self._policy.hosts

    def _may(self, headers: dict[bytes, bytes]) -> bool:
        if self._policy.token is None:
            return True
        kind, _, given = headers.get(b"authorization", b"").partition(b" ")
        same = hmac.compare_digest(given.strip(), self._policy.token.encode())
        return same and kind.lower() == b"bearer"


async def _answer(send: Any, status: int, text: str, head: bool) -> None:
    body = json.dumps({"error": text}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers += [(b"allow", b"GET, HEAD")] if status == 405 else []
    headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
    headers += [(b"connection", b"close")] if status == 413 else []
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if head else body})
