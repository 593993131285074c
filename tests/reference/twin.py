"""The naive twin: the whole core row by row, scanning every key at every trigger.

Written from the mathematics alone, sharing no code with the fast core, which must equal it bit for
bit. Slow on purpose: sets of units instead of `prev`, a full scan instead of predicted releases,
dense matrices instead of continued paths, one AES block at a time.

Symbols: C, c, Cs the caps, P the squared norm; T triggers of a window; i the index of a trigger in
its window; j its index in a selection round; xi = B z the noise at sigma = 1; M the largest number
of keys that a unit lays on in a closing.

Not covered: triggers out of turn (the caller runs them one after another), the canonical kinds
decimal, date, timestamp and time.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import struct
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from scipy.special import ndtri

from dpsqlp.accounting.model import (
    CLOSING,
    DIAGNOSTICS,
    SELECTION,
    CalibratedProcess,
    Process,
)
from dpsqlp.plan import Plan, WindowNoise
from dpsqlp.schedule import Schedule, WindowSchedule

Unit = tuple[int | None, bytes]  # (period, canonical bytes): the whole unit


@dataclass(frozen=True)
class Row:
    """What the row query yields. `values` are the micro-batch's value columns. A calendar's
    `window` and `period` are moments.
    """

    unit: tuple[Any, ...]
    key: tuple[Any, ...]
    window: int | None
    timestamp: int | None
    values: tuple[float | None, ...] = ()
    period: int | None = None


@dataclass(frozen=True)
class Released:
    """`values` per total of the plan's processes, in units of the quantum."""

    window: int
    index: int
    final: bool
    key: bytes
    values: tuple[int, ...]


@dataclass(frozen=True)
class Record:
    """An accepted row. `values` per process: an integer, or a bin's number; None where absent."""

    unit: Unit
    key: bytes
    window: int
    timestamp: int | None
    values: tuple[int | None, ...]

    @property
    def order(self) -> tuple[Any, ...]:
        """Nulls first. Constants stand for processes that are not a sum: they decide nothing."""
        values = tuple(_nulls_first(value) for value in self.values)
        return _nulls_first(self.timestamp), self.key, self.window, values


@dataclass
class UnitState:
    kept: int = 0
    dropped: int = 0  # records that are over one of its bounds
    votes: int = 0
    kept_at: Counter[tuple[bytes, int]] = field(default_factory=Counter)  # by (key, window)
    last_vote: dict[tuple[bytes, int], int] = field(default_factory=dict)  # its grid trigger

    @property
    def squared_norm(self) -> int:
        """Of the vector of its numbers of kept records."""
        return sum(number**2 for number in self.kept_at.values())


@dataclass
class KeyState:
    """One (key, window)."""

    # by (process, number of the total), since the window's first trigger, in every round
    totals: Counter[tuple[int, int]] = field(default_factory=Counter)
    voters: set[Unit] = field(default_factory=set)  # the units that have counted in this round
    round: int = 1
    last_release: int = 0  # the index at which the round before was released
    selected: bool = False  # every_trigger: it is out, at this and at every later trigger


@dataclass(frozen=True)
class Diagnosed:
    """Noisy numbers of one open window: units seen and bounded, rows kept and dropped."""

    window: int
    index: int
    numbers: tuple[int, ...]


