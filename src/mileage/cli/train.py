"""`mileage train`: over seeds to a held-out target, here or elsewhere (`--on`), and what it cost."""

from __future__ import annotations

import contextlib
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from mileage.algorithms.registry import names_in_words
from mileage.cli import options
from mileage.errors import InterruptError, UsageError
from mileage.jobs.job import Job, Needs, words_without
from mileage.records import strict_json
from mileage.tables import plain

if TYPE_CHECKING:
    from mileage.ledger.panels import Panel
    from mileage.ledger.runs import RecordedRun
    from mileage.ledger.targets import Target
    from mileage.training.agent import Agent
    from mileage.training.recording import Progress


# Exit codes of a command whose training a signal ended, by the reason that the run was closed with.
_SIGNALLED = {"interrupted": 130, "terminated": 143}


_EPISODES = "Held-out episodes per evaluation (100, fewer in short runs stepped by Python, or those of --resume)."
_ON = "Where seeds run: local[:N] side by side, ray, ray://HOST:PORT or slurm[:PARTITION]; here if left out."
_EMIT = "Print a job file that runs this command: slurm, kubernetes or skypilot."
_KEEP_BEST = "Also keep the best checkpoint by evaluation, as best.safetensors."


@dataclass(frozen=True, kw_only=True)
class TrainArguments(options.RunArguments):
    """What the command line asked for."""

    algorithm: Annotated[str | None, Argument(help=f"{names_in_words()}; not needed with --resume.")] = None
    seeds: Annotated[int, Option(help="How many seeds to train, one after the other.")] = 1
    seed: Annotated[int, Option(help="The first seed.")] = 0
    success: Annotated[str | None, Option(help='What makes an episode a success, such as "return>=475".')] = None
    instance: Annotated[str | None, Option(help="Cloud instance whose listed price counts.")] = None
    spot: Annotated[bool, Option("--spot", help="The instance is bought on the spot market.")] = False
    out: Annotated[Path, Option(help="Directory for checkpoints.")] = Path("runs")
    resume: Annotated[Path | None, Option(help="Checkpoint, or run directory, to continue from.")] = None
    name: Annotated[str | None, Option(help="Name of these runs in the ledger.")] = None
    episodes: Annotated[int | None, Option(help=_EPISODES)] = None
    keep_best: Annotated[bool, Option("--keep-best", help=_KEEP_BEST)] = False
    tensorboard: Annotated[Path | None, Option(help="Directory for TensorBoard's live scalars.")] = None
    on: Annotated[str | None, Option(help=_ON)] = None
    cores: Annotated[int | None, Option(help="Cores that each attempt asks for, with --on and --emit.")] = None
    memory: Annotated[float | None, Option(help="GB of memory that each attempt asks for.")] = None
    gpus: Annotated[int, Option(help="GPUs that each attempt asks for.")] = 0
    retries: Annotated[int, Option(help="Further attempts of a seed whose machine was lost, with --on.")] = 3
    patience: Annotated[float | None, Option(help="Seconds that an attempt may wait for a machine, with --on.")] = None
    emit: Annotated[str | None, Option(help=_EMIT)] = None

    def check(self) -> None:
        """UsageError if the options do not go together."""
        if self.seeds < 1:
            raise UsageError(f"--seeds must be at least 1, not {self.seeds}")
        if self.episodes is not None and self.episodes < 1:
            raise UsageError(f"--episodes must be at least 1, not {self.episodes}")
        if self.retries < 0 or (self.patience is not None and self.patience < 0):
            raise UsageError("--retries and --patience must be 0 or more")
        if self.resume is None:
            if self.algorithm is None or self.env is None:
                raise UsageError("name an algorithm and an environment: mileage train ppo CartPole-v1")
            return
        if self.seeds > 1 or self.set_ or self.seed:
            raise UsageError("--resume continues one run as it was: drop --seeds, --seed and --set")
        if (self.backend, self.policy, self.device, self.compile_) != ("auto", None, "auto", False):
            raise UsageError("--resume keeps the run's back end: drop --backend, --policy, --device and --compile")


@options.takes(TrainArguments)
def train(wanted: TrainArguments) -> None:
    """Train to a held-out target and report what it cost."""
    from mileage.ledger.prices import launch_price
    from mileage.training.recording import Progress

    wanted.check()
    if wanted.emit is not None or wanted.on is not None:
        if wanted.emit is not None:
            print(emitted(wanted, own_words()), end="")
            return
        _show(run_elsewhere(wanted, own_words()), wanted)
        return
    rate = launch_price(wanted.price, wanted.instance, spot=wanted.spot).usd_per_hour
    runs: list[RecordedRun] = []
    with Progress(shown=not (wanted.json_output or wanted.quiet), price_usd_per_hour=rate) as progress:
        for agent in _agents(wanted):
            runs.append(_run(agent, wanted, progress))
            if runs[-1].reason in _SIGNALLED:
                break
    _show(runs, wanted)


