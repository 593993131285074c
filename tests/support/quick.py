"""Whether this is `make quick`, where tests of many examples try fewer of them."""

from __future__ import annotations

import os

QUICK = "DPSQLP_QUICK" in os.environ