class Twin:
    def __init__(self, plan: Plan, secret: bytes, instance: bytes) -> None:
        self.plan = plan
        self.noise = Noise(plan, secret, instance)
        self.units: dict[Unit, UnitState] = defaultdict(UnitState)
        self.keys: dict[tuple[int, bytes], KeyState] = defaultdict(KeyState)  # by (window, key)
        self.diagnosed: dict[int, list[int]] = defaultdict(lambda: [0, 0, 0, 0])  # by window

    def run(self, rows: list[Row], trigger: int) -> list[Released]:
        """One grid trigger, sorted by (window, key bytes)."""
        records = [record for row in rows if (record := self._accept(row, trigger)) is not None]
        # Sorting all of them sorts each unit's own; units do not see each other.
        for record in sorted(records, key=lambda record: record.order):
            self._diagnose(record, self._bound(record, trigger))
        released = [*self._scan(trigger), *self._close(trigger)]
        self._forget(trigger)
        return sorted(released, key=lambda row: (row.window, row.key))

    # Which rows count at all: decided on the row alone, before any bounding.

    def _accept(self, row: Row, trigger: int) -> Record | None:
        plan = self.plan
        if any(scalar is None for scalar in row.unit):
            return None
        window = item_of(plan.windows, row.window)
        if window is None or not is_open(plan.windows, window, trigger):
            return None
        period = None
        if plan.periods is not None:
            period = item_of(plan.periods, row.period)
            if period is None or not is_open(plan.periods, period, trigger):
                return None
            if plan.calibration.closing is not None and period != window:
                return None
        key = canonical(row.key, plan.key_kinds)
        if plan.public_keys is not None and key not in plan.public_keys:
            return None
        values = tuple(quantise(process, row.values) for process in plan.calibration.processes)
        unit = (period, canonical(row.unit, plan.unit_kinds))
        return Record(unit, key, window, row.timestamp, values)

    # Section 2: C, c, Cs and the norm of one unit.

    def _bound(self, record: Record, trigger: int) -> bool:
        """Whether the record is kept."""
        caps, unit = self.plan.caps, self.units[record.unit]
        pair = (record.key, record.window)
        if unit.kept >= caps.records or unit.kept_at[pair] >= caps.records_per_key:
            return False
        unit.kept_at[pair] += 1
        if unit.squared_norm > caps.squared_norm:
            unit.kept_at[pair] -= 1
            return False
        is_first = unit.kept_at[pair] == 1
        unit.kept += 1

        if self._votes_in_every_round():
            wants_to_vote = unit.last_vote.get(pair) != trigger
        else:
            wants_to_vote = is_first
        key = self.keys[record.window, record.key]
        # What was selected at an earlier trigger stays so: a vote would be spent for nothing.
        if key.selected and not self._counts_votes():
            wants_to_vote = False
        vote = wants_to_vote and unit.votes < caps.selections

        if vote:
            unit.votes += 1
            unit.last_vote[pair] = trigger
            key.voters.add(record.unit)  # adds nothing if it counted in this round: still spent

        for m, calibrated in enumerate(self.plan.calibration.processes):
            if calibrated.process.kind == "distinct":
                # Votes are cast once per unit, or once per unit and round: then count without them.
                counts = is_first if self._votes_in_every_round() else vote
                key.totals[m, 0] += int(counts)
            else:
                for number, added in contributions(calibrated.process, record.values[m]):
                    key.totals[m, number] += added
        return True

    def _votes_in_every_round(self) -> bool:
        """Public keys have no rounds, whatever the release policy."""
        return self.plan.public_keys is None and self.plan.release == "threshold"

    def _counts_votes(self) -> bool:
        return any(p.process.kind == "distinct" for p in self.plan.calibration.processes)

    # Diagnostics: of a unit's rows the first K kept and the first D dropped count.

    def _diagnose(self, record: Record, kept: bool) -> None:
        diagnostics, unit = self.plan.calibration.diagnostics, self.units[record.unit]
        numbers = self.diagnosed[record.window]
        unit.dropped += int(not kept)
        if diagnostics is None:
            return
        if kept and unit.kept <= diagnostics.kept_max:
            numbers[2] += 1
        if not kept and unit.dropped <= diagnostics.dropped_max:
            numbers[3] += 1
        if kept and unit.kept == 1:
            numbers[0] += 1
        if not kept and unit.dropped == 1:
            numbers[1] += 1

    def diagnostics(self, trigger: int) -> list[Diagnosed]:
        """Of every window that is open at a trigger, after it has run."""
        told = []
        for window in open_items(self.plan.windows, trigger):
            diagnostics = noise_of(self.plan, window).calibration.diagnostics
            if diagnostics is None:
                continue
            index = trigger - first(self.plan.windows, window)
            noised = [
                wrap(number + self.noise.diagnostics(name, sigma, window, index))
                for name, sigma, number in zip(
                    DIAGNOSTICS, diagnostics.sigmas, self.diagnosed[window], strict=True
                )
            ]
            told.append(Diagnosed(window, index, tuple(noised)))
        return told

    # Sections 4 and 7: every key of every open window.

    def _scan(self, trigger: int) -> Iterator[Released]:
        for window in open_items(self.plan.windows, trigger):
            index = trigger - first(self.plan.windows, window)
            if self.plan.public_keys is not None:
                for key in self.plan.public_keys:
                    yield self._release(window, index, key, self.keys[window, key])
                continue
            for (state_window, key), state in self.keys.items():
                if state_window != window:
                    continue
                if state.selected or self._is_selected(window, index, key, state):
                    yield self._release(window, index, key, state)
                    if self.plan.release == "every_trigger":
                        state.selected = True
                    else:
                        state.voters.clear()
                        state.round += 1
                        state.last_release = index

    def _is_selected(self, window: int, index: int, key: bytes, state: KeyState) -> bool:
        selection = noise_of(self.plan, window).calibration.selection
        assert selection is not None
        count = len(state.voters)
        if count <= selection.minimum:
            return False
        j = index - state.last_release  # 1 at the first trigger of every round
        noise = self.noise.integer(SELECTION, selection.sigma, key, window, state.round, j)
        return count + noise >= selection.thresholds[j - 1]

    def _release(self, window: int, index: int, key: bytes, state: KeyState) -> Released:
        values = []
        for m, calibrated in enumerate(noise_of(self.plan, window).calibration.processes):
            purpose, scale = calibrated.purpose, calibrated.sigma / calibrated.quantum
            if purpose == SELECTION:  # the selection count itself, round 1
                noise = self.noise.integer(purpose, calibrated.sigma, key, window, 1, index)
                values.append(wrap(len(state.voters) + noise))
                continue
            for number in range(number_of_totals(calibrated.process)):
                noise = self.noise.integer(purpose, scale, key, window, number, index)
                values.append(wrap(state.totals[m, number] + noise))
        final = index == length(self.plan.windows, window)
        return Released(window, index, final, key, tuple(values))

    # The closing: at a window's last trigger, what units have left goes to keys that are not out.

    def _close(self, trigger: int) -> Iterator[Released]:
        closing, selection = self.plan.calibration.closing, self.plan.calibration.selection
        if closing is None:
            return
        assert selection is not None
        for window in open_items(self.plan.windows, trigger):
            last = length(self.plan.windows, window)
            if trigger - first(self.plan.windows, window) < last:
                continue
            for key, weights in self._laid(window).items():
                noised = sum(weights) + self.noise.closing(1 / closing.quantum, key, window)
                if len(weights) > selection.minimum and noised >= closing.threshold:
                    self.keys[window, key].selected = True
                    yield self._release(window, last, key, self.keys[window, key])

    def _laid(self, window: int) -> dict[bytes, list[int]]:
        """The weights on each key, one of each unit that lays on it."""
        closing = self.plan.calibration.closing
        assert closing is not None
        laid: dict[bytes, list[int]] = defaultdict(list)
        for (period, _), unit in self.units.items():
            if period not in (None, window):
                continue
            pairs = [pair for pair, number in unit.kept_at.items() if number > 0]
            keys = [key for key, at in pairs if at == window]
            keys = [key for key in keys if not self.keys[window, key].selected]
            keys = sorted(keys, key=self.noise.key_order)[: len(closing.weights_max)]
            spent = closing.vote_cost * unit.votes
            left = closing.budget - spent - closing.square_cost * unit.squared_norm
            if not keys or left <= 0:
                continue
            weight = math.floor(math.sqrt(left / len(keys)) / closing.quantum)
            weight = min(weight, closing.weights_max[len(keys) - 1])
            for key in keys if weight > 0 else []:
                laid[key].append(weight)
        return laid

    def _forget(self, trigger: int) -> None:
        """Drop what no later trigger accepts records for."""
        windows, periods = self.plan.windows, self.plan.periods
        for window, key in list(self.keys):
            if trigger >= first(windows, window) + length(windows, window):
                del self.keys[window, key]
        for unit in list(self.units):
            period = unit[0]
            if periods is None or period is None:
                continue  # without a period a unit is never forgotten
            if trigger >= first(periods, period) + length(periods, period):
                del self.units[unit]


