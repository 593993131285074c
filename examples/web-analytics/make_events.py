"""Write a generated day of page views to events/, one Parquet file for each hour."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

READERS, PAGES, VIEWS = 8_000, 400, 60_000
COUNTRIES = ["de", "fr", "jp", "us"]


def main() -> None:
    """Few pages are popular, many are rare, and the evening is busier than the night."""
    random = np.random.default_rng(1)
    popularity = 1 / np.arange(1, PAGES + 1)
    page = random.choice(PAGES, VIEWS, p=popularity / popularity.sum())
    reader = random.integers(READERS, size=VIEWS)
    second = np.sort(random.beta(4, 3, VIEWS) * 86_400)
    start = np.datetime64("2024-05-01", "us")
    table = pa.table(
        {
            "url": [f"/article/{number}" for number in page],
            "country": [COUNTRIES[number] for number in reader % len(COUNTRIES)],
            "reader": reader,
            "ts": start + (second * 1e6).astype("timedelta64[us]"),
            "seconds": np.round(random.gamma(2, 30, VIEWS), 1),
        }
    )
    Path("events").mkdir(exist_ok=True)
    for hour in range(24):
        first, last = np.searchsorted(second, [hour * 3600, (hour + 1) * 3600])
        pq.write_table(table.slice(first, last - first), f"events/{hour:02}.parquet")
    print(f"{VIEWS} views of {PAGES} pages by {READERS} readers")


if __name__ == "__main__":
    main()
