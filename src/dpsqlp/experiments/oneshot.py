"""The paper's baselines: one-shot differential privacy, repeated.

One execution on bounded data (C records per unit) adds Gaussian noise to every key's number of
records and releases the counts that reach a threshold. One unit moves the counts by up to C in
total, so by up to C in l2. The keys of one unit alone are released with probability at most delta/2
in total, however the unit spreads its records; the noise has (epsilon, delta/2), by the exact
Gaussian profile.

- `repeated` (baseline 1): an execution on all data so far at each of T triggers. Each is
  (epsilon_0, delta_0)-DP, a black box like a batch tool, and T of them are composed by the optimal
  composition theorem of Kairouz, Oh and Viswanath (2017), delta_0 = delta/(2T). The last output is
  the result.
- `incremental` (baseline 2): an execution on each micro-batch, outputs added up. The C records of a
  unit are bounded over all micro-batches together, so its shift is bounded as in one execution: the
  data is split, the budget is not.
- `repeated, improved`: baseline 1, improved over the paper. Keys are selected by their number of
  units, which one unit moves by sqrt(C) in l2, with noise of its own (epsilon/2 each; delta/3 for
  each noise and for the threshold), and T executions compose by adding nu^2, as in this package,
  instead of by the theorem for black boxes.

Not covered: the outputs before the last execution, which are not scored.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from dpsqlp.accounting import nu_of
from dpsqlp.accounting.gdp import bisect
from dpsqlp.experiments.task import Stream

_FAR = 9.0  # deviations: beyond them a key is taken as never selected
BASELINES = ("repeated", "incremental", "repeated, improved")


@dataclass(frozen=True, slots=True)
class OneShot:
    """The noise of one execution."""

    count_sigma: float
    threshold: float
    selection_sigma: float | None = (
        None  # of the number of units; None: keys are selected by their count
    )


def one_shot(epsilon: float, delta: float, contributions: int) -> OneShot:
    """One (epsilon, delta)-DP execution."""
    from scipy.special import ndtri

    sigma = contributions / nu_of(epsilon, delta / 2)
    keys = np.arange(1, contributions + 1)  # that one unit alone has, C / keys records in each
    thresholds = contributions / keys - sigma * ndtri(delta / (2 * keys))
    return OneShot(sigma, float(thresholds.max()))


def improved(epsilon: float, delta: float, contributions: int, repeats: int) -> OneShot:
    """One of `repeats` executions that together, as Gaussians, are (epsilon, delta)-DP."""
    from scipy.special import ndtri

    nu = nu_of(epsilon / 2, delta / 3) / math.sqrt(repeats)
    sigma = math.sqrt(contributions) / nu
    failure = delta / (3 * contributions * repeats)
    return OneShot(contributions / nu, 1 - sigma * float(ndtri(failure)), sigma)


def composed_delta(epsilon: float, each_epsilon: float, each_delta: float, folds: int) -> float:
    """The delta of `folds` black boxes, each (each_epsilon, each_delta)-DP, at epsilon in total.

    Kairouz, Oh and Viswanath, Theorem 3.3: the worst are randomised responses, so this is the
    hockey-stick divergence of two binomials.
    """
    from scipy.special import gammaln

    lies = np.arange(folds + 1)
    choices = gammaln(folds + 1) - gammaln(lies + 1) - gammaln(folds - lies + 1)
    ways = choices - folds * np.logaddexp(0.0, each_epsilon)
    losses = (folds - 2 * lies) * each_epsilon
    excess = -np.expm1(np.minimum(epsilon - losses, 0.0))
    divergence = float(np.sum(np.exp(ways + (folds - lies) * each_epsilon) * excess))
    return 1 - (1 - each_delta) ** folds * (1 - divergence)


def each_budget(epsilon: float, delta: float, folds: int) -> tuple[float, float]:
    """The largest (epsilon_0, delta / (2 folds)) of which `folds` are (epsilon, delta)-DP."""
    each_delta = delta / (2 * folds)
    largest, _ = bisect(lambda each: composed_delta(epsilon, each, each_delta, folds) <= delta)
    return largest, each_delta


def budgets(epsilon: float, delta: float, contributions: int, triggers: int) -> dict[str, OneShot]:
    """The noise of one execution of each baseline, by its name."""
    each = each_budget(epsilon, delta, triggers)
    noises = (
        one_shot(*each, contributions),
        one_shot(epsilon, delta, contributions),
        improved(epsilon, delta, contributions, triggers),
    )
    return dict(zip(BASELINES, noises, strict=True))


class Bounded:
    """A stream's records after bounding, grouped for the baselines, in a database on disk."""

    def __init__(self, stream: Stream, contributions: int, triggers: int, work: Path) -> None:
        """Keep the first C records of every unit, in the order of time."""
        interval = -(-stream.span_us // triggers)
        self._database = duckdb.connect(
            str(work / "bounded.duckdb"), config={"memory_limit": "4GB"}
        )
        self._database.execute(
            f"""
            CREATE TABLE kept AS
            SELECT user_id, key, (epoch_us(ts) - {stream.start_us}) // {interval} AS batch
            FROM (SELECT *, row_number() OVER (PARTITION BY user_id ORDER BY ts, key) AS place
                  FROM {stream.rows})
            WHERE place <= {contributions}
            """
        )

    def close(self) -> None:
        """Close the database."""
        self._database.close()

    def histogram(self, name: str, noise: OneShot, seed: int) -> pa.Table:
        """(key, n): the final release of a baseline."""
        batch = "batch" if name == "incremental" else "0 AS batch"
        counted = noise.selection_sigma is None
        spread = noise.count_sigma if noise.selection_sigma is None else noise.selection_sigma
        groups = self._database.sql(
            f"""
            SELECT key, count(*) AS units, sum(records)::BIGINT AS records
            FROM (SELECT key, {batch}, user_id, count(*) AS records FROM kept GROUP BY ALL)
            GROUP BY key, batch
            HAVING {"sum(records)" if counted else "count(*)"} >= {noise.threshold - _FAR * spread}
            ORDER BY key, batch
            """
        ).to_arrow_table()
        rng = np.random.default_rng(seed)
        counts = groups.column("records").to_numpy()
        counts = counts + noise.count_sigma * rng.standard_normal(len(counts))
        units = groups.column("units").to_numpy()
        deciding = counts if counted else units + spread * rng.standard_normal(len(units))
        chosen = deciding >= noise.threshold
        groups, counts = groups.filter(pa.array(chosen)), counts[chosen]
        released = pa.table({"key": groups.column("key"), "n": counts})
        return released.group_by("key").aggregate([("n", "sum")]).rename_columns(["key", "n"])
