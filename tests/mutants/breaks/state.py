"""The deliberate breaks of `state`."""

from __future__ import annotations

from mutants.breaks.base import JOURNAL, MISSED, SEALED, SLOW, Break

BREAKS = [
    Break(
        "anybody may read a state",
        "lemma 26: totals in the state are true",
        "state/storage.py",
        "self._make(path.parent, 0o700)",
        "self._make(path.parent, 0o777)",
        "state/test_storage.py::test_a_states_folder_is_its_owners_alone",
    ),
    Break(
        "a state's name is lost in a power cut",
        "lemma 23: durable before a sink sees a byte",
        "state/storage.py",
        "self._made.add(missing)",
        "pass",
        "state/test_storage.py::test_the_names_of_new_folders_are_durable",
    ),
    Break(
        "another plan accepted",
        "lemma 23: another fingerprint is another instance",
        "state/journal.py",
        "if self.manifest.fingerprint != core.plan.fingerprint.hex():",
        "if False:",
        JOURNAL + "test_another_secret_plan_or_instance_is_refused",
    ),
    Break(
        "a foreign intent accepted",
        "lemma 23: a foreign intent stops the run",
        "state/journal.py",
        'if body.pop("fingerprint") != self.manifest.fingerprint:',
        'if body.pop("fingerprint") is None:',
        JOURNAL + "test_a_foreign_intent_stops_the_run",
    ),
    Break(
        "selected keys forgotten at a restart",
        "lemma 7: bounding is the same whatever happens to the process",
        "state/journal.py",
        "        state.selected = self.load_selected(each)\n",
        "",
        JOURNAL + "test_a_restart_knows_what_was_selected",
    ),
    Break(
        "cuts kept in memory",
        "lemma 2: a cut is made durable when it is taken",
        "state/journal.py",
        "self._put(_cut_name(cut.trigger), _by_name(cut))",
        "_by_name(cut)",
        SLOW + "[files-True]",
    ),
    Break(
        "sealing off",
        "lemma 26: separate keys for noise, identifiers and encryption; the state shows no data",
        "state/sealed.py",
        "        seal, file = self._unlocked().seal(name, parts)\n"
        "        self.plain.put(name, file)\n"
        "        return seal.hex()\n"
        "\n"
        "    def get(self, name: str, seal: str | None = None) -> bytes | None:\n"
        '        """The object, or None. Refused if it is damaged, or has another seal than'
        ' the given one."""\n'
        "        data = self.plain.get(name)\n",
        "        seal, file = self._unlocked().seal(name, parts)\n"
        "        self.plain.put(name, parts)\n"
        "        return seal.hex()\n"
        "\n"
        "    def get(self, name: str, seal: str | None = None) -> bytes | None:\n"
        '        """The object, or None."""\n'
        "        return self.plain.get(name)\n"
        '        data = b""\n',
        SEALED + "test_nothing_unreleased_is_ever_written[windows-True]",
    ),
    Break(
        "an older version of a file is taken",
        "lemma 26: a trigger goes on from the state that was committed",
        "state/sealed.py",
        "if seal not in (None, found.hex()):",
        "if False:",
        SEALED + "test_an_older_version_is_not_what_a_seal_vouches_for",
    ),
    Break(
        "held tables are not compared with the files",
        "lemma 6: unit state dropped while its records are still accepted",
        "state/shards.py",
        "if held is not None and log.files[: len(held.log.files)] == held.log.files:",
        "if held is not None:",
        MISSED,
    ),
    Break(
        "a held table takes its last delta again",
        "lemma 5: a unit counted twice in an instance",
        "state/shards.py",
        "held.table, files[len(held.log.files) :]",
        "held.table, files[max(0, len(held.log.files) - 1) :]",
        MISSED,
    ),
    Break(
        "a lease that has run out is written under",
        "lemma 23: one writer at a time",
        "state/remote.py",
        "if too_late or self._lease()",
        "if self._lease()",
        "state/test_remote.py::test_one_that_slept_too_long_writes_no_more",
    ),
    Break(
        "a lock is looked at once",
        "lemma 23: one writer",
        "state/storage.py",
        "if self._held is not None and self._holder() != self._held:",
        "if False:",
        "state/test_storage.py::test_a_lock_that_is_no_longer_ours_stops_the_writer",
    ),
    Break(
        "a retry is not compared",
        "lemma 23: a retry that reads other records is refused",
        "state/journal.py",
        "if known not in (None, release):",
        "if False:",
        JOURNAL + "test_a_trigger_that_was_out_is_not_computed_from_other_records",
    ),
]
