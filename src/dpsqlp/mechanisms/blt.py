"""Buffered linear Toeplitz (BLT): near-optimal noise for continual sums with little state.

Implements the BLT mechanism of Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024. E is lower
triangular Toeplitz with coefficients e_0 = 1, e_k = sum_m theta_m decay_m^(k-1), and B = A E^-1.
A path solves E w = z and adds up: xi = cumsum(w). The parameters minimise s b(T), the deviation of
the last and worst release at equal privacy; they are compared with A^(1/2), the best Toeplitz
factor.

Deviation: theta and decay are free and fitted with closed forms for s and b(T), instead of being
built from a rational approximation.

Privacy contract: one contribution of size 1 at any trigger moves E x by at most `sensitivity`, the
length of E's first column (the others are shifted and truncated, so not longer). Larger
contributions are bounded by earlier stages and charged by accounting. The noise is Gaussian and E
is causal, so inputs may depend on earlier outputs (Denisov et al. 2022; docs/proof.md, Lemmas 9 and
10). A path that would go past trigger T is refused. Any parameters give the same privacy; a bad fit
costs only accuracy. A fit is stored with the plan and never repeated for a running pipeline: other
digits would be other noise.

Not covered: the draws themselves (entropy), sigma (accounting), rounding (stages). Float error is
not damped: paths are off by up to about 2^-52 sqrt(T) b(i), which accounting must charge.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np

from dpsqlp.errors import PlanError, TriggerError
from dpsqlp.mechanisms.base import FloatArray, IntArray

_BUFFERS_MAX = 6
_EXCESS = 1.002  # over A^(1/2): below it, more buffers cost more time than the noise they save


@dataclass(frozen=True, slots=True)
class Blt:
    """A BLT over T triggers. The state is one buffer per pair (theta, decay), then xi."""

    triggers: int
    theta: tuple[float, ...]
    decay: tuple[float, ...]
    sensitivity: float = field(init=False, compare=False)
    variance: FloatArray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Refuse parameters of no BLT, or with infinite noise, and evaluate s and b^2 once."""
        if self.triggers < 1:
            raise PlanError(f"A mechanism needs at least one trigger; got {self.triggers}.")
        if (
            len(self.theta) != len(self.decay)
            or not all(0 < theta < math.inf for theta in self.theta)
            or not all(0 < decay < 1 for decay in self.decay)
        ):
            raise PlanError(
                "A BLT needs pairs of theta > 0 and 0 < decay < 1; got "
                f"theta = {self.theta}, decay = {self.decay}. Use the parameters of a fit."
            )
        with np.errstate(over="ignore", invalid="ignore"):
            column = np.zeros(self.triggers)
            for theta, decay in zip(self.theta, self.decay, strict=True):
                column[1:] += theta * decay ** np.arange(self.triggers - 1)
            column[0] = 1.0
            sensitivity = math.sqrt(np.sum(column**2))
            variance = np.cumsum(self._impulse_response() ** 2)
        if not (math.isfinite(sensitivity) and math.isfinite(variance[-1])):
            raise PlanError(
                f"The noise of a BLT must be finite over its {self.triggers} triggers; got "
                f"theta = {self.theta}, decay = {self.decay}. Use the parameters of a fit."
            )
        variance.flags.writeable = False
        object.__setattr__(self, "sensitivity", sensitivity)
        object.__setattr__(self, "variance", variance)

    def _impulse_response(self) -> FloatArray:
        """The first column of B, which is the path of the normals 1, 0, 0, ..."""
        normals = np.zeros(self.triggers)
        normals[0] = 1.0
        out = np.empty(self.triggers)
        row = np.array([0, self.triggers])
        self.walk(normals, row, row[:1], np.zeros((1, self.state_size)), out, row)
        return out

    @property
    def state_size(self) -> int:
        """The buffers and xi."""
        return len(self.theta) + 1

    def draws(self, step: IntArray) -> IntArray:
        """One per trigger."""
        return step.copy()

    def walk(
        self,
        normals: FloatArray,
        normal_offsets: IntArray,
        start: IntArray,
        state: FloatArray,
        out: FloatArray,
        out_offsets: IntArray,
    ) -> None:
        """Continue many paths at once, see `Mechanism.walk`."""
        theta = np.array(self.theta, dtype=np.float64)
        decay = np.array(self.decay, dtype=np.float64)
        rows = (normal_offsets, start, state, out_offsets)
        if not _walk(self.triggers, theta, decay, normals, *rows, out):
            raise TriggerError(
                f"A path does not fit a BLT of {self.triggers} triggers: it starts before the "
                "first, goes past the last, or comes with another number of normals or states. "
                "Nothing was evaluated; continue only paths of this mechanism."
            )

    def parameters(self) -> dict[str, Any]:
        """Name, triggers and both coefficients."""
        return {
            "name": "blt",
            "triggers": self.triggers,
            "theta": list(self.theta),
            "decay": list(self.decay),
        }


