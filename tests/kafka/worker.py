"""A pipeline in a process of its own, on a clock that its parent tells: to be killed anywhere."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from dpsqlp.clients import kafka
from dpsqlp.entropy.secret import Secret
from dpsqlp.errors import UnavailableError
from support.fake_clock import FakeClock
from support.pipelines import SECRET, made, step


def main(folder: Path) -> None:
    """Run all that is due at each time that comes in; answer with the last trigger."""
    Secret.new = classmethod(lambda cls: SECRET)  # type: ignore[method-assign, assignment]
    kafka.SECONDS = 2.0
    clock = FakeClock(int(sys.stdin.readline()))
    engine = made(folder, (folder / "query.sql").read_text(), clock=clock)
    for line in sys.stdin:
        clock.time = int(line)
        while not engine.published or engine.next_trigger <= engine.schedule.current(clock.time):
            try:
                step(engine)
            except UnavailableError:
                time.sleep(0.1)
        print(engine.next_trigger - 1, flush=True)
    engine.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
