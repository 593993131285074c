"""The deliberate breaks: what each does to the package, and which test must notice.

A break replaces one piece of text that occurs exactly once in its file. Where the code has moved
on, the runner says so: the break is then rewritten or dropped by hand, never silently.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Break:
    """`why` names the line of the design's privacy page that no longer holds."""

    name: str
    why: str
    file: str  # below src/dpsqlp
    old: str
    new: str
    catcher: str  # a pytest node id below tests


CALIBRATE = "accounting/test_calibrate.py::"
GDP = "accounting/test_gdp.py::"
THRESHOLDS = (
    "accounting/test_thresholds.py::test_thresholds_are_the_smallest_that_keep_the_union_bound"
)
MECHANISMS = "mechanisms/test_mechanisms.py::"
ENTROPY_TESTS = "entropy/"
BAD_INPUT = "stages/test_bad_input.py::"
BOUND = "stages/test_bound.py::"
INVARIANTS = "test_invariants.py::"
GRID = INVARIANTS + "test_noise_is_indexed_by_the_grid"
SHARED = INVARIANTS + "test_no_two_releases_share_noise"
CAPS = INVARIANTS + "test_caps_hold_to_the_record_and_across_triggers"
ONCE = INVARIANTS + "test_a_unit_counts_once_in_a_round"
LATER_ROUND = INVARIANTS + "test_a_later_round_begins_at_index_one_with_nothing_counted"
JOIN = INVARIANTS + "test_a_key_that_could_not_pass_alone_passes_when_others_join"
SHARES = CALIBRATE + "test_the_shares_of_squared_nu_are_kept"

ACCOUNTING = [
    Break(
        "selection sigma x 0.9",
        "5: nu^2 = Cs s^2 / sigma_k^2 + ...",
        "accounting/calibrate.py",
        "sigma = mechanism.sensitivity * math.sqrt(caps.selections / share) / nu",
        "sigma = 0.9 * mechanism.sensitivity * math.sqrt(caps.selections / share) / nu",
        SHARES,
    ),
    Break(
        "process sigma x 0.9",
        "5: nu^2 = ... + C c L^2 s^2 / sigma^2",
        "accounting/calibrate.py",
        "sigma = process.bound * mechanism.sensitivity",
        "sigma = 0.9 * process.bound * mechanism.sensitivity",
        SHARES,
    ),
    Break(
        "C c charged as C",
        "5: sum of c_k^2 is at most C c, not C",
        "accounting/inverse.py",
        "return caps.records * caps.records_per_key",
        "return caps.records",
        SHARES,
    ),
    Break(
        "beta not over Cs",
        "5: delta = delta_0 + Cs beta",
        "accounting/calibrate.py",
        "failure = delta / (2 * caps.selections) if private_keys else 0.0  # [beta]\n"
        "    delta_threshold = caps.selections * failure",
        "failure = delta / 2 if private_keys else 0.0  # [beta]\n    delta_threshold = failure",
        CALIBRATE + "test_the_parts_of_delta_add_up",
    ),
    Break(
        "delta spent twice",
        "5: delta_0 is what Cs beta leaves of delta",
        "accounting/calibrate.py",
        "delta_gaussian = delta - delta_threshold",
        "delta_gaussian = delta",
        CALIBRATE + "test_the_parts_of_delta_add_up",
    ),
    Break(
        "beta not over T",
        "4: T beta_step = beta",
        "accounting/thresholds.py",
        "ndtri(failure / len(deviations))",
        "ndtri(failure)",
        THRESHOLDS,
    ),
    Break(
        "threshold floored",
        "4: thr rounds up",
        "accounting/thresholds.py",
        "math.ceil(",
        "math.floor(",
        THRESHOLDS,
    ),
    Break(
        "threshold without the half",
        "4: thr(i) = ceil(mu + 1 + 1/2 + ...), the noise is rounded to nearest",
        "accounting/thresholds.py",
        "minimum + 1.5 +",
        "minimum + 1 +",
        THRESHOLDS,
    ),
    Break(
        "threshold without mu",
        "4: thr(i) = ceil(mu + ...)",
        "accounting/thresholds.py",
        "minimum + 1.5 +",
        "1.5 +",
        THRESHOLDS,
    ),
    Break(
        "distinct under threshold is free",
        "4: free only from the selection process under every_trigger",
        "accounting/inverse.py",
        'return 0 if release == "every_trigger" else caps.records',
        "return 0",
        CALIBRATE + "test_distinct_is_free_only_with_private_keys_at_every_trigger",
    ),
    Break(
        "public distinct charged once",
        "5: COUNT(DISTINCT unit) with public keys costs Cs s^2 / sigma^2",
        "accounting/inverse.py",
        "return caps.selections\n",
        "return 1\n",
        CALIBRATE + "test_distinct_is_free_only_with_private_keys_at_every_trigger",
    ),
    Break(
        "L from the upper bound alone",
        "2: L = max(|lo|, |hi|)",
        "accounting/model.py",
        "return max(abs(self.lower), abs(self.upper))",
        "return abs(self.upper)",
        "accounting/test_paper.py::test_columns_share_rho_and_distinct_is_charged_c",
    ),
    Break(
        "float error not charged to epsilon",
        "6: at most epsilon / 1000, and it is charged",
        "accounting/calibrate.py",
        "epsilon_gaussian = epsilon * (1 - FLOAT_SHARE)",
        "epsilon_gaussian = epsilon",
        CALIBRATE + "test_nu_leaves_room_for_float_error_in_epsilon_and_in_delta",
    ),
    Break(
        "float error not charged to delta",
        "6: probabilities move by a factor, delta_0 with them",
        "accounting/calibrate.py",
        "delta_gaussian * math.exp(epsilon_gaussian - epsilon)",
        "delta_gaussian",
        CALIBRATE + "test_nu_leaves_room_for_float_error_in_epsilon_and_in_delta",
    ),
    Break(
        "float error without the root of T",
        "6: q is chosen so that 4 T P r is at most epsilon / 1000",
        "accounting/inverse.py",
        "math.sqrt(mechanism.triggers * max(mechanism.variance))",
        "math.sqrt(max(mechanism.variance))",
        CALIBRATE + "test_a_sum_has_the_smallest_power_of_two_that_suffices",
    ),
    Break(
        "noise too large is not refused",
        "6: plans whose float error exceeds its share are refused",
        "accounting/calibrate.py",
        "if not (error <= allowance and path <= _LARGEST_PATH):",
        "if not path <= _LARGEST_PATH:",
        CALIBRATE + "test_noise_is_refused_just_where_its_float_error_exceeds_the_thousandth",
    ),
    Break(
        "quantum too fine for a value",
        "6: plans with L / q above 2^22 are refused",
        "accounting/calibrate.py",
        "_LARGEST_VALUE = 2.0**22",
        "_LARGEST_VALUE = 2.0**24",
        CALIBRATE + "test_a_sum_has_the_smallest_power_of_two_that_suffices",
    ),
    Break(
        "nu rounds towards less noise",
        "5: the output is (epsilon, delta_0)-DP at this nu",
        "accounting/gdp.py",
        "_NU_SLACK = 1 - 2.0**-30",
        "_NU_SLACK = 1 + 2.0**-30",
        GDP + "test_nu_is_the_largest_that_keeps_delta",
    ),
    Break(
        "profile of another nu",
        "5: delta_0 = Phi(nu/2 - epsilon/nu) - e^epsilon Phi(-nu/2 - epsilon/nu)",
        "accounting/gdp.py",
        "a, b = middle - nu / 2, middle + nu / 2",
        "a, b = middle, middle + nu",
        GDP + "test_delta_is_exact_to_eleven_digits",
    ),
    Break(
        "selection left out of what is spent",
        "5: nu^2 sums over all noise processes",
        "accounting/inverse.py",
        "terms.append(caps.selections / selection.sigma**2)",
        "terms.append(0.0)",
        CALIBRATE + "test_less_noise_or_a_larger_failure_costs_more",
    ),
]

