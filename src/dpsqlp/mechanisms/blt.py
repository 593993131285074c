"""Buffered linear Toeplitz (BLT): near-optimal noise for continual sums with little state.

Implements the BLT mechanism of Dvijotham, McMahan, Pillutla, Steinke and Thakurta 2024. E is lower
triangular Toeplitz with coefficients e_0 = 1, e_k = sum_m theta_m decay_m^(k-1), and B = A E^-1.
A path solves E w = z and adds up: xi = cumsum(w). The parameters minimise s b(T), the deviation of
the worst release at equal privacy; they are compared with A^(1/2), the best Toeplitz factor.

The final row. The columns of E are charged as if all were as long as the first, s, but column j
ends at trigger T. One more row g, used at T, makes all of them that long:
g_j = sqrt(s^2 - |E_j|^2). With v E = g, beta the last row of B and one more normal,

    a = <beta, v> / (1 + |v|^2),    xi'(T) = xi(T) - a (<v, z> - z_{T+1}),
    b'^2(T) = b^2(T) - <beta, v>^2 / (1 + |v|^2)

take the place of xi(T) and b^2(T). The releases before T are as they were. (beta - a v, a) is the
shortest row that gives the prefix sum from E with g below it.

Deviation: theta and decay are free and fitted with closed forms for s and b(T), instead of being
built from a rational approximation; the final row is ours.

Privacy contract: one contribution of size 1 at any trigger moves E x, with g x below it, by at most
`sensitivity`, the length of E's first column. Larger contributions are bounded by earlier stages
and charged by accounting. The noise is Gaussian and E is causal, so inputs may depend on earlier
outputs (Denisov et al. 2022; docs/proof.md, Lemmas 9, 10 and 28). A path that would go past trigger
T is refused. Any parameters give the same privacy; a bad fit costs only accuracy. A fit is stored
with the plan and never repeated for a running pipeline: other digits would be other noise. The
final row follows from the fit by a kernel whose operations have a fixed order.

Not covered: the draws themselves (entropy), sigma (accounting), rounding (stages). Float error is
not damped: paths are off by up to about 2^-52 sqrt(T) b(i), and at trigger T by that much of
`path_deviation_max`, which accounting must charge.
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
    """A BLT over T triggers. The state is one buffer per pair (theta, decay), then xi, then
    a <v, z> of the normals so far.
    """

    triggers: int
    theta: tuple[float, ...]
    decay: tuple[float, ...]
    sensitivity: float = field(init=False, compare=False)
    variance: FloatArray = field(init=False, repr=False, compare=False)
    path_deviation_max: float = field(init=False, compare=False)
    final_row: FloatArray = field(init=False, repr=False, compare=False)  # a v, then a

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
        theta, decay = self._coefficients()
        with np.errstate(over="ignore", invalid="ignore"):
            column = np.zeros(self.triggers)
            for one, other in zip(self.theta, self.decay, strict=True):
                column[1:] += one * other ** np.arange(self.triggers - 1)
            column[0] = 1.0
            sensitivity = math.sqrt(np.sum(column**2))
            response = np.empty(self.triggers)
            _impulse_response(theta, decay, response)
            variance = np.cumsum(response**2)
            worst = math.sqrt(variance[-1]) if variance[-1] >= 0 else math.nan
            final_row, saved = _final_row(theta, decay, response)
            variance[-1] -= saved
        if not (math.isfinite(sensitivity) and math.isfinite(worst) and math.isfinite(saved)):
            raise PlanError(
                f"The noise of a BLT must be finite over its {self.triggers} triggers; got "
                f"theta = {self.theta}, decay = {self.decay}. Use the parameters of a fit."
            )
        variance.flags.writeable = False
        final_row.flags.writeable = False
        object.__setattr__(self, "sensitivity", sensitivity)
        object.__setattr__(self, "variance", variance)
        object.__setattr__(self, "path_deviation_max", worst + math.sqrt(saved))
        object.__setattr__(self, "final_row", final_row)

    def _coefficients(self) -> tuple[FloatArray, FloatArray]:
        return np.array(self.theta, np.float64), np.array(self.decay, np.float64)

    @property
    def state_size(self) -> int:
        """The buffers, xi, and the part of the final row."""
        return len(self.theta) + 2

    def draws(self, step: IntArray) -> IntArray:
        """One per trigger, and one more at the last."""
        draws: IntArray = step + (step == self.triggers)
        return draws

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
        theta, decay = self._coefficients()
        rows = (normal_offsets, start, state, out_offsets)
        if not _walk(self.triggers, theta, decay, self.final_row, normals, *rows, out):
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
    """The BLT of fewest buffers whose s b(T), without the final row, is within 0.2 % of A^(1/2), or
    the best of up to six.

    Deterministic for one version of scipy and its linear algebra, not across them.
    """
    from scipy import optimize  # slow to import, and a stored plan needs no fit

    if triggers < 2:
        return Blt(triggers, (), ())
    k = np.arange(1, triggers)
    goal = math.log(_EXCESS * (1 + float(np.sum(np.cumprod((2 * k - 1) / (2 * k)) ** 2))))
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
        fits.append((float(result.fun), buffers, result.x))
        if result.fun <= goal:
            break
    theta, gap = _unpack(min(fits)[2])
    return Blt(triggers, tuple(theta.tolist()), tuple((1 - gap).tolist()))


def _unpack(x: FloatArray) -> tuple[FloatArray, FloatArray]:
    """theta and 1 - decay from their unconstrained form."""
    log_theta, log_time = np.split(x, 2)
    return np.exp(log_theta), 1 / (1 + np.exp(log_time))


def _log_error(x: FloatArray, triggers: int) -> float:
    """log(s b(T)) without the final row, in closed form.

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


