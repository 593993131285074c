"""Figures that the paper reports, for comparison."""

from __future__ import annotations

UNITS = 10_000_000  # of its synthetic day

SYNTHETIC = {  # by triggers: (epsilon, delta) = (6, 1e-9), C = 32
    100: {"keys": 28_338, "linf": 1_391, "l1": 17_741_225, "l2": 50_039},
    1000: {"keys": 22_280, "linf": 1_563, "l1": 19_395_721, "l2": 58_237},
}
BASELINES = {
    100: {
        "repeated": {"keys": 435, "linf": 18_077, "l1": 50_835_203, "l2": 430_547},
        "incremental": {"keys": 191, "linf": 21_913, "l1": 58_551_587, "l2": 576_425},
    },
    1000: {
        "repeated": {"keys": 0, "linf": 25_497, "l1": 59_052_062, "l2": 594_382},
        "incremental": {"keys": 0, "linf": 25_497, "l1": 59_052_062, "l2": 594_382},
    },
}