NOISE_PATHS = [
    Break(
        "tree sensitivity a level short",
        "3: s^2 = ceil(log2 T)",
        "mechanisms/tree.py",
        "math.sqrt(self.state_size))",
        "math.sqrt(max(1, self.state_size - 1)))",
        MECHANISMS + "test_tree_nodes",
    ),
    Break(
        "tree variance wrong at T = 2^k",
        "3: prefix 2^h is the sum of its two children, and b^2 must say so",
        "mechanisms/tree.py",
        "nodes = index >> height if last else index >> height & 1",
        "nodes = index >> height & 1",
        MECHANISMS + "test_tree_nodes",
    ),
    Break(
        "tree weighs the nodes alike",
        "3: a node of kappa levels has variance 1 / (2 (1 - 2^-kappa))",
        "mechanisms/tree.py",
        "own[height] = 2.0**height / (2.0 ** (height + 1) - 1)",
        "own[height] = 0.5",
        MECHANISMS + "test_factorisation[tree-5]",
    ),
    Break(
        "tree goes past T",
        "8: more triggers than T must be refused",
        "mechanisms/tree.py",
        "if not 0 <= start[row] <= stop <= triggers:",
        "if not 0 <= start[row] <= stop:",
        MECHANISMS + "test_misfits_are_refused",
    ),
    Break(
        "blt sensitivity without its last coefficient",
        "3: s is the longest column of E",
        "mechanisms/blt.py",
        "math.sqrt(np.sum(column**2))",
        "math.sqrt(np.sum(column[: max(1, self.triggers - 1)] ** 2))",
        MECHANISMS + "test_factorisation[blt-5]",
    ),
    Break(
        "blt goes past T",
        "8: more triggers than T must be refused",
        "mechanisms/blt.py",
        "if not 0 <= start[row] <= start[row] + length <= triggers:",
        "if not 0 <= start[row] <= start[row] + length:",
        MECHANISMS + "test_misfits_are_refused",
    ),
    Break(
        "four rows of blt share the first one's noise",
        "8: the same noise for two keys",
        "mechanisms/blt.py",
        "z_0, z_1, z_2, z_3 = z_at[0], z_at[1], z_at[2], z_at[3]",
        "z_0, z_1, z_2, z_3 = z_at[0], z_at[0], z_at[0], z_at[0]",
        MECHANISMS + "test_rows_are_independent[blt-4-7]",
    ),
    Break(
        "a continued path draws from the start again",
        "3: z is i.i.d.",
        "entropy/noise.py",
        "number = np.uint64(first[r])",
        "number = np.uint64(0)",
        ENTROPY_TESTS + "test_noise.py::test_a_part_is_a_slice_of_the_whole",
    ),
    Break(
        "a path's state is forgotten between triggers",
        "3: xi = B z over all triggers of the window",
        "stages/advance.py",
        "        released.states[position][slots] = state\n",
        "",
        GRID,
    ),
    Break(
        "value noise x 0.9",
        "3: Var xi(i) = sigma^2 b^2(i)",
        "stages/advance.py",
        "np.rint(xi * (calibrated.sigma / calibrated.quantum))",
        "np.rint(0.9 * xi * (calibrated.sigma / calibrated.quantum))",
        GRID,
    ),
    Break(
        "selection noise x 0.9",
        "4: lambda(i) = sigma_k b(i)",
        "stages/advance.py",
        "np.rint(xi[offsets[k] + j - 1] * sigma)",
        "np.rint(xi[offsets[k] + j - 1] * sigma * 0.9)",
        GRID,
    ),
    Break(
        "selection noise from first appearance",
        "4: the noise index never depends on when the key first appeared",
        "stages/advance.py",
        "np.rint(xi[offsets[k] + j - 1] * sigma)",
        "np.rint(xi[offsets[k] + j - (index - last)] * sigma)",
        GRID,
    ),
    Break(
        "value noise from the first release",
        "4: the process exists, on paper, for every key from the start",
        "stages/advance.py",
        "path_ends(plan.mechanism, noise, seeds, start, stop, state)",
        "path_ends(plan.mechanism, noise, seeds, start, start + 1, state)",
        GRID,
    ),
    Break(
        "index counts the batches that had data",
        "1: its number is the grid index, never a count of batches",
        "stages/advance.py",
        "    rows = table.insert_keys(groups.key, groups.key_text)\n",
        '    index = int(table.rows["touched"].max()) + 1\n'
        "    rows = table.insert_keys(groups.key, groups.key_text)\n",
        INVARIANTS + "test_triggers_without_records_count",
    ),
    Break(
        "later rounds keep the window's index",
        "4: from the trigger after the last release for later rounds",
        "stages/advance.py",
        "- thresholds[j - 1]",
        "- thresholds[j + last - 1]",
        LATER_ROUND,
    ),
]