# Symbols of the kernels: s the buffers, then xi, then the part of the final row; z the normals; w
# as in E w = z; final is a v, then a. No fastmath: a path must be the same bits however it is
# split.


@numba.njit(nogil=True, cache=True)
def _impulse_response(theta: FloatArray, decay: FloatArray, out: FloatArray) -> None:
    """The first column of B = A E^-1, which is the path of the normals 1, 0, 0, ..."""
    buffers = np.zeros(theta.size)
    xi = 0.0
    for i in range(out.size):
        w = 1.0 if i == 0 else 0.0
        for m in range(theta.size):
            w -= theta[m] * buffers[m]
        for m in range(theta.size):
            buffers[m] = decay[m] * buffers[m] + w
        xi += w
        out[i] = xi


@numba.njit(nogil=True, cache=True)
def _final_row(
    theta: FloatArray, decay: FloatArray, response: FloatArray
) -> tuple[FloatArray, float]:
    """a v, then a; and how much the final row takes from b^2(T). `response` is B's first column,
    and read backwards its last row.
    """
    triggers = response.size
    column = np.empty(triggers)  # of E
    column[0] = 1.0
    power = np.ones(theta.size)
    for k in range(1, triggers):
        column[k] = 0.0
        for m in range(theta.size):
            column[k] += theta[m] * power[m]
            power[m] *= decay[m]
    row = np.zeros(triggers + 1)
    missing = 0.0  # s^2 - |E_j|^2, added up from the smallest
    for j in range(1, triggers):
        missing += column[triggers - j] * column[triggers - j]
        row[j] = math.sqrt(missing)
    buffers = np.zeros(theta.size)  # v E = g is solved backwards
    product = 0.0
    length = 1.0
    for j in range(triggers - 1, -1, -1):
        for m in range(theta.size):
            row[j] -= theta[m] * buffers[m]
        for m in range(theta.size):
            buffers[m] = decay[m] * buffers[m] + row[j]
        product += response[triggers - 1 - j] * row[j]
        length += row[j] * row[j]
    scale = product / length
    for j in range(triggers):
        row[j] *= scale
    row[triggers] = scale
    return row, product * scale


