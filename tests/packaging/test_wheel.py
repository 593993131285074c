"""What a package index gets: a wheel and an sdist that work by themselves."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
README = "tests/docs/test_documents.py::test_examples_do_what_the_document_shows[README.md]"


def run(*words: str | Path, folder: Path = ROOT) -> str:
    """What a command prints. It does not see the sources of the checkout."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
    ran = subprocess.run(
        list(map(str, words)),
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


def required(names: list[str]) -> Iterator[Distribution]:
    """The distributions of these names and all that they require, without extras."""
    known: set[str] = set()
    while names:
        name = re.sub(r"[-_.]+", "-", names.pop()).lower()
        if name in known:
            continue
        known.add(name)
        yield (found := distribution(name))
        for line in found.requires or ():
            need = Requirement(line)
            if need.marker is None or need.marker.evaluate({"extra": ""}):
                names.append(need.name)


def make_environment(folder: Path, names: list[str]) -> Path:
    """A new environment that has these distributions, linked from this one; its interpreter."""
    venv.create(folder, symlinks=True)
    (site,) = folder.glob("lib/python*/site-packages")
    for found in required(names):
        for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(Path(str(found.locate_file(top))))
    return folder / "bin" / "python"


def test_the_wheel_runs_the_readme_where_nothing_else_is(tmp_path: Path) -> None:
    """The wheel is built from the sdist, has every file of the package, installs beside what it
    declares and pytest, and does what the README says, in which every link is absolute.
    """
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT)
    assert len(list(tmp_path.glob("*.tar.gz"))) == 1
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("dpsqlp/")}
        (metadata,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        described = email.message_from_bytes(archive.read(metadata))
    package = ROOT / "src" / "dpsqlp"
    files = (file for file in package.rglob("*") if file.is_file())
    files_here = {str(file.relative_to(package.parent)) for file in files}
    assert packed == {name for name in files_here if "__pycache__" not in name}
    links = re.findall(r"\]\(([^)]+)\)", str(described.get_payload()))
    assert links
    assert [link for link in links if not link.startswith(("https://", "#"))] == []

    needed = [Requirement(line) for line in described.get_all("Requires-Dist", [])]
    base = [need.name for need in needed if need.marker is None]
    python = make_environment(tmp_path / "environment", [*base, "pytest"])
    pip = (sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check")
    run(*pip, "install", "--no-index", wheel)
    found = run(python, "-c", "import dpsqlp; print(dpsqlp.__file__)", folder=tmp_path)
    assert Path(found.strip()).is_relative_to(tmp_path / "environment")
    run(python, "-m", "pytest", "-p", "no:cacheprovider", README)
