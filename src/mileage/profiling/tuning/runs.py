"""One run of a setup: what is trained, how it is measured, and what is left of it."""

from __future__ import annotations

import dataclasses
import json
import math
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from mileage.envs.native.vector import NativeEnv
from mileage.errors import UsageError
from mileage.ledger.runs import RecordedRun
from mileage.ledger.targets import Target
from mileage.measure import Arm, Outcome, Phase, PhaseClock, Sample, Turn
from mileage.records import ReadRecord, Record
from mileage.training import runner
from mileage.training.agent import Agent
from mileage.training.agents import agent_class

PLAIN_FIELDS = ("total_steps", "eval_every", "checkpoint_every", "threads", "processes", "backend", "compile")
"""Fields of a setup that are shown and compared as they are."""


@dataclasses.dataclass(frozen=True)
class Setup:
    """Everything that decides how a run trains, and that a fix may change."""

    algorithm: str
    env: Any
    """As for `mileage.PPO`: an id, or an environment made with `@mileage.env`."""
    config: ReadRecord
    """All hyperparameters by name."""
    total_steps: int
    """Environment steps after which a run gives up."""
    eval_every: int
    """Environment steps between held-out evaluations."""
    checkpoint_every: int = 0
    """Environment steps between checkpoints; 0 for none."""
    checkpoint_folder: str | None = None
    """Where checkpoints go, on the disk that a user's own go to; None for none, or for a temporary folder."""
    threads: int = 1
    processes: bool = False
    backend: str = "native"
    compile: bool | str = False
    policy: Any = None
    device: str = "auto"
    env_kwargs: ReadRecord = dataclasses.field(default_factory=dict)
    native_env: bool = True
    """Whether the environment is stepped by native code."""
    env_id: str = ""
    """Under which presets know the environment."""

    @classmethod
    def of(
        cls,
        algorithm: str,
        env: Any,
        *,
        steps: int | None = None,
        eval_every: int | None = None,
        checkpoint_every: int = 0,
        checkpoint: str | None = None,
        **agent_arguments: Any,
    ) -> Setup:
        """The setup that the arguments of `mileage.PPO` and of its `learn` describe, presets applied."""
        agent_arguments.pop("seed", None)
        agent = agent_class(algorithm)(env, **agent_arguments)
        horizon = agent.plan_horizon(steps)
        every = agent.usual_eval_every(horizon) if eval_every is None else eval_every
        if every < 1 or checkpoint_every < 0:
            raise UsageError("eval_every must be at least 1 and checkpoint_every 0 or more")
        folder = None if checkpoint is None else str(Path(checkpoint).resolve().parent)
        return cls(
            agent.name, env, dataclasses.asdict(agent.config), horizon, every, checkpoint_every, folder, agent.threads,
            agent.processes, agent.backend, agent.compile, agent_arguments.get("policy"),
            agent_arguments.get("device", "auto"), dict(agent_arguments.get("env_kwargs") or {}),
            native_env=isinstance(agent.spec, NativeEnv), env_id=agent.spec.id,
        )  # fmt: skip

    def but(self, **changes: Any) -> Setup:
        """The same with other fields; a name that is no field is a hyperparameter."""
        own = {field.name for field in dataclasses.fields(self)}
        fields = {name: value for name, value in changes.items() if name in own}
        rest = {name: value for name, value in changes.items() if name not in own}
        unknown = sorted(set(rest) - set(self.config))
        if unknown:
            raise UsageError(f"{self.algorithm} has no hyperparameter {unknown[0]!r}")
        if rest:
            fields["config"] = dict(fields.get("config", self.config)) | rest
        return dataclasses.replace(self, **fields)

    @property
    def key(self) -> str:
        """The same text for the same setup."""
        values = {name: value for name, value in vars(self).items() if name not in ("env", "policy")}
        return json.dumps(values, sort_keys=True, default=list)

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps between two updates, which is also the least distance between two evaluations."""
        config = self.config
        per_env = config["n_steps"] if "n_steps" in config else config.get("train_every", 1)
        return int(config["n_envs"] * per_env)

    def differences(self, other: Setup) -> dict[str, tuple[Any, Any]]:
        """What `other` changes, by name: the value here and the value there."""
        found = {name: (getattr(self, name), getattr(other, name)) for name in PLAIN_FIELDS}
        found |= {name: (value, other.config.get(name)) for name, value in self.config.items()}
        return {name: (here, there) for name, (here, there) in found.items() if here != there}

    def agent(self, seed: int) -> Agent:
        """An agent that trains this way."""
        torch = self.backend == "torch"
        return agent_class(self.algorithm)(
            self.env, seed=seed, preset="none", threads=self.threads, env_kwargs=dict(self.env_kwargs),
            processes=self.processes, backend=self.backend, policy=self.policy,
            device=self.device if torch else "auto", compile=self.compile if torch else False, **self.config,
        )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Trial(Sample):
    """One run of an arm; its round is the seed.

    Its seconds are those to the end of the evaluation that met the target, or to the stop of a run that did not. Such a
    run is a failure whose cost counts.
    """

    cap_seconds: float = math.inf
    """When the run would have been stopped."""
    steps: int = 0
    """Environment steps up to there."""
    value: float | None = None
    """What the last evaluation showed of the quantity that the target names; None without an evaluation."""
    reason: str = ""
    """How the run ended."""
    run_id: str | None = None
    """In the ledger; None if it was not recorded."""
    run: RecordedRun | None = None
    """The whole run; None if it could not be trained to an end."""

    @property
    def seed(self) -> int:
        """Of everything random in the run."""
        return self.round

    @property
    def seconds(self) -> float:
        """Wall-clock to the target, or to the stop."""
        return self.wall_seconds

    @property
    def reached(self) -> bool:
        """Whether the run met the target in its time."""
        return self.outcome is Outcome.OK

    @property
    def steps_per_second(self) -> float:
        """Of training seconds."""
        return (self.run.steps_per_second if self.run else None) or 0.0

    @property
    def steady_steps_per_second(self) -> float:
        """The same without start-up and compilation."""
        return (self.run.steady_steps_per_second if self.run else None) or 0.0

    @property
    def phases(self) -> Mapping[str, float]:
        """Seconds by phase, of the whole run."""
        return self.run.phases if self.run else {}

    def as_dict(self) -> Record:
        """Plain data."""
        told = ("arm", "seed", "seconds", "reached", "cap_seconds", "steps", "value", "reason", "run_id")
        derived = ("steps_per_second", "steady_steps_per_second", "phases")
        return {name: getattr(self, name) for name in (*told, *derived)}


class TrainingExecutor:
    """Trains in this process, and records every run in the ledger.

    A run's clock covers building, training, evaluations and the ledger's own writes. Compiled kernels are loaded before
    (`prepare`), once for all runs of an arm, as for the second and further seeds of `mileage train --seeds`.
    """

    def __init__(
        self,
        target: str | Target,
        *,
        episodes: int = 100,
        success: str | None = None,
        name: str = "try",
        price: float | str | None = None,
        instance: str | None = None,
        spot: bool = False,
        db: str | Literal[False] | None = None,
        on_compile: Callable[[list[str]], None] | None = None,
        callbacks: Sequence[Callable[..., bool | None]] = (),
    ) -> None:
        """Say what is reached for and where runs are recorded.

        Args:
            target: the same for every arm.
            episodes: of the held-out panel, the same for every arm.
            success: what makes an episode a success.
            name: runs are called `name/arm` in the ledger.
            price, instance, spot: as for `Ledger.run`.
            db: the ledger; None is the default one, False none.
            on_compile: told which kernels must be compiled.
            callbacks: of the user's run, which every run calls as that one does.
        """
        self.target = Target.parse(target)
        self._episodes, self._success, self._name, self._db = episodes, success, name, db
        self._price, self._instance, self._spot = price, instance, spot
        self._on_compile = on_compile
        self._callbacks = tuple(callbacks)
        self._prepared: set[tuple[str, str, bool | str]] = set()

    def now(self) -> float:
        """Seconds of the monotonic clock."""
        return time.perf_counter()

    def prepare(self, arm: Arm[Setup], kind: str = "") -> None:
        """Load what every run of a setup needs once in a process: compiled kernels, torch."""
        setup = arm.subject
        needed = (setup.algorithm, setup.backend, setup.native_env)
        if needed in self._prepared:
            return
        self._prepared.add(needed)
        with setup.agent(0) as agent:
            agent.prepare(self._on_compile)

    def attempt(self, arm: Arm[Setup], turn: Turn) -> Trial:
        """Train once with the round as seed, to the target, to the turn's limit or to the end of the step budget."""
        clock, deadline = PhaseClock(), time.perf_counter() + turn.limit_seconds
        run_id: str | None = None
        try:
            with clock.phase(Phase.INIT):
                agent = arm.subject.agent(turn.round)
            try:
                run = self._train(agent, arm, deadline, clock)
            finally:
                run_id = agent.run_id
        except Exception as error:
            # Whatever a configuration does to a run, the run has failed and the search goes on.
            trial = Trial(arm.name, clock.times().wall_seconds, outcome=Outcome.FAILED, round=turn.round, run_id=run_id)
            reason = f"{type(error).__name__}: {error}"
            return dataclasses.replace(trial, cap_seconds=turn.limit_seconds, reason=reason)
        if run.reason == runner.INTERRUPTED:
            raise KeyboardInterrupt
        return _trial(arm.name, run, turn, None if run.final is None else self.target.value(run.final))

    def _train(self, agent: Agent, arm: Arm[Setup], deadline: float, clock: PhaseClock) -> RecordedRun:
        setup = arm.subject
        saves = bool(setup.checkpoint_every) or setup.checkpoint_folder is not None
        if setup.checkpoint_folder is not None:
            Path(setup.checkpoint_folder).mkdir(parents=True, exist_ok=True)
        # On the disk that the user's own checkpoints go to: how slow it is belongs to what is measured.
        with tempfile.TemporaryDirectory(prefix=".mileage-try-", dir=setup.checkpoint_folder) as directory, agent:
            return agent.learn(
                setup.total_steps, target=self.target, eval_every=setup.eval_every, clock=clock,
                panel=agent.default_panel(self.target, self._episodes, self._success),
                callback=[lambda _: time.perf_counter() < deadline, *self._callbacks],
                checkpoint=Path(directory) / "checkpoint.safetensors" if saves else None,
                checkpoint_every=setup.checkpoint_every, on_compile=self._on_compile,
                ledger=True if self._db is None else self._db, name=f"{self._name}/{arm.name}",
                price_usd_per_hour=self._price, instance=self._instance, spot=self._spot,
            )  # fmt: skip


def _trial(arm: str, run: RecordedRun, turn: Turn, value: float | None) -> Trial:
    reached = run.wall_to_target is not None and run.wall_to_target <= turn.limit_seconds
    capped = not reached and run.reason == runner.STOPPED_BY_CALLBACK
    return Trial(
        arm=arm,
        wall_seconds=run.cost("s") if reached else run.wall_seconds,
        outcome=Outcome.OK if reached else Outcome.TIMEOUT if capped else Outcome.FAILED,
        round=turn.round,
        cap_seconds=turn.limit_seconds,
        steps=run.steps_to_target or run.steps if reached else run.steps,
        value=value,
        reason=f"stopped after {run.wall_seconds:.1f} s" if capped else run.reason,
        run_id=run.run_id if run.in_ledger else None,
        run=run,
    )