def fit(triggers: int) -> Blt:
    """The BLT of fewest buffers whose s b(T) is within 0.2 % of A^(1/2), or the best of up to six.

    Deterministic for one version of scipy and its linear algebra, not across them.
    """
    from scipy import optimize  # slow to import, and a stored plan needs no fit

    if triggers < 2:
        return Blt(triggers, (), ())
    k = np.arange(1, triggers)
    goal = _EXCESS * (1 + float(np.sum(np.cumprod((2 * k - 1) / (2 * k)) ** 2)))
    fits = []
    for buffers in range(1, _BUFFERS_MAX + 1):
        # Decay times 1 / (1 - decay) spread over 1..T; theta as in e_k ~ k^(-1/2), sum about 1/2.
        log_time = math.log(triggers) * (np.arange(buffers) + 0.5) / buffers
        theta = np.exp(-log_time / 2)
        guess = np.concatenate([np.log(0.5 * theta / np.sum(theta)), log_time])
        result = optimize.minimize(
            _log_error,
            guess,
            args=(triggers,),
            method="L-BFGS-B",
            bounds=[(-30.0, 0.0)] * buffers + [(-7.0, math.log(triggers) + 7.0)] * buffers,
            options={"maxiter": 1000, "maxfun": 40000, "ftol": 1e-12, "gtol": 1e-9},
        )
        theta, gap = _unpack(result.x)
        fitted = Blt(triggers, tuple(theta.tolist()), tuple((1 - gap).tolist()))
        error = fitted.sensitivity * math.sqrt(fitted.variance[-1])
        fits.append((error, buffers, fitted))
        if error <= goal:
            break
    return min(fits)[2]


