"""The most that the records of one trigger may take in memory."""

from __future__ import annotations

from dpsqlp.errors import SourceError

BATCH_BYTES_MAX = 6 << 30


def check_size(size: int) -> int:
    """Refuse the records of a trigger if they would not fit the memory."""
    if size > BATCH_BYTES_MAX:
        raise SourceError(
            f"The records of one trigger take more than {BATCH_BYTES_MAX >> 30} GiB. They cannot be"
            " split by count: emit more often, or leave out what the query does not need. Nothing"
            " is lost; the trigger has not run."
        )
    return size
