"""The ledger: its arithmetic against brute force, an independent accountant, and its refusals.

See docs/proof.md, lemmas 25 and 33.
"""

from __future__ import annotations

import math
import random
from dataclasses import replace
from typing import Any

import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given
from hypothesis import strategies as st

from dpsqlp.accounting import nu_of
from dpsqlp.accounting.ledger import Budget, Spending, down, units_met, units_most
from dpsqlp.errors import BudgetError
from support.ledgers import DAY, MONTH, NOW, daily, entry, ledger

LENGTHS = st.integers(1, 60)


# --- periods ---


def brute(start: int, stop: int, per: int, length: int) -> int:
    """The largest number of units with a moment in [start, stop) and in one ledger period."""
    met: dict[int, set[int]] = {}
    for moment in range(start, stop):
        met.setdefault(moment // per, set()).add(moment // length)
    return max(map(len, met.values()))


@given(LENGTHS, LENGTHS)
def test_the_most_units_that_meet_a_ledger_period(per: int, length: int) -> None:
    """As many as counting finds, over all ledger periods until the pattern repeats."""
    periods = [range(n * per, (n + 1) * per) for n in range(math.lcm(per, length) // per)]
    counted = [len({moment // length for moment in period}) for period in periods]
    assert units_most(per, length) == max(counted)


@given(st.integers(-200, 200), st.integers(1, 200), LENGTHS)
def test_the_units_that_meet_a_span(start: int, span: int, length: int) -> None:
    met = {moment // length for moment in range(start, start + span)}
    assert units_met(start, start + span, length) == len(met)


@given(LENGTHS, LENGTHS, st.integers(-200, 200), st.integers(1, 400))
def test_the_units_of_a_bounded_span(per: int, length: int, start: int, span: int) -> None:
    """Never fewer than there are; exact within two ledger periods, else at most one too many."""
    bounded = daily(start_us=start, stop_us=start + span, hop_us=None, size_us=None)
    bounded = replace(bounded, period_us=length)
    counted = brute(start, start + span, per, length)
    extra = bounded.units(per) - counted
    assert extra in ((0,) if (start + span - 1) // per - start // per < 2 else (0, 1))
    assert bounded.units(None) == units_met(start, start + span, length)


@given(LENGTHS, LENGTHS, st.integers(-200, 200))
def test_the_units_of_a_span_without_end(per: int, length: int, start: int) -> None:
    endless = replace(daily(start_us=start), period_us=length)
    assert endless.units(per) == brute(start, start + 3 * math.lcm(per, length), per, length)


@pytest.mark.parametrize(
    ("per", "length", "most"),
    [(30, 1, 30), (30, 30, 1), (1, 30, 1), (7, 2, 4), (30, 7, 6), (3, 2, 2), (2, 3, 2)],
)
def test_the_units_of_common_lengths(per: int, length: int, most: int) -> None:
    assert units_most(per * DAY, length * DAY) == most


# --- composition ---


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
def test_the_balance_is_that_of_an_independent_accountant(seed: int) -> None:
    """Gaussian mechanisms, composed one by one as privacy loss distributions."""
    dice = random.Random(seed)
    entries = [
        entry(
            number,
            epsilon=dice.choice([0.1, 0.3, 0.5, 1.0]),
            delta=1e-10,
            period_us=dice.choice([None, DAY, 7 * DAY]),
        )
        for number in range(1, dice.randint(2, 6))
    ]
    spent = Spending.total(each.spending(MONTH) for each in entries)
    composed = pld.identity(value_discretization_interval=1e-4)
    for each in entries:
        one = pld.from_gaussian_mechanism(
            1 / math.sqrt(each.squared_nu),
            value_discretization_interval=1e-4,
            log_mass_truncation_bound=-60,
        )
        composed = composed.compose(one.self_compose(each.units(MONTH), 1e-16), 1e-16)
    failures = math.fsum(each.units(MONTH) * each.failures for each in entries)
    error = math.fsum(each.units(MONTH) * each.float_error for each in entries)
    delta = 1e-8
    found = composed.get_epsilon_for_delta((delta - failures) * math.exp(-error)) + error
    assert spent.epsilon_at(delta) == pytest.approx(found, rel=0.001)
    assert spent.fits(Budget(found * 1.001, delta, MONTH))
    assert not spent.fits(Budget(found * 0.999, delta, MONTH))


@given(st.floats(0.01, 100), st.floats(-20, -3))
def test_a_pipeline_as_large_as_the_budget_fits(epsilon: float, exponent: float) -> None:
    """Once."""
    delta = 10.0**exponent
    full = ledger(epsilon, delta).enter(entry(1, epsilon=epsilon, delta=delta))
    with pytest.raises(BudgetError, match="does not fit"):
        full.enter(entry(2, epsilon=epsilon / 100, delta=delta / 100))


def test_one_more_gaussian_mechanism_fits_up_to_what_is_left() -> None:
    begun = ledger().enter(entry(1)).enter(entry(2, epsilon=0.7))
    left = begun.spending(begun.period(NOW)).left(begun.budget)
    assert left == begun.left(entry(3))
    exact = {"failures": 0.0, "float_error": 0.0}
    assert begun.enter(entry(3, squared_nu=nu_of(left, 1e-8) ** 2, **exact))
    with pytest.raises(BudgetError):
        begun.enter(entry(3, squared_nu=nu_of(left * 1.001, 1e-8) ** 2, **exact))


@pytest.mark.parametrize("made", [entry, daily])
def test_the_largest_epsilon_fits_and_a_larger_one_does_not(made: Any) -> None:
    """Calibrated anew, with the same delta and options."""
    begun = ledger(delta=1e-6).enter(made(1))
    largest = begun.largest_epsilon(made(2, epsilon=9.0))
    assert 0.01 < largest < 9
    begun.enter(made(2, epsilon=float(down(largest))))
    with pytest.raises(BudgetError):
        begun.enter(made(2, epsilon=largest * 1.001))


def test_failures_use_up_delta_whatever_epsilon_is() -> None:
    begun = ledger(delta=1e-9).enter(entry(1, epsilon=0.01))
    assert begun.largest_epsilon(entry(2, delta=2e-9)) == 0
    with pytest.raises(BudgetError, match=r"No epsilon fits with delta = 2e-09: 5e-10 of the"):
        begun.enter(entry(2, delta=2e-9))


def test_numbers_are_rounded_down() -> None:
    assert [down(x) for x in (0.0, 1.99999, 0.000123456, 123456.0, 1.0, 1e-306)] == [
        "0", "1.999", "0.0001234", "1.234e+05", "1", "0",
    ]  # fmt: skip


# --- entries ---


@given(st.data())
def test_no_ledger_period_is_ever_above_the_budget(data: st.DataObject) -> None:
    """Whatever is entered and retired, in any order; refused is refused for a reason."""
    begun, now = ledger(1.5, 1e-8, 4 * DAY), NOW
    for number in range(1, data.draw(st.integers(1, 12))):
        now += data.draw(st.integers(0, 3)) * DAY
        day = now // DAY * DAY
        kind = data.draw(st.sampled_from(["clock", "replay", "whole", "retire"]))
        if kind == "retire":
            if begun.entries:
                begun = begun.retire(data.draw(st.sampled_from(begun.entries)).instance, now)
            continue
        start = {"clock": day, "replay": day - data.draw(st.integers(0, 9)) * DAY}.get(kind)
        new = entry(
            number,
            epsilon=data.draw(st.sampled_from([0.2, 0.5, 1.0])),
            start_us=start,
            stop_us=start + data.draw(st.integers(1, 9)) * DAY
            if kind == "replay" and start is not None
            else None,
            hop_us=DAY if kind == "clock" else None,
            size_us=DAY if kind == "clock" else None,
            period_us=None if kind == "whole" else data.draw(st.sampled_from([None, DAY])),
            entered_us=now,
        )
        periods = [-math.inf, *range(4980, 5020)]
        try:
            begun = begun.enter(new)
        except BudgetError:
            with_it = replace(begun, entries=(*begun.entries, new))
            assert not all(with_it.spending(period).fits(begun.budget) for period in periods)
        assert all(begun.spending(period).fits(begun.budget) for period in periods)


def test_an_instance_is_entered_once() -> None:
    begun = ledger().enter(entry(1))
    assert begun.enter(entry(1, entered_us=NOW + DAY)) is begun
    with pytest.raises(BudgetError, match="has other numbers for the instance"):
        begun.enter(entry(1, epsilon=0.5))
    assert len(begun.enter(entry(2)).entries) == 2


@pytest.mark.parametrize("unit", [("User_id",), ("user_id", "day"), ("member",)])
def test_another_unit_is_refused(unit: tuple[str, ...]) -> None:
    """Letter case and all."""
    with pytest.raises(BudgetError, match=r"The ledger protects user_id; got s2, which protects"):
        ledger().enter(entry(1)).enter(entry(2, unit=unit))


def test_a_pipeline_without_period_is_charged_in_each_period_from_its_start() -> None:
    begun = ledger().enter(entry(1))
    now = begun.period(NOW)
    one = entry(1).spending(MONTH)
    assert begun.spending(now - 1) == Spending(0, 0, 0)
    assert all(begun.spending(now + later) == one for later in (0, 1, 1000))


def test_records_of_any_time_are_charged_in_all_periods() -> None:
    """Without a window by the clock, nothing says when records lie; retirement frees nothing."""
    any_time = entry(1, start_us=None, hop_us=None, size_us=None)
    begun = ledger().enter(any_time).retire(any_time.instance, NOW)
    now = begun.period(NOW)
    assert all(begun.spending(now + n) == any_time.spending(MONTH) for n in (-1000, 0, 1000))


def test_a_budget_that_is_never_renewed_is_charged_once() -> None:
    begun = ledger(per_us=None).enter(entry(1))
    assert begun.period(NOW) == begun.period(NOW + 99 * MONTH) == 0
    assert begun.spending(0) == entry(1).spending(None)
    begun = begun.retire(entry(1).instance, NOW)
    assert begun.spending(0) == entry(1).spending(None), "there is no later period"
    with pytest.raises(BudgetError):
        begun.enter(entry(2, epsilon=3.5))


@pytest.mark.parametrize("made", [entry, daily])
def test_retirement_frees_later_periods_only(made: Any) -> None:
    begun = ledger(delta=1e-6).enter(made(1))
    charged, now = begun.spending(begun.period(NOW)), begun.period(NOW)
    retired = begun.retire(made(1).instance, NOW + MONTH)
    assert retired.spending(now) == retired.spending(now + 1) == charged
    assert retired.spending(now + 2) == Spending(0, 0, 0)
    assert retired.retire(made(1).instance, NOW + 5 * MONTH) == retired
    with pytest.raises(BudgetError, match="was retired from the ledger"):
        retired.enter(made(1))
    with pytest.raises(BudgetError, match="has no instance 'x'"):
        retired.retire("x", NOW)


def test_a_slow_clock_frees_no_period_before_the_entry() -> None:
    begun = ledger().enter(entry(1))
    retired = begun.retire(entry(1).instance, 0)
    assert retired.spending(begun.period(NOW)) == entry(1).spending(MONTH)
    assert retired.spending(begun.period(NOW) + 1) == Spending(0, 0, 0)


def test_windows_that_have_begun_stay_charged() -> None:
    """A window may reach into the next ledger period; so may its records."""
    last_hour = 667 * MONTH - 3_600_000_000
    week = entry(1, start_us=666 * MONTH, hop_us=DAY, size_us=7 * DAY)
    begun = ledger().enter(week).retire(week.instance, last_hour)
    assert begun.period(last_hour) == 666
    assert begun.spending(667) == week.spending(MONTH)
    assert begun.spending(668) == Spending(0, 0, 0)


def test_windows_that_begin_within_the_margin_stay_charged() -> None:
    """A trigger may have been checked before, or follow another clock."""
    border, second = 667 * MONTH, 1_000_000
    late = begun = ledger().enter(entry(1, start_us=666 * MONTH))
    late = late.retire(entry(1).instance, border - 5 * 60 * second)
    assert late.spending(667) == entry(1).spending(MONTH)
    assert late.spending(668) == Spending(0, 0, 0)
    early = begun.retire(entry(1).instance, border - 5 * 60 * second - 1)
    assert early.spending(667) == Spending(0, 0, 0)


def test_a_replay_is_charged_where_its_records_lie() -> None:
    """And nowhere else, also when it is retired: it may have read all of them."""
    span = {"start_us": 600 * MONTH, "stop_us": 602 * MONTH, "hop_us": None, "size_us": None}
    replay = daily(1, **span)
    begun = ledger(delta=1e-6).enter(replay)
    charged = [n for n in range(590, 700) if begun.spending(n).squared_nu]
    assert charged == [600, 601]
    assert replay.units(MONTH) == 30
    assert begun.retire(replay.instance, NOW).spending(601) == begun.spending(601)


def test_a_short_replay_is_charged_for_its_own_units() -> None:
    """Six days of one ledger period and five of the next, not thirty."""
    span = {"start_us": 600 * MONTH - 6 * DAY, "stop_us": 600 * MONTH + 5 * DAY}
    assert daily(1, **span, hop_us=None, size_us=None).units(MONTH) == 6