def _unpack(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """theta and 1 - decay from their unconstrained form."""
    log_theta, log_time = np.split(x, 2)
    return np.exp(log_theta), 1 / (1 + np.exp(log_time))


def _log_error(x: FloatArray, triggers: int) -> float:
    """log(s b(T)), in closed form.

    With v = sqrt(theta), E^-1 has the coefficients -v' M^(k-1) v, M = diag(decay) - v v'. On the
    eigenvalues mu of M they are sums of powers again, and so are their prefix sums b_k.
    """
    theta, gap = _unpack(x)
    decay = 1 - gap
    v = np.sqrt(theta)
    mu_gap, vectors = np.linalg.eigh(np.diag(gap) + np.outer(v, v))  # 1 - mu
    if mu_gap[-1] >= 2:  # mu <= -1: noise that grows
        return 1e3
    mu = 1 - mu_gap
    c = (vectors.T @ v) ** 2 / mu_gap
    rest = 1 - np.sum(c)  # b_k = rest + sum_m c_m mu_m^k
    decays, mus = np.outer(decay, decay), np.outer(mu, mu)
    s2 = 1 + theta @ ((1 - decays ** (triggers - 1)) / (1 - decays)) @ theta
    b2 = (
        triggers * rest**2
        + 2 * rest * np.sum(c * (1 - mu**triggers) / mu_gap)
        + c @ ((1 - mus**triggers) / (1 - mus)) @ c
    )
    return 0.5 * math.log(s2 * b2)


# Symbols of the kernels: s the buffers, s[-1] xi; z the normals; w as in E w = z.
# No fastmath: a path must be the same bits however it is split.


@numba.njit(nogil=True, cache=True)
def _walk(
    triggers: int,
    theta: FloatArray,
    decay: FloatArray,
    normals: FloatArray,
    normal_offsets: IntArray,
    start: IntArray,
    state: FloatArray,
    out_offsets: IntArray,
    out: FloatArray,
) -> bool:
    rows = state.shape[0]
    if state.shape[1] != theta.size + 1:
        return False
    if not start.size + 1 == normal_offsets.size == out_offsets.size == rows + 1:
        return False
    if min(normal_offsets[0], out_offsets[0]) < 0:
        return False
    if normal_offsets[rows] > normals.size or out_offsets[rows] > out.size:
        return False
    for row in range(rows):
        length = out_offsets[row + 1] - out_offsets[row]
        if not 0 <= start[row] <= start[row] + length <= triggers:
            return False
        if normal_offsets[row + 1] - normal_offsets[row] != length:
            return False

    # Each step depends on the one before, so four rows are interleaved. When a row ends, the next
    # one takes its lane.
    lane_row = np.empty(4, np.int64)
    lane_normal = np.empty(4, np.int64)
    lane_out = np.empty(4, np.int64)
    lanes = 0
    row = 0
    while True:
        while lanes < 4 and row < rows:
            lane_row[lanes] = row
            lane_normal[lanes] = normal_offsets[row]
            lane_out[lanes] = out_offsets[row]
            lanes += 1
            row += 1
        if lanes < 4:
            break
        steps = triggers
        for lane in range(4):
            steps = min(steps, out_offsets[lane_row[lane] + 1] - lane_out[lane])
        _four(theta, decay, normals, lane_normal, state, lane_row, out, lane_out, steps)
        lanes = 0
        for lane in range(4):
            if lane_out[lane] + steps < out_offsets[lane_row[lane] + 1]:
                lane_row[lanes] = lane_row[lane]
                lane_normal[lanes] = lane_normal[lane] + steps
                lane_out[lanes] = lane_out[lane] + steps
                lanes += 1
    for lane in range(lanes):
        steps = out_offsets[lane_row[lane] + 1] - lane_out[lane]
        _one(
            theta,
            decay,
            normals,
            lane_normal[lane],
            state[lane_row[lane]],
            out,
            lane_out[lane],
            steps,
        )
    return True


@numba.njit(nogil=True, cache=True)
def _one(
    theta: FloatArray,
    decay: FloatArray,
    z: FloatArray,
    z_at: int,
    s: FloatArray,
    out: FloatArray,
    out_at: int,
    steps: int,
) -> None:
    xi = s[theta.size]
    for i in range(steps):
        w = z[z_at + i]
        for m in range(theta.size):
            w -= theta[m] * s[m]
        for m in range(theta.size):
            s[m] = decay[m] * s[m] + w
        xi += w
        out[out_at + i] = xi
    s[theta.size] = xi


@numba.njit(nogil=True, cache=True)
def _four(
    theta: FloatArray,
    decay: FloatArray,
    z: FloatArray,
    z_at: IntArray,
    state: FloatArray,
    rows: IntArray,
    out: FloatArray,
    out_at: IntArray,
    steps: int,
) -> None:
    """`_one` on four rows, the same operations in the same order for each."""
    d = theta.size
    s_0, s_1, s_2, s_3 = state[rows[0]], state[rows[1]], state[rows[2]], state[rows[3]]
    xi_0, xi_1, xi_2, xi_3 = s_0[d], s_1[d], s_2[d], s_3[d]
    z_0, z_1, z_2, z_3 = z_at[0], z_at[1], z_at[2], z_at[3]
    out_0, out_1, out_2, out_3 = out_at[0], out_at[1], out_at[2], out_at[3]
    for i in range(steps):
        w_0, w_1, w_2, w_3 = z[z_0 + i], z[z_1 + i], z[z_2 + i], z[z_3 + i]
        for m in range(d):
            w_0 -= theta[m] * s_0[m]
            w_1 -= theta[m] * s_1[m]
            w_2 -= theta[m] * s_2[m]
            w_3 -= theta[m] * s_3[m]
        for m in range(d):
            s_0[m] = decay[m] * s_0[m] + w_0
            s_1[m] = decay[m] * s_1[m] + w_1
            s_2[m] = decay[m] * s_2[m] + w_2
            s_3[m] = decay[m] * s_3[m] + w_3
        xi_0 += w_0
        xi_1 += w_1
        xi_2 += w_2
        xi_3 += w_3
        out[out_0 + i], out[out_1 + i], out[out_2 + i], out[out_3 + i] = xi_0, xi_1, xi_2, xi_3
    s_0[d], s_1[d], s_2[d], s_3[d] = xi_0, xi_1, xi_2, xi_3
