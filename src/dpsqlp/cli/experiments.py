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
    Literal["paper", "tree", "default", "best"],
    typer.Option(
        help="paper: the published mechanism and calibration, which carries no promise; tree: the"
        " published mechanism with our accounting; default: a norm, and no other option; best:"
        " options tuned for this day."
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


OptionalFile = Annotated[
    Path | None,
    typer.Argument(
        metavar="[FILE.parquet]",
        exists=True,
        dir_okay=False,
        help="Columns user_id, key and ts. Left out: the synthetic day.",
        show_default=False,
    ),
]
Epsilon = Annotated[float, typer.Option(help="Of each method separately.")]
Delta = Annotated[float, typer.Option(help="Of each method separately.")]
Contributions = Annotated[int, typer.Option(min=1, help="C, records per unit, of paper.")]
DefaultNorm = Annotated[float, typer.Option(min=1, help="max_contribution_norm of default.")]
Seeds = Annotated[int, typer.Option(min=1, help="Ways to split the units; figures are means.")]


def _example(words: str) -> str:
    return f"**Example:**\n\ndpsqlp experiment {words}"


@app.command(epilog=_example("synthetic --units 10000000 --preset best --runs 3"))
def synthetic(
    context: typer.Context,
    units: Units = 1_000_000,
    keys: Keys = 1_000_000,
    triggers: Triggers = 100,
    preset: Preset = "best",
    closing: Annotated[
        Literal["on", "off"],
        typer.Option(help="off: default and best without the closing, group_selection_closing."),
    ] = "on",
    runs: Annotated[int, typer.Option(min=1, help="Runs to average; 3 in the paper.")] = 1,
    seed: Seed = 1,
    threads: Threads = 2,
    as_json: Json = False,
    report: ReportFolder = None,
    save: Save = None,
) -> None:
    """Accuracy and speed on the paper's synthetic day: counts per key, ε = 6, δ = 1e-9.

    Errors are measured at the end of the day, against the true histogram before any bounding; a
    key that was not released counts as 0. Keys are also counted after half of the triggers. Each
    run is a process of its own, for time and memory.
    """

    def work(progress: ReportProgress) -> Result:
        from dpsqlp.experiments.synthetic import Day, run_synthetic

        day = Day(units, keys, triggers, seed)
        return run_synthetic(day, preset, closing == "on", runs, threads, progress)

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


@app.command(epilog=_example("sweep --preset best --norms 4,8,16"))
def sweep(
    context: typer.Context,
    contributions: Annotated[
        str,
        typer.Option(metavar="LIST", help="C for paper and tree, separated by commas."),
    ] = "1,2,3,5,8,12,16,20,25,30,32,40,50",
    norms: Annotated[
        str,
        typer.Option(metavar="LIST", help="Norms for default and best, separated by commas."),
    ] = "1,2,3,4,5,6,8,10,12,16",
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
    """Keys and errors on the synthetic day by contribution bound.

    The presets paper and tree are swept over C, which is the paper's figure; default and best over
    the norm.
    """
    limits, scales = _numbers(contributions, int), _numbers(norms, float)

    def work(progress: ReportProgress) -> Result:
        from dpsqlp.experiments.synthetic import Day, run_sweep, sweeps_norm

        bounds = scales if sweeps_norm(preset) else limits
        return run_sweep(Day(units, keys, triggers, seed), preset, bounds, threads, progress)

    run_experiment(context, work, as_json, report, save)


def _numbers(text: str, kind: type[float]) -> list[float]:
    """The numbers of a list of at least one."""
    try:
        numbers = [kind(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if not numbers or not min(numbers) >= 1:
        raise typer.BadParameter(
            f"{text!r} is no list of numbers of at least 1. Separate them by commas: 1,5,10."
        )
    return numbers


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


@app.command(epilog=_example("real ratings.parquet --contributions 17 --norm 8"))
def real(
    context: typer.Context,
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.parquet", exists=True, dir_okay=False, help="Columns user_id, key and ts."
        ),
    ],
    triggers: Triggers = 100,
    epsilon: Epsilon = 6.0,
    delta: Delta = 1e-9,
    contributions: Annotated[
        int, typer.Option(min=1, help="C, records per unit, of paper, tree and the baselines.")
    ] = 32,
    default_norm: Annotated[
        float | None,
        typer.Option(
            min=1, help="max_contribution_norm of default, its only option.  [default: C]"
        ),
    ] = None,
    norm: Annotated[float, typer.Option(min=1, help="max_contribution_norm of best.")] = 8,
    records: Annotated[
        int | None,
        typer.Option(min=1, help="max_rows_contributed of best.  [default: what the norm implies]"),
    ] = None,
    records_per_key: Annotated[
        int | None,
        typer.Option(min=1, help="max_rows_per_group of best.  [default: what the norm implies]"),
    ] = None,
    selections: Annotated[int, typer.Option(min=1, help="max_selections_contributed of best.")] = 2,
    selection_share: Annotated[float, typer.Option(help="group_selection_share of best.")] = 0.45,
    selection_spending: Annotated[
        Literal["even", "late"], typer.Option(help="group_selection_spending of best.")
    ] = "late",
    tuned: Annotated[
        bool,
        typer.Option(
            "--tuned",
            help="Also run what `dpsqlp tune` finds on a random half of the units; all methods then"
            " run on the other half.",
        ),
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of the baselines' noise.")] = 1,
    threads: Threads = 2,
    as_json: Json = False,
    report: ReportFolder = None,
    save: Save = None,
) -> None:
    """Accuracy on your own file: the four presets and the baselines against the true counts.

    The file's span of time is divided into triggers of equal length. This is for experiments only:
    in production the span must be public, or the data would decide about time. Each method has the
    budget for itself, and true counts are shown: use data that you may see.
    """

    def work(progress: ReportProgress) -> Result:
        from dpsqlp.experiments.real import run_real
        from dpsqlp.experiments.task import Options

        return run_real(
            file,
            triggers=triggers,
            contributions=contributions,
            default_norm=default_norm or contributions,
            best=Options(
                epsilon,
                delta,
                norm=norm,
                records=records,
                records_per_key=records_per_key,
                selections=selections,
                selection_share=selection_share,
                selection_spending=selection_spending,
            ),
            tuned=tuned,
            seed=seed,
            threads=threads,
            report=progress,
        )

    run_experiment(context, work, as_json, report, save)


@app.command(epilog=_example("tuning ratings.parquet --seeds 3"))
def tuning(
    context: typer.Context,
    file: OptionalFile = None,
    units: Units = 1_000_000,
    keys: Keys = 1_000_000,
    triggers: Triggers = 100,
    epsilon: Epsilon = 6.0,
    delta: Delta = 1e-9,
    contributions: Contributions = 32,
    default_norm: DefaultNorm = 8,
    seeds: Seeds = 5,
    seed: Seed = 1,
    threads: Threads = 2,
    as_json: Json = False,
    report: ReportFolder = None,
    save: Save = None,
) -> None:
    """How good the options are that `dpsqlp tune` finds: the goals keys and l2.

    Options are tuned on a random half of the units and measured on the other half, beside the best
    of a grid of more than 100 points that is searched on that other half itself.
    """

    def work(progress: ReportProgress) -> Result:
        from dpsqlp.experiments.halves import Settings, opened
        from dpsqlp.experiments.synthetic import Day
        from dpsqlp.experiments.tuning import run_tuning

        settings = Settings(triggers, epsilon, delta, contributions, default_norm)
        with opened(file, Day(units, keys, triggers, seed), progress) as named:
            return run_tuning(named, settings, seeds, threads, progress)

    run_experiment(context, work, as_json, report, save)


@app.command(epilog=_example("preview ratings.parquet"))
def preview(
    context: typer.Context,
    file: OptionalFile = None,
    units: Units = 1_000_000,
    keys: Keys = 1_000_000,
    triggers: Triggers = 100,
    epsilon: Epsilon = 6.0,
    delta: Delta = 1e-9,
    norms: Annotated[
        str, typer.Option(metavar="LIST", help="Norms of default, separated by commas.")
    ] = "2,4,8,16",
    seeds: Seeds = 5,
    seed: Seed = 1,
    threads: Threads = 2,
    as_json: Json = False,
    report: ReportFolder = None,
    save: Save = None,
) -> None:
    """The cap bias that `dpsqlp preview` predicts from a sample, by the size of keys.

    It is predicted on a random half of the units, and measured on the other half.
    """
    scales = _numbers(norms, float)

    def work(progress: ReportProgress) -> Result:
        from dpsqlp.experiments.halves import Settings, opened
        from dpsqlp.experiments.preview import run_preview
        from dpsqlp.experiments.synthetic import Day

        settings = Settings(triggers, epsilon, delta)
        with opened(file, Day(units, keys, triggers, seed), progress) as named:
            return run_preview(named, settings, scales, seeds, threads, progress)

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
