"""`mileage train`: train over one or several seeds to a held-out target, and say what it cost."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mileage._errors import UsageError
from mileage.algorithms.registry import names_in_words
from mileage.cli import options

if TYPE_CHECKING:
    from mileage.cli.progress import Progress
    from mileage.ledger.runs import RecordedRun
    from mileage.training.agent import Agent


@dataclass(frozen=True)
class _Options:
    """What the command line asked for, checked."""

    steps: int | None
    target: str | None
    success: str | None
    episodes: int
    eval_every: int | None
    checkpoint_every: int
    out: Path
    price: str | None
    instance: str | None
    spot: bool
    db: str | None
    ledger: bool
    name: str | None


def train(
    algorithm: Annotated[str | None, typer.Argument(help=f"{names_in_words()}; not needed with --resume.")] = None,
    env: options.EnvId = None,
    steps: options.Steps = None,
    target: options.TargetText = None,
    seeds: Annotated[int, typer.Option(help="How many seeds to train, one after the other.")] = 1,
    seed: Annotated[int, typer.Option(help="The first seed.")] = 0,
    preset: options.Preset = "default",
    set_: options.Settings = None,
    eval_every: options.EvalEvery = None,
    episodes: options.Episodes = 100,
    success: Annotated[str | None, typer.Option(help='What makes an episode a success, such as "return>=475".')] = None,
    price: options.PriceText = None,
    instance: Annotated[str | None, typer.Option(help="Cloud instance whose listed price counts.")] = None,
    spot: Annotated[bool, typer.Option("--spot", help="The instance is bought on the spot market.")] = False,
    threads: options.Threads = None,
    processes: options.Processes = False,
    env_kwargs: options.EnvKwargs = None,
    backend: options.Backend = "auto",
    policy: options.PolicyName = None,
    device: options.Device = "auto",
    compile_: options.Compile = False,
    out: Annotated[Path, typer.Option(help="Directory for checkpoints.")] = Path("runs"),
    checkpoint_every: options.CheckpointEvery = 0,
    resume: Annotated[Path | None, typer.Option(help="Checkpoint, or run directory, to continue from.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of these runs in the ledger.")] = None,
    db: options.Database = None,
    ledger: Annotated[
        bool, typer.Option("--ledger/--no-ledger", help="Whether runs are recorded in the ledger.")
    ] = True,
    json_output: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Train to a held-out target and report what it cost."""
    from mileage.cli.progress import Progress
    from mileage.ledger.prices import freeze_price

    if seeds < 1:
        raise UsageError(f"--seeds must be at least 1, not {seeds}")
    if episodes < 1:
        raise UsageError(f"--episodes must be at least 1, not {episodes}")
    wanted = _Options(
        steps, target, success, episodes, eval_every, checkpoint_every, out, price, instance, spot, db, ledger, name
    )  # fmt: skip
    rate = freeze_price(price, instance, spot=spot).usd_per_hour
    results: list[RecordedRun] = []
    with Progress(shown=not (json_output or quiet), price_usd_per_hour=rate) as progress:
        if resume is not None:
            if seeds > 1 or set_ or seed:
                raise UsageError("--resume continues one run as it was: drop --seeds, --seed and --set")
            if (backend, policy, device, compile_) != ("auto", None, "auto", False):
                raise UsageError("--resume keeps the run's back end: drop --backend, --policy, --device and --compile")
            agent = _load(resume, algorithm, env, threads)
            results.append(_run(agent, wanted, progress, resumed=True))
        else:
            if algorithm is None or env is None:
                raise UsageError("name an algorithm and an environment: mileage train ppo CartPole-v1")
            common = options.agent_arguments(
                preset=preset, settings=set_, threads=threads, processes=processes, env_kwargs=env_kwargs,
                backend=backend, policy=policy, device=device, compile_=compile_,
            )  # fmt: skip
            for number in range(seed, seed + seeds):
                results.append(_run(_make(algorithm, env, number, common), wanted, progress))
                if results[-1].reason == "interrupted":
                    break
    _show(results, seeds if resume is None else 1, json_output)


def _make(algorithm: str, env: str, seed: int, common: dict[str, Any]) -> Agent:
    from mileage.training.agents import agent_class

    return agent_class(algorithm)(env, seed=seed, **common)


def _load(path: Path, algorithm: str | None, env: str | None, threads: int | None) -> Agent:
    from mileage.cli.paths import checkpoint_path
    from mileage.training.agents import load

    # A checkpoint's word is not enough to run code; that of the command line is.
    agent = load(checkpoint_path(path), threads=threads, env=env if env and ":" in env else None)
    for given, saved, what in ((algorithm, agent.name, "algorithm"), (env, agent.env_id, "environment")):
        if given is not None and given != saved:
            raise UsageError(f"checkpoint {path} is of {what} {saved!r}, not {given!r}")
    return agent


def _run(agent: Agent, wanted: _Options, progress: Progress, *, resumed: bool = False) -> RecordedRun:
    """Train one agent, with a checkpoint in a directory of its own."""
    from mileage.cli.paths import CHECKPOINT, run_directory
    from mileage.ledger.targets import Target
    from mileage.recording.recorder import Ledger

    target = wanted.target if wanted.target is not None or not resumed else agent.target
    goal = None if target is None else Target.parse(target)
    directory = run_directory(wanted.out, agent.name, agent.env_id, agent.seed)
    progress.start(f"seed {agent.seed}", agent.plan_horizon(wanted.steps), agent.steps)
    with agent:
        run = agent.learn(
            wanted.steps,
            target=goal,
            panel=agent.default_panel(goal, wanted.episodes, wanted.success),
            eval_every=wanted.eval_every,
            callback=progress,
            checkpoint=directory / CHECKPOINT,
            checkpoint_every=wanted.checkpoint_every,
            on_compile=progress.compiling,
            ledger=Ledger(wanted.db, enabled=wanted.ledger),
            name=wanted.name,
            price_usd_per_hour=wanted.price,
            instance=wanted.instance,
            spot=wanted.spot,
        )
    progress.finish(_one_line(run))
    if run.reason == "interrupted":
        code = f"{agent.name} {agent.env_id} " if ":" in agent.env_id else ""
        progress.say(f"interrupted: saved {directory}; continue with: mileage train {code}--resume {directory}")
    return run


def _one_line(run: RecordedRun) -> str:
    final = run.final
    score = "not evaluated" if final is None else f"mean return {final.mean_return:.1f}"
    when = "" if run.wall_to_target is None else f" in {run.wall_to_target:.2f} s"
    return f"seed {run.seed}: {run.state.replace('_', ' ')}{when}, {run.steps:,} steps, {score}"


def _show(runs: list[RecordedRun], planned: int, json_output: bool) -> None:
    from mileage.report.seeds import SeedPanel

    panel = SeedPanel.of(runs)
    if json_output:
        print(json.dumps(panel.as_dict(), indent=2))
    else:
        panel.print()
    if len(runs) < planned or runs[-1].reason == "interrupted":
        raise typer.Exit(130)