def _agents(wanted: TrainArguments) -> Iterator[Agent]:
    """Those to train, each made when its turn comes."""
    from mileage.ledger import announce
    from mileage.training.agents import agent_class

    if wanted.resume is not None:
        yield _load(wanted.resume, wanted.algorithm, wanted.env, wanted.threads)
        return
    assert wanted.algorithm is not None
    assert wanted.env is not None
    common = wanted.agent()
    for seed in range(wanted.seed, wanted.seed + wanted.seeds):
        if wanted.ledger:  # the first was announced before this was imported
            announce.announce(
                sys.argv,
                db=wanted.db,
                name=wanted.name or "",
                algorithm=wanted.algorithm,
                env_id=wanted.env,
                seed=seed,
                price=wanted.price,
                instance=wanted.instance,
                spot=wanted.spot,
                first=seed == wanted.seed,
            )
        yield agent_class(wanted.algorithm)(wanted.env, seed=seed, **common)


def _load(path: Path, algorithm: str | None, env: str | None, threads: int | None) -> Agent:
    from mileage.training.agents import load

    # A checkpoint's word is not enough to run code; that of the command line is.
    agent = load(path, threads=threads, env=env if env and ":" in env else None)
    for given, saved, what in ((algorithm, agent.name, "algorithm"), (env, agent.env_id, "environment")):
        if given is not None and given != saved:
            raise UsageError(f"checkpoint {path} is of {what} {saved!r}, not {given!r}")
    return agent


def _run(agent: Agent, wanted: TrainArguments, progress: Progress) -> RecordedRun:
    """Train one agent, with a checkpoint in a directory of its own."""
    from mileage.cli.options import BEST, run_directory
    from mileage.ledger.recorder import Ledger
    from mileage.ledger.targets import Target
    from mileage.training.checkpoints import CHECKPOINT

    target = wanted.target if wanted.target is not None or wanted.resume is None else agent.target
    goal = None if target is None else Target.parse(target)
    directory = run_directory(wanted.out, agent.name, agent.env_id, agent.seed)
    progress.start(f"seed {agent.seed}", agent.plan_horizon(wanted.steps), agent.steps)
    with agent, _said_if_interrupted(agent, directory):
        run = agent.learn(
            wanted.steps, target=goal, panel=_panel(agent, wanted, goal),
            eval_every=wanted.eval_every, callback=progress, progress=False, checkpoint=directory / CHECKPOINT,
            best_checkpoint=directory / BEST if wanted.keep_best else None,
            tensorboard=None if wanted.tensorboard is None else wanted.tensorboard / directory.name,
            checkpoint_every=wanted.checkpoint_every, on_compile=progress.compiling,
            ledger=Ledger(wanted.db, enabled=wanted.ledger), name=wanted.name, price_usd_per_hour=wanted.price,
            instance=wanted.instance, spot=wanted.spot,
        )  # fmt: skip
    progress.finish(run)
    if run.reason in _SIGNALLED:
        print(f"{run.reason}: saved {directory}; {_continue_with(agent, directory)}", file=sys.stderr)
    return run


@contextlib.contextmanager
def _said_if_interrupted(agent: Agent, directory: Path) -> Iterator[None]:
    """A sentence for an interrupt that came before the loop could see to it, or a second time."""
    from mileage.training.checkpoints import CHECKPOINT

    try:
        yield
    except KeyboardInterrupt:
        if (directory / CHECKPOINT).exists():
            raise InterruptError(
                f"interrupted at once: the last checkpoint is kept; {_continue_with(agent, directory)}"
            ) from None
        raise InterruptError("interrupted before there was anything to save") from None


def _continue_with(agent: Agent, directory: Path) -> str:
    code = f"{agent.name} {agent.env_id} " if ":" in agent.env_id else ""
    return f"continue with: mileage train {code}--resume {directory}"


def _panel(agent: Agent, wanted: TrainArguments, target: Target | None) -> Panel | None:
    """The exam that the options ask for; None for the usual one, or that of the run that is resumed."""
    kept = agent.panel if wanted.resume is not None else None
    if wanted.episodes is None and wanted.success is None:
        return None
    episodes = wanted.episodes or (100 if kept is None else len(kept.seeds))
    success = wanted.success or (None if kept is None else kept.success)
    return agent.default_panel(target, episodes, success)


