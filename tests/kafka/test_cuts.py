"""Cuts by the clock of a topic: a unit whose records take long moves nobody else's."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpsqlp.entropy.secret import Secret
from kafka.broker import Broker
from support import slow_unit
from support.pipelines import SECRET


class Topic(slow_unit.Feed):
    """A topic of its own for each pipeline."""

    def __init__(self, broker: Broker, name: str) -> None:
        self._broker, self._name = broker, name
        self.clause = f"connector = 'kafka', brokers = '{broker.address}', topic = '{name}'"
        broker.create(name, 2)

    def deliver(self, rows: list[slow_unit.Row]) -> None:
        for partition in (0, 1):
            self._broker.send(self._name, rows[partition::2], partition)


@pytest.fixture(autouse=True)
def the_same_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Secret, "new", classmethod(lambda cls: SECRET))


@pytest.mark.parametrize("killed", [False, True])
def test_a_slow_unit_moves_nobody(broker: Broker, topic: str, killed: bool, tmp_path: Path) -> None:
    """Records up to the offsets at its grid time are a trigger's, whenever it runs."""
    slow_unit.check_virtual(tmp_path, lambda f: Topic(broker, f"{topic}-{f.name}"), killed=killed)


def test_a_slow_unit_moves_nobody_by_the_machines_clock(
    broker: Broker, topic: str, tmp_path: Path
) -> None:
    slow_unit.check_real(
        tmp_path, lambda f: Topic(broker, f"{topic[:99]}-{f.parent.name}-{f.name}")
    )
