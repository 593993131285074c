"""The deliberate breaks of diagnostics."""

from __future__ import annotations

from mutants.breaks.base import INVARIANTS, Break

TESTS = "test_diagnostics.py::"
SHARES = TESTS + "test_diagnostics_and_all_else_cost_nu_squared[True]"
ONCE = TESTS + "test_a_unit_counts_once_and_of_its_rows_the_first_ones"
NOISE = TESTS + "test_the_noise_has_its_deviation_and_is_shared_by_no_two_numbers"
EVERY = TESTS + "test_numbers_come_at_every_trigger_of_every_open_window"
RESTARTED = TESTS + "test_a_restart_remembers_what_was_counted"

BREAKS = [
    Break(
        "the full nu^2 in the closing beside diagnostics",
        "lemma 36: all else is made with what diagnostics leave of nu^2",
        "accounting/calibrate.py",
        "            nu=remaining_nu,\n",
        "            nu=nu,\n",
        SHARES,
    ),
    Break(
        "the full nu^2 in selection beside diagnostics",
        "lemma 36: all else is made with what diagnostics leave of nu^2",
        "accounting/calibrate.py",
        "math.sqrt(caps.selections / share) / remaining_nu",
        "math.sqrt(caps.selections / share) / nu",
        SHARES,
    ),
    Break(
        "the full nu^2 in values beside diagnostics",
        "lemma 36: all else is made with what diagnostics leave of nu^2",
        "accounting/calibrate.py",
        "math.sqrt(squares / part) / remaining_nu",
        "math.sqrt(squares / part) / nu",
        SHARES,
    ),
    Break(
        "diagnostics sigma x 0.9",
        "lemma 36: each number costs most^2 s^2 / sigma^2",
        "accounting/calibrate.py",
        "sigma = most * mechanisms[0].sensitivity",
        "sigma = 0.9 * most * mechanisms[0].sensitivity",
        SHARES,
    ),
    Break(
        "diagnostics with the sigma of the longest windows",
        "lemma 36: s / sigma is the same in all windows of a calendar",
        "accounting/calibrate.py",
        "        told = replace(told, sigmas=sigmas)\n",
        "",
        TESTS + "test_a_number_costs_the_same_in_shorter_windows",
    ),
    Break(
        "rows of diagnostics charged as one",
        "lemma 36: K kept rows of a unit may lie in one window",
        "accounting/model.py",
        "return 1, 1, self.kept_max, self.dropped_max",
        "return 1, 1, 1, 1",
        SHARES,
    ),
    Break(
        "diagnostics left out of what is spent",
        "lemma 36: what is spent contains the diagnostics",
        "accounting/privacy_loss.py",
        "        terms += [(most / sigma) ** 2 for most, sigma in pairs]\n",
        "",
        SHARES,
    ),
    Break(
        "diagnostics noise x 0.9",
        "lemma 36: Var xi(i) = sigma^2 b^2(i)",
        "stages/diagnose.py",
        "np.rint(xi * sigma)",
        "np.rint(0.9 * xi * sigma)",
        NOISE,
    ),
    Break(
        "numbers of diagnostics share their noise",
        "lemma 36: the same noise for two numbers",
        "stages/diagnose.py",
        "noise, path = noises[name], tally.paths[number]",
        "noise, path = noises[DIAGNOSTICS[0]], tally.paths[number]",
        NOISE,
    ),
    Break(
        "windows of diagnostics share their noise",
        "lemma 36: the same noise for two windows",
        "stages/diagnose.py",
        "noise.seeds(_KEY, window, _ROUND)",
        "noise.seeds(_KEY, 0, _ROUND)",
        NOISE,
    ),
    Break(
        "a column may have the noise of diagnostics",
        "lemma 36: the same noise for a column and a number of diagnostics",
        "plan.py",
        "reserved = {CLOSING, *DIAGNOSTICS}",
        "reserved = {CLOSING}",
        INVARIANTS + "test_two_processes_may_not_name_one_purpose[units_seen]",
    ),
    Break(
        "a unit is seen with each of its rows",
        "lemma 36: a unit counts once, where its state first sees it",
        "stages/bound.py",
        "counted[window - first_window, 0] += kept == 0",
        "counted[window - first_window, 0] += 1",
        ONCE,
    ),
    Break(
        "a unit is bounded with each dropped row",
        "lemma 36: a unit counts once, where it first has a row dropped",
        "stages/bound.py",
        "counted[window - first_window, 1] += dropped[row] == 0",
        "counted[window - first_window, 1] += 1",
        ONCE,
    ),
    Break(
        "K off by one",
        "lemma 36: of a unit's rows the first K kept count",
        "stages/bound.py",
        "if kept < kept_max:",
        "if kept <= kept_max:",
        ONCE,
    ),
    Break(
        "D off by one",
        "lemma 36: of a unit's rows the first D dropped count",
        "stages/bound.py",
        "dropped[row] >= dropped_max:",
        "dropped[row] > dropped_max:",
        ONCE,
    ),
    Break(
        "rows beyond the caps are not counted as dropped",
        "lemma 36: a row is dropped by whichever bound it exceeds",
        "stages/bound.py",
        "units[row].squares >= squares_max:\n"
        "            lost = _count_dropped(diagnosed, row, window[k], lost)\n",
        "units[row].squares >= squares_max:\n",
        ONCE,
    ),
    Break(
        "no diagnostics at a trigger without rows",
        "lemma 36: numbers are released at every trigger, with or without rows",
        "core.py",
        "if self.plan.calibration.diagnostics is None:",
        "if self.plan.calibration.diagnostics is None or not counted.any():",
        EVERY,
    ),
    Break(
        "dropped rows forgotten at a restart",
        "lemma 36: D counts over the life of a unit's state",
        "state/tables.py",
        "bounded.dropped_units,",
        "bounded.dropped_units[:0],",
        RESTARTED + "[64]",
    ),
    Break(
        "dropped rows forgotten in a snapshot",
        "lemma 36: D counts over the life of a unit's state",
        "stages/bound.py",
        "dropped = table.dropped[: table.size].copy()",
        "dropped = table.dropped[:0].copy()",
        RESTARTED + "[2]",
    ),
    Break(
        "numbers of diagnostics forgotten at a restart",
        "lemma 36: a number is the total since the window's first trigger",
        "state/journal.py",
        "        state.tallies = self.load_tallies()\n",
        "",
        RESTARTED + "[64]",
    ),
    Break(
        "early bounding hides dropped rows",
        "lemma 36: the first D dropped rows survive early bounding",
        "stages/bound.py",
        "        if dropped[row] < dropped_max:\n            dropped[row] += 1\n",
        "        if dropped[row] < 0:\n            dropped[row] += 1\n",
        TESTS + "test_early_bounding_hides_no_dropped_row",
    ),
]
