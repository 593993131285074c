"""The commands of `dpsqlp`. What they need is imported when they run, so that help is quick."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from dpsqlp.cli import experiments
from dpsqlp.cli.exit_codes import refusals

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
        metavar="FILE.sql", exists=True, dir_okay=False, help="The script: sources and sinks."
    ),
]
Port = Annotated[
    int | None,
    typer.Option(
        min=0, max=65535, help="Port of the page.  [default: 8630, or any if that is taken]"
    ),
]
OperatorMetrics = Annotated[
    bool,
    typer.Option(
        "--operator-metrics",
        help="The page also shows records per second, lag, trigger time and state size. They are"
        " not protected: for the operator's eyes only.",
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
        typer.Option(file_okay=False, help="Folder of the state.  [default: FILE.state]"),
    ] = None,
    secret: Annotated[
        Path | None,
        typer.Option(
            help="File of the secret, made if there is none; DPSQLP_SECRET in the environment"
            " comes first.  [default: FILE.secret]"
        ),
    ] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads to work with.")] = 2,
    engine: Annotated[
        Literal["local", "spark"],
        typer.Option(help="What computes: this process, or Spark. The answers are the same."),
    ] = "local",
    master: Annotated[
        str | None,
        typer.Option(
            help="With Spark: its master; SPARK_REMOTE in the environment names a Connect server."
            "  [default: this machine]"
        ),
    ] = None,
    shards: Annotated[
        int | None,
        typer.Option(min=1, help="With Spark: shards of a new state, for good.  [default: 8]"),
    ] = None,
    metrics: Annotated[
        bool,
        typer.Option(
            "--metrics",
            help="Also show records per second. That number is not protected: for the operator's"
            " eyes only.",
        ),
    ] = False,
    leave_behind_unprotected: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE",
            help="Go on without a file of the trigger that has begun, because it cannot be read."
            " Whether it can may depend on its records: that it is missing is not protected. The"
            " state records the decision. May be given several times.",
        ),
    ] = None,
    log: Annotated[
        Literal["text", "json"],
        typer.Option(help="What standard error gets: sentences, or a JSON object a line."),
    ] = "text",
    dashboard: Annotated[
        bool,
        typer.Option(
            "--dashboard",
            help="Keep the releases beside the state and serve a page to watch, on this machine"
            " alone.",
        ),
    ] = False,
    port: Port = None,
    operator_metrics: OperatorMetrics = False,
) -> None:
    """Run all sinks of a script, from where they stopped.

    Triggers follow the clock, or replay history as fast as it goes (ON EVENT TIME). Ctrl-C
    finishes the trigger; the same command goes on from there. Killing it loses nothing that was
    committed; of standard input, send again what came after the last trigger.
    """
    from dpsqlp.cli.log import JsonLog, Sentences
    from dpsqlp.cli.run import run_script

    said = JsonLog() if log == "json" else Sentences()
    for alone, option, needed in (
        (master is not None and engine != "spark", "--master", "--engine spark"),
        (shards is not None and engine != "spark", "--shards", "--engine spark"),
        (metrics and engine == "spark", "--metrics", "--engine local"),
        (port is not None and not dashboard, "--port", "--dashboard"),
        (operator_metrics and not dashboard, "--operator-metrics", "--dashboard"),
    ):
        if alone:
            raise typer.BadParameter(f"{option} goes with {needed}.")
    with refusals(said):
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
        typer.Option("--json", help="Every number as JSON; with several sinks, under `sinks`."),
    ] = False,
) -> None:
    """Say what a script promises and what it costs, without running it."""
    from dpsqlp.cli.explain import explanation

    with refusals():
        typer.echo(explanation(file, as_json), nl=False)


@app.command(epilog="**Example:**\n\ndpsqlp inspect views.state")
def inspect(
    state: Annotated[
        Path,
        typer.Argument(
            metavar="STATE", exists=True, file_okay=False, help="The folder of the state."
        ),
    ],
    secret: Annotated[
        Path | None,
        typer.Option(
            help="File of the secret, to verify what is shown; DPSQLP_SECRET in the environment"
            " comes first.  [default: FILE.secret, if it can be read]"
        ),
    ] = None,
) -> None:
    """Say what a state has released and spent.

    Shows nothing that depends on unreleased data. Without the secret it is not verified.
    """
    from dpsqlp.cli.inspect import inspection

    with refusals():
        typer.echo(inspection(state, secret), nl=False)


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
            help="A state that was run with --dashboard, or where a parquet, jsonl or duckdb sink"
            " writes.",
        ),
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond this machine only with a token.")
    ] = "127.0.0.1",
    port: Port = None,
    token: Annotated[
        str | None,
        typer.Option(
            envvar="DPSQLP_DASHBOARD_TOKEN",
            help="What whoever looks must know. Others on this machine can see a command line:"
            " better in the environment.",
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="A name by which a proxy calls this server; may be given again."),
    ] = None,
    operator_metrics: OperatorMetrics = False,
) -> None:
    """Serve a page of released values, until Ctrl-C.

    Reads releases and public numbers alone, also while a pipeline writes them.
    """
    from dpsqlp.cli.serve import serve_page

    with refusals():
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
            help="New folder for the query, the data, the state and the output; without it they"
            " are deleted at the end.",
        ),
    ] = None,
    dashboard: Annotated[
        bool, typer.Option("--dashboard/--no-dashboard", help="Also serve a page to watch.")
    ] = True,
) -> None:
    """Watch a day of page views become a private table, beside the truth. Takes a minute."""
    from dpsqlp.demo import run_demo

    with refusals():
        run_demo(fast=fast, keep=keep, dashboard=dashboard)
