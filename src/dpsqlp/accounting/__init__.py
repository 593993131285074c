"""Accounting: from (epsilon, delta, caps) to noise scales and thresholds, and back."""

from dpsqlp.accounting.calibrate import calibrate
from dpsqlp.accounting.gdp import delta_of, epsilon_of, nu_of
from dpsqlp.accounting.model import (
    CLOSING,
    SELECTION,
    CalibratedProcess,
    Calibration,
    Closing,
    ContributionBounds,
    Process,
    ProcessKind,
    ReleasePolicy,
    Selection,
    Spending,
)
from dpsqlp.accounting.paper import paper_calibration
from dpsqlp.accounting.privacy_loss import epsilon_spent, squared_nu
from dpsqlp.accounting.thresholds import thresholds

__all__ = [
    "CLOSING",
    "SELECTION",
    "CalibratedProcess",
    "Calibration",
    "Closing",
    "ContributionBounds",
    "Process",
    "ProcessKind",
    "ReleasePolicy",
    "Selection",
    "Spending",
    "calibrate",
    "delta_of",
    "epsilon_of",
    "epsilon_spent",
    "nu_of",
    "paper_calibration",
    "squared_nu",
    "thresholds",
]
