"""tune: options for a query, from a sample of data that one may look at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sqlglot import exp, parse_one
from sqlglot.errors import SqlglotError

from dpsqlp.errors import PlanError, SqlError
from dpsqlp.sql.emit import TRIGGERS_MAX
from dpsqlp.sql.lengths import duration, interval_us
from dpsqlp.sql.location import Text
from dpsqlp.sql.plan import window_grid
from dpsqlp.sql.query import Calendar, Program, Query, SinkDef
from dpsqlp.tuning.candidate import Candidate, binding_caps, dropped_caps
from dpsqlp.tuning.figures import Goal, SizeClass, by_size, score, values_of
from dpsqlp.tuning.load import SampleFacts, SampleRows, Simulation
from dpsqlp.tuning.rewrite import Rewritten, rewrite
from dpsqlp.tuning.search import Measured, ReportProgress, measure, search
from dpsqlp.tuning.simulate import simulate
from dpsqlp.tuning.words import numbers_of, sample_notes

_TRIED = 3  # of the best candidates, at every step of epsilon or of the interval


@dataclass(frozen=True, slots=True)
class Step:
    """The best candidate at another epsilon or interval."""

    name: str  # epsilon, interval
    value: str
    measured: Measured


@dataclass(frozen=True, slots=True)
class Tuning:
    """The result of a search: the best options, and what the others would give."""

    sink: str
    goal: Goal
    query: Query
    facts: SampleFacts
    rewritten: Rewritten
    measured: tuple[Measured, ...]  # of the last round, the best first
    now: Measured  # the options as they stand
    sizes: tuple[SizeClass, ...]  # of the first aggregate, with the best options
    sizes_now: tuple[SizeClass, ...]
    steps: tuple[Step, ...]
    rounds: str  # how the search ranked, in words

    @property
    def best(self) -> Measured:
        """The recommended candidate."""
        return self.measured[0]

    @property
    def options(self) -> dict[str, str]:
        """The recommended options, as SQL."""
        return self.best.candidate.options(self.query)

    @property
    def clause(self) -> str:
        """The OPTIONS clause to paste."""
        return self.rewritten.clause

    @property
    def script(self) -> str:
        """The script with the recommended options; nothing else in it has changed."""
        return self.rewritten.text

    @property
    def notes(self) -> list[str]:
        """What the figures rest on, and what they do not show."""
        return [*sample_notes(self.facts), self.rounds]

    def to_html(self) -> str:
        """The report as one HTML page without outside resources."""
        from dpsqlp.tuning.html import page  # which draws this class

        return page(self)

    def to_dict(self) -> dict[str, Any]:
        """Every number, as plain values."""
        return {
            "sink": self.sink,
            "goal": self.goal,
            "sample": numbers_of(self.facts),
            "recommended": {"clause": self.clause, **_measured(self.best, self.query)},
            "now": _measured(self.now, self.query),
            "candidates": [_measured(one, self.query) for one in self.measured],
            "steps": [
                {step.name: step.value, **_measured(step.measured, self.query)}
                for step in self.steps
            ],
            "by_size": numbers_of(list(self.sizes)),
            "by_size_now": numbers_of(list(self.sizes_now)),
            "notes": self.notes,
        }


def tune_query(
    text: str,
    compiled: Callable[[str], Program],
    sink: SinkDef,
    rows: SampleRows,
    goal: Goal,
    *,
    candidates: int,
    seed: int,
    threads: int,
    epsilons: Sequence[float] = (),
    intervals: Sequence[str] = (),
    report: ReportProgress,
) -> Tuning:
    """Search the options of a sink. `text` is its script, and `compiled` compiles it."""
    query = sink.query
    check_goal(query, goal)
    others = [(words, with_interval(query, words)) for words in intervals]
    budgets = [with_epsilon(query, epsilon) for epsilon in epsilons]
    report("admitting the sample", 0, 1)
    simulation = rows.simulation(query)
    measured, rounds = search(simulation, goal, candidates, seed, threads, report)
    best = measured[0].candidate
    now = next(one for one in measured if one.candidate == Candidate.of(query))
    steps = []
    tried = [one.candidate for one in measured[:_TRIED]]
    for changed in budgets:
        at = replace(simulation, query=changed)
        steps.append(_step("epsilon", f"{changed.epsilon:g}", at, tried, goal, threads, report))
    for words, changed in others:
        at = rows.simulation(changed)
        steps.append(_step("interval", words, at, tried, goal, threads, report))
    chosen = best.query(query)
    tuning = Tuning(
        sink.name,
        goal,
        query,
        simulation.facts,
        rewrite(text, sink.name, best.options(query), dropped_caps(query, chosen)),
        tuple(measured),
        now,
        _sizes(simulation, best),
        _sizes(simulation, now.candidate),
        tuple(steps),
        rounds,
    )
    check_rewritten(compiled(tuning.script), tuning)
    return tuning


def check_goal(query: Query, goal: Goal) -> None:
    """Refuse a goal that no option changes."""
    if query.public_keys is not None and goal in ("keys", "half", "records"):
        raise PlanError(
            f"The groups of the query are public, so all of them are released and the goal {goal!r}"
            " has nothing to select. Give --goal live, l2 or l1: the norm is then what is searched."
        )
    if goal in ("live", "l1", "l2") and not any(o.kind == "aggregate" for o in query.outputs):
        raise PlanError(
            f"The query releases groups alone, so there are no values for the goal {goal!r}. Give"
            " --goal keys, half or records."
        )


def default_goal(query: Query) -> Goal:
    """Errors of values where there are values, else keys."""
    return "live" if any(output.kind == "aggregate" for output in query.outputs) else "keys"


def with_epsilon(query: Query, epsilon: float) -> Query:
    """The query with another epsilon."""
    if not 0 < epsilon <= 1000:
        raise PlanError(f"epsilon is above 0 and at most 1000; got {epsilon:g}. Change --epsilons.")
    return replace(query, epsilon=epsilon)


def with_interval(query: Query, words: str) -> Query:
    """The query with another interval between triggers, over the same time."""
    try:
        node = parse_one(f"INTERVAL '{words}'", dialect="duckdb")
        interval = interval_us(Text(words), node if isinstance(node, exp.Interval) else exp.null())
    except (SqlglotError, SqlError):
        raise PlanError(
            f"The interval {words!r} cannot be read. Write, for example, --intervals '15 minutes, 1"
            " hour'."
        ) from None
    emit, window = query.emit, query.window
    period = query.period or 0
    assert not isinstance(window, Calendar)  # the sample was refused
    assert not isinstance(period, Calendar)
    if window is None:
        lengths = [window_grid(query).triggers * emit.interval_us]
    else:
        lengths = [window.size_us, window.hop_us, emit.lateness_us, period]
        lengths += [moment for moment in (emit.start_us, emit.stop_us) if moment is not None]
    if any(length % interval for length in lengths):
        raise PlanError(
            f"The interval {words!r} ({duration(interval)}) does not divide the window, its hop,"
            " the lateness, the unit's period or the time of all triggers. Give one that does."
        )
    triggers = None if window is not None else lengths[0] // interval
    changed = replace(query, emit=replace(emit, interval_us=interval, triggers=triggers))
    triggers = window_grid(changed).triggers
    if triggers > TRIGGERS_MAX:
        raise PlanError(
            f"A window would have {triggers} triggers every {words}; at most {TRIGGERS_MAX}"
            " are supported. Give a longer interval."
        )
    return changed


def check_rewritten(program: Program, tuning: Tuning) -> None:
    """Refuse a rewritten script that does not have the recommended options."""
    wanted = tuning.best.candidate.query(tuning.query)
    [got] = [sink.query for sink in program.sinks if sink.name == tuning.sink]
    if _searched(got) != _searched(wanted):
        raise PlanError(
            "The script with the new clause does not have the recommended options. Set them by"
            f" hand: {tuning.options}, instead of {tuning.clause}"
        )


def _searched(query: Query) -> tuple[object, ...]:
    """What a search may change. Votes, by default, follow from the norm of public groups too."""
    return Candidate.of(query).options(query), binding_caps(query)


def _step(
    name: str,
    value: str,
    simulation: Simulation,
    tried: Sequence[Candidate],
    goal: Goal,
    threads: int,
    report: ReportProgress,
) -> Step:
    def say(done: int) -> None:
        report(f"{name} {value}", done, len(tried))

    measured = measure(simulation, simulation.sample, tried, 1.0, threads, say)
    if not measured:
        raise PlanError(f"There is no noise for {name} {value}. Leave it out.")
    return Step(name, value, min(measured, key=lambda one: score(one.figures, goal)))


def _sizes(simulation: Simulation, candidate: Candidate) -> tuple[SizeClass, ...]:
    """The first aggregate's errors by the size of groups."""
    query = candidate.query(simulation.query)
    outcome = simulate(simulation.plan(query), simulation.sample, simulation.secret)
    values = values_of(query, outcome.plan, outcome.end)
    return tuple(by_size(simulation.sample, outcome.end, values[0])) if values else ()


def _measured(one: Measured, query: Query) -> dict[str, Any]:
    return {"options": one.candidate.options(query), "figures": numbers_of(one.figures)}
