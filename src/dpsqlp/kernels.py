"""How kernels that call one another are compiled."""

from __future__ import annotations

from typing import Any

import numba

# Without numba's runtime a kernel cannot allocate, and its arrays are not counted in and out at
# each call, which takes longer than what the call does.
kernel: Any = numba.njit(nogil=True, cache=True, _nrt=False)  # type: ignore[call-overload]