ENTROPY = [
    Break(
        "purpose not in the derivation",
        "8: the same noise for two columns",
        "entropy/noise.py",
        'secret.derive(b"noise", fingerprint, purpose.encode())',
        'secret.derive(b"noise", fingerprint)',
        SHARED,
    ),
    Break(
        "plan not in the derivation",
        "6: another fingerprint is another instance: new noise",
        "entropy/noise.py",
        'secret.derive(b"noise", fingerprint, purpose.encode())',
        'secret.derive(b"noise", purpose.encode())',
        SHARED,
    ),
    Break(
        "instance not in the derivation",
        "6: z = PRF(secret; instance, ...)",
        "entropy/secret.py",
        "parts = (label, self.instance, *context)",
        "parts = (label, *context)",
        SHARED,
    ),
    Break(
        "key not in the seed",
        "8: the same noise for two keys",
        "entropy/noise.py",
        "state = self._prf.encrypt(ids)",
        "state = self._prf.encrypt(np.zeros_like(ids))",
        SHARED,
    ),
    Break(
        "window not in the seed",
        "8: the same noise for two windows",
        "entropy/noise.py",
        "        state[:, 0] ^= np.int64(window).view(np.uint64)\n",
        "",
        SHARED,
    ),
    Break(
        "round not in the seed",
        "8: the same noise for two rounds",
        "entropy/noise.py",
        "        state[:, 1] ^= rounds.astype(np.uint64)\n",
        "",
        ENTROPY_TESTS + "test_noise.py::test_every_input_changes_every_draw",
    ),
    Break(
        "round not counted on",
        "8: the same noise for two rounds",
        "stages/advance.py",
        '    table.rows["round"][rows] += 1\n',
        "",
        GRID,
    ),
    Break(
        "columns have the selection's noise",
        "3: one noise process per (purpose, key, window, round)",
        "stages/advance.py",
        "noise = noises[calibrated.purpose]",
        "noise = noises[SELECTION]",
        SHARED,
    ),
    Break(
        "noise redrawn on retry",
        "8: noise redrawn on retry",
        "entropy/noise.py",
        'Prf(secret.derive(b"noise", fingerprint, purpose.encode()))',
        'Prf(secret.new().derive(b"noise", fingerprint, purpose.encode()))',
        INVARIANTS + "test_a_retry_has_the_same_noise",
    ),
    Break(
        "derivation without lengths",
        "6: inputs are encoded injectively",
        "entropy/secret.py",
        'len(part).to_bytes(4, "big") + part for part in parts',
        "part for part in parts",
        ENTROPY_TESTS + "test_noise.py::test_parts_of_the_context_cannot_be_moved",
    ),
    Break(
        "identifiers of half a block",
        "6: a collision would let one unit's data change another's bounding",
        "entropy/identify.py",
        "        state[k, 1] ^= high\n",
        "",
        SHARED,
    ),
    Break(
        "identifiers without the length",
        "6: inputs are encoded injectively",
        "entropy/identify.py",
        "length = offsets[row + 1] - offsets[row]",
        "length = 0",
        ENTROPY_TESTS + "test_identify.py::test_messages_of_zeros_differ_by_their_length",
    ),
    Break(
        "zero bytes in a text not escaped",
        "6: inputs are encoded injectively",
        "entropy/canonical.py",
        "                    data[at] = 255\n",
        "                    data[at] = 0\n",
        INVARIANTS + "test_a_text_cannot_look_like_two",
    ),
    Break(
        "a unit for every NaN",
        "2: caps use the whole unit, so one value has one encoding",
        "entropy/canonical.py",
        "floats = np.where(np.isnan(floats), np.nan, floats) + 0.0",
        "floats = np.where(floats.view(np.uint64) << np.uint64(1) == 0, 0.0, floats)",
        ENTROPY_TESTS + "test_canonical.py::test_every_nan_is_one",
    ),
    Break(
        "minus zero is another unit",
        "2: caps use the whole unit, so one value has one encoding",
        "entropy/canonical.py",
        "floats = np.where(np.isnan(floats), np.nan, floats) + 0.0",
        "floats = np.where(np.isnan(floats), np.nan, floats)",
        ENTROPY_TESTS + "test_canonical.py::test_floats_of_every_width",
    ),
    Break(
        "the secret is shown",
        "6: the secret is never logged",
        "entropy/secret.py",
        "key: bytes = field(repr=False)",
        "key: bytes = field()",
        ENTROPY_TESTS + "test_secret.py::test_the_key_is_not_shown",
    ),
    Break(
        "tail digits dropped",
        "6: uniforms fine enough that no sum of small values shows",
        "entropy/gaussian.py",
        "below = (blocks[tail[t], 1] + 0.5) * _STEP",
        "below = 0.5",
        ENTROPY_TESTS + "test_gaussian.py::test_second_words_tell_far_normals_apart",
    ),
    Break(
        "normal cut off at 6.6 sigma",
        "6: the normal is not truncated below 9 sigma",
        "entropy/gaussian.py",
        "root[t] = math.sqrt(-_log(chance[t]))",
        "root[t] = min(5.0, math.sqrt(-_log(chance[t])))",
        ENTROPY_TESTS + "test_gaussian.py::test_the_extreme_words_are_exact_and_finite",
    ),
    Break(
        "fingerprint of rounded numbers",
        "6: the fingerprint covers every number that shapes noise or data",
        "plan.py",
        "return value.hex()",
        "return round(value, 6)",
        BAD_INPUT + "test_the_fingerprint_sees_the_last_bit_of_every_number",
    ),
    Break(
        "fingerprint without the caps",
        "6: the fingerprint covers every number that shapes noise or data",
        "plan.py",
        '            "caps": asdict(self.caps),\n',
        "",
        BAD_INPUT + "test_the_fingerprint_sees_the_last_bit_of_every_number",
    ),
    Break(
        "two columns may name one purpose",
        "8: the same noise for two columns",
        "plan.py",
        "if len(set(purposes)) != len(purposes):",
        "if not purposes:",
        INVARIANTS + "test_two_processes_may_not_name_one_purpose",
    ),
]

