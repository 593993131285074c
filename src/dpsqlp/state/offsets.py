"""Offsets as the journal keeps them: JSON whose fields only the source understands."""

from __future__ import annotations

from collections.abc import Mapping

# The end of what a source has handed out. None where records cannot be read twice.
Offset = Mapping[str, object] | None
# The records of one trigger: exactly those, whenever the range is read.
OffsetRange = Mapping[str, object]
