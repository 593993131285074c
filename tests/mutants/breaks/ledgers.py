"""The deliberate breaks of `ledgers`, and of what they add up and who is in them."""

from __future__ import annotations

from mutants.breaks.base import Break

ACCOUNT = "engines/test_account.py::"
LEDGER = "accounting/test_ledger.py::"
STORES = "ledgers/test_stores.py::"
BALANCE = LEDGER + "test_the_balance_is_that_of_an_independent_accountant"
GOLDEN = "sql/test_golden.py::test_statement"

BREAKS = [
    Break(
        "failures are not added up in a ledger",
        "lemma 33: the sums of failures, for each unit",
        "accounting/ledger.py",
        "math.fsum(part.failures for part in parts)",
        "max((part.failures for part in parts), default=0.0)",
        BALANCE,
    ),
    Break(
        "failures of one unit alone",
        "lemma 33: n times the failures",
        "accounting/ledger.py",
        "units * self.failures",
        "self.failures",
        BALANCE,
    ),
    Break(
        "nu is added up instead of nu squared",
        "lemma 33: the sum of the squares",
        "accounting/ledger.py",
        "math.fsum(part.squared_nu for part in parts)",
        "math.fsum(math.sqrt(part.squared_nu) for part in parts) ** 2",
        BALANCE,
    ),
    Break(
        "float error is not added up in a ledger",
        "lemma 33: the factors multiply",
        "accounting/ledger.py",
        "math.fsum(part.float_error for part in parts)",
        "max((part.float_error for part in parts), default=0.0)",
        BALANCE,
    ),
    Break(
        "one unit too few in a ledger period",
        "lemma 33: the largest number of units that meet a ledger period",
        "accounting/ledger.py",
        "(per - math.gcd(per, length) - 1) // length + 2",
        "(per - math.gcd(per, length) - 1) // length + 1",
        LEDGER + "test_the_most_units_that_meet_a_ledger_period",
    ),
    Break(
        "offsets of periods are forgotten",
        "lemma 33: 2 days meet 3 days twice, and 7 days four times",
        "accounting/ledger.py",
        "(per - math.gcd(per, length) - 1) // length + 2",
        "-(-per // length)",
        LEDGER + "test_the_units_of_common_lengths",
    ),
    Break(
        "an entry is compared with its first ledger period alone",
        "lemma 33: within the budget in every ledger period that it meets",
        "accounting/ledger.py",
        "for period in (first, *sorted(begin)) if",
        "for period in (first,) if",
        LEDGER + "test_no_ledger_period_is_ever_above_the_budget",
    ),
    Break(
        "retire frees the current period",
        "lemma 33: windows end before the periods that are freed",
        "accounting/ledger.py",
        "(self.end_us - 1) // per_us\n",
        "(self.end_us - 1) // per_us - (self.retired_us is not None)\n",
        LEDGER + "test_retirement_frees_later_periods_only",
    ),
    Break(
        "retire frees windows that have begun",
        "lemma 33: windows end before the periods that are freed",
        "accounting/ledger.py",
        "return latest // self.hop_us * self.hop_us + self.size_us",
        "return latest + 1",
        LEDGER + "test_windows_that_have_begun_stay_charged",
    ),
    Break(
        "retire frees windows that begin before it is durable",
        "lemma 33: by the clock, triggers may run for the margin",
        "accounting/ledger.py",
        "self.entered_us) + _MARGIN_US",
        "self.entered_us)",
        LEDGER + "test_windows_that_begin_within_the_margin_stay_charged",
    ),
    Break(
        "the time of a retirement is from before its lock",
        "lemma 33: a retired instance runs no trigger after the margin",
        "cli/ledger.py",
        "    store = LedgerFile(path) if chosen",
        "    before = _now()\n"
        "    globals()['_now'] = lambda: before\n"
        "    store = LedgerFile(path) if chosen",
        "cli/test_ledger.py::test_a_retirement_is_after_the_lock_was_waited_for",
    ),
    Break(
        "another unit in the same ledger",
        "lemma 33: the units of one person",
        "accounting/ledger.py",
        "if self.entries and entry.unit != self.entries[0].unit:",
        "if False:",
        LEDGER + "test_another_unit_is_refused",
    ),
    Break(
        "entered after the first trigger",
        "lemma 33: no trigger runs before its entry is durable",
        "engines/engine.py",
        "            self.account = open_account(\n"
        "                storage, query, created.plan, instance, created.created,"
        " self.clock.now()\n"
        "            )\n",
        "            class Late:\n"
        "                def check(late) -> None:\n"
        "                    if self.journal.manifest.trigger is not None:\n"
        "                        open_account(storage, query, created.plan, instance,"
        " created.created, 0)\n"
        "                def close(late) -> None: ...\n"
        "            self.account = Late()\n",
        ACCOUNT + "test_the_instance_is_durable_then_the_entry_then_the_first_trigger",
    ),
    Break(
        "a retired instance runs on",
        "lemma 33: a retired instance runs no trigger",
        "engines/engine.py",
        "                self.account.check()  #",
        "                pass  #",
        ACCOUNT + "test_a_retired_instance_runs_no_further_trigger",
    ),
    Break(
        "entered by its name instead of its instance",
        "lemma 33: a second state is another instance",
        "engines/account.py",
        "        instance=instance,\n",
        '        instance=query.account.sink.encode().hex().rjust(32, "0"),\n',
        ACCOUNT + "test_a_new_state_pays_again",
    ),
    Break(
        "a deleted ledger begins again",
        "lemma 33: a ledger that was deleted is refused",
        "engines/account.py",
        "if known not in (None, found.id):",
        "if False:",
        ACCOUNT + "test_a_ledger_that_was_deleted_is_missed",
    ),
    Break(
        "a state leaves its budget",
        "lemma 33: a retired instance runs no trigger",
        "engines/account.py",
        "        if known is not None:\n",
        "        if False:\n",
        ACCOUNT + "test_a_state_with_an_entry_does_not_run_without_its_budget",
    ),
    Break(
        "a ledger follows the numbers of the script",
        "lemma 33: within the budget of the ledger",
        "engines/account.py",
        "if ledger.budget != wanted:",
        "if False:",
        ACCOUNT + "test_a_ledger_keeps_the_numbers_it_was_made_with",
    ),
    Break(
        "windows that were open before are not charged",
        "lemma 33: from the first window on that is open at the first trigger",
        "engines/account.py",
        "return first * query.window.hop_us, None",
        "return created, None",
        ACCOUNT + "test_no_record_outside_the_span_changes_a_release",
    ),
    Break(
        "units that share a window are added up",
        "lemma 33: two units of the person share no window",
        "sql/budget.py",
        "if not isinstance(window, Tumble) or period % window.size_us:",
        "if False:",
        GOLDEN,
    ),
    Break(
        "units without end in a budget that is never renewed",
        "lemma 33: the number of units",
        "sql/budget.py",
        "if budget.per_us is None and not query.emit.on_event_time:",
        "if False:",
        GOLDEN,
    ),
    Break(
        "a ledger table is chosen by search_path",
        "lemma 33: a second ledger has the whole budget again",
        "sql/budget.py",
        'if "." not in table and "${" not in table:',
        "if False:",
        GOLDEN,
    ),
    Break(
        "a ledger table from the environment is chosen by search_path",
        "lemma 33: a second ledger has the whole budget again",
        "ledgers/postgres.py",
        "if schema is None:",
        "if False:",
        STORES + "test_a_table_without_a_schema_is_refused",
    ),
    Break(
        "a new ledger is made without a word",
        "lemma 33: a second ledger has the whole budget again",
        "engines/account.py",
        "made=before[-1] is None",
        "made=False",
        "cli/test_ledger.py::test_the_balance",
    ),
    Break(
        "a replay that shifts timestamps has periods of its own",
        "lemma 33: timestamps are those of a column of the source",
        "sql/budget.py",
        "if budget.per_us is not None and query.emit.on_event_time and query.event_column is None:",
        "if False:",
        GOLDEN,
    ),
    Break(
        "a ledger without its lock",
        "lemma 33: entries are made one at a time",
        "ledgers/file.py",
        "fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "pass",
        STORES + "test_a_change_sees_the_ledger_under_the_lock[file]",
    ),
    Break(
        "a ledger's lock is on the file that is replaced",
        "lemma 33: entries are made one at a time",
        "ledgers/file.py",
        'self._path.with_name(self._path.name + ".lock")',
        "self._path",
        STORES + "test_many_starters_at_once_forget_nobody[file]",
    ),
    Break(
        "a ledger in a table without its lock",
        "lemma 33: entries are made one at a time",
        "ledgers/postgres.py",
        "SELECT pg_advisory_xact_lock(",
        "SELECT (",
        STORES + "test_a_change_sees_the_ledger_under_the_lock[postgres]",
    ),
    Break(
        "an entry that another process made is trusted before it is durable",
        "lemma 33: no trigger runs before its entry is durable",
        "ledgers/file.py",
        "self._disk.sync(self._path)",
        "pass",
        STORES + "test_an_entry_that_another_process_made_is_made_durable",
    ),
    Break(
        "an entry is not synced",
        "lemma 33: no trigger runs before its entry is durable",
        "ledgers/file.py",
        "                    self._disk.sync(temporary)\n",
        "",
        STORES + "test_an_entry_outlives_a_power_cut",
    ),
    Break(
        "an edited ledger is believed",
        "lemma 33: each on the ledger that the one before has left",
        "ledgers/text.py",
        "if text_of(ledger) != text:",
        "if False:",
        STORES + "test_a_damaged_ledger_is_refused[file-one number]",
    ),
]
