"""Gymnasium environments whose observations keep their form: images of bytes, dicts of arrays.

All arrays of an observation are packed into one row of bytes. Rollouts, replay buffers and checkpoints then store rows,
whatever is in them, and whoever computes with an observation looks at its arrays through views.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

from mileage._errors import UsageError
from mileage._types import U8, ObsLeaf
from mileage.envs.gymnasium.bridge import BridgedVecEnv, GymnasiumEnv, gymnasium_make

# Views of float32 start at multiples of their size; rows at multiples of a cache word.
_ALIGNMENT = 8


@dataclasses.dataclass(frozen=True, eq=False)
class StructuredEnv(GymnasiumEnv):
    """A Gymnasium environment with packed observations, (B,) uint8 each; `leaves` says what is where."""

    def create(self) -> gymnasium.Env[Any, Any]:
        """Make one environment whose observations are arrays or a dict of arrays."""
        if self.image:
            return super().create()
        env = self.make(**self.kwargs) if self.make else gymnasium_make(self.id, self.kwargs)
        _leaves(env.observation_space, self.id)
        if not isinstance(env.action_space, spaces.Discrete | spaces.Box):
            raise UsageError(f"environment {self.id!r} has actions {env.action_space}: wrap it to take Discrete or Box")
        return env

    @property
    def leaves(self) -> tuple[ObsLeaf, ...]:
        """The arrays of one observation."""
        return _leaves(self._example[0], self.id)

    @property
    def observation_space(self) -> Any:
        """The Gymnasium space of one observation, as the environment has it."""
        return self._example[0]

    @property
    def obs_shape(self) -> tuple[int, ...]:
        """Bytes (B,) of one packed observation."""
        return (-(-self.leaves[-1].stop // _ALIGNMENT) * _ALIGNMENT,)

    @property
    def obs_dtype(self) -> np.dtype[Any]:
        """Rows are bytes, whatever they hold."""
        return np.dtype(np.uint8)


def structured(spec: Any) -> Any:
    """`spec` with its observations as they are, if they would lose their form when flattened; else `spec` itself."""
    if not isinstance(spec, GymnasiumEnv) or isinstance(spec, StructuredEnv):
        return spec
    try:
        whole = StructuredEnv(spec.id, spec.kwargs, spec.make, spec.image)
    except UsageError:
        return spec
    space = whole.observation_space
    formed = isinstance(space, spaces.Dict) or (isinstance(space, spaces.Box) and len(space.shape) > 1)
    return whole if formed else spec


def _leaves(space: spaces.Space[Any], env_id: str) -> tuple[ObsLeaf, ...]:
    parts = dict(space.spaces) if isinstance(space, spaces.Dict) else {"": space}
    leaves, start = [], 0
    for name, part in parts.items():
        if isinstance(part, spaces.Box):
            shape, dtype = part.shape, "uint8" if part.dtype == np.uint8 else "float32"
        elif isinstance(part, spaces.Discrete) and part.start == 0:
            shape, dtype = (int(part.n),), "float32"
        else:
            raise UsageError(f"environment {env_id!r} has observations {part}: wrap it so that they are arrays")
        stop = start + math.prod(shape) * np.dtype(dtype).itemsize
        leaves.append(ObsLeaf(name, shape, dtype, start, stop))
        start = -(-stop // _ALIGNMENT) * _ALIGNMENT
    return tuple(leaves)


def pack(leaves: Sequence[ObsLeaf], obs: Any, out: U8) -> None:
    """Write observations, (N, *shape) or a dict of such, as rows into `out` (N, B) uint8.

    Discrete parts, (N,) integers, become one-hot.
    """
    for leaf in leaves:
        values = np.asarray(obs[leaf.name] if leaf.name else obs)
        view = view_of(leaf, out)
        if values.ndim == 1 and view.ndim == 2 and values.dtype.kind in "iu":
            view[:] = values[:, None] == np.arange(view.shape[1])
        else:
            view[:] = values


def view_of(leaf: ObsLeaf, rows: U8) -> NDArray[Any]:
    """The array (N, *shape) inside packed rows (N, B) uint8; not a copy."""
    part = rows[:, leaf.start : leaf.stop].view(leaf.dtype)
    strides = [np.dtype(leaf.dtype).itemsize]
    for size in reversed(leaf.shape[1:]):
        strides.insert(0, strides[0] * size)
    shape = (len(rows), *leaf.shape)
    return np.lib.stride_tricks.as_strided(part, shape, (part.strides[0], *strides[: len(leaf.shape)]))


class StructuredVecEnv(BridgedVecEnv):
    """`n_envs` copies of a `StructuredEnv`; `obs` and `final_obs` are packed rows, (N, B) uint8."""

    spec: StructuredEnv

    def __init__(self, env: StructuredEnv, n_envs: int, *, seed: int = 0, processes: bool = False) -> None:
        super().__init__(env, n_envs, seed=seed, processes=processes)
        self._leaves = env.leaves

    def reset(self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None) -> Any:
        """Start all episodes anew and return (obs (N, B) uint8, infos); seeds as in `VecEnv.reset`."""
        chosen = self._first_seed if seed is None else seed
        self._first_seed = None
        obs, infos = self._envs.reset(seed=self._seeds(chosen), options=options)
        pack(self._leaves, obs, self.obs)
        return self.obs, infos

    def step(self, actions: ArrayLike) -> Any:
        """Step every environment once; arguments and results as in `VecEnv.step`, observations packed."""
        obs, reward, terminated, truncated, infos = self._envs.step(self._native_actions(actions))
        pack(self._leaves, obs, self.obs)
        np.copyto(self.reward, reward, casting="same_kind")
        np.copyto(self.terminated, terminated)
        np.greater(truncated, terminated, out=self.truncated)
        if "final_obs" in infos:
            ended = infos["_final_obs"]
            for i in np.flatnonzero(ended):
                pack(self._leaves, _batch_of_one(infos["final_obs"][i]), self.final_obs[i : i + 1])
            infos = {**infos, "final_obs": self.final_obs, "_final_obs": ended}
        return self.obs, self.reward, self.terminated, self.truncated, infos


def _batch_of_one(obs: Any) -> Any:
    if isinstance(obs, dict):
        return {name: np.asarray(part)[None] for name, part in obs.items()}
    return np.asarray(obs)[None]