BOUNDING = [
    Break(
        "C off by one",
        "2: kept iff the unit has fewer than C kept",
        "stages/bound.py",
        "if units[row].kept >= records_max:",
        "if units[row].kept > records_max:",
        CAPS,
    ),
    Break(
        "c off by one",
        "2: and fewer than c kept for this (key, window)",
        "stages/bound.py",
        "if count >= np.uint64(records_per_key_max):",
        "if count > np.uint64(records_per_key_max):",
        CAPS,
    ),
    Break(
        "C not counted",
        "2: kept iff the unit has fewer than C kept",
        "stages/bound.py",
        "        units[row].kept += 1\n",
        "",
        CAPS,
    ),
    Break(
        "c not counted",
        "2: and fewer than c kept for this (key, window)",
        "stages/bound.py",
        "slab[at] = entry + np.uint64(1)",
        "slab[at] = entry",
        CAPS,
    ),
    Break(
        "c forgotten when a block grows",
        "8: c off across two micro-batches",
        "stages/bound.py",
        "slab[_probe(slab, block, wanted, moved)] = slab[source]\n",
        "slab[_probe(slab, block, wanted, moved)] = slab[source] & np.uint64(0xFFFFFFFF00000000)\n",
        BOUND + "test_units_with_many_pairs_equal_the_twin",
    ),
    Break(
        "caps forgotten after each trigger",
        "2: without a period unit state is never dropped",
        "trigger.py",
        "        state.trigger = trigger\n",
        "        state.trigger = trigger\n        state.units.clear()\n",
        CAPS,
    ),
    Break(
        "unit state dropped a trigger early",
        "8: unit state dropped while its records are still accepted",
        "trigger.py",
        "periods = plan.periods.open(trigger + 1)",
        "periods = plan.periods.open(trigger + 2)",
        INVARIANTS + "test_a_unit_is_remembered_until_the_last_trigger_of_its_period",
    ),
    Break(
        "a unit spread over shards by key",
        "2: counting and caps use the whole unit",
        "trigger.py",
        "_shards(records.unit[members], state.shards)",
        "_shards(records.key[members], state.shards)",
        INVARIANTS + "test_a_unit_has_one_state_however_many_shards",
    ),
    Break(
        "Cs ignored",
        "2: fewer than Cs votes are cast",
        "stages/bound.py",
        "if may_vote and units[row].votes < selections_max:",
        "if may_vote:",
        INVARIANTS + "test_votes_are_capped",
    ),
    Break(
        "Cs off by one",
        "2: fewer than Cs votes are cast",
        "stages/bound.py",
        "units[row].votes < selections_max",
        "units[row].votes <= selections_max",
        INVARIANTS + "test_votes_are_capped",
    ),
    Break(
        "a vote for every record",
        "8: a unit counted twice in an instance",
        "stages/bound.py",
        "may_vote = voted < index[k] if rounds else count == 0",
        "may_vote = True",
        ONCE,
    ),
    Break(
        "last vote not remembered",
        "2: the vote carries the trigger of the unit's previous vote there",
        "stages/bound.py",
        "                entry += np.uint64(index[k] - voted) << np.uint64(count_bits)\n",
        "",
        ONCE,
    ),
    Break(
        "vote does not carry prev",
        "2: the vote carries the trigger of the unit's previous vote there",
        "stages/bound.py",
        "                vote[k] = voted\n",
        "                vote[k] = 0\n",
        ONCE,
    ),
    Break(
        "prev not looked at",
        "2: the key side adds 1 iff prev <= its last release",
        "stages/advance.py",
        "if prev[k] <= keys[row].last:",
        "if prev[k] >= 0:",
        ONCE,
    ),
    Break(
        "prev a trigger late",
        "2: the key side adds 1 iff prev <= its last release",
        "stages/advance.py",
        "if prev[k] <= keys[row].last:",
        "if prev[k] <= keys[row].last + 1:",
        ONCE,
    ),
    Break(
        "prev a trigger early",
        "2: the key side adds 1 iff prev <= its last release",
        "stages/advance.py",
        "if prev[k] <= keys[row].last:",
        "if prev[k] < max(keys[row].last, 1):",
        INVARIANTS + "test_a_unit_counts_again_in_the_next_round",
    ),
    Break(
        "votes of different prev added up",
        "2: the key side adds 1 iff prev <= its last release",
        "stages/combine.py",
        "leaders = _assign(key, window, prev, group)",
        "leaders = _assign(key, window, np.zeros_like(prev), group)",
        INVARIANTS + "test_votes_with_another_history_are_counted_apart",
    ),
    Break(
        "colliding tags take the younger window's vote",
        "8: a unit counted twice in an instance",
        "stages/bound.py",
        "may_vote = voted < index[k] if rounds",
        "may_vote = voted != index[k] if rounds",
        BOUND + "test_colliding_tags_drop_more_and_never_count_twice",
    ),
    Break(
        "tag 0 is an empty place",
        "8: c off at the boundary",
        "stages/bound.py",
        "        slab[at] = entry + np.uint64(1)\n",
        "        if tag != 0:\n            slab[at] = entry + np.uint64(1)\n",
        BOUND + "test_id_zero_and_the_first_tag_are_like_any_other",
    ),
    Break(
        "count spills into the vote",
        "8: c off at the boundary",
        "plan.py",
        "plan.caps.records_per_key.bit_length() > 32",
        "plan.caps.records_per_key.bit_length() > 33",
        INVARIANTS + "test_a_count_and_a_vote_fit_the_unit_state_to_the_bit",
    ),
    Break(
        "records kept by arrival",
        "2: in the order (trigger, timestamp, key, window, values)",
        "stages/bound.py",
        "    if timestamp[a] != timestamp[b]:\n        return timestamp[a] < timestamp[b]\n",
        "    if timestamp[a] != timestamp[b]:\n        return False\n",
        BAD_INPUT + "test_one_giant_unit_keeps_its_first_records",
    ),
    Break(
        "ties kept by arrival",
        "2: in the order (trigger, timestamp, key, window, values)",
        "stages/bound.py",
        "            return values[a, k] < values[b, k]\n",
        "            return False\n",
        INVARIANTS + "test_records_that_tie_are_kept_by_their_contents",
    ),
    Break(
        "public distinct ignores Cs",
        "5: COUNT(DISTINCT unit) with public keys costs Cs s^2 / sigma^2",
        "stages/bound.py",
        "first[kept] if rounds else votes",
        "first[kept]",
        INVARIANTS + "test_a_public_distinct_count_is_capped_by_votes",
    ),
    Break(
        "distinct counts every vote",
        "2: within one instance a unit counts once, exactly",
        "stages/bound.py",
        "first[kept] if rounds else votes",
        "votes",
        INVARIANTS + "test_a_distinct_count_adds_a_unit_once_over_all_rounds",
    ),
    Break(
        "ids compared by half",
        "6: units and keys are identified by 128-bit keyed hashes",
        "tables/table.py",
        "        found[k] = -1\n"
        "        while slots[at] != 0:\n"
        "            if slots[at] >> np.uint64(32) == tag:\n"
        "                row = np.int64(slots[at] & low) - 1\n"
        "                if rows[row].id0 == ids[k, 0] and rows[row].id1 == ids[k, 1]:\n",
        "        found[k] = -1\n"
        "        while slots[at] != 0:\n"
        "            if slots[at] >> np.uint64(32) == tag:\n"
        "                row = np.int64(slots[at] & low) - 1\n"
        "                if rows[row].id0 == ids[k, 0]:\n",
        "tables/test_table.py::test_a_table_is_a_dictionary",
    ),
]

