"""`dpsqlp experiment`: the paper's experiments. Heavy imports are deferred until a command runs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from dpsqlp.cli.exit_codes import errors_as_exit_codes
from dpsqlp.cli.experiment_run import run_experiment

if TYPE_CHECKING:
    from dpsqlp.experiments.replay import ReportProgress
    from dpsqlp.experiments.result import Result

app = typer.Typer(
    help="Repeat the paper's experiments on the real system, next to the published figures.\n\n"
    "Streams are generated, or read from your own file. The first run on a machine compiles"
    " kernels, which adds about 20 seconds to its time.",
    epilog="**Examples:**\n\ndpsqlp experiment synthetic\n\n"
    "dpsqlp experiment real ratings.parquet --report out",
    no_args_is_help=True,
)

Units = Annotated[
    int, typer.Option(min=1, help="Units of the generated day; 10000000 in the paper.")
]
Keys = Annotated[int, typer.Option(min=1, help="Keys to draw from; 1000000 in the paper.")]
Triggers = Annotated[int, typer.Option(min=1, help="Triggers over the stream.")]
Preset = Annotated[
    Literal["paper", "tree", "best"],
    typer.Option(
        help="paper: the published mechanism and calibration, which carries no promise; tree: the"
        " published mechanism with our accounting; best: options tuned for this day."
    ),
]
Seed = Annotated[
    int, typer.Option(help="Seed of the generated data. The noise is new in every run.")
]
Threads = Annotated[int, typer.Option(min=1, help="Threads, and shards of the state.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")]
ReportFolder = Annotated[
    Path | None,
    typer.Option(
        "--report",
        file_okay=False,
        help="Folder for plots and an HTML page. Requires pip install 'dpsqlp\\[experiments]'.",
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
    runs: Annotated[int, typer.Option(min=1, help="Runs to average; 3 in the paper.")] = 1,
    seed: Seed = 1,
    threads: Threads = 2,
    as_json: Json = False,
    report: ReportFolder = None,
    save: Save = None,
) -> None:
    """Accuracy and speed on the paper's synthetic day: counts per key, ε = 6, δ = 1e-9.

    Errors are measured at the end of the day, against the true histogram before any bounding; a
    key that was not released counts as 0. Each run is a process of its own, for time and memory.
    """

    def work(progress: ReportProgress) -> Result:
        from dpsqlp.experiments.synthetic import Day, run_synthetic

        return run_synthetic(Day(units, keys, triggers, seed), preset, runs, threads, progress)

    run_experiment(context, work, as_json, report, save)


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
    """The paper's baselines on the same day and budget: one-shot privacy at every trigger.

    Repeated: on all data so far, composed over the triggers by the optimal composition theorem.
    Incremental: on each micro-batch, added up. A third row is the first with better accounting.
    """

    def work(progress: ReportProgress) -> Result:
        from dpsqlp.experiments.synthetic import Day, run_baselines

        return run_baselines(Day(units, keys, triggers, seed), progress)

    run_experiment(context, work, as_json, report, save)


@app.command(epilog=_example("sweep --contributions 1,5,10,25,50"))
def sweep(
    context: typer.Context,
    contributions: Annotated[
        str, typer.Option(metavar="LIST", help="Contribution limits C, separated by commas.")
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
        raise typer.BadParameter("Give whole numbers of at least 1, separated by commas: 1,5,10.")

    def work(progress: ReportProgress) -> Result:
        from dpsqlp.experiments.synthetic import Day, run_sweep

        return run_sweep(Day(units, keys, triggers, seed), preset, limits, threads, progress)

    run_experiment(context, work, as_json, report, save)


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
    """How many users a key needs to be selected, next to the paper's thresholds at ε = 1, 3, 10.

    One record per unit and day, 150 triggers, δ = 1e-9. The views are generated.
    """

    def work(progress: ReportProgress) -> Result:
        from dpsqlp.experiments.industry import run_shopping

        return run_shopping(units, keys, seed, threads, progress)

    run_experiment(context, work, as_json, report, save)


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

    A unit is a user and a query, with one record. The searches are generated.
    """

    def work(progress: ReportProgress) -> Result:
        from dpsqlp.experiments.industry import run_trends

        return run_trends(units, keys, seed, threads, progress)

    run_experiment(context, work, as_json, report, save)


@app.command(epilog=_example("real ratings.parquet --epsilon 6 --delta 1e-9 --contributions 17"))
def real(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.parquet", exists=True, dir_okay=False, help="Columns user_id, key and ts."
        ),
    ],
    triggers: Triggers = 100,
    epsilon: Annotated[float, typer.Option(help="Of each method separately.")] = 6.0,
    delta: Annotated[float, typer.Option(help="Of each method separately.")] = 1e-9,
    contributions: Annotated[int, typer.Option(min=1, help="C, records per unit.")] = 32,
    records_per_key: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="c, records per unit and key, for the preset best.  [default: 2, at most C]",
        ),
    ] = None,
    selections: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Cs, selection votes per unit, for the preset best.  [default: 2, at most C]",
        ),
    ] = None,
    selection_share: Annotated[
        float, typer.Option(help="Part of the budget for selection, for the preset best.")
    ] = 0.45,
    selection_spending: Annotated[
        Literal["even", "late"],
        typer.Option(help="How selection spends delta over the triggers, for the preset best."),
    ] = "late",
    seed: Annotated[int, typer.Option(help="Seed of the baselines' noise.")] = 1,
    threads: Threads = 2,
    as_json: Json = False,
    report: ReportFolder = None,
    save: Save = None,
) -> None:
    """Accuracy on your own file: the three presets and the baselines against the true counts.

    The file's span of time is divided into triggers of equal length. This is for experiments only:
    in production the span must be public, or the data would decide about time. Each method has the
    budget for itself, and true counts are shown: use data that you may see.
    """
    if max(records_per_key or 1, selections or 1) > contributions:
        raise typer.BadParameter(
            "--records-per-key and --selections must be at most --contributions."
        )

    def work(progress: ReportProgress) -> Result:
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

    run_experiment(context, work, as_json, report, save)


@app.command(epilog=_example("scale --keys 50000000"))
def scale(
    context: typer.Context,
    keys: Annotated[int, typer.Option(min=16, help="Largest number of keys in state.")] = 4_000_000,
    records: Annotated[
        int, typer.Option(min=16, help="Largest number of records in a micro-batch.")
    ] = 1_000_000,
    seed: Seed = 1,
    threads: Threads = 2,
    as_json: Json = False,
    report: ReportFolder = None,
    save: Save = None,
) -> None:
    """Time of a trigger by records, shards and keys in state, with an extrapolation."""

    def work(progress: ReportProgress) -> Result:
        from dpsqlp.experiments.scale import run_scale

        return run_scale(keys, records, seed, threads, progress)

    run_experiment(context, work, as_json, report, save)


@app.command("report", epilog=_example("report docs/results"))
def write_report(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER", exists=True, file_okay=False, help="Folder of saved results."
        ),
    ],
) -> None:
    """Write FOLDER.md, a page of all saved results, and their plots."""
    from dpsqlp.experiments.report import write_results

    with errors_as_exit_codes():
        typer.echo(write_results(folder))
