"""Stable-Baselines3, sb3-contrib and sbx.

    with stable_baselines3.recorded(model, panel="CartPole-v1", target="mean_return>=475") as callback:
        model.learn(100_000, callback=callback)

Phases: `env_step`, `advantage`, `learn`, `log`, `checkpoint`, `eval`; action choice and buffers are `rollout` together.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Unpack, cast

import gymnasium
import numpy as np

from mileage.errors import CheckpointError, UsageError
from mileage.external.adapters.session import Session, SessionSettings, closing, framework_module, watch_env
from mileage.external.adapters.wrappers import View
from mileage.external.exam import Actor
from mileage.records import Record
from mileage.types import I64, Array, Observation

if TYPE_CHECKING:
    # Stands for every object of the framework, none of which the type checker knows.
    from stable_baselines3.common.base_class import BaseAlgorithm as Foreign

NOT_SEPARATED = (
    "choosing actions and filling buffers are one phase, rollout; evaluations of its own callbacks are other"
)


@contextlib.contextmanager
def recorded(model: Foreign, **settings: Unpack[SessionSettings]) -> Iterator[Foreign]:
    """Record one `model.learn`; yields the callback to give it. `settings` are those of `Settings`."""
    module = framework_module("stable_baselines3.common.callbacks", "stable-baselines3")
    env = model.get_env()
    package = {"sbx": "sbx-rl", "sb3_contrib": "sb3-contrib"}.get(type(model).__module__.split(".")[0])
    session = Session(
        "stable_baselines3", settings, algorithm=type(model).__name__.lower(), seed=model.seed,
        config=_config(model), package=package or "stable-baselines3", not_separated=NOT_SEPARATED,
    )  # fmt: skip
    if env is not None:
        watch_env(session, env, env.num_envs)
    session.wrap(model, "train", "learn")
    _wrap_save(session, model)
    with closing(session, lambda: session.examine_last(policy, modules=model.policy)):
        policy = _policy(session, model)  # refused before anything is trained
        yield _callback_class(module)(session, policy)


def _callback_class(module: Foreign) -> type:
    class Recording(module.BaseCallback):  # type: ignore[misc]
        """Marks rollouts, keeps figures, and sits exams."""

        def __init__(self, session: Session, policy: SB3Policy) -> None:
            super().__init__()
            self.session, self._policy = session, policy
            self._advantage = False

        def _on_training_start(self) -> None:
            buffer = vars(self.model).get("rollout_buffer")
            if buffer is not None and not self._advantage:
                self._advantage = True
                self.session.wrap(buffer, "compute_returns_and_advantage", "advantage")
            self.session.begin(self.num_timesteps)
            _wrap_dump(self.session, self.model)

        def _on_rollout_start(self) -> None:
            self.session.switch("rollout")

        def _on_step(self) -> bool:
            if not self.session.due():
                return True
            began = time.time_ns()
            self.session.examine(self._policy, modules=self.model.policy)
            self.model.start_time += time.time_ns() - began  # its figures of time leave the exam out
            return not self.session.stop

        def _on_rollout_end(self) -> None:
            self.session.switch(None)
            self.session.claim({}, steps=self.num_timesteps)

        def _on_training_end(self) -> None:
            self.session.switch(None)
            self.session.claim({}, steps=self.num_timesteps)

    return Recording


def _wrap_dump(session: Session, model: Foreign) -> None:
    """Time what the logger writes and claim it: it is complete and together at that moment alone."""
    own, logger = model.logger.dump, model.logger

    def dump(step: int = 0) -> None:
        figures = {key: value for key, value in logger.name_to_value.items() if not isinstance(value, str)}
        session.claim(figures, steps=model.num_timesteps, seconds=figures.get("time/time_elapsed"))
        with session.phase("log"):
            own(step)

    if "dump" not in vars(logger):  # once, if a model learns twice
        logger.dump = dump
        session.on_close(lambda: vars(logger).pop("dump", None))


def _wrap_save(session: Session, model: Foreign) -> None:
    """Time `model.save`, without what is put on the model for the time of the run: it would be in the file."""
    own, attributes = model.save, cast(Record, vars(model))

    def save(*args: object, **kwargs: object) -> None:
        hidden: Record = {name: attributes.pop(name) for name in ("train", "save") if name in attributes}
        try:
            with session.phase("checkpoint"):
                own(*args, **kwargs)
        finally:
            attributes.update(hidden)

    attributes["save"] = save
    session.on_close(lambda: attributes.pop("save", None))


class SB3Policy(Actor):
    """A model as it acts: its normalisation as it stands, its memory if it has one."""

    def __init__(self, model: Foreign, deterministic: bool, view: View | None = None) -> None:
        """`view` are the wrappers of single environments that it was trained through."""
        self._model, self._deterministic, self._view = model, deterministic, view
        self.remembers = "Recurrent" in type(model).__name__ or "Lstm" in type(model.policy).__name__
        self._states: dict[int, Foreign] = {}
        self._all: Foreign = None
        self._n = 0
        env = model.get_vec_normalize_env()
        self._normalise = None if env is None else env.normalize_obs

    def begin(self, episodes: int, deterministic: bool) -> None:
        """Forget other episodes."""
        self._all, self._n = None, episodes

    def act(self, observations: Observation, episodes: I64) -> Array:
        """Ask the model."""
        if self._view is not None:
            observations = self._view.observations(observations)
        shown = observations if self._normalise is None else self._normalise(observations)
        actions = self._chosen(shown, episodes)
        return actions if self._view is None else np.asarray(self._view.actions(actions))

    def _chosen(self, shown: Observation, episodes: I64) -> Array:
        if not self.remembers:
            return np.asarray(self._model.predict(shown, deterministic=self._deterministic)[0])
        # Every episode keeps its column of the memory; those that are over keep an observation of no consequence.
        full = np.zeros((self._n, *np.shape(shown)[1:]), np.asarray(shown).dtype)
        full[episodes] = shown
        start = np.full(self._n, self._all is None)
        actions, self._all = self._model.predict(full, self._all, start, deterministic=self._deterministic)
        return np.asarray(actions)[episodes]


def load_policy(path: str, deterministic: bool = True) -> Actor:
    """The policy in a file that `model.save` wrote."""
    found = []
    for package, names in (("stable_baselines3", "PPO A2C DQN SAC TD3 DDPG"), ("sb3_contrib", "RecurrentPPO TQC QRDQN TRPO CrossQ MaskablePPO ARS"), ("sbx", "PPO SAC TQC TD3 DQN DDPG CrossQ")):  # fmt: skip # noqa: E501
        with contextlib.suppress(ImportError):
            module = __import__(package)
            found += [vars(module)[name] for name in names.split() if name in vars(module)]
    if not found:
        framework_module("stable_baselines3", "stable-baselines3")
    said = ""
    for kind in found:
        try:
            return SB3Policy(kind.load(path, device="cpu"), deterministic)
        except Exception as error:  # a file of another algorithm fails in a way of its own
            said = said or f"{type(error).__name__}: {error}"
    raise CheckpointError(f"{path} cannot be read by any algorithm of Stable-Baselines3: {said}")


def _policy(session: Session, model: Foreign) -> SB3Policy:
    """The model as it is trained, wrappers of its environments included."""
    panel, env = session.run.panel, model.get_env()
    while env is not None and "venv" in vars(env):
        env = env.venv
    view = None
    if panel is not None and env is not None:
        if "envs" in vars(env):
            view = View(env, panel)
        elif any(any(env.env_is_wrapped(kind)) for kind in (gymnasium.ObservationWrapper, gymnasium.ActionWrapper)):
            raise UsageError("SubprocVecEnv hides wrappers of observations and actions from an exam: use DummyVecEnv")
    return SB3Policy(model, panel is None or panel.deterministic, view)


def _config(model: Foreign) -> dict[str, object]:
    """The numbers and words among a model's settings."""
    kept = (bool, int, float, str)
    return {name: value for name, value in vars(model).items() if isinstance(value, kept) and not name.startswith("_")}
