"""The non-private twin of the pipeline: the same reading, grouping, durable table and writing.

It counts records per key at every trigger, as the pipeline would without privacy.
"""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa

from dpsqlp.sinks.formats import to_parquet
from dpsqlp.state.arrays import digest, pack
from dpsqlp.state.storage import LocalStorage
from dpsqlp.tables.table import ID_FIELDS, Table

ROW = np.dtype([*ID_FIELDS, ("count", np.int64)])


def run(files: Path, state: Path, output: Path, start: int, interval: int, triggers: int) -> None:
    """Count records per key at every trigger."""
    storage, sink = LocalStorage(state), LocalStorage(output)
    table = Table(ROW)
    database = duckdb.connect(config={"threads": 2, "memory_limit": "2GB"})
    for trigger in range(1, triggers + 1):
        low, high = start + (trigger - 1) * interval, start + trigger * interval
        storage.put("intent.json", [json.dumps({"trigger": trigger, "span": [low, high]}).encode()])
        groups = database.sql(
            f"SELECT key, count(*) AS n FROM read_parquet('{files}/*.parquet')"
            f" WHERE ts >= make_timestamp({low}) AND ts < make_timestamp({high}) GROUP BY key"
        ).to_arrow_table()
        keys = groups.column("key").to_numpy().view(np.uint64)
        rows, _ = table.insert(np.stack([keys * np.uint64(0x9E3779B97F4A7C15), keys], axis=1))
        table.rows["count"][rows] += groups.column("n").to_numpy()
        delta = pack([rows.astype(np.uint32), table.rows[rows]])
        name = f"deltas/{trigger}"
        storage.put(name, delta)
        counts = pa.table({"key": groups.column("key"), "n": table.rows["count"][rows]})
        release = to_parquet(counts)
        storage.put(f"releases/{trigger}", [release])
        manifest = {"trigger": trigger, "delta": [name, digest(delta)]}
        storage.put("manifest.json", [json.dumps(manifest).encode()])
        sink.put(f"trigger-{trigger:012d}.parquet", [release])
