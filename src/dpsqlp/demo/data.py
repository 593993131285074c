"""A generated day of page views, with its true counts. It contains no real data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

DAY_US = 86_400_000_000
START_US = 19_844 * DAY_US  # 2024-05-01 UTC
FINAL = "/live/cup-final"
TICKET = "/support/ticket/48213"  # two visitors, all day
_SECTIONS = (
    *("news", "sport", "weather", "culture", "science", "travel", "food", "tech", "money"),
    *("health", "books", "music", "film", "games", "garden"),
)
_TOPICS = (
    *("today", "local", "world", "opinion", "interview", "review", "guide", "live", "photos"),
    *("history", "quiz", "letters", "podcast", "video", "data", "best-of", "explained", "archive"),
    *("events", "people"),
)


@dataclass(frozen=True, slots=True)
class Day:
    """Page views in order of time."""

    pages: list[str]
    page: NDArray[np.int64]  # of each view, an index into `pages`
    user: NDArray[np.int64]
    timestamp: NDArray[np.int64]  # microseconds since the epoch

    def counts(self, until: int) -> NDArray[np.int64]:
        """The true number of views of each page before a time."""
        seen = int(np.searchsorted(self.timestamp, until))
        return np.bincount(self.page[:seen], minlength=len(self.pages))

    def write(self, path: Path) -> None:
        """The views as a Parquet file."""
        table = pa.table(
            {
                "url": pa.array(self.pages).take(pa.array(self.page)),
                "user_id": self.user,
                "ts": pa.array(self.timestamp, pa.timestamp("us")),
            }
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(table, path)


def generate(users: int = 20_000, pages: int = 3_000, seed: int = 7) -> Day:
    """A day with few popular and many rare pages, quiet at night, with a match in the evening."""
    generator = np.random.default_rng(seed)
    names = [FINAL, TICKET, *_names(generator, pages - 2)]
    weights = 1.0 / (np.arange(1, pages - 1) + 12.0) ** 1.15
    views = int(generator.poisson(6.0 * users))
    page = 2 + generator.choice(pages - 2, views, p=weights / weights.sum())
    user = generator.integers(0, users, views)
    timestamp = START_US + _times(generator, views)

    fans = generator.choice(users, users // 8, replace=False)
    kick_off = START_US + int(19.5 / 24 * DAY_US)
    match = kick_off + generator.gamma(2.0, DAY_US / 48, len(fans)).astype(np.int64)
    tickets = START_US + _times(generator, 40)
    columns = (
        np.concatenate([page, np.full(len(fans), 0), np.full(40, 1)]),
        np.concatenate([user, fans, generator.integers(users, users + 2, 40)]),
        np.concatenate([timestamp, match, tickets]),
    )
    order = np.argsort(columns[2], kind="stable")
    page, user, timestamp = (column[order] for column in columns)
    kept = int(np.searchsorted(timestamp, START_US + DAY_US))
    return Day(names, page[:kept], user[:kept], timestamp[:kept])


def _names(generator: np.random.Generator, number: int) -> list[str]:
    """Page names, the most popular first."""
    sections = [f"/{section}/{topic}" for topic in _TOPICS for section in _SECTIONS]
    names = ["/", *generator.permutation(sections).tolist()]
    names += [f"/archive/{2023 - n % 20}/{n // 20 + 1:03d}" for n in range(number - len(names))]
    return names[:number]


def _times(generator: np.random.Generator, number: int) -> NDArray[np.int64]:
    """Times of day in microseconds: fewest at four in the morning, most in the evening."""
    hours = np.arange(0, 24, 0.25)
    activity = 1.15 + np.sin((hours - 10.0) / 24 * 2 * np.pi) + 0.3 * np.sin(hours / 12 * 2 * np.pi)
    quarter = generator.choice(len(hours), number, p=activity / activity.sum())
    return ((quarter + generator.random(number)) * (DAY_US / len(hours))).astype(np.int64)