ADMISSION = [
    Break(
        "null unit is a unit",
        "2: null unit: the record is dropped",
        "stages/batch.py",
        "            keep &= column.is_valid().to_numpy(zero_copy_only=False)\n",
        "            pass\n",
        BAD_INPUT + "test_null_units_are_dropped_and_null_keys_are_a_group",
    ),
    Break(
        "null unit hidden in a dictionary",
        "2: null unit: the record is dropped",
        "stages/batch.py",
        "    batch = _plain(batch)\n",
        "",
        BAD_INPUT + "test_null_units_hidden_in_a_dictionary_are_dropped_too",
    ),
    Break(
        "late record accepted",
        "1: a record outside the open windows is dropped before bounding",
        "stages/batch.py",
        "return (items >= opened.start) & (items < opened.stop)",
        "return items < opened.stop",
        BAD_INPUT + "test_late_and_far_future_records_spend_nothing",
    ),
    Break(
        "far-future record accepted",
        "1: a record outside the open windows is dropped before bounding",
        "stages/batch.py",
        "return (items >= opened.start) & (items < opened.stop)",
        "return items >= opened.start",
        BAD_INPUT + "test_late_and_far_future_records_spend_nothing",
    ),
    Break(
        "windows close by the largest window seen",
        "8: a watermark taken from data",
        "stages/batch.py",
        "keep = windowed & _is_open(plan.windows, window, trigger)",
        "clock = max(trigger, int(window.max(initial=0)) * (plan.windows.stride or 0) + 1)\n"
        "    keep = windowed & _is_open(plan.windows, window, clock)",
        INVARIANTS + "test_one_record_from_the_future_closes_nobodys_window",
    ),
    Break(
        "key that is not public accepted",
        "2: what does not count uses up nothing",
        "stages/batch.py",
        "return records.subset(np.flatnonzero(public.find(records.key) >= 0))",
        "return records",
        INVARIANTS + "test_a_key_that_is_not_public_uses_up_nothing",
    ),
    Break(
        "no upper clamp",
        "2: clamped to [lo, hi]",
        "stages/batch.py",
        "np.clip(numbers, process.lower, process.upper)",
        "np.maximum(numbers, process.lower)",
        INVARIANTS + "test_a_value_just_past_its_bound_is_clamped",
    ),
    Break(
        "no lower clamp",
        "2: clamped to [lo, hi]",
        "stages/batch.py",
        "np.clip(numbers, process.lower, process.upper)",
        "np.minimum(numbers, process.upper)",
        INVARIANTS + "test_a_value_just_past_its_bound_is_clamped",
    ),
    Break(
        "quantised to nearest",
        "2: quantised towards zero",
        "stages/batch.py",
        "np.trunc(",
        "np.rint(",
        BAD_INPUT + "test_values_are_clamped_and_quantised_towards_zero",
    ),
    Break(
        "infinity is absent",
        "2: +-inf: clamped",
        "stages/batch.py",
        "absent = np.isnan(numbers)",
        "absent = ~np.isfinite(numbers)",
        BAD_INPUT + "test_values_are_clamped_and_quantised_towards_zero",
    ),
    Break(
        "COUNT(x) counts NaN",
        "2: NaN or null value: absent for that aggregate",
        "stages/batch.py",
        "        values[absent, position] = ABSENT\n",
        '        values[absent & (process.kind == "sum"), position] = ABSENT\n',
        INVARIANTS + "test_a_count_of_values_leaves_out_nan_and_null",
    ),
    Break(
        "sums saturate",
        "6: sums are int64 modulo 2^64; saturation would not be post-processing",
        "stages/advance.py",
        "            totals[row, p] += values[k, p]\n",
        "            if values[k, p] > 0 and totals[row, p] > 2**63 - 1 - values[k, p]:\n"
        "                totals[row, p] = 2**63 - 1\n"
        "            else:\n"
        "                totals[row, p] += values[k, p]\n",
        BAD_INPUT + "test_sums_wrap_modulo_two_to_the_64",
    ),
    Break(
        "noise added in floats",
        "6: noise is rounded to the grid and added as integers",
        "stages/advance.py",
        "values[:, position] = totals + noised",
        "values[:, position] = totals.astype(np.float64) + noised",
        INVARIANTS + "test_totals_are_not_rounded_before_the_noise",
    ),
]

