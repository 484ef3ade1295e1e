"""`mileage profile`: where the time of a run goes, and what to change."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mileage._errors import UsageError
from mileage.algorithms.registry import names_in_words
from mileage.cli import options

if TYPE_CHECKING:
    from mileage.profiling.profile import Profile
    from mileage.trying.session import Trying

FORMATS = ("md", "html", "trace", "speedscope")


def profile(
    algorithm: Annotated[str | None, typer.Argument(help=f"{names_in_words()}; not needed with --run.")] = None,
    env: options.EnvId = None,
    steps: options.Steps = None,
    target: options.TargetText = None,
    seed: Annotated[int, typer.Option(help="Of everything random.")] = 0,
    preset: options.Preset = "default",
    set_: options.Settings = None,
    eval_every: options.EvalEvery = None,
    episodes: options.Episodes = 100,
    checkpoint: Annotated[Path | None, typer.Option(help="File to save checkpoints to.")] = None,
    checkpoint_every: options.CheckpointEvery = 0,
    threads: options.Threads = None,
    processes: options.Processes = False,
    env_kwargs: options.EnvKwargs = None,
    backend: options.Backend = "auto",
    policy: options.PolicyName = None,
    device: options.Device = "auto",
    compile_: options.Compile = False,
    run: Annotated[
        str | None, typer.Option("--run", help="Diagnose a recorded run by its phases instead of training.")
    ] = None,
    try_: Annotated[
        bool, typer.Option("--try", help="Apply the fixes, train each to --target, and measure what they bring.")
    ] = False,
    budget: Annotated[float, typer.Option(help="Seconds for --try, verification included.")] = 180.0,
    without: Annotated[
        list[str] | None, typer.Option("--without", help="A fix that --try leaves out (may be repeated).")
    ] = None,
    preset_out: Annotated[
        Path | None, typer.Option(help="File for the preset that --try found (a new one in runs by default).")
    ] = None,
    export: Annotated[str | None, typer.Option(help="Write the profile as md, html, trace or speedscope.")] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="File for --export, else standard output.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the run in the ledger.")] = None,
    price: options.PriceText = None,
    db: options.Database = None,
    ledger: Annotated[
        bool, typer.Option("--ledger/--no-ledger", help="Whether run and profile are recorded in the ledger.")
    ] = True,
    json_output: Annotated[bool, typer.Option("--json", help="Print the profile as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print only the verdict.")] = False,
) -> None:
    """Train once and say where the time went, and what to change: the verdict in one line first."""
    if export is not None and export not in FORMATS:
        raise UsageError(f"--export {export!r} is not known: use one of {', '.join(FORMATS)}")
    if export is None and out is not None:
        raise UsageError("--out is the file for --export: add --export md, html, trace or speedscope")
    trying: Trying | None = None
    if run is not None:
        if try_:
            raise UsageError("--try trains: name an algorithm and an environment instead of --run")
        if algorithm is not None or env is not None:
            raise UsageError("--run diagnoses a recorded run: drop the algorithm and the environment")
        from mileage.profiling.profile import profile_recorded

        found = profile_recorded(run, db=db)
    else:
        if algorithm is None or env is None:
            raise UsageError("name an algorithm and an environment: mileage profile ppo CartPole-v1")
        agent = options.agent_arguments(
            preset=preset, settings=set_, threads=threads, processes=processes, env_kwargs=env_kwargs,
            backend=backend, policy=policy, device=device, compile_=compile_,
        )  # fmt: skip
        words: dict[str, Any] = {
            "seed": seed,
            "steps": steps,
            "target": target,
            "eval_every": eval_every,
            "episodes": episodes,
            "checkpoint": None if checkpoint is None else str(checkpoint),
            "checkpoint_every": checkpoint_every,
            "db": db if ledger else False,
            "name": name,
            "price": price,
        } | agent
        if try_:
            from mileage.trying.session import Trying

            say = None if json_output or quiet else _tell
            trying = Trying(algorithm, env, dict(words), budget=budget, without=without or (), out=preset_out, say=say)
            words["callback"] = trying.still_in_time
        found = _measured(algorithm, env, words)
    if trying is None:
        _show(found, export, out, json_output, quiet)
    else:
        _try(trying, found, export, out, json_output, quiet)


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _try(trying: Trying, found: Profile, export: str | None, out: Path | None, json_output: bool, quiet: bool) -> None:
    """Search, and show the profile with what the search found."""
    from mileage.trying import report

    shown = not (json_output or quiet) and (export is None or out is not None)
    if shown:
        _show(found, None, None, False, False)
    tried = trying.search(found)
    told = trying.write_preset(tried)
    if json_output:
        print(json.dumps(found.as_dict() | {"tried": report.as_dict(tried)}, indent=2))
    elif quiet:
        print(report.verdict(tried))
    elif shown:
        report.show(tried)
    if export is not None:
        _write(_exported(found, export) + (f"\n{report.markdown(tried)}" if export == "md" else ""), out)
    if told is not None and (shown or quiet):
        print(told)
    if tried.interrupted:
        raise typer.Exit(130)


def _measured(algorithm: str, env: str, options: dict[str, Any]) -> Profile:
    """Train and profile; every word of `options` is one of `mileage.profiling.profile.profile`."""
    from mileage.meter import PhaseClock
    from mileage.profiling.profile import profile as measure

    return measure(algorithm, env, clock=PhaseClock.for_run(), **options)


def _show(found: Profile, export: str | None, out: Path | None, json_output: bool, quiet: bool) -> None:
    if export is not None:
        _write(_exported(found, export), out)
        if out is None:
            return
    if json_output:
        print(json.dumps(found.as_dict(), indent=2))
    elif quiet:
        print(found.verdict)
    else:
        from mileage.cli.profile_tables import print_profile

        print_profile(found)
        if out is not None:
            print(f"written to {out}")


def _exported(found: Profile, kind: str) -> str:
    from mileage.profiling.export import export

    return export(found, kind)


def _write(text: str, out: Path | None) -> None:
    """To a file, or to standard output."""
    if out is None:
        print(text, end="")
        return
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text)
    except OSError as error:
        raise UsageError(f"--out {out} cannot be written: {error.strerror}") from None
