"""The SQL dialect: DuckDB's, with sources, sinks, GoogleSQL's privacy clause and EMIT.

    CREATE SOURCE name (column TYPE, ...) [WITH (option = value, ...)]
    CREATE PUBLIC TABLE name AS SELECT ...
    CREATE BUDGET name (epsilon = ..., delta = ..., [per = INTERVAL ...]) WITH (option = value, ...)
    CREATE SINK name [WITH (option = value, ...)] AS [WITH ...]
      SELECT WITH DIFFERENTIAL_PRIVACY OPTIONS (option = value, ...) ...
      EMIT EVERY INTERVAL ... [ON EVENT TIME [FROM TIMESTAMP '...'] [TO TIMESTAMP '...']]
        [FOR n TRIGGERS] [ALLOW LATENESS INTERVAL ...]

The privacy clause stands where sqlglot keeps hints (`hint`), EMIT is one more modifier of a select
(`emit`), and named arguments of aggregates are kept in a `Bounded` around the aggregate.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection
from typing import Any, ClassVar, NoReturn

from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.errors import ErrorLevel, ParseError, TokenError
from sqlglot.generators.duckdb import DuckDBGenerator
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import Token, TokenType

from dpsqlp.errors import DpsqlpError, SqlError
from dpsqlp.sql.location import Text

_COMPILED = (
    "sqlglot is installed with its compiled extension (sqlglotc), whose classes cannot be extended"
    " with streaming SQL. Run `pip uninstall sqlglotc`; sqlglot itself stays."
)

try:

    class Option(exp.Expression):
        """One `name = value`."""

        arg_types: ClassVar = {"this": True, "expression": True}

    class PrivacyClause(exp.Expression):
        """WITH DIFFERENTIAL_PRIVACY OPTIONS (...)."""

        arg_types: ClassVar = {"expressions": False}

    class EmitClause(exp.Expression):
        """EMIT EVERY ...; `this` is the interval."""

        arg_types: ClassVar = {
            "this": True,
            "event_time": False,
            "start": False,
            "stop": False,
            "triggers": False,
            "lateness": False,
        }

    class Bounded(exp.Expression):
        """An aggregate (`this`) with named arguments (`expressions`)."""

        arg_types: ClassVar = {"this": True, "expressions": True}

    class Histogram(exp.Expression, exp.AggFunc):
        """HISTOGRAM(x)."""

    class CreateSource(exp.Expression):
        """CREATE SOURCE; `columns` are ColumnDefs."""

        arg_types: ClassVar = {"this": True, "columns": True, "options": False}

    class CreatePublicTable(exp.Expression):
        """CREATE PUBLIC TABLE; `expression` is its query."""

        arg_types: ClassVar = {"this": True, "expression": True}

    class CreateBudget(exp.Expression):
        """CREATE BUDGET; `expressions` are what may be spent, `options` where that is kept."""

        arg_types: ClassVar = {"this": True, "expressions": True, "options": False}

    class CreateSink(exp.Expression):
        """CREATE SINK; `expression` is its query."""

        arg_types: ClassVar = {"this": True, "expression": True, "options": False}

except TypeError as problem:  # mypyc classes refuse subclasses
    raise DpsqlpError(_COMPILED) from problem


def _bounded(build: Callable[[list[exp.Expr]], exp.Expr]) -> Callable[[list[exp.Expr]], exp.Expr]:
    """Keep named arguments, which the aggregate itself has no place for."""

    def builder(args: list[exp.Expr]) -> exp.Expr:
        named = [arg for arg in args if isinstance(arg, exp.Kwarg)]
        aggregate = build([arg for arg in args if not isinstance(arg, exp.Kwarg)])
        return Bounded(this=aggregate, expressions=named) if named else aggregate

    return builder


_KEYWORDS = (
    *("CREATE", "SOURCE", "PUBLIC", "TABLE", "BUDGET", "SINK", "WITH", "SELECT", "OPTIONS"),
    *("DIFFERENTIAL_PRIVACY", "FROM", "JOIN", "WHERE", "GROUP", "HAVING", "ORDER", "LIMIT"),
    *("OFFSET", "EMIT", "EVERY", "INTERVAL", "TRIGGERS", "ALLOW", "LATENESS"),
)
_AGGREGATES = {
    "SUM": exp.Sum,
    "AVG": exp.Avg,
    "MEAN": exp.Avg,
    "COUNT": exp.Count,
    "VARIANCE": exp.Variance,
    "VAR_SAMP": exp.Variance,
    "VAR_POP": exp.VariancePop,
    "STDDEV": exp.Stddev,
    "STDDEV_SAMP": exp.StddevSamp,
    "STDDEV_POP": exp.StddevPop,
    "HISTOGRAM": Histogram,
    "APPROX_QUANTILE": exp.ApproxQuantile,
    "MEDIAN": exp.Median,
}


def _build_date_trunc(args: list[exp.Expr]) -> exp.Expr:
    """Keep a time zone, which sqlglot drops."""
    truncated: exp.Expr = DuckDBParser.FUNCTIONS["DATE_TRUNC"](args[:2])
    if len(args) > 2:
        truncated.set("zone", args[2])
    return truncated


def _build_count(args: list[exp.Expr]) -> exp.Expr:
    return exp.Count(this=args[0] if args else exp.Star(), expressions=args[1:], big_int=True)


try:

    class StreamParser(DuckDBParser):
        """DuckDB's parser with the statements above."""

        FUNCTIONS: ClassVar = {
            **DuckDBParser.FUNCTIONS,
            **{name: _bounded(kind.from_arg_list) for name, kind in _AGGREGATES.items()},
            "COUNT": _bounded(_build_count),
            **dict.fromkeys(("DATE_TRUNC", "DATETRUNC"), _build_date_trunc),
        }
        FUNCTION_PARSERS: ClassVar = {  # with one of its own, named arguments would be lost
            name: parse
            for name, parse in DuckDBParser.FUNCTION_PARSERS.items()
            if name not in _AGGREGATES
        }
        FUNC_TOKENS: ClassVar = {*DuckDBParser.FUNC_TOKENS, TokenType.SESSION}

        def _parse_create(self) -> exp.Expression:  # type: ignore[override]
            start = self._prev
            if self._match_text_seq("SOURCE"):
                return self._parse_source(start)
            if self._match_text_seq("SINK"):
                return self._parse_sink(start)
            if self._match_text_seq("PUBLIC", "TABLE"):
                return self._parse_public_table(start)
            if self._match_text_seq("BUDGET"):
                return self._parse_budget(start)
            return self._fail("CREATE is followed by SOURCE, SINK, PUBLIC TABLE or BUDGET")

        def _parse_source(self, start: Token) -> exp.Expression:
            name = self._parse_name("a source")
            if not self._match(TokenType.L_PAREN, advance=False):
                self._fail("A source lists its columns, for example (url TEXT, user_id TEXT)")
            columns = self._parse_wrapped_csv(self._parse_field_def)
            for column in columns:
                if not isinstance(column, exp.ColumnDef) or column.args.get("kind") is None:
                    self._fail("Each column of a source is a name and a type")
                if column.args.get("constraints"):
                    self._fail("Columns of a source have no constraints")
            source = CreateSource(this=name, columns=columns, options=self._parse_options())
            return source.update_positions(start)

        def _parse_public_table(self, start: Token) -> exp.Expression:
            name = self._parse_name("a public table")
            self._expect("AS")
            table = CreatePublicTable(this=name, expression=self._parse_query())
            return table.update_positions(start)

        def _parse_budget(self, start: Token) -> exp.Expression:
            name = self._parse_name("a budget")
            if not self._match(TokenType.L_PAREN, advance=False):
                self._fail("A budget says how much may be spent: (epsilon = 3, delta = 1e-8)")
            spent = self._parse_wrapped_csv(self._parse_option, optional=False)
            budget = CreateBudget(this=name, expressions=spent, options=self._parse_options())
            return budget.update_positions(start)

        def _parse_sink(self, start: Token) -> exp.Expression:
            name = self._parse_name("a sink")
            options = self._parse_options()
            self._expect("AS")
            sink = CreateSink(this=name, options=options, expression=self._parse_query())
            return sink.update_positions(start)

        def _parse_query(self) -> exp.Expr:
            at = self._curr
            query = self._parse_select()
            if not isinstance(query, exp.Expr):
                self._fail("AS is followed by a SELECT", at)
            return query

        def _parse_name(self, what: str) -> exp.Expr:
            name = self._parse_id_var()
            if name is None:
                self._fail(f"Expected the name of {what}")
            return name

        def _parse_options(self) -> list[exp.Expr]:
            if not self._match_text_seq("WITH"):
                return []
            if not self._match(TokenType.L_PAREN, advance=False):
                self._fail("WITH is followed by options in parentheses")
            return self._parse_wrapped_csv(self._parse_option, optional=False)

        def _parse_option(self) -> exp.Expr | None:
            if self._match(TokenType.R_PAREN, advance=False):
                return None
            start = self._curr
            if not self._advance_any(ignore_reserved=True):
                self._fail("Expected the name of an option")
            name = self._prev.text
            while self._match(TokenType.DOT):
                self._advance_any(ignore_reserved=True)
                name += "." + self._prev.text
            if not self._match(TokenType.EQ):
                self._fail(f"Expected = after the option {name}")
            value = self._parse_interval() or self._parse_bitwise()
            if value is None:
                self._fail(f"Expected a value for the option {name}")
            identifier = exp.Identifier(this=name.lower(), quoted=False)
            identifier.update_positions(start)
            return Option(this=identifier, expression=value).update_positions(start)

        def _parse_hint(self) -> exp.Expr | None:  # type: ignore[override]
            start = self._curr
            if not self._match_text_seq("WITH", "DIFFERENTIAL_PRIVACY"):
                return super()._parse_hint()
            options: list[exp.Expr] = []
            if self._match_text_seq("OPTIONS"):
                if not self._match(TokenType.L_PAREN, advance=False):
                    self._fail("OPTIONS is followed by options in parentheses")
                options = self._parse_wrapped_csv(self._parse_option, optional=False)
            return PrivacyClause(expressions=options).update_positions(start)

        def _parse_function_call(self, *args: Any, **kwargs: Any) -> exp.Expr | None:
            start = self._curr
            return self._placed(super()._parse_function_call(*args, **kwargs), start)

        def _parse_select_query(self, *args: Any, **kwargs: Any) -> exp.Expr | None:
            start = self._curr
            return self._placed(super()._parse_select_query(*args, **kwargs), start)

        def _parse_interval(self, *args: Any, **kwargs: Any) -> exp.Add | exp.Interval | None:
            start = self._curr
            interval = super()._parse_interval(*args, **kwargs)
            self._placed(interval, start)
            return interval

        def _parse_disjunction(self) -> exp.Expr | None:
            return None if self._at_emit() else super()._parse_disjunction()

        def _placed(self, node: exp.Expr | None, start: Token) -> exp.Expr | None:
            """The node with a position, which sqlglot gives to names and literals alone."""
            if node is not None and node.meta.get("start") is None:
                node.update_positions(start)
            return node

        def _parse_query_modifiers(self, this: Any) -> Any:
            this = super()._parse_query_modifiers(this)
            if isinstance(this, exp.Select) and self._at_emit():
                if this.args.get("emit"):
                    self._fail("There are two EMIT clauses")
                this.set("emit", self._parse_emit())
            return this

        def _parse_table_alias(
            self, alias_tokens: Collection[TokenType] | None = None
        ) -> exp.TableAlias | None:
            if self._at_emit():  # not an alias
                return None
            return super()._parse_table_alias(alias_tokens)

        def _at_emit(self) -> bool:
            return bool(self._match_text_seq("EMIT", "EVERY", advance=False))

        def _parse_emit(self) -> exp.Expr:
            start = self._curr
            self._match_text_seq("EMIT", "EVERY")
            emit = EmitClause(this=self._expect_interval("EMIT EVERY")).update_positions(start)
            while True:
                at = self._curr
                if self._match_text_seq("ON", "EVENT", "TIME"):
                    self._once(emit, "event_time", exp.true().update_positions(at))
                    if self._match_text_seq("FROM"):
                        self._once(emit, "start", self._expect_timestamp())
                    if self._match_text_seq("TO"):
                        self._once(emit, "stop", self._expect_timestamp())
                elif self._match_text_seq("FOR"):
                    number = self._parse_unary()
                    if number is None:
                        self._fail("FOR is followed by a number of TRIGGERS", at)
                    self._once(emit, "triggers", number)
                    if not self._match_text_seq("TRIGGERS"):
                        self._expect("TRIGGER")
                elif self._match_text_seq("ALLOW", "LATENESS"):
                    self._once(emit, "lateness", self._expect_interval("ALLOW LATENESS"))
                else:
                    return emit

        def _once(self, emit: exp.Expr, name: str, value: exp.Expr) -> None:
            if emit.args.get(name):
                self._fail("This part of EMIT is given twice", self._prev)
            emit.set(name, value)

        def _expect_interval(self, after: str) -> exp.Expr:
            at = self._curr
            interval = self._parse_interval()
            if interval is None:
                self._fail(f"{after} is followed by an interval, such as INTERVAL 15 MINUTES", at)
            return interval.update_positions(at)

        def _expect_timestamp(self) -> exp.Expr:
            at = self._curr
            value = self._parse_unary()
            if not (isinstance(value, exp.Cast) and value.this.is_string):
                self._fail("Expected a timestamp, such as TIMESTAMP '2024-01-01 00:00:00'", at)
            return value.update_positions(at)

        def _expect(self, word: str) -> None:
            if not self._match_text_seq(word):
                self._fail(f"Expected {word}")

        def _fail(self, message: str, token: Token | None = None) -> NoReturn:
            self.raise_error(message, token or self._curr or self._prev)
            raise AssertionError("the parser raises at once")

    class StreamGenerator(DuckDBGenerator):
        """Writes the normal form that a plan's fingerprint covers."""

        TRANSFORMS: ClassVar = {
            **DuckDBGenerator.TRANSFORMS,
            Option: lambda self, e: f"{self.sql(e, 'this')} = {self.sql(e, 'expression')}",
            PrivacyClause: lambda self, e: (
                f" WITH DIFFERENTIAL_PRIVACY OPTIONS ({self.expressions(e, flat=True)})"
            ),
            Bounded: lambda self, e: (
                f"{self.sql(e, 'this')[:-1]}, {self.expressions(e, flat=True)})"
            ),
        }

    class Stream(DuckDB):
        """DuckDB with streams."""

        Parser = StreamParser
        Generator = StreamGenerator

