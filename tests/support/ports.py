"""Ports for servers that tests start."""

from __future__ import annotations

import random
import socket


def free_ports(count: int) -> list[int]:
    """Ports that nothing listens on now, below those that the system gives away by itself."""
    found: list[int] = []
    while len(found) < count:
        port = random.SystemRandom().randrange(12_000, 30_000)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
        if port not in found:
            found.append(port)
    return found
