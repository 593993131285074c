"""Code blocks in the documents run, and print what the documents say.

The blocks of one document run in order in a folder of its own, each in its own process:

    ```python    followed by <!-- output --> and a ```text block, which it prints
    ```sql       compiles; after <!-- file: name.sql --> it is also written to the folder
    ```sql refused   raises SqlError, whose text is that of <!-- output --> if one follows
    ```console   lines that begin with `$ dpsqlp ` run; what is shown below each is printed in that
                 order, and `...` stands for anything
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import typer.main

from dpsqlp.accounting.calibrate import calibrate
from dpsqlp.accounting.model import ContributionBounds, Process
from dpsqlp.cli.app import app
from dpsqlp.errors import PlanError, SqlError
from dpsqlp.experiments.paper import SYNTHETIC
from dpsqlp.mechanisms import fit_blt
from dpsqlp.sql import compile_script, options

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md"))]
COMMAND = [sys.executable, "-c", "from dpsqlp.cli import main; main()"]
BLOCK = re.compile(
    r"(?:^<!-- file: (?P<file>\S+) -->\n)?"
    r"^```(?P<kind>[a-z]+)(?P<mark> refused)?\n(?P<text>.*?)^```$"
    r"(?P<shown>\n\n<!-- output -->\n```text\n(?P<output>.*?)^```$)?",
    re.DOTALL | re.MULTILINE,
)
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")


class Block(NamedTuple):
    kind: str
    refused: bool
    file: str | None
    text: str
    output: str | None


def blocks(document: Path) -> list[Block]:
    found = BLOCK.finditer(document.read_text())
    return [
        Block(m["kind"], bool(m["mark"]), m["file"], m["text"], m["output"] if m["shown"] else None)
        for m in found
    ]


def run(command: list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if k != "DPSQLP_SECRET"}
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def check_python(block: Block, folder: Path) -> None:
    ran = run([sys.executable, "-c", block.text], folder)
    assert ran.returncode == 0, ran.stderr
    assert ran.stdout == block.output


def check_sql(block: Block, folder: Path) -> None:
    if block.file is not None:
        (folder / block.file).write_text(block.text)
    if not block.refused:
        compile_script(block.text, folder=str(folder))
        return
    with pytest.raises(SqlError) as refused:
        compile_script(block.text, folder=str(folder))
    if block.output is not None:
        assert str(refused.value) == block.output.rstrip()


def check_console(block: Block, folder: Path) -> None:
    for part in re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        words = shlex.split(command)
        if words[0] != "dpsqlp":
            continue
        ran = run(COMMAND + words[1:], folder)
        assert ran.returncode == 0, ran.stderr
        expected = [line for line in shown.splitlines() if line and line != "..."]
        printed = iter((ran.stdout + ran.stderr).splitlines())
        for line in expected:
            assert line in printed, f"{line!r} not in order in: {ran.stdout}{ran.stderr}"


CHECKS = {"python": check_python, "sql": check_sql, "console": check_console}


@pytest.mark.slow
@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_examples_do_what_the_document_shows(document: Path, tmp_path: Path) -> None:
    """Every Python, SQL and console block runs, and gives what is shown."""
    found = blocks(document)
    for kind in CHECKS:
        opened = len(re.findall(rf"^```{kind}\b", document.read_text(), re.MULTILINE))
        assert opened == sum(block.kind == kind for block in found)
    for block in found:
        if block.kind in CHECKS:
            CHECKS[block.kind](block, tmp_path)


@pytest.mark.parametrize(
    "document", [*DOCUMENTS, *ROOT.glob("[A-Z]*.md")], ids=lambda path: path.name
)
def test_links_lead_somewhere(document: Path) -> None:
    """Relative links name files that exist."""
    for target in LINK.findall(document.read_text()):
        if "://" not in target:
            assert (document.parent / target).exists(), target


def test_every_option_is_documented() -> None:
    """The SQL reference has every privacy option."""
    reference = (ROOT / "docs/sql.md").read_text()
    assert [name for name in options._KNOWN if f"`{name}`" not in reference] == []


def test_every_command_and_its_options_are_documented() -> None:
    """The page on operations has every command and every option of the command line."""
    reference = (ROOT / "docs/operations.md").read_text()
    commands = typer.main.get_command(app).commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        assert f"`dpsqlp {name}" in reference
        flags = [flag for p in command.params for flag in p.opts if flag.startswith("--")]
        assert [flag for flag in flags if f"`{flag}" not in reference] == []


def test_every_experiment_and_its_options_are_documented() -> None:
    """The page on experiments has every name and every option."""
    reference = (ROOT / "docs/experiments.md").read_text()
    commands = typer.main.get_command(app).commands["experiment"].commands  # type: ignore[attr-defined]
    for name, command in commands.items():
        assert f"| `{name}" in reference
        flags = [flag for p in command.params for flag in p.opts if flag.startswith("--")]
        assert [flag for flag in flags if f"`{flag}`" not in reference] == []


def test_every_error_is_documented() -> None:
    """The page on operations says what to do for every class of error."""
    from dpsqlp import errors

    reference = (ROOT / "docs/operations.md").read_text()
    names = [name for name, value in vars(errors).items() if isinstance(value, type)]
    assert [name for name in names if f"`{name}`" not in reference] == []


def test_the_smallest_epsilons_are_accepted_and_smaller_ones_refused() -> None:
    text = (ROOT / "docs/limitations.md").read_text()
    rows = re.findall(r"^  \| ([\d,]+) \| ([\d. |]+) \|$", text, re.M)
    assert len(rows) == 4
    for triggers, cells in rows:
        mechanism = fit_blt(int(triggers.replace(",", "")))
        for most, said in zip((10, 100, 1_000, 10_000), cells.split(" | "), strict=True):
            given: dict[str, Any] = {
                "delta": 1e-9,
                "caps": ContributionBounds(most, most, most),
                "mechanism": mechanism,
            }
            given |= {"processes": [Process("n", "count")], "release": "every_trigger"}
            calibrate(epsilon=float(said), **given)
            with pytest.raises(PlanError, match="too large for exact arithmetic"):
                calibrate(epsilon=float(said) * 0.9, **given)


def test_the_last_release_is_as_accurate_as_the_documents_say() -> None:
    """The noise of blt at the last of 100 triggers, against the one before, and with sigma = s."""
    mechanism = fit_blt(100)
    before, last = (math.sqrt(variance) for variance in mechanism.variance[-2:])
    less = f"{100 * (1 - last / before):.0f} % at 100 triggers"
    assert f"by {less}" in (ROOT / "docs/sql.md").read_text()
    assert less in (ROOT / "CHANGELOG.md").read_text()
    said = f"at T = 100, a standard deviation of {mechanism.sensitivity * last:.2f} instead of"
    assert said in (ROOT / "README.md").read_text()


def test_the_readme_says_what_was_measured() -> None:
    readme = (ROOT / "README.md").read_text()
    said = " ".join(readme.split())
    published = SYNTHETIC[100]
    for preset, more in (
        ("best", "has {:.1f} times as many keys as the paper's, with {:.2f} times the ℓ2 error"),
        ("default", "it has {:.1f} times as many, with {:.2f} times the error"),
    ):
        measured = json.loads((ROOT / f"docs/results/synthetic-{preset}-100.json").read_text())
        assert more.format(*(measured[name] / published[name] for name in ("keys", "l2"))) in said
    saved = json.loads((ROOT / "docs/results/peers.json").read_text())
    peers = [dict(zip(saved["columns"], row, strict=True)) for row in saved["rows"]]
    for system in ("dpsqlp", "PipelineDP", "OpenDP"):
        found = [row for row in peers if row["system"] == system.lower()]
        cells = [system]
        for row in (found[0], min(found[1:], key=lambda row: row["l2"])):
            seconds = f"{row['seconds']:.{0 if row['seconds'] > 100 else 1}f}"
            cells += [f"{row['keys']:,}", f"{row['l2']:,}", seconds]
        assert f"| {' | '.join(cells)} |" in readme