RELEASE = [
    Break(
        "an empty trigger skipped",
        "1: every grid trigger runs and commits, with or without records",
        "trigger.py",
        "        _check_turn(plan, state, trigger)\n",
        "        _check_turn(plan, state, trigger)\n"
        "        if len(batch.window) == 0:\n"
        "            state.trigger = trigger\n"
        "            return Step(_collect(plan, trigger, []), {}, {}, {})\n",
        BAD_INPUT + "test_an_empty_micro_batch_is_a_trigger_like_any_other",
    ),
    Break(
        "a trigger left out",
        "1: every grid trigger runs",
        "trigger.py",
        "trigger != state.trigger + 1",
        "trigger <= state.trigger",
        BAD_INPUT + "test_a_trigger_out_of_turn_is_refused[3]",
    ),
    Break(
        "a trigger run twice",
        "1: every grid trigger runs once",
        "trigger.py",
        "trigger != state.trigger + 1",
        "trigger not in (state.trigger, state.trigger + 1)",
        INVARIANTS + "test_no_trigger_runs_twice",
    ),
    Break(
        "more triggers than T",
        "8: more triggers than T must be refused",
        "trigger.py",
        "not 1 <= trigger <= plan.triggers:",
        "not 1 <= trigger:",
        BAD_INPUT + "test_more_triggers_than_paid_for_are_refused",
    ),
    Break(
        "a window is open a trigger too long",
        "1: each window's triggers are 1..T",
        "plan.py",
        "range(-((self.triggers - trigger) // self.stride)",
        "range(-((self.triggers + 1 - trigger) // self.stride)",
        INVARIANTS + "test_a_window_has_the_triggers_that_were_paid_for",
    ),
    Break(
        "released only when touched",
        "8: a key released only when it had new data",
        "stages/advance.py",
        "slots = np.arange(table.released.size)",
        'touched = table.rows["touched"][table.released.rows[: table.released.size]]\n'
        "        slots = np.flatnonzero(touched == index)",
        BAD_INPUT + "test_an_empty_micro_batch_is_a_trigger_like_any_other",
    ),
    Break(
        "a window without records passed over",
        "1: every public key of every grid window is released at every trigger",
        "trigger.py",
        "keys = list(each(by_key, list(self._by_key(state, trigger))))",
        "seen = np.unique(np.concatenate([part.window for part in parts]))\n"
        "        tasks = [t for t in self._by_key(state, trigger) if t[0][0] in seen]\n"
        "        keys = list(each(by_key, tasks))",
        INVARIANTS + "test_public_keys_are_released_at_every_trigger_of_every_window",
    ),
    Break(
        "minimum dropped",
        "4: count > mu",
        "stages/advance.py",
        " or keys[row].count <= minimum:",
        ":",
        INVARIANTS + "test_a_key_needs_more_units_than_the_minimum",
    ),
    Break(
        "minimum off by one",
        "4: count > mu",
        "stages/advance.py",
        "keys[row].count <= minimum",
        "keys[row].count < minimum",
        INVARIANTS + "test_a_key_needs_more_units_than_the_minimum",
    ),
    Break(
        "threshold less one",
        "4: count + noise >= thr",
        "stages/advance.py",
        "if keys[row].count + margin >= 0:",
        "if keys[row].count + margin >= -1:",
        INVARIANTS + "test_a_key_needs_the_whole_threshold",
    ),
    Break(
        "due keys not looked at",
        "7: releases equal those of a scan over every key",
        "stages/advance.py",
        "due = table.take_due(index)",
        "due = np.empty(0, np.int64)",
        INVARIANTS + "test_a_key_is_released_when_it_is_due_without_records",
    ),
    Break(
        "a prediction is not overruled",
        "7: releases equal those of a scan over every key",
        "tables/keys.py",
        "return rows[current]",
        "return rows",
        "tables/test_table.py::test_a_later_prediction_overrules_an_earlier_one",
    ),
    Break(
        "pruning too eager by one",
        "7: while count + M < 0 the key cannot be due",
        "stages/advance.py",
        "keys[row].count + np.int64(keys[row].peak) < 0",
        "keys[row].count + np.int64(keys[row].peak) <= 0",
        JOIN,
    ),
    Break(
        "pruning by the last trigger alone",
        "7: M = max over the remaining triggers",
        "stages/advance.py",
        "peak = max(peak, margin)",
        "peak = margin",
        JOIN,
    ),
    Break(
        "pruning kept for the next round",
        "7: M belongs to its round",
        "stages/advance.py",
        '    table.rows["peak"][rows] = PEAK_UNKNOWN\n',
        "",
        LATER_ROUND,
    ),
    Break(
        "count kept for the next round",
        "4: a release flushes and starts a new round",
        "stages/advance.py",
        '    table.rows["count"][rows] = 0\n',
        "",
        LATER_ROUND,
    ),
    Break(
        "rows in table order",
        "6: released rows are sorted by (window, key bytes)",
        "trigger.py",
        "    order = order.astype(np.int64)\n",
        "    order = np.arange(len(window))\n",
        INVARIANTS + "test_releases_are_in_the_order_of_window_and_key",
    ),
]

