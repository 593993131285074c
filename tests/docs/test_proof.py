"""docs/proof.md and the project agree: all names in the proof exist, and all lemmas cited exist.

A lemma begins with a heading and ends with three lines, each of one or more items:

    ### Lemma 5. ContributionBounds on records
    - *code*: [`stages/bound.py`: `bound`](../src/dpsqlp/stages/bound.py)
    - *test*: [`tests/test_invariants.py`: `test_votes_are_capped`](../tests/test_invariants.py)
    - *break*: “C off by one”

Code and tests cite a lemma as `docs/proof.md, lemma 5` or `docs/proof.md, lemmas 5 and 7`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from functools import cache
from pathlib import Path

import pytest

from mutants.breaks import BREAKS

ROOT = Path(__file__).parents[2]
PROOF = ROOT / "docs/proof.md"
NAMES = {brk.name for brk in BREAKS}
PREFIXES = {"code": "../src/dpsqlp/", "test": "../"}

HEADING = re.compile(r"^### Lemma (\d+)\. \S.*$", re.MULTILINE)
LINE = re.compile(r"^- \*(code|test|break)\*: (.*(?:\n  .*)*)", re.MULTILINE)
LINK = re.compile(r"\[`([^`]+)`: `([^`]+)`\]\(([^)]+)\)")
QUOTED = re.compile(r"“([^”]+)”")
CITED = re.compile(r"\blemmas?\s+(\d+(?:(?:,| and| to)\s+\d+)*)", re.IGNORECASE)
CITED_ELSEWHERE = re.compile(r"docs/proof\.md,[\s#]+lemmas?[\s#]+(\d+(?:(?:,| and| to) \d+)*)")


def sections(text: str) -> list[tuple[int, str]]:
    """The number and the text of each lemma, up to the next heading."""
    found = []
    for heading in HEADING.finditer(text):
        body = text[heading.end() :]
        end = re.search(r"^#", body, re.MULTILINE)
        found.append((int(heading[1]), body[: end.start()] if end else body))
    return found


@cache
def defined(path: Path) -> frozenset[str]:
    """Classes, functions and constants of a module, and `Class.member`."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        for name in names(node):
            found.add(name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{name}" for member in node.body for name in names(member)}
    return frozenset(found)


def names(node: ast.stmt) -> Iterator[str]:
    """What a statement defines."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        yield node.name
    targets = node.targets if isinstance(node, ast.Assign) else []
    targets += [node.target] if isinstance(node, ast.AnnAssign) else []
    yield from (target.id for target in targets if isinstance(target, ast.Name))


def link_problems(kind: str, items: str) -> Iterator[str]:
    """What is wrong with the links of a *code* or *test* line."""
    if re.sub(r"[,\s]", "", LINK.sub("", items)):
        yield f"*{kind}* has more than links of the form [`file`: `name`](path)"
    for file, name, target in LINK.findall(items):
        path = (PROOF.parent / target).resolve()
        if target != PREFIXES[kind] + file:
            yield f"{file} is linked to {target}"
        elif not path.is_file():
            yield f"{file} does not exist"
        elif name not in defined(path):
            yield f"{file} has no {name}"
        elif kind == "test" and not name.startswith("test_"):
            yield f"{name} is no test"


def problems(text: str, breaks: Collection[str]) -> list[str]:
    """Everything that is wrong with a proof, in words."""
    found = []
    lemmas = sections(text)
    numbers = [number for number, _ in lemmas]
    if len(set(numbers)) < len(numbers):
        found.append("a lemma's number occurs twice")
    if len(numbers) != len(re.findall(r"^#+ Lemma\b", text, re.MULTILINE)):
        found.append("a lemma's heading is not of the form ### Lemma 1. Title")
    for number, body in lemmas:
        lines = dict(LINE.findall(body))
        for kind in ("code", "test", "break"):
            if kind not in lines:
                found.append(f"lemma {number} has no *{kind}* line")
            elif not (LINK if kind in PREFIXES else QUOTED).search(lines[kind]):
                found.append(f"lemma {number}: *{kind}* names nothing")
        for kind in PREFIXES.keys() & lines.keys():
            found += [f"lemma {number}: {what}" for what in link_problems(kind, lines[kind])]
        for name in QUOTED.findall(" ".join(lines.get("break", "").split())):
            if name not in breaks:
                found.append(f"lemma {number}: no break is called {name!r}")
    return found + missing(CITED, text, numbers)


def missing(pattern: re.Pattern[str], text: str, numbers: Collection[int]) -> list[str]:
    """The lemmas that a text cites and that do not exist."""
    cited = {int(n) for group in pattern.findall(text) for n in re.findall(r"\d+", group)}
    return [f"there is no lemma {number}" for number in sorted(cited - set(numbers))]


def test_whatever_the_proof_names_exists() -> None:
    """Files, symbols, tests, breaks and lemmas; and every lemma has code, a test and a break."""
    assert problems(PROOF.read_text(), NAMES) == []


def test_whatever_cites_the_proof_cites_a_lemma_that_exists() -> None:
    """In the package, the tests, the other documents and the breaks."""
    numbers = [number for number, _ in sections(PROOF.read_text())]
    files = [
        path for folder in ("src", "tests", "benchmarks") for path in ROOT.glob(f"{folder}/**/*.py")
    ]
    for path in files:
        if path != Path(__file__):
            assert missing(CITED_ELSEWHERE, path.read_text(), numbers) == [], path
    for path in [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md")]:
        assert missing(CITED, path.read_text(), numbers) == [], path


def anchors(text: str) -> set[str]:
    """What a page's headings are linked by."""
    titles = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_to_a_lemma_name_its_heading() -> None:
    """An anchor follows the title, so that a new title breaks old links."""
    known = anchors(PROOF.read_text())
    for path in [*ROOT.glob("docs/*.md"), *ROOT.glob("*.md")]:
        for anchor in re.findall(r"proof\.md#([^)]+)\)", path.read_text()):
            assert anchor in known, (path, anchor)


CODE = "- *code*: [`plan.py`: `Plan`](../src/dpsqlp/plan.py)\n"
TEST = (
    "- *test*: [`tests/docs/test_proof.py`: `test_whatever_the_proof_names_exists`]"
    "(../tests/docs/test_proof.py)\n"
)
BREAK = "- *break*: “C off by one”\n"
GOOD = f"### Lemma 1. Title\n\nText, see lemma 1.\n\n{CODE}{TEST}{BREAK}\n## Next\n"


@pytest.mark.parametrize(
    "text",
    [
        GOOD,
        GOOD.replace("`Plan`", "`Plan.closes`"),
        GOOD.replace("`Plan`", "`NOISE_VERSION`"),
        GOOD.replace("“C off by one”", "“C off by one”,\n  “c off by\n  one”"),
        GOOD + GOOD.replace("Lemma 1.", "Lemma 7."),
    ],
)
def test_a_proof_may_be_so(text: str) -> None:
    """Classes, members, constants, items over several lines, numbers with gaps."""
    assert problems(text, NAMES) == []


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (CODE, "", "lemma 1 has no *code* line"),
        (TEST, "", "lemma 1 has no *test* line"),
        (BREAK, "", "lemma 1 has no *break* line"),
        (BREAK, "- *break*: none\n", "lemma 1: *break* names nothing"),
        (CODE, "- *code*: `plan.py`\n", "lemma 1: *code* names nothing"),
        (CODE, CODE.replace("plan.py", "plans.py"), "lemma 1: plans.py does not exist"),
        ("`plan.py`", "`core.py`", "lemma 1: core.py is linked to ../src/dpsqlp/plan.py"),
        ("`Plan`", "`Gird`", "lemma 1: plan.py has no Gird"),
        ("`Plan`", "`Grid.shut`", "lemma 1: plan.py has no Grid.shut"),
        ("`Plan`", "`Plan.text`", "lemma 1: plan.py has no Plan.text"),
        ("_names_exists", "_names", "has no test_whatever_the_proof_names"),
        ("`test_whatever_the_proof_names_exists`", "`PROOF`", "lemma 1: PROOF is no test"),
        ("(../src", "(../src ", "is linked to"),
        (CODE, CODE[:-1] + " and more\n", "has more than links"),
        ("C off by one", "C off by two", "lemma 1: no break is called 'C off by two'"),
        ("see lemma 1", "see lemma 2", "there is no lemma 2"),
        ("see lemma 1", "see lemmas 1 and\n3", "there is no lemma 3"),
        ("## Next", GOOD, "a lemma's number occurs twice"),
        ("### Lemma 1. Title", "### Lemma one", "a lemma's heading is not of the form"),
    ],
)
def test_a_broken_proof_is_noticed(old: str, new: str, said: str) -> None:
    """A missing line, file, symbol, test, break or lemma is said."""
    assert old in GOOD
    assert any(said in problem for problem in problems(GOOD.replace(old, new), NAMES))


@pytest.mark.parametrize(
    "citation",
    [
        "docs/proof.md, lemma 9",
        "docs/proof.md, lemmas 1 and 9",
        "docs/proof.md,\n# lemmas 1 to 9: x",
    ],
)
def test_a_wrong_citation_is_noticed(citation: str) -> None:
    """On one line or two, of one lemma or several."""
    assert missing(CITED_ELSEWHERE, f"# {citation}", [1]) == ["there is no lemma 9"]
    assert missing(CITED_ELSEWHERE, f"# {citation}", [1, 9]) == []
