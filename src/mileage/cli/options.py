"""Options that several commands share, each declared once, and how their values become arguments of an agent."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import json
from collections.abc import Callable
from inspect import Parameter
from typing import Annotated, Any, TypeVar, get_type_hints

from typer import Argument, Option

from mileage._errors import UsageError
from mileage._records import Record

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
