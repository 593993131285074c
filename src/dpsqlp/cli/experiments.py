"""`dpsqlp experiment`: the paper's experiments. Heavy imports wait until a command runs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dpsqlp.cli.exit_codes import refusals

if TYPE_CHECKING:
    from dpsqlp.experiments.replay import Report
    from dpsqlp.experiments.result import Result

_NOT_REPEATED = ("as_json", "report", "save")

app = typer.Typer(
    help="Repeat the paper's experiments on the real system, with its figures beside ours.\n\n"
    "Streams are generated, or a file of yours. The first run on a machine compiles kernels, which"
    " takes some 20 seconds of its time.",
    epilog="**Examples:**\n\ndpsqlp experiment synthetic\n\n"
    "dpsqlp experiment real ratings.parquet --report out",
    no_args_is_help=True,
)

Units = Annotated[int, typer.Option(min=1, help="Units of the generated day; the paper: 10000000.")]
Keys = Annotated[int, typer.Option(min=1, help="Keys to draw from; the paper: 1000000.")]
Triggers = Annotated[int, typer.Option(min=1, help="Triggers over the stream.")]
Preset = Annotated[
    Literal["paper", "tree", "best"],
    typer.Option(
        help="paper: its mechanism and its calibration, which carries no promise; tree: its"
        " mechanism under our accounting; best: options tuned for this day."
    ),
]
Seed = Annotated[int, typer.Option(help="Seed of the generated data; noise is fresh every time.")]
Threads = Annotated[int, typer.Option(min=1, help="Threads, and shards of the state.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
ReportFolder = Annotated[
    Path | None,
    typer.Option(
        "--report",
        file_okay=False,
        help="Folder for plots and an HTML page. Needs the extra: pip install"
        " 'dpsqlp\\[experiments]'.",
    ),
]
Save = Annotated[
    Path | None,
    typer.Option(
        file_okay=False, help="Folder for the result as JSON, for `dpsqlp experiment report`."
    ),
]


def _example(words: str) -> str:
    return f"**Example:**\n\ndpsqlp experiment {words}"


@app.command(epilog=_example("synthetic --units 10000000 --preset best --runs 3"))
def synthetic(
    context: typer.Context,
    units: Units = 1_000_000,
    keys: Keys = 1_000_000,
    triggers: Triggers = 100,
    preset: Preset = "best",
    runs: Annotated[int, typer.Option(min=1, help="Runs to average; the paper: 3.")] = 1,
    seed: Seed = 1,
    threads: Threads = 2,
    as_json: Json = False,
    report: ReportFolder = None,
    save: Save = None,
) -> None:
    """Accuracy and speed on the paper's synthetic day: counts per key, ε = 6, δ = 1e-9.

    Errors are against the true histogram before any bounding, at the end of the day; a key that
    was not released counts 0. Time and memory are those of each run's own process.
    """

    def work(progress: Report) -> Result:
        from dpsqlp.experiments.synthetic import Day, run_synthetic

        return run_synthetic(Day(units, keys, triggers, seed), preset, runs, threads, progress)

    _run(context, work, as_json, report, save)


@app.command(epilog=_example("baselines --triggers 1000"))
def baselines(
    context: typer.Context,
    units: Units = 1_000_000,
    keys: Keys = 1_000_000,
    triggers: Triggers = 100,
    seed: Seed = 1,
    as_json: Json = False,
    report: ReportFolder = None,
    save: Save = None,
) -> None:
    """The paper's baselines on the same day and budget: one-shot privacy, again and again.

    Repeated: on all data so far, composed over the triggers by the optimal composition theorem.
    Incremental: on each micro-batch, added up. A third row accounts better for the first.
    """

    def work(progress: Report) -> Result:
        from dpsqlp.experiments.synthetic import Day, run_baselines

        return run_baselines(Day(units, keys, triggers, seed), progress)

    _run(context, work, as_json, report, save)


@app.command(epilog=_example("sweep --contributions 1,5,10,25,50"))
def sweep(
    context: typer.Context,
    contributions: Annotated[
        str, typer.Option(metavar="LIST", help="Contribution limits C, between commas.")
    ] = "1,2,3,5,8,12,16,20,25,30,32,40,50",
    units: Units = 1_000_000,
    keys: Keys = 1_000_000,
    triggers: Triggers = 100,
    preset: Preset = "paper",
    seed: Seed = 1,
    threads: Threads = 2,
    as_json: Json = False,
    report: ReportFolder = None,
    save: Save = None,
) -> None:
    """Keys and errors on the synthetic day by contribution limit C: the paper's figure."""
    try:
        limits = [int(word) for word in contributions.split(",")]
    except ValueError:
        limits = []
    if not limits or min(limits) < 1:
        raise typer.BadParameter("Give whole numbers of at least 1, between commas: 1,5,10.")

    def work(progress: Report) -> Result:
        from dpsqlp.experiments.synthetic import Day, run_sweep

        return run_sweep(Day(units, keys, triggers, seed), preset, limits, threads, progress)

    _run(context, work, as_json, report, save)


@app.command(epilog=_example("shopping"))
def shopping(
    context: typer.Context,
    units: Units = 1_000_000,
    keys: Keys = 100_000,
    seed: Seed = 1,
    threads: Threads = 2,
    as_json: Json = False,
    report: ReportFolder = None,
    save: Save = None,
) -> None:
    """How many users a key needs to be selected, beside the paper's thresholds at ε = 1, 3, 10.

    One record per unit and day, 150 triggers, δ = 1e-9. The views are a generated stand-in.
    """

    def work(progress: Report) -> Result:
        from dpsqlp.experiments.industry import run_shopping

        return run_shopping(units, keys, seed, threads, progress)

    _run(context, work, as_json, report, save)


