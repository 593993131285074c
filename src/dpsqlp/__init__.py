"""Live statistics from private event streams."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpsqlp.api import Stream, open, preview, tune  # noqa: A004
    from dpsqlp.releases import History, Release, read

__all__ = ["History", "Release", "Stream", "open", "preview", "read", "tune"]


def __getattr__(name: str) -> Any:
    """Load the interface when it is first used: `import dpsqlp` alone stays light."""
    if name in __all__:
        from dpsqlp import api

        return getattr(api, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