# Public time.


def item_of(grid: Schedule, column: int | None) -> int | None:
    """The window or period that a row has: its number, or for a calendar a moment in it."""
    if column is None or isinstance(grid, WindowSchedule):
        return column
    edges = list(zip(grid.starts, grid.starts[1:], strict=False))
    found = [item for item, (start, stop) in enumerate(edges) if start <= column < stop]
    return found[0] if found else None


def first(grid: Schedule, item: int) -> int:
    """The grid trigger before its first."""
    if isinstance(grid, WindowSchedule):
        return 0 if grid.stride is None else item * grid.stride
    return grid.begins[item]


def length(grid: Schedule, item: int) -> int:
    """[T] of an item."""
    if isinstance(grid, WindowSchedule):
        return grid.triggers
    return grid.ends[item] - grid.begins[item]


def noise_of(plan: Plan, window: int) -> WindowNoise:
    """The mechanism and the calibration for a window's T."""
    wanted = length(plan.windows, window)
    [noise] = [noise for noise in plan.noises if noise.mechanism.triggers == wanted]
    return noise


def is_open(grid: Schedule, item: int, trigger: int) -> bool:
    if isinstance(grid, WindowSchedule) and grid.stride is None and item != 0:
        return False
    return 1 <= trigger - first(grid, item) <= length(grid, item)


