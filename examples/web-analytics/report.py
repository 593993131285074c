"""Print the last release of both sinks."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pyarrow.compute as pc
import pyarrow.parquet as pq


def main() -> None:
    """Ten articles by their released number of views, then the readers of each country."""
    latest = max(Path("articles").glob("*.parquet"))
    articles = pq.read_table(latest)
    print(f"{len(articles)} articles were released. Those with most views:")
    order = pc.sort_indices(articles, [("views", "descending")])
    for row in articles.take(order[:10]).to_pylist():
        print(
            f"  {row['url']:<14}{row['views']:6.0f} ± {row['views_sd']:.0f} views"
            f"{row['seconds']:6.0f} ± {row['seconds_sd']:.0f} seconds each"
        )
    print("Readers per country:")
    with duckdb.connect("audience.duckdb", read_only=True) as database:
        rows = database.sql(
            "SELECT country, readers, readers_sd FROM audience WHERE final ORDER BY country"
        )
        for country, readers, sd in rows.fetchall():
            print(f"  {country:<14}{readers:6.0f} ± {sd:.0f}")


if __name__ == "__main__":
    main()
