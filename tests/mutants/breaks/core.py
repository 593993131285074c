"""The deliberate breaks of the core and its plan."""

from __future__ import annotations

from mutants.breaks.base import BAD_INPUT, CAPS, INVARIANTS, Break

BREAKS = [
    Break(
        "fingerprint of rounded numbers",
        "lemma 21: the fingerprint covers every number that shapes noise or data",
        "plan.py",
        "return value.hex()",
        "return round(value, 6)",
        BAD_INPUT + "test_the_fingerprint_sees_the_last_bit_of_every_number",
    ),
    Break(
        "fingerprint without the caps",
        "lemma 21: the fingerprint covers every number that shapes noise or data",
        "plan.py",
        '            "caps": asdict(self.caps),\n',
        "",
        BAD_INPUT + "test_the_fingerprint_sees_the_last_bit_of_every_number",
    ),
    Break(
        "two columns may name one purpose",
        "lemma 21: the same noise for two columns",
        "plan.py",
        "if len(set(purposes)) != len(purposes):",
        "if not purposes:",
        INVARIANTS + "test_two_processes_may_not_name_one_purpose",
    ),
    Break(
        "caps forgotten after each trigger",
        "lemma 6: without a period unit state is never dropped",
        "core.py",
        "        state.trigger = trigger\n",
        "        state.trigger = trigger\n        state.units.clear()\n",
        CAPS,
    ),
    Break(
        "unit state dropped a trigger early",
        "lemma 6: unit state dropped while its records are still accepted",
        "core.py",
        "periods = self.plan.periods.open(trigger + 1)",
        "periods = self.plan.periods.open(trigger + 2)",
        INVARIANTS + "test_a_unit_is_remembered_until_the_last_trigger_of_its_period",
    ),
    Break(
        "votes that are a value are spared",
        "lemma 16: COUNT(DISTINCT unit) is the selection count itself",
        "plan.py",
        'return selects and "distinct" not in kinds',
        "return selects",
        INVARIANTS + "test_votes_that_are_a_value_are_cast_for_selected_keys_too",
    ),
    Break(
        "count spills into the vote",
        "lemma 5: c off at the boundary",
        "plan.py",
        "plan.caps.records_per_key.bit_length() > 32",
        "plan.caps.records_per_key.bit_length() > 33",
        INVARIANTS + "test_a_count_and_a_vote_fit_the_unit_state_to_the_bit",
    ),
    Break(
        "an empty trigger skipped",
        "lemma 1: every grid trigger runs and commits, with or without records",
        "core.py",
        "        _check_turn(self.plan, state, trigger)\n",
        "        _check_turn(self.plan, state, trigger)\n"
        "        if len(records) == 0:\n"
        "            state.trigger = trigger\n"
        "            return TriggerResult(trigger, self.plan, {}, {}, {})\n",
        BAD_INPUT + "test_an_empty_micro_batch_is_a_trigger_like_any_other",
    ),
    Break(
        "a trigger left out",
        "lemma 1: every grid trigger runs",
        "core.py",
        "trigger != state.trigger + 1",
        "trigger <= state.trigger",
        BAD_INPUT + "test_a_trigger_out_of_turn_is_refused[3]",
    ),
    Break(
        "a trigger run twice",
        "lemma 1: every grid trigger runs once",
        "core.py",
        "trigger != state.trigger + 1",
        "trigger not in (state.trigger, state.trigger + 1)",
        INVARIANTS + "test_no_trigger_runs_twice",
    ),
    Break(
        "more triggers than T",
        "lemma 1: more triggers than T must be refused",
        "core.py",
        "not 1 <= trigger <= plan.triggers:",
        "not 1 <= trigger:",
        BAD_INPUT + "test_more_triggers_than_paid_for_are_refused",
    ),
    Break(
        "a window is open a trigger too long",
        "lemma 1: each window's triggers are 1..T",
        "plan.py",
        "range(-((self.triggers - trigger) // self.stride)",
        "range(-((self.triggers + 1 - trigger) // self.stride)",
        INVARIANTS + "test_a_window_has_the_triggers_that_were_paid_for",
    ),
    Break(
        "a window without records passed over",
        "lemma 15: every public key of every grid window is released at every trigger",
        "core.py",
        "windows = list(self._key_tasks(state, trigger))",
        "seen = np.unique(np.concatenate([part.window for part in parts]))\n"
        "        windows = [t for t in self._key_tasks(state, trigger) if t[0][0] in seen]",
        INVARIANTS + "test_public_keys_are_released_at_every_trigger_of_every_window",
    ),
    Break(
        "rows in table order",
        "lemma 24: released rows are sorted by (window, key bytes)",
        "core.py",
        "    order = order.astype(np.int64)\n",
        "    order = np.arange(len(window))\n",
        INVARIANTS + "test_releases_are_in_the_order_of_window_and_key",
    ),
]
