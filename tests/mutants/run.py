"""Break the package on purpose and see that the tests notice: `make mutants`.

The package and its tests are copied. On the unbroken copy every named test must pass; then each
break is applied to a copy of its own, where its test must fail by an assertion or a refusal. A test
that cannot be collected, crashes or hangs has noticed nothing.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

if __package__ in (None, ""):
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from mutants.breaks import BREAKS, Break

PROJECT = Path(__file__).resolve().parents[2]
WORKERS = 2
TIMEOUT_SECONDS = 900  # for the test of a break; a busy machine is no hang
# How pytest's summary begins the reason of a failure that says the code is wrong, not broken.
NOTICED = re.compile(
    r"^FAILED \S.*? - (assert\b|AssertionError|Failed: DID NOT RAISE|dpsqlp\.)", re.M
)


class StaleError(Exception):
    """A break that no longer applies."""


@dataclass(frozen=True)
class Outcome:
    caught: bool
    text: str  # what the test run said, or why there was none
    seconds: float


def copy_tree(target: Path, source: Path = PROJECT) -> Path:
    """Package, tests and settings, with numba's compiled code.

    That code lies beside each module and counts for its exact modification time and size, which
    are kept; so unbroken modules are not compiled again, wherever the copy is.
    """
    transient = shutil.ignore_patterns("*.pyc*", "*.tmp.*", "mutants")
    for part in ("src", "tests"):
        shutil.copytree(source / part, target / part, ignore=transient)
    shutil.copy2(source / "pyproject.toml", target)
    (target / ".services").symlink_to(source / ".services")  # servers that tests start
    return target


def apply(brk: Break, tree: Path) -> None:
    """Replace the text, and forget what was compiled from the module before."""
    module = tree / "src" / "dpsqlp" / brk.file
    text = module.read_text() if module.exists() else ""
    found = text.count(brk.old)
    if found != 1:
        package = tree / "src" / "dpsqlp"
        elsewhere = [
            str(path.relative_to(package))
            for path in sorted(package.rglob(f"*{module.suffix}"))
            if path != module and brk.old in path.read_text()
        ]
        raise StaleError(
            f"The break {brk.name!r} no longer applies: its text occurs {found} times in"
            f" {brk.file}, not once. It occurs in {', '.join(elsewhere) or 'no other file'}."
            " Rewrite or drop the break."
        )
    for compiled in (module.parent / "__pycache__").glob(f"{module.stem}.*"):
        compiled.unlink()
    module.write_text(text.replace(brk.old, brk.new))


def command(
    tree: Path, *arguments: str, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    """Python on the copied tree, and on nothing else of the project."""
    env = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST_", "NUMBA_", "COV_"))
    }
    env |= {"PYTHONPATH": str(tree / "src"), "PYTHONDONTWRITEBYTECODE": "1", "COLUMNS": "300"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=tree,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )


def run_tests(
    tree: Path, *arguments: str, timeout: float | None = None
) -> subprocess.CompletedProcess[str]:
    flags = ("-x", "-q", "-rf", "--tb=short", "-p", "no:cacheprovider")
    return command(tree, "-m", "pytest", *flags, *arguments, timeout=timeout)


def try_break(brk: Break, source: Path = PROJECT) -> Outcome:
    """Apply one break to a copy of `source` and run its catcher there."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as directory:
        tree = copy_tree(Path(directory).resolve(), source)
        try:
            apply(brk, tree)
            done = run_tests(tree, f"tests/{brk.catcher}", timeout=TIMEOUT_SECONDS)
            caught = done.returncode == 1 and NOTICED.search(done.stdout) is not None
            text = done.stdout
        except (StaleError, subprocess.TimeoutExpired) as problem:
            caught, text = False, str(problem)
    return Outcome(caught, text, time.monotonic() - began)


def check_unbroken(tree: Path, breaks: list[Break]) -> str:
    """Empty if the copy is what gets imported and every catcher passes on it."""
    where = command(tree, "-c", "import dpsqlp; print(dpsqlp.__file__)").stdout.strip()
    if not Path(where).is_relative_to(tree):
        return f"The copy is not what gets imported: got {where}."
    nodes = sorted({f"tests/{brk.catcher}" for brk in breaks})
    done = run_tests(tree, "-n", str(WORKERS), *nodes)
    return "" if done.returncode == 0 else f"On the unbroken copy:\n{done.stdout}"


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="only breaks whose name contains one of these")
    parser.add_argument("--list", action="store_true", help="list the breaks and run nothing")
    options = parser.parse_args()
    chosen = [
        brk
        for brk in BREAKS
        if not options.names or any(name in brk.name for name in options.names)
    ]
    if not chosen:
        print("No break has such a name; see --list.")
        return 2
    if options.list:
        for brk in chosen:
            print(f"{brk.name:<48} {brk.why}\n{'':<48} {brk.catcher}")
        return 0

    began = time.monotonic()
    failed = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        clean = copy_tree(Path(directory).resolve())
        problem = check_unbroken(clean, chosen)
        if problem:
            print(problem)
            return 1
        print(
            f"{len(chosen)} breaks; unbroken, their tests pass ({time.monotonic() - began:.0f} s)"
        )
        with ThreadPoolExecutor(WORKERS) as pool:
            outcomes = pool.map(lambda brk: try_break(brk, clean), chosen)
            for brk, outcome in zip(chosen, outcomes, strict=True):
                verdict = "caught" if outcome.caught else "NOT CAUGHT"
                print(
                    f"{brk.name:<48} {verdict:<10} {outcome.seconds:5.1f} s  {brk.catcher}",
                    flush=True,
                )
                if not outcome.caught:
                    failed += 1
                    print(outcome.text)
    print(f"in {time.monotonic() - began:.0f} s")
    print(f"{len(chosen) - failed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
