"""The commands, by name."""

from __future__ import annotations

from typing import Annotated

import typer
from typer import Option

from mileage.cli import (
    bench,
    doctor,
    env,
    evaluate,
    ledger,
    profile,
    race,
    record,
    report,
    rl_bench,
    serve,
    train,
    verify,
    watch,
)
from mileage.cli.options import ProgramCommand, explain
from mileage.version import __version__

app = typer.Typer(
    name="mileage",
    help="Know what it costs to train an RL policy until it passes a held-out test.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"mileage {__version__}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[bool, Option("--debug", help="Show the traceback of an error.")] = False,
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Options before the command."""


app.command("train")(train.train)
app.command("eval")(evaluate.evaluate)
app.command("envs")(env.envs)
app.add_typer(env.app, name="env")
app.command("profile", cls=ProgramCommand)(profile.profile)
app.command("record")(record.record)
app.command("race")(race.race)
app.command("verify")(verify.verify)
app.command("warmup")(doctor.warmup)
app.command("bench")(bench.bench)
app.command("doctor")(doctor.doctor)
ledger.app.command("reconcile")(ledger.reconcile)
app.add_typer(ledger.app, name="ledger")
app.command("report")(report.report)
app.command("serve")(serve.serve)
app.command("watch")(watch.watch)
app.command("rl-bench")(rl_bench.rl_bench)
for commands, prefix in ((app, ""), (env.app, ""), (ledger.app, "ledger ")):
    explain(commands, prefix)