@app.command(epilog=_example("trends"))
def trends(
    context: typer.Context,
    units: Units = 1_000_000,
    keys: Keys = 100_000,
    seed: Seed = 1,
    threads: Threads = 2,
    as_json: Json = False,
    report: ReportFolder = None,
    save: Save = None,
) -> None:
    """Which search queries are selected: keys only, ε = 2, δ = 1e-10, more than 50 users.

    A unit is a user and a query, with one record. The searches are a generated stand-in.
    """

    def work(progress: Report) -> Result:
        from dpsqlp.experiments.industry import run_trends

        return run_trends(units, keys, seed, threads, progress)

    _run(context, work, as_json, report, save)


@app.command(epilog=_example("real ratings.parquet --epsilon 6 --delta 1e-9 --contributions 17"))
def real(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.parquet", exists=True, dir_okay=False, help="user_id, key and ts."
        ),
    ],
    triggers: Triggers = 100,
    epsilon: Annotated[float, typer.Option(help="Of each method by itself.")] = 6.0,
    delta: Annotated[float, typer.Option(help="Of each method by itself.")] = 1e-9,
    contributions: Annotated[int, typer.Option(min=1, help="C, records per unit.")] = 32,
    records_per_key: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="c, records per unit and key, of the preset best.  [default: 2, at most C]",
        ),
    ] = None,
    selections: Annotated[
        int | None,
        typer.Option(
            min=1, help="Cs, selection votes per unit, of the preset best.  [default: 2, at most C]"
        ),
    ] = None,
    selection_share: Annotated[
        float, typer.Option(help="Part of the budget for selection, of the preset best.")
    ] = 0.45,
    selection_spending: Annotated[
        Literal["even", "late"],
        typer.Option(help="How selection spends delta over the triggers, of the preset best."),
    ] = "late",
    seed: Annotated[int, typer.Option(help="Seed of the baselines' noise.")] = 1,
    threads: Threads = 2,
    as_json: Json = False,
    report: ReportFolder = None,
    save: Save = None,
) -> None:
    """Accuracy on a file of yours: the three presets and the baselines against its truth.

    The file's own span of time is cut into triggers of equal length. That is an experiment's
    convenience: in production the span is public, or the data would decide about time. Each method
    is accounted for by itself, and the truth is shown: for data that you may look at.
    """
    if max(records_per_key or 1, selections or 1) > contributions:
        raise typer.BadParameter("--records-per-key and --selections are at most --contributions.")

    def work(progress: Report) -> Result:
        from dpsqlp.experiments.real import run_real

        return run_real(
            file,
            triggers=triggers,
            epsilon=epsilon,
            delta=delta,
            contributions=contributions,
            records_per_key=records_per_key,
            selections=selections,
            selection_share=selection_share,
            selection_spending=selection_spending,
            seed=seed,
            threads=threads,
            report=progress,
        )

    _run(context, work, as_json, report, save)


@app.command(epilog=_example("scale --keys 50000000"))
def scale(
    context: typer.Context,
    keys: Annotated[int, typer.Option(min=16, help="Most keys in state.")] = 4_000_000,
    records: Annotated[
        int, typer.Option(min=16, help="Most records in a micro-batch.")
    ] = 1_000_000,
    seed: Seed = 1,
    threads: Threads = 2,
    as_json: Json = False,
    report: ReportFolder = None,
    save: Save = None,
) -> None:
    """Time of a trigger by records, shards and keys in state, and what it extrapolates to."""

    def work(progress: Report) -> Result:
        from dpsqlp.experiments.scale import run_scale

        return run_scale(keys, records, seed, threads, progress)

    _run(context, work, as_json, report, save)


@app.command("report", epilog=_example("report docs/results"))
def write_report(
    folder: Annotated[
        Path,
        typer.Argument(metavar="FOLDER", exists=True, file_okay=False, help="Of saved results."),
    ],
) -> None:
    """Write the page of all saved results, FOLDER.md, and their plots."""
    from dpsqlp.experiments.report import write_results

    with refusals():
        typer.echo(write_results(folder))


def _run(
    context: typer.Context,
    work: Callable[[Report], Result],
    as_json: bool,
    report: Path | None,
    save: Path | None,
) -> None:
    """Run an experiment with progress, then show and write what was asked for."""
    from dataclasses import replace

    with refusals():
        if report is not None:
            from dpsqlp.experiments.plots import check_available

            check_available()
        with _progress() as progress:
            result = replace(work(progress), command=_command(context))
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
    """The command that repeats this, every setting spelled out; of a file only its name."""
    words = ["dpsqlp", "experiment", context.info_name or ""]
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name in _NOT_REPEATED or value is None:
            continue
        text = value.name if isinstance(value, Path) else str(value)
        words += [text] if parameter.param_type_name == "argument" else [parameter.opts[0], text]
    return shlex.join(words)


def _show(result: Result) -> None:
    """The settings, a table, the notes."""
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
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for position, head in enumerate(heads):
        table.add_column(head, justify="left" if position == 0 else "right")
    for row in rows:
        table.add_row(*row)
    console.print(table)
    for note in result.notes:
        console.print(note, highlight=False)


@contextmanager
def _progress() -> Iterator[Report]:
    """A bar on a terminal; elsewhere a line for each run."""
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
