"""The HTTP server: its settings, its listening socket, its configuration."""

from __future__ import annotations

import ipaddress
import socket
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from dpsqlp.errors import DpsqlpError, PlanError

if TYPE_CHECKING:
    import uvicorn

PORT = 8630
TOKEN_VARIABLE = "DPSQLP_DASHBOARD_TOKEN"  # noqa: S105  a name, not a token
_CONNECTIONS_MAX = 200
_REFRESH_SECONDS = 2.0  # the page polls as often; a replay may release ten times a second


@dataclass(frozen=True, slots=True)
class Settings:
    """What is served, at which address, and to which clients."""

    path: str
    host: str = "127.0.0.1"
    port: int | None = None  # None: the default port, or any free one if it is taken
    token: str | None = None
    names: tuple[str, ...] = ()  # additional host names, such as that of a proxy
    operator: bool = False


def check_installed() -> None:
    """Raise an error if the packages of the dashboard are missing."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise DpsqlpError(
            "The dashboard needs two more packages. Run: pip install 'dpsqlp[dashboard]'"
        ) from None


def listen(settings: Settings) -> socket.socket:
    """A listening socket. An address that other machines can reach requires a token."""
    token = settings.token
    if token is not None and (not token.isascii() or not token or token != token.strip()):
        raise PlanError(
            "A token must be ASCII, not empty, and without spaces at either end. To serve without a"
            f" token, unset {TOKEN_VARIABLE}."
        )
    if settings.token is None and not is_loopback(settings.host):
        raise PlanError(
            f"Other machines can reach {settings.host}. Give a token ({TOKEN_VARIABLE}), or serve"
            " on 127.0.0.1."
        )
    ports = [PORT, 0] if settings.port is None else [settings.port]
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    for port in ports:
        # asyncio disables Nagle's algorithm (40 ms per response) only if the protocol is named.
        bound = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bound.bind((settings.host, port))
            bound.listen(128)
            return bound
        except OSError as error:
            bound.close()
            problem = error.strerror or str(error)
    raise PlanError(
        f"The dashboard cannot listen on {settings.host}, port {ports[-1]}: {problem}. Choose"
        " another port with --port."
    )


def address(bound: socket.socket) -> str:
    """The URL of the dashboard."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  compared, not bound
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(
    settings: Settings,
    bound: socket.socket,
    *,
    ready: Callable[[], None] = lambda: None,
    stop: threading.Event | None = None,
) -> None:
    """Serve until a signal arrives or `stop` is set. `ready` is called before the first request."""
    import uvicorn

    from dpsqlp.dashboard.api import Api
    from dpsqlp.dashboard.app import make_app
    from dpsqlp.dashboard.guard import HEADERS_MAX, LOOPBACK, Policy
    from dpsqlp.dashboard.release_sources import find_sources
    from dpsqlp.dashboard.request_timeout import TimeoutProtocol
    from dpsqlp.engines.clock import SystemClock

    path = Path(settings.path)
    with tempfile.TemporaryDirectory(prefix="dpsqlp-dashboard-") as cache:
        hosts = frozenset(name.lower() for name in (*LOOPBACK, settings.host, *settings.names))
        any_host = settings.host in ("0.0.0.0", "::") and not settings.names  # noqa: S104
        policy = Policy(settings.token, None if any_host else hosts)
        state = path if settings.operator else None
        sources = find_sources(path, Path(cache))
        api = Api(sources, SystemClock().now, state, _REFRESH_SECONDS)
        config = uvicorn.Config(
            make_app(api, policy, operator=settings.operator),
            http=TimeoutProtocol,
            ws="none",
            lifespan="off",
            loop="asyncio",
            log_level="error",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=HEADERS_MAX,
            limit_concurrency=_CONNECTIONS_MAX,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        if stop is not None:
            threading.Thread(target=_exit_when_set, args=(server, stop), daemon=True).start()
        api.warm_up()
        ready()
        server.run(sockets=[bound])


def _exit_when_set(server: uvicorn.Server, stop: threading.Event) -> None:
    stop.wait()
    server.should_exit = True