def _show(runs: list[RecordedRun], wanted: TrainArguments) -> None:
    from mileage.report.seeds import SeedPanel

    panel = SeedPanel.of(runs)
    if wanted.json_output:
        print(strict_json(panel.as_dict(), indent=2))
    else:
        panel.print()
        for run in runs:
            recorded = f"run {run.run_id}" if run.in_ledger else "not recorded"
            print(f"seed {run.seed}: {recorded}, saved {run.checkpoint}")
        if runs[-1].in_ledger:
            print(f"next: mileage report {shlex.quote(runs[-1].run.name)} --open")
        else:
            print(f"next: mileage eval {shlex.quote(str(runs[-1].checkpoint))}")
    if runs[-1].reason in _SIGNALLED:
        raise typer.Exit(_SIGNALLED[runs[-1].reason])


# --- `mileage train --on …` and `--emit …`: the same seeds elsewhere, and job files as text ---
_OURS = ("--on", "--emit", "--cores", "--memory", "--gpus", "--retries", "--patience")
_PER_JOB = ("--seeds", "--seed", "--out", "--db")
_FLAGS = ("--json", "--quiet", "-q")
_AGAIN = {
    "--target": "target", "--steps": "", "--name": "name", "--price": "price", "--instance": "instance",
    "--eval-every": "eval_every", "--checkpoint-every": "checkpoint_every", "--threads": "threads",
}  # fmt: skip
"""Options that an attempt which goes on from a checkpoint is told again; the checkpoint knows how far to train."""


def needs_of(wanted: TrainArguments, default_cores: int = 1) -> Needs:
    """What the options ask of a machine."""
    return Needs(wanted.cores or default_cores, wanted.memory, wanted.gpus)


def own_words() -> list[str]:
    """What was typed after `mileage train`."""
    return list(sys.argv[sys.argv.index("train") + 1 :]) if "train" in sys.argv else []


def emitted(wanted: TrainArguments, words: Sequence[str]) -> str:
    """The job file that runs the same command."""
    from mileage.jobs.job import manifest

    assert wanted.emit is not None
    name = wanted.name or f"{wanted.algorithm}-{wanted.env}"
    return manifest(wanted.emit, ["train", *words_without(words, *_OURS)], needs_of(wanted), name)


def jobs_of(wanted: TrainArguments, words: Sequence[str], directory: str, needs: Needs, share: float) -> list[Job]:
    """A job for each seed."""
    from pathlib import Path

    plain_words = [word for word in words_without(words, *_OURS, *_PER_JOB) if word not in _FLAGS]
    again: list[str] = [] if wanted.env is None or ":" not in wanted.env else [str(wanted.algorithm), wanted.env]
    for option, field in _AGAIN.items():
        value = getattr(wanted, field) if field else None
        if value is not None:
            again += [option, str(value)]
    again += ["--spot"] if wanted.spot else []
    variables = {} if share == 1.0 else {"MILEAGE_PRICE_SHARE": repr(share)}
    return [
        Job(
            f"seed {seed}", (*plain_words, "--seed", str(seed)), tuple(again), Path(directory) / f"seed-{seed}", needs,
            variables,
        )
        for seed in range(wanted.seed, wanted.seed + wanted.seeds)
    ]  # fmt: skip


def run_elsewhere(wanted: TrainArguments, words: Sequence[str]) -> list[RecordedRun]:
    """Train all seeds where `--on` says; every attempt is in the ledger when this returns."""
    from mileage.jobs.driver import DriverSettings, batch, drive, place_called
    from mileage.jobs.local import Local
    from mileage.ledger.address import check_is_database, database_url

    assert wanted.on is not None
    if wanted.resume is not None:
        raise UsageError("--on places whole runs: drop --resume")
    if not wanted.ledger:
        raise UsageError("--on brings results back through the ledger: drop --no-ledger")
    check_is_database(database_url(wanted.db))
    place = place_called(wanted.on)
    share = place.share if isinstance(place, Local) else 1.0
    needs = needs_of(wanted, place.cores_each if isinstance(place, Local) else 1)
    try:
        place.check(needs)
        with batch(wanted.out.resolve() / "placed", wanted.db) as directory:
            jobs = jobs_of(wanted, words, str(directory), needs, share)
            tell = _silent if wanted.json_output or wanted.quiet else _say
            results = drive(jobs, place, wanted.db, DriverSettings(wanted.retries, wanted.patience), tell)
    finally:
        place.close()
    failed = [result for result in results if not result.run_ids]
    if failed:
        raise UsageError(f"{failed[0].job.name} left no run: {failed[0].ended.why}")
    return _recorded([result.run_ids[-1] for result in results], wanted.db)


def _recorded(run_ids: Sequence[str], db: str | None) -> list[RecordedRun]:
    from mileage.ledger import queries
    from mileage.ledger.store import Store

    with Store(db) as store:
        runs = [store.read(queries.complete, store.read(queries.only_record, i), episodes_too=True) for i in run_ids]
        return store.read(queries.with_parents, runs)


def _say(text: str) -> None:
    print(plain(text), file=sys.stderr, flush=True)


def _silent(_: str) -> None:
    pass