@numba.njit(nogil=True, cache=True)
def _walk(
    triggers: int,
    theta: FloatArray,
    decay: FloatArray,
    final: FloatArray,
    normals: FloatArray,
    normal_offsets: IntArray,
    start: IntArray,
    state: FloatArray,
    out_offsets: IntArray,
    out: FloatArray,
) -> bool:
    rows = state.shape[0]
    if state.shape[1] != theta.size + 2:
        return False
    if not start.size + 1 == normal_offsets.size == out_offsets.size == rows + 1:
        return False
    if min(normal_offsets[0], out_offsets[0]) < 0:
        return False
    if normal_offsets[rows] > normals.size or out_offsets[rows] > out.size:
        return False
    for row in range(rows):
        length = out_offsets[row + 1] - out_offsets[row]
        stop = start[row] + length
        if not 0 <= start[row] <= stop <= triggers:
            return False
        draws = length + (1 if start[row] < stop == triggers else 0)
        if normal_offsets[row + 1] - normal_offsets[row] != draws:
            return False

    # Each step depends on the one before, so four rows are interleaved. When a row ends, the next
    # one takes its lane.
    lane_row = np.empty(4, np.int64)
    lane_step = np.empty(4, np.int64)
    lane_normal = np.empty(4, np.int64)
    lane_out = np.empty(4, np.int64)
    lanes = 0
    row = 0
    while True:
        while lanes < 4 and row < rows:
            lane_row[lanes] = row
            lane_step[lanes] = start[row]
            lane_normal[lanes] = normal_offsets[row]
            lane_out[lanes] = out_offsets[row]
            lanes += 1
            row += 1
        if lanes < 4:
            break
        steps = triggers
        for lane in range(4):
            steps = min(steps, out_offsets[lane_row[lane] + 1] - lane_out[lane])
        _four(
            theta, decay, final, normals, lane_step, lane_normal, state, lane_row, out, lane_out,
            steps,
        )  # fmt: skip
        lanes = 0
        for lane in range(4):
            if lane_out[lane] + steps < out_offsets[lane_row[lane] + 1]:
                lane_row[lanes] = lane_row[lane]
                lane_step[lanes] = lane_step[lane] + steps
                lane_normal[lanes] = lane_normal[lane] + steps
                lane_out[lanes] = lane_out[lane] + steps
                lanes += 1
    for lane in range(lanes):
        steps = out_offsets[lane_row[lane] + 1] - lane_out[lane]
        _one(
            theta,
            decay,
            final,
            normals,
            lane_step[lane],
            lane_normal[lane],
            state[lane_row[lane]],
            out,
            lane_out[lane],
            steps,
        )
    for row in range(rows):
        end = out_offsets[row + 1]
        if end > out_offsets[row] and start[row] + end - out_offsets[row] == triggers:
            last = normals[normal_offsets[row + 1] - 1]
            out[end - 1] -= state[row, theta.size + 1] - final[triggers] * last
    return True


@numba.njit(nogil=True, cache=True)
def _one(
    theta: FloatArray,
    decay: FloatArray,
    final: FloatArray,
    z: FloatArray,
    step: int,
    z_at: int,
    s: FloatArray,
    out: FloatArray,
    out_at: int,
    steps: int,
) -> None:
    xi = s[theta.size]
    part = s[theta.size + 1]
    for i in range(steps):
        w = z[z_at + i]
        part += final[step + i] * w
        for m in range(theta.size):
            w -= theta[m] * s[m]
        for m in range(theta.size):
            s[m] = decay[m] * s[m] + w
        xi += w
        out[out_at + i] = xi
    s[theta.size] = xi
    s[theta.size + 1] = part


@numba.njit(nogil=True, cache=True)
def _four(
    theta: FloatArray,
    decay: FloatArray,
    final: FloatArray,
    z: FloatArray,
    step: IntArray,
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
    part_0, part_1, part_2, part_3 = s_0[d + 1], s_1[d + 1], s_2[d + 1], s_3[d + 1]
    step_0, step_1, step_2, step_3 = step[0], step[1], step[2], step[3]
    z_0, z_1, z_2, z_3 = z_at[0], z_at[1], z_at[2], z_at[3]
    out_0, out_1, out_2, out_3 = out_at[0], out_at[1], out_at[2], out_at[3]
    for i in range(steps):
        w_0, w_1, w_2, w_3 = z[z_0 + i], z[z_1 + i], z[z_2 + i], z[z_3 + i]
        part_0 += final[step_0 + i] * w_0
        part_1 += final[step_1 + i] * w_1
        part_2 += final[step_2 + i] * w_2
        part_3 += final[step_3 + i] * w_3
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
    s_0[d + 1], s_1[d + 1], s_2[d + 1], s_3[d + 1] = part_0, part_1, part_2, part_3
