"""Requests that the server refuses, and the headers of its responses."""

from __future__ import annotations

import socket
from importlib import resources
from pathlib import Path

import pytest

from dashboard.api_client import SINK, client
from dpsqlp.dashboard.guard import ADDRESS_MAX, Policy
from dpsqlp.dashboard.server import Settings, address, is_loopback, listen
from dpsqlp.errors import PlanError

TOKEN = "correct-horse"
PROTECTED = [
    "/api/v1/sinks",
    f"{SINK}/keys",
    f"{SINK}/keys/download",
    "/api/v1/health",
    "/openapi.json",
    "/metrics",
]


@pytest.mark.parametrize("path", PROTECTED)
def test_a_token_is_asked_for(ran: Path, path: str) -> None:
    asked = client(ran / "state", policy=Policy(token=TOKEN))
    for wrong in (
        None,
        "",
        "Bearer",
        "Bearer ",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Basic {TOKEN}",
        TOKEN,
        "Bearer ü",
    ):
        headers = {} if wrong is None else {"Authorization": wrong.encode()}
        answer = asked.get(path, headers=headers)  # type: ignore[arg-type]
        assert answer.status_code == 401, wrong
        assert answer.headers["www-authenticate"] == "Bearer"
        assert set(answer.json()) == {"error"}
    assert asked.get(path, params={"token": TOKEN}).status_code == 401
    assert asked.get(path, headers={"Authorization": f"Bearer {TOKEN}"}).status_code == 200
    assert asked.get(path.upper()).status_code in (401, 404)
    assert asked.get("/").status_code == 200  # the static page contains no data
    assert TOKEN not in asked.get("/").text


@pytest.mark.parametrize("trick", ["//api/v1/sinks", "/./api/v1/sinks", "/x/../api/v1/sinks"])
def test_no_way_around_the_token(ran: Path, trick: str) -> None:
    answer = client(ran / "state", policy=Policy(token=TOKEN)).get(f"http://127.0.0.1{trick}")
    assert answer.status_code in (401, 404)


@pytest.mark.parametrize(
    ("host", "welcome"),
    [
        ("127.0.0.1", True),
        ("127.0.0.1:8630", True),
        ("localhost:1", True),
        ("LocalHost", True),
        ("[::1]:8630", True),
        ("[::1]", True),
        ("evil.example", False),
        ("evil.example:8630", False),
        ("127.0.0.1.evil.example", False),
        ("localhost:8630@evil.example", False),
        ("localhost:evil", False),
        ("", False),
    ],
)
def test_another_name_is_refused(ran: Path, host: str, welcome: bool) -> None:
    """Against DNS rebinding: another site may point its name at this machine."""
    answer = client(ran / "state").get("/api/v1/sinks", headers={"Host": host})
    assert answer.status_code == (200 if welcome else 421)


@pytest.mark.parametrize("path", PROTECTED)
def test_a_page_elsewhere_may_not_ask(ran: Path, path: str) -> None:
    """The other site could not read the response, but could make the server work."""
    asked = client(ran / "state")
    for site, status in (("cross-site", 403), ("same-origin", 200), ("none", 200)):
        assert asked.get(path, headers={"Sec-Fetch-Site": site}).status_code == status
    assert asked.get("/", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 200  # a link


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "BREW"])
def test_nothing_can_be_changed(ran: Path, method: str) -> None:
    answer = client(ran / "state").request(method, f"{SINK}/keys")
    assert answer.status_code == 405
    assert answer.headers.get("allow") == "GET, HEAD"


def test_oversized_requests_are_refused(ran: Path) -> None:
    asked = client(ran / "state")
    room = ADDRESS_MAX - len(f"{SINK}/keyssearch=")
    assert asked.get(f"{SINK}/keys?search={'x' * room}").status_code == 400
    assert asked.get(f"{SINK}/keys?search={'x' * (room + 1)}").status_code == 414
    assert asked.get("/" + "a" * ADDRESS_MAX).status_code == 414
    assert asked.get("/", headers={"X": "x" * 20_000}).status_code == 431
    assert asked.request("GET", "/api/v1/sinks", content=b"x" * 100).status_code == 413
    assert asked.request("GET", "/api/v1/sinks", content=iter([b"x"])).status_code == 413


@pytest.mark.parametrize(
    "path",
    [
        "/../metadata.py",
        "/..%2fmetadata.py",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/static/../../secret",
        "/style.css/../../app.py",
        "//etc/passwd",
        "/app.py",
        "/uplot.LICENSE",
        "/api/v1/sinks/..%2f..%2fsecret",
        "/api/v1/sinks/popular%2f..%2f..",
        "/api/v1/sinks/%00",
        "/\\..\\secret",
    ],
)
def test_paths_lead_nowhere(ran: Path, path: str) -> None:
    """Files come from a fixed list, sinks by their names."""
    asked = client(ran / "state")
    answer = asked.get(f"http://127.0.0.1{path}")
    assert answer.status_code == 404, path


@pytest.mark.parametrize(
    "path", ["/", "/app.js", "/api/v1/sinks", f"{SINK}/keys/download", "/metrics", "/nothing"]
)
def test_every_answer_has_safe_headers(ran: Path, path: str) -> None:
    for answer in (
        client(ran / "state").get(path),
        client(ran / "state").post(path),
        client(ran / "state", policy=Policy(token=TOKEN)).get(path),
    ):
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
        assert answer.headers["x-frame-options"] == "DENY"
        assert "set-cookie" not in answer.headers
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers


def test_the_page_loads_nothing_from_elsewhere(ran: Path) -> None:
    asked = client(ran / "state")
    page = asked.get("/").text
    assert "://" not in page
    assert "<script>" not in page
    assert "style=" not in page
    static = resources.files("dpsqlp.dashboard") / "static"
    names = {file.name for file in static.iterdir()} - {"uplot.js"}
    for name in sorted(name for name in names if name.endswith(".js")):
        answer = asked.get(f"/{name}")
        assert answer.status_code == 200, name
        text = answer.text
        assert text.replace("http://www.w3.org/2000/svg", "").count("://") == 0, name
        for sink in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval("):
            assert sink not in text, name


def test_beyond_this_machine_only_with_a_token() -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1", "example.org"):
        assert not is_loopback(host)
        with pytest.raises(PlanError, match="Give a token"):
            listen(Settings("x", host))
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.8.8.8", "::1", "localhost"))
    for token in ("", " ", "ü", "t ", "\tt", "t\n"):
        with pytest.raises(PlanError, match="ASCII"):
            listen(Settings("x", token=token))
    with listen(Settings("x", "0.0.0.0", 0, TOKEN)) as bound:
        assert address(bound).startswith("http://127.0.0.1:")


def test_a_busy_port_is_said_or_another_is_taken() -> None:
    with listen(Settings("x", port=0)) as first:
        port = first.getsockname()[1]
        with pytest.raises(PlanError, match=f"port {port}"):
            listen(Settings("x", port=port))
    with listen(Settings("x")) as usual, listen(Settings("x")) as other:
        assert usual.getsockname()[1] != other.getsockname()[1]
        assert isinstance(other, socket.socket)
