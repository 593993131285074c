"""The contract of a continual-sum mechanism.

A mechanism over T triggers is a causal factorisation A = B E of the prefix-sum matrix A. The
release at trigger i is `total(i) + sigma * xi(i)` with xi = B z and z standard normal. xi never
depends on data, so it can be evaluated in advance and continued from a saved state.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


class Mechanism(Protocol):
    """A factorisation for a fixed number of triggers, at sigma = 1."""

    @property
    def triggers(self) -> int:
        """[T]."""

    @property
    def sensitivity(self) -> float:
        """[s], the length of the longest column of E (blt: with its final row)."""

    @property
    def variance(self) -> FloatArray:
        """[b^2(i)] for i = 1..T: the squared length of row i of B."""

    @property
    def path_deviation_max(self) -> float:
        """No number that a path adds up deviates by more; float error is relative to it."""

    @property
    def state_size(self) -> int:
        """How many numbers a path continues from; all zero before trigger 1."""

    def draws(self, step: IntArray) -> IntArray:
        """How many normals steps 1..step use, for each step in 0..T."""

    def walk(
        self,
        normals: FloatArray,
        normal_offsets: IntArray,
        start: IntArray,
        state: FloatArray,
        out: FloatArray,
        out_offsets: IntArray,
    ) -> None:
        """Continue many paths at once.

        Row r has been evaluated up to trigger `start[r]` and is continued by
        `out_offsets[r + 1] - out_offsets[r]` triggers: xi is written to `out` there, `state[r]` is
        updated in place. `normals[normal_offsets[r] : normal_offsets[r + 1]]` are the draws
        number `draws(start[r])` up to (not including) `draws(stop[r])` of that path.
        """

    def parameters(self) -> dict[str, Any]:
        """Numbers that rebuild the mechanism bit for bit; stored with the plan, never refitted."""
