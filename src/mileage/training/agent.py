"""The objects users hold: an algorithm bound to an environment, with `learn`, `predict`, `save` and `load`."""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Never, Self

from mileage.algorithms import configs
from mileage.algorithms.configs import checked, tabulated
from mileage.algorithms.registry import NETWORKS, Algorithm, choose_backend, is_native
from mileage.contracts import Learner, LearnerConfig, Saved
from mileage.envs.native.vector import NativeEnv
from mileage.envs.registry import described, make_vec
from mileage.errors import CheckpointError, UsageError
from mileage.ledger.panels import Panel
from mileage.ledger.runs import EvalPoint, RecordedRun
from mileage.ledger.targets import Target
from mileage.measure import Phase, PhaseClock, ResourceSampler
from mileage.records import Record, named
from mileage.seeding import check_training_seed
from mileage.system import none_swallowed
from mileage.training import checkpoints, evaluation, recording
from mileage.training.acting import Acting
from mileage.training.preset_files import MACHINE_KEYS, RUN_KEYS, load_preset
from mileage.training.recording import shown_progress

DEFAULT_STEPS = 100_000
# Evaluations per run where nothing else was asked for.
_DEFAULT_EVALUATIONS = 20
# Of the time in training, for evaluations that nobody asked for.
_EVAL_SHARE = 0.05


