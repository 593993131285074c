"""The promise against an attack: neighbouring streams through the real core, at delta = 0.05.

Each placement puts the target's records where some part of the proof is tight. An honest build must
stay below its claim; the bound must also reach a floor, so that the attack is known to see
something; and broken builds must be convicted. Every verdict is wrong about an honest build with
probability at most `FALSE_ALARM`; secrets are fixed, so it is always the same verdict.

Power: what the attack refutes is at most what the build spends, less what the trials cannot tell.
With public keys all of epsilon is within reach, and noise that is 10 % too small is convicted. With
private keys half of delta is spent on thresholds; `both_halves` goes for both at once.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from audit.audit import (
    DISTINCT,
    HISTOGRAM,
    SUM,
    Placement,
    Setting,
    audit,
    failure,
    honest_plan,
    with_caps,
    with_noise,
    with_thresholds,
)
from dpsqlp.accounting import ContributionBounds, Spending, thresholds
from dpsqlp.plan import Plan

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Case:
    setting: Setting
    placement: Placement
    trials: int
    floor: float  # of the claim: what the attack is known to reach

    def plan(self) -> Plan:
        return honest_plan(self.setting, self.trials * self.placement.keys)


CASES = {
    # every record in one key, more of them than the cap
    "public": Case(
        Setting("every_trigger", ContributionBounds(3, 3, 1), 3, public=True),
        Placement(1, (), ((1, 0, 7),)),
        trials=200_000,
        floor=0.85,
    ),
    "one_key": Case(
        Setting("every_trigger", ContributionBounds(3, 3, 1), 3, selection_share=0.2),
        Placement(1, ((1, 0, 20),), ((1, 0, 7),)),
        trials=40_000,
        floor=0.5,
    ),
    "one_key_threshold": Case(
        Setting("threshold", ContributionBounds(3, 3, 1), 3, (SUM,), selection_share=0.2),
        Placement(1, ((1, 0, 20), (2, 0, 20), (3, 0, 20)), ((1, 0, 7),)),
        trials=40_000,
        floor=0.4,
    ),
    # one record and one vote for each of several keys
    "spread": Case(
        Setting("every_trigger", ContributionBounds(3, 1, 3), 4, mechanism="tree"),
        Placement(3, ((1, 0, 26), (1, 1, 26), (1, 2, 26)), ((1, 0, 2), (1, 1, 2), (1, 2, 2))),
        trials=20_000,
        floor=0.35,
    ),
    "spread_threshold": Case(
        Setting("threshold", ContributionBounds(3, 1, 3), 3, mechanism="tree"),
        Placement(
            3,
            tuple((trigger, key, 26) for trigger in (1, 2) for key in range(3)),
            ((1, 0, 2), (1, 1, 2), (1, 2, 2)),
        ),
        trials=20_000,
        floor=0.15,
    ),
    # the vote goes to a key of the target's own, the values to a large one
    "both_halves": Case(
        Setting(
            "every_trigger", ContributionBounds(21, 20, 1), 2, selection_share=0.05, epsilon=2.0
        ),
        Placement(2, ((1, 1, 18),), ((1, 0, 1), (1, 1, 30))),
        trials=60_000,
        floor=0.65,
    ),
    "both_halves_threshold": Case(
        Setting(
            "threshold", ContributionBounds(21, 20, 1), 2, (SUM,), selection_share=0.05, epsilon=2.0
        ),
        Placement(2, ((1, 1, 18), (2, 1, 18)), ((1, 0, 1), (1, 1, 30))),
        trials=60_000,
        floor=0.55,
    ),
    # alone in a key, which others then make eligible: its vote is at the edge, and in the count
    "edge_then_growth": Case(
        Setting("every_trigger", ContributionBounds(1, 1, 1), 3, (DISTINCT,)),
        Placement(1, ((2, 0, 12),), ((1, 0, 2),)),
        trials=60_000,
        floor=0.4,
    ),
    # its vote is for whichever of two keys is not out yet: what it does depends on earlier output
    "steered": Case(
        Setting("every_trigger", ContributionBounds(2, 1, 1), 3, (SUM,), selection_share=0.8),
        Placement(2, ((1, 0, 9), (2, 1, 9)), ((2, 0, 1), (2, 1, 1))),
        trials=40_000,
        floor=0.2,
    ),
    # a vote in a round that others end, and one in the next
    "two_rounds": Case(
        Setting("threshold", ContributionBounds(4, 4, 2), 3, (SUM,), selection_share=0.2),
        Placement(1, ((1, 0, 28), (3, 0, 28)), ((1, 0, 3), (2, 0, 3), (3, 0, 1))),
        trials=30_000,
        floor=0.25,
    ),
}

# the target is the one unit above the minimum: what is released then gives it away
EDGE = Placement(6, tuple((1, key, 1) for key in range(6)), tuple((1, key, 2) for key in range(6)))
EDGE_RELEASES = [(trigger, key) for trigger in range(1, 6) for key in range(6)]
EDGE_TRIALS = 40_000


def edge_plan(release: str, selections: int = 6, spending: Spending = "even") -> Plan:
    setting = Setting(
        release,  # type: ignore[arg-type]
        ContributionBounds(6, 1, selections),
        5,
        (SUM,),
        minimum=1,
        selection_spending=spending,
    )
    return honest_plan(setting, 0)


def failing(plan: Plan, probability: float) -> Plan:
    """The plan with thresholds for another probability of failure."""
    selection = plan.calibration.selection
    assert selection is not None
    return with_thresholds(
        plan,
        thresholds(
            sigma=selection.sigma,
            variance=plan.mechanism.variance,
            minimum=selection.minimum,
            failure=probability,
        ),
    )


@pytest.mark.parametrize("name", CASES)
def test_an_honest_build_keeps_its_promise(name: str) -> None:
    """The lower bound is below the claim, and near enough to mean something."""
    case = CASES[name]
    verdict = audit(case.plan(), case.placement, case.trials)
    assert not verdict.convicted, verdict
    assert verdict.epsilon >= case.floor * verdict.claimed, verdict


@pytest.mark.parametrize("spending", ["even", "late"])
@pytest.mark.parametrize("release", ["every_trigger", "threshold"])
def test_a_target_at_the_edge_is_given_away_no_more_often_than_paid_for(
    release: str, spending: Spending
) -> None:
    """Releases that need the target happen with probability Cs beta at most, and not much less."""
    plan = edge_plan(release, spending=spending)
    low, high = failure(plan, EDGE, EDGE_TRIALS, EDGE_RELEASES)
    assert low <= plan.calibration.delta_threshold <= 2.5 * high


@pytest.mark.parametrize("spending", ["even", "late"])
def test_votes_at_the_edges_of_two_rounds_are_paid_for_twice(spending: Spending) -> None:
    """Alone, then released by others, then alone in the next round: at most Cs beta together."""
    setting = Setting(
        "threshold", ContributionBounds(2, 2, 2), 4, (SUM,), selection_spending=spending
    )
    plan = honest_plan(setting, 0)
    placement = Placement(1, ((2, 0, 50),), ((1, 0, 1), (3, 0, 1)))
    low, high = failure(plan, placement, 20_000, [(1, 0), (3, 0), (4, 0)])
    assert low <= plan.calibration.delta_threshold <= 4 * high


@pytest.mark.parametrize("release", ["every_trigger", "threshold"])
def test_an_honest_edge_convicts_nobody(release: str) -> None:
    """The same placement, through the same attack that convicts the broken thresholds below."""
    verdict = audit(edge_plan(release), EDGE, EDGE_TRIALS)
    assert not verdict.convicted, verdict


@pytest.mark.parametrize(
    "name",
    [
        "public",
        "one_key",
        "one_key_threshold",
        "spread",
        "both_halves",
        "both_halves_threshold",
        "edge_then_growth",
    ],
)
def test_half_the_noise_is_convicted(name: str) -> None:
    """Every sigma halved."""
    case = replace(CASES[name], trials=CASES[name].trials // 2)
    verdict = audit(with_noise(case.plan(), 0.5), case.placement, case.trials)
    assert verdict.convicted, verdict


@pytest.mark.parametrize("values", [(1.5, 1.5, 1.5), (0.5, 2.5, 1.5)])
def test_bins_keep_the_promise_together(values: tuple[float, ...]) -> None:
    """A unit with a record in one bin of a key, or in another, at each of three triggers. All bins
    have the noise of one count; with noise for one of the four bins the claim is refuted.
    """
    trials = 60_000
    setting = Setting("every_trigger", ContributionBounds(3, 3, 1), 3, (HISTOGRAM,), public=True)
    placement = Placement(1, (), tuple((trigger, 0, 1) for trigger in (1, 2, 3)), values)
    plan = honest_plan(setting, trials)
    assert not audit(plan, placement, trials).convicted
    verdict = audit(with_noise(plan, 0.5), placement, trials)
    assert verdict.convicted or len(set(values)) > 1, verdict


def test_a_tenth_too_little_noise_is_convicted() -> None:
    """Where all of epsilon is within reach, the attack sees this much."""
    case = CASES["public"]
    verdict = audit(with_noise(case.plan(), 0.9), case.placement, case.trials)
    assert verdict.convicted, verdict


@pytest.mark.parametrize("name", ["public", "one_key", "one_key_threshold"])
def test_doubled_caps_are_convicted(name: str) -> None:
    """Twice the records per unit, and per unit and key, that the noise was made for."""
    case = CASES[name]
    caps = case.setting.caps
    broken = with_caps(
        case.plan(), records=2 * caps.records, records_per_key=2 * caps.records_per_key
    )
    verdict = audit(broken, case.placement, case.trials)
    assert verdict.convicted, verdict


def test_a_doubled_cap_per_key_is_convicted() -> None:
    """The records per unit stay; twice as many of them may go to one key."""
    trials, placement = 60_000, Placement(2, (), ((1, 0, 9), (1, 1, 9)))
    plan = honest_plan(
        Setting("every_trigger", ContributionBounds(8, 4, 1), 3, (SUM,), public=True), 2 * trials
    )
    assert not audit(plan, placement, trials).convicted
    verdict = audit(with_caps(plan, records_per_key=8), placement, trials)
    assert verdict.convicted, verdict


@pytest.mark.parametrize("release", ["every_trigger", "threshold"])
def test_lowered_thresholds_are_convicted(release: str) -> None:
    """Lower by five, at the least a key can have, or not divided by T or by Cs."""
    plan = edge_plan(release)
    selection = plan.calibration.selection
    assert selection is not None
    for broken in (
        with_thresholds(plan, [threshold - 5 for threshold in selection.thresholds]),
        with_thresholds(plan, [selection.minimum + 1] * plan.triggers),
        failing(plan, selection.failure * plan.triggers),
        failing(plan, selection.failure * 6),
    ):
        verdict = audit(broken, EDGE, EDGE_TRIALS)
        assert verdict.convicted, verdict


@pytest.mark.parametrize("release", ["every_trigger", "threshold"])
def test_more_votes_than_charged_are_convicted(release: str) -> None:
    """Six votes where one was paid for."""
    verdict = audit(with_caps(edge_plan(release, 1), selections=6), EDGE, EDGE_TRIALS)
    assert verdict.convicted, verdict