def open_items(grid: Schedule, trigger: int) -> list[int]:
    if not isinstance(grid, WindowSchedule):
        return [item for item in range(len(grid.begins)) if is_open(grid, item, trigger)]
    stride = 1 if grid.stride is None else grid.stride
    around = range((trigger - grid.triggers) // stride - 1, trigger // stride + 2)
    items = [0] if grid.stride is None else around
    return [item for item in items if is_open(grid, item, trigger)]


# Values and integers.


def quantise(calibrated: CalibratedProcess, values: tuple[float | None, ...]) -> int | None:
    """A record's own contribution, in units of the quantum; None where absent."""
    process = calibrated.process
    if process.column is None:
        return 1
    value = values[process.column]
    if value is None or math.isnan(value):
        return None
    if process.kind == "count":
        return 1
    if process.kind == "histogram":
        return sum(value >= edge for edge in process.edges[1:-1])
    number = min(max(float(value), process.lower), process.upper) - process.center
    if process.kind == "squares":
        farthest = max(abs(process.lower - process.center), abs(process.upper - process.center))
        number = number * number - farthest * farthest / 2
    return math.trunc(number / calibrated.quantum)


def contributions(process: Process, value: int | None) -> list[tuple[int, int]]:
    """What a record adds to which of the process's totals."""
    if value is None:
        return []
    if process.kind != "histogram":
        return [(0, value)]
    bins = len(process.edges) - 1
    around = [(bins + value // process.coarse, 1)] if process.coarse else []
    return [(value, 1), *around]


def number_of_totals(process: Process) -> int:
    if process.kind != "histogram":
        return 1
    bins = len(process.edges) - 1
    groups = range(0, bins, process.coarse) if process.coarse else ()
    return bins + len(groups)


def wrap(value: int) -> int:
    """int64, modulo 2^64."""
    return (value + 2**63) % 2**64 - 2**63


def _nulls_first(value: int | None) -> tuple[bool, int]:
    return (False, 0) if value is None else (True, value)


# Canonical bytes.


def canonical(scalars: tuple[Any, ...], kinds: tuple[str, ...]) -> bytes:
    return b"".join(
        canonical_scalar(scalar, kind) for scalar, kind in zip(scalars, kinds, strict=True)
    )


def canonical_scalar(value: Any, kind: str) -> bytes:
    if value is None:
        return b"\x00"
    if kind == "boolean":
        return b"\x01" + (b"\x01" if value else b"\x00")
    if kind == "integer":
        if value < 2**63:
            return b"\x02" + struct.pack(">Q", value + 2**63)
        return b"\x03" + struct.pack(">Q", value)
    if kind == "float":
        return b"\x04" + struct.pack(">Q", _ordered_bits(float(value)))
    if kind == "text":
        return b"\x06" + _escaped(value.encode())
    if kind == "bytes":
        return b"\x07" + _escaped(value)
    raise NotImplementedError(kind)


def _ordered_bits(value: float) -> int:
    """A NaN becomes the one positive quiet NaN first, so it sorts above infinity."""
    bits = 0x7FF8_0000_0000_0000
    if not math.isnan(value):
        (bits,) = struct.unpack(">Q", struct.pack(">d", 0.0 if value == 0 else value))
    sign = 1 << 63
    return bits ^ (2**64 - 1) if bits & sign else bits ^ sign


def _escaped(text: bytes) -> bytes:
    return text.replace(b"\x00", b"\x00\xff") + b"\x00\x00"


# Section 6: noise as a function.


class Noise:
    def __init__(self, plan: Plan, secret: bytes, instance: bytes) -> None:
        self.plan, self.secret, self.instance = plan, secret, instance
        self.matrices = {  # B, by T: triggers x draws
            noise.mechanism.triggers: matrix(noise.mechanism.parameters()) for noise in plan.noises
        }
        self.identifier_key = derive(secret, b"identifier", instance, b"key")
        self.paths: dict[tuple[str, bytes, int, int], np.ndarray] = {}

    def integer(
        self, purpose: str, scale: float, key: bytes, window: int, round_number: int, index: int
    ) -> int:
        """<xi(index) * scale>."""
        path = (purpose, key, window, round_number)
        if path not in self.paths:
            self.paths[path] = self._path(*path)
        return int(np.rint(self.paths[path][index - 1] * scale))

    def diagnostics(self, purpose: str, scale: float, window: int, index: int) -> int:
        """<xi(index) * scale> of a number of a window, which has no key: its id is zero."""
        own = self.matrices[length(self.plan.windows, window)]
        z = self._draws(purpose, bytes(16), window, 0, own.shape[1])
        xi = (own @ np.array(z, dtype=np.longdouble)).astype(np.float64)
        return int(np.rint(xi[index - 1] * scale))

    def closing(self, scale: float, key: bytes, window: int) -> int:
        """<N * scale>, one normal of its own for each key and window."""
        [n] = self._normals(CLOSING, key, window, 0, 1)
        return int(np.rint(n * scale))

    def key_order(self, key: bytes) -> tuple[int, int]:
        """The key's id as a number, to sort by."""
        low, high = struct.unpack("<QQ", mac(self.identifier_key, key))
        return low, high

    def _path(self, purpose: str, key: bytes, window: int, round_number: int) -> np.ndarray:
        """xi(1..T)."""
        own = self.matrices[length(self.plan.windows, window)]
        z = self._normals(purpose, key, window, round_number, own.shape[1])
        return (own @ np.array(z, dtype=np.longdouble)).astype(np.float64)

    def _normals(
        self, purpose: str, key: bytes, window: int, round_number: int, number: int
    ) -> list[float]:
        key_id = mac(self.identifier_key, key)
        return self._draws(purpose, key_id, window, round_number, number)

    def _draws(
        self, purpose: str, key_id: bytes, window: int, round_number: int, number: int
    ) -> list[float]:
        noise_key = derive(
            self.secret, b"noise", self.instance, self.plan.fingerprint, purpose.encode()
        )
        draws = uniform_draws(noise_key, key_id, window, round_number, number)
        return [normal(*draw) for draw in draws]


def derive(secret: bytes, *parts: bytes) -> bytes:
    message = b"dpsqlp/v1/" + b"".join(struct.pack(">I", len(part)) + part for part in parts)
    return hmac.new(secret, message, hashlib.sha256).digest()


def aes(key: bytes, block: bytes) -> bytes:
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    return encryptor.update(block) + encryptor.finalize()


def xor(a: bytes, b: bytes) -> bytes:
    return bytes(x ^ y for x, y in zip(a, b, strict=True))


def mac(key: bytes, message: bytes) -> bytes:
    """CBC-MAC; the length in front makes it safe for messages of any length."""
    padded = struct.pack(">I", len(message)) + message
    padded += bytes(-len(padded) % 16)
    tag = bytes(16)
    for start in range(0, len(padded), 16):
        tag = aes(key, xor(tag, padded[start : start + 16]))
    return tag


def uniform_draws(
    noise_key: bytes, key_id: bytes, window: int, round_number: int, number: int
) -> list[tuple[int, int]]:
    """The draws 0, 1, ..: a signed 64-bit integer and an unsigned one for the digits below."""
    process = aes(
        noise_key, xor(aes(noise_key, key_id), struct.pack("<qII", window, round_number, 0))
    )
    blocks = (aes(noise_key, xor(process, struct.pack("<QQ", n, 0))) for n in range(number))
    return [struct.unpack("<qQ", block) for block in blocks]


def normal(w: int, v: int) -> float:
    """Phi^-1 of ((w + f) / 2^64 + 1/2) with f = (v + 1/2) / 2^64, mirrored for w >= 0.

    From the smaller tail, since near 1 a float cannot tell.
    """
    if w >= 0:
        return -normal(-1 - w, v)
    # Division of integers is correctly rounded: (w + 2^63 + f) / 2^64.
    return float(ndtri((2**65 * (w + 2**63) + 2 * v + 1) / 2**129))


# Section 3: xi = B z.


def matrix(parameters: dict[str, Any]) -> np.ndarray:
    """B, one row per trigger, one column per draw in the order they are drawn."""
    triggers = parameters["triggers"]
    if parameters["name"] == "tree":
        return tree_matrix(triggers)
    if parameters["name"] == "blt":
        return blt_matrix(triggers, parameters["theta"], parameters["decay"])
    raise NotImplementedError(parameters["name"])


def blt_matrix(triggers: int, theta: list[float], decay: list[float]) -> np.ndarray:
    """B = A E^-1, and its last row with the final row's draw.

    With g below it, every column of E is as long as the first: g_j is the root of what column j
    lacks. b' is the shortest last row with b' [E; g] = (1, ..., 1): E' has one row more than
    columns, so (beta, 0) is moved along the one direction (w, -1) that it does not see.
    """
    e: list[Any] = [np.longdouble(1)]
    for k in range(1, triggers):
        terms = zip(theta, decay, strict=True)
        e.append(sum(np.longdouble(t) * np.longdouble(d) ** (k - 1) for t, d in terms))
    encoder = np.zeros((triggers, triggers), dtype=np.longdouble)
    for row in range(triggers):
        for column in range(row + 1):
            encoder[row, column] = e[row - column]
    inverse = np.eye(triggers, dtype=np.longdouble)
    for row in range(triggers):  # forward substitution of E inverse = I; the diagonal of E is 1
        inverse[row] -= encoder[row, :row] @ inverse[:row]
    below = np.sqrt([sum(x * x for x in e[triggers - j :]) for j in range(triggers)])
    unseen = np.append(below.astype(np.longdouble) @ inverse, -np.longdouble(1))
    matrix = np.pad(np.cumsum(inverse, axis=0), ((0, 0), (0, 1)))
    matrix[-1] -= (matrix[-1] @ unseen) / (unseen @ unseen) * unseen
    return matrix


def tree_matrix(triggers: int) -> np.ndarray:
    """Bottom-up Honaker estimates. Node (height, n) ends at trigger (n + 1) 2^height.

    The variance of an estimate is 1 at a leaf. At a drawn node the node's own draw (variance 1) and
    the sum of its two children (variance 2 v) are weighted by inverse variance.
    """
    height_max = max(1, math.ceil(math.log2(triggers)))  # nodes this high are never drawn
    column: dict[tuple[int, int], int] = {}  # of each drawn node
    for i in range(1, triggers + 1):
        for height in range(height_max):
            if i % 2**height == 0:
                column[height, i // 2**height - 1] = len(column)

    @cache
    def estimate(height: int, n: int) -> tuple[np.ndarray, Any]:
        """Its noise as a combination of the draws, and its variance."""
        own = np.zeros(len(column), dtype=np.longdouble)
        if (height, n) in column:
            own[column[height, n]] = 1
        if height == 0:
            return own, np.longdouble(1)
        left, variance = estimate(height - 1, 2 * n)
        right, _ = estimate(height - 1, 2 * n + 1)
        children = left + right
        if (height, n) not in column:
            return children, 2 * variance
        weight = 2 * variance / (1 + 2 * variance)
        return weight * own + (1 - weight) * children, weight

    rows = []
    for i in range(1, triggers + 1):
        row, covered = np.zeros(len(column), dtype=np.longdouble), 0
        for height in reversed(range(height_max + 1)):  # i in binary: disjoint nodes, left to right
            if i - covered >= 2**height:
                row = row + estimate(height, covered // 2**height)[0]
                covered += 2**height
        rows.append(row)
    return np.array(rows)
