"""The commands of `dpsqlp`. Imports are deferred until a command runs, so that help is fast."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dpsqlp.cli import experiments
from dpsqlp.cli.exit_codes import errors_as_exit_codes

_CODES = "\n\n**Exit codes:** 0 done, 1 refused, 2 wrong usage, 130 interrupted."

app = typer.Typer(
    help="Live statistics from private event streams: SQL in, a private table out." + _CODES,
    epilog="Start with:  dpsqlp demo",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(experiments.app, name="experiment")

Script = Annotated[
    Path,
    typer.Argument(
        metavar="FILE.sql", exists=True, dir_okay=False, help="SQL script with sources and sinks."
    ),
]
Port = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, help="Port of the dashboard.  [default: 8630, or any free port]"
    ),
]
OperatorMetrics = Annotated[
    bool,
    typer.Option(
        "--operator-metrics",
        help="Show records per second, lag, trigger time and state size on the dashboard. They are"
        " not protected: only for the operator.",
    ),
]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"dpsqlp {version('dpsqlp')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option("--version", callback=_version, is_eager=True, help="Show the version."),
    ] = False,
) -> None:
    pass


@app.command(
    epilog="**Examples:**\n\n"
    "dpsqlp run views.sql\n\n"
    "tail -F events.jsonl | dpsqlp run live.sql --state /var/lib/live.state\n\n"
    "dpsqlp run views.sql --engine spark --master spark://host:7077 --shards 64"
)
def run(
    file: Script,
    state: Annotated[
        Path | None,
        typer.Option(file_okay=False, help="State folder.  [default: FILE.state]"),
    ] = None,
    secret: Annotated[
        Path | None,
        typer.Option(
            help="File of the secret, created if it does not exist. The environment variable"
            " DPSQLP_SECRET takes precedence.  [default: FILE.secret]"
        ),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Number of threads.")] = 2,
    engine: Annotated[
        Literal["local", "spark"],
        typer.Option(help="Run in this process or on Spark. Both release the same values."),
    ] = "local",
    master: Annotated[
        str | None,
        typer.Option(
            help="With Spark: the master. The environment variable SPARK_REMOTE names a Connect"
            " server.  [default: this machine]"
        ),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With Spark: number of shards of a new state; cannot change later.  [default: 8]",
        ),
    ] = None,
    metrics: Annotated[
        bool,
        typer.Option(
            "--metrics",
            help="Also show records per second. That number is not protected: only for the"
            " operator.",
        ),
    ] = False,
    leave_behind_unprotected: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Skip an unreadable file of the trigger that has begun. Whether a file can be read"
            " may depend on its records, so its absence is not protected. The state records the"
            " decision. May be given several times.",
        ),
    ] = None,
    log: Annotated[
        Literal["text", "json"],
        typer.Option(
            help="Format of the log on standard error: sentences, or one JSON object per line."
        ),
    ] = "text",
    dashboard: Annotated[
        bool,
        typer.Option(
            "--dashboard",
            help="Archive the releases next to the state and serve a dashboard on this machine.",
        ),
    ] = False,
    port: Port = None,
    operator_metrics: OperatorMetrics = False,
) -> None:
    """Run all sinks of a script, or resume them.

    Triggers follow the clock, or replay history as fast as possible (ON EVENT TIME). Ctrl-C
    finishes the current trigger; the same command resumes. A kill loses nothing that was
    committed; send the standard input again that arrived after the last trigger.
    """
    from dpsqlp.cli.log import JsonLog, TextLog
    from dpsqlp.cli.run import run_script

    said = JsonLog() if log == "json" else TextLog()
    for alone, option, needed in (
        (master is not None and engine != "spark", "--master", "--engine spark"),
        (shards is not None and engine != "spark", "--shards", "--engine spark"),
        (metrics and engine == "spark", "--metrics", "--engine local"),
        (port is not None and not dashboard, "--port", "--dashboard"),
        (operator_metrics and not dashboard, "--operator-metrics", "--dashboard"),
    ):
        if alone:
            raise typer.BadParameter(f"{option} goes with {needed}.")
    with errors_as_exit_codes(said):
        code = run_script(
            file,
            said,
            given_state=state,
            given_secret=secret,
            threads=threads,
            metrics=metrics,
            on_spark=engine == "spark",
            master=master,
            shards=shards or 8,
            left_behind=leave_behind_unprotected or [],
            dashboard=dashboard,
            port=port,
            operator_metrics=operator_metrics,
        )
    raise typer.Exit(code)


@app.command(
    epilog="**Examples:**\n\n"
    "dpsqlp explain views.sql\n\n"
    "dpsqlp explain views.sql --json | jq .selection.thresholds"
)
def explain(
    file: Script,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json", help="Print every number as JSON; with several sinks, under `sinks`."
        ),
    ] = False,
) -> None:
    """Explain what a script promises and what it costs, without running it."""
    from dpsqlp.cli.explain import explanation

    with errors_as_exit_codes():
        typer.echo(explanation(file, as_json), nl=False)


Sample = Annotated[
    str,
    typer.Option(
        metavar="PATH",
        help="Data that one may look at: a file, a pattern or a folder of Parquet, CSV or JSON"
        " Lines files with the columns of the source.",
    ),
]
SinkName = Annotated[
    str | None, typer.Option(help="The sink, if the script has several.", metavar="NAME")
]
Units = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Units of the real stream: so many are drawn from the sample with replacement, each"
        " with all of its rows.  [default: those of the sample]",
    ),
]
SimulationSeed = Annotated[int, typer.Option(help="Seed of the search and of simulated noise.")]
SimulationThreads = Annotated[int, typer.Option(min=1, help="Number of threads.")]


@app.command(
    epilog="**Examples:**\n\n"
    "dpsqlp tune views.sql --sample 'last-year/*.parquet'\n\n"
    "dpsqlp tune views.sql --sample generated.csv --units 1000000 --goal keys --write\n\n"
    "dpsqlp tune views.sql --sample survey.parquet --epsilons 1,2,4 --html tuning.html"
)
def tune(
    file: Script,
    sample: Sample,
    sink: SinkName = None,
    units: Units = None,
    goal: Annotated[
        Literal["live", "l2", "l1", "records", "keys", "half"] | None,
        typer.Option(
            help="What to make best: the l2 error of values over all groups, half way and at the"
            " end of a window (live); at the end, that error (l2), the l1 error, the rows in"
            " released groups (records), or released groups (keys); those released half way (half)."
            "  [default: live; keys if there are no values]"
        ),
    ] = None,
    candidates: Annotated[int, typer.Option(min=8, help="Candidates to try.")] = 40,
    epsilons: Annotated[
        str, typer.Option(metavar="LIST", help="Also show what other budgets give: 1,2,4.")
    ] = "",
    intervals: Annotated[
        str,
        typer.Option(
            metavar="LIST", help="Also show what other intervals give: '15 minutes, 1 hour'."
        ),
    ] = "",
    seed: SimulationSeed = 1,
    threads: SimulationThreads = 2,
    write: Annotated[
        bool,
        typer.Option("--write", help="Put the options into FILE.sql; nothing else in it changes."),
    ] = False,
    html: Annotated[
        Path | None, typer.Option(dir_okay=False, help="File for an HTML page of the result.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every number as JSON.")] = False,
) -> None:
    """Find the norm, the votes and the share of selection that suit a sample.

    The sample is data that one may look at; it goes through the query and the real core. Options
    chosen by looking at the private stream itself are outside the promise.
    """
    from dpsqlp.cli.tune import run_tune

    run_tune(
        file,
        sample,
        sink=sink,
        units=units,
        goal=goal,
        candidates=candidates,
        seed=seed,
        threads=threads,
        epsilons=epsilons,
        intervals=intervals,
        write=write,
        html=html,
        as_json=as_json,
    )


@app.command(
    epilog="**Example:**\n\ndpsqlp preview views.sql --sample 'last-year/*.parquet' --units 1000000"
)
def preview(
    file: Script,
    sample: Sample,
    sink: SinkName = None,
    units: Units = None,
    seed: SimulationSeed = 1,
    threads: SimulationThreads = 2,
    as_json: Annotated[bool, typer.Option("--json", help="Print every number as JSON.")] = False,
) -> None:
    """Show the table that a query would give on a sample, beside the truth.

    Errors are split into noise, which `_sd` measures, and cap bias, from rows that a unit's budget
    drops, which no error bar shows.
    """
    from dpsqlp.cli.tune import run_preview

    run_preview(
        file,
        sample,
        sink=sink,
        units=units,
        seed=seed,
        threads=threads,
        as_json=as_json,
    )


@app.command(epilog="**Example:**\n\ndpsqlp inspect views.state")
def inspect(
    state: Annotated[
        Path,
        typer.Argument(metavar="STATE", exists=True, file_okay=False, help="State folder."),
    ],
    secret: Annotated[
        Path | None,
        typer.Option(
            help="File of the secret, to verify the output. The environment variable DPSQLP_SECRET"
            " takes precedence.  [default: FILE.secret, if it can be read]"
        ),
    ] = None,
) -> None:
    """Show what a state has released and spent.

    Nothing shown depends on unreleased data. Without the secret, the output is not verified.
    """
    from dpsqlp.cli.inspect import inspection

    with errors_as_exit_codes():
        typer.echo(inspection(state, secret), nl=False)


@app.command(
    epilog="**Examples:**\n\n"
    "dpsqlp ledger people.ledger\n\n"
    "dpsqlp ledger views.sql --budget people --json\n\n"
    "dpsqlp ledger people.ledger --retire 2f1c6e0a9b7d4c53a8e1f0b2d3c4a596"
)
def ledger(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="LEDGER",
            exists=True,
            dir_okay=False,
            help="File of a ledger, or SQL script with CREATE BUDGET, for a ledger in a database.",
        ),
    ],
    budget: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With a script that has several budgets: which one."),
    ] = None,
    retire: Annotated[
        str | None,
        typer.Option(
            metavar="INSTANCE",
            help="Retire a pipeline: it can never run again, and later ledger periods are free of"
            " it. The current period and past ones stay charged.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print every number as JSON.")] = False,
) -> None:
    """Show what the pipelines of a budget have entered, and what is left.

    The balance is that of the current ledger period. A ledger holds no data.
    """
    from dpsqlp.cli.ledger import balance_of

    with errors_as_exit_codes():
        typer.echo(balance_of(path, budget, retire, as_json), nl=False)


@app.command(
    epilog="**Examples:**\n\n"
    "dpsqlp serve views.state\n\n"
    "DPSQLP_DASHBOARD_TOKEN=... dpsqlp serve popular --host 0.0.0.0"
)
def serve(
    path: Annotated[
        Path,
        typer.Argument(
            metavar="STATE_OR_SINK",
            exists=True,
            help="State of a run with --dashboard, or the output of a parquet, jsonl or duckdb"
            " sink.",
        ),
    ],
    host: Annotated[
        str,
        typer.Option(
            help="Address to listen on; an address that is not loopback requires a token."
        ),
    ] = "127.0.0.1",
    port: Port = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="DPSQLP_DASHBOARD_TOKEN",
            help="Access token for the dashboard. Other users of this machine can see command"
            " lines: prefer the environment variable.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(
            help="Host name that a proxy uses for this server. May be given several times."
        ),
    ] = None,
    operator_metrics: OperatorMetrics = False,
) -> None:
    """Serve a dashboard of released values, until Ctrl-C.

    It reads only releases and public numbers, also while a pipeline writes them.
    """
    from dpsqlp.cli.serve import serve_page

    with errors_as_exit_codes():
        serve_page(path, host, port, token, tuple(allow_host or ()), operator_metrics)


@app.command(
    epilog="**Examples:**\n\ndpsqlp demo\n\ndpsqlp demo --fast --keep demo\n\n"
    "dpsqlp inspect demo/views.state"
)
def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Do not wait between triggers.")] = False,
    keep: Annotated[
        Path | None,
        typer.Option(
            file_okay=False,
            help="New folder for the query, the data, the state and the output. Without it, they"
            " are deleted at the end.",
        ),
    ] = None,
    dashboard: Annotated[
        bool, typer.Option("--dashboard/--no-dashboard", help="Also serve a dashboard.")
    ] = True,
) -> None:
    """Watch a day of page views become a private table, next to the exact counts (a minute)."""
    from dpsqlp.demo import run_demo

    with errors_as_exit_codes():
        run_demo(fast=fast, keep=keep, dashboard=dashboard)
