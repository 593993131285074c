"""Cuts by the clock: a unit whose records take long moves nobody else's to another trigger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import slow
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import StateError
from running import MINUTE, SECRET, START, FakeClock, made, step

Make = Callable[[Path], slow.Feed]


@pytest.fixture(autouse=True)
def same_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every new state has the same secret and instance, so that outputs can be compared."""
    monkeypatch.setattr(Secret, "new", classmethod(lambda cls: SECRET))


@pytest.fixture(params=["files", "stdin"])
def make_feed(request: pytest.FixtureRequest) -> Make:
    def make(folder: Path) -> slow.Feed:
        return slow.Files(folder) if request.param == "files" else slow.Lines()

    return make


@pytest.mark.parametrize("killed", [False, True])
def test_a_slow_unit_moves_nobody(make_feed: Make, killed: bool, tmp_path: Path) -> None:
    """Whatever a trigger takes, the next ones read what had come by their own times; also when the
    process ends while their cuts wait.
    """
    slow.check_virtual(tmp_path, make_feed, killed=killed)


def test_a_slow_unit_moves_nobody_by_the_machines_clock(make_feed: Make, tmp_path: Path) -> None:
    slow.check_real(tmp_path, make_feed)


def test_a_cut_that_is_missing_between_others_is_refused(tmp_path: Path) -> None:
    """Its records would be passed over, and the trigger would run without them."""
    feed = slow.Files(tmp_path)
    sql = slow.script(feed.clause, "15 MINUTES")
    engine = made(tmp_path, sql, clock=FakeClock(START))
    for trigger in (1, 2, 3):
        feed.deliver(slow.crowd(trigger))
        engine.cut(trigger)
    engine.close()
    kept = tmp_path / "state/t/cuts"
    second = (kept / "2.json").read_bytes()
    (kept / "2.json").unlink()
    with pytest.raises(StateError, match="cut before that of trigger 3 is missing"):
        made(tmp_path, sql)
    (kept / "2.json").write_bytes(second)
    engine = made(tmp_path, sql, clock=FakeClock(START + 15 * MINUTE))
    assert engine.cuts.waiting == [1, 2, 3]
    assert [step(engine).trigger for _ in range(3)] == [1, 2, 3]
    assert not engine.ready
    assert not list(kept.iterdir())
    engine.close()
