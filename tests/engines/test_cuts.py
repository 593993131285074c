"""Cuts by the clock: a unit whose records take long moves nobody else's to another trigger."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from dpsqlp.cli.inspect import inspection
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import SourceError, StateError
from support import slow_unit
from support.fake_clock import START, FakeClock
from support.pipelines import (
    HOUR,
    MINUTE,
    SECRET,
    Collected,
    Record,
    made,
    replay,
    script,
    step,
    write,
)

Make = Callable[[Path], slow_unit.Feed]


@pytest.fixture(autouse=True)
def same_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every new state has the same secret and instance, so that outputs can be compared."""
    monkeypatch.setattr(Secret, "new", classmethod(lambda cls: SECRET))


@pytest.fixture(params=["files", "stdin"])
def make_feed(request: pytest.FixtureRequest) -> Make:
    def make(folder: Path) -> slow_unit.Feed:
        return slow_unit.Files(folder) if request.param == "files" else slow_unit.Lines()

    return make


@pytest.mark.parametrize("killed", [False, True])
def test_a_slow_unit_moves_nobody(make_feed: Make, killed: bool, tmp_path: Path) -> None:
    """Whatever a trigger takes, the next ones read what had come by their own times; also when the
    process ends while their cuts wait.
    """
    slow_unit.check_virtual(tmp_path, make_feed, killed=killed)


@pytest.mark.slow
def test_a_slow_unit_moves_nobody_by_the_machines_clock(make_feed: Make, tmp_path: Path) -> None:
    slow_unit.check_real(tmp_path, make_feed)


def test_a_cut_that_is_missing_between_others_is_refused(tmp_path: Path) -> None:
    """Its records would be passed over, and the trigger would run without them."""
    feed = slow_unit.Files(tmp_path)
    sql = slow_unit.script(feed.clause, "15 MINUTES")
    engine = made(tmp_path, sql, clock=FakeClock(START))
    for trigger in (1, 2, 3):
        feed.deliver(slow_unit.crowd(trigger))
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


def test_a_missing_cut_of_spooled_records_is_noticed(tmp_path: Path) -> None:
    """Their source has no offset, but each cut names the one before."""
    sql = script(source="connector = 'python'")
    engine = made(tmp_path, sql, clock=FakeClock(START))
    first = engine.next_trigger
    for trigger in range(first, first + 3):
        engine.cut(trigger)
    engine.close()
    (tmp_path / f"state/t/cuts/{first + 1}.json").unlink()
    with pytest.raises(StateError, match=f"cut before that of trigger {first + 2} is missing"):
        made(tmp_path, sql)


@pytest.mark.parametrize("on_event_time", [False, True])
def test_a_file_that_cannot_be_read_can_be_left_behind(on_event_time: bool, tmp_path: Path) -> None:
    """The trigger that has begun with it goes on without it, and so do the ones after."""
    good, bad, later = (tmp_path / "in" / f"{name}.parquet" for name in ("good", "bad", "later"))
    crowd: list[Record] = [(f"u{number}", "a", 1.0, START + MINUTE) for number in range(20)]
    write(good, crowd)
    write(bad, [(f"u{number}", "b", 1.0, START + MINUTE) for number in range(20)])
    data = bytearray(bad.read_bytes())
    data[4:64] = bytes(60)  # a page, not the footer
    bad.write_bytes(data)
    source = f"connector = 'files', path = 'in/*.parquet', follow = {not on_event_time}"
    sql = script(source=source)
    if on_event_time:
        sql = script(source=source.partition(", follow")[0], emit=replay(START, START + HOUR))
    engine = made(tmp_path, sql, clock=FakeClock(START))
    first = engine.next_trigger
    assert engine.leave_behind([str(bad)]) == []  # nothing has begun
    if not on_event_time:
        engine.cut(first)
        write(later, crowd)
        engine.cut(first + 1)
    with pytest.raises(SourceError, match="leave-behind-unprotected"):
        step(engine)
    engine.close()
    engine = made(tmp_path, sql, clock=FakeClock(START))
    assert engine.leave_behind([str(later)]) == []
    assert engine.leave_behind([str(bad)]) == [str(bad)]
    engine.close()
    engine = made(tmp_path, sql, clock=FakeClock(START))  # the decision is in the state
    assert [step(engine).trigger for _ in range(4)] == list(range(first, first + 4))
    assert engine.journal.manifest.inputs_left_behind == 1
    assert isinstance(engine.sink, Collected)
    assert {row["k"] for release in engine.sink.releases for row in release.to_pylist()} == {"a"}
    engine.close()
    assert "1 input that could not be read: not protected" in inspection(tmp_path / "state")
