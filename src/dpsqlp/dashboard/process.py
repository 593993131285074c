"""The server: in this process for `dpsqlp serve`, in one of its own beside a pipeline.

Beside a pipeline the parent binds the socket, so that a busy port is its own error and the address
is known at once. The child has its settings, the token too, from its standard input, and ends when
that does: with the parent, however the parent ends.
"""

from __future__ import annotations

import ipaddress
import json
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from dpsqlp.errors import DpsqlpError, PlanError

PORT = 8630
TOKEN_VARIABLE = "DPSQLP_DASHBOARD_TOKEN"  # noqa: S105  its name
_CONNECTIONS_MAX = 200
_LOOK_SECONDS = 2.0  # as often as the page asks; a replay may release ten times a second
_ENDING_SECONDS = 5
# What the child needs of the environment; passwords of sources and sinks are not among it.
_INHERITED = ("PATH", "PYTHONPATH", "LANG", "LC_ALL", "TMPDIR", "HOME", "VIRTUAL_ENV")


@dataclass(frozen=True, slots=True)
class Settings:
    """What is served, where, and to whom."""

    path: str
    host: str = "127.0.0.1"
    port: int | None = None  # None: the usual one, or any that is free
    token: str | None = None
    names: tuple[str, ...] = ()  # by which a proxy may call this server
    operator: bool = False


def check_installed() -> None:
    """Refuse where the packages of the page are missing."""
    try:
        import starlette  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise DpsqlpError(
            "The page needs two more packages. Run: pip install 'dpsqlp[dashboard]'"
        ) from None


def listen(settings: Settings) -> socket.socket:
    """A socket at the address. Beyond this machine only with a token."""
    token = settings.token
    if token is not None and (not token.isascii() or not token or token != token.strip()):
        raise PlanError(
            "A token is made of ASCII characters, not empty, without spaces around it."
            f" For none, unset {TOKEN_VARIABLE}."
        )
    if settings.token is None and not is_loopback(settings.host):
        raise PlanError(
            f"Others can reach {settings.host}. Give a token ({TOKEN_VARIABLE}), or serve on"
            " 127.0.0.1."
        )
    ports = [PORT, 0] if settings.port is None else [settings.port]
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    for port in ports:
        # With the protocol named, asyncio turns off Nagle's delay, which costs 40 ms an answer.
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
        f"The page cannot be served on {settings.host}, port {ports[-1]}: {problem}. Choose another"
        " with --port."
    )


def address(bound: socket.socket) -> str:
    """Where a browser finds the page."""
    host, port = bound.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  compared, not bound
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
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
    ended: threading.Event | None = None,
) -> None:
    """Serve until told to end, by a signal or by the event."""
    import uvicorn

    from dpsqlp.dashboard.answers import Answers
    from dpsqlp.dashboard.app import make_app
    from dpsqlp.dashboard.guard import HEADERS_MAX, LOOPBACK, Policy
    from dpsqlp.dashboard.origins import find_origins
    from dpsqlp.dashboard.request_timeout import TimeoutProtocol
    from dpsqlp.engines.clock import SystemClock

    path = Path(settings.path)
    with tempfile.TemporaryDirectory(prefix="dpsqlp-page-") as cache:
        hosts = frozenset(name.lower() for name in (*LOOPBACK, settings.host, *settings.names))
        anywhere = settings.host in ("0.0.0.0", "::") and not settings.names  # noqa: S104
        policy = Policy(settings.token, None if anywhere else hosts)
        state = path if settings.operator else None
        origins = find_origins(path, Path(cache))
        answers = Answers(origins, SystemClock().now, state, _LOOK_SECONDS)
        config = uvicorn.Config(
            make_app(answers, policy, operator=settings.operator),
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
        if ended is not None:
            threading.Thread(target=_end, args=(server, ended), daemon=True).start()
        answers.warm()
        ready()
        server.run(sockets=[bound])


@contextmanager
def beside(settings: Settings) -> Iterator[str]:
    """A server in a process of its own while the context lasts; its address."""
    check_installed()
    with listen(settings) as bound:
        child = subprocess.Popen(
            # -P: else a file of the working directory called uvicorn.py would be executed.
            [sys.executable, "-P", "-c", "from dpsqlp.dashboard.process import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={name: os.environ[name] for name in _INHERITED if name in os.environ},
            pass_fds=[bound.fileno()],
            process_group=0,  # Ctrl-C is for the pipeline, which finishes its trigger
        )
        assert child.stdin is not None
        told = asdict(settings) | {"descriptor": bound.fileno()}
        child.stdin.write(json.dumps(told).encode() + b"\n")
        child.stdin.flush()
        where = address(bound)
    try:
        yield where
    finally:
        with suppress(OSError):
            child.stdin.close()
        try:
            child.wait(_ENDING_SECONDS)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def main() -> None:
    """The child."""
    told = json.loads(sys.stdin.buffer.readline())
    bound = socket.socket(fileno=told.pop("descriptor"))
    settings = Settings(**told | {"names": tuple(told["names"])})
    os.nice(10)  # the pipeline comes first
    ended = threading.Event()

    def watch() -> None:
        sys.stdin.buffer.read()
        ended.set()

    threading.Thread(target=watch, daemon=True).start()
    serve(settings, bound, ended=ended)


def _end(server: object, ended: threading.Event) -> None:
    ended.wait()
    server.should_exit = True  # type: ignore[attr-defined]
