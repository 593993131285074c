"""A pipeline with a budget: entered before its first trigger, checked before each, never twice."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import dpsqlp
from dpsqlp.accounting.ledger import Entry, Ledger
from dpsqlp.accounting.privacy_loss import squared_nu
from dpsqlp.engines import account, engine
from dpsqlp.engines.account import entry_of
from dpsqlp.errors import BudgetError, StateError, UnavailableError
from dpsqlp.ledgers.base import read_ledger, update_ledger
from dpsqlp.ledgers.file import LedgerFile
from dpsqlp.sql import compile_script, make_plan
from dpsqlp.state.journal import Journal
from support.fake_clock import START, FakeClock
from support.pipelines import HOUR, MINUTE, Record, made, replay, run_all, script, step, write

DAY = 24 * HOUR
RECORDS: list[Record] = [(f"u{n}", "k", 1.0, START + n * MINUTE) for n in range(60)]
REPLAY = replay(START, START + HOUR)
CLOCK = "EMIT EVERY INTERVAL 15 MINUTES"


def budgeted(
    emit: str = REPLAY,
    *,
    epsilon: float = 60,
    delta: float = 0.01,
    per: str = ", per = INTERVAL 1 DAY",
    path: str = "people.ledger",
    options: str = "",
    **changes: Any,
) -> str:
    """A script whose sink names a budget that has room for one like it."""
    create = f"CREATE BUDGET people (epsilon = {epsilon}, delta = {delta}{per})"
    return script(
        emit=emit,
        public=f"{create} WITH (path = '{path}');",
        options=f", budget = people{options}",
        **changes,
    )


def ledger(folder: Path, name: str = "people.ledger") -> Ledger:
    found = read_ledger(LedgerFile(folder / name))
    assert found is not None
    return found


def retire(folder: Path, at: int, instance: str | None = None) -> None:
    known = ledger(folder)
    chosen = instance or known.entries[0].instance
    update_ledger(LedgerFile(folder / "people.ledger"), lambda _: known.retire(chosen, at))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write(tmp_path / "in" / "a.parquet", RECORDS)
    return tmp_path


def test_a_pipeline_enters_what_its_plan_spends(folder: Path) -> None:
    running = made(folder, budgeted())
    plan, (entry,) = running.plan, ledger(folder).entries
    calibration = plan.calibration
    assert entry.instance == running.journal.manifest.instance
    assert (entry.sink, entry.unit) == ("t", ("unit",))
    assert (entry.epsilon, entry.delta) == (40, 1e-3)
    assert entry.squared_nu == calibration.nu**2
    assert entry.failures == calibration.delta_threshold > 0
    assert entry.float_error == pytest.approx(0.04)
    running.close()


def test_the_instance_is_durable_then_the_entry_then_the_first_trigger(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between two of them costs an entry at most."""
    order: list[str] = []
    real_update, real_intend = update_ledger, Journal.intend

    def update(*args: Any) -> Ledger:
        assert (folder / "state" / "t" / "pipeline.json").exists()
        assert not (folder / "state" / "t" / "budget.json").exists()
        order.append("entry")
        return real_update(*args)

    def intend(*args: Any) -> None:
        assert (folder / "state" / "t" / "budget.json").exists()
        order.append("intent")
        real_intend(*args)

    monkeypatch.setattr(account, "update_ledger", update)
    monkeypatch.setattr(Journal, "intend", intend)
    run_all(made(folder, budgeted()), 1)
    assert order[:2] == ["entry", "intent"]


def test_a_state_that_is_opened_again_is_entered_once(folder: Path) -> None:
    for _ in range(3):
        run_all(made(folder, budgeted()), 1)
    assert len(ledger(folder).entries) == 1


def test_a_new_state_pays_again(folder: Path) -> None:
    """Also in the place of one that was deleted: what was released stays released."""
    run_all(made(folder, budgeted(epsilon=60)))
    shutil.rmtree(folder / "state")
    with pytest.raises(BudgetError, match="t does not fit the budget of"):
        made(folder, budgeted(epsilon=60))
    assert len(ledger(folder).entries) == 1


