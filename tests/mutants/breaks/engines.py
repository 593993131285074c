"""The deliberate breaks of the local engine and what both engines share."""

from __future__ import annotations

from mutants.breaks.base import DAMAGE, SLOW, TASKS, Break

ENGINE = "engines/test_local.py::"
ROWS = "engines/test_rows.py::"
PIECES = "engines/test_micro_batch.py::"

BREAKS = [
    Break(
        "a retry takes what has arrived since",
        "lemma 23: a retry replays exactly the intent's range",
        "engines/engine.py",
        "        intent = self._pending_intent()\n        if intent is None:\n            trigger",
        "        intent = None\n        if intent is None:\n            trigger",
        DAMAGE + "test_a_retry_reads_what_was_intended",
    ),
    Break(
        "what was read ahead is used whatever the intent",
        "lemma 23: equal noise on changed input",
        "engines/local.py",
        "            if expected == intent:\n",
        "            if expected.trigger == intent.trigger:\n",
        ENGINE + "test_what_was_read_ahead_for_another_intent_is_refused",
    ),
    Break(
        "the next trigger changes what is written of the last",
        "lemma 23: computed from the state committed by the trigger before",
        "state/journal.py",
        "        copies = list(each(copy, list(tables)))\n",
        "        copies = each(copy, list(tables))\n",
        "state/test_journal.py::test_the_state_may_go_on_before_it_is_written",
    ),
    Break(
        "published before it is committed",
        "lemma 23: before any byte reaches a sink, the release file is durable",
        "engines/engine.py",
        "        self.journal.commit(\n",
        "        self.sink.emit(intent.trigger, table)\n        self.journal.commit(\n",
        ENGINE + "test_nothing_is_published_before_it_is_committed",
    ),
    Break(
        "a trigger reads up to now",
        "lemma 2: a trigger that runs late reads up to its own cut",
        "engines/engine.py",
        "                offsets = self.cuts.offsets(trigger)\n",
        "                at = GridTime(trigger, self.clock.now(), math.inf)\n"
        "                offsets = self.source.cut(self._offset, at)\n",
        SLOW + "[files-False]",
    ),
    Break(
        "no cut while the worker is busy",
        "lemma 2: by something that does not wait for the work",
        "engines/cuts.py",
        "if self._has_come(following) and not self._source.keeps_arrival_times:",
        "if self._waiting:",
        SLOW + "[stdin-False]",
    ),
    Break(
        "an answer after the next grid time is a cut",
        "lemma 2: a source that did not answer before the next grid time has no cut",
        "engines/cuts.py",
        "if not self._source.keeps_arrival_times and self._has_come(before):",
        "if False:",
        "engines/test_local.py::test_an_answer_after_the_next_grid_time_is_of_no_use",
    ),
    Break(
        "a grid time at which no process ran is cut later",
        "lemma 2: grid times at which no process ran have no cut",
        "engines/cuts.py",
        "trigger = max(self.decided, self._schedule.current(now - 1)) + 1",
        "trigger = max(self.decided, self._schedule.current(now) - 1) + 1",
        "engines/test_local.py::test_missed_triggers_run_empty_and_the_next_takes_their_records",
    ),
    Break(
        "a lost cut is not noticed",
        "lemma 2: a retry replays exactly that range",
        "engines/cuts.py",
        "if not cut.follows(self._previous, self._offset):",
        "if False:",
        "engines/test_cuts.py::test_a_cut_that_is_missing_between_others_is_refused",
    ),
    Break(
        "spools of cuts that wait are swept",
        "lemma 2: a cut is made durable when it is taken",
        "engines/engine.py",
        "sweep_spools(storage, [begun, *map(self.cuts.offsets, self.cuts.waiting)])",
        "sweep_spools(storage, [begun])",
        SLOW + "[stdin-True]",
    ),
    Break(
        "what is left of a pipeline begins again",
        "lemma 23: equal noise is safe only on equal input",
        "engines/instance.py",
        "    if created.plan.query != query.normal_form:\n",
        "    if MANIFEST not in storage.list():\n"
        "        begin_journal(storage, created.plan, created.secret, created.shards)\n"
        "    if created.plan.query != query.normal_form:\n",
        DAMAGE + "test_what_is_left_of_a_pipeline_is_refused",
    ),
    Break(
        "a release that could not be published is left out",
        "lemma 23: a retry re-emits that file",
        "engines/engine.py",
        "        self.sink.emit(trigger, release)\n        self._unpublished = None\n",
        "        self._unpublished = None\n        self.sink.emit(trigger, release)\n",
        "engines/test_local.py::test_a_server_that_is_away_is_asked_again",
    ),
    Break(
        "a stop while waiting runs the trigger before its time",
        "lemma 1: windows and triggers are enumerated from a fixed grid on a public clock",
        "engines/cuts.py",
        "        while not stop.is_set():\n",
        "        while True:\n",
        "engines/test_local.py::test_a_stop_ends_after_the_trigger",
    ),
    Break(
        "finished before the last release is out",
        "lemma 23: a retry re-emits that file",
        "engines/engine.py",
        "        return ran and self.published",
        "        return ran",
        "engines/test_local.py::test_the_last_release_is_not_left_unpublished",
    ),
    Break(
        "a row that fails in spite of TRY stops the run",
        "lemma 3: an expression that fails on a row never aborts",
        "engines/row_query.py",
        "except duckdb.Error:  # of a row, or of the source; the database may be lost",
        "except duckdb.ConversionException:",
        ROWS + "test_other_rows_are_released_as_without_the_failing_ones",
    ),
    Break(
        "a row is dropped with those beside it",
        "lemma 3: the row query maps each row by itself",
        "engines/row_query.py",
        "if part.num_rows == 1:",
        "if part.num_rows <= 2:",
        ROWS + "test_exactly_the_failing_rows_are_dropped",
    ),
    Break(
        "memory that many rows take drops one",
        "lemma 3: the row query maps each row by itself",
        "engines/row_query.py",
        "length = max(part.num_rows // 2, 1)",
        "start, length = start + 1, max(part.num_rows // 2, 1)",
        ROWS + "test_rows_that_fail_only_together_are_kept",
    ),
    Break(
        "the text of a late error is shown",
        "lemma 24: no record shows up in an error",
        "engines/row_query.py",
        'raise duckdb.Error("It failed.") from None',
        "raise",
        ROWS + "test_what_fails_late_says_nothing_about_a_record",
    ),
    Break(
        "columns that the query does not name are null beside a failing row",
        "lemma 3: no row decides what happens to another",
        "engines/row_query.py",
        "'NULL' if piece is None else quoted(name)}",
        "'NULL' if piece is None or name == 'k' else quoted(name)}",
        ROWS + "test_columns_without_a_name_are_evaluated_beside_a_failing_row",
    ),
    Break(
        "early bounding keeps the records that came first",
        "lemma 27: a unit's records are bounded in a fixed order",
        "engines/micro_batch.py",
        "kept.append(bound_early(plan, records, members))",
        "kept.append(members[: plan.caps.records])",
        PIECES + "test_pieces_and_early_bounding_change_no_release",
    ),
    Break(
        "early bounding copies a text for each record",
        "lemma 27: one unit's records fit into memory",
        "engines/micro_batch.py",
        "used, text = np.unique(part.text, return_inverse=True)",
        "used, text = part.text, np.arange(len(part))",
        PIECES + "test_early_bounding_shares_the_text_of_a_key",
    ),
    Break(
        "the rows of one unit fill the memory",
        "lemma 27: one row cannot exhaust the memory and stop the run",
        "engines/micro_batch.py",
        "held = [_bounded(core.plan, concatenate(held))]",
        "held = [concatenate(held)]",
        PIECES + "test_one_unit_does_not_fill_the_memory",
    ),
    Break(
        "the driver's cuts wait for the trigger",
        "lemma 2: which trigger a record belongs to follows from when it arrived",
        "engines/cuts.py",
        "        offsets = self._source.cut(self._offset, at)\n",
        "        while self._waiting:\n"
        "            self._clock.wait(self._clock.now() + _PAUSE_US, threading.Event())\n"
        "        offsets = self._source.cut(self._offset, at)\n",
        TASKS + "test_a_slow_unit_moves_nobody_on_spark[False]",
    ),
]
