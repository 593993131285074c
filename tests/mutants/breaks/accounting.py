"""The deliberate breaks of `accounting`."""

from __future__ import annotations

from mutants.breaks.base import Break

CALIBRATE = "accounting/test_calibrate.py::"
GDP = "accounting/test_gdp.py::"
THRESHOLDS = (
    "accounting/test_thresholds.py::test_thresholds_are_the_smallest_that_keep_the_union_bound"
)
SHARES = CALIBRATE + "test_the_shares_of_squared_nu_are_kept"

BREAKS = [
    Break(
        "selection sigma x 0.9",
        "lemma 11: nu^2 = Cs s^2 / sigma_k^2 + ...",
        "accounting/calibrate.py",
        "sigma = mechanism.sensitivity * math.sqrt(caps.selections / share) / nu",
        "sigma = 0.9 * mechanism.sensitivity * math.sqrt(caps.selections / share) / nu",
        SHARES,
    ),
    Break(
        "process sigma x 0.9",
        "lemma 11: nu^2 = ... + C c L^2 s^2 / sigma^2",
        "accounting/calibrate.py",
        "sigma = process.bound * mechanism.sensitivity",
        "sigma = 0.9 * process.bound * mechanism.sensitivity",
        SHARES,
    ),
    Break(
        "C c charged as C",
        "lemma 11: sum of c_k^2 is at most C c, not C",
        "accounting/privacy_loss.py",
        "return caps.records * caps.records_per_key",
        "return caps.records",
        SHARES,
    ),
    Break(
        "beta not over Cs",
        "lemma 14: delta = delta_0 + Cs beta",
        "accounting/calibrate.py",
        "failure = delta / (2 * caps.selections) if private_keys else 0.0  # [beta]\n"
        "    delta_threshold = caps.selections * failure",
        "failure = delta / 2 if private_keys else 0.0  # [beta]\n    delta_threshold = failure",
        CALIBRATE + "test_the_parts_of_delta_add_up",
    ),
    Break(
        "delta spent twice",
        "lemma 12: delta_0 is what Cs beta leaves of delta",
        "accounting/calibrate.py",
        "delta_gaussian = delta - delta_threshold",
        "delta_gaussian = delta",
        CALIBRATE + "test_the_parts_of_delta_add_up",
    ),
    Break(
        "beta not over T",
        "lemma 13: T beta_step = beta",
        "accounting/thresholds.py",
        "[failure / triggers] * triggers",
        "[failure] * triggers",
        THRESHOLDS,
    ),
    Break(
        "late spending without the harmonic number",
        "lemma 13: the parts of beta add up to beta",
        "accounting/thresholds.py",
        "failure / (_NUDGE * harmonic * n)",
        "failure / (_NUDGE * n)",
        THRESHOLDS,
    ),
    Break(
        "threshold floored",
        "lemma 13: thr rounds up",
        "accounting/thresholds.py",
        "math.ceil(",
        "math.floor(",
        THRESHOLDS,
    ),
    Break(
        "threshold without the half",
        "lemma 13: thr(i) = ceil(mu + 1 + 1/2 + ...), the noise is rounded to nearest",
        "accounting/thresholds.py",
        "minimum + 1.5 +",
        "minimum + 1 +",
        THRESHOLDS,
    ),
    Break(
        "threshold without mu",
        "lemma 13: thr(i) = ceil(mu + ...)",
        "accounting/thresholds.py",
        "minimum + 1.5 +",
        "1.5 +",
        THRESHOLDS,
    ),
    Break(
        "distinct under threshold is free",
        "lemma 16: free only from the selection process under every_trigger",
        "accounting/privacy_loss.py",
        'return 0 if release == "every_trigger" else caps.records',
        "return 0",
        CALIBRATE + "test_distinct_is_free_only_with_private_keys_at_every_trigger",
    ),
    Break(
        "public distinct charged once",
        "lemma 16: COUNT(DISTINCT unit) with public keys costs Cs s^2 / sigma^2",
        "accounting/privacy_loss.py",
        "return caps.selections\n",
        "return 1\n",
        CALIBRATE + "test_distinct_is_free_only_with_private_keys_at_every_trigger",
    ),
    Break(
        "L from the upper bound alone",
        "lemma 11: L = max(|lo|, |hi|)",
        "accounting/model.py",
        "return max(abs(self.lower), abs(self.upper))",
        "return abs(self.upper)",
        "accounting/test_paper.py::test_columns_share_rho_and_distinct_is_charged_c",
    ),
    Break(
        "float error not charged to epsilon",
        "lemma 19: at most epsilon / 1000, and it is charged",
        "accounting/calibrate.py",
        "epsilon_gaussian = epsilon * (1 - FLOAT_SHARE)",
        "epsilon_gaussian = epsilon",
        CALIBRATE + "test_nu_leaves_room_for_float_error_in_epsilon_and_in_delta",
    ),
    Break(
        "float error not charged to delta",
        "lemma 19: probabilities move by a factor, delta_0 with them",
        "accounting/calibrate.py",
        "delta_gaussian * math.exp(epsilon_gaussian - epsilon)",
        "delta_gaussian",
        CALIBRATE + "test_nu_leaves_room_for_float_error_in_epsilon_and_in_delta",
    ),
    Break(
        "float error without the root of T",
        "lemma 19: q is chosen so that 4 T P r is at most epsilon / 1000",
        "accounting/privacy_loss.py",
        "_PATH_ERROR * math.sqrt(mechanism.triggers)",
        "_PATH_ERROR",
        CALIBRATE + "test_a_sum_has_the_smallest_power_of_two_that_suffices",
    ),
    Break(
        "float error of a single draw not charged",
        "lemma 19: q is chosen so that 4 T P r is at most epsilon / 1000",
        "accounting/privacy_loss.py",
        "_DRAW_ERROR + _PATH_ERROR",
        "_PATH_ERROR",
        CALIBRATE + "test_a_sum_has_the_smallest_power_of_two_that_suffices",
    ),
    Break(
        "noise too large is not refused",
        "lemma 19: plans whose float error exceeds its share are refused",
        "accounting/calibrate.py",
        "if not (error <= allowance and path <= _LARGEST_PATH):",
        "if not path <= _LARGEST_PATH:",
        CALIBRATE + "test_noise_is_refused_just_where_its_float_error_exceeds_the_thousandth",
    ),
    Break(
        "quantum too fine for a value",
        "lemma 18: plans with L / q above 2^22 are refused",
        "accounting/calibrate.py",
        "_LARGEST_VALUE = 2.0**22",
        "_LARGEST_VALUE = 2.0**24",
        CALIBRATE + "test_a_sum_has_the_smallest_power_of_two_that_suffices",
    ),
    Break(
        "nu rounds towards less noise",
        "lemma 12: the output is (epsilon, delta_0)-DP at this nu",
        "accounting/gdp.py",
        "_NU_SLACK = 1 - 2.0**-30",
        "_NU_SLACK = 1 + 2.0**-30",
        GDP + "test_nu_is_the_largest_that_keeps_delta",
    ),
    Break(
        "profile of another nu",
        "lemma 12: delta_0 = Phi(nu/2 - epsilon/nu) - e^epsilon Phi(-nu/2 - epsilon/nu)",
        "accounting/gdp.py",
        "a, b = middle - nu / 2, middle + nu / 2",
        "a, b = middle, middle + nu",
        GDP + "test_delta_is_exact_to_eleven_digits",
    ),
    Break(
        "selection left out of what is spent",
        "lemma 11: nu^2 sums over all noise processes",
        "accounting/privacy_loss.py",
        "terms.append(caps.selections / selection.sigma**2)",
        "terms.append(0.0)",
        CALIBRATE + "test_less_noise_or_a_larger_failure_costs_more",
    ),
]