class Agent(Acting):
    """An algorithm bound to an environment. Use one of its subclasses: `PPO`, `A2C`, `IMPALA`, `SAC`, `TD3`, `DQN`."""

    name: ClassVar[str]
    """Of the algorithm."""
    algorithm: ClassVar[Algorithm]
    """Its entry in the registry."""

    def __init__(
        self,
        first: Any = None,
        second: Any = None,
        /,
        *,
        env: Any = None,
        seed: int | None = 0,
        preset: str = "default",
        threads: int | None = None,
        env_kwargs: Record | None = None,
        processes: bool = False,
        backend: str = "auto",
        policy: Any = None,
        device: str = "auto",
        compile: bool | str = False,  # noqa: A002 (torch's own word)
        **hyperparameters: Any,
    ) -> None:
        """Build policy and environments.

        Args:
            first: the environment; or the name of a network, as in Stable-Baselines3's
                `PPO("MlpPolicy", "CartPole-v1")`.
            second: the environment, if the first argument is the name of a network.
            env: the environment by name: an id, "file.py:Name", an environment made with `@mileage.env`, one of
                Gymnasium's, a vector of those (whose number is `n_envs` unless given), or a function that makes one.
            seed: of everything random; the same seed gives the same run, on any number of threads. None draws one.
            preset: `default` for tuned hyperparameters where there are any, `none`, or a TOML file.
            threads: how many to use at most; all cores if None.
            env_kwargs: for the constructor of a Gymnasium environment.
            processes: step a Gymnasium environment in one process each.
            backend: `native` or `torch`; `auto` is native unless `policy` is one that only torch has.
            policy: `mlp`, `cnn`, or your own `torch.nn.Module` (see docs/torch.md).
            device: where torch computes: `cpu`, `cuda`, …; `auto` is a GPU if there is one.
            compile: use `torch.compile`; True or its mode.
            hyperparameters: fields of the algorithm's configuration; they override the preset. A learning rate or
                clip may be a function of the share of the training that is left, 1 to 0.
        """
        self.seed = check_training_seed(configs.seed_of(seed))
        hyperparameters, self.verbose, self.tensorboard = configs.taken(hyperparameters)
        env, policy = evaluation.env_and_policy(first, second, env, policy)
        self.spec, self.env_id, self.env_kwargs, n = described(env, dict(env_kwargs or {}))
        self._given = env
        policy = evaluation.usual_policy(policy, env)
        if n is not None:
            hyperparameters.setdefault("n_envs", n)
        known = load_preset(self.name, self.spec.id, preset)
        self.run_defaults = {key: known.pop(key) for key in RUN_KEYS if key in known}
        machine = {key: known.pop(key) for key in MACHINE_KEYS if key in known}
        threads = machine.get("threads") if threads is None else threads
        processes = processes or bool(machine.get("processes", False))
        if backend == "auto" and is_native(policy):
            backend = machine.get("backend", backend)
        compile = compile or (machine.get("compile", False) if backend == "torch" else False)  # noqa: A001
        usual = self.algorithm.learner().image_defaults if NETWORKS.get(str(policy)) == "cnn" else {}
        self.config = self._make_config(usual | known | hyperparameters)
        self.horizon = 0
        self.run_id: str | None = None
        """The run in the ledger that this agent was last trained in."""
        self.target: Target | None = None
        self.panel: Panel | None = None
        """The held-out exam of the last training, which the next one sits too unless told otherwise."""
        self.threads = evaluation.threads(threads)
        """How many threads are used at most."""
        self.processes = processes
        """Whether a Gymnasium environment is stepped in one process each."""
        self.compile = compile
        """Whether, or in which mode, `torch.compile` is used."""
        self._learner: Learner | None = None
        self._steps_before_build = 0
        self._kept: tuple[str, Saved, str] | None = None
        """What the learner goes on from once it is built, where that comes from, and what else may be wrong."""
        self._backend = choose_backend(self.algorithm, backend, policy, device, compile)
        self.backend = self._backend.name
        self.spec = self._backend.seen(self.spec)
        self.policy = self._backend.make_policy(self.config, self.spec, self.seed)
        self.policy.most_threads = self.threads

    def __repr__(self) -> str:
        return f"<{type(self).__name__} on {self.env_id}, seed {self.seed}, {self.steps:,} steps>"

    @property
    def policy_name(self) -> str:
        """Which network: `mlp`, `cnn`, or `module` for a user's own."""
        return self._backend.policy_name

    @property
    def steps(self) -> int:
        """Environment steps taken so far."""
        return self._steps_before_build if self._learner is None else self._learner.steps

    @property
    def batch_size(self) -> int:
        """Environment steps that one update learns from."""
        return self.config.batch_size

    @classmethod
    def _config_values(cls, values: Record) -> Record:
        """Hyperparameters by name as plain values, functions of time among them as tables."""
        return checked(cls.algorithm.learner().Config, cls.name, tabulated(values))

    def _make_config(self, values: Record) -> LearnerConfig:
        config: LearnerConfig = self.algorithm.learner().Config(**self._config_values(values))
        return config

    @property
    def learner(self) -> Learner:
        """The algorithm with environments and threads, built at first use: `predict` after `load` needs none of it."""
        if self._learner is None:
            from mileage.kernels.machine.team import Team

            env = make_vec(
                self.spec, self.config.n_envs, seed=self.seed, threads=self.threads, processes=self.processes
            )
            self._team = Team(self.threads, adaptive=True)
            learner = self._backend.make_learner(self.config, env, self.policy, self._team, self.seed)
            if self._kept is not None:
                source, saved, changed = self._kept
                try:
                    learner.restore(saved)
                except UsageError as error:
                    raise CheckpointError(f"{source} is damaged{changed}: {error}") from error
                self._kept = None
            self._learner = learner
        return self._learner

    def prepare(self, on_compile: Callable[[list[str]], None] | None = None) -> None:
        """Compile or load every kernel that training needs; `on_compile` is told which ones must be compiled."""
        from mileage.kernels.machine import precompile as ahead

        names = self._backend.learner_class.kernels(isinstance(self.spec, NativeEnv))
        names = ahead.with_masks(names) if self.policy.structured_actions else names
        absent = ahead.missing(names)
        if absent and on_compile is not None:
            on_compile(absent)
        with ahead.loading(names):
            _ = self.learner

    def learn(
        self,
        total_steps: int | None = None,
        *,
        progress: bool | None = None,
        target: str | Target | None = None,
        panel: Panel | None = None,
        eval_every: int | None = None,
        stop_at_target: bool = True,
        callback: Callable[..., bool | None] | Sequence[Callable[..., bool | None]] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 0,
        best_checkpoint: str | os.PathLike[str] | None = None,
        tensorboard: str | os.PathLike[str] | None = None,
        clock: PhaseClock | None = None,
        on_compile: Callable[[list[str]], None] | None = None,
        on_evaluation: Callable[[EvalPoint], None] | None = None,
        ledger: recording.LedgerChoice = None,
        name: str | None = None,
        price_usd_per_hour: float | str | None = None,
        instance: str | None = None,
        spot: bool = False,
        resources: bool | ResourceSampler | None = None,
        **others: Never,
    ) -> RecordedRun:
        """Train, and return the run with everything that was recorded of it.

        Args:
            total_steps: environment steps to take; after `load`, None takes those that were left.
            progress: whether steps, return and time left are shown; by default on a terminal and in a notebook.
            target: what to reach on the held-out panel, such as "mean_return>=475".
            panel: the held-out exam; that of the training which goes on here, or 100 episodes. Where Python steps the
                environments, a short training without a target has fewer, 5 at least.
            eval_every: environment steps between evaluations; 0 for none at all. By default 20 in a run, or what the
                preset says; where Python steps the environments, those are left out that would take the share of
                evaluations beyond a twentieth of the time in training, but for the last.
            stop_at_target: end the run when the target is met.
            callback: called with `Progress` after every iteration; returning False stops training.
            checkpoint: where to save at the end, on an interrupt, and every `checkpoint_every` steps.
            checkpoint_every: environment steps between checkpoints.
            best_checkpoint: where to save after every evaluation that is better than all before.
            tensorboard: directory for TensorBoard's live scalars, for which the extra is needed.
            clock: of the run, which stops it; a new one by default.
            on_compile: told which kernels must be compiled, before they are.
            on_evaluation: called with every `EvalPoint`.
            ledger: where the run is recorded, as `mileage train` does: True for the default ledger, a path or an
                address, or a `mileage.Ledger`; None records nothing. The first recorded run of a process counts from
                the start of the process.
            name: the arm this run belongs to in the ledger; algorithm and environment by default.
            price_usd_per_hour: as for `Ledger.run`, like `instance` and `spot`.
            instance: name in the price book.
            spot: whether the instance is bought on the spot market.
            resources: whether memory and GPUs are watched, or by whom; by default where a ledger is named.
            others: words of Stable-Baselines3: `total_timesteps`, `progress_bar`.
        """
        from mileage.measure import compile_phase

        total_steps, progress = configs.learning(others, total_steps, progress, Agent.learn.__kwdefaults__ or ())
        if progress is None:
            progress = False if clock is not None else self.verbose  # who has a clock shows what it likes
        clock = recording.run_clock(ledger) if clock is None else clock
        tensorboard = self.tensorboard if tensorboard is None else tensorboard
        path = None if checkpoint is None else checkpoints.checked_path(checkpoint)
        callbacks = () if callback is None else tuple(callback) if isinstance(callback, Sequence) else (callback,)
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, self, "_sound", False)
            with clock.phase(Phase.INIT):
                from mileage.training import runner
                from mileage.training.evaluation import make_evaluator

                goal = None if target is None else Target.parse(target)
                evaluation.say_beyond(self.spec, goal)
                horizon = self.plan_horizon(total_steps)
                every, share = self._cadence(horizon, eval_every)
                checkpoint_every = evaluation.whole("checkpoint_every", checkpoint_every, 0)
                evaluation.check_callbacks(callbacks)
                if not every and (goal is not None or best_checkpoint is not None):
                    raise UsageError("eval_every=0 leaves nothing to hold against a target or to call the best")
                panel = self._usual_panel(goal, horizon, share) if panel is None else self._checked(panel)
                if tensorboard is not None:
                    from mileage.training.tensorboard import live_scalars

                    callbacks = (*callbacks, stack.enter_context(live_scalars(tensorboard)))
                run = stack.enter_context(
                    recording.recorded(
                        self, ledger, clock, panel=panel, target=goal, horizon=horizon, eval_every=every, name=name,
                        price_usd_per_hour=price_usd_per_hour, instance=instance, spot=spot, resources=resources,
                    )
                )  # fmt: skip
            shown = stack.enter_context(shown_progress(self, run.price, horizon, progress))
            with compile_phase(clock):
                with none_swallowed():
                    with clock.phase(Phase.COMPILE):
                        self.prepare(on_compile or shown.compiling)
                    with clock.phase(Phase.INIT):
                        learner = self.learner
                        evaluate = make_evaluator(self.policy, self.spec, panel, self._team) if every else None
                self.horizon, self.target, self.panel = horizon, goal, panel
                if every:
                    self.run_defaults |= {"eval_every": every, "eval_share": share}

                def keep(steps: int) -> None:
                    run.note_steps(steps)  # a run that is killed has taken the steps that its checkpoint says
                    self.save(path or "")

                best = None if best_checkpoint is None else checkpoints.checked_path(best_checkpoint)
                outcome = runner.run(
                    learner, evaluate,
                    runner.Plan(horizon, every, goal, stop_at_target, checkpoint_every, share, len(panel.seeds)), clock,
                    steps=self.steps, callbacks=(*callbacks, *shown.callbacks), save=None if path is None else keep,
                    on_evaluation=recording.in_turn(on_evaluation, run.on_evaluation),
                    save_best=None if best is None else lambda: self.save(best),
                    on_steps=run.on_steps if run.in_ledger else None,
                )  # fmt: skip
                if path is not None:
                    with clock.phase(Phase.CHECKPOINT):
                        self.save(path)
            ended = run.finish(outcome.end, outcome.reason, outcome.steps, path, learner.summary())
            shown.finish(ended)
            return ended

    def plan_horizon(self, total_steps: int | None) -> int:
        """Steps at which training for `total_steps` more would end; None means as long as is left or usual."""
        if total_steps is None:
            left = self.horizon - self.steps
            total_steps = left if left > 0 else int(self.run_defaults.get("total_steps", DEFAULT_STEPS))
        return self.steps + evaluation.whole("total_steps", total_steps, 1)

    def usual_eval_every(self, horizon: int) -> int:
        """Steps between evaluations of a run that ends at `horizon`, where nothing else was asked for."""
        return int(self.run_defaults.get("eval_every") or max(1, (horizon - self.steps) // _DEFAULT_EVALUATIONS))

    def _cadence(self, horizon: int, eval_every: object) -> tuple[int, float]:
        """Steps between evaluations, and the share of the wall-clock that they are kept within; 0 for no limit."""
        if eval_every is not None:
            return evaluation.whole("eval_every", eval_every, 0), 0.0
        by_kernels = isinstance(self.spec, NativeEnv) and self.backend == "native"
        unsaid = not self.run_defaults.get("eval_every") and not by_kernels
        return self.usual_eval_every(horizon), self.run_defaults.get("eval_share", _EVAL_SHARE if unsaid else 0.0)

    def _usual_panel(self, target: Target | None, horizon: int, share: float) -> Panel:
        """The exam of the training that goes on, or the default one."""
        if self.panel is None:
            few = share > 0.0 and target is None
            episodes = evaluation.usual_episodes(self.spec, horizon - self.steps) if few else evaluation.EPISODES
            return self.default_panel(target, episodes)
        return self.panel if target is None else dataclasses.replace(self.panel, aggregate=str(target.aggregate))

    def import_vecnormalize(self, source: Any) -> None:
        """Take over the statistics of Stable-Baselines3's `VecNormalize`: the object, arrays by name, or an .npz file.

        See docs/migrating-from-sb3.md for the names and for the lines that write such a file.
        """
        from mileage.training.import_sb3 import take_over

        take_over(self.learner, source)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a checkpoint from which training continues bit for bit (environments stepped by Python start anew)."""
        checkpoints.Checkpoint(
            **named(self, "env_kwargs seed steps horizon run_id backend"),
            run_defaults=self.run_defaults | ({} if self.panel is None else {"panel": self.panel.as_dict()}),
            algorithm=self.name,
            env=self.env_id,
            target=None if self.target is None else str(self.target),
            config=dataclasses.asdict(self.config),
            policy=self.policy_name,
            obs_limit=self.policy.obs_limit,
            spaces=self.spec.codec.described(),
            saved=self.learner.saved(),
        ).write(checkpoints.checked_path(path))

    def export(self, path: str | os.PathLike[str]) -> None:
        """Write the policy as an ONNX file (docs/exam.md): observations in, best actions out, nothing to train on."""
        from mileage.policies import onnx

        about = {"env": self.env_id, "algorithm": self.name, "steps": str(self.steps)}
        onnx.write(self.policy, checkpoints.checked_path(path), about)

    @classmethod
    def load(
        cls, path: str | os.PathLike[str], *, threads: int | None = None, env: Any = None, policy: Any = None,
        device: str = "auto", **hyperparameters: Any,
    ) -> Self:  # fmt: skip
        """Read a checkpoint.

        `env` replaces the environment it names, and `policy` the network; both are needed if they are a user's code.
        `hyperparameters` replace those it was trained with, as for fine-tuning: `load(path, learning_rate=1e-4)`.
        """
        file = checkpoints.checked_path(path)
        evaluation.threads(threads)
        changes = cls._config_values(hyperparameters)
        arrays, metadata = checkpoints.read(file)
        if metadata.get("algorithm") != cls.name:
            raise CheckpointError(f"checkpoint {file} is of algorithm {metadata.get('algorithm')!r}, not {cls.name!r}")
        with checkpoints.only_checkpoint_errors(file):
            kept = checkpoints.Checkpoint.of(arrays, metadata)
            if policy is None and kept.policy == "module":
                raise CheckpointError(
                    f"checkpoint {file} holds the weights of a module of yours: give the module as policy"
                )
            agent = cls(
                checkpoints.checked_env(kept.env, file) if env is None else env, seed=kept.seed, preset="none",
                threads=threads, env_kwargs=kept.env_kwargs if env is None or isinstance(env, str) else None,
                backend=kept.backend, policy=kept.policy if policy is None else policy, device=device,
                **(kept.config | changes),
            )  # fmt: skip
            if "panel" in kept.run_defaults:
                exam = Panel.from_dict(kept.run_defaults.pop("panel"))
                same = exam.env_id in (agent.env_id, agent.spec.id) and exam.env_version in ("", agent.spec.version)
                agent.panel = exam if same else None
            agent.target = None if kept.target is None else Target.parse(kept.target)
            agent.policy.obs_limit = kept.obs_limit
            checkpoints.check_spaces(kept.spaces, agent.spec.codec.described(), file)
        agent._steps_before_build, agent.horizon, agent.run_id = kept.steps, kept.horizon, kept.run_id
        agent.run_defaults = kept.run_defaults
        changed = f" or does not go with {', '.join(changes)}" if changes else ""
        agent._kept = (f"checkpoint {file}", kept.saved, changed)
        checkpoints.restore(agent.policy.live_arrays(), kept.saved.arrays, file)
        agent.policy.loaded()
        return agent

    def close(self) -> None:
        """Stop threads and close environments; what comes after builds them again and goes on where this ended."""
        if self._learner is not None:
            learner = self._learner
            learner.stop()
            # Nobody writes to the learner's arrays from here on: they need not be copied.
            self._kept = ("what was left of the closed agent", learner.saved(), "")
            self._steps_before_build = learner.steps
            self._team.close()
            learner.env.close()
            self._learner = None

    def set_env(self, env: Any) -> None:
        """Go on in another environment with the same spaces: what was learned stays, episodes start anew."""
        spec, env_id, kwargs, _ = described(env, {})
        spec = self._backend.seen(spec)
        evaluation.check_same_spaces(self.spec, spec)
        self.close()
        if self._kept is not None:
            source, saved, changed = self._kept
            arrays = {name: array for name, array in saved.arrays.items() if not name.startswith("env_")}
            self._kept = (source, Saved(arrays, saved.counters), changed)
        self.spec, self.env_id, self.env_kwargs, self.panel = spec, env_id, kwargs, None
        self._given = env

    @property
    def given_env(self) -> Any:
        """The environment as it was given: a name or an object."""
        return self._given

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
