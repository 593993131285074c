"""schemathesis asks what the OpenAPI description allows, and what it does not."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis import GenerationMode

from dashboard.client import NOW
from dpsqlp.dashboard.answers import Answers
from dpsqlp.dashboard.app import make_app
from dpsqlp.dashboard.guard import Policy
from dpsqlp.dashboard.openapi import description
from dpsqlp.dashboard.origins import find_origins

pytestmark = pytest.mark.slow

EXAMPLES = 50
PATHS = list(description(operator=True)["paths"])


@pytest.fixture(scope="module")
def described(ran: Path) -> Any:
    cache = Path(tempfile.mkdtemp(dir=ran))
    answers = Answers(find_origins(ran / "state", cache), lambda: NOW, ran / "state")
    app = make_app(answers, Policy(hosts=None), operator=True)
    return schemathesis.openapi.from_asgi("/openapi.json", app)


@pytest.mark.parametrize("mode", list(GenerationMode), ids=lambda mode: mode.name.lower())
@pytest.mark.parametrize("sink", ["popular", None])
@pytest.mark.parametrize("path", PATHS)
def test_what_is_described_is_answered(
    described: Any, path: str, sink: str | None, mode: GenerationMode
) -> None:
    """No server error, no status or shape that is not described, wrong questions refused."""
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
