"""Gymnasium's MuJoCo environments by id, with the descriptive attributes of `NativeEnv`."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mujoco
import numpy as np

from mileage._errors import UnknownNameError, UsageError
from mileage._types import F32
from mileage.envs.mujoco._batch import library
from mileage.envs.mujoco.balancing import InvertedDoublePendulum, InvertedPendulum
from mileage.envs.mujoco.locomotion import Ant, HalfCheetah, Hopper, Humanoid, Swimmer, Walker2d
from mileage.envs.mujoco.reaching import Pusher, Reacher
from mileage.envs.mujoco.task import Task

TASKS: dict[str, type[Task]] = {
    "Ant-v5": Ant,
    "HalfCheetah-v5": HalfCheetah,
    "Hopper-v5": Hopper,
    "Humanoid-v5": Humanoid,
    "InvertedDoublePendulum-v5": InvertedDoublePendulum,
    "InvertedPendulum-v5": InvertedPendulum,
    "Pusher-v5": Pusher,
    "Reacher-v5": Reacher,
    "Swimmer-v5": Swimmer,
    "Walker2d-v5": Walker2d,
}
_COMMON = ("xml_file", "frame_skip", "max_episode_steps")


@dataclasses.dataclass(frozen=True, eq=False)
class MujocoEnv:
    """One of Gymnasium's MuJoCo environments, stepped natively.

    `kwargs` are those of Gymnasium's constructor, without the ones for rendering, and `max_episode_steps`.
    """

    leaves = None

    id: str
    kwargs: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.id not in TASKS:
            raise UnknownNameError("MuJoCo environment", self.id, TASKS)
        if library() is None:
            raise UsageError(f"MuJoCo {mujoco.__version__} cannot simulate batches: install version 4.0 or later")
        known = {*TASKS[self.id].options, *_COMMON}
        unknown = sorted(self.kwargs.keys() - known)
        if unknown:
            raise UsageError(
                f"environment {self.id!r} does not take the option {unknown[0]!r} when it is stepped natively: choose "
                f"from {', '.join(sorted(known))}, or use mileage.envs.GymnasiumEnv"
            )
        for name in ("frame_skip", "max_episode_steps"):
            value = self.kwargs.get(name, 1)
            if not isinstance(value, int) or value < 1:
                raise UsageError(f"{name} is {value!r}: use a whole number of at least 1")
        _ = self.model

    @functools.cached_property
    def model(self) -> Any:
        """The compiled `mujoco.MjModel`."""
        try:
            return _compile(str(self._path))
        except ValueError as error:
            raise UsageError(f"xml_file {str(self._path)!r} cannot be loaded: {str(error).splitlines()[0]}") from error

    def task(self) -> Task:
        """Observations and rewards, with memory of their own."""
        options = {name: value for name, value in self.kwargs.items() if name not in _COMMON}
        try:
            return TASKS[self.id](self.model, options, self.frame_skip)
        except KeyError as error:  # a body that the task needs
            raise UsageError(f"xml_file {str(self._path)!r} does not fit {self.id!r}: {error.args[0]}") from error

    @property
    def _path(self) -> Path:
        """The model file; a name without a folder is one of Gymnasium's, as in its constructors."""
        name = str(self.kwargs.get("xml_file", TASKS[self.id].model_file))
        path = Path(name).expanduser() if name.startswith((".", "/", "~")) else _assets() / name
        if not path.is_file():
            raise UsageError(f"xml_file {name!r} does not exist: give the path of a MuJoCo model")
        return path

    @property
    def frame_skip(self) -> int:
        """Simulation steps per environment step."""
        return int(self.kwargs.get("frame_skip", TASKS[self.id].frame_skip))

    @property
    def max_steps(self) -> int:
        """Steps after which an episode is truncated."""
        return int(self.kwargs.get("max_episode_steps", TASKS[self.id].max_steps))

    @property
    def reward_threshold(self) -> float | None:
        """Mean return at which the environment counts as solved."""
        return TASKS[self.id].reward_threshold

    @functools.cached_property
    def obs_size(self) -> int:
        """Length O of one observation."""
        return self.task().obs_size()

    @property
    def obs_low(self) -> F32:
        """Lower bounds of an observation, (O,) float32: there are none."""
        return np.full(self.obs_size, -np.inf, np.float32)

    @property
    def obs_high(self) -> F32:
        """Upper bounds of an observation, (O,) float32: there are none."""
        return np.full(self.obs_size, np.inf, np.float32)

    @property
    def n_actions(self) -> int:
        """0: actions are continuous."""
        return 0

    @property
    def action_size(self) -> int:
        """Length A of one action."""
        return int(self.model.nu)

    @property
    def action_low(self) -> F32:
        """Lower bounds of an action, (A,) float32."""
        return self.model.actuator_ctrlrange[:, 0].astype(np.float32)  # type: ignore[no-any-return]

    @property
    def action_high(self) -> F32:
        """Upper bounds of an action, (A,) float32."""
        return self.model.actuator_ctrlrange[:, 1].astype(np.float32)  # type: ignore[no-any-return]

    @property
    def observation_space(self) -> Any:
        """The Gymnasium space of one observation, a float32 vector."""
        from gymnasium import spaces

        return spaces.Box(self.obs_low, self.obs_high, dtype=np.float32)

    @property
    def action_space(self) -> Any:
        """The Gymnasium space of one action."""
        from gymnasium import spaces

        return spaces.Box(self.action_low, self.action_high, dtype=np.float32)

    @functools.cached_property
    def version(self) -> str:
        """Digest of what decides the dynamics: id, options, the model file and MuJoCo's version."""
        content = repr((self.id, sorted(self.kwargs.items()), mujoco.__version__)).encode()
        return hashlib.sha256(content + self._path.read_bytes()).hexdigest()[:16]


def _assets() -> Path:
    """Where Gymnasium keeps its models, found without importing its environments."""
    found = importlib.util.find_spec("gymnasium")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "envs" / "mujoco" / "assets"


@functools.cache
def _compile(path: str) -> Any:
    """Compile a model; what MuJoCo has to say about it comes as Python warnings, not in a file of its own."""
    messages: list[str] = []
    before = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(messages.append)
    try:
        model = mujoco.MjModel.from_xml_path(path)
    finally:
        mujoco.set_mju_user_warning(before)
    for message in messages:
        # About the form of Gymnasium's own files, which users can do nothing about.
        if "deprecated" not in message:
            warnings.warn(f"{path}: {message}", stacklevel=2)
    return model
