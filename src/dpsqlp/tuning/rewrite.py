"""Write options into a script: only the OPTIONS clause of one sink changes."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

from sqlglot.tokenizer_core import Token, TokenType

from dpsqlp.errors import PlanError
from dpsqlp.sql.compile import parse
from dpsqlp.sql.dialect import Stream


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A script with other options, and its new clause: OPTIONS (...)."""

    text: str
    clause: str


@dataclass(frozen=True, slots=True)
class _Item:
    """One `name = value` by its places in the text; ends are exclusive."""

    name: str
    start: int
    value: int
    end: int


def rewrite(
    text: str, sink: str, options: Mapping[str, str], dropped: Collection[str] = ()
) -> Rewritten:
    """Set options of a sink, by name and SQL value, and drop others."""
    tokens, opened, closed = _clause(text, sink)
    items = _items(tokens[opened + 1 : closed])
    edits: list[tuple[int, int, str]] = []
    left = [item for item in items if item.name not in dropped]
    for number, item in enumerate(items):
        if item.name in options:
            edits.append((item.value, item.end, options[item.name]))
        elif item.name in dropped:
            later = items[number + 1].start if number + 1 < len(items) else None
            if any(before.name not in dropped for before in items[:number]):
                edits.append((items[number - 1].end, item.end, ""))
            elif later is not None:
                edits.append((item.start, later, ""))
    given = {item.name for item in items}
    added = [f"{name} = {value}" for name, value in options.items() if name not in given]
    if added:
        place = left[-1].end
        edits.append((place, place, f",{_gap(text, items)}{', '.join(added)}"))
    start, end = tokens[opened - 1].start, tokens[closed].end + 1
    changed = text
    for begin, stop, words in sorted(edits, reverse=True):
        changed = changed[:begin] + words + changed[stop:]
    end += len(changed) - len(text)
    return Rewritten(changed, changed[start:end])


def _clause(text: str, sink: str) -> tuple[list[Token], int, int]:
    """The script's tokens, and the numbers of those that open and close the sink's options."""
    [statement] = [node for node in parse(text).sinks if node.name.lower() == sink.lower()]
    begin = statement.expression.args["hint"].meta["start"]
    tokens = Stream().tokenize(text)
    opened = next(
        number
        for number, token in enumerate(tokens)
        if token.start > begin and token.token_type == TokenType.L_PAREN
    )
    depth = 0
    for number in range(opened, len(tokens)):
        kind = tokens[number].token_type
        depth += (kind == TokenType.L_PAREN) - (kind == TokenType.R_PAREN)
        if depth == 0:
            return tokens, opened, number
    raise PlanError("The OPTIONS clause does not end. Close its parentheses.")


def _items(tokens: list[Token]) -> list[_Item]:
    """The options between the parentheses."""
    items, part, depth = [], [], 0
    for token in [*tokens, None]:
        kind = None if token is None else token.token_type
        depth += (kind == TokenType.L_PAREN) - (kind == TokenType.R_PAREN)
        if token is not None and not (kind == TokenType.COMMA and depth == 0):
            part.append(token)
            continue
        if part:
            items.append(
                _Item(part[0].text.lower(), part[0].start, part[2].start, part[-1].end + 1)
            )
        part = []
    return items


def _gap(text: str, items: list[_Item]) -> str:
    """What stands before an option: a new line with its indentation, if one of them has that."""
    for before, item in zip(items[-2::-1], items[:0:-1], strict=True):
        between = text[before.end : item.start]
        if "\n" in between:
            newline = "\r\n" if "\r\n" in between else "\n"
            indentation = between[between.rfind("\n") + 1 :]
            if not indentation.strip():
                return newline + indentation
    return " "
