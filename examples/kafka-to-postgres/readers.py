"""Send generated page views to the topic page-views, some twenty a second, until stopped."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime

import numpy as np
from confluent_kafka import Producer

READERS, PAGES = 5_000, 200


def view(random: np.random.Generator, now: datetime) -> bytes:
    """One page view, as a JSON object with the columns of the source."""
    page = min(int(random.pareto(0.8)), PAGES)
    record = {
        "url": f"/article/{page}",
        "user_id": f"reader-{random.integers(READERS)}",
        "ts": f"{now:%F %T}",
    }
    return json.dumps(record).encode()


def main(brokers: str) -> None:
    """Send one view after another."""
    producer = Producer({"bootstrap.servers": brokers})
    random = np.random.default_rng()
    while True:
        producer.produce("page-views", view(random, datetime.now(UTC)))
        producer.poll(0)
        time.sleep(0.05)


if __name__ == "__main__":
    main(sys.argv[1])
