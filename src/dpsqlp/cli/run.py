"""`dpsqlp run`: run all sinks of a script until they finish or are interrupted."""

from __future__ import annotations

import shlex
import signal
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from dpsqlp.cli.exit_codes import INTERRUPTED
from dpsqlp.cli.log import Log
from dpsqlp.cli.progress import make_progress, moment
from dpsqlp.engines.engine import Engine, Progress
from dpsqlp.engines.runner import run_side_by_side
from dpsqlp.engines.script import check_budgets, open_engine, open_spark_engine
from dpsqlp.engines.spark.session import start_session
from dpsqlp.errors import PlanError, UnavailableError
from dpsqlp.sinks.factory import make_sink
from dpsqlp.sql import (
    Program,
    SinkDef,
    compile_script,
    explain_total,
    find_warnings,
    period_text,
    read_file,
    unit_text,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from dpsqlp.dashboard.attach import Dashboard

DONE = 0
# Only the main thread runs signal handlers, and a signal to another thread does not wake it.
_SIGNAL_SECONDS = 0.5


def run_script(
    file: Path,
    log: Log,
    *,
    given_state: Path | None,
    given_secret: Path | None,
    threads: int,
    metrics: bool,
    on_spark: bool,
    master: str | None,
    shards: int,
    left_behind: Sequence[str],
    dashboard: bool,
    port: int | None,
    operator_metrics: bool,
) -> int:
    """Run a script's sinks; returns the exit code."""
    program = compile_script(read_file(file), folder=str(file.parent))
    _check(program)
    state = given_state or file.with_suffix(".state")
    secret = given_secret or file.with_suffix(".secret")
    check_budgets(program.sinks, state)
    command = shlex.join(["dpsqlp", *sys.argv[1:]])
    watching = _watching(state, port, operator_metrics) if dashboard else None

    def opened(sink: SinkDef, spark: SparkSession | None) -> Engine:
        folder = file.parent
        output = make_sink(sink.name, sink.options, folder)
        output = output if watching is None else watching.archive(sink.name, output)
        if spark is None:
            return open_engine(
                sink, state=state, secret=secret, folder=folder, output=output, threads=threads
            )
        return open_spark_engine(
            spark, sink, state=state, secret=secret, folder=folder, output=output, shards=shards
        )

    with ExitStack() as page, _interruptible() as stop, ExitStack() as stack:
        engines: dict[str, Engine] = {}
        spark = start_session(master) if on_spark else None
        if spark is not None:
            stack.callback(spark.stop)
        for sink in program.sinks:
            engine = opened(sink, spark)
            stack.callback(engine.close)
            engines[sink.name] = engine
        if left_behind:
            _leave_behind(left_behind, engines, log)
        for sink in program.sinks:
            started = _start_message(sink, engines[sink.name], state / sink.name)
            log.say("open", started, sink=sink.name)
            for warning in find_warnings(sink.query):
                log.say("warning", warning, sink=sink.name)
        plans = [(sink.name, sink.query, engines[sink.name].plan) for sink in program.sinks]
        if total := explain_total(plans, str(file.parent)).strip():
            log.say("total", total)
        printing = any(sink.options.get("connector") == "stdout" for sink in program.sinks)
        watched = None if watching is None else page.enter_context(watching.serve(engines))
        if watched is not None:
            log.say("page", f"Dashboard: {watched}")
        with make_progress(engines, log, metrics=metrics, printing=printing) as progress:

            def report(name: str, what: Progress | UnavailableError) -> None:
                progress.report(name, what)
                if watching is not None:
                    watching.report(name, what)

            begin = (lambda name: None) if watching is None else watching.begin
            run_side_by_side(engines, stop, report, begin)
            stopped = stop.is_set() and not all(e.finished for e in engines.values())
        for line in progress.summary():
            log.say("summary", line)
        if stopped:
            log.say("interrupted", _stop_message(program, engines, command))
        elif not all(engine.finished for engine in engines.values()):
            log.say("ended", f"Standard input has ended. To resume with more input: {command}")
        if watching is not None:
            watching.end(engines)
        stack.close()  # another process may open the state while the page stays up
        if watched is not None:
            if not stopped:
                _stay(log, watched, stop)
            log.say("page", f"To open the dashboard again: dpsqlp serve {shlex.quote(str(state))}")
    return INTERRUPTED if stopped else DONE


def _stay(log: Log, address: str, stop: threading.Event) -> None:
    """Keep the dashboard of a run that is over, until Ctrl-C or SIGTERM."""
    log.say("page", f"The run has ended. The dashboard stays up until Ctrl-C: {address}")
    while not stop.wait(_SIGNAL_SECONDS):
        pass


def _watching(state: Path, port: int | None, operator_metrics: bool) -> Dashboard:
    from dpsqlp.dashboard.attach import Dashboard

    return Dashboard(state, port=port, operator=operator_metrics)


def _check(program: Program) -> None:
    """Refuse sources and sinks in Python, and two sinks that read standard input."""
    for sink in program.sinks:
        source = sink.query.source
        if source.connector == "python":
            raise PlanError(
                f"The source {source.name} is fed from Python. Run it with dpsqlp.open(...), or"
                " give it a connector, for example connector = 'files'."
            )
        if sink.options.get("connector") in (None, "python"):
            raise PlanError(
                f"The sink {sink.name} has no connector. Give it one, for example"
                " WITH (connector = 'parquet', path = 'out')."
            )
    readers = [sink.name for sink in program.sinks if sink.query.source.connector == "stdin"]
    if len(readers) > 1:
        raise PlanError(
            f"The sinks {', '.join(readers)} all read standard input, which can be read only once."
            " Keep one of these sinks, or write the records to files first."
        )


def _leave_behind(paths: Sequence[str], engines: Mapping[str, Engine], log: Log) -> None:
    """Skip unreadable files, in every sink whose next trigger has them."""
    left = {name: engine.leave_behind(paths) for name, engine in engines.items()}
    unknown = set(paths).difference(*left.values())
    if unknown:
        raise PlanError(
            f"The next trigger does not read {', '.join(sorted(unknown))}, so it cannot be left"
            " behind. Write the name of the file as in the error message."
        )
    for name, files in left.items():
        if files:
            log.say(
                "left behind",
                f"{name}: NOT PROTECTED: {', '.join(files)} is left behind. Whether a file can be"
                " read may depend on its records, and releases may show that they are missing.",
                sink=name,
            )


def _start_message(sink: SinkDef, engine: Engine, state: Path) -> str:
    """Whether the sink begins or resumes, its promise, its state, and its ledger."""
    calibration = engine.plan.calibration
    unit = unit_text(sink.query.unit_names, period_text(sink.query))
    begins = "begins" if engine.journal.manifest.trigger is None else "resumes"
    entered = ""
    if engine.account is not None and sink.query.account is not None:
        made = ", which did not exist and was made" if engine.account.made else ""
        budget, ledger = sink.query.account.budget.name, engine.account.store.name
        entered = f"; entered in the budget {budget}, ledger {ledger}{made}"
    return (
        f"{sink.name} {begins}: ({calibration.epsilon:g}, {calibration.delta:g})-DP for each"
        f" {unit}; state {state}{entered}"
    )


def _stop_message(program: Program, engines: dict[str, Engine], command: str) -> str:
    done = "the trigger was finished"
    if not all(engine.published for engine in engines.values()):
        done = "one unpublished release is stored and will be sent first"
    lines = [f"Interrupted; {done}. To resume: {command}"]
    clocked = [e for e in engines.values() if not e.schedule.on_event_time]
    if clocked:
        lines.append("Triggers that are due until then will run without records.")
    if any(sink.query.source.connector == "stdin" for sink in program.sinks):
        cut = max(e.schedule.due(e.cuts.decided) for e in clocked)
        lines.append(f"Resend the standard input that arrived after {moment(cut)}.")
    return "\n".join(lines)


@contextmanager
def _interruptible() -> Iterator[threading.Event]:
    """An event that SIGINT or SIGTERM sets; a second signal ends the process at once."""
    stop = threading.Event()

    def handle(number: int, frame: FrameType | None) -> None:
        # In a thread of its own: the main thread may be holding the event's lock.
        threading.Thread(target=stop.set).start()
        signal.signal(number, signal.SIG_DFL)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
