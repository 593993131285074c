"""The deliberate breaks of `dashboard`."""

from __future__ import annotations

from mutants.breaks.base import Break

UNRELEASED = "dashboard/test_privacy.py::test_unreleased_data_changes_no_byte"
TOKEN = "dashboard/test_security.py::test_a_token_is_asked_for"
OWN = "lemma 24: nothing shown depends on unreleased data"
LOOKERS = "the dashboard: who may look"

BREAKS = [
    Break(
        "a published release is replaced in the archive of the page",
        "lemma 23: a retry re-emits that file",
        "dashboard/archive.py",
        "store_once(self._storage, trigger, parquet_name(trigger), buffer.getvalue())",
        "self._storage.put(parquet_name(trigger), [buffer.getvalue()])",
        "dashboard/test_api.py::test_a_kept_release_is_not_replaced",
    ),
    Break(
        "the page shows the size of the state",
        OWN,
        "dashboard/health.py",
        '"seconds_since_due": None,',
        '"seconds_since_due": sum(p.stat().st_size for p in history.folder.parent.rglob("*.*")),',
        UNRELEASED,
    ),
    Break(
        "the page needs the state",
        OWN,
        "dashboard/api.py",
        '"operator_metrics": operator,',
        '"operator_metrics": (self._histories[0].folder.parent / "popular").exists(),',
        "dashboard/test_privacy.py::test_the_state_the_stream_and_the_secret_are_not_needed",
    ),
    Break(
        "releases are kept with where they came from",
        OWN,
        "dashboard/archive.py",
        '{"status": status}',
        '{"status": status, "folder": str(self.folder)}',
        "dashboard/test_privacy.py::test_nothing_of_the_instance_or_the_source_is_shown",
    ),
    Break(
        "operator metrics are always written",
        OWN,
        "dashboard/attach.py",
        "if self._settings.operator:",
        "if True:",
        "dashboard/test_privacy.py::test_a_run_writes_operator_metrics_only_when_asked",
    ),
    Break(
        "operator metrics without their mark",
        OWN,
        "dashboard/metrics.py",
        "dpsqlp_operator_{field}_not_private",
        "dpsqlp_operator_{field}",
        "dashboard/test_privacy.py::test_operator_metrics_are_off",
    ),
    Break(
        "the log repeats errors",
        OWN,
        "dashboard/app.py",
        "{type(error).__name__} at {path}",
        "{error} at {path}",
        "dashboard/test_privacy.py::test_an_error_is_logged_without_what_was_asked",
    ),
    Break(
        "any token will do",
        LOOKERS,
        "dashboard/guard.py",
        'return same and kind.lower() == b"bearer"',
        'return kind.lower() == b"bearer"',
        TOKEN,
    ),
    Break(
        "the beginning of the token will do",
        LOOKERS,
        "dashboard/guard.py",
        "same = hmac.compare_digest(given.strip(), self._policy.token.encode())",
        "same = self._policy.token.encode().startswith(given.strip())",
        TOKEN,
    ),
    Break(
        "metrics without a token",
        LOOKERS,
        "dashboard/guard.py",
        'PROTECTED = ("/api/", "/openapi.json", "/metrics")',
        'PROTECTED = ("/api/", "/openapi.json")',
        TOKEN,
    ),
    Break(
        "any name of the server will do",
        LOOKERS,
        "dashboard/guard.py",
        "if self._policy.hosts is None:",
        "if True:",
        "dashboard/test_security.py::test_another_name_is_refused",
    ),
    Break(
        "everybody is served without a token",
        LOOKERS,
        "dashboard/server.py",
        "if settings.token is None and not is_loopback(settings.host):",
        "if False:",
        "dashboard/test_security.py::test_beyond_this_machine_only_with_a_token",
    ),
    Break(
        "other methods are answered",
        LOOKERS,
        "dashboard/guard.py",
        'if scope["method"] not in ("GET", "HEAD"):',
        "if False:",
        "dashboard/test_security.py::test_nothing_can_be_changed",
    ),
    Break(
        "requests of any length",
        LOOKERS,
        "dashboard/guard.py",
        "> ADDRESS_MAX:",
        "> 10**9:",
        "dashboard/test_security.py::test_oversized_requests_are_refused",
    ),
    Break(
        "scripts in the page",
        LOOKERS,
        "dashboard/guard.py",
        "script-src 'self'",
        "script-src 'self' 'unsafe-inline'",
        "dashboard/test_security.py::test_every_answer_has_safe_headers",
    ),
    Break(
        "keys as markup",
        LOOKERS,
        "dashboard/static/dom.js",
        'return h("bdi", {}, visible(',
        'return Object.assign(h("bdi"), { innerHTML: text }, visible(',
        "dashboard/test_security.py::test_the_page_loads_nothing_from_elsewhere",
    ),
    Break(
        "a guess without selection's part of delta",
        "lemma 14: delta = delta_0 + Cs beta",
        "dashboard/statement.py",
        'apart += numbers["delta_threshold"] + math',
        "apart += math",
        "dashboard/test_api.py::test_a_guess_is_bounded_by_the_profile_at_epsilon_zero",
    ),
]
