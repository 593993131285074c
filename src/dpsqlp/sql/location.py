"""Locations in the SQL text, for errors: line, column, and the line with a caret."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from dpsqlp.errors import SqlError

_SHOWN = 100  # characters of a long line


class Text:
    """A script's text, and errors that point into it."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text

    def error(self, fact: str, way_out: str, start: int, end: int) -> SqlError:
        """An error at the characters start..end (inclusive)."""
        start = min(max(start, 0), len(self.text))
        line_start = self.text.rfind("\n", 0, start) + 1
        line_end = self.text.find("\n", start)
        line = self.text[line_start : line_end if line_end >= 0 else len(self.text)].rstrip("\r")
        column = start - line_start
        width = max(1, min(end - start + 1, len(line) - column))
        cut = max(0, column - _SHOWN // 2) if len(line) > _SHOWN else 0
        shown = line[cut : cut + _SHOWN].replace("\t", " ")
        caret = " " * (column - cut) + "^" * min(width, max(1, len(shown) - column + cut))
        return SqlError(
            _sentence(fact),
            way_out,
            self.text.count("\n", 0, start) + 1,
            column + 1,
            f"    {shown}\n    {caret}",
        )

    def refuse(self, node: exp.Expr, fact: str, way_out: str) -> SqlError:
        """An error at a node of the syntax tree: raise it."""
        start, end = span(node)
        return self.error(fact, way_out, start, end)

    def at_line(self, fact: str, way_out: str, line: int, last: int, word: str) -> SqlError:
        """An error at a word that ends in column `last` (from 1) of a line (from 1)."""
        begin, end = self.offset_of(line, 1), self.offset_of(line, last)
        return self.error(fact, way_out, max(begin, end - max(len(word), 1) + 1), end)

    def offset_of(self, line: int, last: int) -> int:
        """The place in the text of a column (from 1) of a line (from 1)."""
        offset = 0
        for _ in range(line - 1):
            offset = self.text.find("\n", offset) + 1
        return offset + max(last, 1) - 1

    def written(self, node: exp.Expr) -> str:
        """The word at a node, as the user wrote it."""
        start, end = span(node)
        return self.text[start : end + 1]


def span(node: exp.Expr) -> tuple[int, int]:
    """The first positioned word at or below a node, else above it."""
    own = _positions([node])
    found = own or _positions(node.walk())
    above = node.parent
    while not found and above is not None:
        found = _positions([above])
        above = above.parent
    return min(found, default=(0, 0))


def _positions(nodes: Iterator[exp.Expr] | list[exp.Expr]) -> list[tuple[int, int]]:
    metas = (node.meta for node in nodes)
    return [(meta["start"], meta["end"]) for meta in metas if meta.get("start") is not None]


def _sentence(fact: str) -> str:
    return fact if fact.endswith((".", "?")) else fact + "."
