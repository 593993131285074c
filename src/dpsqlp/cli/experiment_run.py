"""Runs one experiment: progress on standard error, then the result as a table, JSON or a page."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dpsqlp.cli.exit_codes import errors_as_exit_codes

if TYPE_CHECKING:
    from dpsqlp.experiments.replay import ReportProgress
    from dpsqlp.experiments.result import Result

_NOT_REPEATED = ("as_json", "report", "save")


def run_experiment(
    context: typer.Context,
    work: Callable[[ReportProgress], Result],
    as_json: bool,
    report: Path | None,
    save: Path | None,
) -> None:
    """Run an experiment with progress, then show its result and write the requested files."""
    from dataclasses import replace

    with errors_as_exit_codes():
        if report is not None:
            from dpsqlp.experiments.plots import check_available

            check_available()
        with progress() as report_progress:
            result = replace(work(report_progress), command=_command(context))
        if save is not None:
            print(f"Saved {result.save(save)}", file=sys.stderr)
        if report is not None:
            from dpsqlp.experiments.report import write_html

            print(f"Wrote {write_html(result, report)}", file=sys.stderr)
        if as_json:
            typer.echo(result.to_json(), nl=False)
        else:
            _show(result)


def _command(context: typer.Context) -> str:
    """The command that repeats this run, with every setting; of a file only its name."""
    words = ["dpsqlp", "experiment", context.info_name or ""]
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name in _NOT_REPEATED or value is None or value is False:
            continue
        if parameter.param_type_name != "argument":
            words.append(parameter.opts[0])
        if value is not True:  # a flag has no value
            words.append(value.name if isinstance(value, Path) else str(value))
    return shlex.join(words)


def _show(result: Result) -> None:
    """Print the settings, a table and the notes."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from dpsqlp.experiments.table import cells, figure

    console = Console()
    columns = {name for row in result.rows for name in row}
    settings = ", ".join(
        f"{name} {figure(name, value)}"
        for name, value in result.settings.items()
        if name not in columns
    )
    console.print(f"[bold]{result.experiment}[/bold]: {settings}", highlight=False)
    heads, rows = cells(result.rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for position, head in enumerate(heads):
        first = position == 0
        table.add_column(head, justify="left" if first else "right", no_wrap=first, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for note in result.notes:
        console.print(note, highlight=False)


@contextmanager
def progress() -> Iterator[ReportProgress]:
    """A progress bar on a terminal; otherwise a line for each run."""
    from rich import progress as bars
    from rich.console import Console

    if not sys.stderr.isatty():
        said: list[str] = []

        def say(what: str, done: int, of: int) -> None:
            if said[-1:] != [what]:
                said.append(what)
                print(what, file=sys.stderr, flush=True)

        yield say
        return
    with bars.Progress(
        bars.TextColumn("{task.description}"),
        bars.BarColumn(),
        bars.TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
    ) as shown:
        task = shown.add_task("")

        def move(what: str, done: int, of: int) -> None:
            shown.update(task, description=what, completed=done, total=of)

        yield move
