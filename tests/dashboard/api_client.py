"""A client of the dashboard's API, without a network."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import httpx2
from starlette.testclient import TestClient

from dpsqlp.dashboard.api import Api
from dpsqlp.dashboard.app import make_app
from dpsqlp.dashboard.guard import Policy
from dpsqlp.dashboard.release_sources import find_sources
from support.processes import WAIT_SECONDS

NOW = 1_714_530_000_000_000  # 2024-05-01 02:20
SINK = "/api/v1/sinks/popular"


def client(
    path: Path, *, policy: Policy | None = None, operator: bool = False, now: int = NOW
) -> TestClient:
    """A client of the dashboard of a state or sink, at a fixed time."""
    cache = Path(tempfile.mkdtemp(dir=path.parent))
    api = Api(find_sources(path, cache), lambda: now, path if operator else None)
    app = make_app(api, policy or Policy(), operator=operator)
    return TestClient(app, base_url="http://127.0.0.1")


def fetch(address: str, **options: Any) -> httpx2.Response:
    """A request over the network, to a server that may still be starting."""
    return httpx2.get(address, timeout=WAIT_SECONDS, **options)


def ask(asked: TestClient, address: str, **parameters: Any) -> Any:
    """The JSON of a response."""
    answer = asked.get(address, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def everything(asked: TestClient) -> dict[str, tuple[dict[str, str], bytes]]:
    """Every response of the API, with its headers."""
    addresses = ["/", "/openapi.json", "/metrics", "/api/v1/health", "/api/v1/sinks"]
    for sink in ask(asked, "/api/v1/sinks")["sinks"]:
        base = f"/api/v1/sinks/{sink['name']}"
        addresses += [base, f"{base}/windows", f"{base}/statement", f"{base}/compare"]
        addresses += [f"{base}/keys?search=rare", f"{base}/keys?order=key&direction=asc"]
        for window in ask(asked, f"{base}/windows")["windows"]:
            listed = f"{base}/keys?size=100&window={window['start_us']}"
            addresses.append(listed)
            for row in ask(asked, listed)["rows"]:
                one = f"id={row['id']}&window={window['start_us']}"
                addresses += [f"{base}/key?{one}", f"{base}/key/windows?{one}"]
        addresses += [
            f"{base}/{what}/download?format={kind}"
            for what in ("keys", "compare")
            for kind in ("csv", "parquet")
        ]
        if rows := ask(asked, f"{base}/keys?size=1")["rows"]:
            addresses += [
                f"{base}/{what}/download?id={rows[0]['id']}" for what in ("key", "key/windows")
            ]
    answers = {address: asked.get(address) for address in addresses}
    return {address: (dict(a.headers), a.content) for address, a in answers.items()}
