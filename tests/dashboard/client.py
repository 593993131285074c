"""The application without a network: questions and answers."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import httpx2
from starlette.testclient import TestClient

from dpsqlp.dashboard.answers import Answers
from dpsqlp.dashboard.app import make_app
from dpsqlp.dashboard.guard import Policy
from dpsqlp.dashboard.origins import find_origins
from support.processes import WAIT_SECONDS

NOW = 1_714_530_000_000_000  # 2024-05-01 02:20
SINK = "/api/v1/sinks/popular"


def client(
    path: Path, *, policy: Policy | None = None, operator: bool = False, now: int = NOW
) -> TestClient:
    """A client of the page of a state or sink, at a fixed time."""
    cache = Path(tempfile.mkdtemp(dir=path.parent))
    answers = Answers(find_origins(path, cache), lambda: now, path if operator else None)
    app = make_app(answers, policy or Policy(), operator=operator)
    return TestClient(app, base_url="http://127.0.0.1")


def fetch(address: str, **options: Any) -> httpx2.Response:
    """Over the network, from a page that may only just begin."""
    return httpx2.get(address, timeout=WAIT_SECONDS, **options)


def ask(asked: TestClient, address: str, **parameters: Any) -> Any:
    """The JSON of an answer."""
    answer = asked.get(address, params=parameters)
    assert answer.status_code == 200, answer.text
    return answer.json()


def everything(asked: TestClient) -> dict[str, tuple[dict[str, str], bytes]]:
    """Every answer there is, with its headers."""
    addresses = ["/", "/openapi.json", "/metrics", "/api/v1/health", "/api/v1/sinks"]
    for sink in ask(asked, "/api/v1/sinks")["sinks"]:
        base = f"/api/v1/sinks/{sink['name']}"
        addresses += [base, f"{base}/windows", f"{base}/statement", f"{base}/beside"]
        addresses += [f"{base}/keys?search=rare", f"{base}/keys?order=key&direction=asc"]
        for window in ask(asked, f"{base}/windows")["windows"]:
            listed = f"{base}/keys?size=100&window={window['start_us']}"
            addresses.append(listed)
            for row in ask(asked, listed)["rows"]:
                addresses.append(f"{base}/key?id={row['id']}&window={window['start_us']}")
    answers = {address: asked.get(address) for address in addresses}
    return {address: (dict(a.headers), a.content) for address, a in answers.items()}
