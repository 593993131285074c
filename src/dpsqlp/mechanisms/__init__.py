"""Continual sums over a fixed number of triggers: sensitivity, variance and noise paths."""

from __future__ import annotations

from typing import Any

from dpsqlp.errors import PlanError
from dpsqlp.mechanisms.base import Mechanism
from dpsqlp.mechanisms.blt import Blt
from dpsqlp.mechanisms.blt import fit as fit_blt
from dpsqlp.mechanisms.tree import Tree

__all__ = ["Blt", "Mechanism", "Tree", "fit_blt", "from_parameters"]


def from_parameters(parameters: dict[str, Any]) -> Mechanism:
    """The inverse of `Mechanism.parameters`."""
    match parameters:
        case {"name": "tree", "triggers": int(triggers), **rest} if not rest:
            return Tree(triggers)
        case {"name": "blt", "triggers": int(triggers), "theta": theta, "decay": decay, **rest} if (
            not rest
        ):
            return Blt(triggers, tuple(theta), tuple(decay))
    raise PlanError(
        f"A mechanism is a tree (triggers) or a blt (triggers, theta, decay); got {parameters!r}. "
        "Read it from the stored plan of this version."
    )