except TypeError as problem:
    raise DpsqlpError(_COMPILED) from problem


def parse_statements(text: str) -> list[exp.Expr]:
    """The statements of a script, with their positions; SqlError where they cannot be read."""
    place = Text(text)
    try:
        statements = Stream().parse(text, error_level=ErrorLevel.IMMEDIATE)
    except ParseError as problem:
        detail = problem.errors[0] if problem.errors else {}
        start = len(detail.get("start_context") or "")
        line, last = detail.get("line") or 1, detail.get("col") or start
        misspelt = _misspelt(place, place.offset_of(line, last))
        if misspelt is not None:
            raise misspelt from None
        fact = detail.get("description") or "The statement cannot be read"
        if fact.startswith("Required keyword"):  # names a class of sqlglot's
            fact = "Something is missing here"
        raise place.at_line(
            fact,
            "Check the syntax; the SQL reference has every form.",
            line,
            last,
            detail.get("highlight") or "",
        ) from None
    except TokenError:
        at = max(text.rfind("'"), text.rfind("/*"), 0)
        raise place.error(
            "A quote or comment does not end", "Look for the missing ' or */ from here.", at, at
        ) from None
    return [statement for statement in statements if statement is not None]


def _misspelt(place: Text, end: int) -> SqlError | None:
    """The keyword that was meant by the word that cannot be read, or by the word before it, which
    was then read as an alias.
    """
    words = [match.span() for match in re.finditer(r"\w+", place.text[: end + 1])]
    for start, stop in reversed(words[-2:]):
        word = place.text[start:stop].upper()
        near = difflib.get_close_matches(word, _KEYWORDS, 1, 0.75)
        if near and word not in _KEYWORDS:
            return place.error(
                f"{word} is not a keyword", f"Did you mean {near[0]}?", start, stop - 1
            )
    return None
