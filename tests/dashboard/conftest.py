"""Pipelines that have run, shared by tests that only read."""

from __future__ import annotations

from pathlib import Path

import pytest

from dashboard.pipelines import replay, write_events


@pytest.fixture(scope="session")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a state, a Parquet sink and a JSON Lines sink. Tests must not write to it."""
    folder = tmp_path_factory.mktemp("ran")
    write_events(folder, ["/rare"])
    replay(folder)
    return folder
