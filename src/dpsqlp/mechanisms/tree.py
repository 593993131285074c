"""The binary tree mechanism with bottom-up estimates: the paper's continual sum.

Implements the binary tree of Dwork et al. 2010 and Chan et al. 2011 with the estimates from below
of Honaker 2015 (paper, Appendix C). A node of height h covers 2^h triggers. When it completes, its
estimate is the inverse-variance mean of its own draw and the sum of its children's estimates, which
for a node of kappa = h + 1 levels has variance 1 / (2 (1 - 2^-kappa)). xi(i) is the sum of the
estimates of the disjoint nodes that make up 1..i.

Deviation: the root has no draw. Only the prefix T = 2^h would use it, and there the sum of its two
children is used instead; every trigger is then covered by one node less.

Privacy contract: one contribution of size 1 at any trigger moves E x by at most `sensitivity`,
the square root of the number of heights. Larger contributions are bounded by earlier stages and
charged by accounting. The noise is Gaussian and E is causal, so inputs may depend on earlier
outputs (Denisov et al. 2022; docs/proof.md, Lemmas 9 and 10). A path that would go past trigger T
is refused.

Not covered: the draws themselves (entropy), sigma (accounting), rounding (stages).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numba
import numpy as np

from dpsqlp.errors import PlanError, TriggerError
from dpsqlp.mechanisms.base import FloatArray, IntArray


@dataclass(frozen=True, slots=True)
class Tree:
    """A binary tree over T triggers. The state is the estimate of the pending left node of each
    height, 0 where none is pending.
    """

    triggers: int
    sensitivity: float = field(init=False, compare=False)
    variance: FloatArray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Evaluate s and b^2 once."""
        if self.triggers < 1:
            raise PlanError(f"A mechanism needs at least one trigger; got {self.triggers}.")
        variance = np.zeros(self.triggers)
        step = np.arange(1, self.triggers + 1)
        for height in range(self.state_size):
            # At T = 2^h there is no node of height h: two of height h - 1 make up the prefix.
            last = height == self.state_size - 1
            nodes = step >> height if last else step >> height & 1
            variance += nodes / (2 * (1 - 2.0 ** -(height + 1)))
        variance.flags.writeable = False
        object.__setattr__(self, "sensitivity", math.sqrt(self.state_size))
        object.__setattr__(self, "variance", variance)

    @property
    def path_deviation_max(self) -> float:
        """The largest deviation of a release."""
        return math.sqrt(max(self.variance))

    @property
    def state_size(self) -> int:
        """The number of heights, max(1, ceil(log2 T))."""
        return max(1, (self.triggers - 1).bit_length())

    def draws(self, step: IntArray) -> IntArray:
        """The nodes that steps 1..step complete."""
        total = np.zeros_like(step)
        for height in range(self.state_size):
            total += step >> height
        return total

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
        rows = (normal_offsets, start, state, out_offsets)
        if state.shape[1] != self.state_size or not _walk(self.triggers, normals, *rows, out):
            raise TriggerError(
                f"A path does not fit a tree of {self.triggers} triggers: it starts before the "
                "first, goes past the last, or comes with another number of normals or states. "
                "Nothing was evaluated; continue only paths of this mechanism."
            )

    def parameters(self) -> dict[str, Any]:
        """Name and triggers."""
        return {"name": "tree", "triggers": self.triggers}


@numba.njit(nogil=True, cache=True)
def _draws(heights: int, step: int) -> int:
    total = 0
    for height in range(heights):
        total += step >> height
    return total


@numba.njit(nogil=True, cache=True)
def _walk(
    triggers: int,
    normals: FloatArray,
    normal_offsets: IntArray,
    start: IntArray,
    state: FloatArray,
    out_offsets: IntArray,
    out: FloatArray,
) -> bool:
    rows, heights = state.shape
    if not start.size + 1 == normal_offsets.size == out_offsets.size == rows + 1:
        return False
    if min(normal_offsets[0], out_offsets[0]) < 0:
        return False
    if normal_offsets[rows] > normals.size or out_offsets[rows] > out.size:
        return False
    for row in range(rows):
        stop = start[row] + out_offsets[row + 1] - out_offsets[row]
        if not 0 <= start[row] <= stop <= triggers:
            return False
        draws = _draws(heights, stop) - _draws(heights, start[row])
        if normal_offsets[row + 1] - normal_offsets[row] != draws:
            return False

    own = np.empty(heights)  # weight of a node's own draw: its variance, since the draw's is 1
    below = np.empty(heights)  # weight of the sum of its children
    for height in range(heights):
        own[height] = 2.0**height / (2.0 ** (height + 1) - 1)
        below[height] = (2.0**height - 1) / (2.0 ** (height + 1) - 1)
    # prefix[h] is the sum of the pending estimates of height >= h, always added from the top, so
    # that a path continued from its state adds the same numbers in the same order.
    prefix = np.zeros(heights + 1)
    for row in range(rows):
        pending = state[row]
        for height in range(heights - 1, -1, -1):
            prefix[height] = prefix[height + 1] + pending[height]
        draw = normal_offsets[row]
        step = start[row]
        for position in range(out_offsets[row], out_offsets[row + 1]):
            step += 1
            estimate = normals[draw]
            draw += 1
            height = 0
            while height + 1 < heights and not step >> height & 1:  # a right child completes
                children = pending[height] + estimate
                pending[height] = 0.0
                height += 1
                estimate = own[height] * normals[draw] + below[height] * children
                draw += 1
            pending[height] += estimate  # to 0, but for the second child of the root
            prefix[height] = prefix[height + 1] + pending[height]
            for lower in range(height):
                prefix[lower] = prefix[height]
            out[position] = prefix[height]
    return True
