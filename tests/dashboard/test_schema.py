"""schemathesis sends requests that the OpenAPI description allows, and others."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from dashboard.api_client import NOW
from dpsqlp.dashboard.api import Api
from dpsqlp.dashboard.app import make_app
from dpsqlp.dashboard.guard import Policy
from dpsqlp.dashboard.openapi import description
from dpsqlp.dashboard.release_sources import find_sources

pytestmark = pytest.mark.slow

EXAMPLES = 50
PATHS = list(description(operator=True)["paths"])


@pytest.fixture(scope="module")
def described(ran: Path) -> Any:
    cache = Path(tempfile.mkdtemp(dir=ran))
    api = Api(find_sources(ran / "state", cache), lambda: NOW, ran / "state")
    app = make_app(api, Policy(hosts=None), operator=True)
    return schemathesis.openapi.from_asgi("/openapi.json", app)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.name.lower())
@pytest.mark.parametrize("sink", ["popular", None])
@pytest.mark.parametrize("path", PATHS)
def test_what_is_described_is_answered(
    described: Any, path: str, sink: str | None, mode: GenerationMode
) -> None:
    """No server error, only described statuses and shapes; invalid requests are refused."""
    operation = described[path]["GET"]
    if sink is not None and "{name}" not in path:
        return
    if mode is GenerationMode.NEGATIVE and not operation.query:
        return  # there is nothing to get wrong

    @given(case=operation.as_strategy(generation_mode=mode))
    @settings(
        max_examples=EXAMPLES,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    def ask(case: Any) -> None:
        if sink is not None:
            case.path_parameters["name"] = sink
        case.call_and_validate()

    ask()
