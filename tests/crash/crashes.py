"""The parent of the worker: pipelines in folders, runs that are killed, and what they leave."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from support.fake_clock import START
from support.pipelines import HOUR, Record, made, replay, script, write
from support.processes import end, launch

HOPPING = {"window": "HOP(ts, INTERVAL 30 MINUTES, INTERVAL 1 HOUR)"}
CLOSING = {  # half of the keys are nobody's first, and come out when a window ends
    "window": "TUMBLE(ts, INTERVAL 30 MINUTES)",
    "options": ", privacy_unit_period = INTERVAL 30 MINUTES, max_selections_contributed = 1,"
    " min_privacy_units_per_group = 6",
}
BERLIN = {"window": "DATE_TRUNC('day', ts) AT TIME ZONE 'Europe/Berlin'"}
BERLIN["options"] = ", privacy_unit_period = INTERVAL 1 DAY"
WORKER = Path(__file__).with_name("worker.py")
ALL = os.environ.get("DPSQLP_CRASH") == "all"


class Worker:
    """The forking process."""

    def __init__(self) -> None:
        self.process = launch(
            [sys.executable, str(WORKER)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_: object) -> None:
        end(self.process)

    def start(self, folder: Path, **command: Any) -> int:
        """Begin a run; the child's pid."""
        return self._tell(json.dumps({"folder": str(folder), **command}))

    def end(self) -> int:
        """Wait for the run: its exit code, or minus the signal that ended it."""
        return os.waitstatus_to_exitcode(self._tell(""))

    def run(self, folder: Path, **command: Any) -> int:
        """A whole run."""
        self.start(folder, **command)
        return self.end()

    def kill_after(self, seconds: float, folder: Path) -> int:
        """A run that is killed after a while, if it has not ended before."""
        pid = self.start(folder)
        time.sleep(seconds)
        os.kill(pid, signal.SIGKILL)
        return self.end()

    def _tell(self, line: str) -> int:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        assert self.process.stdout is not None
        return int(self.process.stdout.readline())


def begun(folder: Path, hours: int, start: int = START, /, **options: str) -> Path:
    """A pipeline that has been created and has run no trigger, over a few Parquet files."""
    dice = random.Random(7)
    records: list[Record] = [
        (f"u{dice.randrange(80)}", dice.choice("aaabbcdef"), dice.uniform(-3, 9), start + at)
        for at in sorted(dice.randrange(hours * HOUR) for _ in range(300 * hours))
    ]
    for part in range(3):
        write(folder / "in" / f"{part}.parquet", records[part::3])
    pipeline = folder / "begun"
    pipeline.mkdir()
    sql = script(
        source=f"connector = 'files', path = '{folder}/in/*.parquet'",
        sink="connector = 'parquet', path = 'out'",
        **{"emit": replay(start, start + hours * HOUR)} | HOPPING | options,
    )
    (pipeline / "query.sql").write_text(sql)
    made(pipeline, sql).close()
    return pipeline


def copied(pipeline: Path, name: str) -> Path:
    """The same instance again: same plan, secret and noise."""
    target = pipeline.parent / name
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(pipeline, target)
    return target


def outputs(folder: Path) -> dict[str, bytes]:
    """Every release in the sink's folder."""
    return {path.name: path.read_bytes() for path in sorted((folder / "out").glob("trigger-*"))}


def steps(folder: Path) -> list[str]:
    """The disk steps of an undisturbed run, by what they are about."""
    kinds = []
    for line in (folder / "steps.txt").read_text().splitlines():
        primitive, path = line.split(" ", 1)
        inside = Path(path).relative_to(folder).parts
        what = inside[0] if inside[0] == "out" else inside[2].removesuffix(".writing")
        kinds.append(f"{primitive} {what}")
    return kinds
