"""`dpsqlp tune` and `dpsqlp preview`: results on standard output, progress on standard error."""

from __future__ import annotations

import codecs
import json
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from dpsqlp.cli.exit_codes import errors_as_exit_codes
from dpsqlp.cli.experiment_run import progress
from dpsqlp.errors import PlanError

if TYPE_CHECKING:
    from rich.console import Console

    from dpsqlp.tuning.figures import Goal
    from dpsqlp.tuning.report import Bar, Table
    from dpsqlp.tuning.script import Script
    from dpsqlp.tuning.tune import Tuning

_BAR = 20  # characters
_PIPED_WIDTH = 132


def run_tune(
    file: Path,
    sample: str,
    *,
    sink: str | None,
    units: int | None,
    goal: Goal | None,
    candidates: int,
    seed: int,
    threads: int,
    epsilons: str,
    intervals: str,
    write: bool,
    html: Path | None,
    as_json: bool,
) -> None:
    """Search, report, and write what was asked for."""
    with errors_as_exit_codes():
        from dpsqlp.tuning.tune import check_goal, default_goal, tune_query

        script = _script(file, sink)
        wanted = goal or default_goal(script.sink.query)
        check_goal(script.sink.query, wanted)
        with progress() as report:
            report("reading the sample", 0, 1)
            rows = script.sample_rows(sample, units=units, seed=seed, threads=threads)
            tuning = tune_query(
                script.text,
                script.compiled,
                script.sink,
                rows,
                wanted,
                candidates=candidates,
                seed=seed,
                threads=threads,
                epsilons=[_number(word) for word in _words(epsilons)],
                intervals=_words(intervals),
                report=report,
            )
        if html is not None:
            html.write_text(tuning.to_html(), encoding="utf-8")
            print(f"Wrote {html}", file=sys.stderr)
        if write:
            _write(file, script.text, tuning)
            print(f"Wrote the options of {script.sink.name} into {file}", file=sys.stderr)
        if as_json:
            typer.echo(json.dumps(tuning.to_dict(), indent=2, default=str))
            return
        from dpsqlp.tuning.report import bars, figures_line, tuning_tables

        console = _console()
        _say(console, f"Recommended for {tuning.sink}, goal {tuning.goal}:\n\n{tuning.clause}\n")
        _say(console, f"Recommended: {figures_line(tuning.best.figures)}")
        _say(console, f"As it stands: {figures_line(tuning.now.figures)}\n")
        for table in tuning_tables(tuning):
            _show(console, table)
        for title, sizes in (("recommended", tuning.sizes), ("as it stands", tuning.sizes_now)):
            _picture(console, title, bars(sizes))
        for note in tuning.notes:
            _say(console, note)


def run_preview(
    file: Path,
    sample: str,
    *,
    sink: str | None,
    units: int | None,
    seed: int,
    threads: int,
    as_json: bool,
) -> None:
    """Simulate the options as they stand, and report."""
    with errors_as_exit_codes():
        from dpsqlp.tuning.preview import preview_query

        script = _script(file, sink)
        with progress() as report:
            report("reading the sample", 0, 2)
            rows = script.sample_rows(sample, units=units, seed=seed, threads=threads)
            report("simulating", 1, 2)
            preview = preview_query(script.sink, rows)
        if as_json:
            typer.echo(json.dumps(preview.to_dict(), indent=2, default=str))
            return
        from dpsqlp.tuning.report import bars, figures_line, preview_tables

        console = _console()
        _say(console, f"{preview.sink}: {figures_line(preview.figures)}\n")
        for table in preview_tables(preview):
            _show(console, table)
        for name, sizes in preview.sizes.items():
            _picture(console, name, bars(sizes))
        for note in preview.notes:
            _say(console, note)


def _script(file: Path, sink: str | None) -> Script:
    """The script, every byte of it, with the sink of this name, or the only one."""
    from dpsqlp.api import choose
    from dpsqlp.sql import compile_script, read_file
    from dpsqlp.tuning.script import Script

    read_file(file)  # refused in words if it is not UTF-8
    text = file.read_bytes().decode("utf-8-sig")  # with its line ends
    compiled = partial(compile_script, folder=str(file.parent))
    program = compiled(text)
    return Script(text, compiled, program, choose(program.sinks, sink, "with --sink"), file.parent)


def _write(file: Path, text: str, tuning: Tuning) -> None:
    """Replace a script at once: a write that ends half way leaves the old one. `text` is what the
    search began with.
    """
    file = file.resolve()  # a link stays one
    found = file.read_bytes()
    mark = codecs.BOM_UTF8 if found.startswith(codecs.BOM_UTF8) else b""
    if found != mark + text.encode():
        raise PlanError(
            f"{file} has changed since the search began. Nothing was written to it; paste the"
            f" clause of {tuning.sink} yourself: {tuning.clause}"
        )
    written = file.with_name(f".{file.name}.writing")
    written.write_bytes(mark + tuning.script.encode())
    written.chmod(file.stat().st_mode & 0o7777)
    written.replace(file)


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        raise typer.BadParameter(
            f"{word!r} is no number. Separate them by commas: 1,2,4."
        ) from None


def _console() -> Console:
    from rich.console import Console

    return Console(width=None if sys.stdout.isatty() else _PIPED_WIDTH)


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _show(console: Console, table: Table) -> None:
    from rich import box
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for position, head in enumerate(table.heads):
        grid.add_column(Text(head), justify="left" if position == 0 else "right", overflow="fold")
    for row in table.rows:
        grid.add_row(*map(Text, row))
    with console.capture() as drawn:
        console.print(grid)
    lines = [line.rstrip() for line in drawn.get().splitlines()]
    _say(console, table.title)
    typer.echo("\n".join(lines))


def _picture(console: Console, title: str, rows: Sequence[Bar]) -> None:
    """Noise and cap bias by the size of groups, as bars."""
    if not rows:
        return
    _say(
        console,
        f"Noise (█) and cap bias (░) by rows of a group, {title}, as parts of the median"
        f" true value, which is {_BAR} characters",
    )
    width = max(len(bar.label) for bar in rows)
    for bar in rows:
        drawn = "█" * round(_BAR * bar.noise) + "░" * round(_BAR * bar.bias)
        _say(console, f"  {bar.label:>{width}}  {drawn:<{2 * _BAR}}  {bar.words}")
    _say(console, "")