JOURNAL = "state/test_journal.py::"
ENGINE = "engines/test_local.py::"
CRASH = "crash/test_damage.py::"

DURABILITY = [
    Break(
        "a retry takes what has arrived since",
        "6: a retry replays exactly the intent's range",
        "engines/local.py",
        "        intent = self._pending()\n        if intent is None:\n",
        "        intent = None\n        if intent is None:\n",
        CRASH + "test_a_retry_reads_what_was_intended",
    ),
    Break(
        "published before it is committed",
        "6: before any byte reaches a sink, the release file is durable",
        "engines/local.py",
        "        self.journal.commit(self.state, step, release, position, self._threads.map)\n"
        "        rows = self._publish(release)\n",
        "        self.sink.emit(trigger, pa.ipc.open_stream(release).read_all())\n"
        "        self.journal.commit(self.state, step, release, position, self._threads.map)\n"
        "        rows = 0\n",
        ENGINE + "test_nothing_is_published_before_it_is_committed",
    ),
    Break(
        "a missed trigger takes records",
        "1: missed triggers are run empty and the records go to the next one",
        "engines/local.py",
        "if trigger < self.schedule.current(self.clock.now()):",
        "if False:",
        ENGINE + "test_missed_triggers_run_empty_and_the_next_takes_their_records",
    ),
    Break(
        "the last trigger runs only if lines are left",
        "1: every grid trigger runs, with or without records",
        "sources/pushed.py",
        "            ended = self.ended.is_set()\n",
        "            ended = self.ended.is_set() and bool(self._lines)\n",
        "sources/test_pushed.py::test_one_trigger_runs_after_the_end_with_lines_or_without",
    ),
    Break(
        "another secret or plan accepted",
        "6: another fingerprint is another instance",
        "state/journal.py",
        "        _check_identity(self.manifest, fresh)\n",
        "",
        JOURNAL + "test_another_secret_plan_or_instance_is_refused",
    ),
    Break(
        "a foreign intent accepted",
        "6: a foreign intent stops the run",
        "state/journal.py",
        '        if (body["fingerprint"], body["instance"]) != expected:\n',
        "        if False:\n",
        JOURNAL + "test_a_foreign_intent_stops_the_run",
    ),
    Break(
        "votes forgotten at a restart",
        "8: Cs off across restarts",
        "stages/bound.py",
        "units[rows[k]].votes += votes[k]",
        "units[rows[k]].votes += 0",
        JOURNAL + "test_a_restart_at_every_trigger_changes_nothing",
    ),
    Break(
        "due keys forgotten at a restart",
        "7: releases equal those of a scan over all keys",
        "tables/keys.py",
        '        self.schedule(np.flatnonzero(rows["due"] > index))\n',
        "",
        JOURNAL + "test_a_restart_at_every_trigger_changes_nothing",
    ),
    Break(
        "unreleased keys in the clear",
        "6: key text is concealed until released",
        "state/tables.py",
        "texts = concealer.conceal(table.ids(new), table.texts(new))",
        "texts = table.texts(new)",
        JOURNAL + "test_unreleased_key_texts_are_not_readable_at_rest",
    ),
]

BREAKS = [*ACCOUNTING, *NOISE_PATHS, *ENTROPY, *BOUNDING, *ADMISSION, *RELEASE, *DURABILITY]