def test_a_pipeline_that_does_not_fit_leaves_no_state(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And has read nothing; with the epsilon that it is told, it runs."""

    def none(*_: object) -> None:
        raise AssertionError("read")

    monkeypatch.setattr(engine, "Cuts", none)
    with pytest.raises(BudgetError) as refused:
        made(folder, budgeted(epsilon=30))
    assert not (folder / "people.ledger").exists()
    assert not (folder / "state" / "t" / "pipeline.json").exists()
    monkeypatch.undo()
    largest = str(refused.value).rpartition(" is ")[2].rstrip(".")
    run_all(made(folder, budgeted(epsilon=30).replace("epsilon = 40", f"epsilon = {largest}")))
    assert len(ledger(folder).entries) == 1


def test_a_refused_pipeline_is_told_what_fits(folder: Path) -> None:
    with pytest.raises(BudgetError) as refused:
        made(folder, budgeted(epsilon=30))
    assert str(refused.value) == (
        "t does not fit the budget of (30, 0.01): got (40, 0.001), where epsilon 29.99 is left for"
        " one Gaussian mechanism at delta 0.01. t was not entered. The largest epsilon that fits,"
        " with the same delta and options, is 35.54."
    )


@pytest.mark.parametrize(
    "changes",
    [{"epsilon": 70}, {"delta": 0.02}, {"per": ""}, {"per": ", per = INTERVAL 2 DAYS"}],
    ids=str,
)
def test_a_ledger_keeps_the_numbers_it_was_made_with(folder: Path, changes: Any) -> None:
    """For pipelines that are in it, and for new ones."""
    made(folder, budgeted()).close()
    before = (folder / "people.ledger").read_bytes()
    for state in ("state", "another"):
        with pytest.raises(BudgetError) as refused:
            made(folder, budgeted(**changes), state=state)
        assert "was made for (epsilon = 60.0, delta = 0.01, per = INTERVAL 1 DAY)" in str(
            refused.value
        )
        assert "got CREATE BUDGET people with (epsilon = " in str(refused.value)
    assert (folder / "people.ledger").read_bytes() == before


def test_a_ledger_that_was_deleted_is_missed(folder: Path) -> None:
    """Else everything could be spent again. No new one is made."""
    made(folder, budgeted()).close()
    (folder / "people.ledger").unlink()
    with pytest.raises(BudgetError, match="is not the one that this state is entered in"):
        made(folder, budgeted())
    assert not (folder / "people.ledger").exists()
    with pytest.raises(BudgetError, match="is not the one that this state is entered in"):
        made(folder, budgeted(path="another.ledger"))


def test_a_state_with_an_entry_does_not_run_without_its_budget(folder: Path) -> None:
    """Nothing would stop it after it was retired."""
    made(folder, budgeted()).close()
    with pytest.raises(BudgetError, match="is entered in a ledger, and its sink names no budget"):
        made(folder, script(emit=REPLAY))


def test_a_state_without_an_entry_is_entered_before_its_next_trigger(folder: Path) -> None:
    """Naming a budget changes neither plan nor noise. What does not fit runs no more."""
    running = made(folder, script(emit=REPLAY))
    step(running)
    fingerprint = running.plan.fingerprint
    running.close()
    with pytest.raises(BudgetError, match="does not fit"):
        made(folder, budgeted(epsilon=30, path="small.ledger"))
    running = made(folder, budgeted())
    assert running.plan.fingerprint == fingerprint
    assert len(ledger(folder).entries) == 1
    assert running.next_trigger == running.schedule.first + 1
    running.close()


def test_an_entry_without_a_note_in_the_state_is_not_made_twice(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash between the two."""
    made(folder, budgeted()).close()
    (folder / "state" / "t" / "budget.json").unlink()
    made(folder, budgeted()).close()
    assert len(ledger(folder).entries) == 1
    assert (folder / "state" / "t" / "budget.json").exists()


def test_a_retired_instance_does_not_open(folder: Path) -> None:
    made(folder, budgeted(CLOCK), clock=FakeClock(START)).close()
    retire(folder, START)
    with pytest.raises(BudgetError, match="was retired from the ledger"):
        made(folder, budgeted(CLOCK), clock=FakeClock(START))


def test_a_retired_instance_runs_no_further_trigger(folder: Path) -> None:
    """Nor one that runs meanwhile: the ledger is looked at before each."""
    clock = FakeClock(START)
    running = made(folder, budgeted(CLOCK), clock=clock)
    clock.time += 15 * MINUTE
    step(running)
    retire(folder, clock.time)
    clock.time += 15 * MINUTE
    committed = running.journal.manifest.trigger
    with pytest.raises(BudgetError, match="was retired from the ledger"):
        step(running)
    assert running.journal.pending() is None
    assert running.journal.manifest.trigger == committed
    running.close()


@pytest.mark.parametrize("harm", ["deleted", "replaced", "older", "damaged"])
def test_no_trigger_begins_without_the_entry(folder: Path, harm: str) -> None:
    """Whatever happened to the ledger of a pipeline that runs."""
    other = made(folder, budgeted(epsilon=90), state="first")
    older = (folder / "people.ledger").read_bytes()
    running = made(folder, budgeted(epsilon=90), state="second")
    step(running)
    path = folder / "people.ledger"
    if harm == "older":
        path.write_bytes(older)
    elif harm == "damaged":
        path.write_bytes(older[:-9])
    else:
        path.unlink()
    if harm == "replaced":
        made(folder, budgeted(epsilon=90), state="third").close()
    with pytest.raises((BudgetError, StateError), match=r"no longer has the entry|is damaged"):
        step(running)
    running.close()
    other.close()


def test_the_noise_is_that_of_a_pipeline_without_a_budget(folder: Path) -> None:
    """Same plan, same secret, same instance: the same releases."""
    run = made(folder, script(emit=REPLAY))
    run.close()
    shutil.copytree(folder / "state", folder / "copy")
    assert run_all(made(folder, script(emit=REPLAY))) == run_all(
        made(folder, budgeted(), state="copy")
    )


# --- spans ---


def entered(sql: str, now: int = START + HOUR + MINUTE) -> Entry:
    (sink,) = compile_script(sql).sinks
    return entry_of(sink.query, make_plan(sink.query, created=now), "0" * 32, now, now)


def test_diagnostics_are_entered_with_all_else() -> None:
    """A share for diagnostics changes what is made of nu^2, not nu^2."""
    (sink,) = compile_script(budgeted(CLOCK, options=", diagnostics_share = 0.2")).sinks
    plan = make_plan(sink.query, created=START)
    entry = entry_of(sink.query, plan, "0" * 32, START, START)
    spent = squared_nu(plan.calibration, plan.caps, plan.mechanism, plan.release)
    assert plan.calibration.diagnostics is not None
    assert entry.squared_nu == pytest.approx(spent)


def test_a_replay_is_charged_for_the_timestamps_that_it_reads() -> None:
    """To the last trigger of its last window."""
    entry = entered(budgeted(replay(START, START + 90 * MINUTE)))
    assert (entry.start_us, entry.stop_us) == (START, START + 2 * HOUR)
    late = replay(START, START + HOUR) + " ALLOW LATENESS INTERVAL 30 MINUTES"
    assert entered(budgeted(late)).stop_us == START + 90 * MINUTE
    assert (entry.hop_us, entry.size_us) == (None, None)
    entry = entered(
        budgeted(
            "EMIT EVERY INTERVAL 15 MINUTES ON EVENT TIME FROM TIMESTAMP '2024-10-04' FOR 8"
            " TRIGGERS",
            window=None,
            options=", timestamp_column = ts",
        )
    )
    assert (entry.start_us, entry.stop_us) == (START, START + 2 * HOUR)


def test_a_live_pipeline_is_charged_from_the_first_window_that_is_open() -> None:
    """Records of earlier windows that are still open count too."""
    entry = entered(budgeted(CLOCK))
    assert (entry.start_us, entry.stop_us) == (START + HOUR, None)
    assert (entry.hop_us, entry.size_us) == (HOUR, HOUR)
    late = entered(budgeted(CLOCK + " ALLOW LATENESS INTERVAL 30 MINUTES"))
    assert late.start_us == START
    hopping = entered(budgeted(CLOCK, window="HOP(ts, INTERVAL 15 MINUTES, INTERVAL 1 HOUR)"))
    assert hopping.start_us == START + 15 * MINUTE
    assert (hopping.hop_us, hopping.size_us) == (15 * MINUTE, HOUR)


def test_months_by_the_clock_are_charged_from_their_first_day() -> None:
    """After retirement a window that has begun goes on for as long as the longest may."""
    entry = entered(budgeted(CLOCK, window="DATE_TRUNC('month', ts)"))
    assert (entry.start_us, entry.stop_us) == (START - 3 * 24 * HOUR, None)  # 1 October 2024
    assert (entry.hop_us, entry.size_us) == (1, 31 * 24 * HOUR)


def test_without_a_window_records_of_any_time_count() -> None:
    entry = entered(budgeted(CLOCK + " FOR 8 TRIGGERS", window=None))
    assert (entry.start_us, entry.stop_us, entry.hop_us) == (None, None, None)


def test_no_record_outside_the_span_changes_a_release(folder: Path) -> None:
    """Nor is a record of the span left out."""
    sql = budgeted(CLOCK + " ALLOW LATENESS INTERVAL 30 MINUTES", epsilon=90)
    start, totals = entered(sql, START + HOUR + MINUTE).start_us, {}
    assert start is not None
    for name, at in (("before", start - 1), ("first", start)):
        (folder / name).mkdir()
        write(folder / name / "in" / "a.parquet", [(f"u{n}", "k", 1.0, at) for n in range(500)])
        clock = FakeClock(START + HOUR + MINUTE)
        running = made(folder / name, sql, clock=clock)
        clock.time += 15 * MINUTE
        step(running)
        totals[name] = sum(release.num_rows for release in running.sink.releases)  # type: ignore[attr-defined]
        running.close()
    assert totals == {"before": 0, "first": 1}


# --- Python ---


def test_a_stream_in_python_is_entered(tmp_path: Path) -> None:
    """A retired one refuses its next trigger, and to be opened."""
    file = tmp_path / "views.sql"
    file.write_text(
        budgeted(
            "EMIT EVERY INTERVAL 1 HOUR FOR 9 TRIGGERS", source="connector = 'python'", window=None
        )
    )
    with dpsqlp.open(file) as stream:
        stream.feed({"unit": ["a"], "k": ["k"], "x": [1.0], "ts": [None]})
        stream.trigger()
        retire(tmp_path, START)
        with pytest.raises(dpsqlp.errors.BudgetError, match="was retired"):
            stream.trigger()
    with pytest.raises(BudgetError, match="was retired"):
        dpsqlp.open(file)


def test_a_stream_waits_for_its_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While its server is away, no trigger begins; the same call again goes on."""
    file = tmp_path / "views.sql"
    emit = "EMIT EVERY INTERVAL 1 HOUR FOR 9 TRIGGERS"
    file.write_text(budgeted(emit, source="connector = 'python'", window=None))

    def away(*_: object) -> None:
        raise UnavailableError("away")

    with monkeypatch.context() as patch:
        patch.setattr(LedgerFile, "read", away)
        with pytest.raises(UnavailableError):
            dpsqlp.open(file)
    with dpsqlp.open(file) as stream:
        stream.feed({"unit": ["a"], "k": ["k"], "x": [1.0], "ts": [None]})
        with monkeypatch.context() as patch:
            patch.setattr(LedgerFile, "read", away)
            with pytest.raises(UnavailableError):
                stream.trigger()
        first = stream.next_trigger
        assert stream.trigger().trigger == first
    assert len(ledger(tmp_path).entries) == 1


def test_two_states_that_were_made_at_once_do_not_both_fit(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both had room when they looked; the second is refused at its entry, and stays refused."""
    real = account.check_room

    def slow(*args: Any) -> None:
        real(*args)
        monkeypatch.undo()
        made(folder, budgeted(), state="quick").close()

    monkeypatch.setattr("dpsqlp.engines.instance.check_room", slow)
    for _ in range(2):
        with pytest.raises(BudgetError, match="does not fit"):
            made(folder, budgeted(), state="slow")
    assert len(ledger(folder).entries) == 1


def test_a_copy_of_an_entry_with_other_numbers_is_refused(folder: Path) -> None:
    made(folder, budgeted()).close()
    known = ledger(folder)
    smaller = replace(known.entries[0], squared_nu=known.entries[0].squared_nu / 2)
    update_ledger(
        LedgerFile(folder / "people.ledger"), lambda _: replace(known, entries=(smaller,))
    )
    with pytest.raises(BudgetError, match="has other numbers for the instance"):
        made(folder, budgeted())
