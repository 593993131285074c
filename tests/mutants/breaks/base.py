"""What a deliberate break is, and the catchers that several packages' breaks name."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Break:
    """`why` names the lemma of docs/proof.md that no longer holds, or what the break breaks."""

    name: str
    why: str
    file: str  # below src/dpsqlp
    old: str  # occurs exactly once in the file
    new: str
    catcher: str  # a pytest node id below tests


BAD_INPUT = "stages/test_bad_input.py::"
INVARIANTS = "test_invariants.py::"
SHARED = INVARIANTS + "test_no_two_releases_share_noise"
CAPS = INVARIANTS + "test_caps_hold_to_the_record_and_across_triggers"
JOURNAL = "state/test_journal.py::"
SEALED = "state/test_sealed.py::"
DAMAGE = "crash/test_damage.py::"
SLOW = "engines/test_cuts.py::test_a_slow_unit_moves_nobody"
TASKS = "spark/test_tasks.py::"
MISSED = TASKS + "test_a_worker_that_missed_triggers_catches_up[every trigger]"
