"""Options that commands share, paths of files, words around `--`, and how `--help` reads."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import itertools
import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_type_hints

import typer
from typer import Argument, Option
from typer.core import TyperCommand, TyperGroup

from mileage.errors import UsageError
from mileage.records import Record

Words = list[str] | None
"""Of an option that may be given several times."""
EnvId = Annotated[str | None, Argument(help="Environment id, or path/to/file.py:Name.")]
Steps = Annotated[int | None, Option("--steps", help="Environment steps to take (the preset's by default).")]
TargetText = Annotated[str | None, Option(help='Stop once the held-out panel shows this: "mean_return>=475".')]
Preset = Annotated[str, Option(help="'default', 'none' or a TOML file of hyperparameters.")]
Settings = Annotated[Words, Option("--set", "-s", help="A hyperparameter, as NAME=VALUE; may be repeated.")]
EvalEvery = Annotated[int | None, Option(help="Environment steps between held-out evaluations (0: none).")]
Episodes = Annotated[int | None, Option(help="Held-out episodes per evaluation.")]
CheckpointEvery = Annotated[int, Option(help="Environment steps between checkpoints (0: at the end only).")]
Threads = Annotated[int | None, Option(help="Threads to use at most (all cores by default).")]
Processes = Annotated[bool, Option("--processes", help="One process per Gymnasium environment.")]
EnvKwargs = Annotated[str | None, Option(help="JSON for a Gymnasium environment's constructor.")]
Backend = Annotated[str, Option(help="'native', 'torch', or 'auto'.")]
PolicyName = Annotated[str | None, Option(help="'mlp' or 'cnn'; others only from Python.")]
Device = Annotated[str, Option(help="Where torch computes: 'auto', 'cpu', 'cuda'.")]
Compile = Annotated[bool, Option("--compile", help="Use torch.compile.")]
PriceText = Annotated[str | None, Option(help="Dollars an hour, such as 2.20 or 0.35+0.19 (GPU + host).")]
Adapter = Annotated[str | None, Option(help="What reads the policy's file: the name of an adapter.")]
UnitActions = Annotated[
    bool, Option("--unit-actions", help="The policy's numbers from -1 to 1 stand for the bounds of actions.")
]
AsJson = Annotated[bool, Option("--json", help="Print JSON.")]
Database = Annotated[str | None, Option(help="Ledger file or address (MILEAGE_DB, or runs/mileage.db).")]


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunArguments:
    """What a command that trains takes; commands add fields of their own."""

    algorithm: Annotated[str | None, Argument(help="Its name.")] = None
    env: EnvId = None
    steps: Steps = None
    target: TargetText = None
    seed: Annotated[int, Option(help="Of everything random.")] = 0
    preset: Preset = "default"
    set_: Settings = None
    eval_every: EvalEvery = None
    episodes: Episodes = 100
    checkpoint_every: CheckpointEvery = 0
    threads: Threads = None
    processes: Processes = False
    env_kwargs: EnvKwargs = None
    backend: Backend = "auto"
    policy: PolicyName = None
    device: Device = "auto"
    compile_: Compile = False
    name: Annotated[str | None, Option(help="Name of the run in the ledger.")] = None
    price: PriceText = None
    db: Database = None
    ledger: Annotated[bool, Option("--ledger/--no-ledger", help="Whether runs are recorded in the ledger.")] = True
    json_output: Annotated[bool, Option("--json", help="Print the result as JSON.")] = False
    quiet: Annotated[bool, Option("--quiet", "-q", help="No progress.")] = False

    def agent(self) -> Record:
        """What `mileage.PPO` and the other agents take, but for the seed."""
        plain = ("preset", "threads", "processes", "backend", "policy", "device")
        words: Record = {name: getattr(self, name) for name in plain} | {"compile": self.compile_}
        words["env_kwargs"] = json_object("--env-kwargs", self.env_kwargs)
        return words | hyperparameters(self.set_ or [])


Arguments = TypeVar("Arguments")


def takes(kind: type[Arguments]) -> Callable[[Callable[[Arguments], None]], Callable[..., None]]:
    """A command whose parameters are the fields of the dataclass `kind`, and which gets them as one value."""

    def command_of(body: Callable[[Arguments], None]) -> Callable[..., None]:
        @functools.wraps(body)
        def command(**values: Any) -> None:
            body(kind(**values))

        hints = get_type_hints(kind, include_extras=True)
        fields = [field for field in dataclasses.fields(kind) if field.init]  # type: ignore[arg-type]
        command.__annotations__ = {field.name: hints[field.name] for field in fields} | {"return": None}
        command.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            [Parameter(f.name, Parameter.KEYWORD_ONLY, default=f.default, annotation=hints[f.name]) for f in fields]
        )
        return command

    return command_of


def pairs(option: str, given: Words, form: str, *, empty: bool = False) -> dict[str, str]:
    """What was given to `option` as A=B, by A; `form` says how it is written, `empty` whether B may be nothing."""
    found = {}
    for pair in given or ():
        name, sign, value = pair.partition("=")
        if not sign or not name or not (value or empty):
            raise UsageError(f"{option} {pair!r} cannot be read: write {form}")
        found[name] = value
    return found


def hyperparameters(given: list[str]) -> Record:
    """Read NAME=VALUE pairs; a value is JSON where it can be, text otherwise."""
    found: Record = {}
    for name, text in pairs("--set", given, "NAME=VALUE", empty=True).items():
        try:
            found[name.replace("-", "_")] = json.loads(text)
        except ValueError:
            found[name.replace("-", "_")] = text
    return found


def json_object(option: str, text: str | None) -> Record:
    """Read a JSON object that was given to `option`; none is an empty one."""
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{option} is not JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{option} must be a JSON object, such as '{{\"max_episode_steps\": 200}}'")
    return value


# --- Where runs keep their files ---
BEST = "best.safetensors"


def run_directory(out: Path, algorithm: str, env: str, seed: int) -> Path:
    """A new directory for one run, made now, so that an unwritable place is known before training."""
    label = re.sub(r"[^A-Za-z0-9_.-]+", "_", Path(env).name if ".py" in env else env).strip("._") or "env"
    base = f"{algorithm}-{label}-{time.strftime('%Y%m%d-%H%M%S')}-s{seed}"
    for suffix in ("", *(f".{n}" for n in range(2, 1000))):
        path = out / f"{base}{suffix}"
        try:
            path.mkdir(parents=True)
        except FileExistsError:
            if not out.is_dir():
                raise UsageError(f"cannot write to {out}: it is not a directory") from None
            continue
        except OSError as error:
            raise UsageError(f"cannot write to {out}: {error.strerror or error}") from None
        return path
    raise UsageError(f"cannot find a free name in {out}")


# --- How `--help` reads: options in groups, an example for every command, no word for the type of a switch ---
EXAMPLES = {
    "train": 'mileage train ppo CartPole-v1 --target "mean_return>=475" --seeds 5 --price 2.20',
    "eval": "mileage eval ppo-CartPole-v1 --episodes 100",
    "envs": "mileage envs --all",
    "check": "mileage env check CartPole-v1",
    "profile": "mileage profile ppo CartPole-v1 --try",
    "record": "mileage record --name mine -- python train.py",
    "race": "mileage race race.toml",
    "verify": "mileage verify record.json",
    "warmup": "mileage warmup CartPole-v1",
    "bench": "mileage bench gae rollout",
    "doctor": "mileage doctor",
    "report": "mileage report ppo-CartPole-v1 --open",
    "serve": "mileage serve --open",
    "watch": "mileage watch ppo-CartPole-v1",
    "rl-bench": "mileage rl-bench --project path/to/project",
    "ledger list": "mileage ledger list algorithm=ppo,state=reached",
    "ledger show": "mileage ledger show 20260901-142200",
    "ledger compare": "mileage ledger compare name=fast name=slow",
    "ledger export": "mileage ledger export name=fast --format csv --out runs.csv",
    "ledger import": "mileage ledger import progress.csv --env CartPole-v1 --seed 0",
    "ledger doctor": "mileage ledger doctor",
    "ledger backup": "mileage ledger backup copy.db",
    "ledger void": 'mileage ledger void 20260901-142200 --reason "wrong environment"',
    "ledger annotate": 'mileage ledger annotate 20260901-142200 "new machine"',
    "ledger redact": "mileage ledger redact 20260901-142200 command",
    "ledger reconcile": "mileage ledger reconcile bill.csv",
}
GROUPS = {
    "Training": "steps seeds seed preset set_ resume threads processes env_kwargs backend policy device compile_",
    "Target": "target success episodes eval_every",
    "Recording and price": "name price instance spot db ledger",
    "Output": "out checkpoint_every keep_best tensorboard json_output quiet",
    "Where it runs": "on cores memory gpus retries patience emit",
}
"""The options of `train`, by heading."""


class _Switches:
    """What has options, of which switches show no type."""

    def get_params(self, ctx: Any) -> list[Any]:
        """All options, that for help among them."""
        found: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for each in found:
            each.metavar = "" if getattr(each, "is_flag", False) else each.metavar
        return found


class CommandGroup(_Switches, TyperGroup):
    """Commands below a word."""


class Command(_Switches, TyperCommand):
    """A command whose options are in groups where there are many."""

    def __init__(self, *args: Any, **values: Any) -> None:
        super().__init__(*args, **values)
        grouped = {name: heading for heading, names in GROUPS.items() for name in names.split()}
        for each in self.params if self.name == "train" else ():
            option: Any = each
            if option.param_type_name == "option":
                option.rich_help_panel = grouped.get(option.name)


def explain(app: typer.Typer, prefix: str = "") -> None:
    """Give every command of `app` its example, and help that is easy to read."""
    app.info.cls = CommandGroup
    for info in app.registered_commands:
        name = info.name or str(getattr(info.callback, "__name__", ""))
        info.epilog = f"Example: {EXAMPLES[prefix + name]}"
        info.cls = info.cls if issubclass(info.cls or TyperCommand, Command) else Command


# --- A command with options of its own and, after --, a program, or the word compare first ---
PROGRAM = "--program"
"""The hidden option by which the words of a program reach the command, one each."""

COMPARE = "--compare"
"""The hidden option by which the two profiles after the word compare reach the command."""


@dataclass(frozen=True, kw_only=True)
class ProgramArguments:
    """What `mileage profile` was asked to do with a program."""

    program: list[str]
    try_: bool = False
    try_arg: list[str] | None = None
    budget: float = 180.0
    timeout: float | None = None
    export: str | None = None
    out: Path | None = None
    name: str | None = None
    db: str | None = None
    ledger: bool = True
    json_output: bool = False
    quiet: bool = False
    full: bool = False


class ProgramCommand(Command):
    """What stands after the first -- is a program, whatever it looks like."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Hand each word of the program on as a value of its own."""
        if "--" in args:
            at = args.index("--")
            args = [*args[:at], *(f"{PROGRAM}={word}" for word in args[at + 1 :] or [""])]
        elif args[:1] == ["compare"]:
            names = list(itertools.takewhile(lambda word: not word.startswith("-"), args[1:]))
            args = [*(f"{COMPARE}={word}" for word in names or [""]), *args[1 + len(names) :]]
        return super().parse_args(ctx, args)


def script(program: list[str]) -> str:
    """The first argument that is a file, or else the program."""
    return next((word for word in program[1:] if not word.startswith("-") and Path(word).is_file()), program[0])
